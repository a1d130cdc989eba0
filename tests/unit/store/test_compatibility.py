"""A database that a newer version changed is used where its revision says so, and refused elsewhere."""

import threading
import time
from contextlib import closing
from types import NoneType
from typing import Any

import msgspec
import pytest

from quadriga.store.database import compatibility, database
from quadriga.store.database.compatibility import known_revisions, may_run_meanwhile
from quadriga.store.database.database import (
    REVISION,
    ReaderPool,
    execute,
    make_tables,
    migrate,
    open_writer,
    writer_engine,
    writing,
)
from quadriga.store.records.errors import NotReadyError, OtherVersionError, StoreError
from quadriga.store.records.records import Feedback
from tests.unit.store.conftest import migrate_to
from tests.unit.store_harness import StoreHarness, run_statements, select_rows, store_entries

NEXT = "2031.01"
ADDED = (
    "ALTER TABLE inference ADD COLUMN weather TEXT",
    "CREATE INDEX ix_inference_weather ON inference (weather)",
    "CREATE TABLE camera (name TEXT NOT NULL PRIMARY KEY)",
)
TAKEN = ("ALTER TABLE feedback DROP COLUMN comment",)
REFUSALS = {
    "says nothing of older versions": ((), None, "this one knows those up to"),
    "needs later code": (
        ADDED,
        "2030.02",
        "needs code of revision 2030.02 or later, as this one knows",
    ),
    "took away what this version uses": (TAKEN, REVISION, r"missing feedback\.comment"),
}


def advance(url: str, *changes: str, oldest: str | None = REVISION) -> None:
    """Change a database as a newer version does."""
    statements = [(change, ()) for change in changes]
    if oldest is not None:
        statements.append((f"INSERT INTO schema_compatibility VALUES ('{NEXT}', '{oldest}')", ()))
    run_statements(url, *statements, (f"UPDATE alembic_version SET version_num = '{NEXT}'", ()))


def test_an_older_version_uses_a_database_that_was_only_added_to(store: StoreHarness, record):
    store.commit(record(1))
    advance(store.url, *ADDED)
    store.commit(record(2))  # of a writer that ran meanwhile
    store.writer.close()
    store_entries(store.url, store.root / "later", [record(3)])  # of one that was started since
    assert migrate(store.url) == (NEXT, REVISION, True)
    make_tables(store.url)
    with closing(ReaderPool(store.url)) as readers, readers.snapshot() as connection:
        statement = "SELECT seq, weather FROM inference ORDER BY seq"
        assert execute(connection, statement).all() == [(1, None), (2, None), (3, None)]
    assert select_rows(store.url, "SELECT version_num FROM alembic_version") == [(NEXT,)]


@pytest.mark.parametrize("case", REFUSALS)
def test_a_database_that_asks_for_more_is_refused_and_left_alone(database_url: str, case: str):
    changes, oldest, message = REFUSALS[case]
    advance(database_url, *changes, oldest=oldest)
    with pytest.raises(StoreError, match=message) as raised:
        migrate(database_url)
    assert not isinstance(raised.value, NotReadyError)  # which would be tried again
    refused = pytest.raises(OtherVersionError, match=message)
    with closing(ReaderPool(database_url)) as readers, refused, readers.snapshot():
        pass
    with writer_engine(database_url) as engine:
        refused = pytest.raises(OtherVersionError, match=message)
        with refused, writing(engine):
            pass
    assert select_rows(database_url, "SELECT version_num FROM alembic_version") == [(NEXT,)]


def test_a_running_writer_waits_once_the_database_asks_for_more(store: StoreHarness, record):
    store.commit(record(1))
    advance(store.url, *TAKEN, oldest=NEXT)
    with pytest.raises(OtherVersionError, match=f"needs code of revision {NEXT}"):
        store.commit(record(2))
    assert select_rows(store.url, "SELECT seq FROM inference") == [(1,)]
    run_statements(
        store.url,
        (f"DELETE FROM schema_compatibility WHERE revision = '{NEXT}'", ()),
        (f"UPDATE alembic_version SET version_num = '{REVISION}'", ()),
        ("ALTER TABLE feedback ADD COLUMN comment TEXT DEFAULT '' NOT NULL", ()),
    )
    store.writer.drain()
    assert select_rows(store.url, "SELECT seq FROM inference ORDER BY seq") == [(1,), (2,)]


def test_a_writer_says_why_it_waits_and_that_it_goes_on(store: StoreHarness, record):
    reasons: list[type] = []
    store.writer._on_wait = lambda error: reasons.append(type(error))
    stop = threading.Event()
    thread = threading.Thread(target=store.writer.run, args=(stop,))
    thread.start()

    def wait_for(*expected: type) -> None:
        until_s = time.monotonic() + 30
        while reasons != [*expected] and time.monotonic() < until_s:
            time.sleep(0.01)
        assert reasons == [*expected]

    try:
        wait_for(NoneType)
        advance(store.url, oldest=NEXT)
        store.journal.append([record(1)])
        wait_for(NoneType, OtherVersionError)
        run_statements(store.url, ("UPDATE schema_compatibility SET oldest = ?", (REVISION,)))
        wait_for(NoneType, OtherVersionError, NoneType)
    finally:
        stop.set()
        thread.join()
    assert select_rows(store.url, "SELECT seq FROM inference") == [(1,)]


def test_open_readers_notice_that_the_database_asks_for_more(database_url: str, monkeypatch):
    monkeypatch.setattr(database, "_RECHECK_S", 0.0)
    with closing(ReaderPool(database_url, connections=1)) as readers:
        with readers.snapshot():
            pass
        advance(database_url, *ADDED)
        with readers.snapshot():
            pass
        statement = "UPDATE schema_compatibility SET oldest = ? WHERE revision = ?"
        run_statements(database_url, (statement, (NEXT, NEXT)))
        with readers.snapshot():  # the revision is the one that was right
            pass
        run_statements(database_url, ("UPDATE alembic_version SET version_num = ?", ("2031.02",)))
        with pytest.raises(OtherVersionError, match=r"at revision 2031\.02"), readers.snapshot():
            pass


def test_what_a_newer_version_journaled_is_moved_as_far_as_it_is_known(
    store: StoreHarness, record, monkeypatch
):
    """Fields that are not known are left out; a change of an unknown kind is set aside, and harms no other."""

    def encode(entry: Any) -> bytes:
        return msgspec.json.encode(entry).removesuffix(b"}") + b',"weather":{"sun":[1]}}'

    def encode_unknown(entry: Any) -> bytes:
        return b'{"seq":%d,"change":{"type":"rename","target":1}}' % entry.seq

    feedback = store.sequenced(Feedback(1, "thumbs", 1.0))
    for encoding, entry in ((encode, record(1)), (encode, feedback), (encode_unknown, record(7)), (encode, record(8))):  # fmt: skip
        monkeypatch.setattr(store.journal, "_encode", encoding)
        store.journal.append([entry])
    store.writer.drain()
    assert select_rows(store.url, "SELECT seq FROM inference ORDER BY seq") == [(1,), (8,)]
    assert select_rows(store.url, "SELECT seq, kind FROM feedback") == [(1, "thumbs")]
    (line,) = (store.root / "dead.jsonl").read_text().splitlines()
    assert msgspec.json.decode(line)["id"] == "7"
    assert '"type":"rename"' in msgspec.json.decode(line)["record"]


def test_each_revision_says_what_it_asks_for_and_never_asks_for_less(database_url: str):
    order = known_revisions()
    rows = dict(select_rows(database_url, "SELECT revision, oldest FROM schema_compatibility"))
    assert [*rows] == [*order]
    declared = {name: compatibility._declared_oldest(name) for name in rows}
    assert rows == declared
    positions = [order.index(oldest) for oldest in rows.values()]
    assert positions == sorted(positions)
    assert all(order.index(oldest) <= order.index(name) for name, oldest in rows.items())
    assert order[-1] == REVISION


def test_servers_of_which_revisions_may_run_during_a_migration():
    assert may_run_meanwhile(REVISION, REVISION)
    assert not may_run_meanwhile("2027.09", "2027.10")


@pytest.fixture
def previous_url(postgres, monkeypatch: pytest.MonkeyPatch):
    """Yield a PostgreSQL of the revision before the last."""
    url = postgres.create(migrated=False)
    migrate_to(url, known_revisions()[-2], monkeypatch)
    yield url
    postgres.drop(url)


WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


def wait_for_a_waiting_lock(url: str) -> None:
    until_s = time.monotonic() + 30
    while select_rows(url, WAITING) == [(0,)] and time.monotonic() < until_s:
        time.sleep(0.01)


def test_a_migration_waits_for_transactions_that_write(previous_url: str):
    engine = open_writer(previous_url)
    migration = threading.Thread(target=migrate, args=(previous_url,))
    with engine.begin() as connection:
        database.lock_rows(connection, exclusive=False)
        migration.start()
        wait_for_a_waiting_lock(previous_url)
        assert compatibility.marked_revision(connection) != REVISION
    migration.join()
    with writing(engine) as connection:
        assert compatibility.marked_revision(connection) == REVISION
    engine.dispose()


def test_a_migration_lets_others_read_while_it_waits_for_a_long_query(
    previous_url: str, monkeypatch
):
    monkeypatch.setattr(database, "_LOCK_WAIT_MS", 50)
    monkeypatch.setattr(database, "_LOCK_PAUSE_S", 0.01)
    migration = threading.Thread(target=migrate, args=(previous_url,))
    with writer_engine(previous_url) as engine, engine.begin() as connection:
        execute(connection, "LOCK TABLE alembic_version IN SHARE MODE")
        migration.start()
        wait_for_a_waiting_lock(previous_url)
        # Behind a migration that waits on, this would wait for the lock as well.
        assert select_rows(previous_url, "SELECT count(*) FROM inference") == [(0,)]
        time.sleep(0.2)
        assert migration.is_alive()
    migration.join()
    assert select_rows(previous_url, "SELECT version_num FROM alembic_version") == [(REVISION,)]
