"""Requests to Quadriga and to other servers, each in the way that the server has, and what their answers must be.

A path is a model with a way to send it something; a dialect is how a server wants it written. All that is asked of one path is
the same in each dialect, and the answers are compared with those of the models in this process.
"""

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
from bare_application import message_class
from bench_models import CLASSES, MOBILE, R18, SIDES, TINY
from measuring import Answer
from peer_models import load_models

DETECTOR = "shapes-detector"
BINARY, JSON, GRPC = TENSOR_PATHS = ("tiny binary", "tiny JSON", "tiny gRPC")
IMAGE_MODELS = {
    "tiny base64 JPEG": TINY,
    "mobile base64 JPEG": MOBILE,
    "r18 base64 JPEG": R18,
    "detector base64 JPEG": DETECTOR,
}
PATHS = (*TENSOR_PATHS, *IMAGE_MODELS)
VARIANTS = 8
"""Different requests of a path, so that an answer to another one is noticed."""

Recognised = list[tuple[str, float, Sequence[float]]]
"""Label, score, and box as xyxy, if there is one."""


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """The way in which a server wants its requests."""

    form: str
    """`quadriga` and `v2` follow the Open Inference Protocol and differ in images; `native` has no protocol."""
    tensor_url: str = "/v2/models/{model}/infer"
    image_url: str = "/v2/models/{model}/infer"


QUADRIGA = Dialect(form="quadriga")
V2 = Dialect(form="v2")
V2_IMAGE_MODELS = Dialect(form="v2", image_url="/v2/models/{model}-image/infer")
NATIVE = Dialect(form="native", tensor_url="/predict", image_url="/recognise")
NATIVE_ONE_URL = Dialect(form="native", tensor_url="/predict", image_url="/predict")


class Traffic(msgspec.Struct, frozen=True):
    """What is sent to a server on one path."""

    path: str
    requests: Sequence[bytes]
    """HTTP as it goes over the wire, or messages of gRPC."""
    is_right: Callable[[int, bytes], bool]
    """Compares the body of the answer to the request of this number with what was expected."""

    @property
    def is_grpc(self) -> bool:
        """Whether the requests are messages of gRPC."""
        return self.path == GRPC

    def wrong_answers(self, answers: Sequence[tuple[int, Answer]]) -> int:
        """Count the answers that are not as expected."""
        return sum(not self._judge(number, answer) for number, answer in answers)

    def _judge(self, number: int, answer: Answer) -> bool:
        head, body = answer
        if head and not head.startswith(b"HTTP/1.1 200"):
            return False
        try:
            return self.is_right(number, body)
        except (KeyError, IndexError, TypeError, ValueError):
            return False


class Questions:
    """Tensors and images, with the answers of the models in this process.

    Args:
        models: Folder of the models, `tiny` among them.
        scenes: Folder of images for the detector.
    """

    def __init__(self, models: Path, scenes: Path) -> None:
        random = np.random.default_rng(3)
        self.models = load_models(models)
        side = SIDES[TINY]
        self.tensors = [random.random((1, 3, side, side), np.float32) for _ in range(VARIANTS)]
        self.scores = [self.models[TINY].scores(tensor) for tensor in self.tensors]
        photographs = [photograph(number) for number in range(VARIANTS)]
        shapes = [path.read_bytes() for path in sorted(scenes.glob("*.jpg"))[:VARIANTS]]
        self.jpegs = {name: shapes if name == DETECTOR else photographs for name in self.models}

    def traffic(self, path: str, dialect: Dialect) -> Traffic:
        """Write the requests of a path as a server wants them."""
        if path in IMAGE_MODELS:
            return self._image_traffic(path, dialect)
        write, read = {
            BINARY: (_binary_request, _binary_scores),
            JSON: (_json_request, _json_scores),
            GRPC: (_message, _message_scores),
        }[path]

        def is_right(number: int, body: bytes) -> bool:
            return np.allclose(self.scores[number].ravel(), read(body), rtol=1e-5, atol=1e-6)

        return Traffic(path, [write(tensor, dialect) for tensor in self.tensors], is_right)

    def _image_traffic(self, path: str, dialect: Dialect) -> Traffic:
        model = IMAGE_MODELS[path]
        requests = []
        for jpeg in self.jpegs[model]:
            text = base64.b64encode(jpeg).decode()
            tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [text]}
            body: dict[str, Any] = {"inputs": [tensor]}
            if dialect.form == "native":
                body = {"model": model, "image": text}
            url = dialect.image_url.format(model=model)
            requests.append(http_request(url, json.dumps(body).encode()))
        expected = [_recognised(self.models[model].recognise(jpeg)) for jpeg in self.jpegs[model]]
        read = {"quadriga": _read_quadriga, "v2": _read_v2, "native": _recognised}[dialect.form]

        def is_right(number: int, body: bytes) -> bool:
            return are_alike(expected[number], read(msgspec.json.decode(body)))

        return Traffic(path, requests, is_right)


def photograph(seed: int) -> bytes:
    """Make a JPEG of 640 x 480 with the detail, and so the size, of a photograph: about 78 kB."""
    random = np.random.default_rng(seed)
    pixels = np.zeros((480, 640, 3), np.float32)
    for cells, weight in ((4, 90), (16, 60), (64, 40), (320, 22)):
        coarse = random.random((cells * 3 // 4, cells, 3), np.float32)
        pixels += weight * cv2.resize(coarse, (640, 480), interpolation=cv2.INTER_CUBIC)
    encoded = cv2.imencode(".jpg", np.clip(pixels, 0, 255).astype(np.uint8))[1]
    return encoded.tobytes()


def http_request(url: str, body: bytes, headers: str = "") -> bytes:
    """Write a request as it goes over the wire."""
    content_type = "application/octet-stream" if headers else "application/json"
    head = (
        f"POST {url} HTTP/1.1\r\nHost: localhost\r\n{headers}"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _raw(dialect: Dialect) -> dict[str, Any]:
    """Say that a tensor is no image, which only Quadriga would take it for."""
    return {"content_type": "raw"} if dialect.form == "quadriga" else {}


def _described(tensor: Any, **parameters: Any) -> dict[str, Any]:
    described = {"name": "image", "shape": list(tensor.shape), "datatype": "FP32"}
    return described | ({"parameters": parameters} if parameters else {})


def _binary_request(tensor: Any, dialect: Dialect) -> bytes:
    data = tensor.tobytes()
    described = _described(tensor, **_raw(dialect), binary_data_size=len(data))
    body = {"inputs": [described], "parameters": {"binary_data_output": True}}
    text = json.dumps(body).encode()
    headers = f"Inference-Header-Content-Length: {len(text)}\r\n"
    return http_request(dialect.tensor_url.format(model=TINY), text + data, headers)


def _binary_scores(body: bytes) -> Any:
    return np.frombuffer(body[-4 * CLASSES[TINY] :], np.float32)


def _json_request(tensor: Any, dialect: Dialect) -> bytes:
    # float32 with the fewest digits that tell them apart, as clients write them
    numbers = np.array([float(text) for text in map(str, tensor.ravel())])
    body: dict[str, Any] = {"model": TINY, "data": numbers.reshape(tensor.shape).tolist()}
    if dialect.form != "native":
        body = {"inputs": [_described(tensor, **_raw(dialect)) | {"data": numbers.tolist()}]}
    return http_request(dialect.tensor_url.format(model=TINY), json.dumps(body).encode())


def _json_scores(body: bytes) -> Any:
    decoded = msgspec.json.decode(body)
    return np.ravel(decoded["scores"] if "scores" in decoded else decoded["outputs"][0]["data"])


def _message(tensor: Any, dialect: Dialect) -> bytes:
    message = message_class("ModelInferRequest")(model_name=TINY)
    for name, text in _raw(dialect).items():
        message.parameters[name].string_param = text
    message.inputs.add(name="image", datatype="FP32", shape=tensor.shape)
    message.raw_input_contents.append(tensor.tobytes())
    return bytes(message.SerializeToString())


def _message_scores(body: bytes) -> Any:
    response = message_class("ModelInferResponse").FromString(body)
    return np.frombuffer(response.raw_output_contents[0], np.float32)


def are_alike(expected: Recognised, answered: Recognised) -> bool:
    """Compare what was recognised: labels exactly, scores to 0.0001, those of boxes to 0.001, boxes to two pixels."""
    if len(expected) != len(answered):
        return False
    by_score = [sorted(side, key=lambda row: -row[1]) for side in (expected, answered)]
    return all(
        first[0] == second[0]
        and abs(first[1] - second[1]) < (1e-3 if len(first[2]) else 1e-4)
        and len(first[2]) == len(second[2])
        and np.allclose(first[2], second[2], rtol=0, atol=2)
        for first, second in zip(*by_score, strict=True)
    )


def _recognised(body: dict[str, Any]) -> Recognised:
    boxes = body.get("boxes", [()] * len(body["labels"]))
    return list(zip(body["labels"], body["scores"], boxes, strict=True))


def _read_v2(body: dict[str, Any]) -> Recognised:
    outputs = {output["name"]: output["data"] for output in body["outputs"]}
    if "boxes" in outputs:
        outputs["boxes"] = np.reshape(outputs["boxes"], (-1, 4)).tolist()
    return _recognised(outputs)


def _read_quadriga(body: dict[str, Any]) -> Recognised:
    sides = ("xmin", "ymin", "xmax", "ymax")
    return [
        (row["label"], row["score"], [row[side] for side in sides] if "xmin" in row else ())
        for row in body["outputs"][0]["data"][0]
    ]
