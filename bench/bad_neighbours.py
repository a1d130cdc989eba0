"""A good model beside bad ones: its latency while they crash and take memory, and how soon it is back after a crash.

Three measurements: the price of a process of its own for each request of the sample detector; the detector's latency
in an open loop at a share of its capacity, alone and beside models that crash and take memory in processes of their
own; and the time without an answer after a model without isolation has ended the worker. Rounds alternate, so that a
machine that changes its speed changes it for both.
"""

import argparse
import http.client
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import cv2

from quadriga.engine.models.model import Model
from quadriga.engine.models.model_host import ModelHost
from quadriga.tasks.image import decode
from tests.onnx_models import allocating, dividing
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, image_input

DETECTOR = "shapes-detector"
ISOLATED = '[runtime]\nisolation = "process"\n'
SHARE = 0.3
"""Share of the detector's capacity that the open loop asks for."""
ELEMENTS = 200_000_000
"""Numbers that a request to the model that takes memory asks for: 800 MB."""


def tensor(name: str, number: int, datatype: str) -> dict[str, Any]:
    """Return one input of one number."""
    return {"name": name, "shape": [1], "datatype": datatype, "data": [number]}


POISON = [tensor("a", -(2**31), "INT32"), tensor("b", -1, "INT32")]
MUCH_MEMORY = [tensor("n", ELEMENTS, "INT64")]


def ask(server: ServerProcess, path: str, body: Any = None) -> int:
    """Send a request; return the status, 0 if the connection breaks."""
    try:
        return server.call("POST", path, body)[0]
    except (OSError, http.client.HTTPException):
        return 0


class Detector:
    """Requests to the detector, each with one of the sample images."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        images = [path.read_bytes() for path in sorted((IMAGES / "detection").glob("*.jpg"))]
        self._bodies = [json.dumps({"inputs": [image_input(image)]}) for image in images]
        self._pool = ThreadPoolExecutor(32)
        self._local = threading.local()

    def ask(self, number: int) -> int:
        """Ask once, on a connection of this thread; return the status, 0 if the connection breaks."""
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection(self._server.host, timeout=60)
        body = self._bodies[number % len(self._bodies)]
        try:
            self._local.connection.request("POST", f"/v2/models/{DETECTOR}/infer", body)
            response = self._local.connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            del self._local.connection
            return 0
        return int(response.status)

    def capacity(self, requests: int) -> float:
        """Return the requests per second that two clients get."""
        with ThreadPoolExecutor(2) as clients:
            list(clients.map(self.ask, range(20)))
            begun_s = time.perf_counter()
            list(clients.map(self.ask, range(requests)))
            return requests / (time.perf_counter() - begun_s)

    def open_loop(self, rate: float, seconds: float) -> tuple[list[float], int]:
        """Ask at a fixed rate, whatever the answers take: milliseconds since each was due, and failures."""

        def timed(number: int, due_s: float) -> tuple[float, int]:
            status = self.ask(number)
            return (time.perf_counter() - due_s) * 1000, status

        begun_s, pending = time.perf_counter(), []
        for number in range(int(rate * seconds)):
            due_s = begun_s + number / rate
            time.sleep(max(0.0, due_s - time.perf_counter()))
            pending.append(self._pool.submit(timed, number, due_s))
        answers = [future.result() for future in pending]
        return [ms for ms, _ in answers], sum(status != 200 for _, status in answers)


class BadClients:
    """Clients that send what crashes one model and makes another take memory, which is refused after two crashes."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stop = threading.Event()
        self.counts = {"poison": 0, "memory": 0}
        self._threads = [threading.Thread(target=work) for work in (self._crash, self._take_memory)]

    def _crash(self) -> None:
        while not self._stop.wait(0.2):
            ask(self._server, "/v2/models/divide/infer", {"inputs": POISON})
            self.counts["poison"] += 1

    def _take_memory(self) -> None:
        while not self._stop.wait(0.2):
            ask(self._server, "/v2/models/allocate/infer", {"inputs": MUCH_MEMORY})
            self.counts["memory"] += 1

    def __enter__(self) -> Self:
        """Start."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def models(folder: Path, toml: str) -> Path:
    """Make a folder of the detector and two bad models."""
    shutil.copytree(SAMPLE_MODELS / DETECTOR, folder / DETECTOR)
    for name, make in (("divide", dividing), ("allocate", allocating)):
        make(folder / name / "model.onnx")
        (folder / name / "model.toml").write_text(toml)
    return folder


def percentile(values: list[float], share: float) -> float:
    """Return a percentile."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def isolation_cost(rounds: int, runs: int) -> None:
    """Print the time of a prediction in this process, and in a process of its own."""
    cv2.setNumThreads(1)
    path = SAMPLE_MODELS / DETECTOR / "model.onnx"
    kinds = {"in the worker": "none", "in a process of its own": "all"}
    loaded = {
        name: Model(DETECTOR, "1", path, host=ModelHost(isolation=isolation))
        for name, isolation in kinds.items()
    }
    image = decode(next((IMAGES / "detection").glob("*.jpg")).read_bytes())
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, model in loaded.items():
            graph = model.image_predictor
            assert graph is not None
            options = graph.read_options({})
            begun_s = time.perf_counter()
            for _ in range(runs):
                graph.predict([image], [options])
            times[name].append((time.perf_counter() - begun_s) / runs * 1000)
    print(f"\nprediction of {DETECTOR}, decoded image, {rounds} rounds of {runs}, median ms")
    own, isolated = (statistics.median(values) for values in times.values())
    print(f"{'in the worker':28}{own:8.2f}")
    print(f"{'in a process of its own':28}{isolated:8.2f}  {isolated / own:.2f} times")


def neighbours(folder: Path, rounds: int, seconds: float) -> None:
    """Print the latency of the detector alone and beside bad models in processes of their own."""
    with ServerProcess(
        folder / "data", models(folder / "models", ISOLATED), "--no-store"
    ) as server:
        detector = Detector(server)
        capacity = detector.capacity(200)
        rate = capacity * SHARE
        latencies: dict[str, list[float]] = {"alone": [], "beside": []}
        failures = dict.fromkeys(latencies, 0)
        counts: dict[str, int] = {}
        for _ in range(rounds):
            for name in latencies:
                if name == "alone":
                    ms, failed = detector.open_loop(rate, seconds)
                else:
                    ask(server, "/v2/repository/models/divide/load")
                    with BadClients(server) as bad:
                        ms, failed = detector.open_loop(rate, seconds)
                    counts = {key: counts.get(key, 0) + bad.counts[key] for key in bad.counts}
                latencies[name] += ms
                failures[name] += failed
        log = server.log.read_text()
        crashes, restarts = log.count("was ended by SIGFPE"), log.count("worker 0 was ended")
    print(
        f"\n{DETECTOR} at {rate:.0f} requests/s, {SHARE:.0%} of {capacity:.0f}; {rounds} rounds of {seconds:.0f} s"
    )
    print(f"{'':12}{'p50 ms':>10}{'p99 ms':>10}{'failed':>10}")
    for name, values in latencies.items():
        print(
            f"{name:12}{percentile(values, 0.5):10.1f}{percentile(values, 0.99):10.1f}{failures[name]:10}"
        )
    ratio = percentile(latencies["beside"], 0.99) / percentile(latencies["alone"], 0.99)
    print(
        f"p99 beside is {ratio:.2f} times that alone; {counts} requests to the bad models, "
        f"{crashes} crashes; the worker ended {restarts} times"
    )


def recovery(folder: Path, crashes: int) -> None:
    """Print the time without an answer of the detector after a crash of the worker, each crash in the worker."""
    with ServerProcess(folder / "data", models(folder / "models", ""), "--no-store") as server:
        detector = Detector(server)
        gaps = []
        for _ in range(crashes):
            begun_s = time.perf_counter()
            ask(server, "/v2/models/divide/infer", {"inputs": POISON})
            wait(lambda: detector.ask(0) == 200)
            gaps.append(time.perf_counter() - begun_s)
            ask(server, "/v2/repository/models/divide/load")  # into the worker again
    print(
        f"\nwithout isolation: seconds until the detector answers again, {crashes} crashes in a row"
    )
    print(" ".join(f"{gap:.2f}" for gap in gaps), f"; most {max(gaps):.2f}")


def wait(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, for a minute at most."""
    until_s = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until_s:
            raise SystemExit("the detector does not answer")
        time.sleep(0.02)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10, help="of an open loop")
    parser.add_argument("--runs", type=int, default=100, help="predictions in a round")
    parser.add_argument("--crashes", type=int, default=6)
    arguments = parser.parse_args()
    isolation_cost(arguments.rounds, arguments.runs)
    with tempfile.TemporaryDirectory() as folder:
        neighbours(Path(folder) / "neighbours", arguments.rounds, arguments.seconds)
        recovery(Path(folder) / "recovery", arguments.crashes)


if __name__ == "__main__":
    main()
