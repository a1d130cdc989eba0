"""Every family of segmentation and classification: known masks and probabilities come back.

The encoders are written from each family's documents, not from the segmenters.
"""

import cv2
import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper

from quadriga.engine.models.recognition.families import FAMILIES
from quadriga.engine.models.runners.session import LoadError
from quadriga.engine.serving.image_inference import ImageModel, infer_images
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.geometry import fill, to_rings
from quadriga.tasks.image import MAX_PIXELS
from quadriga.tasks.specification import InputSpec
from tests.families.folders import (
    HEIGHT,
    LABELS,
    MEAN,
    NAMES,
    STD,
    WIDTH,
    Case,
    ask,
    load,
    toml,
    ultralytics,
)

GROUND = ("background", "cat", "dog")
GROUND_NAMES = "{0: 'background', 1: 'cat', 2: 'dog'}"
CAT, DOG = (8, 8, 28, 24), (36, 20, 60, 44)
"""Left, top, right, bottom."""
CAT_SCORE, DOG_SCORE = 0.875, 0.75


def region(left, top, right, bottom):
    mask = np.zeros((HEIGHT, WIDTH), np.bool_)
    mask[top:bottom, left:right] = True
    return mask


def sigmoid(logit):
    return 1 / (1 + np.exp(-logit))


def enlarged(mask, gain, pad):
    """The image in the middle of a square, each pixel `gain` pixels wide."""
    network = np.kron(mask, np.ones((gain, gain), mask.dtype))
    return np.pad(network, ((pad, pad), (0, 0)))


def class_map():
    array = np.zeros((HEIGHT, WIDTH), np.uint8)
    array[region(*CAT)], array[region(*DOG)] = 1, 2
    return array


def class_logits():
    """[classes, h, w]: the winner has the wanted share of the softmax, the two others the rest."""
    array = np.zeros((3, HEIGHT, WIDTH), np.float32)
    for index, box, score in ((1, CAT, CAT_SCORE), (2, DOG, DOG_SCORE)):
        array[index][region(*box)] = np.log(2 * score / (1 - score))
    array[0][class_map() == 0] = 5
    return array


CAT_BAND, DOG_BAND = (0, 0, 20, 48), (40, 0, 64, 48)


def quarter_logits():
    """[classes, h / 4, w / 4]: the cat on the left and the dog on the right of the background."""
    array = np.full((3, HEIGHT // 4, WIDTH // 4), -30, np.float32)
    array[1, :, :5], array[0, :, :5] = 3, -3
    array[0, :, 5:10], array[1, :, 5:7], array[2, :, 8:10] = 3, -3, -3
    array[2, :, 10:], array[0, :, 10:] = 3, -3
    return array


def band_score(columns):
    """The mean over a band: the logit falls from 6 to 0 at its edge, over half of a cell."""
    edge = sigmoid(6 * 1.5 / 2) + sigmoid(6 * 0.5 / 2)
    return ((columns - 2) * sigmoid(6) + edge) / columns


def prototypes():
    """Two that matter of 32, a quarter of 128 x 128: inside left of column 18, and above row 32."""
    array = np.zeros((32, 32, 32), np.float32)
    array[0], array[1] = -1, -1
    array[0][:, : 18 * 2 // 4] = 1
    array[1][: (32 * 2 + 16) // 4] = 1
    return array


def network_boxes():
    return np.float32([CAT, DOG]) * 2 + [0, 16, 0, 16]


SHARES = np.zeros((2, 32), np.float32)
SHARES[0, 0], SHARES[1, 1] = 3, 2


def seg_head():
    """Ultralytics: [4 + classes + 32, anchors], with a worse box upon each, of another mask."""
    left, top, right, bottom = network_boxes().T
    array = np.zeros((4 + 3 + 32, 336), np.float32)
    for shift in (0, 1):
        boxes = [20 + shift, 200 + shift]
        array[:4, boxes] = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
        array[[5, 6], boxes] = CAT_SCORE - shift / 8, DOG_SCORE - shift / 8
        array[7:, boxes] = SHARES.T * (1 - 2 * shift)
    return {"output0": array, "output1": prototypes()}


def yolov5_seg():
    """YOLOv5: [anchors, 5 + classes + 32], the score is the product of two columns."""
    outputs = seg_head()
    head = np.zeros((1008, 5 + 3 + 32), np.float32)
    columns = outputs["output0"].T
    head[:336] = np.column_stack([columns[:, :4], np.full(336, 0.9375), columns[:, 4:]])
    head[:, 5:8] /= 0.9375
    return {**outputs, "output0": head}


def seg_rows():
    array = np.zeros((300, 38), np.float32)
    array[:2] = np.column_stack([network_boxes(), [CAT_SCORE, DOG_SCORE], [1, 2], SHARES])
    return {"output0": array, "output1": prototypes()}


def masks(inside, outside):
    return np.where([region(*CAT), region(*DOG)], inside, outside).astype(np.float32)


def mask_rcnn():
    return {
        "boxes": np.float32([CAT, DOG]),
        "labels": np.int64([2, 3]),
        "scores": np.float32([CAT_SCORE, DOG_SCORE]),
        "masks": masks(0.9, 0.1)[:, None],
    }


def mmdeploy():
    """Masks of 28 x 28, each within its box."""
    return {
        "dets": np.float32([[*CAT, CAT_SCORE], [*DOG, DOG_SCORE]]),
        "labels": np.int64([1, 2]),
        "masks": np.full((2, 28, 28), 0.9, np.float32),
    }


def rf_detr_beside(first, last):
    """Add a column for no object, which is likelier than any object, before or after the classes."""
    array = rf_detr()
    logits = np.pad(array["labels"], ((0, 0), (first, last)), constant_values=-20)
    logits[4, 0 if first else -1] = 3
    return {**array, "labels": logits}


def rf_detr():
    logits = np.full((10, 3), -20, np.float32)
    logits[[2, 7], [1, 2]] = np.log([CAT_SCORE / (1 - CAT_SCORE), DOG_SCORE / (1 - DOG_SCORE)])
    array = np.full((10, HEIGHT, WIDTH), -5, np.float32)
    array[[2, 7]] = masks(5, -5)
    return {"dets": np.full((10, 4), 0.5, np.float32), "labels": logits, "masks": array}


def maskformer():
    """Queries of a cat, a dog, and what is between; the last column is for nothing."""
    chances = np.full((3, 4), 1e-9)
    chances[[0, 1], [1, 2]] = CAT_SCORE, DOG_SCORE
    chances[[0, 1], 3] = 1 - CAT_SCORE, 1 - DOG_SCORE
    chances[2, 0] = 1
    between = np.where(class_map() == 0, 30, -30).astype(np.float32)
    return {
        "class_queries_logits": np.float32(np.log(chances)),
        "masks_queries_logits": np.concatenate([masks(6, -30), between[None]]),
    }


def mask2former():
    """The same in cells of 384 x 384, so that enlarging to them changes nothing."""
    outputs = maskformer()
    cells = np.ones((384 // HEIGHT, 384 // WIDTH), np.float32)
    array = np.stack([np.kron(mask, cells) for mask in outputs["masks_queries_logits"]])
    return {**outputs, "masks_queries_logits": array}


def pixel_values(architecture, labels=LABELS, **more):
    """config.json and preprocessor_config.json of Hugging Face."""
    return {
        "config.json": {
            "architectures": [architecture],
            "id2label": {str(index): label for index, label in enumerate(labels)},
            **more,
        },
        "preprocessor_config.json": {
            "do_resize": True, "size": {"height": HEIGHT, "width": WIDTH}, "resample": 2,
            "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
            "image_mean": MEAN, "image_std": STD,
        },
    }  # fmt: skip


SIDE_OUTPUT = np.zeros((1, HEIGHT, WIDTH), np.float32)
SIDE_OUTPUT[0, 0, 0] = 1
U2NET = np.where(region(*CAT), 0.8, 0.2).astype(np.float32)
U2NET[8:16, 8:28] = 0.65  # three quarters of the way up, in half of the mask
CHANCES = (0.25, 0.625, 0.125)
LOGITS = {"logits": np.log(np.float32(CHANCES)) + 2}
MULTI = {"logits": np.float32([np.log(p / (1 - p)) for p in CHANCES])}

SAME = {"size_wh": (WIDTH, HEIGHT), "resize": "stretch", "color": "rgb", "scale": 1 / 255,
        "mean": MEAN, "std": STD}  # fmt: skip
ZERO_TO_ONE = {"mean": (0, 0, 0), "std": (1, 1, 1), "scale": 1 / 255, "color": "rgb"}
LETTERBOX = {**ZERO_TO_ONE, "size_wh": (128, 128), "resize": "letterbox", "pad_value": 114}
AT_SAME = ("input", ["batch", 3, HEIGHT, WIDTH])
CHANNELS_LAST = ("image", ["batch", HEIGHT, WIDTH, 3])
AT_128 = ("images", [1, 3, 128, 128])
AT_96 = ("input", ["batch", 3, 96, 96])
BOTH = (("cat", CAT_SCORE, region(*CAT)), ("dog", DOG_SCORE, region(*DOG)))
BANDS = (("cat", band_score(20), region(*CAT_BAND)), ("dog", band_score(24), region(*DOG_BAND)))
CUT = (("cat", CAT_SCORE, region(8, 8, 18, 24)), ("dog", DOG_SCORE, region(36, 20, 60, 32)))
CERTAIN = tuple((label, 1, mask) for label, _, mask in BOTH)
IN_MASK = tuple((label, score * sigmoid(6), mask) for label, score, mask in BOTH)
NOT_KNOWN = '[input]\nresize = "stretch"\nscale = 1.0\nmean = [123.7, 116.3, 103.5]\nstd = [58.4, 57.1, 57.4]'
YOLOV5 = {"names": NAMES, "stride": "32"}
THREE = {"labels.txt": "ant\ncat\ndog\n"}


def last(maps):
    """Maps with their channels last, as Keras and TensorFlow order them."""
    return np.ascontiguousarray(np.moveaxis(maps, 0, -1))


def thing(score):
    return (("thing", score, region(*CAT)),)


def case(family, outputs, answers, name="", **more):
    return Case(name=name or family, family=family, outputs=outputs, answers=answers, **more)


SEGMENTERS = [
    case("ultralytics-seg", seg_head(), CUT, image=AT_128, metadata=ultralytics("segment"), input=LETTERBOX),
    case("yolov5-seg", yolov5_seg(), CUT, image=AT_128, metadata=YOLOV5, input=LETTERBOX),
    case("yolov5-seg", yolov5_seg(), CUT, "YOLOv5, by its shapes", image=AT_128, files=THREE),
    case("ultralytics-seg", seg_head(), CUT, "YOLOv9", image=AT_128, metadata=YOLOV5, input=LETTERBOX),
    case("ultralytics-seg-end2end", seg_rows(), CUT, image=AT_128, metadata=ultralytics("segment"),
         input=LETTERBOX),
    case("ultralytics-semantic", {"output0": enlarged(class_map(), 2, 16)}, CERTAIN, image=AT_128,
         metadata=ultralytics("semantic", names=GROUND_NAMES), input=LETTERBOX),
    case("ultralytics-semantic", {"output0": enlarged(class_map(), 10, 16)}, CERTAIN,
         "dynamic, padded to a rectangle", image=("images", ["batch", 3, "height", "width"]),
         metadata=ultralytics("semantic", names=GROUND_NAMES, stride="64"),
         input={**LETTERBOX, "size_wh": (640, 640), "resize": "letterbox_rect", "divisor": 64}),
    case("segformer", {"logits": quarter_logits()}, BANDS, image=("pixel_values", ["n", "c", "h", "w"]),
         files=pixel_values("SegformerForSemanticSegmentation", GROUND), input={**SAME, "antialias": True}),
    case("torchvision-semantic", {"out": class_logits(), "aux": -class_logits()}, BOTH, image=AT_SAME,
         files=toml("torchvision-semantic", labels=GROUND), input=SAME),
    case("torchvision-semantic", {"aux": -class_logits(), "out": class_logits()}, BOTH, "aux before out",
         image=AT_SAME, files=toml("torchvision-semantic", labels=GROUND), input=SAME),
    case("torchvision-semantic", {"7": -class_logits(), "8": class_logits()}, BOTH, "the second of two",
         image=AT_SAME, files=toml("torchvision-semantic", '[output]\nname = "8"', labels=GROUND)),
    case("segformer", {"aux_logits": -quarter_logits(), "logits": quarter_logits()}, BANDS, "aux before logits",
         image=("pixel_values", ["n", "c", "h", "w"]), files=pixel_values("UperNetForSemanticSegmentation", GROUND)),
    case("unet", {"masks": class_logits()}, BOTH, image=AT_SAME, files=toml("unet", labels=GROUND),
         input={**ZERO_TO_ONE, "resize": "stretch"}),
    case("class-map", {"map": class_map().astype(np.int64)}, CERTAIN, image=AT_SAME,
         files=toml("class-map", labels=GROUND), input=SAME),
    case("class-map", {"map": class_map().astype(np.int64)[None]}, CERTAIN, "class-map, with one channel",
         image=AT_SAME, files=toml("class-map", labels=GROUND), input=SAME),
    case("unet", {"masks": last(class_logits())}, BOTH, "unet, channels last",
         image=CHANNELS_LAST, files=toml("unet", labels=GROUND), input=ZERO_TO_ONE),
    case("unet", {"masks": last(class_logits())}, BOTH, "unet, channels last but for the image's",
         image=AT_SAME, files=toml("unet", labels=GROUND), input=ZERO_TO_ONE),
    case("unet", {"masks": last(class_logits())}, BOTH, "unet, channels last, as model.toml says",
         image=AT_SAME, files=toml("unet", '[output]\nlayout = "nhwc"', labels=GROUND)),
    case("class-map", {"map": last(class_map().astype(np.int64)[None])}, CERTAIN, "class-map, channel last",
         image=CHANNELS_LAST, files=toml("class-map", labels=GROUND), input={"layout": "nhwc"}),
    case("binary-unet", {"mask": last(np.where(region(*CAT), 0.875, 0.25).astype(np.float32)[None])},
         thing(0.875), "binary-unet, channel last", image=CHANNELS_LAST,
         files=toml("binary-unet", labels=["thing"]), input={"layout": "nhwc"}),
    case("binary-segmentation", {"mask": np.where(region(*CAT), 4, -4).astype(np.float32)[None]},
         thing(sigmoid(4)), image=AT_SAME, files=toml("binary-segmentation", labels=["thing"]), input=SAME),
    case("binary-unet", {"mask": np.where(region(*CAT), 0.875, 0.25).astype(np.float32)[None]},
         thing(0.875), image=AT_SAME, files=toml("binary-unet", labels=["background", "thing"]),
         input={**ZERO_TO_ONE, "resize": "stretch"}),
    case("birefnet", {"side": SIDE_OUTPUT, "mask": np.where(region(*CAT), 4, -4).astype(np.float32)[None]},
         thing(sigmoid(4)), image=AT_SAME, files=toml("birefnet", labels=["thing"]), input=SAME),
    case("u2net", {"d0": U2NET[None], "d1": SIDE_OUTPUT}, thing(0.875), image=AT_SAME,
         files=toml("u2net", labels=["thing"]), input=SAME),
    case("mask-rcnn", mask_rcnn(), BOTH, batched=False, image=("image", [3, "height", "width"]), files=THREE,
         input={**ZERO_TO_ONE, "resize": "none", "batch_axis": False}),
    case("mask-rcnn", mask_rcnn(), BOTH, "torchvision's own list of labels", batched=False,
         image=("image", [3, "height", "width"]), files={"labels.txt": "__background__\nant\ncat\ndog\n"}),
    case("torchvision-semantic", {"7": np.zeros(len(GROUND), np.float32), "8": class_logits()}, BOTH,
         "scores of the image before the map", image=AT_SAME, files=toml("torchvision-semantic", labels=GROUND)),
    case("mmdeploy-seg", mmdeploy(), BOTH, "masks within boxes", image=AT_SAME,
         files={**THREE, "model.toml": NOT_KNOWN}, input={"resize": "stretch", "scale": 1.0}),
    case("mmdeploy-seg", mmdeploy() | {"masks": masks(0.9, 0.1)}, BOTH, "masks of the whole image",
         image=AT_SAME, files={**THREE, "model.toml": NOT_KNOWN}),
    case("ultralytics-seg", seg_head(), CUT, "of open size, without metadata",
         image=("images", ["batch", 3, "height", "width"]),
         files={**THREE, "model.toml": "[input]\nsize = [128, 128]"}, input=LETTERBOX),
    case("ultralytics-seg", dict(reversed(seg_head().items())), CUT, "prototypes first", image=AT_128,
         files=THREE, input=LETTERBOX),
    case("rf-detr-seg", rf_detr(), BOTH, image=AT_SAME, files=THREE, input=SAME),
    case("rf-detr-seg", rf_detr_beside(0, 1), BOTH, "RF-DETR, the last class for nothing", image=AT_SAME,
         files={**THREE, "model.toml": "[output]\nbackground = 3"}),
    case("rf-detr-seg", rf_detr_beside(1, 0), BOTH, "RF-DETR, the first class for nothing", image=AT_SAME,
         files={**THREE, "model.toml": "[output]\nlabel_offset = 1"}),
    case("maskformer", maskformer(), IN_MASK, image=AT_SAME,
         files={**pixel_values("MaskFormerForInstanceSegmentation", GROUND),
                "model.toml": 'family = "maskformer"'}, input=SAME),
    case("maskformer-instance", maskformer(), IN_MASK, image=AT_SAME,
         files={**pixel_values("MaskFormerForInstanceSegmentation", GROUND),
                "model.toml": 'family = "maskformer-instance"'}, input=SAME),
    case("mask2former", mask2former(), IN_MASK, image=AT_SAME,
         files={**pixel_values("Mask2FormerForUniversalSegmentation", GROUND),
                "model.toml": 'family = "mask2former"'}, input=SAME),
    case("mask2former-instance", mask2former(), IN_MASK, image=AT_SAME,
         files={**pixel_values("Mask2FormerForUniversalSegmentation", GROUND),
                "model.toml": 'family = "mask2former-instance"'}, input=SAME),
]  # fmt: skip

SOFTMAX = [("logits", [helper.make_node("Softmax", ["before"], ["logits"], axis=-1)])]
WRITTEN_OUT = [("logits", [helper.make_node("Exp", ["before"], ["powers"]),
                           helper.make_node("Constant", [], ["axis"], value_ints=[-1]),
                           helper.make_node("ReduceSum", ["powers", "axis"], ["sum"], keepdims=1),
                           helper.make_node("Div", ["powers", "sum"], ["logits"])])]  # fmt: skip
QUANTISED = [("logits", [helper.make_node("Softmax", ["before"], ["chances"], axis=-1),
                         helper.make_node("Constant", [], ["step"], value_float=1 / 200),
                         helper.make_node("QuantizeLinear", ["chances", "step"], ["bytes"]),
                         helper.make_node("DequantizeLinear", ["bytes", "step"], ["logits"])])]  # fmt: skip
SIGMOID = [("logits", [helper.make_node("Sigmoid", ["before"], ["logits"])])]
HEADS = [("logits", [helper.make_node("Split", ["before"], ["a", "b", "c"], axis=1),
                     *(helper.make_node("Sigmoid", [head], [f"{head}_score"]) for head in "abc"),
                     helper.make_node("Concat", ["a_score", "b_score", "c_score"], ["logits"], axis=1)])]  # fmt: skip
VIT = "ViTForImageClassification"
TIMM = {"config.json": {
    "architecture": "resnet18", "label_names": LABELS,
    "pretrained_cfg": {"input_size": [3, 96, 96], "mean": MEAN, "std": STD, "interpolation": "bicubic",
                       "crop_pct": 0.9, "crop_mode": "center"}}}  # fmt: skip
CROPPED = {"size_wh": (96, 96), "resize": "shortest_crop", "antialias": True}
CLASSIFY = ultralytics("classify", stride="1")

CLASSIFIERS = [
    case("ultralytics-cls", {"output0": np.float32(CHANCES)}, CHANCES, metadata=CLASSIFY,
         image=("images", [1, 3, 96, 96]), input={**CROPPED, **ZERO_TO_ONE, "crop_fraction": 1}),
    case("ultralytics-cls", {"output0": np.float32(CHANCES)}, CHANCES, "Ultralytics classifier, not square",
         metadata=ultralytics("classify", imgsz="[48, 96]"), image=("images", [1, 3, 48, 96]),
         input={"size_wh": (96, 48), "resize": "stretch", "antialias": True}),
    case("ultralytics-cls", {"output0": np.float32(CHANCES)}, CHANCES, "Ultralytics classifier of open size",
         metadata=CLASSIFY, image=("images", ["batch", 3, "height", "width"]), input=CROPPED),
    case("hf-classifier", LOGITS, CHANCES, image=AT_SAME, files=pixel_values(VIT), input=SAME),
    case("hf-classifier", LOGITS, CHANCES, "softmax in the graph", image=AT_SAME, files=pixel_values(VIT),
         nodes=SOFTMAX),
    case("hf-classifier", LOGITS, CHANCES, "softmax written out in the graph", image=AT_SAME,
         files=pixel_values(VIT), nodes=WRITTEN_OUT),
    case("hf-classifier", LOGITS, CHANCES, "softmax in the graph, quantised", image=AT_SAME,
         files=pixel_values(VIT), nodes=QUANTISED),
    case("hf-classifier", MULTI, CHANCES, "many labels", image=AT_SAME,
         files=pixel_values(VIT, problem_type="multi_label_classification")),
    case("hf-classifier", MULTI, CHANCES, "sigmoid in the graph", image=AT_SAME, nodes=SIGMOID,
         files=pixel_values(VIT, problem_type="multi_label_classification")),
    case("hf-classifier", LOGITS, CHANCES, "half precision", image=AT_SAME, kind=TensorProto.FLOAT16,
         files=pixel_values(VIT), input={**SAME, "dtype": "float16"}),
    case("hf-classifier", {"hidden": np.zeros((7, 5), np.float32), **LOGITS}, CHANCES, "hidden state before logits",
         image=AT_SAME, files=pixel_values(VIT)),
    case("hf-classifier", {"cls_logits": -LOGITS["logits"], **LOGITS, "distillation_logits": -LOGITS["logits"]},
         CHANCES, "DeiT with a teacher", image=AT_SAME, files=pixel_values("DeiTForImageClassificationWithTeacher")),
    case("timm", {"4021": np.zeros(5, np.float32), "4022": LOGITS["logits"]}, CHANCES, "features before scores",
         image=AT_96, files=TIMM),
    case("timm", {"4021": -LOGITS["logits"], "4022": LOGITS["logits"]}, CHANCES, "the second of two", image=AT_96,
         files={**TIMM, "model.toml": '[output]\nname = "4022"'}),
    case("torchvision-classifier", {"out": LOGITS["logits"][:, None, None]}, CHANCES, "classes of 1 x 1", image=AT_96,
         files=toml("torchvision-classifier")),
    case("plain-classifier", {"out": LOGITS["logits"][None, None]}, CHANCES, "classes of 1 x 1, channels last",
         image=CHANNELS_LAST, files=toml("plain-classifier")),
    case("plain-classifier", LOGITS, CHANCES, "scores of one image, without a batch", image=("input", [1, 3, 96, 96]),
         batched=False, files=toml("plain-classifier")),
    case("plain-classifier", LOGITS, CHANCES, "an image without a batch", image=("input", [3, 96, 96]), batched=False,
         files=toml("plain-classifier")),
    case("plain-classifier", MULTI, CHANCES, "sigmoids of several heads", image=AT_96, files=toml("plain-classifier"),
         nodes=HEADS),
    case("yolov5-cls", {"output0": LOGITS["logits"]}, CHANCES, image=AT_96, metadata=YOLOV5,
         input={**CROPPED, "crop_fraction": 1, "antialias": False, "mean": MEAN, "std": STD}),
    case("timm", LOGITS, CHANCES, image=AT_96, files=TIMM,
         input={**CROPPED, "crop_fraction": 0.9, "interpolation": "cubic", "mean": MEAN, "std": STD}),
    case("torchvision-classifier", LOGITS, CHANCES, image=AT_96, files=toml("torchvision-classifier"),
         input={**CROPPED, "crop_fraction": 0.875, "mean": MEAN, "std": STD}),
    case("plain-classifier", LOGITS, CHANCES, image=AT_96, files=toml("plain-classifier"),
         input={**ZERO_TO_ONE, "resize": "stretch", "layout": "nchw"}),
    case("plain-classifier", LOGITS, CHANCES, "colours last", image=("input", ["batch", 48, 64, 3]),
         files=toml("plain-classifier"), nodes=SOFTMAX,
         input={**ZERO_TO_ONE, "size_wh": (64, 48), "layout": "nhwc"}),
]  # fmt: skip


@pytest.mark.parametrize("case", SEGMENTERS, ids=lambda case: case.name)
def test_masks_come_back_in_pixels_of_the_image(case, tmp_path):
    predictions = sorted(ask(load(case, tmp_path)), key=lambda prediction: prediction.label)
    assert [prediction.label for prediction in predictions] == [
        label for label, _, _ in case.answers
    ]
    scores = [score for _, score, _ in case.answers]
    assert [prediction.score for prediction in predictions] == pytest.approx(scores, abs=1e-6)
    for prediction, (_, _, mask) in zip(predictions, case.answers, strict=True):
        np.testing.assert_array_equal(fill(to_rings(prediction.contour), WIDTH, HEIGHT), mask)


@pytest.mark.parametrize("case", CLASSIFIERS, ids=lambda case: case.name)
def test_probabilities_come_back_with_their_labels(case, tmp_path):
    predictions = ask(load(case, tmp_path), {"action": "predict_proba"})
    assert [prediction.label for prediction in predictions] == ["cat", "ant", "dog"]
    scores = sorted(case.answers, reverse=True)
    assert [prediction.score for prediction in predictions] == pytest.approx(scores, abs=1e-6)


@pytest.mark.parametrize("shape", [(1,), (1, 1, 1)])
def test_one_logit_is_a_probability_of_its_own(shape, tmp_path):
    logit = {"logits": np.full(shape, -np.log(3), np.float32)}
    alone = case(
        "plain-classifier", logit, (), image=AT_96, files=toml("plain-classifier", "", ["ant"])
    )
    (predictions,) = ask(load(alone, tmp_path))
    assert (predictions.label, predictions.score) == ("ant", pytest.approx(0.25, abs=1e-6))


def test_an_image_too_narrow_to_be_cropped_is_refused_by_its_place_in_the_request(tmp_path):
    model = load(case("timm", LOGITS, CHANCES, image=AT_96, files=TIMM), tmp_path)
    assert model.image_predictor is not None
    assert model.spec is not None
    data = [cv2.imencode(".png", np.zeros((1, w, 3), np.uint8))[1].tobytes() for w in (9, 60_000)]
    images = ImageModel(model.image_predictor, MAX_PIXELS, max_images=2)
    request = InferRequest("model", None, "", [Tensor("image", "BYTES", (2,), data, {})])
    with pytest.raises(
        InvalidRequest, match=r"data\[1\]: expected an image that is scaled to at most"
    ):
        infer_images(images, request)


def test_every_family_of_segmentation_and_classification_has_a_case():
    tasks = {"IMAGE_SEGMENTATION", "IMAGE_CLASSIFICATION"}
    families = {name for name, family in FAMILIES.items() if family.task in tasks}
    assert {case.family for case in (*SEGMENTERS, *CLASSIFIERS)} == families


ID2LABEL = [
    {"0": "ant", "1": "cat", "2": "dog"},
    {"2": "dog", "0": "ant", "1": "cat"},
    {"ant": 0, "cat": 1, "dog": 2},
    ["ant", "cat", "dog"],
]


@pytest.mark.parametrize("id2label", ID2LABEL)
def test_labels_of_a_config_in_every_form(id2label, tmp_path):
    config = {"config.json": {"architectures": [VIT], "id2label": id2label}}
    files = {**pixel_values(VIT), **config}
    predictions = case("hf-classifier", LOGITS, CHANCES, image=AT_SAME, files=files)
    assert ask(load(predictions, tmp_path))[0].label == "cat"


def test_a_file_of_labels_beats_metadata(tmp_path):
    metadata = {**CLASSIFY, "names": NAMES.replace("cat", "cow")}
    outputs = {"output0": np.float32(CHANCES)}
    predictions = case(
        "ultralytics-cls", outputs, CHANCES, image=AT_96, metadata=metadata, files=THREE
    )
    assert ask(load(predictions, tmp_path))[0].label == "cat"


@pytest.mark.parametrize("text", ["ant\n\ndog\n\n", "\ufeffant \r\n \r\ndog"])
def test_an_empty_line_of_labels_moves_none(text, tmp_path):
    files = {"model.toml": 'family = "plain-classifier"', "labels.txt": text}
    predictions = ask(
        load(case("plain-classifier", LOGITS, CHANCES, image=AT_96, files=files), tmp_path)
    )
    assert [prediction.label for prediction in predictions] == ["class_1"]


REFUSED = [
    ({"m": np.zeros((1, 48, 64), np.float32)}, {}, ["binary-segmentation", "binary-unet", "birefnet", "u2net"]),
    ({"m": np.zeros((48, 64), np.int64)}, {}, ["class-map", "ultralytics-semantic"]),
    ({"m": np.zeros((1, 48, 64), np.int64)}, {}, ["class-map", "ultralytics-semantic"]),
    ({"m": np.zeros((48, 64, 1), np.int64)}, {}, ["class-map", "ultralytics-semantic"]),
    ({"m": np.zeros((48, 64, 1), np.float32)}, {}, ["binary-segmentation", "binary-unet", "birefnet", "u2net"]),
    ({"m": class_logits()}, {}, ["torchvision-semantic", "unet", "segformer"]),
    (LOGITS, {}, ["plain-classifier", "torchvision-classifier", "timm", "ultralytics-cls"]),
    (maskformer(), pixel_values("MaskFormerForInstanceSegmentation", GROUND), ["maskformer", "maskformer-instance"]),
    (mask2former(), pixel_values("Mask2FormerForUniversalSegmentation", GROUND, model_type="mask2former"), ["mask2former", "mask2former-instance"]),
]  # fmt: skip


@pytest.mark.parametrize(("outputs", "files", "families"), REFUSED)
def test_what_several_families_answer_is_refused_with_the_lines_to_write(
    outputs, files, families, tmp_path
):
    with pytest.raises(LoadError, match="Write one of these lines") as refusal:
        load(case("", outputs, (), image=AT_SAME, files=files), tmp_path)
    lines = [line for line in str(refusal.value).splitlines() if line.startswith("  ")]
    assert [line.split('"')[1] for line in lines] == [*families, "tensor"]
    otherwise = next(line for line in str(refusal.value).splitlines() if "below [input]" in line)
    keys = otherwise.partition("[input]: ")[2].rstrip(".").split(", ")
    assert set(keys) <= {field.encode_name for field in msgspec.structs.fields(InputSpec)}
    assert {"resize", "color", "scale", "mean", "std", "interpolation"} <= set(keys)


TIES = [  # outputs, family, labels, what else is written
    ({"a": LOGITS["logits"], "b": LOGITS["logits"]}, "timm", LABELS),
    ({"a": class_logits(), "b": class_logits()}, "unet", GROUND),
    ({"out:0": class_logits(), "out": class_logits()}, "unet", GROUND),
    ({"a": class_map().astype(np.int64), "b": class_map().astype(np.int64)}, "class-map", GROUND),
]


@pytest.mark.parametrize(("outputs", "family", "labels"), TIES)
def test_outputs_that_nothing_tells_apart_are_asked_about(outputs, family, labels, tmp_path):
    first, second = outputs
    more = '[input]\nresize = "stretch"\nmean = [0.0, 0.0, 0.0]\nstd = [1.0, 1.0, 1.0]\n'
    graph = case(family, outputs, (), image=AT_SAME, files=toml(family, more, labels=labels))
    with pytest.raises(LoadError, match="which output of the graph is read") as refusal:
        load(graph, tmp_path)
    lines = [line for line in str(refusal.value).splitlines() if line.startswith("  ")]
    assert [line.split('"')[1] for line in lines] == [first, second]
    for line, name in zip(lines, outputs, strict=True):
        written = f"{more}[output]\n{line}"
        model = load(msgspec.structs.replace(graph, files=toml(family, written, labels)), tmp_path)
        assert model.spec.output.name == name
        assert ask(model)


def test_an_output_that_is_not_there_is_named_with_those_that_are(tmp_path):
    files = toml("timm", '[output]\nname = "scores"')
    with pytest.raises(LoadError, match=r"\[output\] name .* of logits, got 'scores'"):
        load(case("timm", LOGITS, (), image=AT_96, files=files), tmp_path)


def test_an_open_size_is_asked_for_with_the_way_to_do_without(tmp_path):
    image = ("image", ["batch", "height", "width", 3])
    outputs = {"map": last(class_map().astype(np.int64)[None])}
    with pytest.raises(LoadError, match=r'\[input\] size is required .*, or resize = "none"'):
        load(case("", outputs, (), image=image), tmp_path)
    toml_text = 'family = "class-map"\nlabels = ["ground", "cat", "dog"]\n[input]\nresize = "none"'
    model = load(
        case("class-map", outputs, (), image=image, files={"model.toml": toml_text}), tmp_path
    )
    assert model.spec.input.resize == "none"
