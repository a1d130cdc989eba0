"""Requests to Quadriga and to its peers, each in the way that the server has, and what their answers must be.

A path is a model with a way to send it something; a dialect is how a server wants it written. All that is asked of one path is
the same in each dialect, and the answers are compared with those of the models in this process.
"""

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from bare_application import message_class
from bench_models import CLASSES, MOBILE, R18, SIDES, TINY
from closed_loop import Answer
from path_cost import photograph
from peer_models import load_models

DETECTOR = "shapes-detector"
IMAGE_MODELS = {
    "tiny JPEG": TINY,
    "mobile JPEG": MOBILE,
    "r18 JPEG": R18,
    "detector JPEG": DETECTOR,
}
TENSOR_PATHS = ("tiny binary", "tiny JSON", "tiny gRPC")
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


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent to a server on one path."""

    path: str
    requests: Sequence[bytes]
    """HTTP as it goes over the wire, or messages of gRPC."""
    is_right: Callable[[int, Answer], bool]
    """Compares the answer to the request of this number with what was expected."""
    is_grpc: bool = False

    def wrong_answers(self, answers: Sequence[tuple[int, Answer]]) -> int:
        """Count the answers that are not as expected."""
        return sum(not self._judge(number, answer) for number, answer in answers)

    def _judge(self, number: int, answer: Answer) -> bool:
        head, body = answer
        if head and not head.startswith(b"HTTP/1.1 200"):
            return False
        try:
            return self.is_right(number, (head, body))
        except (KeyError, IndexError, TypeError, ValueError):
            return False


class Questions:
    """Tensors and images, with the answers of the models in this process."""

    def __init__(self, models: Path, scenes: Path) -> None:
        random = np.random.default_rng(3)
        loaded = load_models(models)
        side = SIDES[TINY]
        self.tensors = [random.random((1, 3, side, side), np.float32) for _ in range(VARIANTS)]
        self.scores = [loaded[TINY].scores(tensor).ravel() for tensor in self.tensors]
        photographs = [photograph(number) for number in range(VARIANTS)]
        pictures = sorted(scenes.glob("*.jpg"))[:VARIANTS]
        shapes = [path.read_bytes() for path in pictures]
        self.jpegs = {name: shapes if name == DETECTOR else photographs for name in loaded}
        self.recognised = {
            name: [_recognised(loaded[name].recognise(jpeg)) for jpeg in jpegs]
            for name, jpegs in self.jpegs.items()
        }

    def traffic(self, path: str, dialect: Dialect) -> Traffic:
        """Write the requests of a path as a server wants them."""
        if path in IMAGE_MODELS:
            return self._image_traffic(path, dialect)
        return {
            "tiny binary": self._binary_traffic,
            "tiny JSON": self._json_traffic,
            "tiny gRPC": self._grpc_traffic,
        }[path](dialect)

    def _is_close(self, number: int, scores: Any) -> bool:
        return np.allclose(self.scores[number], np.ravel(scores), rtol=1e-4, atol=1e-5)

    def _binary_traffic(self, dialect: Dialect) -> Traffic:
        requests = []
        for tensor in self.tensors:
            data = tensor.tobytes()
            parameters = {**_raw(dialect), "binary_data_size": len(data)}
            body = {
                "inputs": [{**_described(tensor), "parameters": parameters}],
                "parameters": {"binary_data_output": True},
            }
            text = json.dumps(body).encode()
            headers = f"Inference-Header-Content-Length: {len(text)}\r\n"
            url = dialect.tensor_url.format(model=TINY)
            requests.append(
                http_request(url, text + data, headers, content_type="application/octet-stream")
            )

        def is_right(number: int, answer: Answer) -> bool:
            return self._is_close(
                number, np.frombuffer(answer[1][-4 * CLASSES[TINY] :], np.float32)
            )

        return Traffic(path="tiny binary", requests=requests, is_right=is_right)

    def _json_traffic(self, dialect: Dialect) -> Traffic:
        url = dialect.tensor_url.format(model=TINY)
        requests = []
        for tensor in self.tensors:
            body: dict[str, Any] = {"model": TINY, "data": _short_numbers(tensor).tolist()}
            if dialect.form != "native":
                data = _short_numbers(tensor).ravel().tolist()
                body = {"inputs": [{**_described(tensor), "data": data}]}
                if raw := _raw(dialect):
                    body["inputs"][0]["parameters"] = raw
            requests.append(http_request(url, json.dumps(body).encode()))

        def is_right(number: int, answer: Answer) -> bool:
            body = msgspec.json.decode(answer[1])
            scores = body["scores"] if dialect.form == "native" else body["outputs"][0]["data"]
            return self._is_close(number, scores)

        return Traffic(path="tiny JSON", requests=requests, is_right=is_right)

    def _grpc_traffic(self, dialect: Dialect) -> Traffic:
        response_class = message_class("ModelInferResponse")
        requests = []
        for tensor in self.tensors:
            message = message_class("ModelInferRequest")(model_name=TINY)
            for name, text in _raw(dialect).items():
                message.parameters[name].string_param = text
            message.inputs.add(name="image", datatype="FP32", shape=tensor.shape)
            message.raw_input_contents.append(tensor.tobytes())
            requests.append(message.SerializeToString())

        def is_right(number: int, answer: Answer) -> bool:
            response = response_class.FromString(answer[1])
            return self._is_close(
                number, np.frombuffer(response.raw_output_contents[0], np.float32)
            )

        return Traffic(path="tiny gRPC", requests=requests, is_right=is_right, is_grpc=True)

    def _image_traffic(self, path: str, dialect: Dialect) -> Traffic:
        model = IMAGE_MODELS[path]
        url = dialect.image_url.format(model=model)
        requests = []
        for jpeg in self.jpegs[model]:
            text = base64.b64encode(jpeg).decode()
            tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [text]}
            body = (
                {"model": model, "image": text}
                if dialect.form == "native"
                else {"inputs": [tensor]}
            )
            requests.append(http_request(url, json.dumps(body).encode()))
        read = _READERS[dialect.form]

        def is_right(number: int, answer: Answer) -> bool:
            return are_alike(self.recognised[model][number], read(msgspec.json.decode(answer[1])))

        return Traffic(path=path, requests=requests, is_right=is_right)


def http_request(
    url: str, body: bytes, headers: str = "", *, content_type: str = "application/json"
) -> bytes:
    """Write a request as it goes over the wire."""
    head = (
        f"POST {url} HTTP/1.1\r\nHost: localhost\r\n{headers}"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def are_alike(expected: Recognised, answered: Recognised) -> bool:
    """Compare what was recognised: labels exactly, scores to 0.001, boxes to two pixels."""
    if len(expected) != len(answered):
        return False
    pairs = zip(sorted(expected, key=_by_score), sorted(answered, key=_by_score), strict=True)
    return all(
        first[0] == second[0]
        and abs(first[1] - second[1]) < 1e-3
        and len(first[2]) == len(second[2])
        and np.allclose(first[2], second[2], rtol=0, atol=2)
        for first, second in pairs
    )


def _by_score(recognised: tuple[str, float, Sequence[float]]) -> float:
    return -recognised[1]


def _raw(dialect: Dialect) -> dict[str, Any]:
    """Say that a tensor is no image, which only Quadriga would take it for."""
    return {"content_type": "raw"} if dialect.form == "quadriga" else {}


def _described(tensor: Any) -> dict[str, Any]:
    return {"name": "image", "shape": list(tensor.shape), "datatype": "FP32"}


def _short_numbers(tensor: Any) -> Any:
    """Give float32 numbers the fewest digits that tell them apart, as clients write them."""
    return np.array([float(text) for text in map(str, tensor.ravel())]).reshape(tensor.shape)


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


_READERS: dict[str, Callable[[dict[str, Any]], Recognised]] = {
    "quadriga": _read_quadriga,
    "v2": _read_v2,
    "native": _recognised,
}
