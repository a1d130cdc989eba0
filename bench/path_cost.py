"""What a request costs on each path beside the least that serves it, in one run: a table and a JSON file.

For each path, eight connections of a closed loop send to a bare ASGI application (`bare_application.py`; on its event loop
or in threads, whichever is cheaper), to the server without a store, and to the server with its defaults, in turns. CPU is
that of all processes of a server. The bare loop, one process that does the same without a server, runs before and after
each row: where the two differ by more than 15 %, the machine changed, and the row says so. Each answer is compared with the
bare loop's; a wrong one voids the row. Factors are medians of pairs, with the least and the most of them: of seven pairs
these enclose the median with a probability of 98 %.

`--before FOLDER` measures the server of another checkout in the same turns.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec
from bare_application import BareModel
from bench_models import R18, TINY, write_models
from measuring import CONNECTIONS, GrpcLoad, HttpLoad, cpu_ns, settle
from questions import IMAGE_MODELS, JSON, QUADRIGA, Questions, Traffic
from servers import Addresses, bare

from tests.server_process import IMAGES, ServerProcess

PAIRS = 7
BOUNDS = {
    "tiny binary": (1.5, 2.2),
    "tiny JSON": (1.3, 1.8),
    "tiny gRPC": (1.1, 1.25),
    "tiny base64 JPEG": (1.15, 1.35),
    "r18 base64 JPEG": (1.03, 1.05),
}
"""Factors to the bare application that the server is to keep without a store, and with it."""


class Measured(NamedTuple):
    """What a server took for one load."""

    cpu_ms: float
    """CPU milliseconds of all its processes, per request."""
    rate: float
    """Requests per second."""
    wrong: int


class Target:
    """A server under measurement.

    Args:
        pids: Gives the ids of its processes.
        addresses: Where it listens.
    """

    def __init__(self, pids: Callable[[], Sequence[int]], addresses: Addresses) -> None:
        self._pids = pids
        self._http, self._grpc = HttpLoad(addresses.http), GrpcLoad(addresses.grpc)

    def measure(self, traffic: Traffic, count: int) -> Measured:
        """Send a number of requests."""
        load = self._grpc if traffic.is_grpc else self._http
        load.connect()
        pids = self._pids()
        begun_s, begun_ns = time.perf_counter(), cpu_ns(pids)
        answers = load(traffic.requests, count)
        elapsed_s = time.perf_counter() - begun_s
        settle(pids)
        cpu_ms = (cpu_ns(pids) - begun_ns) / count / 1e6
        return Measured(cpu_ms, count / elapsed_s, traffic.wrong_answers(answers))


def bare_loop_ms(work: Callable[[int], object], count: int, seconds: float) -> float:
    """Do the work of so many requests in turns without a server; return CPU milliseconds a request."""
    done, begun_s, end_s = 0, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        for number in range(count):
            work(number)
        done += count
    return (time.process_time() - begun_s) / done * 1000


def bare_work(traffic: Traffic, model: BareModel, questions: Questions) -> Callable[[int], object]:
    """Return what does the work of a request by its number."""
    if traffic.path == JSON or traffic.path in IMAGE_MODELS:
        bodies = [request.partition(b"\r\n\r\n")[2] for request in traffic.requests]
        return lambda number: model.answer_json(bodies[number])
    return lambda number: model.scores(questions.tensors[number])


class Row(msgspec.Struct, kw_only=True):
    """The measurements of one path, each server's in the order of the pairs."""

    path: str
    bare_loop_ms: tuple[float, float]
    """CPU of the bare loop before and after the row."""
    bare_in_threads: bool
    cpu_ms: dict[str, list[float]]
    rates: dict[str, list[float]]
    wrong: dict[str, int]
    bounds: dict[str, float]

    def factors(self, name: str, to: str = "bare") -> list[float]:
        """Return the factors of a server's CPU to another's, in rising order."""
        pairs = zip(self.cpu_ms[name], self.cpu_ms[to], strict=True)
        return sorted(cost / base for cost, base in pairs)

    @property
    def problem(self) -> str:
        """Why the row does not count; empty if it does."""
        if wrong := {name: count for name, count in self.wrong.items() if count}:
            return f"void: wrong answers {wrong}"
        first, last = self.bare_loop_ms
        if max(first, last) > 1.15 * min(first, last):
            return "the machine changed its speed"
        return ""


def measure_row(
    traffic: Traffic,
    work: Callable[[int], object],
    targets: dict[str, Target],
    in_threads: Target,
    arguments: argparse.Namespace,
) -> Row:
    """Measure all servers on a path, in turns."""
    is_slow = IMAGE_MODELS.get(traffic.path) == R18
    # the store's writer starts and ends once a load: a slow model's are longer, for some 160 requests
    seconds = arguments.seconds * (6 if is_slow else 1)
    for target in (*targets.values(), in_threads):
        target.measure(traffic, 2 * CONNECTIONS)  # warms up
    on_loop = targets["bare"]
    rate = on_loop.measure(traffic, 4 * CONNECTIONS).rate
    count = max(CONNECTIONS, int(rate * seconds))
    costs = [
        min(target.measure(traffic, count).cpu_ms for _ in range(2))
        for target in (on_loop, in_threads)
    ]
    targets = {**targets, "bare": on_loop if costs[0] <= costs[1] else in_threads}
    before_ms = bare_loop_ms(work, len(traffic.requests), seconds / 2)
    measured: dict[str, list[Measured]] = {name: [] for name in targets}
    names = list(targets)
    for pair in range(arguments.pairs):
        for name in names[pair % len(names) :] + names[: pair % len(names)]:
            # beside a cheap model a server takes longer than B, and each load the same time
            slower = 2 if name != "bare" and not is_slow else 1
            load = targets[name].measure(traffic, max(CONNECTIONS, count // slower))
            measured[name].append(load)
    return Row(
        path=traffic.path,
        bare_loop_ms=(before_ms, bare_loop_ms(work, len(traffic.requests), seconds / 2)),
        bare_in_threads=costs[1] < costs[0],
        cpu_ms={name: [m.cpu_ms for m in loads] for name, loads in measured.items()},
        rates={name: [m.rate for m in loads] for name, loads in measured.items()},
        wrong={name: sum(m.wrong for m in loads) for name, loads in measured.items()},
        bounds=dict(zip(("off", "on"), BOUNDS[traffic.path], strict=True)),
    )


def print_row(row: Row) -> None:
    """Print the lines of a path."""
    reference = statistics.mean(row.bare_loop_ms)
    place = "in threads" if row.bare_in_threads else "on the loop"
    print(
        f"{row.path}, bare loop {row.bare_loop_ms[0]:.3f} and {row.bare_loop_ms[1]:.3f} ms  {row.problem}"
    )
    for name, costs in row.cpu_ms.items():
        cost, rate = statistics.median(costs), statistics.median(row.rates[name])
        line = f"  {name:12}{cost:9.3f} ms{rate:9.0f}/s"
        if name == "bare":
            line += f"   {cost / reference:6.2f} of the bare loop, {place}"
        else:
            factors = row.factors(name)
            line += f"   {statistics.median(factors):6.2f} B ({factors[0]:.2f}..{factors[-1]:.2f})"
        if (bound := row.bounds.get(name)) is not None:
            line += f", bound {bound:g}{'' if row.factors(name)[0] <= bound else ', missed'}"
        if (old := f"{name} before") in row.cpu_ms:
            ratios = row.factors(name, to=old)
            line += (
                f", {statistics.median(ratios):.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f}) of before"
            )
        print(line, flush=True)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each load")
    parser.add_argument("--path", action="append", default=[], help="only paths whose name has this text")  # fmt: skip
    parser.add_argument("--before", default="", help="another checkout to measure beside this one")
    parser.add_argument("--json", type=Path, default=Path("bench-data/path_cost.json"))
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        folder = Path(directory)
        models = write_models(folder / "models")
        questions = Questions(models, IMAGES / "detection")
        bare_models = {model: BareModel(models / model / "model.onnx") for model in (TINY, R18)}

        def bare_target(threads: int) -> Target:
            addresses, pid = stack.enter_context(bare(models, threads))
            return Target(lambda: [pid], addresses)

        targets = {"bare": bare_target(0)}
        in_threads = bare_target(2)
        sources = ["", " before"] if arguments.before else [""]
        for name, source in itertools.product(("off", "on"), sources):
            flags = ["--no-store"] if name == "off" else []
            server = ServerProcess(folder / (name + source), models, "--grpc-port", "0", *flags)
            if source:
                server.environment["PYTHONPATH"] = str(Path(arguments.before).resolve() / "src")
            stack.enter_context(server)
            targets[name + source] = Target(server.child_pids, Addresses(server.host, server.grpc))
        for path in BOUNDS:
            if all(text in path for text in arguments.path):
                traffic = questions.traffic(path, QUADRIGA)
                work = bare_work(traffic, bare_models[IMAGE_MODELS.get(path, TINY)], questions)
                row = measure_row(traffic, work, targets, in_threads, arguments)
                print_row(row)
                rows.append(row)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    print(f"written to {arguments.json}")
    if any(sum(row.wrong.values()) for row in rows):
        raise SystemExit("expected right answers, got wrong ones")


if __name__ == "__main__":
    main()
