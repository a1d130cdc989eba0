"""Whether a signal changed in one part of the rows more than in the rest: a difference of differences."""

from typing import NamedTuple

import numpy as np

from quadriga.monitor.drift.samples import EMBEDDING, Column, merge_names
from quadriga.tasks.arrays import BoolArray, Float64Array

_MAX_LABELS = 32
"""Number of the most frequent labels whose shares are compared."""
_MIN_INDEPENDENT = 3.0
"""Number of independent rows of a part below which nothing can be said about it."""


class Part(NamedTuple):
    """The rows of one part, in the baseline or in the current window."""

    rows: BoolArray
    """(P,) whether a value of the column belongs to the part."""
    n_eff: float
    """Number of independent rows of the part."""


def p_value_against_rest(
    columns: tuple[Column, Column],
    inside: tuple[Part, Part],
    outside: tuple[Part, Part],
) -> float:
    """Return the p-value of the hypothesis that a signal changed inside as it did outside.

    Compared are the mean and the spread of numbers, the shares of labels, and embeddings along the direction in which
    all of them moved, by Welch's t over the four parts; several of them by Bonferroni. It is 1 if a part has too few
    independent rows.

    Args:
        columns: The signal in the baseline and in the current window.
        inside: A part of the baseline, and the same of the current window.
        outside: All other rows of both.
    """
    parts = (*inside, *outside)
    if min(part.n_eff for part in parts) < _MIN_INDEPENDENT or not all(
        part.rows.any() for part in parts
    ):
        return 1.0
    from scipy.special import stdtr  # noqa: PLC0415 - slow to load

    scores = _scores(*columns)
    by_part = [side[part.rows] for part, side in zip(parts, (*scores, *scores), strict=True)]
    if columns[0].kind in ("numeric", "count"):
        by_part = [np.hstack([rows, np.abs(rows - np.median(rows))]) for rows in by_part]
    means = [rows.mean(axis=0) for rows in by_part]
    errors = np.array(
        [rows.var(axis=0) / part.n_eff for rows, part in zip(by_part, parts, strict=True)]
    )
    difference = (means[1] - means[0]) - (means[3] - means[2])
    error = errors.sum(axis=0)
    varies = error > 0
    if not varies.any():
        return 1.0
    freedoms = np.array([[part.n_eff - 1] for part in parts])
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
