"""What keeping inferences costs: at the acknowledgement, in the writer, and until they can be found.

- ingest: records are appended to a journal and moved by the real writer; CPU of its process and of the
  PostgreSQL process that serves it, and records a second of one core.
- visibility: records are appended at a steady rate while a writer of its own process moves them; the
  time from the append until a query sees the record.
- acknowledgement: CPU of a request's thread that `Recorder.record` takes for an image, alone or one of five.
- latency: requests come at a steady rate, whether or not the ones before are answered, to a server that
  keeps inferences and to one that does not; the time from when a request was due to its answer.

Flags: `--records N` to ingest into each database; `--profile` prints where the writer's time goes;
`--only PART` (may be repeated); `--seconds S` of visibility and of each rate of latency.
"""

import argparse
import asyncio
import cProfile
import json
import pstats
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
from store_records import build, databases, percentile, record, records

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.model import Model
from quadriga.engine.processes.supervisor import ChildTask
from quadriga.engine.serving.recording import ImageResult, Recorder, RequestSummary
from quadriga.proto.messages import StorageOptions
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.database.database import ReaderPool
from quadriga.store.journal.journal import Journal
from quadriga.store.records.errors import NotReadyError
from quadriga.store.records.ids import IdSource
from tests.onnx_models import classifier
from tests.server_process import ROOT, ServerProcess, image_input

KINDS = ("sqlite", "postgresql")
RATE = 2000
"""Records a second of the visibility."""

REQUESTS_S = 100
IMAGES_PER_REQUEST = (1, 5, 20)
"""So 100, 500 and 2,000 inferences a second."""

ROUNDS = 3
MODEL = """
family = "plain-classifier"
labels = ["red", "green", "blue"]
"""


def ingest(folder: Path, arguments: argparse.Namespace) -> None:
    """Print what the writer needs for a record."""
    print(
        f"ingest of {arguments.records} records{'':13}client us  server us  records/s/core  records/s"
    )
    with databases(folder, KINDS) as urls:
        for kind, url in urls.items():
            profile = cProfile.Profile() if arguments.profile else None
            made = records(arguments.records, span_ms=arguments.records)  # as 1,000 a second
            done = build(url, folder / kind, made, profile=profile)
            client, server = (s / done.records * 1e6 for s in (done.client_s, done.server_s))
            print(
                f"  {kind:40}{client:9.1f}{server:11.1f}{1e6 / (client + server):16.0f}"
                f"{done.records / done.wall_s:11.0f}"
            )
            if profile is not None:
                pstats.Stats(profile).sort_stats("tottime").print_stats(20)


class Appender(threading.Thread):
    """Appends records at a steady rate and notes when each was acknowledged."""

    def __init__(self, directory: Path, seconds: float) -> None:
        super().__init__()
        self._ids = IdSource(0)
        self._journal = Journal(directory, worker=0)
        self._records = list(records(1000))
        self._count = int(seconds * RATE)
        self.acknowledged: list[tuple[int, float]] = []

    def run(self) -> None:
        """Append them all."""
        begun = time.perf_counter()
        for number in range(self._count):
            delay = begun + number / RATE - time.perf_counter()
            if delay > 0:
                time.sleep(delay)
            made = self._records[number % len(self._records)]
            made = msgspec.structs.replace(made, seq=self._ids.next())
            self._journal.append([made])
            self.acknowledged.append((made.seq, time.perf_counter()))
        self._journal.close()


def visibility(folder: Path, arguments: argparse.Namespace) -> None:
    """Print how long a record takes from its acknowledgement until a query sees it."""
    print(f"visibility at {RATE} records/s{'':24}p50 ms     p99 ms     max ms")
    with databases(folder, KINDS) as urls:
        for kind, url in urls.items():
            settings = Settings(data=str(folder / kind), database=url)
            writer = subprocess.Popen(
                [sys.executable, "-P", "-m", "quadriga.engine.processes.worker"],
                stdin=subprocess.PIPE,
                cwd=ROOT,
            )
            assert writer.stdin is not None
            writer.stdin.write(msgspec.json.encode(ChildTask("writer", settings)) + b"\n")
            writer.stdin.flush()
            readers = ReaderPool(url)
            _newest(readers, wait=True)
            lags_ms = _lags_ms(readers, Appender(settings.journal_directory, arguments.seconds))
            readers.close()
            writer.communicate()
            p50, p99 = percentile(lags_ms, 0.5), percentile(lags_ms, 0.99)
            print(f"  {kind:40}{p50:12.1f}{p99:11.1f}{max(lags_ms):11.1f}")


def _lags_ms(readers: ReaderPool, appender: Appender) -> list[float]:
    lags_ms: list[float] = []
    appender.start()
    while appender.is_alive() or len(lags_ms) < len(appender.acknowledged):
        newest, now = _newest(readers), time.perf_counter()
        while len(lags_ms) < len(appender.acknowledged):
            seq, at = appender.acknowledged[len(lags_ms)]
            if seq > newest:
                break
            lags_ms.append((now - at) * 1000)
        time.sleep(0.002)
    return lags_ms


def _newest(readers: ReaderPool, *, wait: bool = False) -> int:
    while True:
        try:
            with readers.snapshot() as connection:
                newest_id = connection.exec_driver_sql("SELECT max(seq) FROM inference").scalar()
                return int(newest_id or 0)
        except NotReadyError:
            if not wait:
                raise
            time.sleep(0.05)


def acknowledgement(folder: Path, arguments: argparse.Namespace) -> None:
    """Print the CPU that an image costs the thread that answers it."""
    model = Model("colours", "1", _colours(folder))
    recorder = Recorder(
        IdSource(0),
        Journal(folder / "journal", 0),
        FileBlobs(folder / "blobs"),
        Settings(signals_per_s=0),
        "0",
    )
    made = [
        (record, number.to_bytes(4, "big") * 5_000)
        for number, record in enumerate(records(arguments.requests))
    ]
    clock_us = percentile([_clock_us() for _ in range(1000)], 0.5)
    print(f"acknowledgement{'':35}CPU us p50        p99  (less {clock_us:.2f} of the clock itself)")
    for name, at_once, image, wishes in (
        ("record", 1, None, StorageOptions()),
        ("record, one of five", 5, None, StorageOptions()),
        ("record, its image of 20 kB hashed", 1, 1, StorageOptions(store_input=False)),
        ("record, its image of 20 kB kept", 1, 1, StorageOptions()),
    ):
        costs_us = []
        for number in range(0, arguments.requests - at_once + 1, at_once):
            first, _ = made[number]
            answered = [
                ImageResult(
                    "image",
                    "predict",
                    record.predictions,
                    record.metadata,
                    image and data,
                    640,
                    480,
                    "image/png",
                    wishes,
                )
                for record, data in made[number : number + at_once]
            ]
            handled = RequestSummary(
                model, first.request_id, "v2_rest", first.latency_ms, {"run": 7.93}
            )
            begun = time.thread_time_ns()
            recorder.record(handled, answered)
            cost_us = (time.thread_time_ns() - begun) / 1000 - clock_us
            costs_us.append(cost_us / at_once)
        print(f"  {name:40}{percentile(costs_us, 0.5):18.1f}{percentile(costs_us, 0.99):11.1f}")
    recorder.close()


def _clock_us() -> float:
    begun = time.thread_time_ns()
    return (time.thread_time_ns() - begun) / 1000


def _colours(folder: Path) -> Path:
    """Write a model so small that the rest of a request is what costs."""
    path = classifier(folder / "model.onnx")
    (folder / "model.toml").write_text(MODEL)
    return path


class Client:
    """Sends requests at a steady rate over a few connections.

    Args:
        host: `host:port` of the server.
        images: How many each request holds.
    """

    def __init__(self, host: str, images: int) -> None:
        self._address = host.rsplit(":", 1)
        picture = cv2.imencode(".png", np.full((8, 8, 3), 200, np.uint8))[1].tobytes()
        metadata = json.dumps(record(1, random.Random(1)).metadata)
        inputs = [
            image_input(picture, f"image-{number}", metadata=metadata) for number in range(images)
        ]
        body = json.dumps({"inputs": inputs}).encode()
        head = (
            f"POST /v2/models/colours/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}"
        )
        self._request = head.encode() + b"\r\n\r\n" + body
        self._free: asyncio.Queue[Any] = asyncio.Queue()

    async def latencies_ms(self, seconds: float) -> list[float]:
        """Send for so long; from when each request was due to the end of its answer."""
        for _ in range(8):
            self._free.put_nowait(await asyncio.open_connection(*self._address))
        begun = time.perf_counter() + 0.05
        due = [begun + number / REQUESTS_S for number in range(int(seconds * REQUESTS_S))]
        latencies = await asyncio.gather(*map(self._ask, due))
        while not self._free.empty():
            self._free.get_nowait()[1].close()
        return latencies

    async def _ask(self, due: float) -> float:
        await asyncio.sleep(due - time.perf_counter())
        reader, writer = await self._free.get()
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise SystemExit(f"expected 200, got {head!r}")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        assert length is not None
        await reader.readexactly(int(length[1]))
        self._free.put_nowait((reader, writer))
        return (time.perf_counter() - due) * 1000


def latency(folder: Path, arguments: argparse.Namespace) -> None:
    """Print what the store adds to the time of an answer."""
    models = folder / "models"
    _colours(models / "colours")
    print(f"latency of {REQUESTS_S} requests/s{'':23}p50 ms     p99 ms  added p50  added p99")
    with databases(folder, KINDS) as urls, ExitStack() as stack:
        servers = {
            name: stack.enter_context(ServerProcess(folder / name, models, *flags))
            for name, flags in (
                ("no store", ["--no-store"]),
                *((kind, ["--database", url]) for kind, url in urls.items()),
            )
        }
        for images in IMAGES_PER_REQUEST:
            latencies: dict[str, list[float]] = {name: [] for name in servers}
            for number in range(ROUNDS + 1):  # interleaved; the first warms up
                for name, server in servers.items():
                    part = asyncio.run(
                        Client(server.host, images).latencies_ms(arguments.seconds / ROUNDS)
                    )
                    latencies[name] += part if number else []
            for name, values in latencies.items():
                line = [percentile(values, part) for part in (0.5, 0.99)]
                less = [percentile(latencies["no store"], part) for part in (0.5, 0.99)]
                added = [value - without for value, without in zip(line, less, strict=True)]
                title = f"{images * REQUESTS_S} inferences/s, {name}"
                print(f"  {title:40}{''.join(f'{value:11.2f}' for value in (*line, *added))[1:]}")


PARTS: dict[str, Callable[[Path, argparse.Namespace], None]] = {
    "ingest": ingest,
    "visibility": visibility,
    "acknowledgement": acknowledgement,
    "latency": latency,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=5_000, help="of the acknowledgement")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--only", action="append", choices=PARTS)
    arguments = parser.parse_args()
    for name in arguments.only or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)  # PostgreSQL runs as another user
            PARTS[name](Path(folder), arguments)


if __name__ == "__main__":
    main()
