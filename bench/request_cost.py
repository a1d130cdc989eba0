"""The cost of a request: server CPU against the bare loop, with and without store and signals, in one run.

The bare loop decodes, preprocesses, runs and postprocesses the same images in one process, with the
same code of `tasks` and the same session. CPU of a server is that of all its processes, from /proc.
Rounds interleave, so that a machine that changes its speed changes it for all; medians are printed.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import cv2

from quadriga.engine.models.model import Model
from quadriga.tasks.image import decode
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, image_input

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
MODEL = "shapes-detector"


def cpu_s(pids: list[int]) -> float:
    """Sum the CPU seconds that processes have used."""
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) * TICK_S
    return total


class BareLoop:
    """The same work without a server."""

    def __init__(self, images: list[bytes]) -> None:
        cv2.setNumThreads(1)
        self._model = Model(MODEL, "1", SAMPLE_MODELS / MODEL / "model.onnx")
        self._images = images

    def __call__(self, requests: int) -> float:
        """Run images one after the other; return CPU milliseconds per image."""
        graph = self._model.image_predictor
        assert graph is not None
        options = graph.read_options({})
        begun = time.process_time()
        for number in range(requests):
            graph.predict([decode(self._images[number % len(self._images)])], [options])
        return (time.process_time() - begun) / requests * 1000


class Request(NamedTuple):
    """One request over HTTP."""

    path: str
    body: bytes | str
    headers: Mapping[str, str] = {}


class HttpSender:
    """Sender over HTTP for a closed loop, with one connection per thread."""

    def __init__(self, host: str, requests: list[Request]) -> None:
        self._host = host
        self._requests = requests
        self._local = threading.local()

    def __call__(self, number: int) -> None:
        """Send one of the requests."""
        if not hasattr(self._local, "connection"):
            self._local.connection = HTTPConnection(self._host, timeout=60)
        connection: HTTPConnection = self._local.connection
        request = self._requests[number % len(self._requests)]
        connection.request("POST", request.path, request.body, request.headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise SystemExit(f"expected 200, got {response.status}: {answer!r:.200}")


class Load:
    """A closed loop of clients against one server."""

    def __init__(
        self, server: ServerProcess, images: list[bytes], clients: int, model: str = MODEL
    ) -> None:
        self._server = server
        metadata = json.dumps({"camera_id": "north", "altitude": 120.5, "location": {"floor": 2}})
        self.bodies = [
            json.dumps({"inputs": [image_input(image, metadata=metadata)]}) for image in images
        ]
        path = f"/v2/models/{model}/infer"
        self._send = HttpSender(server.host, [Request(path, body) for body in self.bodies])
        self._pool = ThreadPoolExecutor(clients)

    def __call__(self, requests: int) -> tuple[float, float]:
        """Send requests; return server CPU milliseconds per request, and requests per second."""
        pids = self._server.child_pids()
        begun, begun_cpu = time.perf_counter(), cpu_s(pids)
        list(self._pool.map(self._send, range(requests)))
        elapsed_s = time.perf_counter() - begun
        time.sleep(0.3)  # the writer stores what is left
        return (cpu_s(pids) - begun_cpu) / requests * 1000, requests / elapsed_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300, help="per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    images = [path.read_bytes() for path in sorted((IMAGES / "detection").glob("*.jpg"))]
    bare: list[float] = []
    names = ("server without store", "with store, no signals", "server with store")
    costs: dict[str, list[float]] = {name: [] for name in names}
    rates: dict[str, list[float]] = {name: [] for name in costs}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        with (
            ServerProcess(data / "without", SAMPLE_MODELS, "--no-store") as without,
            ServerProcess(data / "silent", SAMPLE_MODELS, "--signals-per-s", "0") as silent,
            ServerProcess(data / "with", SAMPLE_MODELS) as keeping,
        ):
            loop = BareLoop(images)
            loads: dict[str, Callable[[int], Any]] = {
                name: Load(server, images, arguments.clients)
                for name, server in zip(costs, (without, silent, keeping), strict=True)
            }
            for round_number in range(arguments.rounds + 1):
                requests = arguments.requests if round_number else 50  # the first warms up
                bare.append(loop(requests))
                for name, load in loads.items():
                    cost_ms, rate = load(requests)
                    costs[name].append(cost_ms)
                    rates[name].append(rate)
    reference = statistics.median(bare[1:])
    print(
        f"{MODEL}, {len(images)} JPEG images, {arguments.clients} clients, "
        f"{arguments.rounds} rounds of {arguments.requests}"
    )
    print(f"{'':24}{'CPU ms/request':>16}{'of bare':>10}{'least..most':>16}{'requests/s':>12}")
    print(
        f"{'bare loop':24}{reference:16.2f}{1:10.2f}{_span(bare[1:]):>16}{1000 / reference:12.0f}"
    )
    for name, values in costs.items():
        middle = statistics.median(values[1:])
        rate = statistics.median(rates[name][1:])
        print(
            f"{name:24}{middle:16.2f}{middle / reference:10.2f}{_span(values[1:]):>16}{rate:12.0f}"
        )


def _span(values: list[float]) -> str:
    return f"{min(values):.2f}..{max(values):.2f}"


if __name__ == "__main__":
    main()
