"""Where an alarm comes from: the slices of a window that carry it."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.comparison import as_summary, compare
from quadriga.monitor.drift.samples import Sample, take_rows
from quadriga.monitor.drift.significance.decision import ComparisonSettings, decide
from quadriga.monitor.drift.summary import Summary
from quadriga.monitor.report.schema import Metric, Signal, Slice, by_effect, times_least
from quadriga.tasks.arrays import Int64Array

MAX_VALUES = 50
"""Columns with more values than this are no slices."""


def find_drift_slices(
    baseline: Summary | Sample,
    current: Summary | Sample,
    moved: Sequence[str],
    by: Sequence[str],
    settings: ComparisonSettings | None = None,
) -> list[Slice]:
    """Return the parts of the current rows in which a signal moved, by an alarm of their own, largest first.

    A part are the rows that have one value of a column. The metrics of a slice are the effects of the signals
    that moved there, the largest first; their parameters say how far the signal moved in all `other` rows. Of
    a value that the baseline has not, nothing can be said.

    Args:
        baseline: As compared.
        current: As compared.
        moved: Names of the signals to look at, such as those with an alarm.
        by: Names of columns with categories.
        settings: As compared; alpha is dealt out among the slices of one column.
    """
    settings = replace(settings or ComparisonSettings(), windows=1)
    sides = as_summary(baseline, settings), as_summary(current, settings)
    made = [
        found
        for name in by
        for found in _slices_by_column(sides, [one for one in moved if one != name], name, settings)
    ]
    return [one for _, one in sorted(made, key=lambda each: -each[0])]


def _slices_by_column(
    sides: tuple[Summary, Summary], moved: Sequence[str], name: str, settings: ComparisonSettings
) -> Iterator[tuple[float, Slice]]:
    """Yield the slices of a column that moved, each with how many times the least effect."""
    columns = [one.sample.column(name) for one in sides]
    found = [one for one in columns if one is not None and one.kind == "categorical"]
    if not moved or len(found) < 2:
        return
    values = sorted({*found[0].labels} & {*found[1].labels})
    if len(values) > MAX_VALUES:
        return
    finer = replace(settings, windows=max(len(values), 1))
    parts = [[one.rows[one.values == one.labels.index(value)] for one in found] for value in values]

    def look(rows: list[Int64Array]) -> list[Signal]:
        before, now = (_slice_summary(*one, moved) for one in zip(sides, rows, strict=True))
        return compare(before, now, finer).signals

    looks = [look(rows) for rows in parts]
    decided = iter(decide([one for within in looks for one in within], settings))
    for value, rows, within in zip(values, parts, looks, strict=True):
        judged = [next(decided) for _ in within]
        there = [one for one in by_effect(judged) if one.alarm]
        if there:
            others = [
                np.setdiff1d(np.arange(len(side.sample.order)), inside)
                for side, inside in zip(sides, rows, strict=True)
            ]
            rest = {one.name: one for one in look(others)}
            metrics = [_slice_metric(one, rest[one.name]) for one in there]
            yield times_least(there[0]), Slice(name, value, len(rows[1]), metrics)


def _slice_summary(side: Summary, rows: Int64Array, moved: Sequence[str]) -> Summary:
    """Return the signals that moved, of these rows."""
    columns = [column for column in side.sample.columns if column.name in moved]
    return replace(side, sample=take_rows(side.sample.with_columns(columns), rows), n=len(rows))


def _slice_metric(signal: Signal, other: Signal) -> Metric:
    about = {"signal": signal.name, "p_adjusted": signal.p_adjusted, "other": other.effect.value}
    return Metric(signal.effect.name, signal.effect.value, about, n=signal.n[1])
