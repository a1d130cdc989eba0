"""Models of other inputs than 8-bit RGB, from a file to the numbers that the network gets.

A classifier that answers its input, number by number, shows what a session was given.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper

from quadriga.engine.models.inspection import describe_input
from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import LoadError
from quadriga.engine.serving.image_inference import ImageModel, infer_images
from quadriga.engine.serving.tensors.validation import validate
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.image import MAX_PIXELS, decode
from tests.band_images import by_pillow, pages, png
from tests.families.folders import Case, load, ultralytics
from tests.families.test_detectors import OBJECTS, SCORES, boxes, head, letterboxed
from tests.onnx_models import save, value

HEIGHT, WIDTH = 12, 16
DEEP = np.random.default_rng(2).integers(0, 65536, (HEIGHT, WIDTH, 10), np.uint16)
SHALLOW = (DEEP >> 8).astype(np.uint8)
BANDS = list(np.moveaxis(SHALLOW, 2, 0))
TOML = 'task = "classification"\n[output]\nactivation = "sigmoid"\n[input]\nresize = "stretch"\n'


def echo(path, shape, kind):
    """A model whose logits are its input."""
    return save(
        path,
        [
            helper.make_node("Cast", ["image"], ["float"], to=TensorProto.FLOAT),
            helper.make_node("Flatten", ["float"], ["scores"]),
        ],
        [value("image", [1, *shape], kind)],
        [value("scores", [1, int(np.prod(shape))])],
    )


def ask(model, data):
    images = ImageModel(model.image_predictor, MAX_PIXELS, max_images=1)
    tensor = Tensor("image", "BYTES", (1,), [data], {})
    _, (answered,) = infer_images(images, InferRequest("model", None, "", [tensor]))
    return answered.predictions


def planes(pixels):
    return pixels.transpose(2, 0, 1)


FLOAT, HALF, DOUBLE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE
I32, I64 = TensorProto.INT32, TensorProto.INT64
U8, U16 = TensorProto.UINT8, TensorProto.UINT16
NCHW = {bands: [bands, HEIGHT, WIDTH] for bands in (1, 2, 3, 4, 10)}
# name: shape, type, [input] of model.toml, file, numbers that the session gets
ECHOED = {
    "RGBA": (NCHW[4], FLOAT, "", png(SHALLOW[..., :4]), planes(SHALLOW[..., :4]) / 255),
    "RGBA, NHWC": ([HEIGHT, WIDTH, 4], FLOAT, "", png(SHALLOW[..., :4]), SHALLOW[..., :4] / 255),
    "RGBA, BGR": (NCHW[4], FLOAT, 'color = "bgr"', png(SHALLOW[..., :4]), planes(SHALLOW[..., [2, 1, 0, 3]]) / 255),
    "10 pages": (NCHW[10], FLOAT, "", pages(BANDS), planes(SHALLOW) / 255),
    "10 pages, NHWC": ([HEIGHT, WIDTH, 10], FLOAT, "", pages(BANDS), SHALLOW / 255),
    "10 pages, normalised": (
        NCHW[10], FLOAT, f"mean = {[0.1 * n for n in range(10)]}\nstd = {[0.5] * 10}", pages(BANDS),
        (planes(SHALLOW) / 255 - 0.1 * np.arange(10)[:, None, None]) / 0.5,
    ),
    "gray of 16 bits": (NCHW[1], FLOAT, "bit_depth = 16", png(DEEP[..., :1]), planes(DEEP[..., :1]) / 65535),
    "gray of 16 bits, a written scale": (NCHW[1], FLOAT, "bit_depth = 16\nscale = 0.5", png(DEEP[..., :1]), planes(DEEP[..., :1]) / 2),
    "gray of 16 bits for 8": (NCHW[1], FLOAT, "", png(DEEP[..., :1]), planes(DEEP[..., :1] >> 8) / 255),
    "12 bits in 16": (NCHW[1], FLOAT, "bit_depth = 12", png(DEEP[..., :1] >> 4), planes(DEEP[..., :1] >> 4) / 4095),
    "colour of 16 bits": (NCHW[3], FLOAT, "bit_depth = 16", png(DEEP[..., :3]), planes(DEEP[..., :3]) / 65535),
    "colour into uint16": (NCHW[3], U16, "", png(DEEP[..., :3]), planes(DEEP[..., :3])),
    "8 bits into uint16": (NCHW[3], U16, "bit_depth = 8", png(SHALLOW[..., :3]), planes(SHALLOW[..., :3])),
    "pages into uint8": (NCHW[10], U8, "", pages(BANDS), planes(SHALLOW)),
    "colour into int32": (NCHW[3], I32, "", png(SHALLOW[..., :3]), planes(SHALLOW[..., :3])),
    "colour into int64, NHWC": ([HEIGHT, WIDTH, 3], I64, "", png(SHALLOW[..., :3]), SHALLOW[..., :3]),
    "colour into float64": (NCHW[3], DOUBLE, "", png(SHALLOW[..., :3]), planes(SHALLOW[..., :3]) / 255),
    "gray": (NCHW[1], FLOAT, "", by_pillow(SHALLOW[..., 0], "PNG"), planes(SHALLOW[..., :1]) / 255),
    "2 bands": (NCHW[2], FLOAT, "", pages(BANDS[:2]), planes(SHALLOW[..., :2]) / 255),
}  # fmt: skip


@pytest.mark.parametrize("case", ECHOED.values(), ids=ECHOED)
def test_a_session_gets_the_numbers_of_the_formula(case, tmp_path):
    shape, kind, toml, data, expected = case
    path = echo(tmp_path / "model.onnx", shape, kind)
    (tmp_path / "model.toml").write_text(TOML + toml)
    graph = Model("model", "1", path).image_predictor
    logits = graph.outputs_for(graph.decode(data, MAX_PIXELS))["scores"]
    np.testing.assert_allclose(logits, expected.ravel(), rtol=1e-6, atol=1e-6)


PIXELS = np.random.default_rng(7).integers(0, 255, (48, 64, 10), np.uint8)
PAGES = pages(list(np.moveaxis(PIXELS, 2, 0)))
GRAY = {"channels": 1, "scale": 1 / 255}
# name: shape, further metadata, file, fields that must come out
DETECTORS = {
    "RGBA": ([1, 4, 96, 96], {}, png(PIXELS[..., :4]), {"channels": 4, "mean": (0.0,) * 4}),
    "10 bands": ([1, 10, 96, 96], {"channels": "10"}, PAGES, {"channels": 10, "layout": "nchw"}),
    "10 bands, any batch": (["n", 10, 96, 96], {}, PAGES, {"channels": 10, "std": (1.0,) * 10}),
    "10 bands, NHWC": ([1, 96, 96, 10], {}, PAGES, {"channels": 10, "layout": "nhwc"}),
    "4 bands, NHWC": ([1, 96, 96, 4], {}, png(PIXELS[..., :4]), {"channels": 4, "layout": "nhwc"}),
    "all open": (["n", "c", "h", "w"], {"channels": "10"}, PAGES, {"channels": 10, "resize": "letterbox_rect"}),
    "all open, unsaid": (["n", "c", "h", "w"], {}, png(PIXELS[..., :3]), {"channels": 3}),
    "1 band": ([1, 1, 96, 96], {"channels": "1"}, png(PIXELS[..., :3]), GRAY),
    "shape over metadata": ([1, 4, 96, 96], {"channels": "3"}, png(PIXELS[..., :4]), {"channels": 4}),
}  # fmt: skip


@pytest.mark.parametrize(("shape", "metadata", "data", "fields"), DETECTORS.values(), ids=DETECTORS)
def test_ultralytics_of_any_bands_needs_nothing_to_configure(
    shape, metadata, data, fields, tmp_path
):
    open_size = shape[-1] == "w"
    side = (640, 480) if open_size else (96, 96)
    case = Case(
        name="",
        family="ultralytics",
        outputs=head(letterboxed(boxes(), *side)),
        answers=OBJECTS,
        image=("images", shape),
        metadata=ultralytics("detect", **metadata),
        input=fields,
    )
    predictions = ask(load(case, tmp_path), data)
    assert [prediction.score for prediction in predictions] == pytest.approx(
        SCORES.tolist(), abs=1e-6
    )
    places = [
        (prediction.xmin, prediction.ymin, prediction.xmax, prediction.ymax)
        for prediction in predictions
    ]
    np.testing.assert_allclose(places, boxes(), atol=1e-3)


def test_tiles_have_all_bands(tmp_path):
    case = Case(
        name="",
        family="ultralytics",
        outputs={"output0": np.zeros((7, 189), np.float32)},
        answers=(),
        image=("images", [1, 10, 96, 96]),
        metadata=ultralytics("detect"),
        files={"model.toml": "[input]\nbit_depth = 16\n[tiling]\nsize = [32, 32]\n"},
    )
    assert ask(load(case, tmp_path), PAGES) == []


def test_validate_draws_the_first_three_bands(tmp_path):
    path = echo(tmp_path / "model.onnx", NCHW[10], FLOAT)
    (tmp_path / "model.toml").write_text(TOML + "bit_depth = 16")
    (tmp_path / "image.tiff").write_bytes(pages(list(np.moveaxis(DEEP, 2, 0))))
    picture = tmp_path / "picture.png"
    predictions = validate(tmp_path, tmp_path / "image.tiff", picture, {})
    assert (predictions.width, predictions.height) == (WIDTH, HEIGHT)
    enlarged = decode(picture.read_bytes()).pixels[: 20 * HEIGHT]
    np.testing.assert_allclose(enlarged[10::20, 10::20], SHALLOW[..., :3], atol=16)
    assert path.exists()


@pytest.mark.parametrize(
    ("shape", "kind", "toml", "message"),
    [
        (NCHW[3], FLOAT, "channels = 4", "channels in model.toml to be 3 as in the file, got 4"),
        (NCHW[4], FLOAT, "mean = [0.5, 0.5, 0.5]", "4 values in input.mean, got 3"),
        (NCHW[10], FLOAT, 'color = "bgr"', "color to be rgb for 10 channels"),
        (NCHW[1], U8, "bit_depth = 16", "bit_depth to be 8 for an input of uint8, got 16"),
        (NCHW[1], FLOAT, "bit_depth = 17", "bit_depth"),
        (NCHW[1], FLOAT, "bit_depth = 7", "bit_depth"),
        (NCHW[1], FLOAT, "channels = 0", "channels"),
        ([80, 90, 100], FLOAT, "", "1 to 64 channels"),
        ([80, 12, 6], FLOAT, 'layout = "nchw"', "at most 64 channels, got 80"),
    ],
)
def test_what_channels_and_bits_cannot_be_is_said(shape, kind, toml, message, tmp_path):
    path = echo(tmp_path / "model.onnx", shape, kind)
    (tmp_path / "model.toml").write_text(TOML + toml)
    with pytest.raises(LoadError) as caught:
        Model("model", "1", path).recognition  # noqa: B018
    assert message in str(caught.value)


def test_feature_maps_are_no_images(tmp_path):
    path = save(
        tmp_path / "model.onnx",
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [value("x", [1, 10, 32, 32])],
        [value("y", [1, 10, 32, 32])],
    )
    assert Model("model", "1", path).recognition.task == "TENSOR"


def test_inspect_says_values_and_bands(tmp_path):
    path = echo(tmp_path / "model.onnx", NCHW[10], FLOAT)
    (tmp_path / "model.toml").write_text(TOML + "bit_depth = 12")
    model = Model("model", "1", path)
    assert "10 bands, values from 0 to 4095 times 0.0002442, as float32" in describe_input(
        model.spec.input
    )
    decided = {prediction.field: prediction.reason for prediction in model.recognition.decisions}
    assert decided["input.scale"] == "bit_depth 12"


def test_an_image_of_other_bands_is_the_request_s_fault(tmp_path):
    path = echo(tmp_path / "model.onnx", NCHW[10], FLOAT)
    (tmp_path / "model.toml").write_text(TOML)
    with pytest.raises(InvalidRequest, match="an image of 10 bands, got one of 3"):
        ask(Model("model", "1", path), png(SHALLOW[..., :3]))
