"""Families of models: what all exports of a family have in common, as layers of a specification.

Source: for each family, the inference code of the library that exports it.
"""

from functools import partial
from typing import Any

import msgspec

from quadriga.tasks.segmenters import OF_MAPS

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_RAW = {"scale": 1.0}
_PILLOW = {"antialias": True}
_LETTERBOX = {"resize": "letterbox", "pad_value": 114}
_YOLOX = {"resize": "letterbox_topleft", "color": "bgr", **_RAW}
_STRETCH = {"resize": "stretch"}
_IMAGENET_STRETCH = {**_STRETCH, **IMAGENET}
_PILLOW_STRETCH = {**_STRETCH, **_PILLOW}
_SHORTEST = {"resize": "shortest_crop", **_PILLOW}
_NO_RESIZE = {"resize": "none"}
_PER_PIXEL = {*OF_MAPS, "maskformer_semantic", "mask2former_semantic"}
"""Segmenters that give each pixel a class."""
_PER_PIXEL_DEFAULTS = {"score_threshold": 0.0, "max_detections": 10_000}
"""Defaults that leave no pixel out: most such models have more regions than a detector has objects."""


class Family(msgspec.Struct, frozen=True):
    """What all models of a family have in common."""

    task: str
    description: str
    """Name of the family for people."""
    input: dict[str, Any] = {}
    """Fields of `InputSpec`."""
    output: dict[str, Any] = {}
    """Fields of `OutputSpec`."""
    defaults: dict[str, Any] = {}
    """Fields of `Defaults`."""
    classes: tuple[int, int, int] | None = None
    """Location of the number of classes: output, axis, and entries of that axis that are no classes."""


class FamilyMatch(msgspec.Struct, frozen=True):
    """Families that fit what a rule examined, and the reason."""

    families: tuple[str, ...]
    """Families by how well they fit, the best first."""
    reason: str


def _family(
    task: str,
    description: str,
    decoder: str,
    image: dict[str, Any],
    classes: tuple[int, int, int] | None = None,
    **output: Any,
) -> Family:
    """Make a family whose outputs a decoder reads; `output` has further fields of `OutputSpec`."""
    return Family(task, description, image, output={"decoder": decoder, **output}, classes=classes)


def family_named(name: str) -> Family:
    """Return the family of a name; for a decoder without one, a family that says no more than how outputs are read."""
    task = "ORIENTED_OBJECT_DETECTION" if "angle" in name else "OBJECT_DETECTION"
    return FAMILIES.get(name) or Family(task, "", output={"decoder": name})


def line_naming(name: str) -> str:
    """Return the line of model.toml for a family, or for a decoder without one."""
    return f'family = "{name}"' if name in FAMILIES else f'output.decoder = "{name}"'


def decoder_defaults(decoder: str) -> dict[str, Any]:
    """Return the fields of `Defaults` that follow from a decoder, whatever the family."""
    return _PER_PIXEL_DEFAULTS if decoder in _PER_PIXEL else {}


_detector = partial(_family, "OBJECT_DETECTION")
_oriented = partial(_family, "ORIENTED_OBJECT_DETECTION")
_segmenter = partial(_family, "IMAGE_SEGMENTATION")


def _classifier(description: str, image: dict[str, Any], activation: str | None = None) -> Family:
    output = {} if activation is None else {"activation": activation}
    return Family("IMAGE_CLASSIFICATION", description, image, output=output)


FAMILIES: dict[str, Family] = {
    # Ultralytics and other YOLOs
    "ultralytics": _detector("Ultralytics detector", "ultralytics", _LETTERBOX, (0, 1, 4)),
    "ultralytics-end2end": _detector(
        "Ultralytics detector with NMS in the graph", "box, score, class", _LETTERBOX
    ),
    "ultralytics-rtdetr": _detector(
        "Ultralytics RT-DETR", "normalized xywh, score, class", _STRETCH
    ),
    "ultralytics-rtdetr-raw": _detector(
        "Ultralytics RT-DETR before 8.4", "ultralytics_rtdetr_raw", _STRETCH, (0, 2, 4)
    ),
    "ultralytics-obb": _oriented("Ultralytics OBB", "ultralytics_obb", _LETTERBOX, (0, 1, 5)),
    "ultralytics-obb-end2end": _oriented(
        "Ultralytics OBB with NMS in the graph", "xywh, score, class, angle", _LETTERBOX
    ),
    "ultralytics-seg": _segmenter(
        "Ultralytics instance segmentation", "ultralytics_segment", _LETTERBOX, (0, 1, 36)
    ),
    "ultralytics-seg-end2end": _segmenter(
        "Ultralytics instance segmentation, end to end", "ultralytics_segment_end2end", _LETTERBOX
    ),
    "ultralytics-semantic": _segmenter(
        "Ultralytics semantic map", "ultralytics_semantic", _LETTERBOX
    ),
    "ultralytics-cls": _classifier(
        "Ultralytics classifier", {**_SHORTEST, "crop_fraction": 1.0}, "none"
    ),
    "yolov5": msgspec.structs.replace(
        _detector("YOLOv5, YOLOv7 with objectness", "yolov5", _LETTERBOX, (0, 2, 5)),
        defaults={"iou_threshold": 0.45},
    ),
    "yolov5-seg": msgspec.structs.replace(
        _segmenter("YOLOv5 instance segmentation", "yolov5_segment", _LETTERBOX, (0, 2, 37)),
        defaults={"iou_threshold": 0.45},
    ),
    "yolov5-cls": _classifier(
        "YOLOv5 classifier", {"resize": "shortest_crop", "crop_fraction": 1.0, **IMAGENET}
    ),
    "yolov7-end2end": _detector(
        "YOLOv7 with NMS in the graph", "image, box, class, score", _LETTERBOX
    ),
    "yolo-nas-flat": _detector("YOLO-NAS, flat format", "image, box, score, class", _LETTERBOX),
    "yolox": _detector("YOLOX as exported by default", "yolox", _YOLOX, (0, 2, 5)),
    "yolox-decoded": _detector(
        "YOLOX exported with --decode_in_inference", "yolox_decoded", _YOLOX, (0, 2, 5)
    ),
    "efficient-nms": _detector("EfficientNMS outputs (TensorRT)", "efficient_nms", _LETTERBOX),
    "damo-yolo": _detector("DAMO-YOLO", "damo_yolo", {**_STRETCH, **_RAW}, (0, 2, 0)),
    # transformers that answer each object once
    "rtdetr": _detector(
        "RT-DETR, D-FINE, DEIM by their authors",
        "labelled_boxes",
        {**_PILLOW_STRETCH, "size_input": "orig_target_sizes", "size_wh": (640, 640)},
    ),
    "rf-detr": _detector("RF-DETR", "rf_detr", _IMAGENET_STRETCH, (1, 2, 0)),
    "detr": _detector(
        "DETR, YOLOS or Table-Transformer of Hugging Face", "detr_softmax", _PILLOW, (0, 2, 1)
    ),
    "detr-sigmoid": _detector(
        "RT-DETR or D-FINE of Hugging Face", "detr_sigmoid", _PILLOW, (0, 2, 0)
    ),
    "detr-sigmoid-100": _detector(
        "Deformable or Conditional DETR of Hugging Face", "detr_sigmoid_100", _PILLOW, (0, 2, 0)
    ),
    # detectors that resize in their graph
    "torchvision": _detector(
        "torchvision detector", "labelled_boxes", _NO_RESIZE, label_offset=1, batch_axis=False
    ),
    "tf-od": _detector(
        "TensorFlow Object Detection API", "tensorflow", {**_NO_RESIZE, **_RAW}, label_offset=1
    ),
    "ssd": _detector("SSD [1, 1, N, 7]", "image, class, score, normalized box", _STRETCH),
    "mmdeploy": _detector("mmdeploy detector", "mmdeploy", {}),
    "mmdeploy-rotated": _oriented("mmdeploy rotated detector", "mmdeploy_rotated", {}),
    # segmentation
    "segformer": _segmenter(
        "semantic segmentation of Hugging Face", "semantic_logits", _PILLOW, (0, 1, 0)
    ),
    "torchvision-semantic": _segmenter(
        "DeepLab, FCN, models of segmentation_models_pytorch (smp) and the like with ImageNet's mean and std",
        "semantic_logits",
        _IMAGENET_STRETCH,
        (0, 1, 0),
    ),
    "unet": _segmenter(
        "U-Net and the like on values from 0 to 1", "semantic_logits", _STRETCH, (0, 1, 0)
    ),
    "class-map": _segmenter("map of class indices", "class_map", _IMAGENET_STRETCH),
    "binary-segmentation": _segmenter(
        "binary segmentation with ImageNet's mean and std, such as by segmentation_models_pytorch (smp)",
        "binary",
        _IMAGENET_STRETCH,
    ),
    "binary-unet": _segmenter(
        "binary segmentation on values from 0 to 1, U-Net and the like", "binary", _STRETCH
    ),
    "birefnet": _segmenter("BiRefNet", "birefnet", _IMAGENET_STRETCH),
    "u2net": _segmenter("U²-Net, IS-Net", "u2net", _IMAGENET_STRETCH),
    "mask-rcnn": _segmenter(
        "torchvision Mask R-CNN", "mask_rcnn", _NO_RESIZE, label_offset=1, batch_axis=False
    ),
    "mmdeploy-seg": _segmenter("mmdeploy instance segmentation", "mask_rcnn", {}),
    "rf-detr-seg": _segmenter(
        "RF-DETR segmentation", "rf_detr_segment", _IMAGENET_STRETCH, (1, 2, 0)
    ),
    "maskformer": _segmenter(
        "MaskFormer or OneFormer, semantic", "maskformer_semantic", _PILLOW, (0, 2, 1)
    ),
    "maskformer-instance": _segmenter(
        "MaskFormer, instances", "maskformer_instance", _PILLOW, (0, 2, 1)
    ),
    "mask2former": _segmenter("Mask2Former, semantic", "mask2former_semantic", _PILLOW, (0, 2, 1)),
    "mask2former-instance": _segmenter(
        "Mask2Former, instances", "mask2former_instance", _PILLOW, (0, 2, 1)
    ),
    # classification
    "hf-classifier": _classifier("image classifier of Hugging Face", _PILLOW),
    "timm": _classifier("timm classifier", _PILLOW),
    "torchvision-classifier": _classifier(
        "torchvision classifier", {**_SHORTEST, "crop_fraction": 0.875, **IMAGENET}
    ),
    "plain-classifier": _classifier(
        "classifier on values from 0 to 1, image stretched", _PILLOW_STRETCH
    ),
}
