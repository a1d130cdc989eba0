"""How the cost of a question grows with the store: CPU ms at 3,000, 30,000 and 300,000 inferences, and how often as much at the last.

A model and its canary answer images of their own but for one, beside as many other models as asked for, over 30 days. Each
store is made once, by the real writer, and kept. A question is asked in this process, as a request would ask it, until it was
asked five times or for some seconds; its figure is the median of the CPU of this process, and of PostgreSQL's that serves it.
`partial` marks answers of what was looked at in the time that a search has; the status is 1 where a question was refused.
The last two rows are 250 inferences that are stored, and as many of the oldest that retention removes, both rolled back.

Flags: `--folder DIR` (bench-data/growth), `--records N ...`, `--models N` (3), `--database sqlite postgresql`, `--only NAME`.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import sqlalchemy as sa
from prometheus_client import generate_latest
from store_records import CAMERAS, END_MS, KINDS, SPAN_MS, Clock, build, databases, record

from quadriga.engine.console.pages.inferences import BINS, VALUES
from quadriga.engine.measures.metrics import request_metrics
from quadriga.engine.measures.model_counts import ModelCounters
from quadriga.engine.measures.shared_counts import SharedCounts
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.browsing.comparison import (
    ComparisonRequest,
    DisagreementsRequest,
    compare,
    find_disagreements,
)
from quadriga.store.browsing.facets import FacetsRequest, find_facets
from quadriga.store.changes.applying import delete_inferences
from quadriga.store.database.database import execute, writer_engine
from quadriga.store.database.rows import NameIds, RowBatch
from quadriga.store.maintenance.aggregates import AggregateRequest, aggregate
from quadriga.store.maintenance.retention import STEP_ROWS
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.model_counts import stored_versions
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import QueryError, QueryTimeoutError
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import InferenceRecord, JournaledRecord, ModelReference

SIZES = (3_000, 30_000, 300_000)
REPEATS, SECONDS = 5, 20.0
CANARY_SHARE = 200
"""One in so many inferences is of the canary."""


def made(count: int, models: int) -> Iterator[InferenceRecord]:
    """Make records of a model, its canary, and others, whose images are each their own but for one that both answered."""
    chance = random.Random(1)
    names = [
        ModelReference(f"other-{number}", "1", f"{number:064x}") for number in range(models - 2)
    ]
    live, canary = (ModelReference("detector", version, version * 64) for version in ("1", "2"))
    shared = None
    for number in range(count):
        moment = END_MS - SPAN_MS + number * SPAN_MS // count
        inference = record(smallest_id_at(moment) + number % 4096, chance)
        is_canary = number % CANARY_SHARE == CANARY_SHARE - 1
        model = canary if is_canary else chance.choice([live, live, *names]) if number else live
        if model is live and shared is None:
            shared = inference.input
        image = shared if is_canary and number < CANARY_SHARE else inference.input
        yield msgspec.structs.replace(inference, model=model, input=image)


def questions(
    reader: InferenceReader, models_served: int
) -> dict[str, Callable[[random.Random], Any]]:
    """Return what is asked, each with values of its own; metrics are those of models that answered nothing yet."""
    counts = SharedCounts()
    for number in range(models_served):
        ModelCounters(counts, f"model-{number}", "1")
    registry = SimpleNamespace(collect=lambda: request_metrics(counts.totals()))

    def page(where: Any) -> Any:
        return reader.query(QueryRequest(where, limit=50))

    def models(_: random.Random) -> None:
        with reader.snapshot() as connection:
            stored_versions(connection, reader.scope)

    def counted(**fields: Any) -> Any:
        return aggregate(reader, msgspec.convert(fields, AggregateRequest))

    day, month, year = (
        {"ts": {"ge": f"{begin}T00:00:00Z", "lt": "2026-02-02T00:00:00Z"}}
        for begin in ("2026-02-01", "2026-01-03", "2025-02-02")
    )

    def list_page(_: random.Random) -> None:
        page({})
        find_facets(reader, FacetsRequest({}, None, VALUES, BINS))

    return {
        "newest": lambda _: page({}),
        "list page": list_page,
        "equality": lambda chance: page({"meta.camera_id": f"camera-{chance.randrange(CAMERAS)}"}),
        "not": lambda _: page({"not": {"meta.camera_id": {"exists": True}}}),
        "contains": lambda chance: page(
            {"meta.camera_id": {"contains": f"-{chance.randrange(90)}x"}}
        ),
        "latency": lambda _: page({"latency_ms": {"gt": 1e6}}),
        "unlabelled": lambda _: page({"ground_truth": {"exists": False}}),
        "count": lambda chance: reader.count(
            QueryRequest({"meta.camera_id": f"camera-{chance.randrange(CAMERAS)}"})
        ),
        "group by key": lambda _: counted(group=["meta.camera_id"]),
        "latency of a month": lambda _: counted(where=month, group=["model"]),
        "latency of a year": lambda _: counted(where=year, group=["model"]),
        "bars of a day": lambda _: counted(
            where=day, group=[{"time": "15m"}, "model"], metrics=["count", "error_rate"]
        ),
        "models": models,
        "metrics": lambda _: generate_latest(registry),
        "facets": lambda _: find_facets(reader, FacetsRequest({})),
        "comparison": lambda _: compare(reader, ComparisonRequest("detector:1", "detector:2")),
        "its other side": lambda _: compare(reader, ComparisonRequest("detector:2", "detector:1")),
        "disagreements": lambda _: find_disagreements(
            reader, DisagreementsRequest("detector:1", "detector:2")
        ),
    }


def cost_ms(ask: Callable[[random.Random], Any], clock: Clock) -> tuple[float, float, str]:
    """Return the CPU of a question and its longest time, ms, and what is to be said of its answer."""
    chance, longest, remark = random.Random(7), 0.0, ""
    spent: list[float] = []
    begun = time.monotonic()
    while len(spent) < REPEATS and (not spent or time.monotonic() - begun < SECONDS):
        clock.start()
        at = time.monotonic()
        try:
            answer = ask(chance)
            remark = "partial" if getattr(answer, "partial", False) else ""
        except (QueryError, QueryTimeoutError) as error:
            remark = f"refused: {error}"[:90]
        longest = max(longest, time.monotonic() - at)
        spent.append(sum(clock.stop()) * 1000)
    return statistics.median(spent), longest * 1000, remark


def keeping(engine: sa.Engine, clock: Clock) -> dict[str, Callable[[random.Random], None]]:
    """Return what stores as many rows as a step of retention, and what removes as many."""
    ids = (smallest_id_at(END_MS + number) for number in range(STEP_ROWS))
    journaled = [
        msgspec.json.encode(msgspec.structs.replace(record, seq=id_))
        for id_, record in zip(ids, made(STEP_ROWS, 3), strict=True)
    ]
    decoder = msgspec.json.Decoder(JournaledRecord)

    def rolled_back(change: Callable[[sa.Connection, NameIds], object]) -> None:
        with engine.connect() as connection:
            names = NameIds(connection)
            clock.start()
            change(connection, names)
            connection.rollback()

    def store(connection: sa.Connection, names: NameIds) -> None:
        RowBatch(names).insert(connection, map(decoder.decode, journaled))

    def remove(connection: sa.Connection, names: NameIds) -> None:
        oldest = "SELECT seq FROM inference ORDER BY seq LIMIT ?"
        seqs = execute(connection, oldest, (STEP_ROWS,)).scalars().all()
        delete_inferences(connection, names, seqs)

    return {"storing": lambda _: rolled_back(store), "retention": lambda _: rolled_back(remove)}


Cost = tuple[float, float, str]
"""CPU ms, the longest time in ms, and what is to be said of the answer."""


def measure(url: str, folder: Path, options: argparse.Namespace) -> dict[str, Cost]:
    """Return the cost of each question of one store."""
    reader = InferenceReader(url, folder / "journal", FileBlobs(folder / "blobs"))
    with closing(reader), closing(Clock(url)) as clock, writer_engine(url) as engine:
        reader.query(QueryRequest({}))
        by_name = {**questions(reader, options.models), **keeping(engine, clock)}
        return {
            name: cost_ms(ask, clock)
            for name, ask in by_name.items()
            if options.only in (None, name)
        }


def main() -> None:
    """Measure, print, and end with status 1 if a question was refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("bench-data/growth"))
    parser.add_argument("--records", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--database", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--only")
    options = parser.parse_args()
    is_refused = False
    for database in options.database:
        costs: list[dict[str, Cost]] = []
        for count in options.records:
            folder = options.folder / f"{count}-{options.models}"
            folder.mkdir(parents=True, exist_ok=True)
            with databases(folder, [database]) as urls:
                marker = folder / f"{database}.made"
                if not marker.exists():
                    build(urls[database], folder, made(count, options.models))
                    marker.touch()
                costs.append(measure(urls[database], folder, options))
        counts = "".join(f"{count:>12,}" for count in options.records)
        print(f"{database + ', CPU ms':22}{counts}{'times':>8}{'longest s':>11}")
        for name, (most, longest, remark) in costs[-1].items():
            figures = "".join(f"{cost[name][0]:12.2f}" for cost in costs)
            times = most / costs[0][name][0]
            print(f"{name:22}{figures}{times:8.1f}{longest / 1000:11.2f}  {remark}")
            is_refused |= "refused" in remark
    sys.exit(1 if is_refused else 0)


if __name__ == "__main__":
    main()
