"""Slices of a window that moved more than the rest of it."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.localisation import Part, p_value_against_rest
from quadriga.monitor.drift.samples import EMBEDDING, Column, Sample, merge_names, take_rows
from quadriga.monitor.drift.significance.decision import ComparisonSettings, decide
from quadriga.monitor.drift.significance.two_samples import (
    spread,
    total_variation,
    wasserstein,
)
from quadriga.monitor.drift.summary import Summary, as_summary
from quadriga.monitor.report.schema import Metric, Signal, Slice, effect_ratio, sorted_by_effect
from quadriga.tasks.arrays import BoolArray, Int64Array

MAX_VALUES = 50
"""Maximum number of values of a column that slices are made of."""


_MIN_RATIO = 1.3
"""How many times as far as in all other rows a signal has to move in a slice."""
_MIN_VALUES = 30
"""Values that a slice and the rest need on each side for a signal that could not be judged."""


def find_drift_slices(
    baseline: Summary | Sample,
    current: Summary | Sample,
    moved: Sequence[str],
    by: Sequence[str],
    settings: ComparisonSettings | None = None,
) -> list[Slice]:
    """Return the slices of the current window in which a signal moved more than in the rest, largest effect first.

    A slice holds the rows that share one value of a column. A signal counts if it has an alarm of its own there, moved
    differently than in all other rows (`p_rest` below alpha, adjusted for all slices of the column), and moved more by
    at least its minimum effect. So a change that is everywhere has no slices. The metrics of a slice are the effects
    there, the largest first; their parameters give the effect in all `other` rows. Values that the baseline does not
    have are not examined.

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


def find_undecided_slices(
    baseline: Summary,
    current: Summary,
    signals: Sequence[Signal],
    by: Sequence[str],
    *,
    alpha: float = ComparisonSettings().alpha,
) -> list[Slice]:
    """Return the slices in which signals that could not be judged moved more than in the rest, largest effect first.

    A slice counts if it and the rest have 30 values on each side, and the signal moved there by more, as of
    `find_drift_slices`, and more than chance would move it if all values were independent. They are not, so this is no
    test: it leaves out the slices that are far off only as they are small. The effects are in the unit of the whole
    window's effect.

    Args:
        baseline: Baseline of the comparison.
        current: Current window of the comparison.
        signals: Signals that moved, but have too few independent values to be judged.
        by: Names of the categorical columns to slice by.
        alpha: Probability that chance alone names a slice of a column, if all values are independent.
    """
    sides = baseline, current
    ranked = []
    for name in by:
        rows_by_value = _rows_by_value(sides, name)
        limit = alpha / max(len(rows_by_value) * len(signals), 1)
        for value, rows in rows_by_value.items():
            moves = []
            for signal in signals:
                if signal.name == name or (parts := _parts(sides, rows, signal)) is None:
                    continue
                effects = _effects_in_and_out(*parts)
                if _is_far(effects, signal.effect.minimum) and _p_value_in_parts(*parts) < limit:
                    ratio = effects[0] / signal.effect.minimum
                    moves.append((ratio, _move_metric(signal, effects, len(rows[1]))))
            if moves:
                moves.sort(key=lambda move: -move[0])
                metrics = [metric for _, metric in moves]
                ranked.append((moves[0][0], Slice(name, value, len(rows[1]), metrics)))
    return [slice_ for _, slice_ in sorted(ranked, key=lambda entry: -entry[0])]


def _parts(
    sides: tuple[Summary, Summary], rows: list[Int64Array], signal: Signal
) -> tuple[tuple[Column, Column], list[BoolArray]] | None:
    """Return the columns of a signal, and which of their values are in a slice; None for embeddings, and with too few values."""
    before, after = (side.sample.column(signal.name) for side in sides)
    if before is None or after is None or EMBEDDING in (before.kind, after.kind):
        return None
    inside = [
        np.isin(column.rows, side_rows)
        for column, side_rows in zip((before, after), rows, strict=True)
    ]
    if min(min(part.sum(), (~part).sum()) for part in inside) < _MIN_VALUES:
        return None
    return (before, after), inside


def _p_value_in_parts(columns: tuple[Column, Column], inside: list[BoolArray]) -> float:
    """Return the p-value of a signal that moved in a slice as it did in the rest, as if all values were independent."""
    before, after = (
        (Part(part, float(part.sum())), Part(~part, float((~part).sum()))) for part in inside
    )
    return p_value_against_rest(columns, (before[0], after[0]), (before[1], after[1]))


def _effects_in_and_out(
    columns: tuple[Column, Column], inside: list[BoolArray]
) -> tuple[float, float]:
    """Return the effect of a signal in a slice and in all other rows."""
    before, after = columns
    values = before.values, after.values
    if before.kind == "categorical":
        names, codes = merge_names([(column.labels, column.values) for column in (before, after)])

        def effect(parts: list[BoolArray]) -> float:
            counts = [
                np.bincount(side[part], minlength=len(names))
                for side, part in zip(codes, parts, strict=True)
            ]
            return total_variation(np.array(counts, np.float64))
    else:
        scale = spread(*values)

        def effect(parts: list[BoolArray]) -> float:
            return wasserstein(values[0][parts[0]], values[1][parts[1]]) / scale

    return effect(inside), effect([~part for part in inside])


def _is_far(effects: tuple[float, float], minimum: float) -> bool:
    """Check whether an effect in a slice is clearly larger than that in all other rows."""
    return effects[0] - effects[1] >= minimum and effects[0] >= _MIN_RATIO * effects[1]


def _move_metric(signal: Signal, effects: tuple[float, float], n: int) -> Metric:
    parameters = {
        "signal": signal.name,
        "p_adjusted": None,
        "other": round(effects[1], 6),
        "p_rest": None,
    }
    return Metric(signal.effect.name, round(effects[0], 6), parameters, n=n)


def _slices_by_column(
    sides: tuple[Summary, Summary], moved: Sequence[str], name: str, settings: ComparisonSettings
) -> Iterator[tuple[float, Slice]]:
    """Yield the slices of a column with an alarm, each with its largest effect over the minimum effect."""
    rows_by_value = _rows_by_value(sides, name) if moved else {}
    if not rows_by_value:
        return
    # A smaller share of alpha asks for more permutations, so that slices can reach smaller p-values.
    slice_settings = replace(settings, windows=len(rows_by_value))

    def compare_rows(rows: list[Int64Array]) -> list[Signal]:
        baseline, current = (
            _slice_summary(side, side_rows, moved)
            for side, side_rows in zip(sides, rows, strict=True)
        )
        return compare(baseline, current, slice_settings).signals

    compared = {value: compare_rows(rows) for value, rows in rows_by_value.items()}
    decided = iter(
        decide([signal for signals in compared.values() for signal in signals], settings)
    )
    tests = sum(map(len, compared.values()))
    for value, rows in rows_by_value.items():
        judged = [next(decided) for _ in compared[value]]
        alarms = [signal for signal in sorted_by_effect(judged) if signal.alarm]
        if not alarms:
            continue
        others = {signal.name: signal for signal in compare_rows(_other_rows(sides, rows))}
        metrics = []
        for alarm in alarms:
            other = others[alarm.name]
            p_rest = min(tests * _p_value_against_rest(sides, rows, alarm, other), 1.0)
            if p_rest < settings.alpha and _moved_more(alarm, other):
                metrics.append(_slice_metric(alarm, other, p_rest))
        if metrics:
            yield effect_ratio(alarms[0]), Slice(name, value, len(rows[1]), metrics)


def _rows_by_value(sides: tuple[Summary, Summary], name: str) -> dict[str, list[Int64Array]]:
    """Return the rows of both sides with each value that both have; none if there are too many values."""
    columns = [
        column
        for side in sides
        if (column := side.sample.column(name)) is not None and column.kind == "categorical"
    ]
    if len(columns) < 2:
        return {}
    values = sorted({*columns[0].labels} & {*columns[1].labels})
    if len(values) > MAX_VALUES:
        return {}
    return {
        value: [column.rows[column.values == column.labels.index(value)] for column in columns]
        for value in values
    }


def _other_rows(sides: tuple[Summary, Summary], rows: list[Int64Array]) -> list[Int64Array]:
    """Return all rows of both sides but these."""
    return [
        np.setdiff1d(np.arange(len(side.sample.order)), side_rows)
        for side, side_rows in zip(sides, rows, strict=True)
    ]


def _moved_more(signal: Signal, other: Signal) -> bool:
    """Check whether a signal moved clearly more in a slice than in all other rows, in its own unit if it has one."""
    if signal.shift is not None and signal.min_shift is not None and other.shift is not None:
        shifts, minimum = (signal.shift, other.shift), signal.min_shift
    else:
        effects = (signal.effect.value or 0.0), (other.effect.value or 0.0)
        shifts, minimum = effects, signal.effect.minimum
    return _is_far(shifts, minimum)


def _p_value_against_rest(
    sides: tuple[Summary, Summary], rows: list[Int64Array], signal: Signal, other: Signal
) -> float:
    """Return the p-value of a signal that moved in the slice of these rows as it did in all other rows."""
    columns = [side.sample.column(signal.name) for side in sides]
    if columns[0] is None or columns[1] is None:
        return 1.0
    inside = [
        np.isin(column.rows, slice_rows)
        for column, slice_rows in zip((columns[0], columns[1]), rows, strict=True)
    ]
    return p_value_against_rest(
        (columns[0], columns[1]),
        (Part(inside[0], signal.n_eff[0]), Part(inside[1], signal.n_eff[1])),
        (Part(~inside[0], other.n_eff[0]), Part(~inside[1], other.n_eff[1])),
    )


def _slice_summary(side: Summary, rows: Int64Array, moved: Sequence[str]) -> Summary:
    """Return the signals that moved, restricted to these rows."""
    columns = [column for column in side.sample.columns if column.name in moved]
    return replace(side, sample=take_rows(side.sample.with_columns(columns), rows), n=len(rows))


def _slice_metric(signal: Signal, other: Signal, p_rest: float) -> Metric:
    parameters = {
        "signal": signal.name,
        "p_adjusted": signal.p_adjusted,
        "other": other.effect.value,
        "p_rest": p_rest,
    }
    return Metric(signal.effect.name, signal.effect.value, parameters, n=signal.n[1])
