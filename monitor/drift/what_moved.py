"""Where an alarm comes from: the signals in order of effect, and the slices that carry it."""

from collections.abc import Sequence

import msgspec
import numpy as np

from monitor.drift.comparison import bounded, compare
from monitor.drift.decision import Settings, decide
from monitor.drift.dependence import Codes
from monitor.drift.samples import Column, Sample, take
from monitor.drift.summary import Summary
from monitor.report import Metric, Signal, Slice, by_effect, times_least

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
    settings = msgspec.structs.replace(settings or Settings(), windows=1)
    before, now = (bounded(one, settings) for one in (baseline, current))
    made = [
        found
        for name in by
        for found in _by(before, now, [one for one in moved if one != name], name, settings)
    ]
    return [one for _, one in sorted(made, key=lambda each: -each[0])]


def _by(
    before: Summary, now: Summary, moved: Sequence[str], name: str, settings: Settings
) -> list[tuple[float, Slice]]:
    sides = [_category(side.sample, name) for side in (before, now)]
    if not moved or sides[0] is None or sides[1] is None:
        return []
    values = sorted({*sides[0].labels} & {*sides[1].labels})
    if len(values) > MOST_VALUES:
        return []
    finer = msgspec.structs.replace(settings, windows=max(len(values), 1))
    parts = [[_rows(column, value) for column in sides if column] for value in values]

    def look(rows: list[Codes], *, inside: bool) -> list[Signal]:
        parted = [
            _part(*one, moved, inside=inside) for one in zip((before, now), rows, strict=True)
        ]
        return compare(parted[0], parted[1], finer).signals

    looks = [look(rows, inside=True) for rows in parts]
    decided = iter(decide([one for within in looks for one in within], settings))
    made = []
    for value, rows, within in zip(values, parts, looks, strict=True):
        judged = [next(decided) for _ in within]
        if any(one.alarm for one in judged):
            rest = {one.name: one for one in look(rows, inside=False)}
            there = [one for one in by_effect(judged) if one.alarm]
            metrics = [_metric(one, rest[one.name]) for one in there]
            made.append((times_least(there[0]), Slice(name, value, len(rows[1]), metrics)))
    return made


def _category(sample: Sample, name: str) -> Column | None:
    found = (one for one in sample.columns if one.name == name and one.kind == "categorical")
    return next(found, None)


def _rows(column: Column, value: str) -> Codes:
    found: Codes = column.rows[column.values == column.labels.index(value)]
    return found


def _part(
    side: Summary,
    rows: Codes,
    moved: Sequence[str],
    *,
    inside: bool,
) -> Summary:
    """Return the signals that moved, of these rows or of all others."""
    chosen = rows if inside else np.setdiff1d(np.arange(len(side.sample.order)), rows)
    columns = tuple(column for column in side.sample.columns if column.name in moved)
    sample = take(msgspec.structs.replace(side.sample, columns=columns), chosen)
    return msgspec.structs.replace(side, sample=sample, n=len(chosen))


def _metric(signal: Signal, other: Signal) -> Metric:
    about = {"signal": signal.name, "p_adjusted": signal.p_adjusted, "other": other.effect.value}
    return Metric(signal.effect.name, signal.effect.value, about, n=signal.n[1])
