"""The rule that finds the families of a model by the shapes of its outputs, the best fit first."""

from collections.abc import Mapping

from quadriga.engine.recognition.evidence import Evidence, channels_axis, image_sides
from quadriga.engine.recognition.families import FamilyMatch
from quadriga.engine.recognition.outputs import FLOATS, main_outputs
from quadriga.proto.messages import TensorInfo

_CLASS_MAPS = ("class-map", "ultralytics-semantic")
_TABLES: Mapping[int, tuple[str, ...]] = {
    6: (
        *("ultralytics-end2end", "ultralytics-rtdetr", "ultralytics-rtdetr-raw"),
        *("box, class, score", "class, score, box"),
    ),
    7: (
        *("yolov7-end2end", "yolo-nas-flat", "ultralytics-obb-end2end", "ultralytics-rtdetr-raw"),
        *("image, yxyx, score, class", "image, class, score, normalized box"),
        *("box, objectness, score, class", "xywh, angle, score, class"),
    ),
}
"""Families and orders of columns that exporters write, by the number of columns of a table of detections."""
_ROWS_OF_ANCHORS = ("yolox", "yolox-decoded", "yolov5", "ultralytics-transposed")
"""Families of heads with a row for each anchor; the last has no objectness."""
_MAX_ROWS = 1000
"""Maximum detections of a table; heads with as few anchors are told by the size of the image."""


def by_shapes(evidence: Evidence, names: int | None = 0) -> FamilyMatch | None:
    """Match all families that could have an image model's output shapes.

    Heads that the size of the image does not tell are those of as many classes as `names`, None for any number: a weaker
    sign, which something else has to confirm.
    """
    image, (first, *_) = evidence.image_input(), main_outputs(evidence) or (None,)
    prototypes = _prototypes(evidence, may_be_open=names != 0)
    if prototypes is not None:
        first = next(tensor for tensor in evidence.outputs if tensor is not prototypes)
    if image is None or first is None:
        return None
    shape, rank, is_float = first.shape, len(first.shape), first.datatype in FLOATS
    families: tuple[str, ...] = ()
    if is_float and (rank == 2 or (rank == 4 and (1, 1) in (shape[1:3], shape[2:]))):
        families = _candidates_of_rows(evidence, image, first)
    elif rank == 3 and is_float:
        families = (
            _heads_with_masks(image, first) if prototypes else _heads_or_tables(image, first, names)
        )
    elif rank == 4 and shape[:2] == (1, 1) and shape[3] == 7:
        families = ("ssd",)
    elif rank == 3 or (rank == 4 and shape[1 if evidence.maps_layout()[0] == "nchw" else 3] == 1):
        families = _candidates_of_one_map(evidence, image) if is_float else _CLASS_MAPS
    elif rank == 4 and is_float:
        families = ("torchvision-semantic", "unet", "segformer")
    reason = f"shape of output {first.name!r}: {list(shape)}"
    return FamilyMatch(families, reason) if families else None


def _candidates_of_rows(
    evidence: Evidence, image: TensorInfo, first: TensorInfo
) -> tuple[str, ...]:
    """Return the classifiers whose rows are images, and the tables whose rows are detections."""
    producer = evidence.producers.get(first.name, "")
    height, width = image_sides(image)
    is_small = 0 < min(height, width) < _SMALLEST_OF_IMAGENET
    families = ["torchvision-classifier", "plain-classifier", "timm"]
    if is_small or channels_axis(image) == -1:
        families = ["plain-classifier", "torchvision-classifier", "timm"]
    # exports of Ultralytics end in a softmax
    families.insert(0 if producer == "Softmax" and not is_small else 3, "ultralytics-cls")
    tables = _TABLES.get(first.shape[1], ()) if len(first.shape) == 2 else ()
    batch = evidence.batch
    if producer in _CLASSIFIER_ENDS or first.shape[0] == batch > 0:
        tables = ()
    if batch > 0 < first.shape[0] != batch or (height > 0 and width < 0):  # rows are no images
        return tables
    return (*tables, *families) if producer == "Concat" or batch > 0 else (*families, *tables)


_SMALLEST_OF_IMAGENET = 160
"""Shortest side, in pixels, of images that networks trained on ImageNet take."""
_CLASSIFIER_ENDS = frozenset({"Gemm", "MatMul", "Add", "Softmax", "LogSoftmax", "Sigmoid"})
"""Operators behind the output of a classifier; that of a table of detections is a `Concat`."""


def _candidates_of_one_map(evidence: Evidence, image: TensorInfo) -> tuple[str, ...]:
    """Return the families of one object: U²-Net has side outputs, BiRefNet and IS-Net take 1024 x 1024."""
    plain, salient = ("binary-segmentation", "binary-unet"), ("birefnet", "u2net")
    if len(evidence.outputs) > 1:
        return (*salient[::-1], *plain)
    return (*salient, *plain) if image_sides(image) == (1024, 1024) else (*plain, *salient)


_PROTOTYPES = 32
"""Number of mask prototypes in Ultralytics' and YOLOv5's segmentation."""


def _prototypes(evidence: Evidence, *, may_be_open: bool) -> TensorInfo | None:
    """Find mask prototypes beside a head of boxes, classes and coefficients, in either order."""
    ranks = {len(tensor.shape): tensor for tensor in evidence.outputs}
    if len(evidence.outputs) != 2 or ranks.keys() != {3, 4}:
        return None
    sides = [side for side in ranks[3].shape[1:] if side > 0] or [100 * may_be_open]
    fits = ranks[4].shape[1] == _PROTOTYPES or (may_be_open and ranks[4].shape[1] == -1)
    return ranks[4] if fits and min(sides) > 4 + _PROTOTYPES else None


def _heads_with_masks(image: TensorInfo, first: TensorInfo) -> tuple[str, ...]:
    """Return the family of a head beside prototypes, which are enough evidence, whatever the size."""
    _, rows, columns = first.shape
    single, triple = anchor_counts(image)
    if columns == 6 + _PROTOTYPES and 0 < rows <= _MAX_ROWS and rows not in triple:
        return ("ultralytics-seg-end2end",)
    if rows == columns == -1:
        return ("yolov5-seg", "ultralytics-seg")
    if rows in triple or (not single and (rows == -1 or rows > columns > 0)):
        return ("yolov5-seg",)
    return ("ultralytics-seg",) if columns in (*single, -1) or not single else ()


def _heads_or_tables(image: TensorInfo, first: TensorInfo, names: int | None) -> tuple[str, ...]:
    """Return the families of heads that have a row or a column for each anchor, else those of tables."""
    _, rows, columns = first.shape
    single, triple = anchor_counts(image)
    families: tuple[str, ...] = ()
    if columns in single and rows > 4:  # an angle takes one row more
        families = ("ultralytics", "ultralytics-obb")[: rows - 4]
    if rows in single and columns > 5:
        families = (*families, *_ROWS_OF_ANCHORS)
    if rows in triple and columns > 5:
        families = ("yolov5", *families)
    if families:
        return families
    if names != 0 and rows == columns == -1:
        return ("ultralytics", *_ROWS_OF_ANCHORS)
    is_last = columns <= rows if columns > 0 < rows else rows == -1
    is_open = rows > _MAX_ROWS or (rows == -1 and not single)
    choices: list[tuple[tuple[str, ...], int]] = [(("ultralytics",), rows - 4)]
    if is_last:
        choices = [(_ROWS_OF_ANCHORS[:3], is_open * (columns - 5))]
        choices += [(_ROWS_OF_ANCHORS[3:], (rows > _MAX_ROWS) * (columns - 4))]
    for choice, count in choices if names != 0 else ():
        families += choice if count > 0 and names in (None, count) else ()
    return families or (_TABLES.get(columns, ()) if rows <= _MAX_ROWS else ())


_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))


def anchor_counts(image: TensorInfo) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Count the cells of the strides that detectors have, and three anchors a cell; nothing if the size is open.

    Nor for colours last, as TensorFlow orders them: boxes of a head that was converted through it may be fractions.
    """
    height, width = image_sides(image)
    if min(height, width) <= 0 or channels_axis(image) == -1:
        return (), ()
    counts = [sum((height // s) * (width // s) for s in strides) for strides in _STRIDES]
    return tuple(counts), tuple(3 * count for count in counts)
