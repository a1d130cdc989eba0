"""A client in a process of its own: sends images until SIGTERM, and writes down how each request ended.

A line of its file is the time (CLOCK_MONOTONIC, which all processes share), the seconds that the request took, the outcome,
and the id of the inference or the reason. Each request is sent once, with a key in its metadata that no other has.
"""

import argparse
import json
import signal
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TextIO

import grpc

from quadriga.proto.grpc.messages import message_class
from tests.grpc_client import Client
from tests.server_process import image_input

ACKNOWLEDGED, UNREACHABLE, BUSY, FAILED = "acknowledged", "unreachable", "busy", "failed"
"""Outcomes: stored; no connection, so that nothing was sent; refused with 503; anything else."""

KEY = "drill"
"""Metadata key of each request's own text."""

PAUSE_AFTER_REFUSAL_S = 0.05
TIMEOUT_S = 30.0
_NO_CONNECTION = ("failed to connect", "connection refused", "connections to all backends failing")
_CUT_CONNECTION = (
    "socket closed",
    "connection reset",
    "recvmsg",
    "goaway",
    "stream removed",
    "broken pipe",
)


class Journalist:
    """Writes outcomes to a file, a line each; safe to use from several threads."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def write(self, took_s: float, outcome: str, text: str) -> None:
        """Add a line."""
        line = f"{time.monotonic():.4f} {took_s:.5f} {outcome} {' '.join(text.split())[:300]}\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()


class HttpSender:
    """Sends requests over one connection at a time."""

    def __init__(self, model: str, image: bytes) -> None:
        self._path = f"/v2/models/{model}/infer"
        self._image = image
        self._connection: HTTPConnection | None = None

    def send(self, address: str, metadata: dict[str, str]) -> tuple[str, str]:
        """Send one request; gives its outcome."""
        body = json.dumps({"inputs": [image_input(self._image, metadata=metadata)]})
        try:
            if self._connection is None:
                self._connection = HTTPConnection(address, timeout=TIMEOUT_S)
                self._connection.connect()
        except OSError as error:
            self.close()
            return UNREACHABLE, repr(error)
        try:
            self._connection.request("POST", self._path, body)
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, HTTPException) as error:
            self.close()
            return FAILED, repr(error)
        if response.status != 200 or response.getheader("connection") == "close":
            self.close()
        if response.status != 200:
            return (BUSY if response.status == 503 else FAILED), f"{response.status} {answer!r}"
        parameters = json.loads(answer)["outputs"][0]["parameters"]
        return ACKNOWLEDGED, str(parameters["inference_id"])

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class GrpcSender:
    """Sends requests over one channel at a time."""

    def __init__(self, model: str, image: bytes) -> None:
        self._model = model
        self._image = image
        self._client: Client | None = None

    def send(self, address: str, metadata: dict[str, str]) -> tuple[str, str]:
        """Send one request; gives its outcome."""
        request = message_class("ModelInferRequest")(model_name=self._model)
        tensor = request.inputs.add(name="input-image-0", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(self._image)
        tensor.parameters["metadata"].string_param = json.dumps(metadata)
        if self._client is None:
            self._client = Client(address)
        try:
            answer = self._client.call("ModelInfer", request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            self.close()
            text = f"{error.code().name} {error.details()}"
            if any(sign in text.lower() for sign in _NO_CONNECTION):
                return UNREACHABLE, text
            was_cut = any(sign in text.lower() for sign in _CUT_CONNECTION)
            is_busy = error.code() == grpc.StatusCode.UNAVAILABLE and not was_cut  # the 503 of HTTP
            return (BUSY if is_busy else FAILED), text
        return ACKNOWLEDGED, answer.outputs[0].parameters["inference_id"].string_param

    def close(self) -> None:
        """Close the channel; the next request opens another."""
        if self._client is not None:
            self._client.channel.close()
        self._client = None


SENDERS = {"http": HttpSender, "grpc": GrpcSender}


def run(
    options: argparse.Namespace, journalist: Journalist, number: int, stop: threading.Event
) -> None:
    """Send requests until `stop` is set; after one that did not succeed, the next address is tried."""
    sender = SENDERS[options.protocol](options.model, options.image.read_bytes())
    turn, sent = number, 0
    while not stop.is_set():
        addresses = json.loads(options.addresses.read_text())[options.protocol]
        sent += 1
        metadata = {KEY: f"{options.output.stem}-{number}-{sent}"}
        begun_s = time.monotonic()
        outcome, text = sender.send(addresses[turn % len(addresses)], metadata)
        journalist.write(time.monotonic() - begun_s, outcome, text)
        if outcome != ACKNOWLEDGED:
            turn += 1
            stop.wait(PAUSE_AFTER_REFUSAL_S)
        stop.wait(options.pause_s)
    sender.close()


def main() -> None:
    """Run the threads of one client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=SENDERS, default="http")
    parser.add_argument("--addresses", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--image", type=Path, required=True)
    parser.add_argument("--model", default="shapes-classifier")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pause-s", type=float, default=0.01)
    options = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with options.output.open("a") as file:
        journalist = Journalist(file)
        threads = [
            threading.Thread(target=run, args=(options, journalist, number, stop))
            for number in range(options.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
