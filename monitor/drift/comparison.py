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
from monitor.drift.summary import Summary, summarise
from monitor.report import Data, Effect, Reference, Report, Signal, Window

_TESTS: dict[Kind, tuple[str, str]] = {
    "numeric": ("ks", "wasserstein_iqr"),
    "count": ("chi_square", "wasserstein_iqr"),
    "categorical": ("chi_square", "total_variation"),
}


def compare(
    baseline: Summary | Sample,
    current: Summary | Sample,
    settings: Settings | None = None,
    *,
    task: str = "",
) -> Report:
    """Compare each column that the baseline has; one that is not current is insufficient.

    Of a sample with more rows than `settings.rows`, as many are drawn.

    Raises:
        DriftError: A column is of another kind, or its embeddings are of another length.
    """
    settings = settings or Settings()
    before, now = bounded(baseline, settings), bounded(current, settings)
    effort = Effort(most_permutations(settings, len(before.sample.columns)), settings.seed)
    codes = _common_sources(before.sample, now.sample)
    columns = {column.name: column for column in now.sample.columns}
    signals = []
    for column in before.sample.columns:
        nothing = Column(column.name, column.kind, column.rows[:0], column.values[:0])
        other = columns.get(column.name, nothing)
        pair = Pair(
            _common_kind(column, other),
            column,
            other,
            (_place(before, codes[0], column), _place(now, codes[1], other)),
        )
        new = now.labels.get(column.name, {}).keys() - before.labels.get(column.name, {}).keys()
        signals.append(_signal(pair, settings, effort, sorted(new), len(before.sample.columns)))
    return _report(decide(signals, settings), before, now, settings, task)


def bounded(side: Summary | Sample, settings: Settings) -> Summary:
    """Return a sample as a summary of no more rows than are compared; a summary as it is."""
    if isinstance(side, Summary):
        return side
    return summarise(
        side, rows=settings.rows, embeddings=settings.embedding_rows, seed=settings.seed
    )


def _signal(pair: Pair, settings: Settings, effort: Effort, new: list[str], signals: int) -> Signal:
    n = (len(pair.baseline.rows), len(pair.current.rows))
    name = pair.baseline.name
    if not min(n):
        kernel = (settings.kernel, f"{settings.kernel}_coefficient")
        test, effect = _TESTS.get(pair.kind, kernel)
        reason = f"expected values on each side, got {n[0]} and {n[1]}"
        return Signal(
            name,
            pair.kind,
            test,
            Effect(effect, None, 0.0),
            n,
            status="insufficient",
            reason=reason,
        )
    seed = zlib.crc32(name.encode(), settings.seed)
    found = look(pair, settings, effort._replace(seed=seed))
    enough, reason = status(found.units, settings, signals)
    return Signal(
        name,
        pair.kind,
        found.test,
        found.effect,
        n,
        found.statistic,
        found.p,
        status=enough,
        reason=reason,
        n_eff=found.units.n_eff,
        units=found.units.kind,
        histogram=found.histogram,
        new_labels=new,
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


def _place(side: Summary, sources: Codes, column: Column) -> Place:
    drawn = side.drawn(column.kind)
    order = side.sample.order[column.rows]
    runs = order // side.run if drawn else np.zeros_like(order)
    return Place(sources[column.rows], runs, bool(side.sample.source_names), drawn)


def _report(
    signals: list[Signal], before: Summary, now: Summary, settings: Settings, task: str
) -> Report:
    judged = [one for one in signals if one.status != "insufficient"]
    alarm = any(one.alarm for one in signals)
    least = [min((one.n_eff[side] for one in judged), default=None) for side in (0, 1)]
    parameters = msgspec.to_builtins(settings)
    return Report(
        kind="drift",
        task=task,
        data=Data(Window(n=now.n, n_eff=least[1]), Window(n=before.n, n_eff=least[0])),
        status="drift" if alarm else "ok" if judged else "insufficient",
        parameters=parameters | {"correction": "bh", "spending": f"bonferroni/{settings.windows}"},
        signals=signals,
    )
