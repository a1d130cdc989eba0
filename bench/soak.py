"""A server at moderate load for a long time: memory, open files and threads of its processes, in one run or in pieces.

All protocols ask all sample models; beside them run searches, statements of ground truth, drift and evaluation jobs,
schedules of both for each model, exports, deletions and reloads of models. Each process is measured every few seconds.
After the warm-up its memory must grow by less than 1 MB a minute in total, and descriptors and threads must stay as many
as they were, else the status is 1.

The writer's page cache of SQLite grows to 64 MiB before it is flat: with about 1.5 kB a record that is an hour. In a shorter run the slope of the writer is that of its cache.

Until the first inferences are deleted, after twenty minutes, the store grows, and with it what an evaluation of it reads: the
warm-up is as long, or half of a shorter run.

Flags: `--minutes N` (120), `--warm-up N` (20), `--folder DIR`: a data folder to keep, so that a later run goes on with it.
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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from tests.grpc_client import Client
from tests.server_process import IMAGES, MODELS, SAMPLE_MODELS, ServerProcess

SAMPLE_INTERVAL_S = 5.0
MAX_SLOPE_MB_PER_MIN = 1.0
MAX_MORE_DESCRIPTORS = 8
MAX_MORE_THREADS = 4


INTERVALS_S = {
    "v2": 0.25,
    "v1": 0.5,
    "grpc": 0.5,
    "search": 2.0,
    "aggregate": 15.0,
    "truth": 1.0,
    "job": 30.0,
    "delete": 60.0,
    "reload": 20.0,
    "metrics": 15.0,
}
"""Seconds from one request of a kind to the next: eight inferences a second in all."""
JOBS = {
    "/api/drift": {
        "model": "shapes-detector",
        "from": "-5m",
        "baseline": {"from": "-10m", "to": "-5m"},
    },
    "/api/evaluations": {"model": "shapes-detector"},
    "/api/exports": {"where": {"ts": {"ge": "-2m"}}},
}


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
        self._jobs = itertools.cycle(JOBS.items())
        self._stored = ""
        """Id of the newest inference over V2."""
        self.outcomes: collections.Counter[str] = collections.Counter()

    def __call__(self, kind: str) -> None:
        """Send one request of a kind; an unexpected answer counts as a failure, with its text."""
        try:
            outcome = getattr(self, f"_ask_{kind}")() or "answered"
        except Exception as error:  # noqa: BLE001 - whatever went wrong is what is counted
            outcome = f"{type(error).__name__}: {error}"[:160]
        self.outcomes[f"{kind}: {outcome}"] += 1

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self._server.call(method, path, body)
        if status not in (200, 202):
            raise ValueError(f"{status} {answer['error']}")
        return answer

    def _ask_v2(self) -> None:
        """Ask the next model over V2, with metadata."""
        model = next(self._models)
        parameters: dict[str, Any] = {"metadata": {"camera": "north"}}
        if model == "shapes-image-text":
            parameters["prompts"] = ["how many shapes?"]
        self._stored = self._server.store(model, next(self._images[model]), **parameters)

    def _ask_v1(self) -> None:
        image = base64.b64encode(next(self._images["shapes-detector"])).decode()
        body = {"instances": [{"image": {"b64": image}}]}
        self._call("POST", "/v1/models/shapes-detector:predict", body)

    def _ask_grpc(self) -> None:
        contents = {"bytes_contents": [next(self._images["shapes-classifier"])]}
        tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "contents": contents}
        self._grpc.call("ModelInfer", model_name="shapes-classifier", inputs=[tensor])

    def _ask_search(self) -> None:
        where = {"and": [{"meta.camera": "north"}, {"ts": {"ge": "-1h"}}]}
        self._call("POST", "/api/inferences/query", {"where": where, "limit": 50})

    def _ask_aggregate(self) -> None:
        self._call("POST", "/api/inferences/aggregate", {"group": ["model"]})

    def _ask_truth(self) -> str | None:
        """State what the detector found as the truth of one image."""
        if not self._stored:
            return "nothing stored yet"
        path = f"/api/inferences/{self._stored}"
        record = self._call("GET", path)
        if record["task"] != "OBJECT_DETECTION":
            return "another task"
        truth = [
            {key: value for key, value in box.items() if key != "score"}
            for box in record["predictions"]
        ]
        self._call("PUT", f"{path}/ground-truth", truth)
        return None

    def _ask_job(self) -> None:
        self._call("POST", *next(self._jobs))

    def _ask_delete(self) -> None:
        self._call("POST", "/api/inferences/delete", {"where": {"ts": {"lt": "-20m"}}})

    def _ask_reload(self) -> None:
        self._call("POST", f"/v2/repository/models/{next(self._models)}/load", {})

    def _ask_metrics(self) -> str:
        return str(self._server.request("GET", "/metrics")[0])


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


def repeat(send: Callable[[], None], interval_s: float, stop: threading.Event) -> None:
    """Call a function once in every interval; calls that are late are left out."""
    due_s = time.monotonic()
    while not stop.wait(max(0.0, due_s - time.monotonic())):
        send()
        due_s = max(due_s + interval_s, time.monotonic())


def measure(server: ServerProcess, begun_s: float) -> Usage:
    """Read the memory, descriptors and threads of all processes of a server."""
    memory_mb, descriptors, threads = {}, 0, 0
    for number, process in enumerate(map(psutil.Process, server.child_pids())):
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        name = process.cmdline()[-1] if number else "supervisor"
        memory_mb[name] = int(rollup.partition("Pss_Anon:")[2].split()[0]) / 1024
        descriptors += process.num_fds()
        threads += process.num_threads()
    return Usage((time.monotonic() - begun_s) / 60, memory_mb, descriptors, threads)


def report(usages: list[Usage]) -> bool:
    """Print how usage changed; return whether it stayed as it was."""
    minutes = [usage.minute for usage in usages]
    memory_mb = {
        name: [usage.memory_mb.get(name, 0.0) for usage in usages] for name in usages[-1].memory_mb
    }
    memory_mb["all"] = [sum(usage.memory_mb.values()) for usage in usages]
    slope = 0.0
    for name, values in memory_mb.items():
        slope = float(np.polyfit(minutes, values, 1)[0])
        print(f"{name:12} {values[0]:8.1f} MB to {values[-1]:8.1f} MB, {slope:+.3f} MB/min")
    is_flat, quarter = slope < MAX_SLOPE_MB_PER_MIN, max(len(usages) // 4, 1)
    for name, most in (("descriptors", MAX_MORE_DESCRIPTORS), ("threads", MAX_MORE_THREADS)):
        counts = [getattr(usage, name) for usage in usages]
        first, last = (statistics.median(part) for part in (counts[:quarter], counts[-quarter:]))
        print(
            f"{name}: {first:.0f} in the first quarter, {last:.0f} in the last, {max(counts)} at most"
        )
        is_flat = is_flat and last - first <= most
    return is_flat


def soak(server: ServerProcess, minutes: float, warm_up: float) -> bool:
    """Put load on a server; return whether its usage stayed as it was after the warm-up."""
    stop, usages = threading.Event(), []
    set_schedules(server)
    with Client(server.grpc) as grpc:
        load = Load(server, grpc)
        threads = [
            threading.Thread(target=repeat, args=(partial(load, kind), interval_s, stop))
            for kind, interval_s in INTERVALS_S.items()
        ]
        for thread in threads:
            thread.start()
        begun_s = time.monotonic()
        try:
            while time.monotonic() - begun_s < minutes * 60:
                time.sleep(SAMPLE_INTERVAL_S)
                with suppress(OSError, psutil.NoSuchProcess):  # a process ended meanwhile
                    usages.append(measure(server, begun_s))
                if len(usages) % 60 == 1:
                    _, memory_mb, descriptors, of_server = usages[-1]
                    print(
                        f"{usages[-1].minute:6.1f} min {sum(memory_mb.values()):8.1f} MB {descriptors} descriptors "
                        f"{of_server} threads {sum(load.outcomes.values())} requests",
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
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    warm_up = min(20, arguments.minutes / 2) if arguments.warm_up is None else arguments.warm_up
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with ServerProcess(folder / "data", SAMPLE_MODELS, "--grpc-port", "0") as server:
            is_flat = soak(server, arguments.minutes, warm_up)
    sys.exit(0 if is_flat else 1)


if __name__ == "__main__":
    main()
