"""How unsure a model was of an image, from what it predicted."""

import math
from typing import Any, Literal, NamedTuple

from quadriga.store.browsing.label_queue import best_scores
from quadriga.store.database.rows import decode_label_scores, is_number

NOTHING = 0.5
"""Uncertainty of an image in which a detector or segmenter found nothing: that of one object with a score of 0.5.

An empty scene and a missed object look alike, so such images come neither first nor last.
"""

Basis = Literal["margin", "best score", "lowest score", "nothing predicted"]


class Uncertainty(NamedTuple):
    """How unsure a model was of an image."""

    value: float
    """Degree of uncertainty, from 0, sure, to 1."""
    basis: Basis
    """What the value was taken from."""


def uncertainty_of(task: str, predictions: Any) -> Uncertainty | None:
    """Return how unsure a model was of an image; None if its predictions have no score.

    - Classification: 1 minus the margin between the two best labels, as the label queue orders by; of a single label 1
      minus its score; 1 if no label reached the threshold.
    - Objects, and answers that have scores: 1 minus the lowest score, which is nearest to the threshold.

    Args:
        task: Task of the model, such as `OBJECT_DETECTION`.
        predictions: The predictions as JSON.

    Source: Settles, "Active Learning Literature Survey" (2009), section 3.1.
    """
    scored = decode_label_scores(predictions)
    if scored is None or task == "TENSOR":
        return None
    if task == "IMAGE_CLASSIFICATION":
        best = [score for _, score in best_scores(predictions) if math.isfinite(score)]
        return _of_labels(best[:2], has_labels=bool(scored))
    if not scored and task != "IMAGE_TEXT_TO_TEXT":
        return Uncertainty(NOTHING, "nothing predicted")
    numbers = [float(item.score) for item in scored if is_number(item.score)]
    scores = [*filter(math.isfinite, numbers)]
    return Uncertainty(_unit(1 - min(scores)), "lowest score") if scores else None


def _of_labels(best: list[float], *, has_labels: bool) -> Uncertainty | None:
    """Return the uncertainty of the one or two best scores of labels, the best first."""
    if len(best) == 2:
        return Uncertainty(_unit(1 - (best[0] - best[1])), "margin")
    if best:
        return Uncertainty(_unit(1 - best[0]), "best score")
    return None if has_labels else Uncertainty(1.0, "nothing predicted")


def _unit(value: float) -> float:
    return min(max(value, 0.0), 1.0)
