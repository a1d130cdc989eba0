"""Classification of images and of rows of features: one score for each label."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks import parameters as read
from quadriga.tasks.image import Image
from quadriga.tasks.predictions import (
    Classification,
    OutputError,
    Outputs,
    Prediction,
    check_finite,
    check_probabilities,
)
from quadriga.tasks.resize import Affine, preprocess
from quadriga.tasks.specification import Activation, ModelSpec, RowSpec

ACTIONS = ("predict", "predict_proba")
"""Actions that a request to a classifier may name."""


_MAX_TOP_K = 100_000


class ClassificationOptions(msgspec.Struct, frozen=True):
    """Options of one image or row for a classifier."""

    action: str
    top_k: int
    """Maximum labels to return; a number above that of the labels means all."""


class ImageClassification:
    """Answers labels by descending score: the best with `predict`, all with `predict_proba`."""

    actions: tuple[str, ...] = ACTIONS

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    def options(self, parameters: Mapping[str, Any]) -> ClassificationOptions:
        """Read `action` and `top_k`."""
        return read_options(parameters, self._spec.defaults.top_k)

    def preprocess(self, image: Image) -> tuple[npt.NDArray[Any], Affine]:
        """Make the input tensor of one image, without the batch axis."""
        return preprocess(image, self._spec.input)

    def predict(
        self,
        outputs: Outputs,
        affine: Affine,  # noqa: ARG002 - labels have no place in the image
        options: ClassificationOptions,
    ) -> list[Prediction]:
        """Read the first output: one finite number for each label, whatever axes of length 1 it has.

        One number for two labels is the score of the second. Labels of equal score come in the order of their index.

        Raises:
            OutputError: It has another shape, or scores are no probabilities.
        """
        labels = self._spec.labels
        first = next(iter(outputs.values()))
        scores = first.astype(np.float64).squeeze()
        if scores.ndim > 1 or (scores.size, len(labels)) not in ((1, 2), (len(labels),) * 2):
            raise OutputError(
                f"expected output 0 to hold {len(labels)} scores, one for each label,"
                f" got the shape {first.shape}"
            )
        check_finite(scores, subject="output 0")
        activated = _activate(scores.reshape(-1), self._spec.output.activation)
        if activated.size < len(labels):
            activated = np.array([1 - activated[0], activated[0]])
        return _best_labels(labels, activated, options.top_k)


class RowClassification:
    """Answers labels of rows of features, as `ImageClassification` does those of images."""

    def __init__(self, spec: RowSpec) -> None:
        self.spec = spec

    def options(self, parameters: Mapping[str, Any]) -> ClassificationOptions:
        """Read `action` and `top_k`."""
        return read_options(parameters, self.spec.top_k)

    def predict(
        self, output: npt.NDArray[Any], options: ClassificationOptions
    ) -> list[list[Prediction]]:
        """Read the scores (N, K), or (N,) maps from classes to scores, as the labels of each row."""
        labels = self.spec.labels
        return [_best_labels(labels, row, options.top_k) for row in self.scores(output)]

    def scores(self, output: npt.NDArray[Any]) -> npt.NDArray[np.floating]:
        """Return one score for each row and label, float64 (N, K)."""
        spec = self.spec
        location = f"output {spec.scores!r}"
        if output.dtype == object:
            rows = [{str(label): score for label, score in scores.items()} for scores in output]
            if any(row.keys() != set(spec.classes) for row in rows):
                raise OutputError(f"expected {location} to have the classes {spec.classes}")
            output = np.array([[row[label] for label in spec.classes] for row in rows])
        scores = output.astype(np.float64)
        check_finite(scores, subject=location)
        count = len(spec.labels)
        if count == 2 and (scores.ndim == 1 or scores.shape[1:] == (1,)):
            second = _activate(scores.reshape(-1, 1), spec.activation)
            return np.hstack((1 - second, second))
        if scores.ndim != 2 or scores.shape[1] != count:
            raise OutputError(
                f"expected {location} to hold {count} scores for each row, one for each label, "
                f"got the shape {output.shape}"
            )
        # margins of several classes, as of SVC, are scores that are no probabilities
        return scores if spec.activation == "none" else _activate(scores, spec.activation)


def read_options(parameters: Mapping[str, Any], default_top_k: int) -> ClassificationOptions:
    """Read `action` and `top_k`, which is all labels by default with `predict_proba`."""
    action = read.action(parameters, ACTIONS)
    default = default_top_k if action == "predict" else _MAX_TOP_K
    top_k = read.whole_number(parameters, "top_k", low=1, high=_MAX_TOP_K, default=default)
    return ClassificationOptions(action, top_k)


def _activate(scores: npt.NDArray[np.floating], activation: Activation) -> npt.NDArray[np.floating]:
    """Apply an activation along the last axis, and check that scores are probabilities then."""
    if activation == "none":
        return check_probabilities(
            scores, 'scores, as [output] activation = "none" reads them as they are,'
        )
    return softmax(scores) if activation == "softmax" else sigmoid(scores)


def _best_labels(
    labels: Sequence[str], scores: npt.NDArray[np.floating], count: int
) -> list[Prediction]:
    """Return the labels of the largest scores (K,); those of equal scores in the order of their index."""
    best = np.argsort(-scores, kind="stable")[:count]
    return [Classification(labels[index], float(scores[index])) for index in best]


def sigmoid(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Turn logits, float of any type and shape, into probabilities; NaN stays NaN."""
    # the exponent is never positive, so that no power overflows
    small = np.exp(-np.abs(logits))
    return np.asarray(np.where(logits >= 0, 1, small) / (1 + small))


def softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Turn logits (..., N) into probabilities that sum to 1; NaN if a logit is not finite."""
    with np.errstate(invalid="ignore"):  # infinity less infinity
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
