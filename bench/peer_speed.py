"""Quadriga beside its peers, on each path that they have: a table, a JSON file and a picture.

`make bench-peers` makes an environment for each peer first. Servers are started one after the other, in as many rounds as a
row needs samples; each takes the same requests from the same closed loop. The CPU of all processes of a server counts. The
reference loop, a model like ResNet-18 in this process, runs before and after each sample: where the two differ by more than
15 %, or others used more than 0.1 core, the sample is flagged, and taken again while there is time. Every answer is compared
with that of the models in this process; a wrong one voids the row. CPU is scaled to the median of the reference loop.

From a JSON file alone, `--from FILE` prints the tables and draws the picture again.
"""

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import cv2
import grpc
import msgspec
import numpy as np
from bench_models import MOBILE, R18, SIDES, TINY, write_models
from closed_loop import GrpcLoad, HttpLoad
from peer_models import Classifier
from peer_paths import DETECTOR, Questions, Traffic
from peer_picture import picture
from peer_servers import CONTESTANTS, Addresses, Contestant, running
from peer_table import Results, Row, Sample, behind, markdown_table, text_table
from processes import CpuMeter, adopt_orphans, settle

from tests.server_process import IMAGES, SAMPLE_MODELS

REFERENCE_S = 0.3
WARM_UP_S = 0.15
SETTLE_S = 3.0
"""Maximum seconds that a server has after a load, to store what is left."""


class Reference:
    """The loop whose cost says how fast the machine is just now."""

    def __init__(self, models: Path) -> None:
        self._model = Classifier(models / R18 / "model.onnx")
        side = SIDES[R18]
        self._tensor = np.random.default_rng(5).random((1, 3, side, side), np.float32)

    def cpu_ms(self) -> float:
        """Run the model for a while; return the median CPU milliseconds of a run."""
        costs: list[float] = []
        end_s = time.perf_counter() + REFERENCE_S
        while time.perf_counter() < end_s or len(costs) < 3:
            begun_s = time.thread_time()
            self._model.scores(self._tensor)
            costs.append((time.thread_time() - begun_s) * 1000)
        return statistics.median(costs)


class Bench:
    """A run over all servers.

    Args:
        reference: The loop that says how fast the machine is.
        questions: What is sent, and what must be answered.
        arguments: Those of the command line.
    """

    def __init__(
        self, reference: Reference, questions: Questions, arguments: argparse.Namespace
    ) -> None:
        self._reference, self._questions, self._arguments = reference, questions, arguments
        self._end_s = time.monotonic() + 60 * arguments.minutes
        self._rates: dict[tuple[str, str, int], float] = {}
        self.rows: dict[tuple[str, str, int], Row] = {}

    def visit(self, contestant: Contestant, addresses: Addresses) -> None:
        """Take a sample of each path and number of connections that the server has."""
        before_ms = self._reference.cpu_ms()
        for path in self.paths(contestant):
            traffic = self._questions.traffic(path, contestant.dialect)
            for connections in self._arguments.connections:
                row = self.row(contestant.name, path, connections)
                quiet = sum(not sample.flag for sample in row.samples)
                if quiet >= self._arguments.rounds:
                    continue
                for _ in range(1 + self._arguments.retries):
                    load = (
                        GrpcLoad(addresses.grpc, connections)
                        if traffic.is_grpc
                        else HttpLoad(addresses.http, connections)
                    )
                    try:
                        sample = self._sample(contestant, traffic, load, before_ms)
                    finally:
                        load.close()
                    before_ms = sample.reference_ms[1]
                    row.samples.append(sample)
                    if sample.is_void or not sample.flag or time.monotonic() > self._end_s:
                        break

    def paths(self, contestant: Contestant) -> list[str]:
        """Return the paths of a server that were asked for."""
        words = self._arguments.path
        return [path for path in contestant.paths if not words or any(w in path for w in words)]

    def row(self, server: str, path: str, connections: int) -> Row:
        """Return the row of these, new if need be."""
        key = (server, path, connections)
        if key not in self.rows:
            self.rows[key] = Row(server=server, path=path, connections=connections)
        return self.rows[key]

    def _sample(
        self, contestant: Contestant, traffic: Traffic, load: HttpLoad | GrpcLoad, before_ms: float
    ) -> Sample:
        key = (contestant.name, traffic.path, load.connections)
        try:
            load.connect()
            if key not in self._rates:
                self._rates[key] = self._first_rate(traffic, load)
            load(traffic.requests, load.connections)  # warms up
            count = max(24, load.connections, round(self._rates[key] * self._arguments.seconds))
            meter, begun_s = CpuMeter(), time.perf_counter()
            answers = load(traffic.requests, count)
            elapsed_s, client_s = time.perf_counter() - begun_s, meter.own_s()
            if contestant.settles:
                settle(SETTLE_S)
            server_s, neighbour_cores = meter.server_s(), meter.neighbour_cores()
        except (OSError, ValueError, grpc.RpcError) as error:
            return _failed(f"{type(error).__name__}: {error}"[:200], before_ms)
        self._rates[key] = count / elapsed_s
        p50_s, p99_s = np.percentile(load.latencies_s, (50, 99))
        return Sample(
            requests=count,
            wrong=traffic.wrong_answers(answers),
            cpu_ms=server_s / count * 1000,
            client_ms=client_s / count * 1000,
            rate=count / elapsed_s,
            p50_ms=float(p50_s) * 1000,
            p99_ms=float(p99_s) * 1000,
            neighbour_cores=neighbour_cores,
            reference_ms=(before_ms, self._reference.cpu_ms()),
        )

    def _first_rate(self, traffic: Traffic, load: HttpLoad | GrpcLoad) -> float:
        """Load a server for a moment that grows until it can be timed; return its requests per second."""
        count = 2 * load.connections
        while True:
            begun_s = time.perf_counter()
            load(traffic.requests, count)
            elapsed_s = time.perf_counter() - begun_s
            if elapsed_s > WARM_UP_S:
                return count / elapsed_s
            count *= 4


def _failed(reason: str, reference_ms: float) -> Sample:
    nothing = 0.0
    return Sample(
        requests=0, wrong=0, cpu_ms=nothing, client_ms=nothing, rate=nothing, p50_ms=nothing,
        p99_ms=nothing, neighbour_cores=nothing, reference_ms=(reference_ms, reference_ms), failure=reason,
    )  # fmt: skip


def machine() -> str:
    """Name the machine: its processors and Python."""
    models = [
        line.partition(": ")[2]
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{os.cpu_count()} x {models[0] if models else platform.machine()}, Python {platform.python_version()}"


def measure(arguments: argparse.Namespace) -> Results:
    """Measure all servers that are installed, in rounds."""
    cv2.setNumThreads(1)
    adopt_orphans()
    words = arguments.server
    contestants = [
        contestant
        for contestant in CONTESTANTS
        if not words or any(word.lower() in contestant.name.lower() for word in words)
    ]
    for contestant in contestants:
        if not contestant.is_installed:
            print(f"{contestant.name} is left out: no environment .peers/{contestant.folder}")
    contestants = [contestant for contestant in contestants if contestant.is_installed]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = write_models(folder / "models", (TINY, R18, MOBILE))
        shutil.copytree(SAMPLE_MODELS / DETECTOR, models / DETECTOR)
        questions = Questions(models, IMAGES / "detection")
        bench = Bench(Reference(models), questions, arguments)
        for contestant in contestants:  # rows stand in the order of the table
            for path in bench.paths(contestant):
                for connections in arguments.connections:
                    bench.row(contestant.name, path, connections)
        for number in range(arguments.rounds):
            for place in range(len(contestants)):
                contestant = contestants[(place + number) % len(contestants)]
                if not bench.paths(contestant):
                    continue
                begun_s = time.monotonic()
                home = folder / f"{number}-{place}"
                try:
                    with running(contestant, models, home, questions) as addresses:
                        bench.visit(contestant, addresses)
                except ConnectionError as error:
                    print(f"{contestant.name}: {error}")
                    for path in bench.paths(contestant):
                        for connections in arguments.connections:
                            bench.row(contestant.name, path, connections).samples.append(
                                _failed("it did not start", 1.0)
                            )
                shutil.rmtree(home, ignore_errors=True)
                print(
                    f"round {number + 1} of {arguments.rounds}: {contestant.name},"
                    f" {time.monotonic() - begun_s:.0f} s",
                    flush=True,
                )
    order = list(dict.fromkeys(path for contestant in CONTESTANTS for path in contestant.paths))
    rows = sorted(bench.rows.values(), key=lambda row: (row.connections, order.index(row.path)))
    return Results(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine(),
        seconds=arguments.seconds,
        rounds=arguments.rounds,
        versions={c.name: c.version() for c in contestants if c.folder},
        rows=rows,
    )


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2, help="of each load")
    parser.add_argument("--rounds", type=int, default=3, help="undisturbed samples of a row")
    parser.add_argument("--connections", type=int, nargs="+", default=[8])
    parser.add_argument("--retries", type=int, default=1, help="of a disturbed sample")
    parser.add_argument("--minutes", type=float, default=18, help="after which nothing is tried again")  # fmt: skip
    parser.add_argument("--path", action="append", default=[], help="only paths whose name has this text")  # fmt: skip
    parser.add_argument("--server", action="append", default=[], help="only servers whose name has this text")  # fmt: skip
    parser.add_argument("--from", dest="source", type=Path, help="an earlier JSON file, in place of measuring")  # fmt: skip
    parser.add_argument("--json", type=Path, default=Path("bench-data/peers.json"))
    parser.add_argument("--picture", type=Path, default=Path("bench-data/peers.svg"))
    arguments = parser.parse_args()
    if arguments.source:
        results = msgspec.json.decode(arguments.source.read_bytes(), type=Results)
    else:
        results = measure(arguments)
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
        print(f"written to {arguments.json}")
    print(results.machine, results.date, results.versions)
    print(text_table(results))
    for connections in dict.fromkeys(row.connections for row in results.rows):
        print(f"\n{connections} connections, without flagged rows\n")
        print(markdown_table(results, connections))
    peers = [contestant.name for contestant in CONTESTANTS if contestant.folder]
    print("\nQuadriga with its store is behind by more than 15 % where")
    print("\n".join(behind(results, peers)) or "nothing was found")
    middle = sorted({row.connections for row in results.rows})
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    arguments.picture.write_text(picture(results, 8 if 8 in middle else middle[0]))
    print(f"drawn to {arguments.picture}")
    if any(sample.is_void for row in results.rows for sample in row.samples):
        raise SystemExit("expected right answers of every server: see the rows that are void")


if __name__ == "__main__":
    main()
