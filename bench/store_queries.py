"""What a search costs: ten named queries on each database, beside the plain SQL for the same question.

The store is made once, by the real writer, in a folder that is kept. Each repetition asks for other
values. A query is timed from its filter as JSON to the page of 50 inferences, newest first, as JSON; the
plain SQL joins the same tables as one would write it by hand, and fetches the rows. CPU is that of this
process, and of the PostgreSQL process that serves it. Deep pages begin where 20,000 matches are passed
(or half of all, if there are fewer): by cursor, and by OFFSET in the plain SQL.

Flags: `--records 10000000` for ten million, with a `--folder` for each size (1 M takes 2 GB on each
database and some minutes); `--database sqlite` or `postgresql` for one of them; `--only NAME` for some of
the queries; `--repeats N` and `--seconds S` bound what is asked of each.
"""

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from measuring import percentile
from store_records import CAMERAS, END_MS, KINDS, LABELS, SPAN_MS, Clock, build, databases, records

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.database.database import ReaderPool, execute
from quadriga.store.query.inferences import InferenceReader, QueryRequest
from quadriga.store.records.errors import QueryTimeoutError
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import timestamp_text

LIMIT, STEP = 50, 250
"""Inferences of a page, and of those on the way to a deep one."""
DEPTH, DEEP_REPEATS = 20_000, 5
DAY_MS = 86_400_000
_BY_HAND = {
    "application_name": "quadriga",
    "prepare_threshold": None,
    "options": "-c jit=off -c statement_timeout=30000",
}
"""Options of connections for plain SQL, whose plans are PostgreSQL's choice."""

_STR = "JOIN meta_str AS {0} ON {0}.seq = i.seq JOIN meta_key AS {0}_key ON {0}_key.id = {0}.key"
_NUM = _STR.replace("meta_str", "meta_num")
_CAMERA = _STR.format("c")
_ALTITUDE = _NUM.format("a")
_WITHIN = (
    "SELECT d.seq FROM meta_num AS d JOIN meta_key AS d_key ON d_key.id = d.key"
    " WHERE d_key.path = '{}' AND d.val BETWEEN ? AND ?"
)
_IS_CAMERA = "c_key.path = 'camera_id' AND c.val = ?"
_IS_ALTITUDE = "a_key.path = 'altitude' AND a.val >= ? AND a.val < ?"


class Question(NamedTuple):
    """One question with its values, in both forms."""

    where: Any
    """A filter."""
    joins: str
    condition: str
    """Condition in plain SQL, with `?` for values."""
    values: tuple[Any, ...]


class Start(NamedTuple):
    """Start of a page of a question."""

    question: Question
    cursor: str | None = None
    offset: int = 0
    """Matches before it."""


Ask = Callable[[random.Random], Question]


def newest(_: random.Random) -> Question:
    """Ask for all."""
    return Question({}, "", "1 = 1", ())


def day(chance: random.Random) -> Question:
    """Ask for a day."""
    start = END_MS - chance.randrange(1, SPAN_MS // DAY_MS) * DAY_MS
    end = start + DAY_MS
    where = {"ts": {"ge": timestamp_text(start), "lt": timestamp_text(end)}}
    return Question(
        where, "", "i.seq >= ? AND i.seq < ?", (smallest_id_at(start), smallest_id_at(end))
    )


def model(chance: random.Random) -> Question:
    """Ask for a model."""
    name = f"detector-{chance.randrange(3)}"
    return Question({"model": name}, "JOIN model AS k ON k.id = i.model_id", "k.name = ?", (name,))


def key(chance: random.Random) -> Question:
    """Ask for a camera."""
    camera = f"camera-{chance.randrange(CAMERAS)}"
    return Question({"meta.camera_id": camera}, _CAMERA, _IS_CAMERA, (camera,))


def altitudes(part: float) -> Ask:
    """Return what asks for a part of the altitudes."""

    def ask(chance: random.Random) -> Question:
        low = round(chance.uniform(0, 1000 * (1 - part)), 2)
        values = low, low + 1000 * part
        where = {"meta.altitude": {"ge": values[0], "lt": values[1]}}
        return Question(where, _ALTITUDE, _IS_ALTITUDE, values)

    return ask


def both(first: Ask, second: Ask) -> Ask:
    """Return what asks for what two ask for."""

    def ask(chance: random.Random) -> Question:
        left, right = first(chance), second(chance)
        return Question(
            {"and": [left.where, right.where]},
            f"{left.joins} {right.joins}",
            f"{left.condition} AND {right.condition}",
            left.values + right.values,
        )

    return ask


def key_or_range(chance: random.Random) -> Question:
    """Ask for a camera, or for a thousandth of the altitudes."""
    sides = [key(chance), altitudes(0.001)(chance)]
    either = " OR ".join(
        f"i.seq IN (SELECT i.seq FROM inference AS i {side.joins} WHERE {side.condition})"
        for side in sides
    )
    where = {"or": [side.where for side in sides]}
    return Question(where, "", f"({either})", sides[0].values + sides[1].values)


def label(chance: random.Random) -> Question:
    """Ask for the best scores of a label."""
    name, score = chance.choice(LABELS), round(chance.uniform(0.94, 0.96), 3)
    return Question(
        {"label": {"name": name, "score": {"ge": score}}},
        "JOIN pred AS p ON p.seq = i.seq JOIN label AS l ON l.id = p.label",
        "l.name = ? AND p.score >= ?",
        (name, score),
    )


def near(chance: random.Random) -> Question:
    """Ask for what lies within 10 km of a place."""
    north, east = chance.uniform(45.5, 54.5), chance.uniform(0.5, 14.5)
    box = (north - 0.09, north + 0.09, east - 0.14, east + 0.14)  # some 10 km each way
    return Question(
        {"geo": {"near": [north, east], "within": "10km"}},
        "",
        f"i.seq IN ({_WITHIN.format('latitude')}) AND i.seq IN ({_WITHIN.format('longitude')})",
        box,
    )


QUERIES: dict[str, Ask] = {
    "newest": newest,
    "a model in a day": both(day, model),
    "key": key,
    "range, 0.1 %": altitudes(0.001),
    "range, 30 %": altitudes(0.3),
    "key AND range, 0.05 %": both(key, altitudes(0.1)),
    "key in a day": both(key, day),
    "key OR range": key_or_range,
    "label, best scores": label,
    "within 10 km": near,
}


class Costs:
    """Wall and CPU milliseconds of repetitions, and rows of their pages."""

    def __init__(self) -> None:
        self.wall_ms: list[float] = []
        self.cpu_ms: list[float] = []
        self.rows: list[int] = []

    def __str__(self) -> str:
        """Give p50 and p99 of both times."""
        return "".join(
            f"{percentile(values, part):9.2f}"
            for values in (self.wall_ms, self.cpu_ms)
            for part in (0.5, 0.99)
        )


class Bench:
    """Asks one database.

    Args:
        url: The database.
        folder: For what `Inferences` wants beside it.
        arguments: Of the command line.
    """

    def __init__(self, url: str, folder: Path, arguments: argparse.Namespace) -> None:
        blobs = FileBlobs(folder / "blobs")
        self._inferences = InferenceReader(url, folder / "journal", blobs, timeout_s=60)
        self._readers = ReaderPool(url, timeout_s=30)
        self._engine = sa.create_engine(url, connect_args=_BY_HAND) if "psycopg" in url else None
        self._clock = Clock(url)
        self._arguments = arguments

    def compare(self, name: str) -> None:
        """Print one line for the first page of a query, and one for a deep one."""
        for connect in (self._page, self._plain):
            connect(Start(newest(random.Random())))
        chance = random.Random(name)
        questions = [QUERIES[name](chance) for _ in range(self._arguments.repeats)]
        first = [Start(question) for question in questions]
        self._line(name, self._measured(self._page, first), self._measured(self._plain, first))
        deep = [self._deep(question) for question in questions[:DEEP_REPEATS]]
        depth = percentile([start.offset for start in deep], 0.5)
        self._line(
            f"  from {depth:.0f} on",
            self._measured(self._page, deep * 10),
            self._measured(self._plain, deep),
        )

    def close(self) -> None:
        """Close all connections."""
        self._inferences.close()
        self._readers.close()
        if self._engine:
            self._engine.dispose()
        self._clock.close()

    @staticmethod
    def _line(name: str, ours: Costs, plain: Costs) -> None:
        ratio = percentile(plain.cpu_ms, 0.5) / percentile(ours.cpu_ms, 0.5)
        rows, count = percentile(ours.rows, 0.5), len(plain.wall_ms)
        print(f"  {name:24}{rows:5.0f}{ours} |{plain}{count:5}{ratio:9.1f}", flush=True)

    def _measured(self, ask: Callable[[Start], int], starts: list[Start]) -> Costs:
        costs, until = Costs(), time.perf_counter() + self._arguments.seconds
        for number, start in enumerate(starts):
            if number and time.perf_counter() > until:
                break
            self._clock.start()
            begun = time.perf_counter()
            try:
                costs.rows.append(ask(start))
            except (QueryTimeoutError, sa.exc.OperationalError):  # so long it took at least
                until = 0.0
            costs.wall_ms.append((time.perf_counter() - begun) * 1000)
            costs.cpu_ms.append(sum(self._clock.stop()) * 1000)
        return costs

    def _page(self, start: Start) -> int:
        request = QueryRequest(start.question.where, limit=LIMIT, cursor=start.cursor)
        page = self._inferences.query(request)
        msgspec.json.encode(page)
        return len(page.inferences)

    def _plain(self, start: Start) -> int:
        question = start.question
        text = (
            f"SELECT i.* FROM inference AS i {question.joins} WHERE {question.condition}"
            f" ORDER BY i.seq DESC LIMIT {LIMIT} OFFSET {start.offset}"
        )
        with self._engine.connect() if self._engine else self._readers.snapshot() as connection:
            return len(execute(connection, text, question.values).all())

    def _deep(self, question: Question) -> Start:
        """Walk to a deep page."""
        starts = [Start(question)]
        while starts[-1].offset < DEPTH:
            request = QueryRequest(question.where, limit=STEP, cursor=starts[-1].cursor)
            page = self._inferences.query(request)
            if page.cursor is None:
                return starts[len(starts) // 2]
            offset = starts[-1].offset + len(page.inferences)
            starts.append(Start(question, page.cursor, offset))
        return starts[-1]


def prepare(url: str, kind: str, arguments: argparse.Namespace) -> None:
    """Make the store, if it was not made before."""
    made = arguments.folder / f"{kind}-{arguments.records}"
    if made.exists():
        return
    begun = time.perf_counter()
    done = build(url, arguments.folder / f"{kind}-writer", records(arguments.records))
    if kind == "postgresql":
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
        engine.dispose()
    cpu_us = (done.client_s + done.server_s) / done.records * 1e6
    print(f"{kind}: {done.records} records stored in {time.perf_counter() - begun:.0f} s, of which"
          f" the writer {cpu_us:.1f} us CPU a record")  # fmt: skip
    made.touch()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("bench-data"))
    parser.add_argument("--database", action="append", choices=KINDS)
    parser.add_argument("--only", action="append", choices=QUERIES)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=3)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with databases(arguments.folder, arguments.database or KINDS) as urls:
        for kind, url in urls.items():
            prepare(url, kind, arguments)
            print(f"{kind}, {arguments.records} records: milliseconds, wall and CPU")
            both = "wall p50      p99  CPU p50      p99"
            print(f"{'':26} rows {both} |plain SQL: {both}    n    ratio")
            bench = Bench(url, arguments.folder / f"{kind}-writer", arguments)
            for name in arguments.only or QUERIES:
                bench.compare(name)
            bench.close()


if __name__ == "__main__":
    main()
