"""What keeping inferences costs: in the writer, until they can be found, and in the time of a request.

- ingest: records are appended to a journal and moved by the real writer; CPU of its process and of the
  PostgreSQL process that serves it, and records a second of one core.
- visibility: records are appended at a steady rate while a writer of its own process moves them; the
  time from the append until a query sees the record.
- latency: requests come at a steady rate, whether or not the ones before are answered, to a server that
  keeps inferences and to one that does not; the time from when a request was due to its answer.

Flags: `--records N` to ingest into each database; `--only PART` (may be repeated); `--seconds S` of visibility and of each
rate of latency.
"""

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
from measuring import percentile
from questions import http_request
from store_records import build, databases, record, records

from quadriga.engine.config.settings import Settings
from quadriga.engine.processes.supervisor import ChildTask
from quadriga.store.database.database import ReaderPool
from quadriga.store.journal.journal import Journal
from quadriga.store.records.errors import NotReadyError
from quadriga.store.records.ids import IdSource
from tests.onnx_models import classifier
from tests.server_process import ROOT, ServerProcess, image_input

RATE = 2000
"""Records a second of the visibility."""
REQUESTS_S, CONNECTIONS = 100, 8
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
    with databases(folder) as urls:
        for kind, url in urls.items():
            made = records(arguments.records, span_ms=arguments.records)  # as 1,000 a second
            done = build(url, folder / kind, made)
            client, server = (s / done.records * 1e6 for s in (done.client_s, done.server_s))
            print(
                f"  {kind:40}{client:9.1f}{server:11.1f}{1e6 / (client + server):16.0f}"
                f"{done.records / done.wall_s:11.0f}"
            )


def visibility(folder: Path, arguments: argparse.Namespace) -> None:
    """Print how long a record takes from its acknowledgement until a query sees it."""
    print(f"visibility at {RATE} records/s{'':24}p50 ms     p99 ms     max ms")
    with databases(folder) as urls:
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
            with closing(ReaderPool(url)) as readers:
                while True:
                    with suppress(NotReadyError):
                        _newest(readers)
                        break
                    time.sleep(0.05)
                lags_ms = _lags_ms(readers, settings.journal_directory, arguments.seconds)
            writer.communicate()
            p50, p99 = percentile(lags_ms, 0.5), percentile(lags_ms, 0.99)
            print(f"  {kind:40}{p50:12.1f}{p99:11.1f}{max(lags_ms):11.1f}")


def _newest(readers: ReaderPool) -> int:
    with readers.snapshot() as connection:
        return int(connection.exec_driver_sql("SELECT max(seq) FROM inference").scalar() or 0)


def _lags_ms(readers: ReaderPool, directory: Path, seconds: float) -> list[float]:
    """Append records at a steady rate; return how long each took until a query saw it."""
    acknowledged: list[tuple[int, float]] = []
    ids, made, count = IdSource(0), list(records(1000)), int(seconds * RATE)

    def append() -> None:
        with closing(Journal(directory, worker=0)) as journal:
            begun = time.perf_counter()
            for number in range(count):
                time.sleep(max(0.0, begun + number / RATE - time.perf_counter()))
                seq = ids.next()
                journal.append([msgspec.structs.replace(made[number % len(made)], seq=seq)])
                acknowledged.append((seq, time.perf_counter()))

    thread, lags_ms = threading.Thread(target=append), []
    thread.start()
    while thread.is_alive() or len(lags_ms) < len(acknowledged):
        newest, now = _newest(readers), time.perf_counter()
        for seq, at in acknowledged[len(lags_ms) :]:
            if seq > newest:
                break
            lags_ms.append((now - at) * 1000)
        time.sleep(0.002)
    return lags_ms


def _colours(folder: Path) -> Path:
    """Write a model so small that the rest of a request is what costs."""
    path = classifier(folder / "model.onnx")
    (folder / "model.toml").write_text(MODEL)
    return path


def _request(images: int) -> bytes:
    picture = cv2.imencode(".png", np.full((8, 8, 3), 200, np.uint8))[1].tobytes()
    metadata = json.dumps(record(1, random.Random(1)).metadata)
    inputs = [
        image_input(picture, f"image-{number}", metadata=metadata) for number in range(images)
    ]
    return http_request("/v2/models/colours/infer", json.dumps({"inputs": inputs}).encode())


async def _latencies_ms(host: str, request: bytes, seconds: float) -> list[float]:
    """Send at a steady rate over a few connections; from when each request was due to the end of its answer."""
    name, port = host.rsplit(":", 1)
    free: asyncio.Queue[Any] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await asyncio.open_connection(name, port))

    async def ask(due: float) -> float:
        await asyncio.sleep(due - time.perf_counter())
        reader, writer = await free.get()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if b" 200 " not in head.split(b"\r\n", 1)[0] or length is None:
            raise SystemExit(f"expected 200, got {head!r}")
        await reader.readexactly(int(length[1]))
        free.put_nowait((reader, writer))
        return (time.perf_counter() - due) * 1000

    begun = time.perf_counter() + 0.05
    due = [begun + number / REQUESTS_S for number in range(int(seconds * REQUESTS_S))]
    latencies = await asyncio.gather(*map(ask, due))
    while not free.empty():
        free.get_nowait()[1].close()
    return latencies


def latency(folder: Path, arguments: argparse.Namespace) -> None:
    """Print what the store adds to the time of an answer."""
    models = folder / "models"
    _colours(models / "colours")
    print(f"latency of {REQUESTS_S} requests/s{'':23}p50 ms     p99 ms  added p50  added p99")
    with databases(folder) as urls, ExitStack() as stack:
        flags = {"no store": ["--no-store"]}
        flags |= {kind: ["--database", url] for kind, url in urls.items()}
        servers = {
            name: stack.enter_context(ServerProcess(folder / name, models, *words))
            for name, words in flags.items()
        }
        for images in IMAGES_PER_REQUEST:
            latencies: dict[str, list[float]] = {name: [] for name in servers}
            request = _request(images)
            for number in range(ROUNDS + 1):  # interleaved; the first warms up
                for name, server in servers.items():
                    part_s = arguments.seconds / ROUNDS
                    part = asyncio.run(_latencies_ms(server.host, request, part_s))
                    latencies[name] += part if number else []
            less = [percentile(latencies["no store"], part) for part in (0.5, 0.99)]
            for name, values in latencies.items():
                line = [percentile(values, part) for part in (0.5, 0.99)]
                added = [value - without for value, without in zip(line, less, strict=True)]
                title = f"{images * REQUESTS_S} inferences/s, {name}"
                print(f"  {title:40}{''.join(f'{value:11.2f}' for value in (*line, *added))[1:]}")


PARTS: dict[str, Callable[[Path, argparse.Namespace], None]] = {
    "ingest": ingest,
    "visibility": visibility,
    "latency": latency,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--only", action="append", choices=PARTS)
    arguments = parser.parse_args()
    for name in arguments.only or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)  # PostgreSQL runs as another user
            PARTS[name](Path(folder), arguments)


if __name__ == "__main__":
    main()
