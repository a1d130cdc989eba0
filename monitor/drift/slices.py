"""Slices of a window that moved more than the rest of it."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.samples import EMBEDDING, Column, Sample, merge_names, take_rows
from quadriga.monitor.drift.significance.decision import ComparisonSettings, decide
from quadriga.monitor.drift.significance.two_samples import (
    spread,
    total_variation,
    wasserstein,
)
from quadriga.monitor.drift.summary import Summary, as_summary
from quadriga.monitor.report.schema import Metric, Signal, Slice, effect_ratio, sorted_by_effect
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

MAX_VALUES = 50
"""Maximum number of values of a column that slices are made of."""


_MIN_RATIO = 1.3
"""How many times as far as in all other rows a signal has to move in a slice."""
_MAX_LABELS = 32
"""Number of the most frequent labels whose shares are compared."""
_MIN_INDEPENDENT = 3.0
"""Number of independent rows of a part below which nothing can be said about it."""
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
                parts = None if signal.name == name else _parts(sides, rows, signal.name)
                if parts is None or parts[0][1].kind == EMBEDDING:
                    continue
                counts = [float(part.sum()) for part in (*parts[1], *(~part for part in parts[1]))]
                effects = _effects_in_and_out(*parts) if min(counts) >= _MIN_VALUES else (0.0, 0.0)
                is_far = _is_far(effects, signal.effect.minimum)
                if is_far and _p_value_against_rest(*parts, counts) < limit:
                    ratio = effects[0] / signal.effect.minimum
                    moves.append((ratio, _move_metric(signal, effects, len(rows[1]))))
            if moves:
                moves.sort(key=lambda move: -move[0])
                metrics = [metric for _, metric in moves]
                ranked.append((moves[0][0], Slice(name, value, len(rows[1]), metrics)))
    return [slice_ for _, slice_ in sorted(ranked, key=lambda entry: -entry[0])]


def _parts(
    sides: tuple[Summary, Summary], rows: list[Int64Array], name: str
) -> tuple[tuple[Column, Column], list[BoolArray]] | None:
    """Return the columns of a signal, and which of their values are in a slice; None unless both sides have the column."""
    before, after = (side.sample.column(name) for side in sides)
    if before is None or after is None:
        return None
    inside = [
        np.isin(column.rows, of_side) for column, of_side in zip((before, after), rows, strict=True)
    ]
    return (before, after), inside


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
            parts, n_eff = _parts(sides, rows, alarm.name), (*alarm.n_eff, *other.n_eff)
            p = 1.0 if parts is None else _p_value_against_rest(*parts, n_eff)
            p_rest = min(tests * p, 1.0)
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
    columns: tuple[Column, Column], inside: list[BoolArray], n_eff: Sequence[float]
) -> float:
    """Return the p-value of the hypothesis that a signal changed in a slice as it did in all other rows.

    Compared are the mean and the spread of numbers, the shares of labels, and embeddings along the direction in which
    all of them moved, by Welch's t over the four parts; several of them by Bonferroni. It is 1 if a part has too few
    independent rows.

    Args:
        columns: The signal in the baseline and in the current window.
        inside: (P,) which of their values are in the slice.
        n_eff: Number of independent values of both in the slice, then outside.
    """
    parts = (*inside, *(~part for part in inside))
    if min(n_eff) < _MIN_INDEPENDENT or not all(part.any() for part in parts):
        return 1.0
    from scipy.special import stdtr  # noqa: PLC0415 - slow to load

    scores = _scores(*columns)
    by_part = [side[part] for part, side in zip(parts, (*scores, *scores), strict=True)]
    if columns[0].kind in ("numeric", "count"):
        by_part = [np.hstack([rows, np.abs(rows - np.median(rows))]) for rows in by_part]
    means = [rows.mean(axis=0) for rows in by_part]
    errors = np.array([rows.var(axis=0) / size for rows, size in zip(by_part, n_eff, strict=True)])
    difference = (means[1] - means[0]) - (means[3] - means[2])
    error = errors.sum(axis=0)
    varies = error > 0
    if not varies.any():
        return 1.0
    freedoms = np.array(n_eff)[:, None] - 1
    freedom = error[varies] ** 2 / (errors[:, varies] ** 2 / freedoms).sum(axis=0)
    t = np.abs(difference[varies]) / np.sqrt(error[varies])
    return float(min((2 * stdtr(freedom, -t)).min() * varies.sum(), 1.0))


def _scores(baseline: Column, current: Column) -> tuple[Float64Array, Float64Array]:
    """Return features (P, D) of the values of both sides, whose means tell changes."""
    n = len(baseline.values)
    if baseline.kind == EMBEDDING:
        direction = current.values.mean(axis=0) - baseline.values.mean(axis=0)
        along = [
            side.values.astype(np.float64) @ direction[:, None] for side in (baseline, current)
        ]
        return along[0], along[1]
    if baseline.kind == "categorical":
        _, codes = merge_names([(side.labels, side.values) for side in (baseline, current)])
        pooled = np.concatenate(codes)
        frequent = np.argsort(-np.bincount(pooled), kind="stable")[:_MAX_LABELS]
        features = (pooled[:, None] == frequent).astype(np.float64)
    else:
        pooled = np.concatenate([baseline.values, current.values])
        # Ranks would not do: the same shift is another number of ranks for rows of another level.
        features = np.clip(pooled, *np.quantile(pooled, [0.005, 0.995]))[:, None]
    return features[:n], features[n:]


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
