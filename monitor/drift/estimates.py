"""How many answers of a classifier are right, guessed from its scores where no truth is known.

Thresholds and calibration come from a baseline with truth. No estimate raises an alarm.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from monitor.report import Metric

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

TYPE = "EstimatedAccuracy"
LEAST = 100
"""Answers of a baseline whose truth is known, below which nothing is estimated."""
MOST = 20_000
"""Answers of a side that are looked at; of more, as many are drawn."""
VALID = (
    "valid under covariate shift without new noise: where images are another mix of what the baseline has, and "
    "scores mean what they meant there; not where images got worse, or classes are new or more frequent. It can "
    "be far off then, mostly too high. The interval is of the sample alone, for independent answers. Never part "
    "of an alarm."
)


class _Method(NamedTuple):
    """Confidence of the answers of both sides, by value, and how an estimate comes from them."""

    name: str
    baseline: Floats
    current: Floats
    is_calibrated: bool


def estimates(
    baseline_scores: npt.ArrayLike,
    correct: npt.ArrayLike,
    current_scores: npt.ArrayLike,
    *,
    resamples: int = 200,
    seed: int = 0,
) -> list[Metric]:
    """Estimate the share of current answers that are right.

    ATC takes the share of answers above the confidence that as many baseline answers exceed as are right; CBPE
    the mean of the chance to be right, which isotonic regression reads from the baseline for each top score.

    Args:
        baseline_scores: float (N, K), a score for each label, summing to 1; or (N,), the top score alone.
        correct: bool (N,), whether the label of the top score is the true one.
        current_scores: As `baseline_scores`, (M, K) or (M,).
        resamples: Of the bootstrap, over baseline and current answers.
        seed: Of the bootstrap.

    Returns:
        One for each method, with its 95 % interval; ATC by entropy only where all scores are there. None where
        fewer than 100 baseline answers are known to be right or wrong, or none are current.

    Raises:
        ValueError: The shapes do not fit.

    Source: Garg et al., Leveraging Unlabeled Data to Predict Out-of-Distribution Performance (2022); NannyML,
        confidence-based performance estimation.
    """
    before, now = (np.asarray(each, np.float64) for each in (baseline_scores, current_scores))
    truth = np.asarray(correct, np.float64)
    if (
        before.shape[1:] != now.shape[1:]
        or before.ndim not in (1, 2)
        or truth.shape != before.shape[:1]
    ):
        raise ValueError(
            "expected scores of (N, K) and (M, K), or (N,) and (M,), and correct of (N,), "
            f"got {before.shape}, {now.shape} and {truth.shape}"
        )
    rng = np.random.default_rng(seed)
    kept = _drawn(_finite(before), rng)
    before, truth = before[kept], truth[kept]
    now = now[_drawn(_finite(now), rng)]
    if len(before) < LEAST or not len(now):
        return []
    return [_metric(each, truth, resamples, rng) for each in _methods(before, now)]


def _finite(scores: Floats) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.isfinite(scores).all(axis=tuple(range(1, scores.ndim))))


def _drawn(rows: npt.NDArray[np.intp], rng: np.random.Generator) -> npt.NDArray[np.intp]:
    return rows if len(rows) <= MOST else np.sort(rng.choice(rows, MOST, replace=False))


def _methods(before: Floats, now: Floats) -> list[_Method]:
    if before.ndim == 1:
        tops = (before, now)
        return [_Method("atc_max_confidence", *tops, False), _Method("cbpe", *tops, True)]
    tops = (before.max(axis=1), now.max(axis=1))
    entropies = (_negative_entropy(before), _negative_entropy(now))
    return [
        _Method("atc_max_confidence", *tops, False),
        _Method("atc_negative_entropy", *entropies, False),
        _Method("cbpe", *tops, True),
    ]


def _negative_entropy(scores: Floats) -> Floats:
    logs = np.log(np.where(scores > 0, scores, 1.0))
    found: Floats = (scores * logs).sum(axis=1)
    return found


def _metric(method: _Method, truth: Floats, resamples: int, rng: np.random.Generator) -> Metric:
    order = np.argsort(method.baseline, kind="stable")
    before, truth, now = method.baseline[order], truth[order], np.sort(method.current)
    estimate = _calibrated if method.is_calibrated else _above

    def once(*weights: Counts) -> float:
        return estimate(before, truth, now, *weights)

    value = once(np.ones(len(before), np.int64), np.ones(len(now), np.int64))
    about: dict[str, Any] = {"method": method.name, "valid": VALID, "n_baseline": len(before)}
    band = None
    if resamples:
        found = [
            once(_resampled(len(before), rng), _resampled(len(now), rng)) for _ in range(resamples)
        ]
        low, high = np.quantile(found, [0.025, 0.975])
        band = (float(low), float(high))
    return Metric(TYPE, value, about, band, len(now))


def _resampled(n: int, rng: np.random.Generator) -> Counts:
    return np.bincount(rng.integers(n, size=n), minlength=n)


def _above(before: Floats, truth: Floats, now: Floats, weights: Counts, current: Counts) -> float:
    """Return the share of current answers above the confidence that the right share of baseline's is."""
    right = (truth * weights).sum() / weights.sum()
    below = np.cumsum(weights) - weights
    at = int(np.searchsorted(below, (1 - right) * weights.sum() - 0.5))
    if at == len(before):
        return 0.0
    first = np.searchsorted(now, before[at])
    return float(current[first:].sum() / current.sum())


def _calibrated(
    before: Floats, truth: Floats, now: Floats, weights: Counts, current: Counts
) -> float:
    """Return the mean chance to be right, as a rising function of the score."""
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 - slow to load

    some = weights > 0
    values, groups = np.unique(before[some], return_inverse=True)
    sizes = np.bincount(groups, weights[some])
    right = np.bincount(groups, truth[some] * weights[some]) / sizes
    chances = isotonic_regression(right, weights=sizes).x
    return float((np.interp(now, values, chances) * current).sum() / current.sum())
