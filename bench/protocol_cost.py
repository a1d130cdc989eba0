"""The cost of each way to send an image: server CPU per request of the sample classifier, in one run.

Ways differ in what the server must read: JSON with base64, the image's bytes behind JSON, the image alone,
the graph's own tensor instead of an image (no decoding, no resize), and gRPC where the server has it.
Inferences are not kept, so that the wire is what differs. Rounds interleave; medians are printed.
"""

import argparse
import json
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from request_cost import HttpSender, Request, cpu_s

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.runners.session import Session
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, free_port, image_input

MODEL = "shapes-classifier"
PATH = f"/v2/models/{MODEL}/infer"
_JSON_BYTES = "Inference-Header-Content-Length"


def json_base64(image: bytes) -> Request:
    """Put the image into the JSON, as base64."""
    return Request(PATH, json.dumps({"inputs": [image_input(image)]}).encode())


def _behind_json(tensor: dict[str, Any], raw: bytes) -> Request:
    parameters = {**tensor.pop("parameters", {}), "binary_data_size": len(raw)}
    body = {
        "inputs": [{**tensor, "parameters": parameters}],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(body).encode()
    return Request(PATH, text + raw, {_JSON_BYTES: str(len(text))})


def binary_image(image: bytes) -> Request:
    """Put the image after the JSON, as a BYTES tensor."""
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES"}
    return _behind_json(tensor, struct.pack("<I", len(image)) + image)


def raw_image(image: bytes) -> Request:
    """Send the image and nothing else."""
    return Request(PATH, image, {_JSON_BYTES: "0"})


def binary_tensor(_: bytes) -> Request:
    """Send the tensor that the graph takes, already decoded and resized."""
    (info,) = Session(SAMPLE_MODELS / MODEL / "model.onnx").inputs
    array = np.zeros([max(1, size) for size in info.shape], np.float32)
    tensor = {
        "name": info.name,
        "shape": array.shape,
        "datatype": "FP32",
        "parameters": {"content_type": "raw"},
    }
    return _behind_json(tensor, array.tobytes())


WAYS: dict[str, Callable[[bytes], Request]] = {
    "JSON with base64": json_base64,
    "binary, the image": binary_image,
    "raw body, the image": raw_image,
    "binary, FP32 tensor": binary_tensor,
}


def _field(number: int, content: bytes) -> bytes:
    """Encode a field of a protocol buffer."""
    size, length = len(content), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + content


def grpc_message(image: bytes) -> bytes:
    """Return a ModelInferRequest with the image in raw_input_contents."""
    tensor = _field(1, b"image") + _field(2, b"BYTES") + _field(3, b"\x01")
    raw = struct.pack("<I", len(image)) + image
    return _field(1, MODEL.encode()) + _field(5, tensor) + _field(7, raw)


class GrpcSender:
    """The same over gRPC, on one channel."""

    def __init__(self, address: str, messages: list[bytes]) -> None:
        self._messages = messages
        channel = grpc.insecure_channel(address)
        self._ask = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

    def __call__(self, number: int) -> None:
        """Send one of the messages."""
        self._ask(self._messages[number % len(self._messages)], timeout=60)


def measured(
    server: ServerProcess, pool: ThreadPoolExecutor, send: Callable[[int], None], requests: int
) -> float:
    """Send requests; return server CPU milliseconds per request."""
    pids = server.child_pids()
    begun = cpu_s(pids)
    list(pool.map(send, range(requests)))
    time.sleep(0.1)
    return (cpu_s(pids) - begun) / requests * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400, help="per round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    images = [path.read_bytes() for path in sorted((IMAGES / "classification").glob("scene_*"))]
    flags, address = ["--no-store"], ""
    if "grpc_port" in Settings.__struct_fields__:
        port = free_port()
        flags += ["--grpc-port", str(port)]
        address = f"127.0.0.1:{port}"
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(Path(folder) / "data", SAMPLE_MODELS, *flags) as server,
        ThreadPoolExecutor(arguments.clients) as pool,
    ):
        senders: dict[str, Callable[[int], None]] = {
            name: HttpSender(server.host, [make(image) for image in images])
            for name, make in WAYS.items()
        }
        if address:
            senders["gRPC, raw"] = GrpcSender(address, [grpc_message(image) for image in images])
        costs: dict[str, list[float]] = {name: [] for name in senders}
        for round_number in range(arguments.rounds + 1):
            requests = arguments.requests if round_number else 50  # the first warms up
            for name, send in senders.items():
                costs[name].append(measured(server, pool, send, requests))
    reference = statistics.median(costs["JSON with base64"][1:])
    mean_kib = statistics.mean(map(len, images)) / 1024
    print(
        f"{MODEL}, {len(images)} images of {mean_kib:.0f} KiB, {arguments.clients} clients, "
        f"{arguments.rounds} rounds of {arguments.requests}"
    )
    print(f"{'':24}{'CPU ms/request':>16}{'of JSON':>10}{'least..most':>16}")
    for name, values in costs.items():
        middle = statistics.median(values[1:])
        span = f"{min(values[1:]):.2f}..{max(values[1:]):.2f}"
        print(f"{name:24}{middle:16.2f}{middle / reference:10.2f}{span:>16}")


if __name__ == "__main__":
    main()
