"""Estimated accuracy of a classifier, from its scores, where no ground truth is known.

Thresholds and calibration come from a baseline with ground truth. No estimate raises an alarm.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.monitor.report.schema import Metric
from quadriga.store.query.columns import read_inferences, with_ground_truth
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.records import StoredInference
from quadriga.tasks.arrays import Float64Array, Int64Array

TASK = "IMAGE_CLASSIFICATION"
METRIC_TYPE = "EstimatedAccuracy"
MIN_LABELLED = 100
"""Minimum number of predictions of the baseline with ground truth for an estimate."""
MAX_READ = 5_000
"""Maximum number of inferences of a side whose scores are read; of more, as many are drawn."""
VALID = (
    "valid under covariate shift without new noise: where images are another mix of what the baseline has, and "
    "scores mean what they meant there; not where images got worse, or classes are new or more frequent. It can "
    "be far off then, mostly too high. The interval is of the sample alone, for independent answers. Never part "
    "of an alarm."
)


class _Confidences(NamedTuple):
    """Confidence of the predictions of both sides, and how often each prediction counts."""

    baseline: Float64Array
    """(N,), ascending."""
    correct: Float64Array
    """1 for each prediction of the baseline that is right, else 0, (N,)."""
    current: Float64Array
    """(M,), ascending."""
    weights: Int64Array
    """How often each prediction of the baseline counts, (N,)."""
    current_weights: Int64Array


_Estimate = Callable[[_Confidences], float]
"""Estimates the accuracy of the current predictions."""


class _LabelScore(msgspec.Struct):
    label: str = ""
    score: float = 0.0


class _ClassifierOutput(NamedTuple):
    scores: list[float]
    """Scores, largest first."""
    label: str
    """Label with the largest score."""
    true_label: str | None
    """Label of the ground truth; None where it is not known, or there are several."""


_decoder = msgspec.json.Decoder(list[_LabelScore])


def estimate_stored_accuracy(
    reader: InferenceReader, task: str, baseline_ids: Int64Array, current_ids: Int64Array
) -> list[Metric]:
    """Estimate the accuracy of stored predictions of a classifier, by their ids.

    There is no estimate for other tasks, and where the baseline has too little ground truth.

    Raises:
        StoreError: The database does not answer.
    """
    if task != TASK:
        return []
    labelled = with_ground_truth(reader, baseline_ids.tolist())
    if len(labelled) < MIN_LABELLED:
        return []
    baseline = [row for row in _read_outputs(reader, labelled) if row.true_label is not None]
    current = _read_outputs(reader, current_ids.tolist())
    correct = [row.label == row.true_label for row in baseline]
    lengths = {len(row.scores) for row in (*baseline, *current)}
    sums = np.array([sum(row.scores) for row in (*baseline, *current)])
    if len(lengths) == 1 and (np.abs(sums - 1) < 0.02).all():  # all labels, as probabilities
        baseline_scores, current_scores = (
            np.array([row.scores for row in side]).reshape(-1, *lengths)
            for side in (baseline, current)
        )
        return estimate_accuracy(baseline_scores, correct, current_scores)
    return estimate_accuracy(
        [row.scores[0] for row in baseline], correct, [row.scores[0] for row in current]
    )


def _read_outputs(reader: InferenceReader, ids: Sequence[int]) -> list[_ClassifierOutput]:
    """Read predictions, at most `MAX_READ`, evenly spread; those without a label are passed over."""
    drawn = np.linspace(0, len(ids) - 1, min(len(ids), MAX_READ)).astype(np.int64)
    records = read_inferences(reader, [ids[position] for position in drawn.tolist()])
    return [output for record in records if (output := _decode_output(record)) is not None]


def _decode_output(record: StoredInference) -> _ClassifierOutput | None:
    try:
        labels = sorted(_decoder.decode(record.predictions), key=lambda label: -label.score)
        annotations = [] if record.ground_truth is None else _decoder.decode(record.ground_truth)
    except msgspec.MsgspecError:  # a failure, or imported in another form
        return None
    if not labels:
        return None
    true_label = annotations[0].label if len(annotations) == 1 else None
    return _ClassifierOutput([label.score for label in labels], labels[0].label, true_label)


def estimate_accuracy(
    baseline_scores: npt.ArrayLike,
    correct: npt.ArrayLike,
    current_scores: npt.ArrayLike,
    *,
    resamples: int = 200,
) -> list[Metric]:
    """Estimate the share of current predictions that are right.

    ATC takes the share of predictions above the confidence that as many baseline predictions exceed as are right;
    CBPE the mean probability to be right, which isotonic regression reads from the baseline for each top score.

    Args:
        baseline_scores: float (N, K), a score for each label, summing to 1; or (N,), the top score alone.
        correct: bool (N,), whether the label of the top score is the true one.
        current_scores: As `baseline_scores`, (M, K) or (M,).
        resamples: Number of bootstrap samples of both sides; with 0 there is no interval.

    Returns:
        One estimate for each method, with its 95 % interval; ATC by entropy only with scores for each label.
        There is none where fewer than 100 baseline predictions are known to be right or wrong, or none are current.

    Raises:
        ValueError: The shapes do not fit.

    Source: Garg et al., Leveraging Unlabeled Data to Predict Out-of-Distribution Performance (2022); NannyML,
        confidence-based performance estimation.
    """
    baseline = np.asarray(baseline_scores, np.float64)
    current = np.asarray(current_scores, np.float64)
    is_correct = np.asarray(correct, np.float64)
    _check_shapes(baseline, is_correct, current)
    finite = _finite(baseline)
    baseline, is_correct, current = baseline[finite], is_correct[finite], current[_finite(current)]
    if len(baseline) < MIN_LABELLED or not len(current):
        return []
    tops = [side if side.ndim == 1 else side.max(axis=1) for side in (baseline, current)]
    methods: list[tuple[str, list[Float64Array], _Estimate]] = [
        ("atc_max_confidence", tops, _share_above_threshold)
    ]
    if baseline.ndim == 2:
        entropies = [_negative_entropy(baseline), _negative_entropy(current)]
        methods.append(("atc_negative_entropy", entropies, _share_above_threshold))
    methods.append(("cbpe", tops, _mean_calibrated))
    rng = np.random.default_rng(0)
    return [
        _metric(name, estimate, (sides[0], is_correct, sides[1]), resamples=resamples, rng=rng)
        for name, sides, estimate in methods
    ]


def _check_shapes(baseline: Float64Array, is_correct: Float64Array, current: Float64Array) -> None:
    fits = baseline.shape[1:] == current.shape[1:] and is_correct.shape == baseline.shape[:1]
    if not fits or baseline.ndim not in (1, 2):
        raise ValueError(
            "expected scores of (N, K) and (M, K), or (N,) and (M,), and correct of (N,), "
            f"got {baseline.shape}, {current.shape} and {is_correct.shape}"
        )


def _finite(scores: Float64Array) -> Int64Array:
    """Return the positions of the rows that are finite."""
    return np.flatnonzero(np.isfinite(scores).all(axis=tuple(range(1, scores.ndim))))


def _negative_entropy(scores: Float64Array) -> Float64Array:
    entropy: Float64Array = (scores * np.log(np.where(scores > 0, scores, 1.0))).sum(axis=1)
    return entropy


def _metric(
    name: str,
    estimate: _Estimate,
    sides: tuple[Float64Array, Float64Array, Float64Array],
    resamples: int,
    rng: np.random.Generator,
) -> Metric:
    """Estimate by one method, from the baseline's confidence, its correctness, and the current confidence."""
    order = np.argsort(sides[0], kind="stable")
    baseline, correct, current = sides[0][order], sides[1][order], np.sort(sides[2])
    n_baseline, n = len(baseline), len(current)
    confidences = _Confidences(
        baseline,
        correct,
        current,
        weights=np.ones(n_baseline, np.int64),
        current_weights=np.ones(n, np.int64),
    )
    estimates = [
        estimate(
            confidences._replace(
                weights=_bootstrap_weights(n_baseline, rng),
                current_weights=_bootstrap_weights(n, rng),
            )
        )
        for _ in range(resamples)
    ]
    low, high = np.quantile(estimates, [0.025, 0.975]).tolist() if estimates else (None, None)
    return Metric(
        METRIC_TYPE,
        estimate(confidences),
        {"method": name, "valid": VALID, "n_baseline": n_baseline},
        ci95=(low, high) if estimates else None,
        n=n,
    )


def _bootstrap_weights(n: int, rng: np.random.Generator) -> Int64Array:
    return np.bincount(rng.integers(n, size=n), minlength=n)


def _share_above_threshold(confidences: _Confidences) -> float:
    """Return the share of current predictions above the confidence that the right share of the baseline exceeds."""
    baseline, correct, current, weights, current_weights = confidences
    accuracy = (correct * weights).sum() / weights.sum()
    below = np.cumsum(weights) - weights
    threshold = int(np.searchsorted(below, (1 - accuracy) * weights.sum() - 0.5))
    if threshold == len(baseline):
        return 0.0
    start = np.searchsorted(current, baseline[threshold])
    return float(current_weights[start:].sum() / current_weights.sum())


def _mean_calibrated(confidences: _Confidences) -> float:
    """Return the mean probability to be right, as a rising function of the score."""
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 - slow to load

    baseline, correct, current, weights, current_weights = confidences
    drawn = weights > 0
    scores, groups = np.unique(baseline[drawn], return_inverse=True)
    sizes = np.bincount(groups, weights[drawn])
    accuracy = np.bincount(groups, correct[drawn] * weights[drawn]) / sizes
    probabilities = isotonic_regression(accuracy, weights=sizes).x
    calibrated = np.interp(current, scores, probabilities)
    return float((calibrated * current_weights).sum() / current_weights.sum())
