"""What the scope of a team costs: the first page of each filter without and with it, by turns, on each database.

The store has the records of `bench/store_queries.py`, each of one of `--teams` teams, of which every one has as many.
It is made once, in a folder that is kept. Three readers are asked for the newest 50 matches: without a scope, with one
that admits all models, which finds the same, and with that of one team. The last reads its own part of the indexes of
metadata and labels, and that of its models otherwise. CPU is that of the middle repetition.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
from store_queries import KINDS, LIMIT, QUERIES, prepare
from store_records import Clock, databases, percentile, records

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.query.inferences import InferenceReader, QueryRequest
from quadriga.store.records.records import InferenceRecord
from quadriga.store.records.scope import EVERYTHING, Scope


def of_teams(made: Iterator[InferenceRecord], teams: int) -> Iterator[InferenceRecord]:
    """Give each record to one of some teams."""
    chance = random.Random(2)
    for record in made:
        yield msgspec.structs.replace(record, team=f"team-{chance.randrange(teams)}")


class Comparison:
    """One database, asked without a scope, with one that admits all its models, and with that of one team.

    Args:
        url: The database.
        folder: For what a reader wants beside it.
    """

    def __init__(self, url: str, folder: Path) -> None:
        blobs = FileBlobs(folder / "blobs")
        reader = InferenceReader(url, folder / "journal", blobs, timeout_s=60)
        self._clock = Clock(url)
        self._reader = reader
        scopes = (EVERYTHING, Scope(models=("*",)), Scope("team-0"))
        self._readers = [reader.within(scope) for scope in scopes]

    def measure(self, name: str, repeats: int) -> None:
        """Print one line for a filter."""
        chance = random.Random(name)
        cpu_ms: list[list[float]] = [[] for _ in self._readers]
        rows: list[list[float]] = [[] for _ in self._readers]
        for number in range(-3, repeats):  # the first ones find connections
            where = QUERIES[name](chance).where
            for position, reader in enumerate(self._readers):
                if number <= 0:
                    self._clock.find()
                self._clock.start()
                page = reader.query(QueryRequest(where, limit=LIMIT))
                msgspec.json.encode(page)
                used_ms = sum(self._clock.stop()) * 1000
                if number >= 0:
                    cpu_ms[position].append(used_ms)
                    rows[position].append(len(page.inferences))
        plain, admitting, of_team = (percentile(values, 0.5) for values in cpu_ms)
        counts = "".join(f"{percentile(values, 0.5):6.0f}" for values in (rows[0], rows[2]))
        figures = "".join(f"{value:9.2f}" for value in (plain, admitting, of_team))
        print(
            f"  {name:24}{counts}{figures}{admitting / plain:9.2f}{of_team / plain:9.2f}",
            flush=True,
        )

    def close(self) -> None:
        """Close all connections."""
        self._reader.close()
        self._clock.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--teams", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path("bench-data/teams"))
    parser.add_argument("--database", action="append", choices=KINDS)
    parser.add_argument("--only", action="append", choices=QUERIES)
    parser.add_argument("--repeats", type=int, default=100)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with databases(arguments.folder, arguments.database or KINDS) as urls:
        for kind, url in urls.items():
            made = of_teams(records(arguments.records), arguments.teams)
            prepare(url, kind, arguments, made)
            print(
                f"{kind}, {arguments.records} records of {arguments.teams} teams: milliseconds of CPU"
            )
            print(f"{'':26}  rows, of team    none      all     team  all/none team/none")
            comparison = Comparison(url, arguments.folder / f"{kind}-writer")
            for name in arguments.only or QUERIES:
                comparison.measure(name, arguments.repeats)
            comparison.close()


if __name__ == "__main__":
    main()
