"""Rules that find the family of a model: one per kind of evidence, the surest first.

A rule returns every family that fits, with its reason; the first rule with a match decides. More than one
family means that the files leave it open, and a person must choose.
"""

from collections.abc import Callable, Mapping

from quadriga.engine.models.recognition.evidence import FLOATS, Evidence, channels_axis, image_sides
from quadriga.engine.models.recognition.families import FAMILIES, FamilyMatch
from quadriga.engine.models.recognition.labels import parse_labels
from quadriga.proto.messages import TensorInfo
from quadriga.tasks.decoders import plain_name


def match_families(evidence: Evidence) -> FamilyMatch:
    """Return the match of the first rule that recognises anything; no families without a reason if no rule does."""
    matches = (rule(evidence) for rule in (*_RULES, by_shapes))
    return next(match for match in matches if match is not None)


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
    image, columns = evidence.image_input(), 4 + len(parse_labels(metadata["names"]) or ())
    if metadata.get("head") == "RTDETRDecoder":
        family = "ultralytics-rtdetr" if width == 6 else "ultralytics-rtdetr-raw"
    elif task == "detect" and width == columns != first.shape[1]:
        # two classes make six columns, as NMS in the graph does; before 8.4 metadata names no head
        is_rtdetr = width != 6 or "rtdetr" in metadata.get("description", "").lower()
        if image is not None and first.shape[1] in anchor_counts(image)[0]:
            family = "ultralytics-transposed"
        elif is_rtdetr and "head" not in metadata:
            family = "ultralytics-rtdetr-raw"
    if family is None and "stride" not in metadata:
        return None
    return FamilyMatch((family,) if family else (), f"ONNX metadata of Ultralytics, task {task}")


_OF_YOLOV5 = (
    *("yolov5", "yolov5-seg", "yolov5-cls"),
    *("ultralytics", "ultralytics-seg", "ultralytics-transposed"),
)
"""Families that the repositories of YOLOv5 and YOLOv9 export, with the same metadata for all."""


def _by_yolov5(evidence: Evidence) -> FamilyMatch | None:
    """Match metadata of YOLOv5, of which the shapes say the rest; of open size the number of names does."""
    metadata = evidence.metadata
    if metadata.keys() & {"names", "stride", "task", _LIBREYOLO} != {"names", "stride"}:
        return None
    count = len(parse_labels(metadata["names"]) or ())
    shown = by_shapes(evidence, count).families
    families = [name.replace("ultralytics-cls", "yolov5-cls") for name in shown]
    families = [name for name in families if name in _OF_YOLOV5]
    fitting = [name for name in families if evidence.class_count(FAMILIES[name]) in (None, count)]
    reason = "ONNX metadata of YOLOv5 and YOLOv9, stride and names, and the shape of the output"
    return FamilyMatch(tuple(fitting), reason) if fitting else None


_ARCHITECTURES = {
    "ForImageClassification": ("hf-classifier",),
    "ForSemanticSegmentation": ("segformer",),
    # one architecture serves both, and the files leave it open
    "ForInstanceSegmentation": ("maskformer", "maskformer-instance"),
    "ForUniversalSegmentation": ("maskformer", "maskformer-instance"),
}
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
        counts = [evidence.reading(t.name).class_count(FAMILIES["timm"]) for t in evidence.outputs]
        classes = config.get("num_classes")  # 0 without a head: the output is features then
        fits = classes is None or any(count in (None, classes) for count in counts)
        reason = f"config.json of timm, num_classes {classes!r:.20}"
        return FamilyMatch(("timm",) if fits else (), reason)
    kind = str(config.get("model_type", ""))
    if kind in _DETECTORS:
        return FamilyMatch((_DETECTORS[kind],), f"config.json, model_type {kind}")
    if config.get("problem_type") == "regression":
        return FamilyMatch((), "config.json, problem_type regression")
    architectures = config.get("architectures")
    for architecture in architectures if isinstance(architectures, list) else ():
        for purpose, families in _ARCHITECTURES.items():
            if purpose in str(architecture):
                new = kind if kind == "mask2former" else "maskformer"
                choices = tuple(name.replace("maskformer", new) for name in families)
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


def by_shapes(evidence: Evidence, names: int | None = 0) -> FamilyMatch:
    """Match all families that could have an image model's output shapes; no families without a reason.

    Heads that the size of the image does not tell are those of as many classes as `names`, None for any number: a weaker
    sign, which something else has to confirm.
    """
    image, (first, *_) = evidence.image_input(), evidence.main_outputs or (None,)
    prototypes = _prototypes(evidence, may_be_open=names != 0)
    if prototypes is not None:
        first = next(tensor for tensor in evidence.outputs if tensor is not prototypes)
    if image is None or first is None:
        return FamilyMatch((), "")
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
    return FamilyMatch(
        families, f"shape of output {first.name!r}: {list(shape)}" if families else ""
    )


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
    if families or (names != 0 and rows == columns == -1):
        return families or ("ultralytics", *_ROWS_OF_ANCHORS)
    is_first = columns > rows > 0 or columns == -1
    is_open = rows > _MAX_ROWS or (rows == -1 and not single)
    choices = (
        (("ultralytics",), is_first * (rows - 4)),
        (_ROWS_OF_ANCHORS[:3], is_open * (not is_first) * (columns - 5)),
        (_ROWS_OF_ANCHORS[3:], (rows > _MAX_ROWS) * (not is_first) * (columns - 4)),
    )
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


_RULES: tuple[Callable[[Evidence], FamilyMatch | None], ...]
_RULES = (_by_ultralytics, _by_yolov5, _by_config, _by_names)
