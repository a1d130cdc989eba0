"""The rule that finds the families of a model by the shapes of its outputs, the best fit first."""

from collections.abc import Mapping

from quadriga.engine.recognition.evidence import Evidence, channels_axis, image_sides
from quadriga.engine.recognition.families import FamilyMatch
from quadriga.engine.recognition.outputs import FLOATS, main_output
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
_MAX_ROWS = 1000
"""Maximum detections of a table; heads with as few anchors are told by the size of the image."""


def by_shapes(evidence: Evidence) -> FamilyMatch | None:
    """Match all families that could have an image model's output shapes."""
    image = evidence.image_input()
    if image is None:
        return None
    first, prototypes = main_output(evidence), _prototypes(evidence)
    if prototypes is not None:
        first = next(tensor for tensor in evidence.outputs if tensor is not prototypes)
        if prototypes.shape[1] != _PROTOTYPES:
            return FamilyMatch((), f"Ultralytics segmentation through TensorFlow: {_TENSORFLOW}")
    families = () if first is None else _candidates(evidence, image, first, prototypes is not None)
    if first is None or not families:
        return None
    return FamilyMatch(
        families,
        f"shape of output {first.name!r}: {list(first.shape)}",
        tensors_first="timm" in families and _rows_are_no_images(image, first),
        labels_decide=families == ("ultralytics", "ultralytics-obb"),
    )


def _candidates(
    evidence: Evidence, image: TensorInfo, first: TensorInfo, has_masks: bool
) -> tuple[str, ...]:
    shape, rank, is_float = first.shape, len(first.shape), first.datatype in FLOATS
    if is_float and (rank == 2 or (rank == 4 and (1, 1) in (shape[1:3], shape[2:]))):
        return _candidates_of_rows(evidence, image, first)
    if rank == 3 and is_float and has_masks:
        return _heads_with_masks(image, first)
    if rank == 3 and is_float:
        is_table = shape[1] == -1 or shape[1] <= _MAX_ROWS
        return _heads(image, first) or (_TABLES.get(shape[2], ()) if is_table else ())
    if rank == 4 and shape[:2] == (1, 1) and shape[3] == 7:
        return ("ssd",)
    is_map = rank == 3 or (
        rank == 4 and shape[1 if evidence.maps_layout()[0] == "nchw" else 3] == 1
    )
    if is_map:
        return _candidates_of_one_map(evidence, image) if is_float else _CLASS_MAPS
    return ("torchvision-semantic", "unet", "segformer") if rank == 4 and is_float else ()


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
    if producer in _CLASSIFIER_ENDS or first.shape[0] == _batch(image) > 0:
        tables = ()
    if tables and _rows_are_no_images(image, first):
        return tables
    return (*tables, *families) if producer == "Concat" else (*families, *tables)


_SMALLEST_OF_IMAGENET = 160
"""Shortest side, in pixels, of images that networks trained on ImageNet take."""
_CLASSIFIER_ENDS = frozenset({"Gemm", "MatMul", "Add", "Softmax", "LogSoftmax", "Sigmoid"})
"""Operators behind the output of a classifier; that of a table of detections is a `Concat`."""


def _batch(image: TensorInfo) -> int:
    return image.shape[0] if len(image.shape) == 4 else 1


def _rows_are_no_images(image: TensorInfo, first: TensorInfo) -> bool:
    """Check whether the rows of an output can hardly be the images: as of a reader of text, whose rows are steps."""
    height, width = image_sides(image)
    return first.shape[0] != _batch(image) > 0 or (height > 0 and width < 0)


def _candidates_of_one_map(evidence: Evidence, image: TensorInfo) -> tuple[str, ...]:
    """Return the families of one object: U²-Net has side outputs, BiRefNet and IS-Net take 1024 x 1024."""
    plain, salient = ("binary-segmentation", "binary-unet"), ("birefnet", "u2net")
    if len(evidence.outputs) > 1:
        return (*salient[::-1], *plain)
    return (*salient, *plain) if image_sides(image) == (1024, 1024) else (*plain, *salient)


_PROTOTYPES = 32
"""Number of mask prototypes in Ultralytics' and YOLOv5's segmentation."""
_TENSORFLOW = (
    "its prototypes have their channels last, and its boxes may be pixels or fractions; export with "
    'format="onnx" instead'
)


def _prototypes(evidence: Evidence) -> TensorInfo | None:
    """Find mask prototypes beside a head of boxes, classes and coefficients, in either order."""
    ranks = {len(tensor.shape): tensor for tensor in evidence.outputs}
    if len(evidence.outputs) != 2 or ranks.keys() != {3, 4}:
        return None
    (_, *sides), (_, first, *_, last) = ranks[3].shape, ranks[4].shape
    fixed_sides = [side for side in sides if side > 0]
    fits = bool(fixed_sides) and min(fixed_sides) > 4 + _PROTOTYPES and _PROTOTYPES in (first, last)
    return ranks[4] if fits else None


def _heads_with_masks(image: TensorInfo, first: TensorInfo) -> tuple[str, ...]:
    """Return the family of a head beside prototypes, which are enough evidence, whatever the size."""
    _, rows, columns = first.shape
    one, three = _anchors(image)
    if columns == 6 + _PROTOTYPES and 0 < rows <= _MAX_ROWS and rows not in three:
        return ("ultralytics-seg-end2end",)
    if rows in three or (not one and (rows == -1 or rows > columns > 0)):
        return ("yolov5-seg",)
    return ("ultralytics-seg",) if columns in (*one, -1) or not one else ()


def _heads(image: TensorInfo, first: TensorInfo) -> tuple[str, ...]:
    """Return the families of heads that have a row or a column for each anchor of the image's size."""
    _, rows, columns = first.shape
    one, three = _anchors(image)
    families: tuple[str, ...] = ()
    if columns in one and rows > 4:  # an angle takes one row more
        families = ("ultralytics", "ultralytics-obb")[: rows - 4]
    if rows in one and columns > 5:
        families = (*families, "yolox", "yolox-decoded", "yolov5")
    return (*families, "yolov5") if rows in three and columns > 5 else families


_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))


def _anchors(image: TensorInfo) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Count the cells of the strides that detectors have, and three anchors a cell; nothing if the size is open."""
    height, width = image_sides(image)
    if min(height, width) <= 0:
        return (), ()
    counts = [sum((height // s) * (width // s) for s in strides) for strides in _STRIDES]
    return tuple(counts), tuple(3 * count for count in counts)
