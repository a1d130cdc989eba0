"""Rules that find the family of a model: one per kind of evidence, the surest first.

A rule returns every family that fits, with its reason; the first rule with a match decides. More than one
family means that the files leave it open, and a person must choose.
"""

from collections.abc import Callable, Mapping

import msgspec

from quadriga.engine.recognition.evidence import Evidence, channels_axis
from quadriga.engine.recognition.labels import parse_labels
from quadriga.proto.messages import TensorInfo

FLOATS = ("FP32", "FP16", "FP64")


class FamilyMatch(msgspec.Struct, frozen=True):
    """Families that fit what a rule examined, and the reason."""

    families: tuple[str, ...]
    reason: str


def match_families(evidence: Evidence) -> FamilyMatch | None:
    """Return the match of the first rule that recognises anything; None if no rule does."""
    matches = (rule(evidence) for rule in _RULES)
    return next((match for match in matches if match is not None), None)


def _by_ultralytics(evidence: Evidence) -> FamilyMatch | None:
    """Match metadata of Ultralytics by its task, and by shapes whether NMS is in the graph."""
    metadata, first = evidence.metadata, evidence.outputs[0]
    if "names" in metadata and "stride" in metadata and "task" not in metadata:
        return FamilyMatch(("yolov5",), "ONNX metadata of YOLOv5: stride and names")
    task = metadata.get("task")
    if task is None or "names" not in metadata:
        return None
    width = first.shape[-1] if len(first.shape) == 3 else -1
    family = {
        "detect": "ultralytics-end2end" if width == 6 else "ultralytics",
        "segment": "ultralytics-seg-end2end" if width == 38 else "ultralytics-seg",
        "obb": "ultralytics-obb-end2end" if width == 7 else "ultralytics-obb",
        "classify": "ultralytics-cls",
        "semantic": "ultralytics-semantic",
    }.get(task)
    if metadata.get("head") == "RTDETRDecoder":
        family = "ultralytics-rtdetr" if width == 6 else "ultralytics-rtdetr-raw"
    elif task == "detect" and "head" not in metadata and _is_older_rtdetr(first, metadata):
        family = "ultralytics-rtdetr-raw"
    if family is None and "stride" not in metadata:
        return None
    return FamilyMatch((family,) if family else (), f"ONNX metadata of Ultralytics, task {task}")


def _is_older_rtdetr(output: TensorInfo, metadata: Mapping[str, str]) -> bool:
    """Check whether classes are on the last axis, as in RT-DETR; before 8.4 metadata names no head.

    Two classes make six columns, as NMS in the graph does; then the description decides.
    """
    columns = 4 + len(parse_labels(metadata["names"]) or ())
    if len(output.shape) != 3 or output.shape[2] != columns or output.shape[1] == columns:
        return False
    return columns != 6 or "rtdetr" in metadata.get("description", "").lower()


_ARCHITECTURES = {
    "ForImageClassification": ("hf-classifier",),
    "ForSemanticSegmentation": ("segformer",),
    # one architecture serves both, and the files leave it open
    "ForInstanceSegmentation": ("maskformer", "maskformer-instance"),
    "ForUniversalSegmentation": ("maskformer", "maskformer-instance"),
}
_MASK2FORMER = ("mask2former", "mask2former-instance")
_DETECTORS = {
    **dict.fromkeys(("detr", "yolos", "table-transformer"), "detr"),
    **dict.fromkeys(("rt_detr", "rt_detr_v2", "d_fine"), "detr-sigmoid"),
    **dict.fromkeys(("conditional_detr", "deformable_detr", "deta"), "detr-sigmoid-100"),
}
"""Families of detectors by `model_type`."""


def _by_config(evidence: Evidence) -> FamilyMatch | None:
    """Match config.json of Hugging Face or timm."""
    config = evidence.config
    if "pretrained_cfg" in config:
        return FamilyMatch(("timm",), "config.json of timm")
    kind = str(config.get("model_type", ""))
    if kind in _DETECTORS:
        return FamilyMatch((_DETECTORS[kind],), f"config.json, model_type {kind}")
    architectures = config.get("architectures")
    for architecture in architectures if isinstance(architectures, list) else ():
        for ending, families in _ARCHITECTURES.items():
            if str(architecture).endswith(ending):
                is_mask2former = kind == "mask2former" and "maskformer" in families
                choices = _MASK2FORMER if is_mask2former else families
                return FamilyMatch(choices, f"config.json, architecture {architecture}")
    return None


def _by_names(evidence: Evidence) -> FamilyMatch | None:
    """Match names of inputs and outputs that only one family uses."""
    names = {tensor.name for tensor in evidence.outputs}
    families: tuple[str, ...] = ()
    if {"pred_boxes", "logits"} <= names:
        families = ("detr", "detr-sigmoid", "detr-sigmoid-100")
    elif {"class_queries_logits", "masks_queries_logits"} <= names:
        families = ("maskformer", "maskformer-instance", "mask2former", "mask2former-instance")
    elif {"detection_boxes", "detection_scores", "detection_classes"} <= names:
        families = ("tf-od",)
    elif {"num_dets", "det_boxes", "det_scores", "det_classes"} <= names:
        families = ("efficient-nms",)
    elif {"labels", "boxes", "scores"} <= names:
        families = ("mask-rcnn",) if "masks" in names else ("torchvision",)
        if any(tensor.name == "orig_target_sizes" for tensor in evidence.inputs):
            families = ("rtdetr",)
    elif {"dets", "labels"} <= names:
        families = _dets_and_labels(evidence)
    reason = f"names of the outputs: {', '.join(sorted(names))}"
    return FamilyMatch(families, reason) if families else None


def _dets_and_labels(evidence: Evidence) -> tuple[str, ...]:
    outputs = {tensor.name: tensor for tensor in evidence.outputs}
    if outputs["labels"].datatype in FLOATS and len(outputs["labels"].shape) == 3:
        return ("rf-detr-seg",) if "masks" in outputs else ("rf-detr",)
    if "masks" in outputs:
        return ("mmdeploy-seg",)
    return ("mmdeploy-rotated",) if outputs["dets"].shape[-1] == 6 else ("mmdeploy",)


def _by_shapes(evidence: Evidence) -> FamilyMatch | None:
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
        families = ("yolov7-end2end",) if shape[1] == 7 and shape[0] == -1 else ()
        families += ("torchvision-classifier", "plain-classifier", "timm", "ultralytics-cls")
    elif rank == 3 and first.datatype not in FLOATS:
        families = ("class-map", "ultralytics-semantic")
    elif rank == 3 and first.datatype in FLOATS:
        families = _candidates_of_rank_3(evidence, image, first)
    elif rank == 4 and shape[:2] == (1, 1) and shape[3] == 7:
        families = ("ssd",)
    elif rank == 4 and shape[1] == 1:
        families = ("birefnet", "u2net")
    elif rank == 4 and first.datatype in FLOATS:
        families = ("torchvision-semantic", "unet", "segformer")
    return (
        FamilyMatch(families, f"shape of output {first.name!r}: {list(shape)}")
        if families
        else None
    )


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
    sides = image.shape[-2:] if channels_axis(image) == -3 else image.shape[-3:-1]
    if min(sides) <= 0:
        return 0
    return sum((sides[0] // stride) * (sides[1] // stride) for stride in (8, 16, 32))


_RULES: tuple[Callable[[Evidence], FamilyMatch | None], ...]
_RULES = (_by_ultralytics, _by_config, _by_names, _by_shapes)
