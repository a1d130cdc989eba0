"""What live requests notice of a shadow that is to see all of them: latencies with and without it, in interleaved rounds.

One server, one worker. A model of two versions is asked by clients of a closed loop: without pauses, so that there is no
processor to spare, and with pauses, so that there is. Each round runs the load three times for a short while: alone, beside a
shadow with the share 1, and alone again, in an order that changes from round to round. Quantiles are those of all rounds
together; the intervals of their ratios are of 95 %, by drawing rounds anew. "again" is what chance does on this machine. The CPU time of a
request, with that of storing what the shadow says, does not depend on neighbours.

PYTHONPATH=. python bench/shadow_cost.py --rounds 30 --seconds 2
"""

import argparse
import base64
import json
import re
import tempfile
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from processes import descendants, process_cpu_ns

from tests.onnx_models import doubling
from tests.server_process import ServerProcess
from tests.two_versions import MODEL, images, write_two_versions

SETTLED_S = 0.3
"""Time that is not measured after a rule is set, which counts at once in the one worker."""

ARMS = ("alone", "beside", "again")


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


def measure(server: ServerProcess, load: Load, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure one load, round by round."""
    path, body = f"/v2/models/{load.model}/infer", body_of(load.model)

    cpu_s: dict[str, list[float]] = {arm: [] for arm in ARMS}
    shadow_s = 0.0

    def part(arm: str) -> list[float]:
        nonlocal shadow_s
        rule: dict[str, Any] = {"shares": {"1": 1}}
        if arm == "beside":
            rule["shadow"] = {"version": "2"}
        status, answer = server.call("PUT", f"/api/models/{load.model}/traffic", rule)
        assert status == 200, answer
        run(server.host, path, body, load, SETTLED_S)
        begun = cpu_of_server()
        latencies_ms = run(server.host, path, body, load, seconds)
        ended = cpu_of_server()
        cpu_s[arm].append((ended[0] - begun[0]) / max(len(latencies_ms), 1))
        shadow_s += ended[1] - begun[1]
        return latencies_ms

    start_shadow(server, load, path, body)
    before = outcomes(server, load.model)
    latencies: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    for number in range(rounds):
        for place in range(len(ARMS)):
            arm = ARMS[(number + place) % len(ARMS)]
            latencies[arm].append(part(arm))
    after = outcomes(server, load.model)
    result: dict[str, Any] = {
        "load": load.name,
        "outcomes": {name: after[name] - before[name] for name in after},
        "requests": sum(map(len, latencies["beside"])),
        "cpu_ms": {arm: float(np.median(cpu_s[arm])) * 1000 for arm in ARMS},
        "shadow_cpu_s": shadow_s,
    }
    for quantile in (50, 99):
        result[f"p{quantile}_ms"] = {
            arm: float(np.percentile(np.concatenate(latencies[arm]), quantile)) for arm in ARMS
        }
        for arm in ARMS[1:]:
            result[f"p{quantile}_{arm}"] = ratio(latencies[arm], latencies["alone"], quantile)
    return result


def ratio(
    rounds: list[list[float]], others: list[list[float]], quantile: int
) -> tuple[float, float, float]:
    """Return the ratio of a quantile of two arms, and its interval."""
    random = np.random.default_rng(0)
    drawn = [range(len(rounds)), *random.integers(0, len(rounds), (1000, len(rounds)))]
    ratios = [
        float(
            np.percentile(np.concatenate([rounds[place] for place in places]), quantile)
            / np.percentile(np.concatenate([others[place] for place in places]), quantile)
        )
        for places in drawn
    ]
    low, high = np.percentile(ratios[1:], (2.5, 97.5))
    return ratios[0], float(low), float(high)


def cpu_of_server() -> tuple[float, float]:
    """Return the CPU seconds of the processes of the server, without and of the shadow."""
    live_ns = shadow_ns = 0
    for pid in descendants():
        with suppress(OSError):  # it has ended
            is_shadow = b"shadow_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
            cpu_ns = process_cpu_ns(pid)
            live_ns, shadow_ns = live_ns + cpu_ns * (not is_shadow), shadow_ns + cpu_ns * is_shadow
    return live_ns / 1e9, shadow_ns / 1e9


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
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--load", default="", help="part of the name of the loads to measure")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        models = write_two_versions(Path(folder) / "models")
        for version in "12":
            doubling(models / "numbers" / version / "model.onnx")
        with ServerProcess(Path(folder) / "data", models, "--workers", "1") as server:
            for load in (load for load in LOADS if arguments.load in load.name):
                result = measure(server, load, arguments.rounds, arguments.seconds)
                results.append(result)
                print(f"{load.name}: {result['requests']:,} requests, shadow {result['outcomes']}")
                texts = [f"{arm} {ms:.3f}" for arm, ms in result["cpu_ms"].items()]
                print(f"  CPU ms of a request without the shadow's: {', '.join(texts)}")
                for quantile in (50, 99):
                    print(
                        f"  p{quantile} {result[f'p{quantile}_ms']['alone']:.2f} ms alone", end=""
                    )
                    for arm in ARMS[1:]:
                        value, low, high = result[f"p{quantile}_{arm}"]
                        print(f", {arm} x {value:.3f} ({low:.3f} to {high:.3f})", end="")
                    print(flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
