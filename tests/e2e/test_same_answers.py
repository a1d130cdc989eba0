"""The same question by every protocol has the same answer.

A way is a function (where the server is, model, image, parameters) to the predictions of one image, or of a
graph's own tensors to its outputs.
"""

import base64
import gzip
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import grpc
import httpx
import numpy as np
import pytest

from quadriga.engine.models.runners.session import Session
from quadriga.proto.datatypes import from_raw
from quadriga.proto.grpc.messages import SERVICE, message_class
from tests.server_process import (
    IMAGES,
    MODELS,
    SAMPLE_MODELS,
    ServerProcess,
    free_port,
    image_input,
)

PARAMETERS: dict[str, dict[str, Any]] = {
    "image-text": {"prompts": ["How many shapes are there?", "Is there a circle?"]}
}
"""What a task asks for beside the image."""

WITHOUT_PARAMETERS = {"V2, raw body"}
"""Ways that carry the image and nothing else."""


class Place(NamedTuple):
    """Addresses of the server."""

    http: ServerProcess
    grpc: str


Predictions = Any
Way = Callable[[Place, str, bytes, Mapping[str, Any]], Predictions]
Arrays = dict[str, np.ndarray]
TensorWay = Callable[[Place, str, Arrays], Arrays]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Serve the sample models by every protocol that there is."""
    port = free_port()
    data = tmp_path_factory.mktemp("same-answers") / "data"
    with ServerProcess(data, SAMPLE_MODELS, "--grpc-port", str(port)) as server:
        yield Place(server, f"127.0.0.1:{port}")


def post(
    place: Place, path: str, body: bytes, headers: Mapping[str, str] | None = None
) -> tuple[dict[str, str], bytes]:
    status, received, answer = place.http.request("POST", path, body, dict(headers or {}))
    assert status == 200, answer
    return received, answer


def infer_path(model: str) -> str:
    return f"/v2/models/{model}/infer"


# Images


def v2_json(place: Place, model: str, image: bytes, parameters: Mapping[str, Any]) -> Predictions:
    body = json.dumps({"inputs": [image_input(image, **parameters)]}).encode()
    _, answer = post(place, infer_path(model), body)
    (predictions,) = json.loads(answer)["outputs"][0]["data"]
    return predictions


def v2_gzip(place: Place, model: str, image: bytes, parameters: Mapping[str, Any]) -> Predictions:
    """Compressed there and back."""
    body = gzip.compress(json.dumps({"inputs": [image_input(image, **parameters)]}).encode())
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    received, answer = post(place, infer_path(model), body, headers)
    text = gzip.decompress(answer) if received.get("content-encoding") == "gzip" else answer
    (predictions,) = json.loads(text)["outputs"][0]["data"]
    return predictions


def behind_json(text: bytes, raw: bytes) -> tuple[bytes, dict[str, str]]:
    return text + raw, {"Inference-Header-Content-Length": str(len(text))}


def element_of(received: Mapping[str, str], answer: bytes) -> Predictions:
    """Read the one BYTES element that stands behind the JSON of an answer."""
    raw = answer[int(received["inference-header-content-length"]) :]
    (length,) = struct.unpack_from("<I", raw)
    assert len(raw) == 4 + length
    return json.loads(raw[4:])


def v2_binary(place: Place, model: str, image: bytes, parameters: Mapping[str, Any]) -> Predictions:
    raw = struct.pack("<I", len(image)) + image
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES"}
    tensor["parameters"] = {**parameters, "binary_data_size": len(raw)}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return element_of(*post(place, infer_path(model), *behind_json(text, raw)))


def v2_binary_in(
    place: Place, model: str, image: bytes, parameters: Mapping[str, Any]
) -> Predictions:
    """Bytes there, JSON back."""
    raw = struct.pack("<I", len(image)) + image
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES"}
    tensor["parameters"] = {**parameters, "binary_data_size": len(raw)}
    text = json.dumps({"inputs": [tensor]}).encode()
    received, answer = post(place, infer_path(model), *behind_json(text, raw))
    assert received["content-type"] == "application/json"
    (predictions,) = json.loads(answer)["outputs"][0]["data"]
    return predictions


def v2_raw(place: Place, model: str, image: bytes, parameters: Mapping[str, Any]) -> Predictions:
    """The image is the body, and nothing else."""
    headers = {"Inference-Header-Content-Length": "0", "Content-Type": "application/octet-stream"}
    return element_of(*post(place, infer_path(model), image, headers))


def v2_image(place: Place, model: str, image: bytes, parameters: Mapping[str, Any]) -> Predictions:
    """The image is the body by its type, its parameters a header."""
    headers = {"Content-Type": "image/jpeg", "chariot-inference-parameters": json.dumps(parameters)}
    _, answer = post(place, infer_path(model), image, headers)
    (predictions,) = json.loads(answer)["outputs"][0]["data"]
    return predictions


def v2_octets(place: Place, model: str, image: bytes, parameters: Mapping[str, Any]) -> Predictions:
    """The image is the body by how it begins, its parameters a query."""
    query = urlencode({name: json.dumps(value) for name, value in parameters.items()})
    headers = {"Content-Type": "application/octet-stream"}
    _, answer = post(place, f"{infer_path(model)}?{query}", image, headers)
    (predictions,) = json.loads(answer)["outputs"][0]["data"]
    return predictions


def v2_form(place: Place, model: str, image: bytes, parameters: Mapping[str, Any]) -> Predictions:
    """The image is the file of a form, its parameters the fields."""
    fields = {name: json.dumps(value) for name, value in parameters.items()}
    request = httpx.Request(
        "POST", "http://localhost", data=fields, files={"image": ("any.jpg", image)}
    )
    _, answer = post(place, infer_path(model), request.read(), dict(request.headers))
    (predictions,) = json.loads(answer)["outputs"][0]["data"]
    return predictions


def v1_instances(
    place: Place, model: str, image: bytes, parameters: Mapping[str, Any]
) -> Predictions:
    body = {"instances": [{"b64": base64.b64encode(image).decode()}], "parameters": parameters}
    _, answer = post(place, f"/v1/models/{model}:predict", json.dumps(body).encode())
    (predictions,) = json.loads(answer)["predictions"]
    return predictions


def v1_inputs(place: Place, model: str, image: bytes, parameters: Mapping[str, Any]) -> Predictions:
    body = {"inputs": [{"b64": base64.b64encode(image).decode()}], "parameters": parameters}
    _, answer = post(place, f"/v1/models/{model}:predict", json.dumps(body).encode())
    (predictions,) = json.loads(answer)["outputs"]
    return predictions


def chariot_v2_raw(
    place: Place, model: str, image: bytes, parameters: Mapping[str, Any]
) -> Predictions:
    """The image is the body, its parameters a header."""
    headers = {
        "Content-Type": "image/jpeg",
        "chariot-inference-parameters": json.dumps(dict(parameters)),
    }
    _, answer = post(place, f"/api/serve/serve-model-{model}-pred/infer", image, headers)
    return json.loads(answer)["output"]


def generate(place: Place, model: str, image: bytes, parameters: Mapping[str, Any]) -> Predictions:
    """One prompt a request."""
    answers = []
    for prompt in parameters["prompts"]:
        body = {"text_input": prompt, "image": base64.b64encode(image).decode()}
        _, answer = post(place, f"/v2/models/{model}/generate", json.dumps(body).encode())
        answers.append({"prompt": prompt, "answer": json.loads(answer)["text_output"]})
    return answers


def call_grpc(place: Place, request: Any) -> Any:
    """Send a ModelInferRequest."""
    with grpc.insecure_channel(place.grpc) as channel:
        ask = channel.unary_unary(
            f"/{SERVICE}/ModelInfer", None, message_class("ModelInferResponse").FromString
        )
        return ask(request.SerializeToString(), timeout=60)


def asked_by_grpc(model: str, parameters: Mapping[str, Any]) -> tuple[Any, Any]:
    """Give a request for one image, and its input; lists and objects travel as JSON."""
    request = message_class("ModelInferRequest")(model_name=model)
    tensor = request.inputs.add(name="image", datatype="BYTES", shape=[1])
    for name, value in parameters.items():
        tensor.parameters[name].string_param = (
            value if isinstance(value, str) else json.dumps(value)
        )
    return request, tensor


def grpc_raw(place: Place, model: str, image: bytes, parameters: Mapping[str, Any]) -> Predictions:
    request, _ = asked_by_grpc(model, parameters)
    request.raw_input_contents.append(struct.pack("<I", len(image)) + image)
    (content,) = call_grpc(place, request).raw_output_contents
    return json.loads(content[4:])


def grpc_typed(
    place: Place, model: str, image: bytes, parameters: Mapping[str, Any]
) -> Predictions:
    request, tensor = asked_by_grpc(model, parameters)
    tensor.contents.bytes_contents.append(image)
    answer = call_grpc(place, request)
    assert not answer.raw_output_contents
    return json.loads(answer.outputs[0].contents.bytes_contents[0])


def grpc_stream(
    place: Place, model: str, image: bytes, parameters: Mapping[str, Any]
) -> Predictions:
    request, _ = asked_by_grpc(model, parameters)
    request.raw_input_contents.append(struct.pack("<I", len(image)) + image)
    with grpc.insecure_channel(place.grpc) as channel:
        read = message_class("ModelStreamInferResponse").FromString
        stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer", None, read)
        (answer,) = stream(iter([request.SerializeToString()]), timeout=60)
    return json.loads(answer.infer_response.raw_output_contents[0][4:])


WAYS: dict[str, Way] = {
    "V2, JSON with base64": v2_json,
    "V2, JSON in gzip": v2_gzip,
    "V2, binary": v2_binary,
    "V2, binary in, JSON out": v2_binary_in,
    "V2, raw body": v2_raw,
    "V2, image": v2_image,
    "V2, octets": v2_octets,
    "V2, form": v2_form,
    "gRPC, raw": grpc_raw,
    "gRPC, typed": grpc_typed,
    "gRPC, stream": grpc_stream,
    "V1, instances": v1_instances,
    "V1, inputs": v1_inputs,
    "chariot-v2, raw body": chariot_v2_raw,
    "generate": generate,
}
"""Each answers what the first does."""


ASKED = [
    (way, task)
    for way in WAYS
    for task in MODELS
    if not (way in WITHOUT_PARAMETERS and task in PARAMETERS)
    if way != "generate" or task == "image-text"
]


@pytest.mark.parametrize(("way", "task"), ASKED)
def test_an_image_is_answered_alike(place, way, task):
    model, parameters = MODELS[task], PARAMETERS.get(task, {})
    for number in (1, 2):
        (path,) = (IMAGES / task).glob(f"scene_{number:02}.*")
        image = path.read_bytes()
        expected = v2_json(place, model, image, parameters)
        assert expected
        assert WAYS[way](place, model, image, parameters) == expected


# Tensors of the graphs


def tensors_json(place: Place, model: str, arrays: Arrays) -> Arrays:
    inputs = [
        {"name": name, "shape": array.shape, "datatype": "FP32", "data": array.ravel().tolist()}
        for name, array in arrays.items()
    ]
    body = json.dumps({"inputs": inputs, "parameters": {"content_type": "raw"}}).encode()
    _, answer = post(place, infer_path(model), body)
    return {
        output["name"]: np.array(output["data"], np.float32).reshape(output["shape"])
        for output in json.loads(answer)["outputs"]
    }


def tensors_binary(place: Place, model: str, arrays: Arrays) -> Arrays:
    inputs = [
        {
            "name": name,
            "shape": array.shape,
            "datatype": "FP32",
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    parameters = {"content_type": "raw", "binary_data_output": True}
    text = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    raw = b"".join(array.tobytes() for array in arrays.values())
    received, answer = post(place, infer_path(model), *behind_json(text, raw))
    length = int(received["inference-header-content-length"])
    outputs, position = {}, length
    for output in json.loads(answer[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        chunk = memoryview(answer)[position : position + size]
        outputs[output["name"]], _ = from_raw(chunk, output["datatype"], output["shape"], "output")
        position += size
    assert position == len(answer)
    return outputs


def tensors_grpc(place: Place, model: str, arrays: Arrays) -> Arrays:
    request = message_class("ModelInferRequest")(model_name=model)
    request.parameters["content_type"].string_param = "raw"
    for name, array in arrays.items():
        request.inputs.add(name=name, datatype="FP32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    answer = call_grpc(place, request)
    return {
        output.name: from_raw(memoryview(content), output.datatype, output.shape, "output")[0]
        for output, content in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


TENSOR_WAYS: dict[str, TensorWay] = {
    "V2, JSON": tensors_json,
    "V2, binary": tensors_binary,
    "gRPC, raw": tensors_grpc,
}


@pytest.mark.parametrize("model", ["shapes-classifier", "shapes-detector", "shapes-segmenter"])
@pytest.mark.parametrize("way", TENSOR_WAYS)
def test_tensors_are_answered_as_the_graph_itself_does(place, way, model):
    session = Session(SAMPLE_MODELS / model / "model.onnx")
    generator = np.random.default_rng(7)
    arrays = {
        info.name: generator.random([max(1, size) for size in info.shape], np.float32)
        for info in session.inputs
    }
    expected = session.run(arrays)
    outputs = TENSOR_WAYS[way](place, model, arrays)
    assert list(outputs) == list(expected)
    for name, array in expected.items():
        assert outputs[name].dtype == array.dtype
        np.testing.assert_array_equal(outputs[name], array)
