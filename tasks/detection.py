"""Object detection: labelled boxes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks import parameters as read
from quadriga.tasks.decoders import Candidates, resolve_decoder, select
from quadriga.tasks.geometry import (
    Floats,
    Integers,
    clip_boxes,
    nms,
    probiou_matrix,
    suppress_at_once,
    unscaled,
    with_angle,
    xywhr_to_corners,
)
from quadriga.tasks.image import Image
from quadriga.tasks.predictions import (
    Detection,
    OrientedDetection,
    OutputError,
    Outputs,
    Prediction,
    TruncatedPredictions,
    check_finite,
    check_probabilities,
)
from quadriga.tasks.resize import Affine, PixelRect, preprocess
from quadriga.tasks.specification import Angle, ModelSpec, Tiling
from quadriga.tasks.tiling import merge


class DetectionOptions(msgspec.Struct, frozen=True):
    """Options of one image for a detector."""

    action: str
    score_threshold: float
    """Minimum score, itself excluded."""
    iou_threshold: float
    """Overlap (IoU) with a better box of the same class above which a box is dropped."""
    max_detections: int
    """Maximum boxes to return, the best ones."""

    @property
    def limit(self) -> int:
        """Number of boxes to look for: one more than is returned tells that there were more."""
        return self.max_detections + 1


def label_indices(candidates: Candidates, spec: ModelSpec) -> Candidates:
    """Check boxes and scores, and turn class ids of the network into positions in `spec.labels`.

    Classes before the first label are background, or fill up an output of fixed size; they are dropped, as is
    `spec.output.background`.

    Raises:
        OutputError: A class has no label, a box is not finite, or a score is no probability.
    """
    check_finite(candidates.boxes, subject="boxes")
    scores = check_probabilities(candidates.scores)
    offset, count = spec.output.label_offset, len(spec.labels)
    class_ids = candidates.class_ids - offset
    has_label = class_ids >= 0
    if spec.output.background is not None:
        has_label &= class_ids != spec.output.background
    highest = int(np.max(class_ids[has_label], initial=-1))
    if highest >= count:
        offset_hint = f" counted from {offset}" if offset else ""
        raise OutputError(
            f"expected a label for each class, got class {highest + offset} and {count} labels{offset_hint}"
        )
    candidates = msgspec.structs.replace(candidates, scores=scores, class_ids=class_ids)
    return candidates if has_label.all() else select(candidates, has_label)


def suppress_overlaps(
    candidates: Candidates, options: DetectionOptions, rule: Literal["class", "agnostic"] = "class"
) -> Candidates:
    """Keep the best of overlapping boxes, of a class or of all, by the measure of the model's family.

    Source: `probiou`: Ultralytics 8.4, `utils/nms.py` TorchNMS.fast_nms; rotated boxes by their IoU: MMRotate, `core/post_processing/bbox_nms_rotated.py`. Both keep classes apart by moving boxes.
    """
    boxes, scores, class_ids = candidates.boxes, candidates.scores, candidates.class_ids
    if rule == "agnostic":
        class_ids = np.zeros_like(class_ids)
    limit = options.limit
    if not candidates.suppress:
        return select(candidates, np.argsort(-scores, kind="stable")[:limit])
    if candidates.suppress is True:
        return select(
            candidates, nms(boxes, scores, options.iou_threshold, class_ids=class_ids, limit=limit)
        )

    def overlapping(rows: Integers, columns: Integers) -> npt.NDArray[np.bool_]:
        over = probiou_matrix(boxes[rows], boxes[columns]) > options.iou_threshold
        return np.asarray(over & (class_ids[rows][:, None] == class_ids[columns]))

    return select(candidates, suppress_at_once(scores, overlapping, limit))


class ObjectDetection:
    """Predicts boxes by descending score; `predict` and `detect` are two names for the same action."""

    actions: tuple[str, ...] = ("predict", "detect")

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._decode = resolve_decoder(spec.output.decoder)

    def options(self, parameters: Mapping[str, Any]) -> DetectionOptions:
        """Read `action`, `score_threshold`, `iou_threshold` and `max_detections`."""
        defaults = self._spec.defaults
        return DetectionOptions(
            action=read.action(parameters, self.actions),
            score_threshold=read.share(parameters, "score_threshold", defaults.score_threshold),
            iou_threshold=read.share(parameters, "iou_threshold", defaults.iou_threshold),
            max_detections=read.whole_number(
                parameters, "max_detections", low=1, high=10_000, default=defaults.max_detections
            ),
        )

    def preprocess(self, image: Image) -> tuple[npt.NDArray[Any], Affine]:
        """Make the input tensor of one image, without the batch axis, and the map to undo it."""
        return preprocess(image, self._spec.input)

    def predict(
        self, outputs: Outputs, affine: Affine, options: DetectionOptions
    ) -> list[Prediction]:
        """Read the boxes of one image, the best first."""
        candidates = self.detect(outputs, affine, options)
        return self.to_predictions(candidates, affine.width, affine.height, options)

    def detect(self, outputs: Outputs, affine: Affine, options: DetectionOptions) -> Candidates:
        """Decode boxes, suppress overlapping ones in network pixels and map the rest to the image.

        Returns:
            At most `options.limit` boxes by descending score, in pixels of the image, not clipped to it;
            class ids are positions in the list of labels.

        Raises:
            OutputError: The outputs are not what the decoder reads, or name a class without label.
        """
        decoded = self._decode(outputs, options.score_threshold, affine.network_wh)
        labelled = label_indices(decoded, self._spec)
        candidates = suppress_overlaps(labelled, options, self._spec.output.nms)
        boxes = self._to_image(candidates.boxes, affine)
        return msgspec.structs.replace(candidates, boxes=boxes, suppress=False)

    def _to_image(self, boxes: Floats, affine: Affine) -> Floats:
        """Map boxes from pixels of the network's input to those of the image."""
        return affine.to_image(boxes)

    def check_all(self, outputs: Outputs, affine: Affine) -> None:
        """Check scores and classes of all candidates, however low they score; -1 fills up rows of some exports.

        Raises:
            OutputError: A score is no probability, or a class of a score above 0 has no label.
        """
        try:
            decoded = self._decode(outputs, -math.inf, affine.network_wh)
        except OutputError:  # boxes that score too low to count may be infinite
            return
        decoded = select(decoded, decoded.scores != -1)
        check_probabilities(decoded.scores)
        label_indices(select(decoded, decoded.scores > 0), self._spec)

    def merge(
        self,
        tiles: Sequence[tuple[PixelRect, Candidates]],
        tiling: Tiling,
        options: DetectionOptions,
    ) -> Candidates:
        """Merge the boxes that several tiles have of one object; see `quadriga.tasks.tiling.merge`."""
        return merge(tiles, tiling, options.limit)

    def to_predictions(
        self, candidates: Candidates, width: int, height: int, options: Any
    ) -> list[Prediction]:
        """Clip the boxes to the image and label them; boxes wholly outside of the image are dropped."""
        limit = options.max_detections
        if len(candidates.scores) <= limit:
            return self._label(candidates, width, height, options=options)
        best = select(candidates, np.arange(limit))
        return TruncatedPredictions(self._label(best, width, height, options=options))

    def _label(
        self,
        candidates: Candidates,
        width: int,
        height: int,
        options: Any,  # noqa: ARG002 - the subclass for rotated boxes needs it
    ) -> list[Prediction]:
        boxes = clip_boxes(candidates.boxes, width, height)
        visible = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        return [
            Detection(self._spec.labels[class_id], score, *box)
            for class_id, score, box in zip(
                candidates.class_ids[visible].tolist(),
                candidates.scores[visible].tolist(),
                boxes[visible].tolist(),
                strict=True,
            )
        ]


class OrientedOptions(DetectionOptions, frozen=True):
    """Options of one image for an oriented detector."""

    angle: Angle
    """Range of the angles; see `quadriga.tasks.geometry.with_angle`."""
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

    def _to_image(self, boxes: Floats, affine: Affine) -> Floats:
        """Map rotated boxes from pixels of the network's input to those of the image."""
        if boxes.shape[1] != 5:
            raise OutputError(
                f"expected output.decoder to return rotated boxes of 5 numbers, got"
                f" {boxes.shape[1]} from {self._spec.output.decoder!r}"
            )
        boxes = boxes.astype(np.float64)
        boxes[:, :2] -= affine.px, affine.py
        return unscaled(boxes, affine.sx, affine.sy)

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
