"""The execution providers of one machine beside each other: a run of the graph, and the way over HTTP; a table and a JSON file.

Runs: each model by the CPU in one thread, by the CPU in all cores, and by CUDA with and without TF32, in turns, at several
batch sizes. Factors are medians of the rounds' ratios to the CPU in one thread with their 95 % interval.

Over HTTP: one server has each model once for each way, and clients of a closed loop, in processes of their own, send
different images or tensors to one way after the other, in turns. Answers are compared with those of the CPU.

PYTHONPATH=. python bench/provider_cost.py --json bench-data/provider_cost.json
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from bench_models import CLASSES, MOBILE, R18, SIDES, write_models
from closed_loop import HttpLoad
from path_cost import http_request, photograph

from quadriga.engine.models.runners.session import Session
from quadriga.extras.tuning.paired_times import median_factor, time_in_turns
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, image_input

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
EXACT = {"name": CUDA, "use_tf32": 0}
DETECTOR = "shapes-detector"
SAMPLES = ("shapes-classifier", DETECTOR, "ships-oriented-detector", "shapes-segmenter")
BATCHES = (1, 8, 32)
REQUESTS = 8
"""Different requests of each kind."""
TOLERANCE = 2e-2
"""Largest difference to the CPU's scores, as a share of the largest: TF32 has three digits."""

WAYS = {"CPU": ([CPU], 1), "CPU, all cores": ([CPU], 0), "CUDA": ([CUDA, CPU], 1), "CUDA without TF32": ([EXACT, CPU], 1)}  # fmt: skip
"""Providers and threads inside of a run, by the name of a way."""

_EXACT_TOML = f'providers = [{{name = "{CUDA}", use_tf32 = 0}}, "{CPU}"]'
SERVED = {
    "cpu": "",
    "cuda": f'providers = ["{CUDA}", "{CPU}"]',
    "exact": _EXACT_TOML,
    "batched": f"{_EXACT_TOML}\nbatching = {{max = 32}}",
}
"""Lines of `[runtime]`, by what the names of the models end with."""


def measure_runs(path: Path, batch: int, seconds: float) -> dict[str, Any]:
    """Time the runs of a batch by each way that the batch axis allows."""
    sessions = {
        name: Session(path, providers, threads) for name, (providers, threads) in WAYS.items()
    }
    (info,) = sessions["CPU"].inputs
    random = np.random.default_rng(3)
    shape = (batch, *info.shape[1:])
    feeds = [{info.name: random.random(shape, np.float32)} for _ in range(4)]

    expected = sessions["CPU"].run(feeds[0])
    differences = {
        name: largest_difference(expected, session.run(feeds[0]))
        for name, session in sessions.items()
    }

    def run(session: Session, number: int) -> None:
        session.run(feeds[number % len(feeds)])

    tasks = [partial(run, session) for session in sessions.values()]
    times = dict(zip(sessions, time_in_turns(tasks, max_rounds=100, max_s=seconds), strict=True))
    ways = {}
    for name, of_way in times.items():
        factor, interval = median_factor(times["CPU"].wall_s, of_way.wall_s)
        ways[name] = {
            "ms_per_image": of_way.ms / batch,
            "cpu_ms_per_image": of_way.cpu_ms / batch,
            "factor": factor,
            "interval": interval,
            "difference": differences[name],
        }
    return {"model": path.parent.name, "batch": batch, "rounds": len(times["CPU"].wall_s), "ways": ways}  # fmt: skip


def largest_difference(expected: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> float:
    """Return the largest difference of all outputs, each as a share of its largest number."""
    return max(
        float(np.max(np.abs(outputs[name] - array)) / np.max(np.abs(array)))
        for name, array in expected.items()
    )


def print_runs(row: dict[str, Any]) -> None:
    """Print the line of a model and a batch."""
    texts = []
    for name, way in row["ways"].items():
        text = f"{name} {way['ms_per_image']:.3f}"
        if name != "CPU":
            low, high = way["interval"] or (0, 0)
            text += f" x {way['factor']:.2f} ({low:.2f} to {high:.2f}), differs by {way['difference']:.1e}"
        texts.append(text)
    print(f"{row['model']} batch {row['batch']}, {row['rounds']} rounds, ms an image: {'; '.join(texts)}", flush=True)  # fmt: skip


class Kind(NamedTuple):
    """One kind of request to one model."""

    name: str
    model: str
    body: Callable[[int], tuple[bytes, str]]
    """Body and further headers of the request of a number."""
    is_binary: bool


def tensor_body(model: str, number: int) -> tuple[bytes, str]:
    """Make a binary tensor and the head of its request."""
    side = SIDES[model]
    data = np.random.default_rng(number).random((1, 3, side, side), np.float32).tobytes()
    tensor = {
        "name": "image",
        "shape": [1, 3, side, side],
        "datatype": "FP32",
        "parameters": {"content_type": "raw", "binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + data, f"Inference-Header-Content-Length: {len(head)}\r\n"


def photograph_body(number: int) -> tuple[bytes, str]:
    """Make a request of a JPEG of 640 x 480 in base64."""
    return json.dumps({"inputs": [image_input(photograph(number))]}).encode(), ""


def scene_body(number: int) -> tuple[bytes, str]:
    """Make a request of a sample image in base64."""
    file = sorted((IMAGES / "detection").glob("*.jpg"))[number]
    return json.dumps({"inputs": [image_input(file.read_bytes())]}).encode(), ""


KINDS = [
    Kind("r18, binary", R18, partial(tensor_body, R18), is_binary=True),
    Kind("r18, JPEG", R18, photograph_body, is_binary=False),
    Kind("mobile, binary", MOBILE, partial(tensor_body, MOBILE), is_binary=True),
    Kind("detector, JPEG", DETECTOR, scene_body, is_binary=False),
]


def write_served(folder: Path, plain: Path) -> Path:
    """Write each model once for each way; return the folder."""
    for name in (R18, MOBILE, DETECTOR):
        source = SAMPLE_MODELS / name if name == DETECTOR else plain / name
        for way, runtime in SERVED.items():
            shutil.copytree(source, folder / f"{name}-{way}")
            with (folder / f"{name}-{way}" / "model.toml").open("a") as file:
                file.write(f"\n[runtime]\n{runtime}\n")
    return folder


class Loaded(NamedTuple):
    """What one client process saw."""

    answers: list[tuple[int, bytes, bytes]]
    latencies_s: list[float]
    seconds: float


def run_client(host: str, requests: Sequence[bytes], connections: int, count: int) -> Loaded:
    """Send requests from this process; the answers are those of the first of each request."""
    load = HttpLoad(host, connections)
    load.connect()
    begun_s = time.perf_counter()
    answers = load(requests, count)
    seconds = time.perf_counter() - begun_s
    load.close()
    first = {number: (number, *answer) for number, answer in reversed(answers)}
    failed = [(number, *answer) for number, answer in answers if b" 200 " not in answer[0][:16]]
    return Loaded([*first.values(), *failed], load.latencies_s, seconds)


class Clients:
    """Processes that send requests at once."""

    def __init__(self, pool: Any, processes: int) -> None:
        self._pool, self._processes = pool, processes

    def __call__(
        self, host: str, requests: Sequence[bytes], connections: int, count: int
    ) -> Loaded:
        """Send so many requests in all."""
        counts = connections // self._processes, -(-count // self._processes)
        arguments = [(host, requests, *counts)] * self._processes
        loads: list[Loaded] = self._pool.starmap(run_client, arguments)
        answers = [answer for load in loads for answer in load.answers]
        latencies_s = [value for load in loads for value in load.latencies_s]
        return Loaded(answers, latencies_s, max(load.seconds for load in loads))


def scores_of(kind: Kind, body: bytes) -> np.ndarray:
    """Return the numbers of an answer that are compared."""
    if kind.is_binary:
        return np.frombuffer(body[-4 * CLASSES[kind.model] :], np.float32)
    predictions = msgspec.json.decode(body)["outputs"][0]["data"][0]
    return np.array([prediction["score"] for prediction in predictions], np.float32)


def wrong_answers(kind: Kind, loaded: Loaded, expected: dict[int, np.ndarray]) -> int:
    """Count the answers that are no success, or differ from the CPU's."""
    wrong = 0
    for number, head, body in loaded.answers:
        if b" 200 " not in head[:16]:
            wrong += 1
            continue
        scores = scores_of(kind, body)
        expected.setdefault(number, scores)
        scale = float(np.max(np.abs(expected[number]), initial=1e-6))
        is_alike = scores.shape == expected[number].shape
        wrong += not (is_alike and float(np.max(np.abs(scores - expected[number]), initial=0)) <= TOLERANCE * scale)  # fmt: skip
    return wrong


def measure_served(
    server: ServerProcess, clients: Clients, kind: Kind, connections: int, *, rounds: int, seconds: float
) -> dict[str, Any]:  # fmt: skip
    """Send requests to each way, in turns."""
    bodies = [kind.body(number) for number in range(REQUESTS)]
    requests = {
        way: [http_request(f"{kind.model}-{way}", *body) for body in bodies] for way in SERVED
    }
    counts = {}
    for way in SERVED:
        clients(
            server.host, requests[way], connections, 4 * connections
        )  # warms up each size of a batch
        trial = clients(server.host, requests[way], connections, 4 * connections)
        counts[way] = max(2 * connections, int(4 * connections / trial.seconds * seconds))
    rates: dict[str, list[float]] = {way: [] for way in SERVED}
    latencies: dict[str, list[float]] = {way: [] for way in SERVED}
    wrong = dict.fromkeys(SERVED, 0)
    expected: dict[int, np.ndarray] = {}
    names = list(SERVED)
    for number in range(rounds):
        start = number % len(names) if number else 0  # the CPU answers first: it is the reference
        for way in names[start:] + names[:start]:
            loaded = clients(server.host, requests[way], connections, counts[way])
            rates[way].append(len(loaded.latencies_s) / loaded.seconds)
            latencies[way].extend(loaded.latencies_s)
            wrong[way] += wrong_answers(kind, loaded, expected)
    ways = {
        way: {
            "requests_per_s": statistics.median(rates[way]),
            "least": min(rates[way]),
            "most": max(rates[way]),
            "p50_ms": float(np.quantile(latencies[way], 0.5)) * 1000,
            "p99_ms": float(np.quantile(latencies[way], 0.99)) * 1000,
            "requests": len(latencies[way]),
            "wrong": wrong[way],
        }
        for way in SERVED
    }
    return {"kind": kind.name, "connections": connections, "ways": ways}


def print_served(row: dict[str, Any], workers: int) -> None:
    """Print the lines of a kind of request."""
    print(f"{row['kind']}, {row['connections']} clients, {workers} workers:")
    for name, way in row["ways"].items():
        print(
            f"  {name:8} {way['requests_per_s']:8.1f}/s ({way['least']:.0f} to {way['most']:.0f}), p50 {way['p50_ms']:.2f} ms, "
            f"p99 {way['p99_ms']:.2f} ms, {way['requests']} requests, {way['wrong']} wrong",
            flush=True,
        )


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of each model and batch")
    parser.add_argument("--served-seconds", type=float, default=1, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="*", default=list(BATCHES))
    parser.add_argument("--workers", type=int, nargs="*", default=[1])
    parser.add_argument("--connections", type=int, nargs="*", default=[8, 32])
    parser.add_argument("--kinds", default="", help="part of the name of the kinds of requests")
    parser.add_argument("--clients", type=int, default=4, help="processes that send")
    parser.add_argument("--json", type=Path, default=Path("bench-data/provider_cost.json"))
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = []
    served: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as name,
        get_context("spawn").Pool(arguments.clients) as pool,
    ):
        folder = Path(name)
        plain = write_models(folder / "plain", (R18, MOBILE))
        files = [SAMPLE_MODELS / sample / "model.onnx" for sample in SAMPLES]
        files += [plain / R18 / "model.onnx", plain / MOBILE / "model.onnx"]
        for file in files:
            for batch in arguments.batches:
                row = measure_runs(file, batch, arguments.seconds)
                print_runs(row)
                runs.append(row)
        models = write_served(folder / "models", plain)
        clients = Clients(pool, arguments.clients)
        for workers in arguments.workers:
            flags = "--no-store", "--workers", str(workers)
            with ServerProcess(folder / f"data-{workers}", models, *flags) as server:
                for kind in KINDS:
                    for connections in arguments.connections:
                        if arguments.kinds in kind.name:
                            row = measure_served(
                                server, clients, kind, connections,
                                rounds=arguments.rounds, seconds=arguments.served_seconds,
                            )  # fmt: skip
                            print_served(row, workers)
                            served.append({"workers": workers, **row})
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"runs": runs, "served": served}, indent=1))
    print(f"written to {arguments.json}")


if __name__ == "__main__":
    main()
