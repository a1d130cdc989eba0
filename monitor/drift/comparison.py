"""Has anything changed? A window against a baseline, as a report."""

import zlib

import msgspec
import numpy as np

from monitor.drift import tests
from monitor.drift.decision import Settings, decide, most_permutations, status
from monitor.drift.dependence import Codes, Place
from monitor.drift.permutation import Effort
from monitor.drift.samples import Column, DriftError, Kind, Sample
from monitor.drift.signals import Pair, look
from monitor.drift.summary import Summary
from monitor.report import Data, Effect, Reference, Report, Signal, Window

_TESTS: dict[Kind, tuple[str, str]] = {
    "numeric": ("ks", "wasserstein_iqr"),
    "count": ("chi_square", "wasserstein_iqr"),
    "categorical": ("chi_square", "total_variation"),
    "embedding": ("energy", "energy_coefficient"),
}


def compare(
    baseline: Summary | Sample, current: Sample, settings: Settings | None = None, *, task: str = ""
) -> Report:
    """Compare each column of the current sample that the baseline has too.

    Columns that only the baseline has are reported as insufficient. Those that it has not are left out: of
    them nothing can be said.

    Raises:
        DriftError: A column is of another kind, or its embeddings are of another length.
    """
    settings = settings or Settings()
    known = {} if isinstance(baseline, Sample) else baseline.labels
    before = baseline if isinstance(baseline, Sample) else baseline.sample
    now = {column.name: column for column in current.columns}
    most = most_permutations(settings, len(before.columns))
    codes = _common_sources(before, current)
    signals = []
    for column in before.columns:
        other = now.get(column.name) or Column(
            column.name, column.kind, np.zeros(0, np.int64), column.values[:0], column.labels
        )
        pair = Pair(
            _common_kind(column, other),
            column,
            other,
            (
                _place(baseline, codes[0], column),
                _place(current, codes[1], other),
            ),
        )
        signals.append(_signal(pair, settings, most, known.get(column.name, {})))
    return _report(decide(signals, settings), baseline, current, settings, task)


def _signal(pair: Pair, settings: Settings, most: int, known: dict[str, int]) -> Signal:
    n = (len(pair.baseline.rows), len(pair.current.rows))
    name = pair.baseline.name
    if not min(n):
        test, effect = _TESTS[pair.kind]
        return Signal(name, pair.kind, test, Effect(effect, None, 0.0), n, status="insufficient")
    found = look(pair, settings, Effort(most, zlib.crc32(name.encode(), settings.seed)))
    new = set(pair.current.labels) - set(pair.baseline.labels) - known.keys()
    return Signal(
        name,
        pair.kind,
        found.test,
        found.effect,
        n,
        found.statistic,
        found.p,
        status=status(found.units, settings),
        n_eff=found.units.n_eff,
        units=found.units.kind,
        histogram=found.histogram,
        new_labels=sorted(new),
        psi=None if found.table is None else Reference(*tests.psi(found.table)),
        js=None if found.table is None else Reference(*tests.jensen_shannon(found.table)),
    )


def _common_kind(baseline: Column, current: Column) -> Kind:
    """Return the kind of both; integers may be few on one side only."""
    kinds = {baseline.kind, current.kind}
    if not len(current.rows) or not len(baseline.rows):
        return baseline.kind if len(baseline.rows) else current.kind
    if kinds == {"numeric", "count"}:
        return "numeric"
    if len(kinds) > 1:
        raise DriftError(
            f"expected {baseline.name} to be {baseline.kind} as in the baseline, got {current.kind}"
        )
    shapes = (baseline.values.shape[1:], current.values.shape[1:])
    if shapes[0] != shapes[1]:
        raise DriftError(
            f"expected {baseline.name} to be of length {shapes[0][0]} as in the baseline,"
            f" got {shapes[1][0]}"
        )
    return baseline.kind


def _common_sources(before: Sample, current: Sample) -> tuple[Codes, Codes]:
    """Return the sources of rows as positions in one list of names."""
    names = sorted({*before.source_names, *current.source_names})
    place = {name: at for at, name in enumerate(names)}
    codes = [
        np.array([place[name] for name in one.source_names] or [0], np.int64)[one.sources]
        for one in (before, current)
    ]
    return codes[0], codes[1]


def _place(side: Summary | Sample, sources: Codes, column: Column) -> Place:
    sample = side if isinstance(side, Sample) else side.sample
    runs = np.zeros(len(column.rows), np.int64)
    drawn = isinstance(side, Summary) and side.drawn(column.kind)
    if isinstance(side, Summary) and drawn:
        runs = sample.order[column.rows] // side.run
    return Place(sources[column.rows], runs, bool(sample.source_names), drawn)


def _report(
    signals: list[Signal],
    baseline: Summary | Sample,
    current: Sample,
    settings: Settings,
    task: str,
) -> Report:
    judged = [one for one in signals if one.status != "insufficient"]
    alarm = any(one.alarm for one in signals)
    least = [min((one.n_eff[side] for one in judged), default=None) for side in (0, 1)]
    rows = len(baseline.order) if isinstance(baseline, Sample) else baseline.n
    parameters = msgspec.to_builtins(settings)
    return Report(
        kind="drift",
        task=task,
        data=Data(
            current=Window(n=len(current.order), n_eff=least[1]),
            baseline=Window(n=rows, n_eff=least[0]),
        ),
        status="drift" if alarm else "ok" if judged else "insufficient",
        parameters=parameters | {"correction": "bh", "spending": f"bonferroni/{settings.windows}"},
        signals=signals,
    )
