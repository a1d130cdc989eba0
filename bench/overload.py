"""A server with more requests than it can answer, and a detector beside a model that never ends, in one run.

First a closed loop finds the peak of the sample detector. Then an open loop sends at a multiple of the peak whatever is
answered, and what was answered, refused and counted is compared. With `--endless` an open loop below the peak is measured
alone and beside clients of a graph without end. The server has one half of the processors and the client the other, so
that a client that sends more takes nothing from the server.
"""

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tests.onnx_models import counting
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, image_input

MODEL = "shapes-detector"
ENDLESS_CLIENTS = 4
STEPS_WITHOUT_END = 2**60


class Outcome(msgspec.Struct):
    """What a load got for answers."""

    seconds: float
    latencies_s: list[float]
    """Seconds of each answer with status 200, in no order."""
    statuses: dict[int, int]
    """Answers by status; 0 for connections that ended without one."""
    late: int = 0
    """Requests sent more than 50 ms after their time, as the client itself was too slow."""

    @property
    def rate(self) -> float:
        """Answers with status 200 per second."""
        return len(self.latencies_s) / self.seconds

    def quantile_ms(self, share: float) -> float:
        """Latency in milliseconds that a share of the answers do not exceed."""
        ordered = sorted(self.latencies_s)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1000 if ordered else 0.0


class Client:
    """Sends requests over as many connections as there are requests at once, which it keeps."""

    def __init__(self, host: str, requests: list[bytes]) -> None:
        self._address, _, port = host.partition(":")
        self._port = int(port)
        self._requests = requests
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.latencies_s: list[float] = []
        self.statuses: Counter[int] = Counter()

    async def send(self, number: int) -> None:
        """Send a request, and note its answer."""
        begun_s = time.perf_counter()
        try:
            status = await self._exchange(self._requests[number % len(self._requests)])
        except (OSError, asyncio.IncompleteReadError):
            status = 0
        if status == 200:
            self.latencies_s.append(time.perf_counter() - begun_s)
        self.statuses[status] += 1

    async def _exchange(self, request: bytes) -> int:
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection(self._address, self._port)
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"content-length: (\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
        if b"connection: close" in head:
            writer.close()
        else:
            self._idle.append((reader, writer))
        return int(head.split()[1])


async def closed_loop(client: Client, clients: int, seconds: float) -> None:
    """Keep a number of requests in flight."""
    end_s = time.perf_counter() + seconds

    async def loop(first: int) -> None:
        number = first
        while time.perf_counter() < end_s:
            await client.send(number)
            number += 1

    await asyncio.gather(*(loop(number) for number in range(clients)))


async def open_loop(client: Client, rate: float, seconds: float) -> int:
    """Send at a rate, whatever is answered; return how many requests the client itself sent late."""
    begun_s = time.perf_counter()
    late = 0
    sending: set[asyncio.Task[None]] = set()
    for number in range(int(rate * seconds)):
        ahead_s = begun_s + number / rate - time.perf_counter()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        late += ahead_s < -0.05
        task = asyncio.create_task(client.send(number))
        sending.add(task)
        task.add_done_callback(sending.discard)
    await asyncio.gather(*sending)
    return late


def run_load(host: str, requests: list[bytes], load: dict[str, float]) -> Outcome:
    """Run a load in a process of its own: `rate` for an open loop, `clients` for a closed one, and `seconds`."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(run_load_here, (host, requests, load))


def run_load_here(host: str, requests: list[bytes], load: dict[str, float]) -> Outcome:
    """Run a load in this process; see `run_load`."""
    client = Client(host, requests)
    seconds = load["seconds"]

    async def run() -> int:
        if "rate" in load:
            return await open_loop(client, load["rate"], seconds)
        await closed_loop(client, int(load["clients"]), seconds)
        return 0

    late = asyncio.run(run())
    return Outcome(seconds, client.latencies_s, dict(client.statuses), late)


def http_request(model: str, body: dict[str, Any], headers: str = "") -> bytes:
    """Write an inference request as it goes over the wire."""
    text = json.dumps(body).encode()
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


def detector_requests() -> list[bytes]:
    """Make requests of the detector's sample images."""
    images = [path.read_bytes() for path in sorted((IMAGES / "detection").glob("*.jpg"))]
    return [http_request(MODEL, {"inputs": [image_input(image)]}) for image in images]


def private_mib(server: ServerProcess) -> float:
    """Sum the memory of all processes of a server in MiB, without the pages of files, such as the database."""
    total = 0
    for pid in server.child_pids():
        status = Path(f"/proc/{pid}/status").read_text()
        match = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
        total += int(match[1]) if match else 0
    return total / 1024


def refused(server: ServerProcess) -> float:
    """Sum what the server counted as refused or stopped."""
    text = server.request("GET", "/metrics")[2].decode()
    names = "requests_refused_total|requests_stopped_total|bodies_refused_total|connections_refused_total"
    counts = re.findall(rf"^quadriga_(?:{names})(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, counts))


def measure_overload(server: ServerProcess, arguments: argparse.Namespace) -> None:
    """Print the goodput at a multiple of the peak beside the peak."""
    requests = detector_requests()
    peak = find_peak(server, arguments)
    before, memory = refused(server), private_mib(server)
    rate = peak.rate * arguments.times
    memories = []
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        load = {"rate": rate, "seconds": arguments.seconds}
        running = pool.apply_async(run_load_here, (server.host, requests, load))
        while not running.ready():
            memories.append(private_mib(server))
            running.wait(1)
        outcome = running.get()
    counted = refused(server) - before
    not_answered = sum(count for status, count in outcome.statuses.items() if status != 200)
    print(
        f"open loop at {rate:.0f}/s for {arguments.seconds:g} s: goodput {outcome.rate:.1f}/s, "
        f"{outcome.rate / peak.rate:.2f} of the peak"
    )
    print(
        f"  answered {len(outcome.latencies_s)}: p50 {outcome.quantile_ms(0.5):.0f} ms, "
        f"p99 {outcome.quantile_ms(0.99):.0f} ms; one alone takes {peak.quantile_ms(0.5):.0f} ms at the peak"
    )
    print(f"  statuses {outcome.statuses}, sent late {outcome.late}")
    print(f"  not answered {not_answered} as the client counts, {counted:.0f} as the server does")
    quarter, half = memories[len(memories) // 4], memories[len(memories) // 2]
    print(
        f"  memory {memory:.0f} MiB before, {quarter:.0f} after a quarter of the time, {half:.0f} after half, "
        f"{private_mib(server):.0f} after, {max(memories):.0f} at most"
    )


def find_peak(server: ServerProcess, arguments: argparse.Namespace) -> Outcome:
    """Return the outcome of a closed loop, after a warm-up, and print it."""
    load = {"clients": arguments.clients, "seconds": 2.0}
    run_load(server.host, detector_requests(), load)
    peak = run_load(server.host, detector_requests(), {**load, "seconds": arguments.seconds})
    print(
        f"closed loop of {arguments.clients}: {peak.rate:.1f}/s, p50 {peak.quantile_ms(0.5):.0f} ms, "
        f"p99 {peak.quantile_ms(0.99):.0f} ms, statuses {peak.statuses}"
    )
    return peak


def measure_beside_endless(server: ServerProcess, arguments: argparse.Namespace) -> None:
    """Print the latency of the detector alone, and beside clients of a graph without end, in turns."""
    peak = find_peak(server, arguments)
    load = {"rate": peak.rate * arguments.share, "seconds": arguments.seconds / 2}
    inputs = [
        {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]},
        {"name": "n", "shape": [1], "datatype": "INT64", "data": [STEPS_WITHOUT_END]},
    ]
    seconds = math.ceil(load["seconds"]) + 3
    endless = http_request("endless", {"inputs": inputs}, f"Request-Timeout: {seconds}\r\n")
    ratios = []
    context = multiprocessing.get_context("spawn")
    for turn in range(arguments.rounds):
        alone = run_load(server.host, detector_requests(), load)
        with context.Pool(1) as pool:
            endless_load = {"clients": ENDLESS_CLIENTS, "seconds": 1.0}
            holding = pool.apply_async(run_load_here, (server.host, [endless], endless_load))
            time.sleep(2)
            beside = run_load(server.host, detector_requests(), load)
            statuses = holding.get(seconds * 3).statuses
        ratios.append(beside.quantile_ms(0.99) / alone.quantile_ms(0.99))
        print(f"round {turn + 1}, {load['rate']:.1f}/s for {load['seconds']:g} s:")
        for name, outcome in (("alone", alone), ("beside endless", beside)):
            print(
                f"  {name:15} p50 {outcome.quantile_ms(0.5):6.1f} ms, p99 {outcome.quantile_ms(0.99):6.1f} ms, "
                f"statuses {outcome.statuses}, sent late {outcome.late}"
            )
        print(f"  p99 {ratios[-1]:.2f} times that alone; endless requests: {statuses}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--times", type=float, default=3, help="rate, as a multiple of the peak")
    parser.add_argument("--clients", type=int, default=8, help="of the closed loop")
    parser.add_argument("--endless", action="store_true", help="measure beside an endless model")
    parser.add_argument("--share", type=float, default=0.3, help="of the peak, beside an endless model")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--flag", action="append", default=[], help="of the server")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        shutil.copytree(SAMPLE_MODELS / MODEL, models / MODEL)
        counting(models / "endless" / "model.onnx")
        processors = sorted(os.sched_getaffinity(0))
        half = max(len(processors) // 2, 1)
        os.sched_setaffinity(0, processors[:half])  # processes that are started have it, too
        with ServerProcess(Path(folder) / "data", models, *arguments.flag) as server:
            os.sched_setaffinity(0, processors[half:] or processors)
            measure = measure_beside_endless if arguments.endless else measure_overload
            measure(server, arguments)


if __name__ == "__main__":
    main()
