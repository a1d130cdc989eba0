"""How many answers of a classifier are right, guessed from its scores where no truth is known.

Thresholds and calibration come from a baseline with truth. No estimate raises an alarm.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.monitor.evaluation.stored_images import read
from quadriga.monitor.report.schema import Metric
from quadriga.store.database import run_in
from quadriga.store.inferences import Inferences
from quadriga.store.records import StoredInference

TASK = "IMAGE_CLASSIFICATION"
TYPE = "EstimatedAccuracy"
LEAST = 100
"""Answers of a baseline whose truth is known, below which nothing is estimated."""
MOST_READ = 5_000
"""Inferences of a side whose scores are read; of more, as many are drawn."""
VALID = (
    "valid under covariate shift without new noise: where images are another mix of what the baseline has, and "
    "scores mean what they meant there; not where images got worse, or classes are new or more frequent. It can "
    "be far off then, mostly too high. The interval is of the sample alone, for independent answers. Never part "
    "of an alarm."
)
_KNOWN = "SELECT seq FROM ground_truth WHERE seq IN ({})"

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Estimate = Callable[[Floats, Floats, Floats, Ids, Ids], float]
"""Of the baseline's confidence, ascending, whether each was right, the current confidence, ascending, and how
often each answer of both counts."""


class _Said(msgspec.Struct):
    label: str = ""
    score: float = 0.0


class _Answer(NamedTuple):
    scores: list[float]
    """Largest first."""
    label: str
    """Of the largest."""
    truth: str | None
    """None where it is not known, or there are several."""


_decoder = msgspec.json.Decoder(list[_Said])


def estimated(inferences: Inferences, task: str, baseline: Ids, current: Ids) -> list[Metric]:
    """Estimate how many stored answers of a classifier, by their ids, are right.

    There is nothing of other tasks, and where the baseline has too little truth.

    Raises:
        StoreError: The database does not answer.
    """
    if task != TASK:
        return []
    with inferences.snapshot() as connection:
        rows: Iterable[Any] = run_in(connection, _KNOWN, baseline.tolist())
        known = sorted(int(seq) for (seq,) in rows)
    if len(known) < LEAST:
        return []
    before = [one for one in _answers(inferences, known) if one.truth is not None]
    now = _answers(inferences, current.tolist())
    correct = [one.label == one.truth for one in before]
    lengths = {len(one.scores) for one in (*before, *now)}
    sums = np.array([sum(one.scores) for one in (*before, *now)])
    if len(lengths) == 1 and (np.abs(sums - 1) < 0.02).all():  # all labels, as probabilities
        sides = [
            np.array([one.scores for one in side]).reshape(-1, *lengths) for side in (before, now)
        ]
        return estimates(sides[0], correct, sides[1])
    return estimates([one.scores[0] for one in before], correct, [one.scores[0] for one in now])


def _answers(inferences: Inferences, ids: Sequence[int]) -> list[_Answer]:
    """Read answers; those without a label are passed over."""
    chosen = np.linspace(0, len(ids) - 1, min(len(ids), MOST_READ)).astype(np.int64)
    found = (_answer(one) for one in read(inferences, [ids[at] for at in chosen.tolist()]))
    return [one for one in found if one is not None]


def _answer(record: StoredInference) -> _Answer | None:
    try:
        said = sorted(_decoder.decode(record.predictions), key=lambda one: -one.score)
        truth = [] if record.ground_truth is None else _decoder.decode(record.ground_truth)
    except msgspec.MsgspecError:  # a failure, or imported in another form
        return None
    if not said:
        return None
    single = truth[0].label if len(truth) == 1 else None
    return _Answer([one.score for one in said], said[0].label, single)


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
        resamples: Of the bootstrap over both sides; without any there is no interval.
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
    fits = before.shape[1:] == now.shape[1:] and truth.shape == before.shape[:1]
    if not fits or before.ndim not in (1, 2):
        raise ValueError(
            "expected scores of (N, K) and (M, K), or (N,) and (M,), and correct of (N,), "
            f"got {before.shape}, {now.shape} and {truth.shape}"
        )
    kept = _finite(before)
    before, truth, now = before[kept], truth[kept], now[_finite(now)]
    if len(before) < LEAST or not len(now):
        return []
    tops = [each if each.ndim == 1 else each.max(axis=1) for each in (before, now)]
    methods: list[tuple[str, list[Floats], Estimate]] = [("atc_max_confidence", tops, _above)]
    if before.ndim == 2:
        entropies = [_negative_entropy(before), _negative_entropy(now)]
        methods.append(("atc_negative_entropy", entropies, _above))
    methods.append(("cbpe", tops, _calibrated))
    rng = np.random.default_rng(seed)
    return [
        _metric(name, estimate, (sides[0], truth, sides[1]), resamples, rng)
        for name, sides, estimate in methods
    ]


def _finite(scores: Floats) -> Ids:
    """Return the rows that are finite."""
    return np.flatnonzero(np.isfinite(scores).all(axis=tuple(range(1, scores.ndim))))


def _negative_entropy(scores: Floats) -> Floats:
    found: Floats = (scores * np.log(np.where(scores > 0, scores, 1.0))).sum(axis=1)
    return found


def _metric(
    name: str,
    estimate: Estimate,
    sides: tuple[Floats, Floats, Floats],
    resamples: int,
    rng: np.random.Generator,
) -> Metric:
    """Estimate by one method, from the baseline's confidence, its truth, and the current confidence."""
    order = np.argsort(sides[0], kind="stable")
    before, truth, now = sides[0][order], sides[1][order], np.sort(sides[2])
    ones = np.ones(len(before), np.int64), np.ones(len(now), np.int64)
    found = [
        estimate(before, truth, now, _resampled(len(before), rng), _resampled(len(now), rng))
        for _ in range(resamples)
    ]
    low, high = np.quantile(found, [0.025, 0.975]).tolist() if found else (None, None)
    about = {"method": name, "valid": VALID, "n_baseline": len(before)}
    value = estimate(before, truth, now, *ones)
    return Metric(TYPE, value, about, (low, high) if found else None, len(now))


def _resampled(n: int, rng: np.random.Generator) -> Ids:
    return np.bincount(rng.integers(n, size=n), minlength=n)


def _above(before: Floats, truth: Floats, now: Floats, weights: Ids, current: Ids) -> float:
    """Return the share of current answers above the confidence that the right share of baseline's is."""
    right = (truth * weights).sum() / weights.sum()
    below = np.cumsum(weights) - weights
    at = int(np.searchsorted(below, (1 - right) * weights.sum() - 0.5))
    if at == len(before):
        return 0.0
    first = np.searchsorted(now, before[at])
    return float(current[first:].sum() / current.sum())


def _calibrated(before: Floats, truth: Floats, now: Floats, weights: Ids, current: Ids) -> float:
    """Return the mean chance to be right, as a rising function of the score."""
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 - slow to load

    some = weights > 0
    values, groups = np.unique(before[some], return_inverse=True)
    sizes = np.bincount(groups, weights[some])
    right = np.bincount(groups, truth[some] * weights[some]) / sizes
    chances = isotonic_regression(right, weights=sizes).x
    return float((np.interp(now, values, chances) * current).sum() / current.sum())
