"""Rules that find the family of a model: one per kind of evidence, the surest first.

A rule returns every family that fits, with its reason; the first rule with a match decides. More than one
family means that the files leave it open, and a person must choose.
"""

from collections.abc import Callable, Mapping

from quadriga.engine.recognition.evidence import Evidence
from quadriga.engine.recognition.families import FamilyMatch
from quadriga.engine.recognition.labels import parse_labels
from quadriga.engine.recognition.shape_rules import FLOATS, by_shapes
from quadriga.proto.messages import TensorInfo


def match_families(evidence: Evidence) -> FamilyMatch | None:
    """Return the match of the first rule that recognises anything; None if no rule does."""
    matches = (rule(evidence) for rule in _RULES)
    return next((match for match in matches if match is not None), None)


def by_label_count(evidence: Evidence, count: int | None) -> dict[str, int]:
    """Return the detectors whose output has as many columns as their boxes and `count` classes need, with that number.

    None stands for any number. It is a weaker sign than those of the rules, as no number of anchors is known: a person has
    to confirm it.
    """
    shape = evidence.outputs[0].shape
    is_head = len(evidence.outputs) == 1 and evidence.outputs[0].datatype in FLOATS
    if not is_head or len(shape) != 3 or evidence.image_input() is None:
        return {}
    _, rows, columns = shape
    if 0 < rows - 4 == (rows - 4 if count is None else count) and (columns > rows or columns == -1):
        return {"ultralytics": rows - 4}
    if 0 < columns - 5 == (columns - 5 if count is None else count) and (
        rows > columns or rows == -1
    ):
        return dict.fromkeys(("yolov5", "yolox", "yolox-decoded"), columns - 5)
    return {}


def _by_ultralytics(evidence: Evidence) -> FamilyMatch | None:
    """Match metadata of Ultralytics by its task, and by shapes whether NMS is in the graph."""
    metadata, first = evidence.metadata, evidence.outputs[0]
    if "libreyolo_version" in metadata:  # the same keys for networks of many other families
        return None
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


_RULES: tuple[Callable[[Evidence], FamilyMatch | None], ...]
_RULES = (_by_ultralytics, _by_config, _by_names, by_shapes)
