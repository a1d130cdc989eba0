"""Decoders: a function for each model family turns raw outputs into candidate boxes. Tables, no discovery."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks.classification import sigmoid, softmax
from quadriga.tasks.geometry import Floats, xywh_to_xyxy
from quadriga.tasks.predictions import OutputError, Outputs, Size, check_finite
from quadriga.tasks.specification import load, resolve

DECODERS = {
    "ultralytics": "quadriga.tasks.decoders:raw_head",
    "ultralytics_transposed": "quadriga.tasks.decoders:transposed_head",
    "ultralytics_end2end": "box, score, class",
    "ultralytics_rtdetr": "normalized xywh, score, class",
    "ultralytics_rtdetr_raw": "quadriga.tasks.decoders:rtdetr_raw",
    "yolov5": "quadriga.tasks.decoders:objectness",
    "yolov7_end2end": "image, box, class, score",
    "yolox": "quadriga.tasks.decoders:yolox_undecoded",
    "yolox_decoded": "quadriga.tasks.decoders:objectness",
    "damo_yolo": "quadriga.tasks.decoders:damo_yolo",
    "detr_softmax": "quadriga.tasks.decoders:softmax_queries",
    "detr_sigmoid": "quadriga.tasks.decoders:sigmoid_queries",
    "detr_sigmoid_100": "quadriga.tasks.decoders:sigmoid_queries_100",
    "rf_detr": "quadriga.tasks.decoders:rf_detr",
    "labelled_boxes": "quadriga.tasks.decoders:labelled_boxes",
    "efficient_nms": "quadriga.tasks.decoders:efficient_nms",
    "tensorflow": "quadriga.tasks.decoders:tensorflow",
    "ssd": "image, class, score, normalized box",
    "mmdeploy": "quadriga.tasks.decoders:mmdeploy",
    "ultralytics_obb": "quadriga.tasks.decoders:obb",
    "ultralytics_obb_end2end": "xywh, score, class, angle",
    "mmdeploy_rotated": "quadriga.tasks.decoders:mmdeploy_rotated",
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
        quadriga.tasks.specification.ObjectReferenceError: It is none of them.
    """
    if is_table(name):
        table = load("quadriga.tasks.decoders:Table")
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


Decoder = Callable[[Outputs, float, Size], Candidates]
"""Reads the boxes, upright or rotated, that score above a threshold.

Args:
    outputs: The graph's outputs by name, in its order, without the batch axis.
    score_threshold: Minimum score, itself excluded.
    size_wh: Width and height of the network's input for this image, pixels.

Raises:
    quadriga.tasks.predictions.OutputError: The outputs do not have the form of this family.
"""


def softmax_queries(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `logits`, float (queries, classes + 1), whose last column is "no object", and `pred_boxes`.

    DETR, YOLOS and Table Transformer. Each query gives its best class.

    Source: transformers 4.57, DetrImageProcessor.post_process_object_detection.
    """
    logits = named(outputs, "logits", "queries", "1 + classes")
    boxes = named(outputs, "pred_boxes", len(logits), 4)
    scores = softmax(logits)[:, :-1]
    best = scores.argmax(axis=1).astype(np.float32)
    return finished(centred_to_pixels(boxes, size_wh), scores.max(axis=1), best, score_threshold)


def sigmoid_queries(
    outputs: Outputs, score_threshold: float, size_wh: Size, count: int | None = None
) -> Candidates:
    """Read `logits`, float (queries, classes), and `pred_boxes`, float (queries, 4).

    RT-DETR, RT-DETRv2 and D-FINE of transformers. The best pairs of query and class are read, as many as
    there are queries, or `count`, so that a query may give several labels.

    Source: transformers 4.57, RTDetrImageProcessor.post_process_object_detection.
    """
    logits = named(outputs, "logits", "queries", "classes")
    boxes = named(outputs, "pred_boxes", len(logits), 4)
    count = len(logits) if count is None else count
    return _best_pairs(logits, centred_to_pixels(boxes, size_wh), score_threshold, count)


sigmoid_queries_100 = partial(sigmoid_queries, count=100)
"""Decoder of the best 100 pairs: Deformable and Conditional DETR, DETA.

Source: transformers 4.57, DeformableDetrImageProcessor.post_process_object_detection.
"""


def rf_detr(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `dets`, float (queries, 4), and `labels`, float (queries, classes): logits, not labels.

    Source: RF-DETR 1.3, `models/lwdetr.py` PostProcess, with as many pairs as queries.
    """
    boxes = named(outputs, "dets", "queries", 4)
    logits = named(outputs, "labels", len(boxes), "classes")
    return _best_pairs(logits, centred_to_pixels(boxes, size_wh), score_threshold, len(boxes))


def _best_pairs(logits: Floats, boxes: Floats, score_threshold: float, count: int) -> Candidates:
    """Select the best pairs of query and class; boxes are float32 (queries, 4), xyxy, pixels."""
    scores = sigmoid(logits.ravel()).astype(np.float32, copy=False)
    pairs = above(scores, score_threshold)
    check_finite(logits.ravel()[pairs])
    pairs = pairs[np.argsort(-scores[pairs], kind="stable")[:count]]
    queries, class_ids = np.divmod(pairs, logits.shape[1])
    check_finite(boxes[queries])
    return Candidates(boxes[queries], scores[pairs], class_ids, suppress=False)


def raw_head(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `output0`, float (4 + classes, anchors): centre x, centre y, width, height, class scores.

    Boxes are in pixels of the network's input, scores are probabilities already. Each anchor gives one
    candidate, of its best class, or the first of equal ones.

    Source: Ultralytics 8.4, `utils/nms.py` non_max_suppression with `multi_label=False`.
    """
    head = first(outputs, "4 + classes", "anchors")
    candidates, scores, class_ids = _above_threshold(head, None, score_threshold)
    return Candidates(xywh_to_xyxy(candidates[:4].T), scores, class_ids)


def transposed_head(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `output0`, float (anchors, 4 + classes): `raw_head` with its axes swapped, as converters leave it."""
    head = first(outputs, "anchors", "4 + classes")
    return raw_head({"output0": np.ascontiguousarray(head.T)}, score_threshold, size_wh)


def _above_threshold(
    head: Floats, stop: int | None, score_threshold: float
) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Return the anchors whose best class, in rows 4 to `stop`, scores above the threshold.

    Returns:
        Their columns of the head, scores and class ids.
    """
    # argmax only for the anchors that remain: 7 times faster than for all
    best = head[4:stop].max(axis=0)
    anchors = above(best, score_threshold)
    candidates = head[:, anchors]
    check_finite(candidates)
    return candidates, best[anchors], candidates[4:stop].argmax(axis=0)


def obb(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `output0`, float (4 + classes + 1, anchors): as `raw_head`, and the angle as the last.

    YOLOv8-obb, 11-obb and 26-obb: rotated boxes, radians, clockwise on the screen.

    Source: Ultralytics 8.4, `utils/nms.py` non_max_suppression with `rotated=True`.
    """
    head = first(outputs, "4 + classes + 1", "anchors")
    candidates, scores, class_ids = _above_threshold(head, -1, score_threshold)
    boxes = np.concatenate([candidates[:4], candidates[-1:]]).T
    return Candidates(boxes, scores, class_ids, suppress="probiou")


def rtdetr_raw(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `output0`, float (queries, 4 + classes): box as fractions, class scores.

    Releases before 8.4. Scores are probabilities; each query gives its best class.

    Source: Ultralytics 8.3, `models/rtdetr/predict.py` RTDETRPredictor.postprocess.
    """
    rows = first(outputs, "queries", "4 + classes")
    boxes = centred_to_pixels(rows[:, :4], size_wh)
    best = rows[:, 4:].argmax(axis=1).astype(np.float32)
    return finished(boxes, rows[:, 4:].max(axis=1), best, score_threshold)


def objectness(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read the first output, float (anchors, 5 + classes): box, objectness, class scores.

    The box is centre x, centre y, width, height in pixels; a score is objectness times that of the class,
    both probabilities already. Each anchor gives one candidate, of its best class.

    Source: YOLOv5 7.0, `utils/general.py` non_max_suppression; YOLOv7 and YOLOv6 do the same; YOLOX,
    `utils/boxes.py` postprocess, for files exported with `--decode_in_inference`.
    """
    return _scored(first(outputs, "anchors", "5 + classes"), score_threshold)


def yolox_undecoded(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read the first output as `objectness` does, with boxes relative to their cell of the grid.

    Centres are in strides from the corner of the cell, sizes are logarithms of strides. Cells of the
    strides 8, 16 and 32 follow each other, row by row; models for large images add the stride 64.

    Source: YOLOX 0.3, `utils/demo_utils.py` demo_postprocess.
    """
    head = first(outputs, "anchors", "5 + classes")
    grids = [_grid(stride, size_wh) for stride in (8, 16, 32, 64)]
    for count in (3, 4):
        cells = np.concatenate(grids[:count])
        if len(cells) == len(head):
            break
    else:
        raise OutputError(
            f"expected output 0 to have {sum(map(len, grids[:3]))} anchors, the cells of {size_wh[0]} x"
            f" {size_wh[1]} at strides of 8, 16 and 32, or {sum(map(len, grids))} with 64,"
            f" got {len(head)}"
        )
    stride = cells[:, 2:]
    centres = (head[:, :2] + cells[:, :2]) * stride
    with np.errstate(over="ignore"):  # infinity is reported only above the threshold
        sizes = np.exp(head[:, 2:4]) * stride
    return _scored(np.concatenate([centres, sizes, head[:, 4:]], axis=1), score_threshold)


def _grid(stride: int, size_wh: Size) -> Floats:
    """Return the cells of one stride, row by row: float32 (cells, 3), column, row, stride."""
    columns, rows = size_wh[0] // stride, size_wh[1] // stride
    y, x = np.mgrid[:rows, :columns]
    grid = np.stack([x, y, np.full_like(x, stride)], axis=-1)
    return grid.reshape(-1, 3).astype(np.float32)


def _scored(head: Floats, score_threshold: float) -> Candidates:
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # infinity is reported only above the threshold
        scores = head[:, 4] * head[:, 5:].max(axis=1)
    anchors = above(scores, score_threshold)
    candidates = head[anchors]
    check_finite(candidates)
    boxes, class_ids = xywh_to_xyxy(candidates[:, :4]), candidates[:, 5:].argmax(axis=1)
    return Candidates(boxes, scores[anchors], class_ids)


def damo_yolo(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read the scores, float (anchors, classes), then the boxes, float (anchors, 4), xyxy, pixels.

    The outputs come in this order, or in any order if the number of classes is not 4. Every class of an anchor
    that scores above the threshold gives a candidate.

    Source: DAMO-YOLO 0.3, `damo/utils/boxes.py` multiclass_nms.
    """
    arrays = list(outputs.values())
    if len(arrays) != 2:
        raise OutputError(f"expected 2 outputs, scores and boxes, got {len(arrays)}")
    if arrays[0].shape[-1:] == (4,) != arrays[1].shape[-1:]:
        arrays.reverse()
    scores = first({"scores": arrays[0]}, "anchors", "classes")
    boxes = first({"boxes": arrays[1]}, len(scores), 4)
    flat = above(scores.ravel(), score_threshold)
    anchors, class_ids = np.divmod(flat, scores.shape[1])
    check_finite(boxes[anchors], scores[anchors, class_ids])
    return Candidates(boxes[anchors], scores[anchors, class_ids], class_ids)


class Table:
    """Decoder of one output, float (detections, columns), a row for each detection.

    Args:
        columns: Names of the columns in their order; see `quadriga.tasks.decoders.is_table`.
    """

    def __init__(self, columns: str) -> None:
        self._slices: dict[str, slice] = {}
        self._width = 0
        for name in columns.split(", "):
            start, self._width = self._width, self._width + COLUMNS[name]
            self._slices[name] = slice(start, self._width)
        (self._box,) = (name for name in self._slices if COLUMNS[name] == 4)

    def __call__(self, outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
        """Read the rows of the first image, whose overlaps the graph has suppressed."""
        array = next(iter(outputs.values()))
        while array.ndim > 2 and len(array) == 1:
            array = array[0]
        rows = first({"table": array}, "detections", self._width)
        if "image" in self._slices:
            rows = of_first_image(rows, self._column(rows, "image"))
        scores = self._column(rows, "score")
        if "objectness" in self._slices:
            scores = scores * self._column(rows, "objectness")
        classes = self._column(rows, "class") if "class" in self._slices else np.zeros_like(scores)
        return finished(self._boxes(rows, size_wh), scores, classes, score_threshold)

    def _column(self, rows: Floats, name: str) -> Floats:
        return np.asarray(rows[:, self._slices[name].start])

    @np.errstate(over="ignore", invalid="ignore")  # reported only above the threshold
    def _boxes(self, rows: Floats, size_wh: Size) -> Floats:
        boxes = rows[:, self._slices[self._box]]
        if "angle" in self._slices:
            return np.concatenate([boxes, rows[:, self._slices["angle"]]], axis=1)
        if self._box.endswith("yxyx"):
            boxes = boxes[:, [1, 0, 3, 2]]
        if self._box.endswith("xywh"):
            boxes = xywh_to_xyxy(boxes)
        return fractions_to_pixels(boxes, size_wh) if NORMALIZED in self._box else boxes


def labelled_boxes(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `boxes`, float (detections, 4), xyxy, pixels, `labels`, int, and `scores`, float.

    RT-DETR, D-FINE and DEIM as their authors export them, with the size of the network's input as a second
    input; and torchvision's detectors, without batch axis, whose labels count from 1. Three outputs of other
    names come in this order.

    Source: RT-DETR, `rtdetrv2_pytorch/tools/export_onnx.py`; torchvision 0.28, `models/detection`.
    """
    if not {"boxes", "labels", "scores"} <= outputs.keys() and len(outputs) == 3:
        outputs = dict(zip(("boxes", "labels", "scores"), outputs.values(), strict=True))
    boxes = named(outputs, "boxes", "detections", 4)
    labels = named(outputs, "labels", len(boxes))
    scores = named(outputs, "scores", len(boxes))
    return finished(boxes, scores, labels, score_threshold)


def efficient_nms(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `num_dets`, `det_boxes` (xyxy, pixels), `det_scores` and `det_classes` of EfficientNMS, or names like these.

    MMYOLO and YOLO-World write `num_dets`, `boxes`, `scores`, `labels`; YOLO-NAS `num_predictions`, `pred_boxes`,
    `pred_scores`, `pred_classes`.

    Source: TensorRT, `plugin/efficientNMSPlugin/README.md`; MMYOLO 0.6, `projects/easydeploy`; super-gradients 3.7,
    `documentation/source/models_export.md`.
    """
    boxes = named(outputs, "det_boxes|boxes|pred_boxes|detection_boxes", "detections", 4)
    scores = named(outputs, "det_scores|scores|pred_scores|detection_scores", len(boxes))
    classes = "det_classes|labels|classes|pred_classes|detection_classes"
    class_ids = named(outputs, classes, len(boxes))
    count = _count(outputs, "num_dets|num_predictions|num_detections", len(boxes))
    return finished(boxes[:count], scores[:count], class_ids[:count], score_threshold)


def tensorflow(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read the outputs of TensorFlow's Object Detection API.

    `detection_boxes`, float (detections, 4), are top, left, bottom, right as fractions of the input;
    `detection_scores`, `detection_classes`, which count from 1, and `num_detections` go with them.

    Source: TensorFlow models, `research/object_detection/exporter_lib_v2.py`.
    """
    boxes = named(outputs, "detection_boxes", "detections", 4)
    scores = named(outputs, "detection_scores", len(boxes))
    class_ids = named(outputs, "detection_classes", len(boxes))
    count = _count(outputs, "num_detections", len(boxes))
    boxes = fractions_to_pixels(boxes[:count, [1, 0, 3, 2]], size_wh)
    return finished(boxes, scores[:count], class_ids[:count], score_threshold)


def _count(outputs: Outputs, name: str, row_count: int) -> int:
    """Read how many rows are filled; all of them if the graph lacks that output."""
    name = next((known for known in outputs if plain_name(known) in name.split("|")), "")
    if not name:
        return row_count
    array = outputs[name]
    if array.size != 1:
        raise OutputError(f"expected output {name!r} to hold one number, got {array.shape}")
    count = float(array.reshape(()))
    if not 0 <= count <= row_count:
        raise OutputError(f"expected output {name!r} to be from 0 to {row_count}, got {count:g}")
    return int(count)


def mmdeploy(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `dets`, float (detections, 5): left, top, right, bottom, score, and `labels`, int.

    Source: MMDeploy 1.3, `docs/en/04-supported-codebases/mmdet.md`.
    """
    rows = named(outputs, "dets", "detections", 5)
    labels = named(outputs, "labels", len(rows))
    return finished(rows[:, :4], rows[:, 4], labels, score_threshold)


def mmdeploy_rotated(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `dets`, float (detections, 6): rotated box, pixels and radians, score, and `labels`, int.

    Suppression follows, as in MMRotate. Most graphs have done it already, at a lower overlap; then it drops
    no further box.

    Source: MMDeploy 1.3, `docs/en/04-supported-codebases/mmrotate.md`.
    """
    rows = named(outputs, "dets", "detections", 6)
    labels = named(outputs, "labels", len(rows))
    candidates = finished(rows[:, :5], rows[:, 5], labels, score_threshold)
    return msgspec.structs.replace(candidates, suppress=True)


def first(outputs: Outputs, *shape: str | int) -> Floats:
    """Read the first output, whatever its name, as float32 of a shape.

    In the shape, a number is a length; a text names an axis of any length, and a sum such as `4 + classes` of
    at least 4 and one class.

    Raises:
        OutputError: The output has another shape.
    """
    return _shaped(next(iter(outputs.values())), "output 0", shape)


def plain_name(name: str) -> str:
    """Return the name of an output without the marks of TensorFlow and super-gradients: `scores:0`, `graph2_scores`."""
    return name.removeprefix("graph2_").removesuffix(":0")


def named(outputs: Outputs, name: str, *shape: str | int) -> Floats:
    """Read an output by its name, one of several divided by `|`; see `first` for the shape."""
    matching = [known for known in outputs if plain_name(known) in name.split("|")]
    if not matching:
        raise OutputError(
            f"output not found: {name!r}, the graph has {', '.join(map(repr, outputs))}"
        )
    return _shaped(outputs[matching[0]], f"output {matching[0]!r}", shape)


def _shaped(array: npt.NDArray[Any], subject: str, shape: tuple[str | int, ...]) -> Floats:
    fits = array.ndim == len(shape) and all(
        length == axis if isinstance(axis, int) else length >= _min_length(axis)
        for length, axis in zip(array.shape, shape, strict=True)
    )
    if not fits:
        axes = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        raise OutputError(f"expected {subject} to have the shape ({axes}), got {array.shape}")
    # class numbers are exact up to 2 ** 24
    return array.astype(np.float32, copy=False)


def _min_length(axis: str) -> int:
    """Return the minimum length of a named axis: the numbers of a sum such as `4 + classes`, and one class."""
    terms = axis.split(" + ")
    return sum(int(term) if term.isdecimal() else term == "classes" for term in terms)


def above(scores: Floats, score_threshold: float) -> npt.NDArray[np.int64]:
    """Return the indices of scores above the threshold, and of NaN, which is reported later."""
    return np.flatnonzero(~(scores <= score_threshold))


def of_first_image(rows: Floats, images: Floats) -> Floats:
    """Keep the rows of the first image that has any: `images`, float32 (N,), numbers them, and a negative one ends them.

    It is image 0 of a run of several, or the image itself where its rows were cut out of a batch.
    """
    check_finite(images)
    ends = np.flatnonzero(images < 0)
    images = images[: ends[0]] if len(ends) else images
    return np.asarray(rows[: len(images)][images == images.min(initial=np.inf)])


@np.errstate(over="ignore", invalid="ignore")
def fractions_to_pixels(boxes: Floats, size_wh: Size) -> Floats:
    """Turn fractions of the network's input, float32 (N, 4), into its pixels; NaN stays NaN."""
    return boxes * np.array([*size_wh, *size_wh], np.float32)


@np.errstate(over="ignore", invalid="ignore")
def centred_to_pixels(boxes: Floats, size_wh: Size) -> Floats:
    """Turn xywh boxes, as fractions of the network's input, into xyxy in its pixels."""
    return fractions_to_pixels(xywh_to_xyxy(boxes), size_wh)


def finished(
    boxes: Floats, scores: Floats, class_ids: Floats, score_threshold: float
) -> Candidates:
    """Select boxes above the threshold, from a network that has suppressed overlaps itself.

    Args:
        boxes: float32 (N, 4), xyxy, or (N, 5), xywhr, pixels of the network's input.
        scores: float32 (N,).
        class_ids: float32 (N,), whole numbers.
        score_threshold: Minimum score, 0 to 1; boxes above it must be finite.
    """
    rows = above(scores, score_threshold)
    boxes, scores, class_ids = boxes[rows], scores[rows], class_ids[rows]
    check_finite(boxes, scores, class_ids)
    return Candidates(boxes, scores, class_numbers(class_ids), suppress=False)


def class_numbers(class_ids: Floats) -> npt.NDArray[np.int64]:
    """Return class ids, float32 (N,), as whole numbers.

    Raises:
        OutputError: One is no whole number, such as a score in the place of a class.
    """
    numbers = class_ids.astype(np.int64)
    if (broken := np.flatnonzero(numbers != class_ids)).size:
        raise OutputError(f"expected class numbers, got {class_ids[broken[0]]:.5g}")
    return numbers
