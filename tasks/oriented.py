"""Oriented object detection: labelled boxes, each with a rotation of its own."""

from collections.abc import Mapping
from typing import Any, get_args

import msgspec
import numpy as np

from quadriga.tasks import parameters as read
from quadriga.tasks.decoders import Candidates, select
from quadriga.tasks.detection import (
    DetectionOptions,
    ObjectDetection,
    label_indices,
    suppress_overlaps,
)
from quadriga.tasks.predictions import OrientedDetection, OutputError, Outputs, Prediction
from quadriga.tasks.resize import Affine
from quadriga.tasks.rotated import unscaled, with_angle, xywhr_to_corners
from quadriga.tasks.specification import Angle


class OrientedOptions(DetectionOptions, frozen=True):
    """Options of one image for an oriented detector."""

    angle: Angle
    """Range of the angles; see `quadriga.tasks.rotated.with_angle`."""
    corners: bool
    """Whether predictions have corners."""


class OrientedObjectDetection(ObjectDetection):
    """Predicts rotated boxes by descending score; `predict` and `detect` are two names for the same action."""

    def options(self, parameters: Mapping[str, Any]) -> OrientedOptions:
        """Read `angle`, `corners` and the parameters of `ObjectDetection.options`."""
        boxes = super().options(parameters)
        angle: Any = read.choice(
            parameters, "angle", get_args(Angle), default=self._spec.output.angle
        )
        corners = read.flag(parameters, "corners", default=False)
        return OrientedOptions(**msgspec.structs.asdict(boxes), angle=angle, corners=corners)

    def detect(self, outputs: Outputs, affine: Affine, options: DetectionOptions) -> Candidates:
        """Decode rotated boxes; see `ObjectDetection.detect`."""
        decoded = self._decode(outputs, options.score_threshold, affine.network_wh)
        if decoded.boxes.shape[1] != 5:
            raise OutputError(
                f"expected output.decoder to return rotated boxes of 5 numbers, got"
                f" {decoded.boxes.shape[1]} from {self._spec.output.decoder!r}"
            )
        labelled = label_indices(decoded, self._spec)
        candidates = suppress_overlaps(labelled, options, self._spec.output.nms)
        boxes = candidates.boxes.astype(np.float64)
        boxes[:, :2] -= affine.px, affine.py
        boxes = unscaled(boxes, affine.sx, affine.sy)
        return msgspec.structs.replace(candidates, boxes=boxes, suppress=False)

    def _label(
        self, candidates: Candidates, width: int, height: int, options: OrientedOptions
    ) -> list[Prediction]:
        """Label the boxes and turn them into fractions of the image; a box may reach beyond it.

        The rotation stays that in pixels. A box without area is dropped.
        """
        candidates = select(candidates, np.flatnonzero((candidates.boxes[:, 2:4] > 0).all(axis=1)))
        boxes = with_angle(candidates.boxes, options.angle)
        corners: list[Any] = [msgspec.UNSET] * len(boxes)
        if options.corners:
            corners = xywhr_to_corners(boxes).tolist()
        boxes = boxes / (width, height, width, height, 1)
        return [
            OrientedDetection(
                self._spec.labels[class_id], score, cx=cx, cy=cy, w=w, h=h, r=r, corners=box_corners
            )
            for class_id, score, (cx, cy, w, h, r), box_corners in zip(
                candidates.class_ids.tolist(),
                candidates.scores.tolist(),
                boxes.tolist(),
                corners,
                strict=True,
            )
        ]
