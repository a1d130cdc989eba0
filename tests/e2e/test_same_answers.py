"""The same question by every protocol has the same answer.

A way is a function (where the server is, model, image, parameters) to the predictions of one image, or of a
graph's own tensors to its outputs. Those in `TO_COME` go into the tables as soon as their protocol is there.
"""

import base64
import gzip
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest

from engine.session import Session
from engine.settings import Settings
from proto.raw_tensors import from_raw
from tests.server_process import (
    IMAGES,
    SAMPLE_MODELS,
    ServerProcess,
    free_port,
    image_input,
)

MODELS = {
    "classification": "shapes-classifier",
    "detection": "shapes-detector",
    "oriented": "ships-oriented-detector",
    "segmentation": "shapes-segmenter",
    "image-text": "shapes-image-text",
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "image-text": {"prompts": ["How many shapes are there?", "Is there a circle?"]}
}
"""What a task asks for beside the image."""

WITHOUT_PARAMETERS = {"V2, raw body"}
"""Ways that carry the image and nothing else."""


class Place(NamedTuple):
    """Where the server listens."""

    http: ServerProcess
    grpc: str


Predictions = Any
Way = Callable[[Place, str, bytes, Mapping[str, Any]], Predictions]
Arrays = dict[str, np.ndarray]
TensorWay = Callable[[Place, str, Arrays], Arrays]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Serve the sample models by every protocol that there is."""
    address, flags = "", []
    if "grpc_port" in Settings.__struct_fields__:
        port = free_port()
        address, flags = f"127.0.0.1:{port}", ["--grpc-port", str(port)]
    data = tmp_path_factory.mktemp("same-answers") / "data"
    with ServerProcess(data, SAMPLE_MODELS, *flags) as server:
        yield Place(server, address)


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
    given = {"name": "image", "shape": [1], "datatype": "BYTES"}
    given["parameters"] = {**parameters, "binary_data_size": len(raw)}
    text = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    return element_of(*post(place, infer_path(model), *behind_json(text, raw)))


def v2_binary_in(
    place: Place, model: str, image: bytes, parameters: Mapping[str, Any]
) -> Predictions:
    """Bytes there, JSON back."""
    raw = struct.pack("<I", len(image)) + image
    given = {"name": "image", "shape": [1], "datatype": "BYTES"}
    given["parameters"] = {**parameters, "binary_data_size": len(raw)}
    text = json.dumps({"inputs": [given]}).encode()
    received, answer = post(place, infer_path(model), *behind_json(text, raw))
    assert received["content-type"] == "application/json"
    (predictions,) = json.loads(answer)["outputs"][0]["data"]
    return predictions


def v2_raw(place: Place, model: str, image: bytes, parameters: Mapping[str, Any]) -> Predictions:
    """The image is the body, and nothing else."""
    headers = {"Inference-Header-Content-Length": "0", "Content-Type": "application/octet-stream"}
    return element_of(*post(place, infer_path(model), image, headers))


WAYS: dict[str, Way] = {
    "V2, JSON with base64": v2_json,
    "V2, JSON in gzip": v2_gzip,
    "V2, binary": v2_binary,
    "V2, binary in, JSON out": v2_binary_in,
    "V2, raw body": v2_raw,
}
"""Each answers what the first does."""


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
    _, answer = post(place, f"/v2/models/{model}/predict", image, headers)
    return json.loads(answer)["output"]


def generate(place: Place, model: str, image: bytes, parameters: Mapping[str, Any]) -> Predictions:
    """One prompt a request."""
    found = []
    for prompt in parameters["prompts"]:
        body = {"text_input": prompt, "image": base64.b64encode(image).decode()}
        _, answer = post(place, f"/v2/models/{model}/generate", json.dumps(body).encode())
        found.append({"prompt": prompt, "answer": json.loads(answer)["text_output"]})
    return found


def varint(number: int) -> bytes:
    """Encode a number as protocol buffers do."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def field(number: int, content: bytes | str) -> bytes:
    """Encode a field of bytes, a text or a message."""
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Decode the fields of a message: bytes, or a number."""
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
            continue
        assert key & 7 == 2, "expected no fixed numbers in these messages"
        length = number()
        yield key >> 3, message[position : position + length]
        position += length


def parameter(name: str, value: Any) -> bytes:
    """Encode an entry of a map of parameters; lists and objects travel as JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    return field(1, name) + field(2, field(3, text))


def tensor_message(name: str, datatype: str, shape: tuple[int, ...], rest: bytes = b"") -> bytes:
    packed = b"".join(map(varint, shape))
    return field(1, name) + field(2, datatype) + field(3, packed) + rest


def call_grpc(place: Place, request: bytes) -> tuple[list[dict[int, Any]], list[bytes]]:
    """Send a ModelInferRequest: output tensors by field number, and their raw contents."""
    with grpc.insecure_channel(place.grpc) as channel:
        ask = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = list(fields(ask(request, timeout=60)))
    return [dict(fields(content)) for key, content in answer if key == 5], [
        content for key, content in answer if key == 6
    ]


def grpc_raw(place: Place, model: str, image: bytes, parameters: Mapping[str, Any]) -> Predictions:
    maps = b"".join(field(4, parameter(*item)) for item in parameters.items())
    given = field(5, tensor_message("image", "BYTES", (1,), maps))
    raw = struct.pack("<I", len(image)) + image
    _, (content,) = call_grpc(place, field(1, model) + given + field(7, raw))
    return json.loads(content[4:])


def grpc_typed(
    place: Place, model: str, image: bytes, parameters: Mapping[str, Any]
) -> Predictions:
    maps = b"".join(field(4, parameter(*item)) for item in parameters.items())
    contents = field(5, field(8, image))
    given = field(5, tensor_message("image", "BYTES", (1,), maps + contents))
    (output,), raw = call_grpc(place, field(1, model) + given)
    assert raw == []
    return json.loads(dict(fields(output[5]))[8])


TO_COME: dict[str, Way] = {
    "gRPC, raw": grpc_raw,
    "gRPC, typed": grpc_typed,
    "V1, instances": v1_instances,
    "V1, inputs": v1_inputs,
    "chariot-v2, raw body": chariot_v2_raw,
    "generate": generate,  # image-text alone
}
"""Ways of protocols that are still to be built."""


ASKED = [
    (way, task)
    for way in WAYS
    for task in MODELS
    if not (way in WITHOUT_PARAMETERS and task in PARAMETERS)
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
    found, position = {}, length
    for output in json.loads(answer[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        part = memoryview(answer)[position : position + size]
        found[output["name"]], _ = from_raw(part, output["datatype"], output["shape"], "output")
        position += size
    assert position == len(answer)
    return found


TENSOR_WAYS: dict[str, TensorWay] = {"V2, JSON": tensors_json, "V2, binary": tensors_binary}


def tensors_grpc(place: Place, model: str, arrays: Arrays) -> Arrays:
    tensors = b"".join(field(5, tensor_message(n, "FP32", a.shape)) for n, a in arrays.items())
    raw = b"".join(field(7, array.tobytes()) for array in arrays.values())
    raw_content = field(4, parameter("content_type", "raw"))
    outputs, contents = call_grpc(place, field(1, model) + raw_content + tensors + raw)
    found = {}
    for output, content in zip(outputs, contents, strict=True):
        shape, position = [], output[3]
        while position:  # sizes are varints
            end = next(n for n, byte in enumerate(position) if byte < 0x80) + 1
            shape.append(sum((byte & 0x7F) << 7 * n for n, byte in enumerate(position[:end])))
            position = position[end:]
        array, _ = from_raw(memoryview(content), output[2].decode(), shape, "output")
        found[output[1].decode()] = array
    return found


TENSORS_TO_COME: dict[str, TensorWay] = {"gRPC, raw": tensors_grpc}


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
    found = TENSOR_WAYS[way](place, model, arrays)
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
