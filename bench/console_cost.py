"""What the console's pages cost over a store of a million inferences: CPU of the server's worker, and the time until the page is there.

The store is that of `bench/store_queries.py`, made once in a folder that is kept; it has no images. Printed are milliseconds: the
median and the maximum of the repetitions, after a first one, whose time stands beside them.

Flags: `--records` and `--folder` as of `bench/store_queries.py`; `--repeats N`.
"""

import argparse
import time
from pathlib import Path

from closed_loop import cpu_ns
from store_queries import prepare
from store_records import databases, percentile

from tests.server_process import SAMPLE_MODELS, ServerProcess

PAGES = {
    "overview": "/console/",
    "inferences, all": "/console/inferences",
    "inferences, table": "/console/inferences?view=table",
    "inferences, objects": "/console/inferences?view=objects",
    "a key": "/console/inferences?q=meta.camera_id%3Dcamera-7",
    "a range, 30 %": "/console/inferences?q=meta.altitude%3Dge%3A300+%26+meta.altitude%3Dlt%3A600",
    "a label, low scores": "/console/inferences?q=label%3Dstar%3Alt%3A0.3+%26+meta.camera_id%3Dcamera-7",
    "live": "/console/live",
    "label next": "/console/label?q=meta.camera_id%3Dcamera-7",
    "compare": "/console/compare",
    "models": "/console/models",
    "reports": "/console/reports",
}


def measure(server: ServerProcess, path: str, repeats: int) -> tuple[float, list[float], list[float], str]:  # fmt: skip
    """Return the first time, all further times and CPU times of a page, in ms, and the path of the page after it."""
    times, costs, following = [], [], ""
    pids = server.child_pids()
    for _ in range(repeats + 1):
        begun_s, begun_ns = time.perf_counter(), cpu_ns(pids)
        status, _, body = server.request("GET", path)
        times.append((time.perf_counter() - begun_s) * 1000)
        costs.append((cpu_ns(pids) - begun_ns) / 1e6)
        if status != 200:
            raise SystemExit(f"expected 200 of {path}, got {status}: {body[:300]!r}")
        head, _, rest = body.partition(b'rel="next" href="')
        following = rest.partition(b'"')[0].decode().replace("&amp;", "&") if rest and head else ""
    return times[0], times[1:], costs[1:], following


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("bench-data"))
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with databases(arguments.folder, ["sqlite"]) as urls:
        prepare(urls["sqlite"], "sqlite", arguments)
        data = arguments.folder / "console-server"
        with ServerProcess(data, SAMPLE_MODELS, "--database", urls["sqlite"]) as server:
            print(f"{arguments.records} records: ms, first | p50 and max | CPU p50 and max")
            for name, path in PAGES.items():
                *measured, following = measure(server, path, arguments.repeats)
                print_row(name, *measured)
                if following:
                    print_row(f"{name}, next page", *measure(server, following, arguments.repeats)[:3])  # fmt: skip


def print_row(name: str, first: float, times: list[float], costs: list[float]) -> None:
    """Print the line of a page."""
    print(
        f"  {name:32}{first:8.0f} |{percentile(times, 0.5):8.0f}{max(times):8.0f} |"
        f"{percentile(costs, 0.5):8.0f}{max(costs):8.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
