"""Where an alarm comes from: the slices of a window that carry it."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.comparison import bounded, compare
from quadriga.monitor.drift.samples import Sample, take
from quadriga.monitor.drift.significance.decision import Settings, decide
from quadriga.monitor.drift.summary import Summary
from quadriga.monitor.report.schema import Metric, Signal, Slice, effect_ratio, sorted_by_effect
from quadriga.tasks.arrays import Int64Array

MOST_VALUES = 50
"""Columns with more values than this are no slices."""


def slices(
    baseline: Summary | Sample,
    current: Summary | Sample,
    moved: Sequence[str],
    by: Sequence[str],
    settings: Settings | None = None,
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
    settings = replace(settings or Settings(), windows=1)
    sides = bounded(baseline, settings), bounded(current, settings)
    made = [
        found
        for name in by
        for found in _by(sides, [one for one in moved if one != name], name, settings)
    ]
    return [one for _, one in sorted(made, key=lambda each: -each[0])]


def _by(
    sides: tuple[Summary, Summary], moved: Sequence[str], name: str, settings: Settings
) -> Iterator[tuple[float, Slice]]:
    """Yield the slices of a column that moved, each with how many times the least effect."""
    columns = [one.sample.column(name) for one in sides]
    found = [one for one in columns if one is not None and one.kind == "categorical"]
    if not moved or len(found) < 2:
        return
    values = sorted({*found[0].labels} & {*found[1].labels})
    if len(values) > MOST_VALUES:
        return
    finer = replace(settings, windows=max(len(values), 1))
    parts = [[one.rows[one.values == one.labels.index(value)] for one in found] for value in values]

    def look(rows: list[Int64Array]) -> list[Signal]:
        before, now = (_part(*one, moved) for one in zip(sides, rows, strict=True))
        return compare(before, now, finer).signals

    looks = [look(rows) for rows in parts]
    decided = iter(decide([one for within in looks for one in within], settings))
    for value, rows, within in zip(values, parts, looks, strict=True):
        judged = [next(decided) for _ in within]
        there = [one for one in sorted_by_effect(judged) if one.alarm]
        if there:
            others = [
                np.setdiff1d(np.arange(len(side.sample.order)), inside)
                for side, inside in zip(sides, rows, strict=True)
            ]
            rest = {one.name: one for one in look(others)}
            metrics = [_metric(one, rest[one.name]) for one in there]
            yield effect_ratio(there[0]), Slice(name, value, len(rows[1]), metrics)


def _part(side: Summary, rows: Int64Array, moved: Sequence[str]) -> Summary:
    """Return the signals that moved, of these rows."""
    columns = [column for column in side.sample.columns if column.name in moved]
    return replace(side, sample=take(side.sample.of(columns), rows), n=len(rows))


def _metric(signal: Signal, other: Signal) -> Metric:
    about = {"signal": signal.name, "p_adjusted": signal.p_adjusted, "other": other.effect.value}
    return Metric(signal.effect.name, signal.effect.value, about, n=signal.n[1])
