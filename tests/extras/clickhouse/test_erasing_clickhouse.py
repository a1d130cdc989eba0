"""Erasures reach ClickHouse, and wait for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quadriga.extras.clickhouse.sending import ClickHouseSender
from quadriga.store.changes.erasures import ErasureReceipt
from quadriga.store.maintenance.eraser import ErasedReplica, Eraser
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import (
    Feedback,
    JournaledChange,
    MetadataChange,
    TruthStatement,
)
from tests.background import until
from tests.clickhouse_server import ClickHouseServer
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness


@pytest.fixture(scope="module")
def server() -> Iterator[ClickHouseServer]:
    running = ClickHouseServer()
    yield running
    running.close()


def test_rows_go_once_the_journal_is_there(
    server: ClickHouseServer, file_store: StoreHarness
) -> None:
    store, ids, database = file_store, IdSource(0), server.create()
    url = server.url(database)
    sender = ClickHouseSender(store.journal_directory, url)
    replica = ErasedReplica(sender.sent_until, sender.erase)
    store.eraser = Eraser(
        store.erasures, store.journal_directory, store.blobs, store.jobs, replica=replica
    )
    mine, other = (
        make_record(ids.next(), metadata={"person": person}, request_id=f"r-{person}")
        for person in ("amy-1", "bob-1")
    )
    changes: list[Any] = []
    for record, person in ((mine, "amy-1"), (other, "bob-1")):
        changes += [
            MetadataChange(record.seq, {"note": person}),
            Feedback(record.seq, "thumbs", 1.0, person),
            TruthStatement("id", str(record.seq), [{"label": person}]),
            TruthStatement("meta.person", person, [{"label": person}]),
            TruthStatement("request_id", record.request_id, [{"label": person}]),
        ]
    store.commit(mine, other, *(JournaledChange(ids.next(), change) for change in changes))
    store.erasures.submit([mine.seq], ["meta.person"], [("meta.person", "amy-1")])

    def receipt() -> ErasureReceipt:
        return store.erasures.all()[0]

    until(lambda: store.writer.erase() and bool(receipt().waiting))
    assert "ClickHouse has not taken the journal yet" in receipt().waiting
    assert _holds(store.journal_directory, b"amy-1")
    sender.drain()

    def is_over() -> bool:
        store.journal.close_on_request()
        store.writer.drain()
        return not store.writer.erase()

    until(is_over)
    assert receipt().state == "complete"
    assert not _holds(store.root, b"amy-1")
    for table in ("inference", "metadata_change", "feedback", "truth"):
        rows = str(server.query(database, f"SELECT * FROM {table}"))
        assert "amy-1" not in rows
        assert str(mine.seq) not in rows
        assert "bob-1" in rows
    assert sender.drain() == 0


def _holds(folder: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in folder.rglob("*") if path.is_file())
