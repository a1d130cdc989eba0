"""Object detection: labelled boxes."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tasks import parameters as read
from tasks.decoders import DECODERS, Candidates, Decoder
from tasks.geometry import clip_boxes, nms
from tasks.image import Image
from tasks.predictions import Detection, OutputError, Prediction
from tasks.references import resolve
from tasks.resize import Affine, preprocess
from tasks.specification import ModelSpec


class DetectionOptions(msgspec.Struct, frozen=True):
    """What a request asks of a detector."""

    action: str
    score_threshold: float
    """Boxes must score above it."""
    iou_threshold: float
    """A box that overlaps a better one of its class by more is dropped."""
    max_detections: int
    """Most boxes to answer; the best are kept."""


class ObjectDetection:
    """Answers boxes by descending score; `predict` and `detect` are two names for the same."""

    actions: tuple[str, ...] = ("predict", "detect")

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._decode: Decoder = resolve(spec.output.decoder, DECODERS, "output.decoder")

    def options(self, parameters: Mapping[str, Any]) -> DetectionOptions:
        """Read `action`, `score_threshold`, `iou_threshold` and `max_detections`.

        Raises:
            tasks.parameters.ParameterError: One of them is not allowed.
        """
        defaults = self._spec.defaults
        return DetectionOptions(
            action=read.action(parameters, self.actions),
            score_threshold=read.unit_interval(
                parameters, "score_threshold", defaults.score_threshold
            ),
            iou_threshold=read.unit_interval(parameters, "iou_threshold", defaults.iou_threshold),
            max_detections=read.whole_number(
                parameters, "max_detections", 1, 10_000, defaults.max_detections
            ),
        )

    def preprocess(self, image: Image) -> tuple[npt.NDArray[Any], Affine]:
        """Make the input tensor of one image, without the batch axis, and the map to undo it."""
        return preprocess(image, self._spec.input)

    def predict(
        self, outputs: Mapping[str, npt.NDArray[Any]], affine: Affine, options: DetectionOptions
    ) -> list[Prediction]:
        """Decode, suppress overlaps in network pixels, map back, clip to the image.

        Suppression comes first because the families' own programs do it there. A box that lies
        wholly outside of the image is dropped, so fewer than `max_detections` may remain.

        Raises:
            OutputError: The outputs are not what the decoder reads, or name a class without label.
        """
        found = self._decode(outputs, options.score_threshold, affine.network_wh)
        self._check_labels(found)
        kept = self._kept(found, options)
        boxes = clip_boxes(affine.to_image(found.boxes[kept]), affine.width, affine.height)
        visible = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        return [
            Detection(self._spec.labels[class_id], score, *box)
            for class_id, score, box in zip(
                found.class_ids[kept][visible].tolist(),
                found.scores[kept][visible].tolist(),
                boxes[visible].tolist(),
                strict=True,
            )
        ]

    def _kept(self, found: Candidates, options: DetectionOptions) -> npt.NDArray[np.int64]:
        if not found.suppress:
            return np.argsort(-found.scores, kind="stable")[: options.max_detections]
        return nms(
            found.boxes,
            found.scores,
            options.iou_threshold,
            found.class_ids,
            options.max_detections,
        )

    def _check_labels(self, found: Candidates) -> None:
        highest = int(np.max(found.class_ids, initial=-1))
        if highest >= len(self._spec.labels):
            raise OutputError(
                f"expected a label for each class, got class {highest}"
                f" and {len(self._spec.labels)} labels"
            )
