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
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import msgspec
import numpy as np
from bare_application import BareModel, message_class
from bench_models import CLASSES, R18, SIDES, TINY, write_models
from closed_loop import CONNECTIONS, Answer, GrpcLoad, HttpLoad, cpu_ns

from tests.server_process import ServerProcess, image_input

VARIANTS = 8
"""Different requests of a path, so that an answer to another one is noticed."""
PAIRS = 7
SETTLE_S = 3.0
"""Maximum seconds that a server has after a load, to store what is left."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way to ask a model."""

    name: str
    model: str
    requests: Sequence[bytes]
    """What is sent: HTTP as it goes over the wire, or messages of gRPC."""
    is_right: Callable[[int, Answer], bool]
    """Compares the answer to the request of this number with the bare loop's."""
    bare: Callable[[int], object]
    """Does the work of this request without a server."""
    off: float
    """Factor to the bare application that the server without a store is to keep."""
    on: float
    is_grpc: bool = False


def http_request(model: str, body: bytes, headers: str = "") -> bytes:
    """Write a request as it goes over the wire."""
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def tensor_paths(model: BareModel) -> Iterator[Way]:
    """Make the paths of tensors to the tiny model: binary, JSON and gRPC."""
    random = np.random.default_rng(3)
    side = SIDES[TINY]
    arrays = [random.random((1, 3, side, side), np.float32) for _ in range(VARIANTS)]
    expected = [model.scores(array) for array in arrays]
    raw = {"content_type": "raw"}
    tensor: dict[str, Any] = {"name": "image", "shape": [1, 3, side, side], "datatype": "FP32"}

    def is_close(number: int, scores: Any) -> bool:
        return np.allclose(expected[number].ravel(), scores, rtol=1e-5, atol=1e-6)

    binary_bodies, json_bodies, messages = [], [], []
    request_class, response_class = (
        message_class("ModelInferRequest"),
        message_class("ModelInferResponse"),
    )
    for array in arrays:
        data = array.tobytes()
        parameters = {**raw, "binary_data_size": len(data)}
        body = {
            "inputs": [{**tensor, "parameters": parameters}],
            "parameters": {"binary_data_output": True},
        }
        text = json.dumps(body).encode()
        length = f"Inference-Header-Content-Length: {len(text)}\r\n"
        binary_bodies.append(http_request(TINY, text + data, length))
        rounded = [float(text) for text in map(str, array.ravel())]
        body = {"inputs": [{**tensor, "parameters": raw, "data": rounded}]}
        json_bodies.append(http_request(TINY, json.dumps(body).encode()))
        message = request_class(model_name=TINY)
        message.parameters["content_type"].string_param = "raw"
        message.inputs.add(name="image", datatype="FP32", shape=tensor["shape"])
        message.raw_input_contents.append(data)
        messages.append(message.SerializeToString())

    def binary_is_right(number: int, answer: Answer) -> bool:
        return is_close(number, np.frombuffer(answer[1][-4 * CLASSES[TINY] :], np.float32))

    def json_is_right(number: int, answer: Answer) -> bool:
        return is_close(number, msgspec.json.decode(answer[1])["outputs"][0]["data"])

    def message_is_right(number: int, answer: Answer) -> bool:
        response = response_class.FromString(answer[1])
        return is_close(number, np.frombuffer(response.raw_output_contents[0], np.float32))

    def bare_json(number: int) -> object:
        return model.answer_json(json_bodies[number].partition(b"\r\n\r\n")[2])

    def bare(number: int) -> object:
        return model.scores(arrays[number])

    yield Way(name="tiny binary", model=TINY, requests=binary_bodies, is_right=binary_is_right, bare=bare, off=1.5, on=2.2)  # fmt: skip
    yield Way(name="tiny JSON", model=TINY, requests=json_bodies, is_right=json_is_right, bare=bare_json, off=1.3, on=1.8)  # fmt: skip
    yield Way(name="tiny gRPC", model=TINY, requests=messages, is_right=message_is_right, bare=bare, off=1.1, on=1.25, is_grpc=True)  # fmt: skip


def image_path(name: str, model: BareModel, off: float, on: float) -> Way:
    """Make the path of a JPEG of 640 x 480 in base64."""
    jpegs = [photograph(number) for number in range(VARIANTS)]
    expected = [model.best(jpeg) for jpeg in jpegs]
    bodies = [json.dumps({"inputs": [image_input(jpeg)]}).encode() for jpeg in jpegs]

    def is_right(number: int, answer: Answer) -> bool:
        (prediction,) = msgspec.json.decode(answer[1])["outputs"][0]["data"][0]
        label, score = expected[number]
        return bool(prediction["label"] == label and abs(prediction["score"] - score) < 1e-4)

    return Way(
        name=name,
        model=model.name,
        requests=[http_request(model.name, body) for body in bodies],
        is_right=is_right,
        bare=lambda number: model.answer_json(bodies[number]),
        off=off,
        on=on,
    )


def photograph(seed: int) -> bytes:
    """Make a JPEG of 640 x 480 with the detail, and so the size, of a photograph: about 78 kB."""
    random = np.random.default_rng(seed)
    pixels = np.zeros((480, 640, 3), np.float32)
    for cells, weight in ((4, 90), (16, 60), (64, 40), (320, 22)):
        coarse = random.random((cells * 3 // 4, cells, 3), np.float32)
        pixels += weight * cv2.resize(coarse, (640, 480), interpolation=cv2.INTER_CUBIC)
    encoded = cv2.imencode(".jpg", np.clip(pixels, 0, 255).astype(np.uint8))[1]
    return encoded.tobytes()


class Measured(NamedTuple):
    """What a server took for one load."""

    cpu_ms: float
    """CPU milliseconds of all its processes, per request."""
    rate: float
    """Requests per second."""
    wrong: int


class Target:
    """A server under measurement."""

    def __init__(self, pids: Callable[[], Sequence[int]], host: str, grpc_address: str) -> None:
        self._pids = pids
        self._http, self._grpc = HttpLoad(host), GrpcLoad(grpc_address)

    def measure(self, path: Way, count: int) -> Measured:
        """Send a number of requests of a path."""
        load = self._grpc if path.is_grpc else self._http
        load.connect()
        pids = self._pids()
        begun_s, begun_ns = time.perf_counter(), cpu_ns(pids)
        answers = load(path.requests, count)
        elapsed_s = time.perf_counter() - begun_s
        self._settle(pids)
        cpu_ms = (cpu_ns(pids) - begun_ns) / count / 1e6
        wrong = sum(not _is_right(path, number, answer) for number, answer in answers)
        return Measured(cpu_ms, count / elapsed_s, wrong)

    def _settle(self, pids: Sequence[int]) -> None:
        """Wait until the server has stored what is left: it uses less than a fiftieth of a processor."""
        end_s, before_ns = time.monotonic() + SETTLE_S, cpu_ns(pids)
        while time.monotonic() < end_s:
            time.sleep(0.1)
            now_ns = cpu_ns(pids)
            if now_ns - before_ns < 2_000_000:
                return
            before_ns = now_ns


def _is_right(path: Way, number: int, answer: Answer) -> bool:
    head, body = answer
    if head and not head.startswith(b"HTTP/1.1 200"):
        return False
    try:
        return path.is_right(number, (head, body))
    except (KeyError, IndexError, TypeError, ValueError):
        return False


def bare_loop_ms(path: Way, seconds: float) -> float:
    """Do the work of a path without a server; return CPU milliseconds a request."""
    count, begun_s, end_s = 0, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        for number in range(VARIANTS):
            path.bare(number)
        count += VARIANTS
    return (time.process_time() - begun_s) / count * 1000


@contextmanager
def bare_application(models: Path, threads: int) -> Iterator[Target]:
    """Start the bare application."""
    script = Path(__file__).with_name("bare_application.py")
    with subprocess.Popen(
        [sys.executable, str(script), str(models), str(threads)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        http_port, grpc_port = process.stdout.readline().split()
        try:
            yield Target(lambda: [process.pid], f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}")
        finally:
            process.kill()


@contextmanager
def server(data: Path, models: Path, *flags: str, checkout: str = "") -> Iterator[Target]:
    """Start the server, of another checkout if one is given."""
    before = os.environ.get("PYTHONPATH")
    if checkout:
        os.environ["PYTHONPATH"] = str(Path(checkout).resolve() / "src")
    process = ServerProcess(data, models, "--grpc-port", "0", *flags)
    try:
        process.start()
    finally:
        os.environ.pop("PYTHONPATH", None)
        if before is not None:
            os.environ["PYTHONPATH"] = before
    try:
        yield Target(process.child_pids, process.host, process.grpc)
    finally:
        process.stop()


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
    path: Way, targets: dict[str, Target], in_threads: Target, pairs: int, *, seconds: float
) -> Row:
    """Measure all servers on a path, in turns."""
    for target in (*targets.values(), in_threads):
        target.measure(path, 2 * CONNECTIONS)  # warms up
    on_loop, threaded = targets["bare"], in_threads
    rate = on_loop.measure(path, 4 * CONNECTIONS).rate
    count = max(CONNECTIONS, int(rate * seconds))
    costs = [
        [target.measure(path, count).cpu_ms for _ in range(2)] for target in (on_loop, threaded)
    ]
    bare_in_threads = min(costs[1]) < min(costs[0])
    targets = {**targets, "bare": threaded if bare_in_threads else on_loop}
    before_ms = bare_loop_ms(path, seconds / 2)
    measured: dict[str, list[Measured]] = {name: [] for name in targets}
    names = list(targets)
    for pair in range(pairs):
        for name in names[pair % len(names) :] + names[: pair % len(names)]:
            # beside a cheap model a server takes longer than B, and each load the same time
            slower = 2 if name != "bare" and path.model == TINY else 1
            measured[name].append(targets[name].measure(path, max(CONNECTIONS, count // slower)))
    return Row(
        path=path.name,
        bare_loop_ms=(before_ms, bare_loop_ms(path, seconds / 2)),
        bare_in_threads=bare_in_threads,
        cpu_ms={name: [m.cpu_ms for m in loads] for name, loads in measured.items()},
        rates={name: [m.rate for m in loads] for name, loads in measured.items()},
        wrong={name: sum(m.wrong for m in loads) for name, loads in measured.items()},
        bounds={"off": path.off, "on": path.on},
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
    cv2.setNumThreads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        models = write_models(Path(folder) / "models")
        tiny, r18 = (BareModel(models / name / "model.onnx") for name in (TINY, R18))
        paths = [*tensor_paths(tiny), image_path("tiny base64 JPEG", tiny, 1.15, 1.35)]
        paths.append(image_path("r18 base64 JPEG", r18, 1.03, 1.05))
        targets = {"bare": stack.enter_context(bare_application(models, 0))}
        in_threads = stack.enter_context(bare_application(models, 2))
        for name, flags in (("off", ["--no-store"]), ("on", [])):
            data = Path(folder) / name
            targets[name] = stack.enter_context(server(data, models, *flags))
            if arguments.before:
                data = Path(folder) / f"{name}-before"
                target = server(data, models, *flags, checkout=arguments.before)
                targets[f"{name} before"] = stack.enter_context(target)
        for path in paths:
            if all(text in path.name for text in arguments.path):
                # the store's writer starts and ends once a load: a slow model's are longer, for some 160 requests
                seconds = arguments.seconds * (6 if path.model == R18 else 1)
                row = measure_row(path, targets, in_threads, arguments.pairs, seconds=seconds)
                print_row(row)
                rows.append(row)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    print(f"written to {arguments.json}")
    if any(sum(row.wrong.values()) for row in rows):
        raise SystemExit("expected right answers, got wrong ones")


if __name__ == "__main__":
    main()
