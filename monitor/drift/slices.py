"""Slices of a window that carry an alarm."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.comparison import as_summary, compare
from quadriga.monitor.drift.samples import Sample, take_rows
from quadriga.monitor.drift.significance.decision import ComparisonSettings, decide
from quadriga.monitor.drift.summary import Summary
from quadriga.monitor.report.schema import Metric, Signal, Slice, effect_ratio, sorted_by_effect
from quadriga.tasks.arrays import Int64Array

MAX_VALUES = 50
"""Maximum number of values of a column that slices are made of."""


def find_drift_slices(
    baseline: Summary | Sample,
    current: Summary | Sample,
    moved: Sequence[str],
    by: Sequence[str],
    settings: ComparisonSettings | None = None,
) -> list[Slice]:
    """Return the slices of the current window in which a signal raises an alarm of its own, largest effect first.

    A slice holds the rows that share one value of a column. Its metrics are the effects of the signals that
    moved there, the largest first; their parameters give the effect in all `other` rows. Values that the baseline
    does not have are not examined.

    Args:
        baseline: Baseline of the comparison.
        current: Current window of the comparison.
        moved: Names of the signals to examine, such as those with an alarm.
        by: Names of the categorical columns to slice by.
        settings: Settings of the comparison; the slices of one column share alpha.
    """
    settings = replace(settings or ComparisonSettings(), windows=1)
    sides = as_summary(baseline, settings), as_summary(current, settings)
    ranked = [
        ranked_slice
        for name in by
        for ranked_slice in _slices_by_column(
            sides, [signal for signal in moved if signal != name], name, settings
        )
    ]
    return [slice_ for _, slice_ in sorted(ranked, key=lambda ranked_slice: -ranked_slice[0])]


def _slices_by_column(
    sides: tuple[Summary, Summary], moved: Sequence[str], name: str, settings: ComparisonSettings
) -> Iterator[tuple[float, Slice]]:
    """Yield the slices of a column with an alarm, each with its largest effect over the minimum effect."""
    columns = [
        column
        for side in sides
        if (column := side.sample.column(name)) is not None and column.kind == "categorical"
    ]
    if not moved or len(columns) < 2:
        return
    values = sorted({*columns[0].labels} & {*columns[1].labels})
    if len(values) > MAX_VALUES:
        return
    # A smaller share of alpha asks for more permutations, so that slices can reach smaller p-values.
    slice_settings = replace(settings, windows=max(len(values), 1))
    rows_by_value = [
        [column.rows[column.values == column.labels.index(value)] for column in columns]
        for value in values
    ]

    def compare_rows(rows: list[Int64Array]) -> list[Signal]:
        baseline, current = (
            _slice_summary(side, side_rows, moved)
            for side, side_rows in zip(sides, rows, strict=True)
        )
        return compare(baseline, current, slice_settings).signals

    signals_by_value = [compare_rows(rows) for rows in rows_by_value]
    decided = iter(decide([signal for signals in signals_by_value for signal in signals], settings))
    for value, rows, signals in zip(values, rows_by_value, signals_by_value, strict=True):
        judged = [next(decided) for _ in signals]
        alarms = [signal for signal in sorted_by_effect(judged) if signal.alarm]
        if alarms:
            remaining_rows = [
                np.setdiff1d(np.arange(len(side.sample.order)), slice_rows)
                for side, slice_rows in zip(sides, rows, strict=True)
            ]
            remaining = {signal.name: signal for signal in compare_rows(remaining_rows)}
            metrics = [_slice_metric(alarm, remaining[alarm.name]) for alarm in alarms]
            yield effect_ratio(alarms[0]), Slice(name, value, len(rows[1]), metrics)


def _slice_summary(side: Summary, rows: Int64Array, moved: Sequence[str]) -> Summary:
    """Return the signals that moved, restricted to these rows."""
    columns = [column for column in side.sample.columns if column.name in moved]
    return replace(side, sample=take_rows(side.sample.with_columns(columns), rows), n=len(rows))


def _slice_metric(signal: Signal, rest: Signal) -> Metric:
    parameters = {
        "signal": signal.name,
        "p_adjusted": signal.p_adjusted,
        "other": rest.effect.value,
    }
    return Metric(signal.effect.name, signal.effect.value, parameters, n=signal.n[1])
