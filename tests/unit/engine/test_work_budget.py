"""What one request may cost: pixels, tiles, tokens and inputs, each counted before the work."""

import base64
import shutil

import cv2
import numpy as np
import pytest

from quadriga.engine.serving import model_request
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.grpc import service as v2_grpc
from quadriga.proto.grpc.messages import message_class
from quadriga.proto.http import chariot_v2, v1, v2
from quadriga.proto.http.operations import HttpRequest
from quadriga.proto.messages import MAX_INPUTS, InferRequest, ModelInfo, Tensor
from tests.server_process import SAMPLE_MODELS
from tests.text_models import vision_language
from tests.unit.engine.harness import load_pipeline, small_settings

PNG = cv2.imencode(".png", np.zeros((20, 20, 3), np.uint8))[1].tobytes()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("budgets")
    shutil.copytree(SAMPLE_MODELS / "shapes-detector", folder / "detector")
    vision_language(folder / "talker")
    return folder


@pytest.fixture
def pipeline_with(models, monkeypatch):
    """Return a function that makes a pipeline with settings and constants, and counts the runs of its models."""
    pipelines = []

    def make(**settings):
        for name in [name for name in settings if name.isupper()]:
            monkeypatch.setattr(model_request, name, settings.pop(name))
        pipelines.append(load_pipeline(models, None, small_settings(**settings)))
        return pipelines[-1]

    yield make
    for pipeline in pipelines:
        pipeline.close()


def request(model, *images, **parameters):
    inputs = [
        Tensor(f"image-{index}", "BYTES", (1,), data=[PNG], parameters=own)
        for index, own in enumerate(images)
    ]
    return InferRequest(model, None, "1", inputs, parameters=parameters)


def runs(pipeline, model):
    return pipeline.statistics(model, None)[0].execution_count


TILES = {"tiling": {"size": [16, 16], "overlap": 0}}  # 4 of an image of 20 x 20
PROMPTS = {"prompts": ["one", "two"], "max_new_tokens": 3, "num_beams": 2}  # 12 tokens


@pytest.mark.parametrize(
    ("settings", "model", "parameters", "most"),
    [
        ({"MAX_REQUEST_PIXELS": 1200}, "detector", {}, 3),
        ({"MAX_REQUEST_PIXELS": 1199}, "detector", {}, 2),
        ({"MAX_TILES": 8}, "detector", TILES, 2),
        ({"MAX_TILES": 7}, "detector", TILES, 1),
        ({"MAX_TILES": 1}, "detector", {}, 8),
        ({"max_tokens": 36}, "talker", PROMPTS, 3),
        ({"max_tokens": 35}, "talker", PROMPTS, 2),
    ],
)
def test_images_of_a_request_share_its_budget(pipeline_with, settings, model, parameters, most):
    pipeline = pipeline_with(**settings)
    for _ in range(2):  # the budget is the request's
        outputs = pipeline.infer(request(model, *[parameters] * most)).outputs
        assert len(outputs) == most
    if most == 8:
        return
    before = runs(pipeline, model)
    with pytest.raises(InvalidRequest, match=rf"^inputs\[{most}\] .*in a request, got"):
        pipeline.infer(request(model, *[parameters] * (most + 1)))
    assert runs(pipeline, model) - before <= before / 2  # nothing beyond the budget


def test_tokens_are_counted_before_the_first_image_runs(pipeline_with):
    pipeline = pipeline_with(max_tokens=35)
    with pytest.raises(InvalidRequest, match="at most 35 new tokens in a request, got 36"):
        pipeline.infer(request("talker", *[PROMPTS] * 3))
    assert runs(pipeline, "talker") == 0
    stream = pipeline_with(max_tokens=11).stream(
        request("talker", {**PROMPTS, "prompts": ["one"], "max_new_tokens": 6})
    )
    with pytest.raises(InvalidRequest, match="at most 11 new tokens in a request, got 12"):
        next(stream)


def v2_json(count):
    entry = b'{"name":"a","shape":[1],"datatype":"BYTES","data":[""]}'
    return v2.parse_infer(b'{"inputs":[' + b",".join([entry] * count) + b"]}", "a", None, None)


def v2_messages(count):
    message = message_class("ModelInferRequest")()
    for _ in range(count):
        message.inputs.add(name="a", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
            b""
        )
    return v2_grpc.parse_infer(message)


def v1_images(count):
    images = ModelInfo(
        name="a",
        version="1",
        versions=["1"],
        platform="",
        task="",
        inputs=[],
        outputs=[],
        takes_images=True,
    )
    body = b'{"instances":[' + b",".join([b'"aaaa"'] * count) + b"]}"
    return v1.parse_predict(body, images, "1", inputs_are_rows=False).request


def chariot_lines(count):
    line = b'{"input":"%b"}\n' % base64.b64encode(b"a")
    headers = {b"content-type": b"application/jsonl"}
    inputs = chariot_v2.parse_images(HttpRequest({}, headers, line * count))
    return InferRequest("a", None, "1", inputs or [])


@pytest.mark.parametrize("parse", [v2_json, v2_messages, v1_images, chariot_lines])
def test_inputs_have_a_number(parse):
    assert len(parse(2).inputs) == 2
    with pytest.raises(
        InvalidRequest, match=f"at most {MAX_INPUTS} inputs in a request, got {MAX_INPUTS + 1}"
    ):
        parse(MAX_INPUTS + 1)
