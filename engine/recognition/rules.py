"""Rules that find the family of a model: one per kind of evidence, the surest first.

A rule returns every family that fits, with its reason; the first rule with a match decides. More than one
family means that the files leave it open, and a person must choose.
"""

from collections.abc import Callable, Mapping

from quadriga.engine.recognition.evidence import Evidence
from quadriga.engine.recognition.families import FAMILIES, FamilyMatch
from quadriga.engine.recognition.labels import parse_labels
from quadriga.engine.recognition.outputs import FLOATS, class_count
from quadriga.engine.recognition.shape_rules import anchor_counts, by_shapes
from quadriga.proto.messages import TensorInfo
from quadriga.tasks.decoders.reading import plain_name


def match_families(evidence: Evidence) -> FamilyMatch | None:
    """Return the match of the first rule that recognises anything; None if no rule does."""
    matches = (rule(evidence) for rule in _RULES)
    return next((match for match in matches if match is not None), None)


_LIBREYOLO = "libreyolo_version"
"""Metadata beside the keys of Ultralytics for networks of many other families."""


def _by_ultralytics(evidence: Evidence) -> FamilyMatch | None:
    """Match metadata of Ultralytics by its task, and by shapes whether NMS is in the graph."""
    metadata, first = evidence.metadata, evidence.outputs[0]
    task = metadata.get("task")
    if task is None or "names" not in metadata or _LIBREYOLO in metadata:
        return None
    width = first.shape[-1] if len(first.shape) == 3 else -1
    family = {
        "detect": "ultralytics-end2end" if width == 6 else "ultralytics",
        "segment": "ultralytics-seg-end2end" if width == 38 else "ultralytics-seg",
        "obb": "ultralytics-obb-end2end" if width == 7 else "ultralytics-obb",
        "classify": "ultralytics-cls",
        "semantic": "ultralytics-semantic",
    }.get(task)
    image, has_classes_last = evidence.image_input(), _has_classes_last(first, metadata)
    if metadata.get("head") == "RTDETRDecoder":
        family = "ultralytics-rtdetr" if width == 6 else "ultralytics-rtdetr-raw"
    elif task == "detect" and has_classes_last:
        is_head = image is not None and first.shape[1] in anchor_counts(image)[0]
        # two classes make six columns, as NMS in the graph does; before 8.4 metadata names no head
        is_rtdetr = width != 6 or "rtdetr" in metadata.get("description", "").lower()
        if is_head:
            family = "ultralytics-transposed"
        elif is_rtdetr and "head" not in metadata:
            family = "ultralytics-rtdetr-raw"
    if family is None and "stride" not in metadata:
        return None
    return FamilyMatch((family,) if family else (), f"ONNX metadata of Ultralytics, task {task}")


_OF_YOLOV5 = {
    **{name: name for name in ("yolov5", "yolov5-seg", "ultralytics", "ultralytics-seg")},
    "ultralytics-transposed": "ultralytics-transposed",
    "ultralytics-cls": "yolov5-cls",
}
"""Families of shapes to those that the repositories of YOLOv5 and YOLOv9 export, with the same metadata for all."""


def _by_yolov5(evidence: Evidence) -> FamilyMatch | None:
    """Match metadata of YOLOv5, of which the shapes say the rest; of open size the number of names does."""
    metadata = evidence.metadata
    if metadata.keys() & {"names", "stride", "task", _LIBREYOLO} != {"names", "stride"}:
        return None
    count = len(parse_labels(metadata["names"]) or ())
    match = by_shapes(evidence, count)
    families = [_OF_YOLOV5[name] for name in match.families if name in _OF_YOLOV5] if match else []
    families = [name for name in families if class_count(FAMILIES[name], evidence) in (None, count)]
    reason = "ONNX metadata of YOLOv5 and YOLOv9, stride and names, and the shape of the output"
    return FamilyMatch(tuple(families), reason) if families else None


def _has_classes_last(output: TensorInfo, metadata: Mapping[str, str]) -> bool:
    """Check whether classes are on the last axis, as in RT-DETR and transposed heads."""
    columns = 4 + len(parse_labels(metadata["names"]) or ())
    return len(output.shape) == 3 and output.shape[2] == columns != output.shape[1]


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
    if config.get("problem_type") == "regression":
        return FamilyMatch((), "config.json, problem_type regression")
    architectures = config.get("architectures")
    for architecture in architectures if isinstance(architectures, list) else ():
        for purpose, families in _ARCHITECTURES.items():
            if purpose in str(architecture):
                is_mask2former = kind == "mask2former" and "maskformer" in families
                choices = _MASK2FORMER if is_mask2former else families
                return FamilyMatch(choices, f"config.json, architecture {architecture}")
    return None


_COUNTS = frozenset({"num_dets", "num_predictions", "num_detections"})
_NMS_NAMES = (
    *({"det_boxes", "det_scores", "det_classes"}, {"boxes", "scores", "labels"}),
    *({"boxes", "scores", "classes"}, {"pred_boxes", "pred_scores", "pred_classes"}),
)
"""Names of the outputs beside a count of the rows that are filled: of EfficientNMS, MMYOLO, and YOLO-NAS."""


def _by_names(evidence: Evidence) -> FamilyMatch | None:
    """Match names of inputs and outputs that only one family uses."""
    outputs = {plain_name(tensor.name): tensor for tensor in evidence.outputs}
    names = outputs.keys()
    families: tuple[str, ...] = ()
    if {"pred_boxes", "logits"} <= names:
        families = ("detr", "detr-sigmoid", "detr-sigmoid-100")
    elif {"class_queries_logits", "masks_queries_logits"} <= names:
        families = ("maskformer", "maskformer-instance", "mask2former", "mask2former-instance")
    elif {"detection_boxes", "detection_scores", "detection_classes"} <= names:
        # TensorRT's have the same names, and whole numbers
        is_tensorflow = outputs["detection_classes"].datatype in FLOATS
        families = ("tf-od",) if is_tensorflow else ("efficient-nms", "tf-od")
    elif _COUNTS & names and any(beside <= names for beside in _NMS_NAMES):
        families = ("efficient-nms",)
    elif {"labels", "boxes", "scores"} <= names:
        families = _labelled_boxes(evidence, outputs)
    elif {"dets", "labels"} <= names:
        families = _dets_and_labels(outputs)
    elif names == {"flat_predictions"} and outputs["flat_predictions"].shape[-1] == 7:
        families = ("yolo-nas-flat",)
    reason = f"names of the outputs: {', '.join(sorted(names))}"
    return FamilyMatch(families, reason) if families else None


def _labelled_boxes(evidence: Evidence, outputs: Mapping[str, TensorInfo]) -> tuple[str, ...]:
    if any(tensor.name == "orig_target_sizes" for tensor in evidence.inputs):
        return ("rtdetr",)
    if len(outputs["boxes"].shape) == 2:  # torchvision has no batch axis
        return ("mask-rcnn",) if "masks" in outputs else ("torchvision",)
    return () if "masks" in outputs else ("labelled_boxes",)


def _dets_and_labels(outputs: Mapping[str, TensorInfo]) -> tuple[str, ...]:
    if outputs["labels"].datatype in FLOATS and len(outputs["labels"].shape) == 3:
        return ("rf-detr-seg",) if "masks" in outputs else ("rf-detr",)
    if "masks" in outputs:
        return ("mmdeploy-seg",)
    return {6: ("mmdeploy-rotated",), 5: ("mmdeploy",)}.get(outputs["dets"].shape[-1], ())


_RULES: tuple[Callable[[Evidence], FamilyMatch | None], ...]
_RULES = (_by_ultralytics, _by_yolov5, _by_config, _by_names, by_shapes)
