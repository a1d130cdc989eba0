"""Inference under /v2, over gRPC and as others of what is wrong in more than one way: the model's name is said before the body."""

import pytest

from quadriga.proto.errors import InvalidRequest, ModelNotReady, NotFound
from quadriga.proto.grpc import service as grpc_service
from quadriga.proto.grpc.messages import message_class, response_class
from quadriga.proto.http import chariot_v2, v2_extensions
from quadriga.proto.http.operations import Dispatcher, HttpRequest, WireOptions
from quadriga.proto.http.v2 import operations
from quadriga.proto.messages import ModelInfo, TensorInfo

INPUTS = [TensorInfo("x", "FP32", (-1, 2))]


class OneModel:
    """A server with the model `gauge`, and with `slow`, which is loading."""

    def __init__(self):
        self.lookups = []

    def model_info(self, name, version):
        self.lookups.append((name, version))
        if name == "slow":
            raise ModelNotReady("model slow is loading")
        if name != "gauge" or version not in (None, "1"):
            raise NotFound(f"model not found: {name}; did you mean gauge?")
        return ModelInfo("gauge", "1", ["1"], platform="test", task="TENSOR", inputs=INPUTS, outputs=INPUTS, takes_images=False)  # fmt: skip

    def infer(self, request):
        raise NotFound(f"asked for {request.model}")


def infer(serving, path, body, headers=()):
    options = WireOptions(server_version="0")
    offered = [part for of in (operations, v2_extensions.generate_operations, chariot_v2.operations) for part in of(serving, options)]  # fmt: skip
    table = Dispatcher(serving, offered, 1000)
    verbs, parameters = table.match(path)
    return verbs["POST"].handler(HttpRequest(parameters, dict(headers), body))


BAD = [(b"{", {}), (b"{}", {}), (b'{"inputs": 5}', {}), (b"{}", {b"inference-header-content-length": b"99"})]  # fmt: skip


@pytest.mark.parametrize(("body", "headers"), BAD)
@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("/v2/models/guage/infer", NotFound, "did you mean gauge"),
        ("/v2/models/gauge/versions/9/infer", NotFound, "model not found"),
        ("/v2/models/gauge/infer", InvalidRequest, "expected"),
        ("/v2/models/slow/infer", InvalidRequest, "expected"),
    ],
)
def test_a_name_that_is_none_is_said_before_what_is_wrong_with_the_body(
    path, error, text, body, headers
):
    with pytest.raises(error, match=text):
        infer(OneModel(), path, body, headers)


CHARIOT = "/api/serve/serve-model-{}-pred/infer"
TWICE_WRONG = {
    "chariot": lambda serving, name: infer(serving, CHARIOT.format(name), b"{"),
    "chariot, lines": lambda serving, name: infer(serving, CHARIOT.format(name), b"{\n", {b"content-type": b"application/jsonl"}),
    "text": lambda serving, name: infer(serving, f"/v2/models/{name}/generate", b"{}"),
    "gRPC": lambda serving, name: grpc_service._infer(
        serving, message_class("ModelInferRequest")(model_name=name), response_class("ModelInferResponse")()
    ),
}  # fmt: skip


@pytest.mark.parametrize("send", TWICE_WRONG.values(), ids=TWICE_WRONG)
@pytest.mark.parametrize(
    ("name", "error"), [("guage", NotFound), ("gauge", InvalidRequest), ("slow", InvalidRequest)]
)
def test_others_say_the_name_first_too(send, name, error):
    with pytest.raises(error):
        send(OneModel(), name)


def test_a_body_that_is_right_costs_no_lookup_of_its_own():
    serving = OneModel()
    body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}'
    with pytest.raises(NotFound, match="asked for gauge"):
        infer(serving, "/v2/models/gauge/infer", body)
    assert serving.lookups == []
