"""Object detection: labelled boxes."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks import parameters as read
from quadriga.tasks.decoders import DECODERS, Candidates, Decoder, select
from quadriga.tasks.geometry import Integers, clip_boxes, nms, suppress_at_once
from quadriga.tasks.image import Image
from quadriga.tasks.predictions import Detection, OutputError, Outputs, Prediction
from quadriga.tasks.references import resolve
from quadriga.tasks.resize import Affine, preprocess
from quadriga.tasks.rotated import probiou_matrix
from quadriga.tasks.sampling import PixelRect
from quadriga.tasks.specification import ModelSpec, Tiling
from quadriga.tasks.tiling import merge


class DetectionOptions(msgspec.Struct, frozen=True):
    """What a request asks of a detector."""

    action: str
    score_threshold: float
    """Boxes must score above it."""
    iou_threshold: float
    """A box that overlaps a better one of its class by more is dropped."""
    max_detections: int
    """Most boxes to answer; the best are kept."""


def label_indices(found: Candidates, spec: ModelSpec) -> Candidates:
    """Number classes from the first label, `spec.labels[0]`; each must have one.

    What lies before it is background, or fills up the output of a fixed size; it is dropped, as is
    `spec.output.background`.
    """
    offset, count = spec.output.label_offset, len(spec.labels)
    class_ids = found.class_ids - offset
    kept = class_ids >= 0
    if spec.output.background is not None:
        kept &= class_ids != spec.output.background
    highest = int(np.max(class_ids[kept], initial=-1))
    if highest >= count:
        counted = f" counted from {offset}" if offset else ""
        raise OutputError(
            f"expected a label for each class, got class {highest + offset} and {count} labels{counted}"
        )
    found = msgspec.structs.replace(found, class_ids=class_ids)
    return found if kept.all() else select(found, kept)


def suppress_overlaps(found: Candidates, options: DetectionOptions) -> Candidates:
    """Keep the best of overlapping boxes of a class as the family's own program does.

    Source: `probiou`: Ultralytics 8.4, `utils/nms.py` TorchNMS.fast_nms; of rotated boxes by their IoU:
    MMRotate, `core/post_processing/bbox_nms_rotated.py`. Both keep classes apart by moving boxes.
    """
    boxes, scores, class_ids = found.boxes, found.scores, found.class_ids
    limit = options.max_detections
    if not found.suppress:
        return select(found, np.argsort(-scores, kind="stable")[:limit])
    if found.suppress is True:
        return select(found, nms(boxes, scores, options.iou_threshold, class_ids, limit))

    def overlapping(rows: Integers, columns: Integers) -> npt.NDArray[np.bool_]:
        over = probiou_matrix(boxes[rows], boxes[columns]) > options.iou_threshold
        return np.asarray(over & (class_ids[rows][:, None] == class_ids[columns]))

    return select(found, suppress_at_once(scores, overlapping, limit))


class ObjectDetection:
    """Answers boxes by descending score; `predict` and `detect` are two names for the same."""

    actions: tuple[str, ...] = ("predict", "detect")

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._decode: Decoder = resolve(spec.output.decoder, DECODERS, "output.decoder")

    def options(self, parameters: Mapping[str, Any]) -> DetectionOptions:
        """Read `action`, `score_threshold`, `iou_threshold` and `max_detections`."""
        defaults = self._spec.defaults
        return DetectionOptions(
            action=read.action(parameters, self.actions),
            score_threshold=read.number(
                parameters, "score_threshold", 0, 1, defaults.score_threshold
            ),
            iou_threshold=read.number(parameters, "iou_threshold", 0, 1, defaults.iou_threshold),
            max_detections=read.whole_number(
                parameters, "max_detections", 1, 10_000, defaults.max_detections
            ),
        )

    def preprocess(self, image: Image) -> tuple[npt.NDArray[Any], Affine]:
        """Make the input tensor of one image, without the batch axis, and the map to undo it."""
        return preprocess(image, self._spec.input)

    def predict(
        self, outputs: Outputs, affine: Affine, options: DetectionOptions
    ) -> list[Prediction]:
        """Answer the boxes of one image."""
        found = self.read_tile(outputs, affine, options)
        return self.to_predictions(found, affine.width, affine.height, options)

    def read_tile(self, outputs: Outputs, affine: Affine, options: DetectionOptions) -> Candidates:
        """Decode, suppress overlaps in network pixels, map back; the first half of `predict`.

        Returns:
            At most `max_detections`, by descending score, in pixels of the image, not clipped to it; its
            classes are places in the list of labels.

        Raises:
            OutputError: The outputs are not what the decoder reads, or name a class without label.
        """
        decoded = self._decode(outputs, options.score_threshold, affine.network_wh)
        found = suppress_overlaps(label_indices(decoded, self._spec), options)
        return msgspec.structs.replace(found, boxes=affine.to_image(found.boxes), suppress=False)

    def merge_tiles(
        self,
        found: Sequence[tuple[PixelRect, Candidates]],
        tiling: Tiling,
        options: DetectionOptions,
    ) -> Candidates:
        """Make one box of what several tiles saw of it; see `quadriga.tasks.tiling.merge`."""
        return merge(found, tiling, options.max_detections)

    def to_predictions(
        self,
        found: Candidates,
        width: int,
        height: int,
        options: Any,  # noqa: ARG002 - rotated boxes need theirs, and are asked alike
    ) -> list[Prediction]:
        """Clip the boxes to the image and name them; what lies wholly outside of it is dropped."""
        boxes = clip_boxes(found.boxes, width, height)
        visible = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        return [
            Detection(self._spec.labels[class_id], score, *box)
            for class_id, score, box in zip(
                found.class_ids[visible].tolist(),
                found.scores[visible].tolist(),
                boxes[visible].tolist(),
                strict=True,
            )
        ]
