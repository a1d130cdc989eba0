"""What live requests notice of a shadow that is to see all of them: latencies with and without it, in interleaved pairs.

One server, one worker. A model of two versions is asked by clients of a closed loop: without pauses, so that there is no
processor to spare, and with pauses, so that there is. In each pair the load runs once alone and once beside a shadow with the
share 1, first the one, then the other, in turns. What counts is the median of the pairs' ratios: on a shared machine a single
pair says little. "alone again" compares two runs without a shadow, which is what chance does.

PYTHONPATH=. python bench/shadow_cost.py --pairs 7 --seconds 8
"""

import argparse
import base64
import json
import re
import statistics
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.onnx_models import doubling
from tests.server_process import ServerProcess
from tests.two_versions import MODEL, images, write_two_versions

SETTLED_S = 2.5
"""Time until a rule counts in the worker."""


class Load(NamedTuple):
    """Clients of a closed loop."""

    name: str
    model: str
    clients: int
    pause_s: float


LOADS = (
    Load("images, full load", MODEL, 4, 0.0),
    Load("images, quiet", MODEL, 2, 0.25),
    Load("rows, full load", "numbers", 4, 0.0),
    Load("rows, quiet", "numbers", 2, 0.02),
)


def run(host: str, path: str, body: bytes, load: Load, seconds: float) -> list[float]:
    """Send requests for some time; return the milliseconds of each."""
    latencies_ms: list[float] = []
    end_s = time.monotonic() + seconds

    def ask() -> None:
        connection = HTTPConnection(host, timeout=60)
        while time.monotonic() < end_s:
            begun_s = time.perf_counter()
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            latencies_ms.append((time.perf_counter() - begun_s) * 1000)
            if load.pause_s:
                time.sleep(load.pause_s)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(load.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies_ms


def outcomes(server: ServerProcess, model: str) -> dict[str, int]:
    """Return how many requests the shadow of a model has answered, failed and dropped."""
    text = server.request("GET", "/metrics")[2].decode()
    counts = dict.fromkeys(("answered", "failed", "dropped"), 0)
    for line in re.findall(
        rf'^quadriga_shadow_requests_total\{{.*"{model}".*$', text, re.MULTILINE
    ):
        outcome = re.search(r'outcome="(\w+)"', line)
        assert outcome is not None
        counts[outcome[1]] += int(float(line.split()[-1]))
    return counts


def body_of(model: str) -> bytes:
    """Return the body of a request."""
    if model == MODEL:
        data = base64.b64encode(next(images())[2]).decode()
        tensor: dict[str, Any] = {
            "name": "image",
            "shape": [1],
            "datatype": "BYTES",
            "data": [data],
        }
    else:
        tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    return json.dumps({"inputs": [tensor]}).encode()


def measure(server: ServerProcess, load: Load, pairs: int, seconds: float) -> dict[str, Any]:
    """Measure one load, pair by pair."""
    path, body = f"/v2/models/{load.model}/infer", body_of(load.model)

    def part(*, shadow: bool) -> list[float]:
        rule: dict[str, Any] = {"shares": {"1": 1}}
        if shadow:
            rule["shadow"] = {"version": "2"}
        status, answer = server.call("PUT", f"/api/models/{load.model}/traffic", rule)
        assert status == 200, answer
        run(server.host, path, body, load, SETTLED_S)
        return run(server.host, path, body, load, seconds)

    start_shadow(server, load, path, body)
    before = outcomes(server, load.model)
    rows = []
    for number in range(pairs):
        if number % 2:
            beside, alone = part(shadow=True), part(shadow=False)
        else:
            alone, beside = part(shadow=False), part(shadow=True)
        again = part(shadow=False)
        rows.append({"alone": alone, "beside": beside, "again": again})
    after = outcomes(server, load.model)
    result: dict[str, Any] = {
        "load": load.name,
        "outcomes": {name: after[name] - before[name] for name in after},
        "requests": sum(len(row["beside"]) for row in rows),
    }
    for quantile in (50, 99):
        values = {
            name: [float(np.percentile(row[name], quantile)) for row in rows] for name in rows[0]
        }
        result[f"p{quantile}_ms"] = {name: statistics.median(values[name]) for name in values}
        for name in ("beside", "again"):
            ratios = [
                other / alone for other, alone in zip(values[name], values["alone"], strict=True)
            ]
            result[f"p{quantile}_{name}"] = {
                "median": statistics.median(ratios),
                "least": min(ratios),
                "most": max(ratios),
            }
    return result


def start_shadow(server: ServerProcess, load: Load, path: str, body: bytes) -> None:
    """Let the process of the shadow start before anything is measured, for a while, by a quiet load."""
    rule = {"shares": {"1": 1}, "shadow": {"version": "2"}}
    status, answer = server.call("PUT", f"/api/models/{load.model}/traffic", rule)
    assert status == 200, answer
    until_s = time.monotonic() + 120
    while not outcomes(server, load.model)["answered"] and time.monotonic() < until_s:
        run(server.host, path, body, Load("", load.model, 1, 0.3), 2.0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        models = write_two_versions(Path(folder) / "models")
        for version in "12":
            doubling(models / "numbers" / version / "model.onnx")
        with ServerProcess(Path(folder) / "data", models, "--workers", "1") as server:
            for load in LOADS:
                result = measure(server, load, arguments.pairs, arguments.seconds)
                results.append(result)
                print(
                    f"{result['load']}: p99 {result['p99_ms']['alone']:.2f} ms alone, beside a shadow x "
                    f"{result['p99_beside']['median']:.3f} ({result['p99_beside']['least']:.2f} to "
                    f"{result['p99_beside']['most']:.2f}), alone again x {result['p99_again']['median']:.3f} "
                    f"({result['p99_again']['least']:.2f} to {result['p99_again']['most']:.2f}); p50 "
                    f"{result['p50_ms']['alone']:.2f} ms, x {result['p50_beside']['median']:.3f}; "
                    f"shadow: {result['outcomes']}, {result['requests']} requests",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
