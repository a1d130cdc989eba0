"""Image classification: one score for each label."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks import parameters as read
from quadriga.tasks.activations import sigmoid, softmax
from quadriga.tasks.image import Image
from quadriga.tasks.predictions import Classification, OutputError, Outputs, Prediction
from quadriga.tasks.resize import Affine, preprocess
from quadriga.tasks.specification import ModelSpec

_MAX_TOP_K = 100_000


class ClassificationOptions(msgspec.Struct, frozen=True):
    """Options of one image for a classifier."""

    action: str
    top_k: int
    """Maximum labels to return; a number above that of the labels means all."""


class ImageClassification:
    """Answers labels by descending score: the best with `predict`, all with `predict_proba`."""

    actions: tuple[str, ...] = ("predict", "predict_proba")

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    def options(self, parameters: Mapping[str, Any]) -> ClassificationOptions:
        """Read `action` and `top_k`."""
        action = read.action(parameters, self.actions)
        default = self._spec.defaults.top_k if action == "predict" else _MAX_TOP_K
        top_k = read.whole_number(parameters, "top_k", low=1, high=_MAX_TOP_K, default=default)
        return ClassificationOptions(action, top_k)

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

        Labels of equal score come in the order of their index.
        """
        labels = self._spec.labels
        first = next(iter(outputs.values()))
        scores = first.astype(np.float64).squeeze()
        if scores.size != len(labels) or scores.ndim > 1:
            raise OutputError(
                f"expected output 0 to hold {len(labels)} scores, one for each label,"
                f" got the shape {first.shape}"
            )
        if not np.isfinite(scores).all():
            raise OutputError("expected output 0 to hold finite scores, got NaN or infinity")
        activated: npt.NDArray[np.floating] = scores.reshape(-1)
        if self._spec.output.activation != "none":
            activate = softmax if self._spec.output.activation == "softmax" else sigmoid
            activated = activate(activated)
        best = np.argsort(-activated, kind="stable")[: options.top_k]
        return [Classification(labels[index], float(activated[index])) for index in best]
