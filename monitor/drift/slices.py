"""Slices of a window that moved more than the rest of it."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.comparison import Moment, compare, effect_of_part
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
_MIN_CHANGED = 5
"""Number of rows from which on a change within the window is looked for."""
_MAX_PERMUTED, _MAX_FIRST_ROWS = 200, 20
"""Rows of either side of a slice that are permuted at most, spread over time, and first rows of a change that are tried."""


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


def find_changed_slices(
    baseline: Summary,
    current: Summary,
    signals: Sequence[Signal],
    by: Sequence[str],
    settings: ComparisonSettings | None = None,
    *,
    moment: Moment = lambda _: None,
) -> list[Slice]:
    """Return the slices in which a signal changed from some row of the window on, largest effect first.

    This is no test: the values of a slice are permuted as if they were independent, however few there are; where they are
    like those before them, a difference counts for less. A slice counts if chance alone hardly makes such a difference
    between the rows from that one on and all before, whatever the signal and the row, and if the signal moved there by more
    than in all other rows, as of `find_drift_slices`. The parameters of a metric have the time of that row (`at`), and the
    mean or the share of a `label` `before` and `after`.

    Args:
        baseline: Baseline of the comparison.
        current: Current window of the comparison.
        signals: Signals to examine; embeddings are passed over.
        by: Names of the categorical columns to slice by.
        settings: Its alpha is the probability that chance alone names a slice, if all values are independent.
        moment: Time of a row, from its sort key.
    """
    settings = settings or ComparisonSettings()
    sides, start = (baseline, current), len(baseline.sample.order)
    columns = [
        (signal, column)
        for signal in signals
        if signal.kind != EMBEDDING and (column := _pooled(sides, signal.name)) is not None
    ]
    places = {
        (name, value): rows
        for name in by
        for value, rows in _rows_by_value(sides, name).items()
        if min(map(len, rows)) >= _MIN_CHANGED
    }
    changed = []
    for place, rows in places.items():
        others = [column for _, column in columns if column.name != place[0]]
        limit = settings.alpha / len(places)
        firsts = _first_changed_rows(others, rows, start, settings, limit=limit)
        changed += [(place, *pair, firsts[pair[1].name]) for pair in columns if pair[1].name in firsts]  # fmt: skip
    moves: dict[tuple[str, str], list[tuple[float, Metric]]] = {}
    for place, signal, column, first in changed:
        in_slice = np.isin(
            column.rows, np.concatenate([places[place][0], places[place][1] + start])
        )
        is_after = column.rows >= first
        before, after = _part(column, ~is_after), _part(column, is_after)
        inside = in_slice[~is_after], in_slice[is_after]
        # Where all moved, each row that was tried may tell a slice apart by chance.
        tests = len(changed) * (_MAX_FIRST_ROWS if signal.alarm or signal.moved else 1)
        move = _move((before, after), inside, signal, settings, tests=tests)
        if move is not None:
            began = _levels(_part(before, inside[0]), _part(after, inside[1]))
            at = moment(int(current.sample.order[first - start]))
            untested = {"p_adjusted": None, "p_rest": None, "at": at}
            metric = replace(move[1], parameters=move[1].parameters | untested | began)
            moves.setdefault(place, []).append((move[0], metric))
    return _by_size(
        [_as_slice(place, places[place], of_place) for place, of_place in moves.items()]
    )


def _pooled(sides: tuple[Summary, Summary], name: str) -> Column | None:
    """Return a column of both sides as one, the rows of the second side after those of the first."""
    first, second = (side.sample.column(name) for side in sides)
    if first is None or second is None:
        return None
    labels: tuple[str, ...] = ()
    values = [first.values, second.values]
    if first.kind == "categorical":
        labels, values = merge_names([(side.labels, side.values) for side in (first, second)])
    rows = [first.rows, second.rows + len(sides[0].sample.order)]
    return Column(name, first.kind, np.concatenate(rows), np.concatenate(values), labels)


def _part(column: Column, is_in: BoolArray) -> Column:
    return replace(column, rows=column.rows[is_in], values=column.values[is_in])


def _levels(before: Column, after: Column) -> dict[str, Any]:
    """Return the means of numbers, or the shares of the label whose share changed most."""
    if before.kind != "categorical":
        return {"before": float(before.values.mean()), "after": float(after.values.mean())}
    shares = [
        np.bincount(side.values, minlength=len(side.labels)) / len(side.values)
        for side in (before, after)
    ]
    label = int(np.abs(shares[1] - shares[0]).argmax())
    return {
        "label": before.labels[label],
        "before": float(shares[0][label]),
        "after": float(shares[1][label]),
    }


def _first_changed_rows(
    columns: Sequence[Column],
    rows: Sequence[Int64Array],
    start: int,
    settings: ComparisonSettings,
    *,
    limit: float,
) -> dict[str, int]:
    """Return the row from which on each column changed, of those that did; `limit` is the probability of any by chance.

    Source: Westfall and Young, Resampling-Based Multiple Testing (1993): the largest difference of all columns.

    Args:
        columns: Columns of both sides, from `_pooled`.
        rows: Rows of both sides that are examined.
        start: Number of rows of the baseline.
        settings: Settings of the comparison.
        limit: Share of permutations.
    """
    if not columns:
        return {}
    few = [side[np.linspace(0, len(side) - 1, min(len(side), _MAX_PERMUTED)).astype(int)] for side in rows]  # fmt: skip
    permuted_rows = np.concatenate([few[0], few[1] + start])
    scores = {column.name: _normal_scores(column, permuted_rows) for column in columns}
    sizes = np.unique(np.geomspace(_MIN_CHANGED, len(few[1]), _MAX_FIRST_ROWS).astype(int))[::-1]
    scale = np.sqrt(sizes * (1 - sizes / len(permuted_rows)))[:, None]

    def differences(values: Float64Array) -> Float64Array:
        """Return by how many standard errors the last rows of each size differ, (K, D)."""
        sums = np.add.reduceat(values, len(permuted_rows) - sizes)[::-1].cumsum(axis=0)[::-1]
        return np.asarray(np.abs(sums) / scale)

    together, draw = np.hstack([*scores.values()]), np.random.default_rng(settings.seed)
    permuted = (differences(draw.permutation(together)) for _ in range(settings.permutations))
    largest = np.array([errors.max(initial=0.0) for errors in permuted])
    changed = {}
    for name, values in scores.items():
        errors = differences(values).max(axis=1, initial=0.0)
        size = sizes[errors.argmax()]
        error = errors.max() / _inflation(values, size)
        if 1 + (largest >= error).sum() <= limit * (1 + len(largest)):
            changed[name] = int(permuted_rows[-size])
    return changed


def _inflation(values: Float64Array, size: int) -> float:
    """Return how much more a difference of means varies than of independent values, as each is like the one before.

    Args:
        values: (N, D) values, in order.
        size: Number of the last of them, whose mean is another.
    """
    rest = np.concatenate([part - part.mean(axis=0) for part in (values[:-size], values[-size:])])
    memory = (rest[1:] * rest[:-1]).sum() / max((rest**2).sum(), 1e-9) + 1 / np.sqrt(len(rest))
    memory = np.clip(memory, 0, 0.9)
    return float(np.sqrt((1 + memory) / (1 - memory)))


def _normal_scores(column: Column, rows: Int64Array) -> Float64Array:
    """Return the normal scores of numbers (N, 1), or which rows have a label (N, D), standardised; 0 where there is no value."""
    from scipy.special import ndtri  # noqa: PLC0415 - slow to load

    values = column.values[np.isin(column.rows, rows)]
    if column.kind == "categorical":
        frequent = np.flatnonzero(np.bincount(values, minlength=1) >= _MIN_CHANGED)
        scores = (values[:, None] == frequent).astype(np.float64)
    else:
        ordered = np.sort(values)
        ranks = ordered.searchsorted(values) + ordered.searchsorted(values, "right") + 1
        scores = ndtri(ranks / 2 / (len(values) + 1))[:, None]
    scores = scores[:, np.ptp(scores, axis=0) > 0] if len(values) else scores
    standardised = np.zeros((len(rows), scores.shape[1]))
    if scores.size:
        is_present = np.isin(rows, column.rows)
        standardised[is_present] = (scores - scores.mean(axis=0)) / scores.std(axis=0)
    return standardised


def _by_size(ranked: list[tuple[float, Slice]]) -> list[Slice]:
    return [slice_ for _, slice_ in sorted(ranked, key=lambda entry: -entry[0])]


def _as_slice(
    place: tuple[str, str], rows: Sequence[Int64Array], moves: list[tuple[float, Metric]]
) -> tuple[float, Slice]:
    """Return a slice with its metrics, and the largest of their effects over the minimum."""
    moves = sorted(moves, key=lambda move: -move[0])
    return moves[0][0], Slice(*place, len(rows[1]), [metric for _, metric in moves])


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

    Args:
        sides: Baseline and current window.
        place: Name and value of the column of the slice.
        rows: Rows of both sides in the slice.
        signals: The signals with an alarm there.
        settings: Settings of the comparison.
        tests: Number of slices and signals that share alpha.
    """
    moves = []
    for signal in signals:
        before, after = (side.sample.column(signal.name) for side in sides)
        if before is None or after is None:
            continue
        inside = np.isin(before.rows, rows[0]), np.isin(after.rows, rows[1])
        n = [int(part.sum()) for part in (*inside, ~inside[0], ~inside[1])]
        independent = np.array(n) * np.tile(signal.n_eff, 2) / np.tile(signal.n, 2)
        if min(n) < _MIN_VALUES or min(independent) < _MIN_INDEPENDENT:
            continue
        move = _move((before, after), inside, signal, settings, tests=tests, n_eff=independent)
        moves += [] if move is None else [move]
    return [_as_slice(place, rows, moves)] if moves else []


def _move(
    columns: tuple[Column, Column],
    inside: tuple[BoolArray, BoolArray],
    signal: Signal,
    settings: ComparisonSettings,
    *,
    tests: int,
    n_eff: Float64Array | None = None,
) -> tuple[float, Metric] | None:
    """Return the effect of a signal over its minimum, if it moved more in a slice than in all other rows.

    Args:
        columns: The signal before and after.
        inside: (P,) which of their values are in the slice.
        signal: The signal.
        settings: Settings of the comparison.
        tests: Number of slices and signals that share alpha.
        n_eff: Number of independent values in the slice, then outside; None: all are.
    """
    parts = (*inside, ~inside[0], ~inside[1])
    quarters = [_part(column, part) for column, part in zip(columns * 2, parts, strict=True)]
    n = [len(quarter.rows) for quarter in quarters]
    if min(n) < _MIN_CHANGED:
        return None
    # Numbers are compared in their own unit: effects of slices have a scale each.
    minimum = signal.min_shift or signal.effect.minimum
    here = effect_of_part(quarters[0], quarters[1], settings.kernel)
    other = effect_of_part(quarters[2], quarters[3], settings.kernel)
    if here - other < minimum or here < _MIN_RATIO * other:
        return None
    p = min(tests * _p_value_against_rest(columns, parts, n if n_eff is None else n_eff), 1.0)
    if p >= settings.alpha:
        return None
    unit = signal.effect.minimum / minimum
    parameters = {
        "signal": signal.name,
        "p_adjusted": signal.p_adjusted,
        "other": other * unit,
        "p_rest": p,
    }
    return here / minimum, Metric(signal.effect.name, here * unit, parameters, n=n[1])


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
    # A label that all rows of a part have, or none, would be certain.
    floor = 1.0 if columns[0].kind == "categorical" else 0.0
    errors = np.array(
        [
            np.maximum(rows.var(axis=0), floor / size) / size
            for rows, size in zip(by_part, n_eff, strict=True)
        ]
    )
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
