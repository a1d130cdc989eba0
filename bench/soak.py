"""A server at moderate load for a long time: memory, open files and threads of its processes, in one run or in pieces.

All protocols ask all sample models; beside them run searches, statements of ground truth, drift and evaluation jobs,
schedules of both for each model, exports, deletions and reloads of models. Each process is measured every few seconds.
After the warm-up its memory must grow by less than 1 MB a minute in total, and descriptors and threads must stay as many
as they were, else the status is 1.

The writer's page cache of SQLite grows to 64 MiB before it is flat: with about 1.5 kB a record that is an hour at the default
rate. In a shorter run the slope of the writer is that of its cache.

Until the first inferences are deleted, after twenty minutes, the store grows, and with it what an evaluation of it reads: the
warm-up is as long, or half of a shorter run.

Flags: `--minutes N` (120), `--warm-up N` (20), `--rate N` requests a second (8), `--workers N` (1),
`--folder DIR`: a data folder to keep, so that a later run goes on with it.
"""

import argparse
import base64
import collections
import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.grpc_client import Client
from tests.server_process import IMAGES, MODELS, SAMPLE_MODELS, ServerProcess, image_input

SAMPLE_INTERVAL_S = 5.0
MAX_SLOPE_MB_PER_MIN = 1.0
MAX_MORE_DESCRIPTORS = 8
MAX_MORE_THREADS = 4


class Usage(NamedTuple):
    """What the processes of a server use at one moment."""

    minute: float
    memory_mb: dict[str, float]
    """Private memory of each process, by its role; not the pages of files, such as the database."""
    descriptors: int
    threads: int


class Load:
    """Requests of all kinds, each of which counts by its name and outcome."""

    def __init__(self, server: ServerProcess, grpc: Client) -> None:
        self._server = server
        self._grpc = grpc
        self._images = {
            model: itertools.cycle(
                [path.read_bytes() for path in sorted((IMAGES / folder).glob("*.jpg"))]
            )
            for folder, model in MODELS.items()
        }
        self._models = itertools.cycle(MODELS.values())
        self._stored: collections.deque[str] = collections.deque(maxlen=500)
        self.outcomes: collections.Counter[str] = collections.Counter()

    def __call__(self, kind: str) -> None:
        """Send one request of a kind; an unexpected answer counts as a failure, with its text."""
        try:
            outcome = getattr(self, f"ask_{kind}")()
        except Exception as error:  # noqa: BLE001 - whatever went wrong is what is counted
            outcome = f"{type(error).__name__}: {error}"[:160]
        self.outcomes[f"{kind}: {outcome}"] += 1

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self._server.call(method, path, body)
        if status not in (200, 202):
            raise ValueError(f"{status} {answer['error']}")
        return answer

    def ask_v2(self) -> str:
        """Ask the next model over V2, with metadata."""
        model = next(self._models)
        parameters: dict[str, Any] = {"metadata": {"camera": "north"}}
        if model == "shapes-image-text":
            parameters["prompts"] = ["how many shapes?"]
        tensor = image_input(next(self._images[model]), **parameters)
        answer = self._call("POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})
        self._stored.append(answer["outputs"][0]["parameters"]["inference_id"])
        return "answered"

    def ask_v1(self) -> str:
        """Ask a detector over V1."""
        image = base64.b64encode(next(self._images["shapes-detector"])).decode()
        self._call(
            "POST", "/v1/models/shapes-detector:predict", {"instances": [{"image": {"b64": image}}]}
        )
        return "answered"

    def ask_grpc(self) -> str:
        """Ask the classifier over gRPC."""
        tensor = {
            "name": "image",
            "datatype": "BYTES",
            "shape": [1],
            "contents": {"bytes_contents": [next(self._images["shapes-classifier"])]},
        }
        self._grpc.call("ModelInfer", model_name="shapes-classifier", inputs=[tensor])
        return "answered"

    def ask_search(self) -> str:
        """Search by metadata and label."""
        where = {"and": [{"meta.camera": "north"}, {"ts": {"ge": "-1h"}}]}
        self._call("POST", "/api/inferences/query", {"where": where, "limit": 50})
        return "answered"

    def ask_aggregate(self) -> str:
        """Count by model."""
        self._call("POST", "/api/inferences/aggregate", {"group": ["model"]})
        return "answered"

    def ask_truth(self) -> str:
        """State what the detector found as the truth of one image, and change its metadata."""
        if not self._stored:
            return "nothing stored yet"
        inference_id = self._stored[-1]
        record = self._call("GET", f"/api/inferences/{inference_id}")
        if record["task"] != "OBJECT_DETECTION":
            return "another task"
        self._call(
            "PUT",
            f"/api/inferences/{inference_id}/ground-truth",
            [
                {key: value for key, value in box.items() if key != "score"}
                for box in record["predictions"]
            ],
        )
        return "stated"

    def ask_job(self) -> str:
        """Submit a drift comparison, an evaluation or an export, in turns."""
        bodies = (
            (
                "/api/drift",
                {
                    "model": "shapes-detector",
                    "from": "-5m",
                    "baseline": {"from": "-10m", "to": "-5m"},
                },
            ),
            ("/api/evaluations", {"model": "shapes-detector"}),
            ("/api/exports", {"where": {"ts": {"ge": "-2m"}}}),
        )
        path, body = bodies[
            sum(count for name, count in self.outcomes.items() if "job" in name) % 3
        ]
        self._call("POST", path, body)
        return "submitted"

    def ask_delete(self) -> str:
        """Delete what is older than twenty minutes."""
        self._call("POST", "/api/inferences/delete", {"where": {"ts": {"lt": "-20m"}}})
        return "deleted"

    def ask_reload(self) -> str:
        """Load the next model again."""
        self._call("POST", f"/v2/repository/models/{next(self._models)}/load", {})
        return "loaded"

    def ask_metrics(self) -> str:
        """Read the metrics, as Prometheus does."""
        status, _, _ = self._server.request("GET", "/metrics")
        return str(status)


def set_schedules(server: ServerProcess) -> None:
    """Let the drift of each model be compared every five minutes, and its answers be evaluated every hour."""
    bodies = {
        "baseline": {"rolling": "15m"},
        "drift-schedule": {"every": "5m", "delay": "1m"},
        "evaluation-schedule": {"every": "1h", "delay": "1m"},
    }
    for model, (path, body) in itertools.product(MODELS.values(), bodies.items()):
        status, answer = server.call("PUT", f"/api/models/{model}/{path}", body)
        if status >= 300:
            raise SystemExit(f"{path} of {model}: {status} {answer}")


def examined_windows(server: ServerProcess) -> Iterator[str]:
    """Describe how many windows of the schedules have been examined, by kind."""
    for kind in ("drift", "evaluation"):
        histories = [
            server.call("GET", f"/api/models/{model}/{kind}")[1]["windows"]
            for model in MODELS.values()
        ]
        yield f"{sum(map(len, histories))} windows of {kind} schedules"


def intervals_s(rate: float) -> dict[str, float]:
    """Return how often each kind of request is sent, seconds."""
    return {
        "v2": 2 / rate,
        "v1": 4 / rate,
        "grpc": 4 / rate,
        "search": 2.0,
        "aggregate": 15.0,
        "truth": 1.0,
        "job": 30.0,
        "delete": 60.0,
        "reload": 20.0,
        "metrics": 15.0,
    }


def repeat(send: Callable[[], None], interval_s: float, stop: threading.Event) -> None:
    """Call a function once in every interval; calls that are late are left out."""
    due_s = time.monotonic()
    while not stop.wait(max(0.0, due_s - time.monotonic())):
        send()
        due_s = max(due_s + interval_s, time.monotonic())


def measure(server: ServerProcess, begun_s: float) -> Usage:
    """Read the memory, descriptors and threads of all processes of a server."""
    memory_mb, descriptors, threads = {}, 0, 0
    for pid in server.child_pids():
        folder = Path("/proc", str(pid))
        role = folder.joinpath("cmdline").read_bytes().rstrip(b"\0").rpartition(b"\0")[2].decode()
        name = "supervisor" if pid == server.child_pids()[0] else role
        fields = dict(
            line.split(":", 1)
            for line in folder.joinpath("smaps_rollup").read_text().splitlines()[1:]
        )
        memory_mb[name] = int(fields["Pss_Anon"].split()[0]) / 1024
        descriptors += sum(1 for _ in (folder / "fd").iterdir())
        threads += sum(1 for _ in (folder / "task").iterdir())
    return Usage((time.monotonic() - begun_s) / 60, memory_mb, descriptors, threads)


def samples(server: ServerProcess, minutes: float) -> Iterator[Usage]:
    """Measure a server again and again for so many minutes."""
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < minutes * 60:
        time.sleep(SAMPLE_INTERVAL_S)
        try:
            yield measure(server, begun_s)
        except (FileNotFoundError, ProcessLookupError):  # a process ended meanwhile
            continue


def slope(minutes: list[float], values: list[float]) -> float:
    """Return by how much values grow a minute, by least squares."""
    return float(np.polyfit(minutes, values, 1)[0])


def report(usages: list[Usage]) -> bool:
    """Print how usage changed; return whether it stayed as it was."""
    minutes = [usage.minute for usage in usages]
    totals = [sum(usage.memory_mb.values()) for usage in usages]
    for name in usages[-1].memory_mb:
        values = [usage.memory_mb.get(name, 0.0) for usage in usages]
        print(
            f"{name:12} {values[0]:8.1f} MB to {values[-1]:8.1f} MB, {slope(minutes, values):+.3f} MB/min"
        )
    total = slope(minutes, totals)
    print(f"{'all':12} {totals[0]:8.1f} MB to {totals[-1]:8.1f} MB, {total:+.3f} MB/min")
    quarter = max(len(usages) // 4, 1)
    more = {}
    for name in ("descriptors", "threads"):
        values = [getattr(usage, name) for usage in usages]
        first, last = (statistics.median(part) for part in (values[:quarter], values[-quarter:]))
        print(
            f"{name}: {first:.0f} in the first quarter, {last:.0f} in the last, {max(values)} at most"
        )
        more[name] = last - first
    return (
        total < MAX_SLOPE_MB_PER_MIN
        and more["descriptors"] <= MAX_MORE_DESCRIPTORS
        and more["threads"] <= MAX_MORE_THREADS
    )


def soak(server: ServerProcess, minutes: float, warm_up: float, rate: float) -> bool:
    """Put load on a server; return whether its usage stayed as it was after the warm-up."""
    stop, usages = threading.Event(), []
    set_schedules(server)
    with Client(server.grpc) as grpc:
        load = Load(server, grpc)
        threads = [
            threading.Thread(target=repeat, args=(lambda kind=kind: load(kind), interval_s, stop))
            for kind, interval_s in intervals_s(rate).items()
        ]
        for thread in threads:
            thread.start()
        try:
            for number, usage in enumerate(samples(server, minutes)):
                usages.append(usage)
                if number % 60 == 0:
                    total = sum(usage.memory_mb.values())
                    print(
                        f"{usage.minute:6.1f} min {total:8.1f} MB {usage.descriptors} descriptors "
                        f"{usage.threads} threads {sum(load.outcomes.values())} requests",
                        flush=True,
                    )
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    for outcome, count in sorted(load.outcomes.items()):
        print(f"{count:8}  {outcome}")
    print("; ".join(examined_windows(server)))
    return report([usage for usage in usages if usage.minute >= warm_up])


def main() -> None:
    """Run, print, and end with status 1 if memory, descriptors or threads grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--warm-up", type=float)
    parser.add_argument("--rate", type=float, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    warm_up = min(20, arguments.minutes / 2) if arguments.warm_up is None else arguments.warm_up
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        flags = ("--grpc-port", "0", "--workers", str(arguments.workers))
        server = stack.enter_context(ServerProcess(folder / "data", SAMPLE_MODELS, *flags))
        is_flat = soak(server, arguments.minutes, warm_up, arguments.rate)
    sys.exit(0 if is_flat else 1)


if __name__ == "__main__":
    main()
