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
_PER_PIXEL = (*OF_MAPS, "maskformer_semantic", "mask2former_semantic")
DECODER_DEFAULTS = {name: {"score_threshold": 0.0, "max_detections": 10_000} for name in _PER_PIXEL}
"""Fields of `Defaults` by decoder, whatever the family, where each pixel has a class: they leave no pixel out, and
most such models have more regions than a detector has objects."""


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
    image: dict[str, Any],
    decoder: str = "",
    classes: tuple[int, int, int] | None = None,
    **fields: Any,
) -> Family:
    """Make a family; `fields` are its defaults and, beside the decoder, fields of `OutputSpec`."""
    defaults = fields.pop("defaults", {})
    output = {"decoder": decoder, **fields} if decoder else fields
    return Family(task, description, image, output, defaults, classes)


def family_named(name: str) -> Family:
    """Return the family of a name; for a decoder without one, a family that says no more than how outputs are read."""
    task = "ORIENTED_OBJECT_DETECTION" if "angle" in name else "OBJECT_DETECTION"
    return FAMILIES.get(name) or Family(task, "", output={"decoder": name})


def line_naming(name: str) -> str:
    """Return the line of model.toml for a family, or for a decoder without one."""
    return f'family = "{name}"' if name in FAMILIES else f'output.decoder = "{name}"'


_detector = partial(_family, "OBJECT_DETECTION")
_oriented = partial(_family, "ORIENTED_OBJECT_DETECTION")
_segmenter = partial(_family, "IMAGE_SEGMENTATION")
_classifier = partial(_family, "IMAGE_CLASSIFICATION")

FAMILIES: dict[str, Family] = {
    # Ultralytics and other YOLOs
    "ultralytics": _detector("Ultralytics detector", _LETTERBOX, "ultralytics", (0, 1, 4)),
    "ultralytics-transposed": _detector("Ultralytics detector, transposed", _LETTERBOX, "ultralytics_transposed", (0, 2, 4)),
    "ultralytics-end2end": _detector("Ultralytics detector with NMS in the graph", _LETTERBOX, "box, score, class"),
    "ultralytics-rtdetr": _detector("Ultralytics RT-DETR", _STRETCH, "normalized xywh, score, class"),
    "ultralytics-rtdetr-raw": _detector("Ultralytics RT-DETR before 8.4", _STRETCH, "ultralytics_rtdetr_raw", (0, 2, 4)),
    "ultralytics-obb": _oriented("Ultralytics OBB", _LETTERBOX, "ultralytics_obb", (0, 1, 5)),
    "ultralytics-obb-end2end": _oriented("Ultralytics OBB with NMS in the graph", _LETTERBOX, "xywh, score, class, angle"),
    "ultralytics-seg": _segmenter("Ultralytics instance segmentation", _LETTERBOX, "ultralytics_segment", (0, 1, 36)),
    "ultralytics-seg-end2end": _segmenter("Ultralytics instance segmentation, end to end",
        _LETTERBOX, "ultralytics_segment_end2end"),
    "ultralytics-semantic": _segmenter("Ultralytics semantic map", _LETTERBOX, "ultralytics_semantic"),
    "ultralytics-cls": _classifier("Ultralytics classifier", {**_SHORTEST, "crop_fraction": 1.0}, activation="none"),
    "yolov5": _detector("YOLOv5, YOLOv7 with objectness", _LETTERBOX, "yolov5", (0, 2, 5), defaults={"iou_threshold": 0.45}),
    "yolov5-seg": _segmenter("YOLOv5 instance segmentation",
        _LETTERBOX, "yolov5_segment", (0, 2, 37), defaults={"iou_threshold": 0.45}),
    "yolov5-cls": _classifier("YOLOv5 classifier", {"resize": "shortest_crop", "crop_fraction": 1.0, **IMAGENET}),
    "yolov7-end2end": _detector("YOLOv7 with NMS in the graph", _LETTERBOX, "image, box, class, score"),
    "yolo-nas-flat": _detector("YOLO-NAS, flat format", _LETTERBOX, "image, box, score, class"),
    "yolox": _detector("YOLOX as exported by default", _YOLOX, "yolox", (0, 2, 5)),
    "yolox-decoded": _detector("YOLOX exported with --decode_in_inference", _YOLOX, "yolox_decoded", (0, 2, 5)),
    "efficient-nms": _detector("EfficientNMS outputs (TensorRT)", _LETTERBOX, "efficient_nms"),
    "damo-yolo": _detector("DAMO-YOLO", {**_STRETCH, **_RAW}, "damo_yolo", (0, 2, 0)),
    # transformers that answer each object once
    "rtdetr": _detector("RT-DETR, D-FINE, DEIM by their authors",
        {**_PILLOW_STRETCH, "size_input": "orig_target_sizes", "size_wh": (640, 640)}, "labelled_boxes"),
    "rf-detr": _detector("RF-DETR", _IMAGENET_STRETCH, "rf_detr", (1, 2, 0)),
    "detr": _detector("DETR, YOLOS or Table-Transformer of Hugging Face", _PILLOW, "detr_softmax", (0, 2, 1)),
    "detr-sigmoid": _detector("RT-DETR or D-FINE of Hugging Face", _PILLOW, "detr_sigmoid", (0, 2, 0)),
    "detr-sigmoid-100": _detector("Deformable or Conditional DETR of Hugging Face", _PILLOW, "detr_sigmoid_100", (0, 2, 0)),
    # detectors that resize in their graph
    "torchvision": _detector("torchvision detector", _NO_RESIZE, "labelled_boxes", label_offset=1, batch_axis=False),
    "tf-od": _detector("TensorFlow Object Detection API", {**_NO_RESIZE, **_RAW}, "tensorflow", label_offset=1),
    "ssd": _detector("SSD [1, 1, N, 7]", _STRETCH, "image, class, score, normalized box"),
    "mmdeploy": _detector("mmdeploy detector", {}, "mmdeploy"),
    "mmdeploy-rotated": _oriented("mmdeploy rotated detector", {}, "mmdeploy_rotated"),
    # segmentation
    "segformer": _segmenter("semantic segmentation of Hugging Face", _PILLOW, "semantic_logits", (0, 1, 0)),
    "torchvision-semantic": _segmenter(
        "DeepLab, FCN, models of segmentation_models_pytorch (smp) and the like with ImageNet's mean and std",
        _IMAGENET_STRETCH, "semantic_logits", (0, 1, 0)),
    "unet": _segmenter("U-Net and the like on values from 0 to 1", _STRETCH, "semantic_logits", (0, 1, 0)),
    "class-map": _segmenter("map of class indices", _IMAGENET_STRETCH, "class_map"),
    "binary-segmentation": _segmenter(
        "binary segmentation with ImageNet's mean and std, such as by segmentation_models_pytorch (smp)",
        _IMAGENET_STRETCH, "binary"),
    "binary-unet": _segmenter("binary segmentation on values from 0 to 1, U-Net and the like", _STRETCH, "binary"),
    "birefnet": _segmenter("BiRefNet", _IMAGENET_STRETCH, "birefnet"),
    "u2net": _segmenter("U²-Net, IS-Net", _IMAGENET_STRETCH, "u2net"),
    "mask-rcnn": _segmenter("torchvision Mask R-CNN", _NO_RESIZE, "mask_rcnn", label_offset=1, batch_axis=False),
    "mmdeploy-seg": _segmenter("mmdeploy instance segmentation", {}, "mask_rcnn"),
    "rf-detr-seg": _segmenter("RF-DETR segmentation", _IMAGENET_STRETCH, "rf_detr_segment", (1, 2, 0)),
    "maskformer": _segmenter("MaskFormer or OneFormer, semantic", _PILLOW, "maskformer_semantic", (0, 2, 1)),
    "maskformer-instance": _segmenter("MaskFormer, instances", _PILLOW, "maskformer_instance", (0, 2, 1)),
    "mask2former": _segmenter("Mask2Former, semantic", _PILLOW, "mask2former_semantic", (0, 2, 1)),
    "mask2former-instance": _segmenter("Mask2Former, instances", _PILLOW, "mask2former_instance", (0, 2, 1)),
    # classification
    "hf-classifier": _classifier("image classifier of Hugging Face", _PILLOW),
    "timm": _classifier("timm classifier", _PILLOW),
    "torchvision-classifier": _classifier("torchvision classifier", {**_SHORTEST, "crop_fraction": 0.875, **IMAGENET}),
    "plain-classifier": _classifier("classifier on values from 0 to 1, image stretched", _PILLOW_STRETCH),
}  # fmt: skip
