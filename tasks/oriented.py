"""Oriented object detection: labelled boxes, each with a rotation of its own."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from tasks import parameters as read
from tasks.decoders import DECODERS, Candidates, Decoder, take
from tasks.detection import DetectionOptions, labelled, read_options, suppressed
from tasks.image import Image
from tasks.predictions import OrientedDetection, OutputError, Outputs, Prediction
from tasks.references import resolve
from tasks.resize import Affine, preprocess
from tasks.rotated import unscaled, with_angle, xywhr_to_corners
from tasks.sampling import Window
from tasks.specification import Angle, ModelSpec, Tiling
from tasks.tiling import merge


class OrientedOptions(msgspec.Struct, frozen=True):
    """What a request asks of an oriented detector."""

    action: str
    boxes: DetectionOptions
    angle: Angle
    """Range of the rotations."""
    corners: bool
    """Whether the corners are answered, too."""


class OrientedObjectDetection:
    """Answers rotated boxes by descending score; `predict` and `detect` are two names for the same."""

    actions: tuple[str, ...] = ("predict", "detect")

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._decode: Decoder = resolve(spec.output.decoder, DECODERS, "output.decoder")

    def options(self, parameters: Mapping[str, Any]) -> OrientedOptions:
        """Read `angle`, `corners` and what `ObjectDetection.options` reads."""
        boxes = read_options(parameters, self.actions, self._spec.defaults)
        angle: Any = read.choice(parameters, "angle", get_args(Angle), self._spec.output.angle)
        corners = read.flag(parameters, "corners", default=False)
        return OrientedOptions(boxes.action, boxes, angle, corners)

    def preprocess(self, image: Image) -> tuple[npt.NDArray[Any], Affine]:
        """Make the input tensor of one image, without the batch axis, and the map to undo it."""
        return preprocess(image, self._spec.input)

    def predict(
        self, outputs: Outputs, affine: Affine, options: OrientedOptions
    ) -> list[Prediction]:
        """Answer the rotated boxes of one image."""
        found = self.find(outputs, affine, options)
        return self.answer(found, affine.width, affine.height, options)

    def find(self, outputs: Outputs, affine: Affine, options: OrientedOptions) -> Candidates:
        """Find boxes as `ObjectDetection.find` does."""
        decoded = self._decode(outputs, options.boxes.score_threshold, affine.network_wh)
        if decoded.boxes.shape[1] != 5:
            raise OutputError(
                f"expected output.decoder to answer rotated boxes of 5 numbers, got"
                f" {decoded.boxes.shape[1]} from {self._spec.output.decoder!r}"
            )
        found = suppressed(labelled(decoded, self._spec), options.boxes)
        boxes = found.boxes.astype(np.float64)
        boxes[:, :2] -= affine.px, affine.py
        boxes = unscaled(boxes, affine.sx, affine.sy)
        return msgspec.structs.replace(found, boxes=boxes, suppress=False)

    def join(
        self,
        found: Sequence[tuple[Window, Candidates]],
        tiling: Tiling,
        options: OrientedOptions,
    ) -> Candidates:
        """Make one box of what several tiles saw of it; see `tasks.tiling.merge`."""
        return merge(found, tiling, options.boxes.max_detections)

    def answer(
        self, found: Candidates, width: int, height: int, options: OrientedOptions
    ) -> list[Prediction]:
        """Name the boxes, and take them as fractions of the image, which they may pass.

        The rotation stays the one in pixels. A box without area is dropped.
        """
        found = take(found, np.flatnonzero((found.boxes[:, 2:4] > 0).all(axis=1)))
        boxes = with_angle(found.boxes, options.angle)
        corners: list[Any] = [msgspec.UNSET] * len(boxes)
        if options.corners:
            corners = xywhr_to_corners(boxes).tolist()
        boxes = boxes / (width, height, width, height, 1)
        return [
            OrientedDetection(self._spec.labels[class_id], score, cx, cy, w, h, r, four)
            for class_id, score, (cx, cy, w, h, r), four in zip(
                found.class_ids.tolist(),
                found.scores.tolist(),
                boxes.tolist(),
                corners,
                strict=True,
            )
        ]
