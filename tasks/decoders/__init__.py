"""Model families: a function each turns raw outputs into candidate boxes. Tables, no discovery."""

from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tasks.predictions import Outputs, Size

DECODERS = {
    "ultralytics": "tasks.decoders.ultralytics:raw_head",
    "ultralytics_end2end": "tasks.decoders.ultralytics:end_to_end",
    "ultralytics_rtdetr": "tasks.decoders.ultralytics:rtdetr",
    "ultralytics_rtdetr_raw": "tasks.decoders.ultralytics:rtdetr_raw",
    "yolov5": "tasks.decoders.yolo:objectness",
    "yolov7_end2end": "tasks.decoders.yolo:yolov7_end_to_end",
    "yolox": "tasks.decoders.yolo:yolox_undecoded",
    "yolox_decoded": "tasks.decoders.yolo:objectness",
    "damo_yolo": "tasks.decoders.yolo:damo_yolo",
    "detr_softmax": "tasks.decoders.detr:softmax_queries",
    "detr_sigmoid": "tasks.decoders.detr:sigmoid_queries",
    "detr_sigmoid_100": "tasks.decoders.detr:sigmoid_queries_100",
    "rf_detr": "tasks.decoders.detr:rf_detr",
    "labelled_boxes": "tasks.decoders.finished:labelled_boxes",
    "efficient_nms": "tasks.decoders.finished:efficient_nms",
    "tensorflow": "tasks.decoders.finished:tensorflow",
    "ssd": "tasks.decoders.finished:ssd",
    "mmdeploy": "tasks.decoders.finished:mmdeploy",
    "ultralytics_obb": "tasks.decoders.ultralytics:obb",
    "ultralytics_obb_end2end": "tasks.decoders.ultralytics:obb_end_to_end",
    "mmdeploy_rotated": "tasks.decoders.finished:mmdeploy_rotated",
}
"""Name to `module:attribute` of a `Decoder`, the last three of rotated boxes; `model.toml` may give such a
reference of its own."""


class Candidates(msgspec.Struct, frozen=True, eq=False):
    """Boxes that a network proposes, before overlapping ones are suppressed."""

    boxes: npt.NDArray[np.floating]
    """float32 (N, 4), xyxy, or (N, 5), xywhr, radians, clockwise on the screen; in pixels of the
    network's input. float64 once in pixels of the image."""
    scores: npt.NDArray[np.floating]
    """float32 (N,), 0 to 1."""
    class_ids: npt.NDArray[np.int64]
    """int64 (N,), as the network counts them; see `tasks.detection.labelled`."""
    suppress: bool | Literal["probiou"] = True
    """Whether overlapping boxes are still in, and what measures it if not their IoU; networks that
    answer each object once say False."""


def take(found: Candidates, rows: npt.NDArray[Any]) -> Candidates:
    """Keep some candidates: `rows` is int (K,), indices, or bool (N,)."""
    return Candidates(found.boxes[rows], found.scores[rows], found.class_ids[rows], found.suppress)


class Decoder(Protocol):
    """A function from the outputs of one image to upright or rotated candidates."""

    def __call__(self, outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
        """Read the boxes that score above the threshold.

        Args:
            outputs: The graph's outputs by name, in its order, without the batch axis where they have one.
            score_threshold: What does not score above it is left out.
            size_wh: Width and height of the network's input for this image, pixels.

        Raises:
            tasks.predictions.OutputError: The outputs are not what this family answers.
        """
        ...
