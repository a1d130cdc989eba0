"""Every family of detectors: known boxes, encoded as its exporter does, come back in pixels.

The encoders are written from each family's documents, not from the decoders.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper

from quadriga.engine.models.recognition.families import FAMILIES
from quadriga.engine.models.runners.session import LoadError
from tests.families.folders import (
    HEIGHT,
    LABELS,
    MEAN,
    STD,
    WIDTH,
    Case,
    ask,
    load,
    toml,
    ultralytics,
)
from tests.onnx_models import answering

# label, score, and left, top, right, bottom; exact as float16, too
OBJECTS = (("cat", 0.875, (10, 6, 30, 26)), ("dog", 0.75, (36, 20.5, 60, 44.5)))
OF_ONE_CLASS = tuple(("thing", score, box) for _, score, box in OBJECTS)
# label, score, and centre, width, height, angle
ROTATED = (("cat", 0.875, (20, 16, 24, 8, 0.3)), ("dog", 0.75, (46, 30, 20, 10, 1.2)))
SCORES = np.float32([score for _, score, _ in OBJECTS])
CLASSES = np.array([LABELS.index(label) for label, _, _ in OBJECTS])
IMAGENET_255 = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


def boxes(objects=OBJECTS):
    return np.array([box for _, _, box in objects], np.float64)


def centred(corners):
    left, top, right, bottom = corners.T
    return np.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], 1)


def letterboxed(corners, width, height):
    """The image keeps its ratio and lies in the middle."""
    gain = min(width / WIDTH, height / HEIGHT)
    pad = (width - WIDTH * gain) / 2, (height - HEIGHT * gain) / 2
    return corners * gain + [*pad, *pad]


def at_top_left(corners, width, height):
    return corners * min(width / WIDTH, height / HEIGHT)


def stretched(corners, width, height):
    return corners * [width / WIDTH, height / HEIGHT, width / WIDTH, height / HEIGHT]


def fractions(corners):
    return np.float32(stretched(corners, 1, 1))


def with_worse(network, shift=0.5):
    """Add to each box one that overlaps it, of lower score: suppression must take it away."""
    return np.concatenate([network, network + shift]), np.array([*SCORES, 0.625, 0.5625])


def head(network, anchors=189, classes=3, dtype=np.float32):
    """Ultralytics: [4 + classes, anchors], centre and size in pixels, one score a class."""
    corners, scores = with_worse(network)
    array = np.zeros((4 + classes, anchors), dtype)
    cells = [5, 100, 6, 180]
    array[:4, cells] = centred(corners).T
    ids = [*CLASSES, *CLASSES] if classes > 1 else [0] * 4
    array[4 + np.array(ids), cells] = scores
    return {"output0": array}


def rows(columns, count=300):
    """Fill up with rows of zeros."""
    array = np.zeros((count, columns.shape[1]), np.float32)
    array[: len(columns)] = columns
    return array


def objectness(network, anchors, shift=0.5):
    """YOLOv5: [anchors, 5 + classes], the score is the product of two columns."""
    corners, scores = with_worse(network, shift)
    array = np.zeros((anchors, 8), np.float32)
    array[[3, 90, 4, 150], :4] = centred(corners)
    array[[3, 90, 4, 150], 4] = scores / 0.9375
    array[[3, 90, 4, 150], 5 + np.array([*CLASSES, *CLASSES])] = 0.9375
    return {"output": array}


def yolox(network):
    """YOLOX: offsets from cells and logarithms, in strides; here of 8 at (2, 3) and 32 at (1, 2)."""
    array = np.zeros((189, 8), np.float32)
    cells = ((3 * 12 + 2, 8, 2, 3), (144 + 36 + 2 * 3 + 1, 32, 1, 2))
    for (anchor, stride, column, row), (cx, cy, w, h), score, index in zip(
        cells, centred(network), SCORES, CLASSES, strict=True
    ):
        array[anchor, :4] = (
            cx / stride - column,
            cy / stride - row,
            np.log(w / stride),
            np.log(h / stride),
        )
        array[anchor, 4] = score / 0.9375
        array[anchor, 5 + index] = 0.9375
    return {"output": array}


def damo():
    corners, scores = with_worse(stretched(boxes(), 96, 96))
    array = np.zeros((189, 3), np.float32)
    array[[3, 90, 4, 150], [*CLASSES, *CLASSES]] = scores
    anchors = np.zeros((189, 4), np.float32)
    anchors[[3, 90, 4, 150]] = corners
    return {"output": array, "boxes": anchors}


def queries(*, softmax=False, count=20):
    """DETR: logits and boxes as fractions; of the softmax the last column is for nothing."""
    chances = np.full((count, 4 if softmax else 3), 1e-9)
    if softmax:
        chances[:, -1] = 1
    for box, (index, score) in enumerate(zip(CLASSES, SCORES, strict=True)):
        chances[3 + 5 * box, index] = score
        if softmax:
            chances[3 + 5 * box, -1] = 1 - score
    logits = np.log(chances) if softmax else np.log(chances / (1 - chances))
    anchors = np.full((count, 4), 0.5, np.float32)
    anchors[[3, 8]] = centred(fractions(boxes()))
    return np.float32(logits), anchors


def detr(*, softmax=False, count=20):
    logits, anchors = queries(softmax=softmax, count=count)
    return {"logits": logits, "pred_boxes": anchors}


def rf_detr():
    logits, anchors = queries()
    return {"dets": anchors, "labels": logits}


def rf_detr_beside(first, last):
    """Add a column for no object, which is likelier than any object, before or after the classes."""
    array = rf_detr()
    logits = np.pad(array["labels"], ((0, 0), (first, last)), constant_values=-20)
    logits[0, 0 if first else -1] = 9
    return {**array, "labels": logits}


def finished(network, offset=0):
    return {
        "boxes": np.float32(network),
        "labels": np.int64(CLASSES + offset),
        "scores": SCORES,
    }


def efficient_nms(network):
    return {
        "num_dets": np.int32([2]),
        "det_boxes": rows(np.float32(network), 100),
        "det_scores": np.float32([*SCORES, *[0.99] * 98]),  # what is behind the count is rubbish
        "det_classes": np.int32([*CLASSES, *[0] * 98]),
    }


def tensorflow():
    yxyx = fractions(boxes())[:, [1, 0, 3, 2]]
    return {
        "detection_boxes": rows(yxyx, 100),
        "detection_classes": np.float32([*(CLASSES + 1), *[1] * 98]),
        "detection_scores": np.float32([*SCORES, *[0] * 98]),
        "num_detections": np.float32(100),
    }


def ssd(offset=0):
    array = np.zeros((1, 20, 7), np.float32)
    array[0, :2] = np.column_stack([[0, 0], CLASSES + offset, SCORES, fractions(boxes())])
    array[0, 2] = [-1, 1, 0.99, 0, 0, 1, 1]
    return {"detection_out": array}


def rotated(gain, pad, order):
    """Boxes of a letterbox as columns of `order`: x, y, w, h, a(ngle), s(core), c(lass)."""
    array = []
    for label, score, (cx, cy, w, h, angle) in ROTATED:
        named = {"x": cx * gain + pad[0], "y": cy * gain + pad[1], "w": w * gain, "h": h * gain}
        named |= {"a": angle, "s": score, "c": LABELS.index(label)}
        array.append([named[letter] for letter in order])
    return np.float32(array)


def rotated_head(gain=1.5, pad=12):
    array = np.zeros((8, 189), np.float32)
    columns = rotated(gain, (0, pad), "xywhasc")
    for index, (*box, angle, score, label) in enumerate(columns):
        for shift in (0, 1):  # a worse one beside it
            array[:4, index * 50 + shift] = box
            array[4 + int(label), index * 50 + shift] = score - shift / 8
            array[7, index * 50 + shift] = angle
    return {"output0": array}


CENTRED = letterboxed(boxes(), 96, 96)
LETTERBOX = {"size_wh": (96, 96), "resize": "letterbox", "color": "rgb", "scale": 1 / 255,
             "pad_value": 114, "mean": (0, 0, 0), "std": (1, 1, 1)}  # fmt: skip
STRETCH = {**LETTERBOX, "resize": "stretch"}
BGR = {**LETTERBOX, "resize": "letterbox_topleft", "color": "bgr", "scale": 1}
RECT = {**LETTERBOX, "size_wh": (640, 640), "resize": "letterbox_rect", "divisor": 64}
OPEN = ["batch", 3, "height", "width"]
TOP_LEFT = '[input]\nresize = "letterbox_topleft"\ncolor = "bgr"\nscale = 1.0\n'
TOP_LEFT += f"mean = {list(IMAGENET_255[0])}\nstd = {list(IMAGENET_255[1])}\n"
MMDEPLOY = {**BGR, "mean": IMAGENET_255[0], "std": IMAGENET_255[1]}


def of_config(kind, size):
    """config.json and preprocessor_config.json of Hugging Face."""
    normalised = kind not in {"rt_detr", "d_fine"}
    return {
        "config.json": {"model_type": kind, "id2label": dict(enumerate(LABELS))},
        "preprocessor_config.json": {
            "do_resize": True, "size": size, "resample": 2, "do_rescale": True,
            "rescale_factor": 1 / 255, "do_normalize": normalised, "image_mean": MEAN,
            "image_std": STD,
        },
    }  # fmt: skip


EDGES = {"shortest_edge": 96, "longest_edge": 120}
SQUARE = {"height": 96, "width": 96}
SHORTEST = {"resize": "shortest_longest", "size_wh": (96, 120), "mean": MEAN, "std": STD,
            "antialias": True, "divisor": 1}  # fmt: skip
PIXEL_VALUES = ("pixel_values", ["batch_size", "num_channels", "height", "width"])
SIZES = {"orig_target_sizes": (TensorProto.INT64, ["N", 2])}
IN_SIZES = [  # boxes are fractions until the graph takes them times the sizes that it is told
    helper.make_node("Cast", ["orig_target_sizes"], ["sizes"], to=TensorProto.FLOAT),
    helper.make_node("Concat", ["sizes", "sizes"], ["sides"], axis=1),
    helper.make_node("Constant", [], ["axis"], value_ints=[1]),
    helper.make_node("Unsqueeze", ["sides", "axis"], ["factors"]),
    helper.make_node("Mul", ["before", "factors"], ["boxes"]),
]


def columns(order, resize, more=""):
    return {
        "labels.txt": "ant\ncat\ndog\n",
        "model.toml": f'[input]\nresize = "{resize}"\n[output]\ndecoder = "{order}"\n{more}\n',
    }


def transposed(outputs):
    return {name: np.ascontiguousarray(array.T) for name, array in outputs.items()}


def case(family, outputs, name="", answers=OBJECTS, **more):
    return Case(name=name or family, family=family, outputs=outputs, answers=answers, **more)


WITH_SCORE = np.float32(np.column_stack([CENTRED, SCORES, CLASSES]))
RTDETR_ROWS = rows(np.column_stack([centred(fractions(boxes())), SCORES, CLASSES]))
RTDETR_RAW = rows(
    np.column_stack([centred(fractions(boxes())), np.eye(3)[CLASSES] * SCORES[:, None]])
)
CASES = [
    case("ultralytics", head(CENTRED), metadata=ultralytics("detect"), input=LETTERBOX),
    case("ultralytics", head(CENTRED), "dynamic batch", metadata=ultralytics("detect"),
         image=("images", ["batch", 3, 96, 96]), input=LETTERBOX),
    case("ultralytics", head(CENTRED), "batch of four", metadata=ultralytics("detect"),
         image=("images", [4, 3, 96, 96]), input=LETTERBOX),
    case("ultralytics", head(letterboxed(boxes(), 96, 128)), "not square", metadata=ultralytics("detect"),
         image=("images", [1, 3, 128, 96]), input={**LETTERBOX, "size_wh": (96, 128)}),
    case("ultralytics", head(letterboxed(boxes(), 640, 512)), "dynamic, padded to a rectangle",
         metadata=ultralytics("detect", stride="64"), image=("images", OPEN), input=RECT),
    case("ultralytics", head(CENTRED, dtype=np.float16), "half precision", metadata=ultralytics("detect"),
         kind=TensorProto.FLOAT16, input={**LETTERBOX, "dtype": "float16"}),
    case("ultralytics", head(CENTRED, classes=1), "one class", OF_ONE_CLASS,
         metadata=ultralytics("detect", names="{0: 'thing'}"), input=LETTERBOX),
    case("ultralytics", head(CENTRED, classes=1), "one class by its shape", OF_ONE_CLASS,
         files={"labels.txt": "thing\n"}, input=LETTERBOX),
    case("ultralytics-transposed", transposed(head(CENTRED)), metadata=ultralytics("detect"), input=LETTERBOX),
    case("ultralytics-transposed", transposed(head(CENTRED, dtype=np.float16)), "transposed, half precision",
         files=toml("ultralytics-transposed"), kind=TensorProto.FLOAT16, input={**LETTERBOX, "dtype": "float16"}),
    case("ultralytics-end2end", {"output0": rows(WITH_SCORE)}, metadata=ultralytics("detect"), input=LETTERBOX),
    case("ultralytics-rtdetr", {"output0": RTDETR_ROWS},
         metadata=ultralytics("detect", head="RTDETRDecoder"), input=STRETCH),
    case("ultralytics-rtdetr", {"output0": RTDETR_ROWS}, "RT-DETR of open size", image=("images", OPEN),
         metadata=ultralytics("detect", head="RTDETRDecoder"), input={**STRETCH, "size_wh": (640, 640)}),
    case("ultralytics-rtdetr-raw", {"output0": RTDETR_RAW},
         metadata=ultralytics("detect", head="RTDETRDecoder"), input=STRETCH),
    case("ultralytics-rtdetr-raw", {"output0": RTDETR_RAW}, "RT-DETR that does not name its head",
         metadata=ultralytics("detect"), input=STRETCH),
    case("ultralytics-rtdetr-raw", {"output0": RTDETR_RAW[:, [0, 1, 2, 3, 5, 6]]}, "RT-DETR of two classes",
         metadata=ultralytics("detect", names="['cat', 'dog']", description="Ultralytics rtdetr-l model"),
         input=STRETCH),
    case("ultralytics-end2end", {"output0": rows(WITH_SCORE - [0, 0, 0, 0, 0, 1])}, "two classes, NMS in the graph",
         metadata=ultralytics("detect", names="['cat', 'dog']", description="Ultralytics YOLOv10n model"),
         input=LETTERBOX),
    case("yolov5", objectness(CENTRED, 567, shift=5),  # overlaps of 0.53 and 0.59
         metadata={"stride": "32", "names": "['ant', 'cat', 'dog']"},
         input=LETTERBOX),
    case("yolov7-end2end", {"output": np.float32(np.column_stack([[0, 0], CENTRED, CLASSES, SCORES]))},
         batched=False, files=toml("yolov7-end2end"), input=LETTERBOX),
    case("yolo-nas-flat", {"graph2_flat_predictions": np.float32(np.column_stack([[0, 0], CENTRED, SCORES, CLASSES]))},
         batched=False, files={"labels.txt": "ant\ncat\ndog\n"}, input=LETTERBOX),
    case("yolox", yolox(at_top_left(boxes(), 96, 96)), files=toml("yolox"), input=BGR),
    case("yolox-decoded", objectness(at_top_left(boxes(), 96, 96), 189), files=toml("yolox-decoded"), input=BGR),
    case("yolov5", objectness(CENTRED, 567, shift=5)| {"map": np.zeros((3, 12, 12, 8), np.float32)}, "beside its maps",
         files={"labels.txt": "ant\ncat\ndog\n"}, input=LETTERBOX),
    case("ultralytics", head(CENTRED), "YOLOv9", metadata={"stride": "32", "names": "['ant', 'cat', 'dog']"},
         input=LETTERBOX),
    case("", {"out": WITH_SCORE[:, [5, 4, 0, 1, 2, 3]]}, "a table by its columns", batched=False,
         files=columns("class, score, box", "letterbox"), input=LETTERBOX),
    case("", {"out": np.float32(np.column_stack([[0, 0], at_top_left(boxes(), 96, 96)[:, [1, 0, 3, 2]], SCORES, CLASSES + 1]))},
         "EfficientDet", files=columns("image, yxyx, score, class", "letterbox_topleft", "label_offset = 1")),
    case("", {"other": np.zeros((300, 6), np.float32), "out": rows(WITH_SCORE)}, "the table of two",
         files=columns("box, score, class", "letterbox", 'name = "out"')),
    case("torchvision", {"4619": np.float32(boxes()), "4621": CLASSES, "4620": SCORES, "size": np.int64([48, 64])},
         "Detectron2 with as many boxes as sides", batched=False, image=("image", [3, "height", "width"]),
         files=toml("torchvision", '[output]\nlabel_offset = 0\nname = ["4619", "4621", "4620"]')),
    case("efficient-nms", efficient_nms(CENTRED), files={"labels.txt": "ant\ncat\ndog\n"}, input=LETTERBOX),
    case("damo-yolo", damo(), files=toml("damo-yolo"), input={**STRETCH, "scale": 1}),
    case("rtdetr", finished(fractions(boxes())), further=SIZES, nodes=[("boxes", IN_SIZES)],
         image=("images", ["N", 3, 96, 128]), files={"labels.txt": "ant\ncat\ndog\n"},
         input={**STRETCH, "size_wh": (128, 96), "antialias": True, "size_input": "orig_target_sizes"}),
    case("rf-detr", rf_detr(), image=("input", [1, 3, 96, 96]), files={"labels.txt": "ant\ncat\ndog\n"},
         input={**STRETCH, "mean": MEAN, "std": STD}),
    case("rf-detr", rf_detr_beside(0, 1), "RF-DETR, the last class for nothing", image=("input", [1, 3, 96, 96]),
         files=toml("rf-detr", "[output]\nbackground = 3")),
    case("rf-detr", rf_detr_beside(1, 0), "RF-DETR, the first class for nothing", image=("input", [1, 3, 96, 96]),
         files=toml("rf-detr", "[output]\nlabel_offset = 1")),
    case("rf-detr", rf_detr_beside(0, 1), "RF-DETR with metadata", image=("input", [1, 3, 96, 96]),
         metadata={"rfdetr_inference": '{"class_id_to_name": {"0": "ant", "1": "cat", "2": "dog"}}'}),
    case("rf-detr", rf_detr_beside(1, 0), "RF-DETR with the numbers of COCO", image=("input", [1, 3, 96, 96]),
         metadata={"rfdetr_inference": '{"class_id_to_name": {"1": "ant", "2": "cat", "3": "dog"}}'},
         files={"model.toml": "[output]\nbackground = 0"}),
    case("detr", detr(softmax=True), image=PIXEL_VALUES, files=of_config("detr", EDGES), input=SHORTEST),
    case("detr-sigmoid", detr(), image=PIXEL_VALUES, files=of_config("rt_detr", SQUARE),
         input={**STRETCH, "antialias": True}),
    case("detr-sigmoid-100", detr(count=150), image=PIXEL_VALUES,
         files=of_config("deformable_detr", EDGES), input=SHORTEST),
    case("torchvision", finished(boxes(), offset=1), batched=False, image=("image", [3, "height", "width"]),
         files={"labels.txt": "ant\ncat\ndog\n"},
         input={"resize": "none", "scale": 1 / 255, "mean": (0, 0, 0), "batch_axis": False}),
    case("torchvision", dict(zip(["5873", "5894", "5882"], finished(boxes(), offset=1).values(), strict=True)),
         "torchvision, outputs by numbers", batched=False, image=("images", [1, 3, "height", "width"]),
         files=toml("torchvision"), input={"resize": "none", "batch_axis": True}),
    case("tf-od", tensorflow(), image=("input_tensor", [1, "height", "width", 3]), kind=TensorProto.UINT8,
         files={"labels.txt": "ant\ncat\ndog\n"},
         input={"resize": "none", "layout": "nhwc", "dtype": "uint8", "color": "rgb"}),
    case("ssd", ssd(), files=toml("ssd", "[output]\nlabel_offset = 0"), input={"resize": "stretch"}),
    case("ssd", ssd(1), "SSD with a background", files=toml("ssd", "[output]\nlabel_offset = 1")),
    case("ssd", ssd(1), "SSD whose labels begin with the background", files={"labels.txt": "background\nant\ncat\ndog\n"}),
    case("torchvision", finished(boxes(), offset=1), "torchvision's own list of labels", batched=False,
         image=("image", [3, "height", "width"]), files={"labels.txt": "__background__\nant\ncat\ndog\n"}),
    case("tf-od", tensorflow(), "TensorFlow, labels that begin with the background",
         image=("input_tensor", [1, "height", "width", 3]), kind=TensorProto.UINT8,
         files={"labels.txt": "background\nant\ncat\ndog\n"}),
    *(case("tf-od", tensorflow(), f"TensorFlow, labels as {name}", image=("input_tensor", [1, "height", "width", 3]),
           kind=TensorProto.UINT8, files=files)
      for name, files in {
          "a list with placeholders": {"labels.txt": "???\nant\ncat\ndog\n???\n???\n"},
          "COCO's placeholders": {"classes.txt": "N/A\nant\ncat\ndog\nN/A\n"},
          "lines of numbers": {"labels.txt": "\nant\ncat\ndog\n"},
          "names with numbers": {"model.toml": "labels = {ant = 1, cat = 2, dog = 3}"},
      }.items()),
    case("ssd", ssd(1), "SSD whose labels begin with a placeholder", files={"labels.txt": "???\nant\ncat\ndog\n"}),
    case("rtdetr", finished(CENTRED), "sizes as floats", further={"orig_target_sizes": (TensorProto.FLOAT, ["N", 2])},
         files=toml("rtdetr", '[input]\nresize = "letterbox"')),
    case("mmdeploy", {"dets": np.float32(np.column_stack([at_top_left(boxes(), 96, 96), SCORES])),
         "labels": np.int64(CLASSES)}, image=("input", [1, 3, 96, 96]), input=MMDEPLOY,
         files={"labels.txt": "ant\ncat\ndog\n", "model.toml": TOP_LEFT}),
]  # fmt: skip

ORIENTED = [
    case("ultralytics-obb", rotated_head(), metadata=ultralytics("obb"), input=LETTERBOX),
    case("ultralytics-obb", {"output0": rotated_head()["output0"][[0, 1, 2, 3, 5, 6, 7]]}, "of 2 classes",
         files={"labels.txt": "cat\ndog\n", "model.toml": 'family = "ultralytics-obb"'}, input=LETTERBOX),
    case("ultralytics-obb", rotated_head(10, 16), "dynamic, padded to a rectangle", image=("images", OPEN),
         metadata=ultralytics("obb", stride="64"), input=RECT),
    case("ultralytics-obb-end2end", {"output0": rows(rotated(1.5, (0, 12), "xywhsca"))},
         metadata=ultralytics("obb"), input=LETTERBOX),
    case("mmdeploy-rotated", {"dets": rotated(1.5, (0, 0), "xywhas"), "labels": np.int64(CLASSES)},
         image=("input", [1, 3, 96, 96]), input=MMDEPLOY,
         files={"labels.txt": "ant\ncat\ndog\n", "model.toml": TOP_LEFT}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_boxes_come_back_in_pixels_of_the_image(case, tmp_path):
    predictions = ask(load(case, tmp_path))
    assert [prediction.label for prediction in predictions] == [
        label for label, _, _ in case.answers
    ]
    assert [prediction.score for prediction in predictions] == pytest.approx(
        SCORES.tolist(), abs=1e-6
    )
    anchors = [
        (prediction.xmin, prediction.ymin, prediction.xmax, prediction.ymax)
        for prediction in predictions
    ]
    np.testing.assert_allclose(anchors, boxes(case.answers), atol=1e-3)


@pytest.mark.parametrize("case", ORIENTED, ids=lambda case: case.name)
def test_rotated_boxes_come_back_as_fractions_of_the_image(case, tmp_path):
    predictions = ask(load(case, tmp_path))
    assert [prediction.label for prediction in predictions] == [label for label, _, _ in ROTATED]
    assert [prediction.score for prediction in predictions] == pytest.approx(
        SCORES.tolist(), abs=1e-6
    )
    anchors = [
        (prediction.cx, prediction.cy, prediction.w, prediction.h, prediction.r)
        for prediction in predictions
    ]
    sides = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT, 1])
    expected = [box for _, _, box in ROTATED]
    np.testing.assert_allclose(anchors * sides, expected, atol=1e-3)


def test_every_family_of_detectors_has_a_case():
    tasks = {"OBJECT_DETECTION", "ORIENTED_OBJECT_DETECTION"}
    detectors = {name for name, family in FAMILIES.items() if family.task in tasks}
    assert {case.family for case in (*CASES, *ORIENTED)} == detectors | {""}


AMBIGUOUS = [
    ((9, 2100), {"ultralytics": 5, "ultralytics-obb": 4}),
    ((300, 6), {"ultralytics-end2end": None, "ultralytics-rtdetr": None, "ultralytics-rtdetr-raw": 2,
                "box, class, score": None, "class, score, box": None}),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "families"), AMBIGUOUS)
def test_a_shape_of_two_families_is_refused_until_a_line_is_written(shape, families, tmp_path):
    graph = {"output0": np.zeros(shape, np.float32)}
    path = answering(tmp_path / "model.onnx", graph, image=("images", [1, 3, 320, 320]))
    if None in families.values():  # the shape does not tell how many
        (tmp_path / "labels.txt").write_text("ant\ncat\n")
    case = Case(name="", family="", outputs=graph, answers=(), image=("images", [1, 3, 320, 320]))
    with pytest.raises(LoadError, match=r"\[1, " + f"{shape[0]}, {shape[1]}") as refusal:
        load(case, tmp_path)
    lines = [line for line in str(refusal.value).splitlines() if line.startswith("  ")]
    assert [line.split('"')[1] for line in lines] == [*families, "tensor"]
    for line, (family, count) in zip(lines[:-1], families.items(), strict=True):
        assert count is None or line.endswith(f", {count} classes")
        resize = (
            '[input]\nresize = "letterbox"\n' if line.endswith("; needs [input] resize") else ""
        )
        (tmp_path / "model.toml").write_text(f"{line}\n{resize}")
        known = family if family in FAMILIES else ""
        chosen = Case(name="", family=known, outputs=graph, answers=(), image=case.image)
        assert ask(load(chosen, tmp_path)) == []
    assert path.exists()


def test_outputs_without_the_batch_axis_that_they_should_have_are_named(tmp_path):
    files = toml("torchvision", "[output]\nbatch_axis = true")
    empty = {name: array[:0] for name, array in finished(boxes(), offset=1).items()}
    case = Case(name="", family="torchvision", outputs=empty, answers=(), batched=False, files=files,
                image=("image", [3, "height", "width"]))  # fmt: skip
    with pytest.raises(LoadError, match=r"batch_axis = false in model.toml, \[output\]"):
        load(case, tmp_path)


def test_a_graph_of_one_size_takes_no_image_as_it_is(tmp_path):
    case = Case(name="", family="torchvision", outputs=finished(boxes(), offset=1), answers=(), batched=False,
                files=toml("torchvision"), image=("image", [3, 64, 96]))  # fmt: skip
    with pytest.raises(LoadError, match=r'got one of \[96, 64\] .*resize = "stretch"'):
        load(case, tmp_path)


@pytest.mark.parametrize("with_masks", [False, True])
def test_a_class_more_than_labels_is_refused_until_a_line_is_written(with_masks, tmp_path):
    outputs = rf_detr_beside(0, 1)
    if with_masks:
        outputs["masks"] = np.zeros((20, 24, 24), np.float32)
    case = Case(
        name="",
        family="rf-detr-seg" if with_masks else "rf-detr",
        outputs=outputs,
        answers=(),
        image=("input", [1, 3, 96, 96]),
        files={"labels.txt": "ant\ncat\ndog\n"},
    )
    with pytest.raises(
        LoadError, match="which of the 4 classes of RF-DETR is the background"
    ) as caught:
        load(case, tmp_path)
    lines = [line.strip() for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert [line.partition("  #")[0] for line in lines] == ["background = 3", "label_offset = 1"]
    for line in lines:
        (tmp_path / "model.toml").write_text(f"[output]\n{line}\n")
        model = load(case, tmp_path)
        reasons = {
            prediction.field: prediction.reason for prediction in model.recognition.decisions
        }
        assert reasons[f"output.{line.split()[0]}"] == "model.toml"


def test_as_many_labels_as_a_detector_has_classes_make_it_one(tmp_path):
    case = Case(
        name="",
        family="ultralytics",
        outputs={"output0": np.zeros((9, 2100), np.float32)},
        answers=(),
        image=("images", [1, 3, 320, 320]),
        files={"labels.txt": "\n".join("abcde")},
    )
    assert ask(load(case, tmp_path)) == []
