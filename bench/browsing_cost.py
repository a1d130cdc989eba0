"""What it costs to look around in a store: facets, neighbours and disagreements of filters on each database.

The store is that of `bench/store_queries.py`, made once in a folder that is kept. Printed are milliseconds of CPU, of this process
and of the PostgreSQL process that serves it: the median and the maximum of the repetitions; beside facets how far the number of
matches that they say is from the true one, and how many inferences they looked at.

Flags: `--records`, `--folder` and `--database` as of `bench/store_queries.py`; `--repeats N`.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from store_queries import KINDS, prepare
from store_records import Clock, databases, percentile

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.browsing.comparison import DisagreementsRequest, find_disagreements
from quadriga.store.browsing.facets import FacetsRequest, find_facets
from quadriga.store.browsing.neighbours import NeighboursRequest, find_neighbours
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest

FILTERS: dict[str, Any] = {
    "everything": {},
    "a model": {"model": "detector-1"},
    "a day": {"ts": {"ge": "2026-01-20T00:00:00Z", "lt": "2026-01-21T00:00:00Z"}},
    "key": {"meta.camera_id": "camera-7"},
    "range, 0.1 %": {"meta.altitude": {"ge": 500, "lt": 501}},
    "range, 30 %": {"meta.altitude": {"ge": 300, "lt": 600}},
    "label": {"label": "star"},
    "label, best scores": {"label": {"name": "circle", "score": {"ge": 0.95}}},
    "key OR key": {"or": [{"meta.camera_id": "camera-7"}, {"meta.camera_id": "camera-8"}]},
    "range AND range": {
        "and": [{"meta.altitude": {"ge": 300, "lt": 600}}, {"meta.temperature": {"ge": 10}}]
    },
    "three, 0.07 %": {
        "and": [
            {"meta.altitude": {"ge": 0, "lt": 50}},
            {"meta.temperature": {"ge": 20, "lt": 22}},
            {"label": "star"},
        ]
    },
    "without an index": {"and": [{"latency_ms": {"ge": 30}}, {"model": "detector-1"}]},
}


class Bench:
    """Looks around in one database.

    Args:
        url: The database.
        folder: For what `InferenceReader` wants beside it.
        repeats: Repetitions of each request.
    """

    def __init__(self, url: str, folder: Path, repeats: int) -> None:
        blobs = FileBlobs(folder / "blobs")
        self._inferences = InferenceReader(url, folder / "journal", blobs, timeout_s=60)
        self._clock = Clock(url)
        self._repeats = repeats

    def compare(self, name: str) -> None:
        """Print a line for one filter."""
        inferences, where = self._inferences, FILTERS[name]
        facets = find_facets(inferences, FacetsRequest(where))
        count = inferences.count(QueryRequest(where)).count
        anchor = inferences.query(QueryRequest(where, limit=100)).inferences[-1].id
        costs = [
            self._cost(lambda: find_facets(inferences, FacetsRequest(where))),
            self._cost(lambda: find_neighbours(inferences, anchor, NeighboursRequest(where))),
            self._cost(
                lambda: find_disagreements(
                    inferences, DisagreementsRequest("detector-0", "detector-2", where)
                )
            ),
        ]
        print(
            f"  {name:20}{facets.count / max(count, 1) - 1:+8.1%}{facets.sampled:8}"
            + "".join(f" |{middle:9.1f}{worst:9.1f}" for middle, worst in costs),
            flush=True,
        )

    def close(self) -> None:
        """Close all connections."""
        self._inferences.close()
        self._clock.close()

    def _cost(self, look: Callable[[], Any]) -> tuple[float, float]:
        """Return the median and the maximum of the CPU of some repetitions, after a first one."""
        look()
        self._clock.find()
        costs = []
        for _ in range(self._repeats):
            self._clock.start()
            msgspec.json.encode(look())
            costs.append(sum(self._clock.stop()) * 1000)
        return percentile(costs, 0.5), max(costs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("bench-data"))
    parser.add_argument("--database", action="append", choices=KINDS)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with databases(arguments.folder, arguments.database or KINDS) as urls:
        for kind, url in urls.items():
            prepare(url, kind, arguments)
            print(f"{kind}, {arguments.records} records: milliseconds of CPU, p50 and max")
            print(
                f"{'':22}  count sampled |           facets |       neighbours |    disagreements"
            )
            bench = Bench(url, arguments.folder / f"{kind}-writer", arguments.repeats)
            for name in FILTERS:
                bench.compare(name)
            bench.close()


if __name__ == "__main__":
    main()
