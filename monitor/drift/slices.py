"""Slices of a window that moved more than the rest of it."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.comparison import compare, effect_of_part
from quadriga.monitor.drift.samples import EMBEDDING, Column, Sample, merge_names, take_rows
from quadriga.monitor.drift.significance.decision import ComparisonSettings, decide
from quadriga.monitor.drift.summary import Summary, as_summary
from quadriga.monitor.report.schema import Metric, Signal, Slice
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
"""Values that a slice and the rest need on each side."""


def find_drift_slices(
    baseline: Summary | Sample,
    current: Summary | Sample,
    moved: Sequence[str],
    by: Sequence[str],
    settings: ComparisonSettings | None = None,
) -> list[Slice]:
    """Return the slices of the current window in which a signal moved more than in the rest, largest effect first.

    A slice holds the rows that share one value of a column. A signal counts if the slice and all other rows have 30 of
    its values on each side, and it has an alarm of its own there, moved differently than in all other rows (`p_rest`
    below alpha, adjusted for all slices of the column), and moved more by at least its minimum effect. So a change that is everywhere has no slices. The metrics of a slice are the effects
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
    ranked = []
    for name in by:
        rows_by_value = _rows_by_value(sides, name)
        names = [signal for signal in moved if signal != name]
        # A smaller share of alpha asks for more permutations, so that slices can reach smaller p-values.
        slice_settings = replace(settings, windows=max(len(rows_by_value), 1))
        compared = {
            value: compare(
                _slice_summary(sides[0], rows[0], names),
                _slice_summary(sides[1], rows[1], names),
                slice_settings,
            ).signals
            for value, rows in rows_by_value.items()
        }
        decided = decide([signal for signals in compared.values() for signal in signals], settings)
        remaining, tests = iter(decided), len(decided)
        for value, rows in rows_by_value.items():
            signals = [signal for signal in islice(remaining, len(compared[value])) if signal.alarm]
            ranked += _moved_slice(sides, (name, value), rows, signals, settings, tests=tests)
    return _by_size(ranked)


def find_undecided_slices(
    baseline: Summary,
    current: Summary,
    signals: Sequence[Signal],
    by: Sequence[str],
    settings: ComparisonSettings | None = None,
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
        settings: Its alpha is the probability that chance alone names a slice of a column, if all values are independent.
    """
    settings = settings or ComparisonSettings()
    sides = baseline, current
    ranked = []
    for name in by:
        rows_by_value = _rows_by_value(sides, name)
        others = [signal for signal in signals if signal.kind != EMBEDDING and signal.name != name]
        tests = len(rows_by_value) * len(signals)
        for value, rows in rows_by_value.items():
            ranked += _moved_slice(sides, (name, value), rows, others, settings, tests=tests)
    return _by_size(ranked)


def _by_size(ranked: list[tuple[float, Slice]]) -> list[Slice]:
    return [slice_ for _, slice_ in sorted(ranked, key=lambda entry: -entry[0])]


def _moved_slice(
    sides: tuple[Summary, Summary],
    place: tuple[str, str],
    rows: list[Int64Array],
    signals: Sequence[Signal],
    settings: ComparisonSettings,
    *,
    tests: int,
) -> list[tuple[float, Slice]]:
    """Return a slice, and its largest effect over the minimum, if a signal moved more there than in all other rows.

    A signal without an alarm is examined as if its values were independent.

    Args:
        sides: Baseline and current window.
        place: Name and value of the column of the slice.
        rows: Rows of both sides in the slice.
        signals: The signals there.
        settings: Settings of the comparison.
        tests: Number of slices and signals that share alpha.
    """
    moves = []
    for signal in signals:
        before, after = (side.sample.column(signal.name) for side in sides)
        if before is None or after is None:
            continue
        inside = np.isin(before.rows, rows[0]), np.isin(after.rows, rows[1])
        parts = (*inside, *(~part for part in inside))
        quarters = [
            replace(column, rows=column.rows[part], values=column.values[part])
            for column, part in zip((before, after) * 2, parts, strict=True)
        ]
        n = [len(column.rows) for column in quarters]
        n_eff = np.array(n) * np.tile(signal.n_eff, 2) / np.tile(signal.n, 2) if signal.alarm else n
        if min(n) < _MIN_VALUES or min(n_eff) < _MIN_INDEPENDENT:
            continue
        # Numbers are compared in their own unit: effects of slices have a scale each.
        minimum = signal.min_shift or signal.effect.minimum
        here = effect_of_part(quarters[0], quarters[1], settings.kernel)
        other = effect_of_part(quarters[2], quarters[3], settings.kernel)
        if here - other < minimum or here < _MIN_RATIO * other:
            continue
        p = min(tests * _p_value_against_rest((before, after), parts, n_eff), 1.0)
        if p < settings.alpha:
            unit = signal.effect.minimum / minimum
            parameters = {
                "signal": signal.name,
                "p_adjusted": signal.p_adjusted,
                "other": other * unit,
                "p_rest": p if signal.alarm else None,
            }
            metric = Metric(signal.effect.name, here * unit, parameters, n=n[1])
            moves.append((here / minimum, metric))
    moves.sort(key=lambda move: -move[0])
    metrics = [metric for _, metric in moves]
    return [(moves[0][0], Slice(*place, len(rows[1]), metrics))] if moves else []


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


def _p_value_against_rest(
    columns: tuple[Column, Column],
    parts: Sequence[BoolArray],
    n_eff: Sequence[float] | Float64Array,
) -> float:
    """Return the p-value of the hypothesis that a signal changed in a slice as it did in all other rows.

    Compared are the mean and the spread of numbers, the shares of labels, and embeddings along the direction in which
    all of them moved, by Welch's t over the four parts; several of them by Bonferroni.

    Args:
        columns: The signal in the baseline and in the current window.
        parts: (P,) which of their values are in the slice, then outside.
        n_eff: Number of independent values of these parts.
    """
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
        pooled = np.concatenate([baseline.values, current.values]).astype(np.float64)
        features = pooled @ direction[:, None]
    elif baseline.kind == "categorical":
        _, codes = merge_names([(side.labels, side.values) for side in (baseline, current)])
        labels = np.concatenate(codes)
        frequent = np.argsort(-np.bincount(labels), kind="stable")[:_MAX_LABELS]
        features = (labels[:, None] == frequent).astype(np.float64)
    else:
        pooled = np.concatenate([baseline.values, current.values])
        # Ranks would not do: the same shift is another number of ranks for rows of another level.
        features = np.clip(pooled, *np.quantile(pooled, [0.005, 0.995]))[:, None]
    return features[:n], features[n:]


def _slice_summary(side: Summary, rows: Int64Array, moved: Sequence[str]) -> Summary:
    """Return the signals that moved, restricted to these rows."""
    columns = [column for column in side.sample.columns if column.name in moved]
    return replace(side, sample=take_rows(side.sample.with_columns(columns), rows), n=len(rows))
