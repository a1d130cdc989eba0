"""Quadriga beside its peers, on each path that they have: tables and a JSON file.

`make bench-peers` makes an environment for each peer first. Servers are started one after the other, in as many rounds as a
row needs samples; each takes the same requests from the same closed loop. The CPU of all processes of a server counts. The
reference loop, a model like ResNet-18 in this process, runs before and after each sample: where the two differ by more than
15 %, or others used more than 0.1 core, the sample is flagged, and taken once more. Every answer is compared
with that of the models in this process; a wrong one voids the row. CPU is scaled to the median of the reference loop.

From a JSON file alone, `--from FILE` prints the tables again.
"""

import argparse
import platform
import re
import shutil
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import grpc
import msgspec
import numpy as np
from bench_models import MOBILE, R18, SIDES, TINY, write_models
from measuring import CpuMeter, GrpcLoad, HttpLoad, adopt_orphans, descendants, settle
from peer_models import CORES, Classifier
from peer_table import Results, Row, Sample, behind, table
from questions import DETECTOR, PATHS, Questions, Traffic
from servers import CONTESTANTS, Addresses, Contestant, running

from tests.server_process import IMAGES, SAMPLE_MODELS

REFERENCE_S = 0.3
RETRIES = 1
"""Further samples in place of a disturbed one."""


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
        contestants: The servers.
        arguments: Those of the command line.
    """

    def __init__(
        self,
        reference: Reference,
        questions: Questions,
        contestants: list[Contestant],
        arguments: argparse.Namespace,
    ) -> None:
        self._reference, self._questions, self._arguments = reference, questions, arguments
        self.rows = {
            (contestant.name, path, connections): Row(
                server=contestant.name, path=path, connections=connections
            )
            for connections in arguments.connections
            for path in PATHS
            for contestant in contestants
            if path in self.paths(contestant)
        }

    def paths(self, contestant: Contestant) -> list[str]:
        """Return the paths of a server that were asked for."""
        words = self._arguments.path
        return [path for path in contestant.paths if not words or any(w in path for w in words)]

    def visit(self, contestant: Contestant, addresses: Addresses) -> None:
        """Take a sample of each path and number of connections that the server has."""
        before_ms = self._reference.cpu_ms()
        for path in self.paths(contestant):
            traffic = self._questions.traffic(path, contestant.dialect)
            kind, address = (
                (GrpcLoad, addresses.grpc) if traffic.is_grpc else (HttpLoad, addresses.http)
            )
            for connections in self._arguments.connections:
                key = (contestant.name, path, connections)
                for _ in range(1 + RETRIES):
                    load = kind(address, connections)
                    try:
                        sample = self._sample(traffic, load, before_ms)
                    finally:
                        load.close()
                    before_ms = sample.reference_ms[1]
                    self.rows[key].samples.append(sample)
                    if sample.is_void or not sample.flag:
                        break

    def fail(self, contestant: Contestant, reason: str) -> None:
        """Note of each path of a server that it has no answers."""
        for row in self.rows.values():
            if row.server == contestant.name and row.path in contestant.paths:
                row.samples.append(Sample(reference_ms=(1.0, 1.0), failure=reason))

    def _sample(self, traffic: Traffic, load: HttpLoad | GrpcLoad, before_ms: float) -> Sample:
        try:
            load.connect()
            for _ in range(2):  # the first warms up
                begun_s = time.perf_counter()
                load(traffic.requests, 4 * load.connections)
            rate = 4 * load.connections / (time.perf_counter() - begun_s)
            count = max(24, load.connections, round(rate * self._arguments.seconds))
            meter, begun_s = CpuMeter(), time.perf_counter()
            answers = load(traffic.requests, count)
            elapsed_s = time.perf_counter() - begun_s
            settle(descendants())
            server_s, neighbour_cores = meter.server_s(), meter.neighbour_cores()
        except (OSError, ValueError, grpc.RpcError) as error:
            failure = f"{type(error).__name__}: {error}"[:200]
            return Sample(reference_ms=(before_ms, before_ms), failure=failure)
        return Sample(
            requests=count,
            wrong=traffic.wrong_answers(answers),
            cpu_ms=server_s / count * 1000,
            rate=count / elapsed_s,
            neighbour_cores=neighbour_cores,
            reference_ms=(before_ms, self._reference.cpu_ms()),
        )


def machine() -> str:
    """Name the machine: its processors and Python."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    name = model[1] if model else platform.machine()
    return f"{CORES} x {name}, Python {platform.python_version()}"


def measure(arguments: argparse.Namespace) -> Results:
    """Measure all servers that are installed, in rounds."""
    adopt_orphans()
    words = [word.lower() for word in arguments.server]
    contestants = []
    for contestant in CONTESTANTS:
        if words and not any(word in contestant.name.lower() for word in words):
            continue
        if contestant.is_installed:
            contestants.append(contestant)
        else:
            print(f"{contestant.name} is left out: no environment .peers/{contestant.folder}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = write_models(folder / "models", (TINY, R18, MOBILE))
        shutil.copytree(SAMPLE_MODELS / DETECTOR, models / DETECTOR)
        questions = Questions(models, IMAGES / "detection")
        bench = Bench(Reference(models), questions, contestants, arguments)
        for number in range(arguments.rounds):
            for place in range(len(contestants)):
                contestant = contestants[(place + number) % len(contestants)]
                if not bench.paths(contestant):
                    continue
                print(f"round {number + 1} of {arguments.rounds}: {contestant.name}", flush=True)
                home = folder / f"{number}-{place}"
                try:
                    with running(contestant, models, home, questions) as addresses:
                        bench.visit(contestant, addresses)
                except ConnectionError as error:
                    print(f"{contestant.name}: {error}")
                    bench.fail(contestant, "it did not start")
                shutil.rmtree(home, ignore_errors=True)
    return Results(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine(),
        seconds=arguments.seconds,
        rounds=arguments.rounds,
        rows=list(bench.rows.values()),
    )


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2, help="of each load")
    parser.add_argument("--rounds", type=int, default=3, help="undisturbed samples of a row")
    parser.add_argument("--connections", type=int, nargs="+", default=[8])
    parser.add_argument("--path", action="append", default=[], help="only paths whose name has this text")  # fmt: skip
    parser.add_argument("--server", action="append", default=[], help="only servers whose name has this text")  # fmt: skip
    parser.add_argument("--from", dest="source", type=Path, help="an earlier JSON file, in place of measuring")  # fmt: skip
    parser.add_argument("--json", type=Path, default=Path("bench-data/peers.json"))
    arguments = parser.parse_args()
    if arguments.source:
        results = msgspec.json.decode(arguments.source.read_bytes(), type=Results)
    else:
        results = measure(arguments)
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
        print(f"written to {arguments.json}")
    print(f"{results.machine}, {results.date}: CPU ms of all processes a request, scaled to a reference loop of"
          f" {results.reference_ms:.1f} ms; in italics what is not to be quoted")  # fmt: skip
    for connections in dict.fromkeys(row.connections for row in results.rows):
        print(f"\n{connections} connections\n\n{table(results, connections)}")
    peers = [contestant.name for contestant in CONTESTANTS if contestant.folder]
    print("\nQuadriga with its store is behind by more than 15 % where")
    print("\n".join(behind(results, peers)) or "nothing was found")
    if any(sample.is_void for row in results.rows for sample in row.samples):
        raise SystemExit("expected right answers of every server: see the rows that are void")


if __name__ == "__main__":
    main()
