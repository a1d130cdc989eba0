"""How long requests wait: a closed loop of many clients, and a fast model beside one that is many times slower.

In a closed loop the mean latency is the clients divided by the rate (Little's law): no queue is shorter. What the slowest
answers take beyond that is what the order of the queue adds. Beside a slower model, the fast one is asked at a share of
its peak in an open loop, alone and beside clients that keep the slow one busy, in turns.
"""

import argparse
import statistics
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

from bench_models import R18, write_models
from overload import Outcome, detector_requests, http_request, run_load, run_load_here

from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, image_input

LATE_SHARE = 0.01
"""Share of requests sent late above which the client is too slow to be believed."""


def slow_requests() -> list[bytes]:
    """Return requests of the slow model."""
    images = [path.read_bytes() for path in sorted((IMAGES / "detection").glob("*.jpg"))[:4]]
    return [http_request(R18, {"inputs": [image_input(image)]}) for image in images]


def measure_closed_loop(
    server: ServerProcess, name: str, requests: list[bytes], seconds: float
) -> None:
    """Print the latencies of 32 clients beside the mean that their rate allows."""
    run_load(server.host, requests, {"clients": 4, "seconds": 2.0})
    for clients in (8, 32):
        outcome = run_load(server.host, requests, {"clients": clients, "seconds": seconds})
        ideal_ms = clients / outcome.rate * 1000
        print(
            f"{name:10} {clients:2} clients: {outcome.rate:7.1f}/s, ideal queue {ideal_ms:7.1f} ms, "
            f"p50 {outcome.quantile_ms(0.5):7.1f}, p99 {outcome.quantile_ms(0.99):7.1f}: "
            f"{outcome.quantile_ms(0.99) / ideal_ms:.2f} of the ideal; statuses {outcome.statuses}"
        )


def measure_beside_slower(server: ServerProcess, arguments: argparse.Namespace) -> None:
    """Print the p99 of the fast model alone and beside the slow one, and what one request of each takes."""
    fast = run_load(server.host, detector_requests(), {"clients": 1, "seconds": 5.0})
    slow = run_load(server.host, slow_requests(), {"clients": 1, "seconds": 5.0})
    peak = run_load(server.host, detector_requests(), {"clients": 8, "seconds": 5.0})
    fast_ms, slow_ms = fast.quantile_ms(0.5), slow.quantile_ms(0.5)
    print(
        f"one request alone: fast {fast_ms:.1f} ms, slow {slow_ms:.1f} ms ({slow_ms / fast_ms:.1f} times)"
    )
    load = {"rate": peak.rate * arguments.share, "seconds": arguments.seconds}
    added_ms = []
    for _ in range(arguments.rounds):
        alone = run_load(server.host, detector_requests(), load)
        with get_context("spawn").Pool(1) as pool:
            busy_load = {"clients": arguments.slow_clients, "seconds": arguments.seconds + 6}
            busy = pool.apply_async(run_load_here, (server.host, slow_requests(), busy_load))
            time.sleep(2)
            beside = run_load(server.host, detector_requests(), load)
            slow_rate = busy.get(arguments.seconds * 5).rate
        added_ms.append(beside.quantile_ms(0.99) - alone.quantile_ms(0.99))
        print(
            f"  {load['rate']:.0f}/s: p99 alone {alone.quantile_ms(0.99):.1f} ms, beside "
            f"{beside.quantile_ms(0.99):.1f} ms (p50 {alone.quantile_ms(0.5):.1f}, {beside.quantile_ms(0.5):.1f}); "
            f"the slow one {slow_rate:.1f}/s{_doubt(alone, beside)}"
        )
    print(
        f"p99 moved by {statistics.median(added_ms):.1f} ms (median): {statistics.median(added_ms) / fast_ms:.2f} of "
        f"one request of the fast model, {statistics.median(added_ms) / slow_ms:.2f} of one of the slow"
    )


def _doubt(*outcomes: Outcome) -> str:
    late = max(outcome.late / max(sum(outcome.statuses.values()), 1) for outcome in outcomes)
    return f"; {late:.0%} SENT LATE" if late > LATE_SHARE else ""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--share", type=float, default=0.15, help="of the fast model's peak, beside the slow one")  # fmt: skip
    parser.add_argument("--slow-clients", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flag", action="append", default=[], help="of the server")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = write_models(Path(folder) / "models")
        (models / "shapes-detector").symlink_to(SAMPLE_MODELS / "shapes-detector")
        with ServerProcess(Path(folder) / "data", models, *arguments.flag) as server:
            measure_closed_loop(server, "detector", detector_requests(), arguments.seconds)
            measure_closed_loop(server, R18, slow_requests(), arguments.seconds)
            measure_beside_slower(server, arguments)


if __name__ == "__main__":
    main()
