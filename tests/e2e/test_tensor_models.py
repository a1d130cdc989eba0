"""Models of tensors over the wire: scalars, what a request says beside its tensors, and what is stored."""

import json
import struct
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from quadriga.proto.grpc.messages import SERVICE, message_class
from tests.onnx_models import half_plus, several
from tests.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve models of tensors over HTTP and gRPC."""
    models = tmp_path_factory.mktemp("tensors") / "models"
    half_plus(models / "scalar" / "model.onnx", 2.0, [])
    several(models / "several" / "model.onnx")
    several(models / "kept" / "model.onnx")
    (models / "kept" / "model.toml").write_text('[store]\ninputs = "all"\n')
    with ServerProcess(models.parent / "data", models, "--grpc-port", "0") as running:
        yield running


def over_grpc(server: ServerProcess, request):
    """Send a `ModelInferRequest`, and return its response."""
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_class("ModelInferResponse").FromString,
        )
        return call(request, timeout=60)


# Scalars


def scalar_json(server: ServerProcess, shape: list[int]) -> tuple[list[int], float]:
    tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": [3.0]}
    status, answer = server.call("POST", "/v2/models/scalar/infer", {"inputs": [tensor]})
    assert status == 200, answer
    (output,) = answer["outputs"]
    return output["shape"], output["data"][0]


def scalar_bare(server: ServerProcess, shape: list[int]) -> tuple[list[int], float]:
    tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": 3.0}
    status, answer = server.call("POST", "/v2/models/scalar/infer", {"inputs": [tensor]})
    assert status == 200, answer
    return answer["outputs"][0]["shape"], answer["outputs"][0]["data"][0]


def scalar_binary(server: ServerProcess, shape: list[int]) -> tuple[list[int], float]:
    parameters = {"binary_data_size": 4}
    tensor = {"name": "x", "shape": shape, "datatype": "FP32", "parameters": parameters}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    status, received, answer = server.request(
        "POST", "/v2/models/scalar/infer", text + struct.pack("<f", 3.0), headers
    )
    assert status == 200, answer
    json_bytes = int(received["inference-header-content-length"])
    (output,) = json.loads(answer[:json_bytes])["outputs"]
    return output["shape"], struct.unpack("<f", answer[json_bytes:])[0]


def scalar_raw_grpc(server: ServerProcess, shape: list[int]) -> tuple[list[int], float]:
    request = message_class("ModelInferRequest")(model_name="scalar")
    request.inputs.add(name="x", datatype="FP32", shape=shape)
    request.raw_input_contents.append(struct.pack("<f", 3.0))
    response = over_grpc(server, request)
    (value,) = np.frombuffer(response.raw_output_contents[0], "<f4")
    return list(response.outputs[0].shape), float(value)


def scalar_typed_grpc(server: ServerProcess, shape: list[int]) -> tuple[list[int], float]:
    request = message_class("ModelInferRequest")(model_name="scalar")
    request.inputs.add(name="x", datatype="FP32", shape=shape).contents.fp32_contents.append(3.0)
    response = over_grpc(server, request)
    (value,) = response.outputs[0].contents.fp32_contents
    return list(response.outputs[0].shape), value


@pytest.mark.parametrize("shape", [[], [1]])
@pytest.mark.parametrize(
    "way", [scalar_json, scalar_bare, scalar_binary, scalar_raw_grpc, scalar_typed_grpc]
)
def test_a_scalar_goes_in_and_out_in_the_shape_of_the_metadata(server, way, shape):
    _, metadata = server.call("GET", "/v2/models/scalar")
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": []}]
    assert way(server, shape) == ([], 3.5)


@pytest.mark.parametrize("body", [3.0, {"x": 3.0}, [3.0]])
def test_a_scalar_is_a_column_under_v1_and_no_row(server, body):
    path = "/v1/models/scalar:predict"
    assert server.call("POST", path, {"inputs": body}) == (200, {"outputs": 3.5})
    status, answer = server.call("POST", path, {"instances": [3.0]})
    assert (status, answer["error"]) == (400, "Tensor name: y has no shape information")


def test_a_raw_body_is_a_scalar(server):
    status, received, answer = server.request(
        "POST",
        "/v2/models/scalar/infer",
        struct.pack("<f", 3.0),
        {"Inference-Header-Content-Length": "0"},
    )
    assert status == 200, answer
    assert struct.unpack("<f", answer[int(received["inference-header-content-length"]) :]) == (3.5,)


# What a request says beside its tensors

METADATA = {"site": {"name": "north"}, "batch": 7}
SEVERAL = [
    {"name": "tag_bytes", "shape": [1], "datatype": "BYTES", "data": ["a"]},
    {"name": "signal", "shape": [1, 2], "datatype": "INT32", "data": [1, 2]},
    {"name": "flag", "shape": [1], "datatype": "BOOL", "data": [True]},
]


@pytest.mark.parametrize("metadata", [METADATA, json.dumps(METADATA)])
@pytest.mark.parametrize("place", ["request", "input"])
def test_metadata_and_action_come_back_with_the_id_in_every_output(server, metadata, place):
    said = {"action": "predict", "metadata": metadata}
    inputs, parameters = SEVERAL, {}
    if place == "request":
        parameters = said
    else:
        inputs = [SEVERAL[0], {**SEVERAL[1], "parameters": said}, SEVERAL[2]]
    body = json.dumps({"inputs": inputs, "parameters": parameters})
    status, headers, answer = server.request("POST", "/v2/models/several/infer", body)
    assert status == 200, answer
    outputs = json.loads(answer)["outputs"]
    inference_id = headers["quadriga-inference-ids"]
    expected = {**said, "inference_id": inference_id}
    assert [output["parameters"] for output in outputs] == [expected] * 3
    _, record = server.call("GET", f"/api/inferences/{inference_id}")
    assert (record["metadata"], record["action"]) == (METADATA, "predict")


def test_metadata_and_id_come_back_over_grpc(server):
    request = message_class("ModelInferRequest")(model_name="scalar")
    request.inputs.add(name="x", datatype="FP32", shape=[]).contents.fp32_contents.append(3.0)
    request.parameters["metadata"].string_param = json.dumps(METADATA)
    (output,) = over_grpc(server, request).outputs
    assert json.loads(output.parameters["metadata"].string_param) == METADATA
    inference_id = output.parameters["inference_id"].string_param
    _, record = server.call("GET", f"/api/inferences/{inference_id}")
    assert record["metadata"] == METADATA


def test_a_tensor_that_is_not_stored_has_no_id(server):
    body = {"inputs": SEVERAL, "parameters": {"store": False}}
    _, answer = server.call("POST", "/v2/models/several/infer", body)
    assert ["parameters" in output for output in answer["outputs"]] == [False] * 3


@pytest.mark.parametrize("action", ["detect", "", 1, ["predict"], "x" * 5000])
def test_an_unknown_action_is_refused_with_the_possible_ones(server, action):
    tensor = {"name": "x", "shape": [], "datatype": "FP32", "data": 3.0}
    expected = "expected parameters.action to be one of predict, got "
    for request in (
        {"inputs": [tensor], "parameters": {"action": action}},
        {"inputs": [{**tensor, "parameters": {"action": action}}]},
    ):
        status, answer = server.call("POST", "/v2/models/scalar/infer", request)
        assert (status, expected in answer["error"]) == (400, True), answer
        assert len(answer["error"]) < 200
    body = {"inputs": 3.0, "parameters": {"action": action}}
    status, answer = server.call("POST", "/v1/models/scalar:predict", body)
    assert (status, expected in answer["error"]) == (400, True), answer


# Inputs that are kept


def stored_input(server: ServerProcess, inference_id: str) -> tuple[int, dict[str, str], bytes]:
    return server.request("GET", f"/api/inferences/{inference_id}/input")


def test_tensors_are_kept_where_asked_and_can_be_sent_again(server):
    body = {"inputs": SEVERAL, "id": "kept"}
    _, answer = server.call("POST", "/v2/models/kept/infer", body)
    inference_id = answer["outputs"][0]["parameters"]["inference_id"]
    _, record = server.call("GET", f"/api/inferences/{inference_id}")
    assert record["input"]["mime"] == "application/vnd.quadriga.tensors"
    assert (record["input"]["kept"], record["input"]["name"]) == (True, "tag_bytes")
    status, headers, data = stored_input(server, inference_id)
    assert (status, len(data)) == (200, record["input"]["bytes"])
    assert headers["content-type"] == "application/octet-stream"
    length = headers["inference-header-content-length"]
    described = json.loads(data[: int(length)])["inputs"]
    assert [tensor["shape"] for tensor in described] == [[1], [1, 2], [1]]
    again = {"Inference-Header-Content-Length": length}
    status, _, resent = server.request("POST", "/v2/models/kept/infer", data, again)
    assert status == 200, resent
    outputs = [output["data"] for output in json.loads(resent)["outputs"]]
    assert outputs == [output["data"] for output in answer["outputs"]] == [["a"], [1, 2], [True]]


def test_tensors_are_not_kept_where_nobody_asked_or_they_are_large(server):
    for model, inputs, parameters in (
        ("several", SEVERAL, {}),
        ("kept", SEVERAL, {"store_input": False}),
        ("kept", [{**SEVERAL[0], "data": ["x" * (1 << 20)]}, *SEVERAL[1:]], {}),
    ):
        body = {"inputs": inputs, "parameters": parameters}
        _, answer = server.call("POST", f"/v2/models/{model}/infer", body)
        inference_id = answer["outputs"][0]["parameters"]["inference_id"]
        assert stored_input(server, inference_id)[0] == 404
        _, record = server.call("GET", f"/api/inferences/{inference_id}")
        assert (record["input"]["kept"], record["input"]["hash"]) == (False, None)
