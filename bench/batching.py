"""What requests gain from runs that they share, on this machine's CPU, in one run.

Each model is served twice in one process, with and without `batching`. So many clients send one request after the other
through the queue and the pipeline (without HTTP and without a store), to the one and to the other in turns, and each
answer is compared. The factors are medians over the rounds, with their 95 % interval: over 1 is a gain.
"""

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_models import R18, TINY, write_models
from onnx import helper

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.serving.pipeline import Pipeline
from quadriga.extras.tuning.paired_times import median_factor, time_in_turns
from quadriga.proto.messages import InferRequest, Tensor
from tests.onnx_models import save, value
from tests.server_process import IMAGES, SAMPLE_MODELS

WIDE, DETECTOR = "wide", "shapes-detector"
WIDTH = 2048
REQUESTS = {TINY: 400, WIDE: 100, DETECTOR: 100, R18: 24}
"""Requests of each round."""
CLIENTS = (1, 8, 32)


def write_all_models(folder: Path, batching: str) -> None:
    """Write each model with and without batching."""
    write_models(folder)
    random = np.random.default_rng(5)
    weights = {
        f"w{layer}": random.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32)
        for layer in range(3)
    }
    nodes = [
        helper.make_node("MatMul", [f"x{layer}" if layer else "x", f"w{layer}"], [f"x{layer + 1}"])
        for layer in range(3)
    ]
    x, y = value("x", ["batch", WIDTH]), value("x3", ["batch", WIDTH])
    save(folder / WIDE / "model.onnx", nodes, [x], [y], weights)
    shutil.copytree(SAMPLE_MODELS / DETECTOR, folder / DETECTOR)
    for name in REQUESTS:
        shutil.copytree(folder / name, folder / f"{name}-batched")
        with (folder / f"{name}-batched" / "model.toml").open("a") as file:
            file.write(f"\n[runtime]\nbatching = {batching}\n")


def requests_of(name: str) -> list[Callable[[str], InferRequest]]:
    """Make different requests, which take the name of the model."""
    if name == DETECTOR:
        files = sorted((IMAGES / "detection").glob("*.jpg"))[:8]
        tensors = [Tensor("image", "BYTES", (1,), data=[file.read_bytes()]) for file in files]
    else:
        shape = {WIDE: (1, WIDTH), TINY: (1, 3, 32, 32), R18: (1, 3, 224, 224)}[name]
        random = np.random.default_rng(7)
        arrays = [random.random(shape, np.float32) for _ in range(8)]
        raw = {"content_type": "raw"}
        input_name = "x" if name == WIDE else "image"
        tensors = [
            Tensor(input_name, "FP32", shape, data=array, parameters=raw) for array in arrays
        ]
    return [
        partial(lambda tensor, model: InferRequest(model, None, "", [tensor]), tensor)
        for tensor in tensors
    ]


def is_same(first: Any, second: Any) -> bool:
    """Compare two answers: tensors within 1e-5, labels exactly."""
    if isinstance(first, np.ndarray):
        return np.allclose(first, second, rtol=1e-5, atol=1e-5)
    detections, expected = first[0], second[0]
    boxes, expected_boxes = (
        [(d.score, d.xmin, d.ymin, d.xmax, d.ymax) for d in answer]
        for answer in (detections, expected)
    )
    has_labels = [d.label for d in detections] == [d.label for d in expected]
    return has_labels and np.allclose(boxes, expected_boxes, rtol=1e-5, atol=1e-5)


class Rounds:
    """Sends the requests of a round to one model."""

    def __init__(self, pipeline: Pipeline, model: str, clients: int, count: int) -> None:
        self._pipeline, self._model = pipeline, model
        self._clients, self._count = clients, count
        self._requests = requests_of(model.removesuffix("-batched"))
        plain = model.removesuffix("-batched")
        self._expected = [
            pipeline.infer(request(plain)).outputs[0].data for request in self._requests
        ]
        self.wrong = 0
        self.latencies_s: list[float] = []

    def __call__(self, _: int) -> None:
        """Send them all, each client one after the other."""
        asyncio.run(self._send())

    async def _send(self) -> None:
        numbers = iter(range(self._count))
        clients = (self._client(key, numbers) for key in range(self._clients))
        await asyncio.gather(*clients)

    async def _client(self, key: int, numbers: Iterator[int]) -> None:
        for number in numbers:
            index = number % len(self._requests)
            begun_s = time.perf_counter()
            task = partial(self._pipeline.infer, self._requests[index](self._model))
            answer = await self._pipeline.run(task, model=self._model, connection=key)
            self.latencies_s.append(time.perf_counter() - begun_s)
            self.wrong += not is_same(answer.outputs[0].data, self._expected[index])


def measure(pipeline: Pipeline, name: str, clients: int, seconds: float) -> None:
    """Measure a model with and without batching, and print a row."""
    count = REQUESTS[name]
    alone, shared = (Rounds(pipeline, model, clients, count) for model in (name, f"{name}-batched"))
    before = pipeline.statistics(f"{name}-batched", None)[0]
    of_alone, of_shared = time_in_turns([alone, shared], max_rounds=25, max_s=seconds)
    after = pipeline.statistics(f"{name}-batched", None)[0]
    runs = after.execution_count - before.execution_count
    images = after.inference_count - before.inference_count
    rate, rate_interval = median_factor(of_alone.wall_s, of_shared.wall_s)
    cpu, cpu_interval = median_factor(of_alone.cpu_s, of_shared.cpu_s)
    p50s = [statistics.median(rounds.latencies_s) * 1000 for rounds in (alone, shared)]
    print(
        f"| {name} | {clients} | {count / of_alone.ms * 1000:.0f} | {of_alone.cpu_ms / count:.3f} | {images / runs:.1f} "
        f"| {_factor(rate, rate_interval)} | {_factor(cpu, cpu_interval)} | {p50s[0]:.2f} | {p50s[1]:.2f} "
        f"| {alone.wrong + shared.wrong} |",
        flush=True,
    )


def _factor(median: float, interval: tuple[float, float] | None) -> str:
    return f"{median:.2f}" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="of each row")
    parser.add_argument("--batching", default="{max = 16}", help="value in model.toml")
    parser.add_argument("--models", nargs="*", default=list(REQUESTS), choices=list(REQUESTS))
    arguments = parser.parse_args()
    print(
        "| model | clients | requests/s alone | CPU ms alone | rows of a run | times the requests/s | times less CPU "
        "| p50 ms alone | p50 ms shared | wrong |\n" + "|---" * 10 + "|"
    )
    with tempfile.TemporaryDirectory() as folder:
        write_all_models(Path(folder), arguments.batching)
        repository = ModelRepository(Path(folder))
        repository.load_all()
        pipeline = Pipeline(repository, None, Settings(max_queue=1000, max_wait_s=1000))
        for name in arguments.models:
            for clients in CLIENTS:
                measure(pipeline, name, clients, arguments.seconds)
        pipeline.close()


if __name__ == "__main__":
    main()
