"""The rule that finds the families of a model by the shapes of its outputs, the best fit first."""

from quadriga.engine.recognition.evidence import Evidence, channels_axis, image_sides
from quadriga.engine.recognition.families import FamilyMatch
from quadriga.proto.messages import TensorInfo

FLOATS = ("FP32", "FP16", "FP64")
_CLASS_MAPS = ("class-map", "ultralytics-semantic")


def by_shapes(evidence: Evidence) -> FamilyMatch | None:
    """Match all families that could have an image model's output shapes."""
    image = evidence.image_input()
    if image is None:
        return None
    first = evidence.outputs[0]
    prototypes = _prototypes(evidence)
    if prototypes is not None:
        first = next(tensor for tensor in evidence.outputs if tensor is not prototypes)
        if prototypes.shape[1] != _PROTOTYPES:
            return FamilyMatch((), f"Ultralytics segmentation through TensorFlow: {_TENSORFLOW}")
    shape, rank = first.shape, len(first.shape)
    families: tuple[str, ...] = ()
    if rank == 2 and first.datatype in FLOATS and len(evidence.outputs) == 1:
        families = _candidates_of_rank_2(evidence, image, first)
    elif rank == 3 and first.datatype not in FLOATS:
        families = _CLASS_MAPS
    elif rank == 3 and first.datatype in FLOATS:
        families = _candidates_of_rank_3(evidence, image, first)
    elif rank == 4 and shape[:2] == (1, 1) and shape[3] == 7:
        families = ("ssd",)
    elif rank == 4 and shape[1 if evidence.maps_layout()[0] == "nchw" else 3] == 1:
        is_map = first.datatype not in FLOATS
        families = _CLASS_MAPS if is_map else _candidates_of_one_map(evidence, image)
    elif rank == 4 and first.datatype in FLOATS:
        families = ("torchvision-semantic", "unet", "segformer")
    if not families:
        return None
    tensors_first = (
        rank == 2 and families[0] != "yolov7-end2end" and _rows_are_no_images(image, first)
    )
    return FamilyMatch(families, f"shape of output {first.name!r}: {list(shape)}", tensors_first)


def _candidates_of_rank_2(
    evidence: Evidence, image: TensorInfo, first: TensorInfo
) -> tuple[str, ...]:
    """Return the classifiers, and the one family of detectors whose output is a table."""
    producer = evidence.producers.get(first.name, "")
    height, width = image_sides(image)
    is_small = 0 < min(height, width) < _SMALLEST_OF_IMAGENET
    families = ["torchvision-classifier", "plain-classifier", "timm"]
    if is_small or channels_axis(image) == -1:
        families = ["plain-classifier", "torchvision-classifier", "timm"]
    # exports of Ultralytics end in a softmax
    families.insert(0 if producer == "Softmax" and not is_small else 3, "ultralytics-cls")
    if first.shape == (-1, 7) and producer not in _CLASSIFIER_ENDS:
        families.insert(0 if producer == "Concat" else 4, "yolov7-end2end")
    return tuple(families)


_SMALLEST_OF_IMAGENET = 160
"""Shortest side, in pixels, of images that networks trained on ImageNet take."""
_CLASSIFIER_ENDS = frozenset({"Gemm", "MatMul", "Add", "Softmax", "LogSoftmax", "Sigmoid"})
"""Operators behind the output of a classifier; that of YOLOv7 with NMS is a `Concat`."""


def _rows_are_no_images(image: TensorInfo, first: TensorInfo) -> bool:
    """Check whether the rows of an output can hardly be the images: as of a reader of text, whose rows are steps."""
    batch = image.shape[0] if len(image.shape) == 4 else 1
    height, width = image_sides(image)
    return (batch > 0 and first.shape[0] != batch) or (height > 0 and width < 0)


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


def _candidates_of_rank_3(
    evidence: Evidence, image: TensorInfo, first: TensorInfo
) -> tuple[str, ...]:
    _, rows, columns = first.shape
    anchors = _anchors(image)
    has_masks = _prototypes(evidence) is not None
    if 0 < rows <= 1000 and columns in (6, 7, 38):
        return {
            6: ("ultralytics-end2end", "ultralytics-rtdetr"),
            7: ("ultralytics-obb-end2end",),
            38: ("ultralytics-seg-end2end",) if has_masks else (),
        }[columns]
    all_columns = columns in (anchors, -1) or (not anchors and rows < columns)
    if has_masks and rows > 4 + _PROTOTYPES and all_columns:
        return ("ultralytics-seg",)  # prototypes are enough evidence, whatever the size
    if columns == anchors and 4 < rows < columns:
        if len(evidence.outputs) == 2 and len(evidence.outputs[1].shape) == 4:
            return ()
        return ("ultralytics", "ultralytics-obb") if rows > 5 else ("ultralytics",)
    if rows == anchors and 5 < columns < rows:
        return ("yolox", "yolox-decoded", "yolov5")
    return ("yolov5",) if anchors and rows == 3 * anchors and 5 < columns < rows else ()


def _anchors(image: TensorInfo) -> int:
    """Count the cells of strides 8, 16 and 32; 0 if the size is open."""
    height, width = image_sides(image)
    if min(height, width) <= 0:
        return 0
    return sum((height // stride) * (width // stride) for stride in (8, 16, 32))
