"""Evidence to family: what the files of each exporter say, and what they leave open."""

import pytest

from quadriga.engine.models.recognition.evidence import Evidence
from quadriga.engine.models.recognition.families import FAMILIES
from quadriga.engine.models.recognition.labels import parse_labels
from quadriga.engine.models.recognition.rules import match_families
from quadriga.proto.messages import TensorInfo
from quadriga.tasks import TASKS

IMAGES = TensorInfo("images", "FP32", (1, 3, 640, 640))
SMALL = TensorInfo("images", "FP32", (1, 3, 320, 320))
OPEN = TensorInfo("images", "FP32", (-1, 3, -1, -1))


def evidence(outputs, inputs=(IMAGES,), metadata=None, config=None, producers=None):
    return Evidence(
        metadata=metadata or {},
        producers=producers or {},
        inputs=tuple(inputs),
        outputs=tuple(
            TensorInfo(name, datatype, shape) for name, (datatype, shape) in outputs.items()
        ),
        config=config or {},
    )


def floats(*shape):
    return ("FP32", shape)


def ultralytics(task, **more):
    names = "{0: 'a', 1: 'b'}"
    return {"task": task, "names": names, "stride": "32", "imgsz": "[640, 640]", **more}


BY_METADATA = [
    ("detect", {"output0": floats(1, 6, 8400)}, {}, "ultralytics"),
    ("detect", {"output0": floats(1, 300, 6)}, {}, "ultralytics-end2end"),
    ("detect", {"output0": floats(-1, -1, -1)}, {}, "ultralytics"),
    ("detect", {"output0": floats(1, 300, 6)}, {"head": "RTDETRDecoder"}, "ultralytics-rtdetr"),
    ("detect", {"output0": floats(1, 300, 84)}, {"head": "RTDETRDecoder"}, "ultralytics-rtdetr-raw"),
    ("detect", {"output0": floats(1, 8400, 6)}, {}, "ultralytics-transposed"),
    ("detect", {"output0": floats(1, 8400, 6)}, {"head": "Detect"}, "ultralytics-transposed"),
    ("segment", {"output0": floats(1, 38, 8400), "output1": floats(1, 32, 160, 160)}, {}, "ultralytics-seg"),
    ("segment", {"output0": floats(1, 300, 38), "output1": floats(1, 32, 160, 160)}, {}, "ultralytics-seg-end2end"),
    ("obb", {"output0": floats(1, 7, 8400)}, {}, "ultralytics-obb"),
    ("obb", {"output0": floats(1, 300, 7)}, {}, "ultralytics-obb-end2end"),
    ("classify", {"output0": floats(1, 2)}, {}, "ultralytics-cls"),
    ("semantic", {"output0": ("UINT8", (1, 640, 640))}, {}, "ultralytics-semantic"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "outputs", "more", "family"), BY_METADATA)
def test_ultralytics_metadata(task, outputs, more, family):
    reading = match_families(evidence(outputs, metadata=ultralytics(task, **more)))
    assert reading.families == (family,)
    assert "Ultralytics" in reading.reason


LIBREYOLO = {"libreyolo_version": "1.6.0", "names": '{"0": "a", "1": "b"}', "stride": "32"}
OF_LIBREYOLO = [
    ("yolov7", "detect", floats(1, 7, 8400), ("ultralytics", "ultralytics-obb")),
    ("resnet", "classify", floats(-1, 2), "plain-classifier"),
    ("deeplabv3", "semantic", floats(-1, 2, 640, 640), "unet"),
]


@pytest.mark.parametrize(("kind", "task", "output", "family"), OF_LIBREYOLO)
def test_libreyolo_writes_keys_of_ultralytics_for_networks_that_are_none(
    kind, task, output, family
):
    metadata = {**LIBREYOLO, "model_family": kind, "task": task}
    match = match_families(evidence({"output": output}, metadata=metadata))
    assert "Ultralytics" not in match.reason
    assert match.families == family if isinstance(family, tuple) else family in match.families
    assert len(match.families) > 1


OF_YOLOV5 = [
    ({"output0": floats(1, 25200, 7)}, IMAGES, "yolov5"),
    ({"output0": floats(1, -1, 7)}, OPEN, "yolov5"),
    ({"output0": floats(1, 6, 8400)}, IMAGES, "ultralytics"),
    ({"output0": floats(1, 6, -1)}, OPEN, "ultralytics"),
    ({"output0": floats(1, 8400, 6)}, IMAGES, "ultralytics-transposed"),
    ({"output0": floats(-1, -1)}, OPEN, "yolov5-cls"),
    ({"output0": floats(1, 2)}, IMAGES, "yolov5-cls"),
    ({"output0": floats(1, 300, 6)}, IMAGES, ""),
    ({"output0": floats(1, 300, 7)}, IMAGES, ""),
    ({"output0": floats(1, -1, 7)}, IMAGES, ""),
    ({"output0": floats(-1, 7)}, IMAGES, ""),
    ({"output0": floats(1, 2, 640, 640)}, IMAGES, ""),
]


@pytest.mark.parametrize(("outputs", "image", "family"), OF_YOLOV5)
def test_yolov5_metadata_says_nothing_before_the_shapes(outputs, image, family):
    metadata = {"stride": "32", "names": "['a','b']"}
    match = match_families(evidence(outputs, (image,), metadata=metadata))
    assert (match.families == (family,)) if family else len(match.families) > 2


LENGTHS_UNKNOWN = [
    ({"output0": floats(-1, -1, -1)}, {"yolov5", "ultralytics", "ultralytics-transposed"}),
    ({"output0": floats(1, -1, -1)}, {"yolov5", "ultralytics", "ultralytics-transposed"}),
    ({"output0": floats(-1, -1, -1), "output1": floats(-1, 32, -1, -1)}, {"yolov5-seg", "ultralytics-seg"}),
    ({"output1": floats(-1, -1, -1, -1), "output0": floats(-1, -1, -1)}, {"yolov5-seg", "ultralytics-seg"}),
]  # fmt: skip


@pytest.mark.parametrize("image", [OPEN, IMAGES])
@pytest.mark.parametrize(("outputs", "families"), LENGTHS_UNKNOWN)
def test_yolov5_metadata_beside_lengths_that_are_all_open_leave_the_head_open(
    outputs, families, image
):
    metadata = {"stride": "32", "names": "['a','b']"}
    assert set(match_families(evidence(outputs, (image,), metadata=metadata)).families) == families


BY_CONFIG = [
    ({"model_type": "detr"}, {"logits": floats(1, 100, 92), "pred_boxes": floats(1, 100, 4)}, "detr"),
    ({"model_type": "yolos"}, {"logits": floats(1, 100, 92), "pred_boxes": floats(1, 100, 4)}, "detr"),
    ({"model_type": "rt_detr"}, {"logits": floats(1, 300, 80), "pred_boxes": floats(1, 300, 4)}, "detr-sigmoid"),
    ({"model_type": "deformable_detr"}, {"logits": floats(1, 300, 91), "pred_boxes": floats(1, 300, 4)}, "detr-sigmoid-100"),
    ({"architectures": ["ViTForImageClassification"]}, {"logits": floats(1, 10)}, "hf-classifier"),
    ({"architectures": ["SegformerForSemanticSegmentation"]}, {"logits": floats(1, 19, 128, 128)}, "segformer"),
    ({"architectures": ["ViTForImageClassification"], "problem_type": "regression"}, {"logits": floats(1, 1)}, ""),
    ({"architecture": "resnet18", "pretrained_cfg": {}}, {"output": floats(1, 10)}, "timm"),
    ({"architecture": "resnet18", "pretrained_cfg": {}, "num_classes": 10}, {"output": floats(-1, 10)}, "timm"),
    ({"architecture": "resnet18", "pretrained_cfg": {}, "num_classes": 10}, {"output": floats(-1, -1)}, "timm"),
    ({"architecture": "resnet18", "pretrained_cfg": {}, "num_classes": 3}, {"a": floats(1, 512), "b": floats(1, 3)}, "timm"),
    ({"architecture": "resnet18", "pretrained_cfg": {}, "num_classes": 0}, {"output": floats(1, 512)}, ""),
    ({"architecture": "resnet18", "pretrained_cfg": {}, "num_classes": 1000}, {"output": floats(1, 512)}, ""),
    ({"architecture": "resnet18", "pretrained_cfg": {}, "num_classes": [3]}, {"output": floats(1, 512)}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("config", "outputs", "family"), BY_CONFIG)
def test_config_json(config, outputs, family):
    families = match_families(evidence(outputs, config=config)).families
    assert families == ((family,) if family else ())


@pytest.mark.parametrize("value", [-1, True, "Net", {"a": 1}, [3], None])
def test_architectures_that_are_no_list_of_names_say_nothing(value):
    named = evidence({"logits": floats(1, 10)}, config={"architectures": value})
    assert match_families(named) == match_families(evidence({"logits": floats(1, 10)}))


ORIG_SIZE = TensorInfo("orig_target_sizes", "INT64", (-1, 2))
BY_NAMES = [
    ({"labels": ("INT64", (1, 300)), "boxes": floats(1, 300, 4), "scores": floats(1, 300)}, (IMAGES, ORIG_SIZE), "rtdetr"),
    ({"boxes": floats(-1, 4), "labels": ("INT64", (-1,)), "scores": floats(-1)}, (IMAGES,), "torchvision"),
    ({"boxes": floats(-1, 4), "labels": ("INT64", (-1,)), "scores": floats(-1), "masks": floats(-1, 1, 640, 640)}, (IMAGES,), "mask-rcnn"),
    ({"dets": floats(1, 300, 4), "labels": floats(1, 300, 91)}, (IMAGES,), "rf-detr"),
    ({"dets": floats(1, 300, 4), "labels": floats(1, 300, 91), "masks": floats(1, 300, 108, 108)}, (IMAGES,), "rf-detr-seg"),
    ({"dets": floats(1, 100, 5), "labels": ("INT64", (1, 100))}, (IMAGES,), "mmdeploy"),
    ({"dets": floats(1, 100, 5), "labels": ("INT64", (1, 100)), "masks": floats(1, 100, 28, 28)}, (IMAGES,), "mmdeploy-seg"),
    ({"dets": floats(1, 100, 6), "labels": ("INT64", (1, 100))}, (IMAGES,), "mmdeploy-rotated"),
    ({"detection_boxes": floats(1, 100, 4), "detection_scores": floats(1, 100), "detection_classes": floats(1, 100), "num_detections": floats(1)}, (IMAGES,), "tf-od"),
    ({"num_dets": ("INT32", (1, 1)), "det_boxes": floats(1, 100, 4), "det_scores": floats(1, 100), "det_classes": ("INT32", (1, 100))}, (IMAGES,), "efficient-nms"),
]  # fmt: skip


OPEN_NAMES = [
    ({"class_queries_logits": floats(1, 100, 20), "masks_queries_logits": floats(1, 100, 96, 96)}, {"maskformer", "maskformer-instance", "mask2former", "mask2former-instance"}),
    ({"logits": floats(1, 100, 92), "pred_boxes": floats(1, 100, 4)}, {"detr", "detr-sigmoid", "detr-sigmoid-100"}),
]  # fmt: skip


@pytest.mark.parametrize(("outputs", "families"), OPEN_NAMES)
def test_names_that_several_families_give(outputs, families):
    assert set(match_families(evidence(outputs)).families) == families


@pytest.mark.parametrize(("outputs", "inputs", "family"), BY_NAMES)
def test_names_of_inputs_and_outputs(outputs, inputs, family):
    assert match_families(evidence(outputs, inputs)).families == (family,)


TABLES_OF_6 = {
    "ultralytics-end2end",
    "ultralytics-rtdetr",
    "ultralytics-rtdetr-raw",
    "box, class, score",
    "class, score, box",
}
TABLES_OF_7 = {
    "yolov7-end2end", "yolo-nas-flat", "ultralytics-obb-end2end", "ultralytics-rtdetr-raw",
    "image, yxyx, score, class", "image, class, score, normalized box", "box, objectness, score, class",
    "xywh, angle, score, class",
}  # fmt: skip
BY_SHAPE = [
    (floats(1, 84, 8400), IMAGES, {"ultralytics", "ultralytics-obb"}),
    (floats(1, 9, 2100), SMALL, {"ultralytics", "ultralytics-obb"}),
    (floats(1, 5, 8400), IMAGES, {"ultralytics"}),
    (floats(1, 300, 6), IMAGES, TABLES_OF_6),
    (floats(1, 300, 7), IMAGES, TABLES_OF_7),
    (floats(1, 8400, 85), IMAGES, {"yolox", "yolox-decoded", "yolov5", "ultralytics-transposed"}),
    (floats(1, 25200, 85), IMAGES, {"yolov5"}),
    (floats(1, 1, 200, 7), IMAGES, {"ssd"}),
    (floats(1, 1, 320, 320), IMAGES, {"binary-segmentation", "binary-unet", "birefnet", "u2net"}),
    (floats(1, 21, 640, 640), IMAGES, {"torchvision-semantic", "unet", "segformer"}),
    (("INT64", (1, 640, 640)), IMAGES, {"class-map", "ultralytics-semantic"}),
    (floats(1, 1000), IMAGES, {"torchvision-classifier", "plain-classifier", "timm", "ultralytics-cls"}),
]  # fmt: skip


@pytest.mark.parametrize(("output", "image", "families"), BY_SHAPE)
def test_shapes_alone_name_every_family_that_has_them(output, image, families):
    assert set(match_families(evidence({"out": output}, (image,))).families) == families


BATCHES = TensorInfo("images", "FP32", (-1, 3, 224, 224))
TINY = TensorInfo("images", "FP32", (-1, 3, 64, 64))
KERAS = TensorInfo("images", "FP32", (-1, 224, 224, 3))
LARGE = TensorInfo("images", "FP32", (-1, 3, 1024, 1024))
LINE_OF_TEXT = TensorInfo("images", "FP32", (-1, 3, 48, -1))
MAP, SIDE_MAPS = {"a": floats(-1, 1, 320, 320)}, {n: floats(-1, 1, 320, 320) for n in "abcdefg"}
BEST_FIT = [  # outputs, image input, operator behind the output, first choice, choices that are left out
    ({"a": floats(-1, 7)}, BATCHES, "Gemm", "torchvision-classifier", {"yolov7-end2end"}),
    ({"a": floats(-1, 7)}, BATCHES, "Softmax", "ultralytics-cls", {"yolov7-end2end"}),
    ({"a": floats(-1, 7)}, IMAGES, "Concat", "yolov7-end2end", set()),
    ({"a": floats(-1, 7)}, BATCHES, "Reshape", "torchvision-classifier", set()),
    ({"a": floats(-1, 5)}, TINY, "Gemm", "plain-classifier", set()),
    ({"a": floats(-1, 5)}, TINY, "Softmax", "plain-classifier", set()),
    ({"a": floats(-1, 5)}, KERAS, "Gemm", "plain-classifier", set()),
    ({"a": floats(-1, 5)}, OPEN, "Gemm", "torchvision-classifier", set()),
    ({"a": floats(26, 37)}, IMAGES, "Gemm", "", set()),
    ({"a": floats(-1, 8210)}, IMAGES, "Softmax", "ultralytics-cls", set()),
    ({"a": floats(-1, 6625)}, LINE_OF_TEXT, "Softmax", "", set()),
    (MAP, BATCHES, "Conv", "binary-segmentation", set()),
    (MAP, OPEN, "Sigmoid", "binary-segmentation", set()),
    (MAP, LARGE, "Sigmoid", "birefnet", set()),
    (SIDE_MAPS, BATCHES, "Sigmoid", "u2net", set()),
]


@pytest.mark.parametrize("case", BEST_FIT)
def test_the_families_that_fit_best_come_first(case):
    outputs, image, producer, first, left_out = case
    match = match_families(evidence(outputs, (image,), producers=dict.fromkeys(outputs, producer)))
    families = match.families or ("",)
    assert families[0] == first
    assert left_out.isdisjoint(families)


LAST = TensorInfo("images", "FP32", (1, 640, 640, 3))
HEAD, PROTOTYPES = floats(1, 116, 8400), floats(1, 32, 160, 160)
WITH_PROTOTYPES = [
    ((HEAD, PROTOTYPES), IMAGES, ("ultralytics-seg",)),
    ((PROTOTYPES, HEAD), IMAGES, ("ultralytics-seg",)),
    ((floats(-1, 116, -1), floats(-1, 32, -1, -1)), OPEN, ("ultralytics-seg",)),
    ((floats(1, 300, 38), PROTOTYPES), IMAGES, ("ultralytics-seg-end2end",)),
    ((HEAD, floats(1, 160, 160, 32)), LAST, ()),  # converted through TensorFlow
    ((floats(1, 160, 160, 32), floats(1, 8400, 116)), LAST, ()),
    ((floats(1, 25200, 117), PROTOTYPES), IMAGES, ("yolov5-seg",)),
    ((floats(1, -1, 117), floats(1, 32, -1, -1)), OPEN, ("yolov5-seg",)),
]


@pytest.mark.parametrize(("outputs", "image", "families"), WITH_PROTOTYPES)
def test_prototypes_tell_instance_segmentation_in_either_order(outputs, image, families):
    match = match_families(evidence(dict(zip("ab", outputs, strict=True)), (image,)))
    assert match.families == families


@pytest.mark.parametrize(
    ("output", "inputs"),
    [
        (floats(1, 10), (TensorInfo("x", "FP32", (1, 20)),)),
        (floats(1, 10, 10), (TensorInfo("ids", "INT64", (1, 20)),)),
        (floats(1, 77, 77), (IMAGES,)),
        (floats(1, 10), (IMAGES, SMALL)),
    ],
)
def test_unrecognised_model_takes_tensors(output, inputs):
    assert match_families(evidence({"out": output}, inputs)).families == ()


def test_every_family_of_a_rule_is_in_the_table():
    named = {family for _, _, _, family in BY_METADATA}
    named |= {family for _, _, family in (*BY_CONFIG, *BY_NAMES)}
    named |= {family for _, _, families in WITH_PROTOTYPES for family in families}
    for families in (*(row[2] for row in BY_SHAPE), *(row[1] for row in OPEN_NAMES)):
        named |= families
    named = {family for family in named if family and ", " not in family}
    assert named == set(FAMILIES) - {"damo-yolo", "yolov5-cls"}
    assert {family.task for family in FAMILIES.values()} <= set(TASKS)


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["a", "b"], ("a", "b")),
        ({"a": 0, "b": 1}, ("a", "b")),
        ({"0": "a", "1": "b"}, ("a", "b")),
        ({"1": "a", "3": "b"}, ("class_0", "a", "class_2", "b")),
        ({"b": 1, "a": 0}, ("a", "b")),
        ("{0: 'a', 1: 'b'}", ("a", "b")),
        ("['a', 'b']", ("a", "b")),
        ("", None),
        ([], None),
        ({}, None),
        (None, None),
        ("import os", None),
        ({"a": "b"}, None),
        ({"a": -1}, None),
        ({"a": 10**9}, None),
    ],
)
def test_labels_in_every_form(names, labels):
    assert parse_labels(names) == labels
