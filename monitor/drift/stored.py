"""Drift of stored inferences: a window of a model against a baseline, or another window."""

import time
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.estimates import estimated
from quadriga.monitor.drift.parameters import DriftParameters, StoredWindow
from quadriga.monitor.drift.row_signals import META
from quadriga.monitor.drift.samples import EMBEDDING, DriftError, differ
from quadriga.monitor.drift.significance.decision import Settings
from quadriga.monitor.drift.similarity import least_like
from quadriga.monitor.drift.slices import slices
from quadriga.monitor.drift.summary import Summary
from quadriga.monitor.drift.windows import About, Reading, WindowRead, read_window
from quadriga.monitor.evaluation.stored_images import read as read_records
from quadriga.monitor.executors import Here, Places, Tell
from quadriga.monitor.report.schema import (
    Data,
    Neighbour,
    Report,
    Slice,
    Unlike,
    Window,
    by_effect,
    provenance,
)
from quadriga.store.errors import NotReadyError, QueryTimeoutError
from quadriga.store.inferences import Inferences
from quadriga.store.records import timestamp_text

BASELINE_ROWS = 10_000
"""Rows of a baseline that are compared."""

FEW_VALUES, MOST_KEYS = 12, 3
"""Keys of the metadata in whose values an alarm is looked for where none is named: those with the fewest."""

MOST_MOVED = 5
"""Signals that are looked for there, those that moved most; embeddings, which take long, if nothing else did."""

Shown = TypeVar("Shown", Neighbour, Unlike)


def compare_stored(
    inferences: Inferences,
    parameters: DriftParameters,
    baseline: WindowRead | None = None,
    tell: Tell = lambda *_: None,
    *,
    places: Places | None = None,
    now_us: int | None = None,
) -> Report:
    """Compare a window of what is stored.

    Args:
        inferences: The store.
        parameters: What to compare, from `absolute`.
        baseline: The one that the parameters name; None where they say which window it is.
        tell: See there.
        places: Where inferences are read; None: here.
        now_us: What `now` means, in microseconds since 1970; None: now.

    Raises:
        DriftError: There is nothing to compare, or nothing to compare it with.
        StoreError: The database does not answer.
    """
    started = time.monotonic()
    places = places or Here(inferences)
    settings = msgspec.convert(parameters, Settings, from_attributes=True)
    asked = reading(inferences, parameters, now_us)
    read = partial(read_window, inferences, tell=tell, places=places)
    if baseline is None:
        now = read(asked)
        _check_current(inferences, asked, now)
        before = read(_baseline(parameters, _like(asked, now.about)))
        if not before.about.window.n:
            model = parameters.model
            raise DriftError(f"expected inferences of {model!r:.80} in the baseline, got none")
    else:
        before = baseline
        now = read(_like(asked, before.about))
        _check_current(inferences, asked, now)
    sides, left_out = _comparable(before, now, parameters)
    passed = {META + one.about.source_key for one in (before, now) if one.about.source_key}
    passed |= {*parameters.ignore}
    if parameters.signals:
        passed |= _names(*sides) - {*parameters.signals}
    signals = [side.without(passed) for side in sides]
    tell(now.about.window.n, now.about.window.n)
    report = compare(signals[0], signals[1], settings, task=now.about.task)
    moved = [one.name for one in by_effect(report.signals) if one.alarm]
    moved = [one for one in moved if one != EMBEDDING] or moved
    baseline_excluded = {f"baseline_{reason}": n for reason, n in before.about.excluded.items()}
    data = Data(
        _windowed(now.about, report.data.current),
        _windowed(before.about, report.data.baseline or Window()),
        now.about.excluded | baseline_excluded,
    )
    return replace(
        report,
        created=timestamp_text(time.time_ns() // 1_000_000),
        model=now.about.model,
        data=data,
        parameters=_told(parameters, (before.about, now.about), left_out) | report.parameters,
        metrics=estimated(inferences, now.about.task, *(side.sample.order for side in sides)),
        slices=_slices(sides, moved[:MOST_MOVED], parameters, settings),
        unlike=_unlike(inferences, sides, now.about.space),
        provenance=provenance(started),
    )


def reading(
    inferences: Inferences, parameters: DriftParameters, now_us: int | None = None
) -> Reading:
    """Say what is read of the current window, once what is journaled can be read, if it can be soon."""
    with suppress(NotReadyError, QueryTimeoutError):  # the writer is behind: what is there counts
        inferences.wait_for_journal()
    return Reading(
        parameters.model,
        parameters.current,
        inferences.latest_seq(),
        time.time_ns() // 1000 if now_us is None else now_us,
        source_keys=parameters.source_keys,
        seed=parameters.seed,
    )


def _check_current(inferences: Inferences, asked: Reading, found: WindowRead) -> None:
    """See that the model ever answered: an empty window only says too little."""
    if not found.about.window.n:
        anything = {"model": {"eq": asked.model}}
        if not any(ids for ids in inferences.ids(anything, asked.now_us)):
            raise DriftError(f"expected inferences of {asked.model!r:.80}, got none")


def _like(asked: Reading, other: About) -> Reading:
    """Ask for what can be compared with another window."""
    keys = asked.source_keys if other.source_key is None else [other.source_key]
    return replace(asked, task=other.task or asked.task, space=other.space, source_keys=keys)


def _baseline(parameters: DriftParameters, alike: Reading) -> Reading:
    """Ask for the window that is the baseline."""
    window = parameters.baseline
    if not isinstance(window, StoredWindow):
        raise DriftError(f"expected the baseline {window!r:.80} to be at hand, got its name alone")
    return replace(alike, window=window, rows=BASELINE_ROWS)


def _comparable(
    before: WindowRead, now: WindowRead, parameters: DriftParameters
) -> tuple[tuple[Summary, Summary], dict[str, str]]:
    """Leave out what is of another kind on one side; say why signals are left out."""
    sides = before.summary, now.summary
    left_out = before.about.left_out | now.about.left_out
    known = _names(*sides)
    for name in (*parameters.signals, *parameters.ignore):
        if name not in known | left_out.keys():
            listed = ", ".join(sorted(known)[:20]) or "none"
            raise DriftError(f"expected a signal among {listed}, got {name!r:.80}")
    for one in before.summary.sample.columns:
        other = now.summary.sample.column(one.name)
        if other is not None and (found := differ(one, other)):
            left_out[one.name] = f"{found[0]} in the baseline, {found[1]} in the window"
    kept = sides[0].without(left_out), sides[1].without(left_out)
    told = {name: why for name, why in left_out.items() if name not in parameters.ignore}
    return kept, dict(sorted(told.items()))


def _names(*sides: Summary) -> set[str]:
    return {column.name for side in sides for column in side.sample.columns}


def _slices(
    sides: tuple[Summary, Summary],
    moved: list[str],
    parameters: DriftParameters,
    settings: Settings,
) -> list[Slice]:
    """Look for the values of the metadata that carry an alarm."""
    by = [META + one.removeprefix(META) for one in parameters.by]
    if not by:
        columns = [one for one in sides[1].sample.columns if one.kind == "categorical"]
        few = [one for one in columns if 1 < len(one.labels) <= FEW_VALUES]
        few.sort(key=lambda one: (len(one.labels), one.name))
        by = [one.name for one in few if one.name.startswith(META)][:MOST_KEYS]
    return slices(sides[0], sides[1], moved, by, settings)


def _unlike(inferences: Inferences, sides: tuple[Summary, Summary], space: str) -> list[Unlike]:
    """Return the images least like the baseline, with what is stored of them and of their neighbours."""
    found = least_like(sides[0].sample, sides[1].sample, space)
    ids = {one.inference_id for one in found}
    ids |= {near.inference_id for one in found for near in one.nearest}
    records = (
        {one.id: one for one in read_records(inferences, sorted(map(int, ids)))} if ids else {}
    )

    def shown(one: Shown) -> Shown:
        """Add what is stored of an inference; nothing of one that was deleted since."""
        record = records.get(one.inference_id)
        if record is None:
            return one
        image, said = record.input, record.predictions
        return replace(
            one, image=image.hash, width=image.width, height=image.height, predictions=said
        )

    return [replace(shown(one), nearest=[shown(near) for near in one.nearest]) for one in found]


def _windowed(about: About, compared: Window) -> Window:
    return replace(about.window, n=compared.n, n_eff=compared.n_eff)


def _told(
    parameters: DriftParameters, abouts: tuple[About, About], left_out: dict[str, str]
) -> dict[str, Any]:
    """Return of the parameters what the report says nowhere else."""
    given = msgspec.to_builtins(parameters)
    told = {name: given[name] for name in ("signals", "ignore", "by") if given[name]}
    before, now = abouts
    if before.model.sha256 and now.window.n and now.model.sha256 != before.model.sha256:
        told["baseline_sha256"] = before.model.sha256
    return {
        "baseline": given["baseline"],
        **told,
        "source_key": now.source_key,
        "left_out": left_out,
    }
