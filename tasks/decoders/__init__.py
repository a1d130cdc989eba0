"""Decoders: a function for each model family turns raw outputs into candidate boxes. Tables, no discovery."""

from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks.predictions import Outputs, Size
from quadriga.tasks.references import load, resolve

DECODERS = {
    "ultralytics": "quadriga.tasks.decoders.ultralytics:raw_head",
    "ultralytics_transposed": "quadriga.tasks.decoders.ultralytics:transposed_head",
    "ultralytics_end2end": "box, score, class",
    "ultralytics_rtdetr": "normalized xywh, score, class",
    "ultralytics_rtdetr_raw": "quadriga.tasks.decoders.ultralytics:rtdetr_raw",
    "yolov5": "quadriga.tasks.decoders.yolo:objectness",
    "yolov7_end2end": "image, box, class, score",
    "yolox": "quadriga.tasks.decoders.yolo:yolox_undecoded",
    "yolox_decoded": "quadriga.tasks.decoders.yolo:objectness",
    "damo_yolo": "quadriga.tasks.decoders.yolo:damo_yolo",
    "detr_softmax": "quadriga.tasks.decoders.detr:softmax_queries",
    "detr_sigmoid": "quadriga.tasks.decoders.detr:sigmoid_queries",
    "detr_sigmoid_100": "quadriga.tasks.decoders.detr:sigmoid_queries_100",
    "rf_detr": "quadriga.tasks.decoders.detr:rf_detr",
    "labelled_boxes": "quadriga.tasks.decoders.finished:labelled_boxes",
    "efficient_nms": "quadriga.tasks.decoders.finished:efficient_nms",
    "tensorflow": "quadriga.tasks.decoders.finished:tensorflow",
    "ssd": "image, class, score, normalized box",
    "mmdeploy": "quadriga.tasks.decoders.finished:mmdeploy",
    "ultralytics_obb": "quadriga.tasks.decoders.ultralytics:obb",
    "ultralytics_obb_end2end": "xywh, score, class, angle",
    "mmdeploy_rotated": "quadriga.tasks.decoders.finished:mmdeploy_rotated",
}
"""Name to `module:attribute` of a `Decoder`, or to the columns of a table; the last three are for rotated boxes.
`model.toml` may name a reference or columns directly."""

_OF_ONE_OUTPUT = (
    *("ultralytics", "ultralytics_transposed", "ultralytics_rtdetr_raw", "ultralytics_obb"),
    *("yolov5", "yolox", "yolox_decoded"),
)

NORMALIZED = "normalized "
"""Mark of boxes that are fractions of the network's input."""
_BOXES = ("box", "xywh", "yxyx")
"""Boxes in pixels of the network's input: left, top, right, bottom; centre and size; top, left, bottom, right."""
COLUMNS = {
    **dict.fromkeys(("image", "score", "objectness", "class", "angle"), 1),
    **dict.fromkeys((*_BOXES, *(f"{NORMALIZED}{box}" for box in _BOXES)), 4),
}
"""Names of the columns of a table of detections, and the numbers that each of them has."""


def is_table(decoder: str) -> bool:
    """Check whether a decoder is a text of columns, such as `image, box, score, class`, or a name of one.

    A table has one box and one score. Classes are 0 where it has none; scores are multiplied by the objectness; an
    angle, in radians, belongs to a box of centre and size in pixels.
    """
    names = DECODERS.get(decoder, decoder).split(", ")
    boxes = [name for name in names if COLUMNS.get(name) == 4]
    is_known = COLUMNS.keys() >= set(names) and len(set(names)) == len(names)
    return (
        is_known
        and len(boxes) == 1
        and "score" in names
        and ("angle" not in names or boxes == ["xywh"])
    )


def reads_one_output(decoder: str) -> bool:
    """Check whether a decoder reads one output, as all tables are read."""
    return decoder in _OF_ONE_OUTPUT or is_table(decoder)


def resolve_decoder(name: str) -> "Decoder":
    """Return the decoder of a name, of a reference, or of a table of columns.

    Raises:
        quadriga.tasks.references.ObjectReferenceError: It is none of them.
    """
    if is_table(name):
        table = load("quadriga.tasks.decoders.finished:Table")
        decoder: Decoder = table(DECODERS.get(name, name))
        return decoder
    kind = "output.decoder, if not columns such as 'image, box, score, class',"
    resolved: Decoder = resolve(name, DECODERS, kind)
    return resolved


class Candidates(msgspec.Struct, frozen=True, eq=False):
    """Boxes that a network proposes, before overlapping ones are suppressed."""

    boxes: npt.NDArray[np.floating]
    """float32 (N, 4), xyxy, or (N, 5), xywhr, radians, clockwise on the screen; pixels of the
    network's input. float64 after they are mapped to pixels of the image."""
    scores: npt.NDArray[np.floating]
    """float32 (N,), 0 to 1."""
    class_ids: npt.NDArray[np.int64]
    """int64 (N,), class ids of the network; see `quadriga.tasks.detection.label_indices`."""
    suppress: bool | Literal["probiou"] = True
    """Whether overlapping boxes have to be suppressed, and by which measure if not IoU; False if the network
    returns each object once."""


def select(candidates: Candidates, rows: npt.NDArray[Any]) -> Candidates:
    """Return the candidates of some rows: `rows` is int (K,), indices, or bool (N,)."""
    return Candidates(
        candidates.boxes[rows],
        candidates.scores[rows],
        candidates.class_ids[rows],
        candidates.suppress,
    )


class Decoder(Protocol):
    """A function from the outputs of one image to upright or rotated candidates."""

    def __call__(self, outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
        """Read the boxes that score above the threshold.

        Args:
            outputs: The graph's outputs by name, in its order, without the batch axis.
            score_threshold: Minimum score, itself excluded.
            size_wh: Width and height of the network's input for this image, pixels.

        Raises:
            quadriga.tasks.predictions.OutputError: The outputs do not have the form of this family.
        """
        ...
