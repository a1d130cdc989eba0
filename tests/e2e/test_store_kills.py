"""What is acknowledged is stored once, whatever is killed: the server, its writer, or PostgreSQL.

`--log-cli-level=INFO` shows how much that was.
"""

import itertools
import logging
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quadriga.engine.config.settings import Settings
from quadriga.engine.processes.supervisor import ChildTask
from quadriga.store.database.database import ReaderPool
from quadriga.store.journal.journal import Journal
from quadriga.store.records.errors import NotReadyError
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import InferenceRecord, InputReference, ModelReference
from tests.clients import Clients
from tests.postgres_server import PostgresServer
from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess

KILLS = [3, 20]
OUTAGES = [2, 11]
"""One before the start, the others while serving."""
MODEL = SAMPLE_MODELS / "shapes-classifier"
_log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def urls(postgres, tmp_path) -> Iterator[dict[str, str]]:
    """A database of each kind that nobody has used yet."""
    url = postgres.create(migrated=False)
    yield {"sqlite": f"sqlite:///{tmp_path}/store.db", "postgresql": url}
    postgres.drop(url)


class Stored:
    """Looks into a database directly; while it is away or has no tables, nothing is there."""

    def __init__(self, url: str) -> None:
        self._readers = ReaderPool(url, connections=1)

    def _rows(self, statement: str) -> list[Any]:
        try:
            with self._readers.snapshot() as connection:
                return list(connection.exec_driver_sql(statement))
        except NotReadyError:
            return []

    def ids(self) -> set[int]:
        """Return the ids of what is stored."""
        return {seq for (seq,) in self._rows("SELECT seq FROM inference")}

    def check(self, acknowledged: Collection[int]) -> int:
        """Check that everything acknowledged is there once, and tell how much is there."""
        rows = self._rows("SELECT seq, meta FROM inference")
        assert set(acknowledged) <= {seq for seq, _ in rows}, "an acknowledged inference is lost"
        assert len({meta for _, meta in rows}) == len(rows), "an inference is stored twice"
        ((counted,),) = self._rows("SELECT sum(n) FROM rollup")
        assert int(counted) == len(rows), "an inference is counted twice, or not"
        indexed = self._rows(
            "SELECT d.seq FROM meta_str AS d JOIN meta_key AS k ON k.id = d.key WHERE k.path = 'run'"
        )
        assert sorted(indexed) == sorted((seq,) for seq, _ in rows), "rows and their index differ"
        return len(rows)

    def close(self) -> None:
        """Close the connection."""
        self._readers.close()


def on_each(urls: dict[str, str], story: Callable[[str, str, Stored], None]) -> None:
    """Tell a story on each database, at once."""

    def tell(kind: str, url: str) -> None:
        with closing(Stored(url)) as stored:
            story(kind, url, stored)

    with ThreadPoolExecutor(len(urls)) as pool:
        for future in [pool.submit(tell, kind, url) for kind, url in urls.items()]:
            future.result()


@pytest.mark.parametrize("kills", KILLS)
def test_every_acknowledged_inference_survives_kills_of_the_group_once(
    urls, shape, tmp_path, kills
):
    def story(kind: str, url: str, stored: Stored) -> None:
        chance = random.Random(kind)
        server = ServerProcess(tmp_path / kind, MODEL, "--database", url)
        acknowledged: list[int] = []
        for _ in range(kills):
            server.start(ready=False)
            clients = Clients(server, shape[0], 3)
            enough = chance.randrange(10, 120)
            server.wait_until(lambda clients=clients, to=enough: len(clients.acknowledged) > to)
            time.sleep(chance.uniform(0, 0.1))
            server.kill()
            clients.finish()
            acknowledged += map(int, clients.acknowledged)
        server.start()
        assert server.stop() == 0
        count = stored.check(acknowledged)
        _log.info("%s: %d acknowledged, %d stored", kind, len(acknowledged), count)

    on_each(urls, story)


class Appender:
    """Appends records to a journal until it is told to stop, as a worker does."""

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory, worker=0, segment_bytes=100_000)
        self._ids = IdSource(0)
        self._stop = threading.Event()
        self.acknowledged: list[int] = []
        self._thread = threading.Thread(target=self._append)
        self._thread.start()

    def _append(self) -> None:
        for number in itertools.count():
            record = InferenceRecord(
                seq=self._ids.next(),
                request_id=f"request-{number}",
                image_no=0,
                model=ModelReference("shapes-detector", "1", "ab" * 32),
                task="OBJECT_DETECTION",
                action="predict",
                latency_ms=4.2,
                input=InputReference("image"),
                predictions=[{"label": f"label-{number % 100}", "score": 0.5}],
                metadata={"run": "appended", "sent": number, f"key-{number % 50}": number},
            )
            self._journal.append([record])
            self.acknowledged.append(record.seq)
            if self._stop.wait(0.002):
                return

    def finish(self) -> None:
        """Stop and close the journal."""
        self._stop.set()
        self._thread.join()
        self._journal.close()


def start_writer(settings: Settings) -> subprocess.Popen[bytes]:
    """Start the server's writer without the server."""
    writer = subprocess.Popen(
        [sys.executable, "-P", "-m", "quadriga.engine.processes.worker"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    assert writer.stdin is not None
    writer.stdin.write(msgspec.json.encode(ChildTask("writer", settings)) + b"\n")
    writer.stdin.flush()
    return writer


def wait_until(condition: Callable[[], bool], timeout_s: float, description: str) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"expected {description} within {timeout_s:g} s"
        time.sleep(0.05)


@pytest.mark.parametrize("kills", KILLS)
def test_every_acknowledged_inference_survives_kills_of_the_writer_once(urls, tmp_path, kills):
    def story(kind: str, url: str, stored: Stored) -> None:
        chance = random.Random(kind)
        settings = Settings(data=str(tmp_path / kind), database=url)
        appender = Appender(settings.journal_directory)
        try:
            for number in range(kills):
                count_before = len(stored.ids())
                writer = start_writer(settings)
                try:
                    if number % 5:  # at work; else, as it starts
                        wait_until(
                            lambda to=count_before: len(stored.ids()) > to, 60, "the writer to work"
                        )
                    time.sleep(chance.uniform(0, 0.2))
                finally:
                    writer.kill()
                    writer.communicate()
        finally:
            appender.finish()
        writer = start_writer(settings)
        writer.communicate(timeout=60)  # closes its input: it moves the rest and ends
        assert writer.returncode == 0
        assert stored.check(appender.acknowledged) == len(appender.acknowledged)
        assert list(settings.journal_directory.glob("*.journal")) == []
        _log.info("%s: %d acknowledged and stored", kind, len(appender.acknowledged))

    on_each(urls, story)


@pytest.mark.parametrize("outages", OUTAGES)
def test_no_inference_fails_while_postgresql_is_away_and_all_are_there_soon_after(
    postgres, shape, tmp_path, outages
):
    url = postgres.create(migrated=False)
    stored = Stored(url)
    chance = random.Random(1)
    server = ServerProcess(tmp_path / "data", MODEL, "--database", url).start()
    assert server.stop() == 0
    postgres.stop()  # it is not there at the start either, but the data folder has its worker numbers
    server.start()
    clients = Clients(server, shape[0], 2)
    delays_s = []
    try:
        for number in range(outages):
            seen = len(clients.acknowledged)
            server.wait_until(lambda to=seen: len(clients.acknowledged) > to + 30)
            time.sleep(2 if number == 1 else chance.uniform(0, 0.5))
            postgres.start()
            begun = time.monotonic()
            waiting = set(map(int, clients.acknowledged))
            wait_until(
                lambda expected_ids=waiting: expected_ids <= stored.ids(),
                60,
                "all rows to be there",
            )
            delays_s.append(time.monotonic() - begun)
            time.sleep(chance.uniform(0, 0.2))
            if number < outages - 1:
                postgres.stop(chance.choice(["fast", "immediate"]))
    finally:
        clients.finish()
        status = server.stop()
    assert clients.failed == clients.refused == []
    assert status == 0
    count = stored.check(list(map(int, clients.acknowledged)))
    assert count == len(clients.acknowledged)
    stored.close()
    _log.info("%d stored, at most %.1f s after an outage", count, max(delays_s))
