"""The cost of signals: to the request's thread, to the thread that computes them, and to the writer.

CPU of the thread concerned, all of it in one run; ratios are what can be compared between machines.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
from store_records import Clock, databases, percentile, records

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.model import Model
from quadriga.engine.serving.recording import ImageResult, Recorder, RequestSummary
from quadriga.monitor.image_statistics import measure_image
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.journal.journal import Journal
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import ImageSignals, JournaledChange, SignalsOfImages
from quadriga.store.writing.writer import Writer
from quadriga.tasks.image import Image
from tests.server_process import SAMPLE_MODELS

SIZES_WH = ((640, 480), (1920, 1080), (4000, 3000))
LONG = 512
"""Length of an embedding."""

AT_ONCE = 50
"""Requests in a row, whose pixels fit into the queue."""

MADE = next(records(1))
PIXELS = Image(np.zeros((480, 640, 3), np.uint8))
VECTOR = np.zeros(LONG, np.float32)


def cpu_us(job: Callable[[], object], repeats: int) -> float:
    """Return the median CPU of this thread for a job."""
    taken = []
    for _ in range(repeats):
        begun = time.thread_time_ns()
        job()
        taken.append((time.thread_time_ns() - begun) / 1000)
    return percentile(taken, 0.5)


def making() -> None:
    """Print what an image costs the thread that makes signals."""
    noise = np.random.default_rng(1)
    print("making signals of an image, CPU ms p50")
    for width, height in SIZES_WH:
        pixels = noise.integers(0, 256, (height, width, 3), np.uint8)
        cost_ms = cpu_us(lambda: measure_image(pixels), 30) / 1000  # noqa: B023 - called at once
        print(f"  {f'{width} x {height}':20}{cost_ms:8.2f}")


def answering(folder: Path, rounds: int) -> None:
    """Print what a request costs its thread to be recorded, without signals and with them."""
    model = Model("m", "1", SAMPLE_MODELS / "shapes-classifier" / "model.onnx")
    rates = {"without signals": 0.0, "with, at most 4/s": 4.0, "with, all": 1e9}
    recorders = {name: _recorder(folder / name, per_s) for name, per_s in rates.items()}
    costs_us: dict[str, list[float]] = {name: [] for name in rates}
    for _ in range(rounds):
        for name, recorder in recorders.items():
            costs_us[name] += [_recorded_us(recorder, model) for _ in range(AT_ONCE)]
            time.sleep(0.2)  # in which signals are made
    print("recording a request of an image of 20 kB, CPU us p50")
    for name, recorder in recorders.items():
        print(f"  {name:20}{percentile(costs_us[name], 0.5):8.1f}")
        recorder.close()


def _recorder(place: Path, per_s: float) -> Recorder:
    return Recorder(
        IdSource(0),
        Journal(place / "journal", 0),
        FileBlobs(place / "blobs"),
        settings=Settings(signals_per_s=per_s),
        engine_version="0",
    )


def _recorded_us(recorder: Recorder, model: Model) -> float:
    begun = time.thread_time_ns()
    chosen = recorder.choose_for_signals(model, 1)
    result = ImageResult(
        "image",
        "predict",
        MADE.predictions,
        metadata=MADE.metadata,
        image=bytes(20_000),
        width=640,
        height=480,
        mime="image/png",
        embedding=VECTOR,
        decoded_image=PIXELS if chosen else None,
    )
    summary = RequestSummary(
        model, MADE.request_id, "v2_rest", latency_ms=4.2, stages_ms={"run": 7.93}
    )
    recorder.record(summary, [result])
    return (time.thread_time_ns() - begun) / 1000


def frames(ids: IdSource, seqs: Iterator[int]) -> Iterator[JournaledChange]:
    """Yield changes with the signals of 16 images each."""
    embedding = np.random.default_rng(1).normal(size=LONG).astype("<f2").tobytes()
    while chunk := list(islice(seqs, 16)):
        signals = [ImageSignals(seq, bytes(32), embedding, "ab" * 8) for seq in chunk]
        yield JournaledChange(ids.next(), SignalsOfImages(signals))


def storing(folder: Path, images: int) -> None:
    """Print what the writer uses for records, and for their signals."""
    print(
        f"storing, embeddings of {LONG} numbers, CPU us an image: of the writer, and PostgreSQL's"
    )
    with databases(folder, ("sqlite", "postgresql")) as urls:
        for kind, url in urls.items():
            journal = Journal(folder / kind / "journal", 0)
            writer = Writer(folder / kind / "journal", url)
            writer.drain()
            clock = Clock(url)
            clock.find()
            stored_records = list(records(images))
            batches = (
                stored_records,
                list(frames(IdSource(1), iter([duration_s.seq for duration_s in stored_records]))),
            )
            for name, batch in zip(("records", "signals"), batches, strict=True):
                appended_before = journal.appended_bytes
                for start in range(0, len(batch), 50):
                    journal.append(batch[start : start + 50])
                clock.start()
                writer.drain()
                own, server = (duration_s / images * 1e6 for duration_s in clock.stop())
                size_bytes = (journal.appended_bytes - appended_before) / images
                print(
                    f"  {kind:12}{name:10}{own:8.1f}{server:8.1f}{size_bytes:8.0f} bytes journaled"
                )
            journal.close()
            writer.close()
            clock.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--images", type=int, default=20_000)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    making()
    with tempfile.TemporaryDirectory() as folder:
        answering(Path(folder), arguments.rounds)
        storing(Path(folder), arguments.images)


if __name__ == "__main__":
    main()
