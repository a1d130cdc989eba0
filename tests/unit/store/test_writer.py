import os
import random
import re
import time
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from quadriga.store.database import database
from quadriga.store.database.database import open_writer
from quadriga.store.journal.journal import Journal, journal_id, segment_paths
from quadriga.store.records.errors import StoreError
from quadriga.store.writing.writer import Writer
from tests.background import in_background, until
from tests.unit.store_harness import StoreHarness, run_statements

KEYS = "SELECT path, type, val, seq FROM {} JOIN meta_key ON key = id ORDER BY path, type, val, seq"


def test_a_record_becomes_a_row_and_what_it_is_found_by(store: StoreHarness, record) -> None:
    metadata = {"a": {"b": 1, "l": [1]}, "s": "x" * 300, "t": True, "n": None}
    scored = [
        {"label": "circle", "score": 0.5},
        {"label": "circle", "score": 0.75},
        {"label": "square"},
        {"label": 3, "score": 1},
        {"text": "no label"},
    ]
    store.journal.append([record(7, metadata=metadata, predictions=scored, latency_ms=4.2004)])
    assert store.commit_journal() == (1, 0, 0)
    ((*fixed, predictions, meta, flat, standard),) = store.rows("SELECT * FROM inference")
    assert fixed == [
        7, "request-7", 0, 1, "predict", 200, 4200, "image", "blake3:" + "0" * 64, 640, 480,
        "image/jpeg", None, 0, 5,
    ]  # fmt: skip
    assert standard == "{}"
    assert msgspec.json.decode(predictions) == scored
    assert msgspec.json.decode(meta) == metadata
    assert (flat if isinstance(flat, dict) else msgspec.json.decode(flat)) == {
        "a": {}, "a.b": 1, "a.l": [], "s": "x" * 300, "t": True
    }  # fmt: skip
    assert store.rows("SELECT * FROM model") == [
        (1, "shapes-detector", "1", "ab" * 32, "OBJECT_DETECTION", "")
    ]
    assert store.rows(KEYS.format("meta_num")) == [
        ("a", 3, 0.0, 7), ("a.b", 0, 1.0, 7), ("a.l", 3, 0.0, 7), ("t", 2, 1.0, 7)
    ]  # fmt: skip
    assert store.rows(KEYS.format("meta_str")) == [("s", 1, "x" * 256, 7)]
    assert store.rows("SELECT name, score, seq, worst, n FROM pred JOIN label ON label = id") == [
        ("circle", 0.75, 7, 0.5, 2), ("square", float("-inf"), 7, float("-inf"), 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("metadata", "flat"),
    [
        ({}, None),
        ({"a.b": 1, "l": []}, None),
        ({"l": [{"x": 1}], "n": None}, {"l": []}),
        ({"x": 2.0**60}, {"x": 2**60}),
        ({"a": {}}, None),
        ({"a": {"n": None}}, {"a": {}}),
        ({"a": {"b": 1}, "n": None}, {"a": {}, "a.b": 1}),
    ],
)
def test_a_file_keeps_metadata_twice_only_where_it_is_nested(
    file_store: StoreHarness, record, metadata, flat
) -> None:
    file_store.journal.append([record(1, metadata=metadata)])
    file_store.commit_journal()
    ((text,),) = file_store.rows("SELECT meta_flat FROM inference")
    assert (text and msgspec.json.decode(text)) == flat


@pytest.mark.parametrize("predictions", [[], {}, None, 3, [1], {"label": "x"}, [[{"label": "x"}]]])
def test_predictions_without_labels_are_kept(store: StoreHarness, record, predictions) -> None:
    store.journal.append([record(1, predictions=predictions)])
    assert store.commit_journal() == (1, 0, 0)
    assert store.rows("SELECT count(*) FROM pred") == [(0,)]
    assert msgspec.json.decode(store.rows("SELECT predictions FROM inference")[0][0]) == predictions


def test_a_replay_changes_nothing(store: StoreHarness, record) -> None:
    tables = ("inference", "meta_num", "meta_str", "pred", "model", "label", "meta_key")
    records = [record(n, metadata={"n": n, "s": str(n), "o": {"p": n}}) for n in range(1, 2500)]
    store.journal.append(records)
    assert store.commit_journal() == (2499, 0, 0)
    before = [store.rows(f"SELECT * FROM {table}") for table in tables]
    run_statements(store.url, ("DELETE FROM journal_offset", ()))
    assert store.commit_journal() == (2499, 0, 0)
    assert [store.rows(f"SELECT * FROM {table}") for table in tables] == before


def test_a_finished_segment_goes_and_an_open_one_stays(store: StoreHarness, record) -> None:
    store.journal.append([record(1)])
    store.commit_journal()
    assert len(segment_paths(store.journal_directory)) == 1
    ((name, offset),) = store.rows("SELECT * FROM journal_offset")
    assert (name, offset) == (
        f"{journal_id(store.journal_directory)}/{segment_paths(store.journal_directory)[0].name}",
        segment_paths(store.journal_directory)[0].stat().st_size,
    )
    store.journal.append([record(2)])
    store.journal.close()
    assert store.commit_journal() == (1, 0, 0)
    assert (segment_paths(store.journal_directory), store.rows("SELECT * FROM journal_offset")) == (
        [],
        [],
    )
    assert store.stored_ids() == [1, 2]


def test_a_writer_killed_between_file_and_offset_is_repaired(store: StoreHarness, record) -> None:
    store.journal.append([record(1)])
    store.commit_journal()
    store.journal.close()
    segment_paths(store.journal_directory)[0].unlink()
    store.journal.append([record(2)])
    assert store.commit_journal() == (1, 0, 0)
    assert store.rows("SELECT segment FROM journal_offset") == [
        (f"{journal_id(store.journal_directory)}/{segment_paths(store.journal_directory)[0].name}",)
    ]


def test_a_record_that_cannot_be_stored_never_stops_the_others(store: StoreHarness, record) -> None:
    dead = {
        2: record(2, metadata={"a.b": 1, "a": {"b": 2}}),
        4: record(4, metadata=["no object"]),
        5: record(5, latency_ms=float("nan")),
        6: record(6, image_no=1 << 70),
    }
    store.journal.append([dead.get(seq, record(seq)) for seq in range(1, 9)])
    assert store.commit_journal() == (4, 4, 0)
    assert store.stored_ids() == [1, 3, 7, 8]
    lines = msgspec.json.Decoder().decode_lines((store.root / "dead.jsonl").read_bytes())
    assert [line["id"] for line in lines] == ["2", "4", "5", "6"]
    assert "expected metadata key 'a.b' once" in lines[0]["error"]
    assert msgspec.json.decode(lines[1]["record"])["metadata"] == ["no object"]
    assert store.commit_journal() == (0, 0, 0)


def test_a_value_that_no_index_takes_never_stops_the_others(store: StoreHarness, record) -> None:
    letters = random.Random(1).choices(range(0x4E00, 0x9FFF), k=3000)
    label = [{"label": "".join(map(chr, letters)), "score": 1.0}]
    store.journal.append([record(1), record(2, predictions=label), record(3)])
    dead = int("postgresql" in store.url)
    assert store.commit_journal() == (3 - dead, dead, 0)
    assert store.stored_ids() == ([1, 3] if dead else [1, 2, 3])


def test_a_database_that_takes_no_writes_buries_nothing_and_is_waited_for(
    tmp_path: Path, postgres, record
) -> None:
    store = StoreHarness(tmp_path, postgres.create())
    name = sa.make_url(store.url).database
    store.journal.append([record(1)])
    assert store.commit_journal() == (1, 0, 0)
    store.journal.append([record(2)])
    read_only = f"ALTER DATABASE {name} SET default_transaction_read_only = "
    engine = open_writer(store.url)
    for statements, is_away in (
        ([read_only + "on"], True),
        (["SET default_transaction_read_only = off", read_only + "off"], False),
    ):
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
            connection.commit()
        if is_away:
            with pytest.raises(sa.exc.DBAPIError) as caught:
                store.commit_journal()
            assert database.is_unavailable(caught.value)
    engine.dispose()
    assert not (store.root / "dead.jsonl").exists()
    assert store.commit_journal() == (1, 0, 0)
    store.journal.close()
    postgres.drop(store.url)


def test_a_table_that_is_gone_for_a_while_is_waited_for(
    tmp_path: Path, postgres, record, caplog
) -> None:
    store = StoreHarness(tmp_path, postgres.create())
    engine = open_writer(store.url)
    with in_background(store.writer.run):
        store.journal.append([record(1)])
        until(lambda: store.writer.records_committed == 1)
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE pred RENAME TO other")
        store.journal.append([record(2)])
        until(lambda: "the journal waits for the database" in caplog.text)
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE other RENAME TO pred")
        until(lambda: store.writer.records_committed == 2)
    engine.dispose()
    assert not (store.root / "dead.jsonl").exists()
    store.close()
    postgres.drop(store.url)


def test_a_second_writer_is_refused(store: StoreHarness) -> None:
    first = Writer(store.journal_directory, store.url)
    with pytest.raises(StoreError, match=rf"only writer of .*, got process {os.getpid()} at work"):
        Writer(store.journal_directory, store.url)
    first.close()
    Writer(store.journal_directory, store.url).close()


def test_a_locked_database_loses_nothing(file_store: StoreHarness, record, caplog) -> None:
    file_store.journal.append([record(1)])
    file_store.commit_journal()
    engine = sa.create_engine(file_store.url)
    writer = Writer(file_store.journal_directory, file_store.url)
    sa.event.listen(writer._engine, "connect", lambda c, _: c.execute("PRAGMA busy_timeout=10"))
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        file_store.journal.append([record(2)])
        with in_background(writer.run):
            time.sleep(0.5)
            connection.rollback()
            file_store.journal.append([record(3)])
    engine.dispose()
    writer.close()
    warnings = [r.getMessage()[:30] for r in caplog.records if r.levelname == "WARNING"]
    assert warnings == ["the journal waits for the data", "the database answers again"]
    assert file_store.stored_ids() == [1, 2, 3]


def test_a_file_that_is_no_database_buries_nothing_and_is_set_aside(
    file_store: StoreHarness, record, caplog
) -> None:
    (file_store.root / "store.db").write_bytes(b"no database" * 1000)
    file_store.journal.append([record(1), record(2)])
    writer = Writer(file_store.journal_directory, file_store.url)
    with in_background(writer.run):
        until(lambda: "DAMAGED (file is not a database)" in caplog.text)
    writer.close()
    file_store.commit_journal()
    assert file_store.stored_ids() == [1, 2]
    assert not (file_store.root / "dead.jsonl").exists()


def test_run_moves_records_as_they_come_and_the_rest_at_the_end(
    store: StoreHarness, record
) -> None:
    writer = Writer(store.journal_directory, store.url)
    with in_background(writer.run):
        for seq in range(1, 300):
            store.journal.append([record(seq)])
        until(lambda: writer.records_committed == 299)
        store.journal.append([record(300)])
    writer.close()
    assert store.stored_ids() == list(range(1, 301))


def test_what_a_writer_finds_in_the_journal_is_said_once(
    store: StoreHarness, record, caplog
) -> None:
    caplog.set_level("INFO")
    for begin, count in ((1, 35), (101, 1), (201, 0)):
        if count:
            store.journal.append([record(seq) for seq in range(begin, begin + count)])
        size = sum(path.stat().st_size for path in segment_paths(store.journal_directory))
        writer = Writer(store.journal_directory, store.url)
        assert writer.drain() == count
        store.journal.append([record(begin + 50)])
        assert writer.drain() == 1
        writer.close()
        said = re.findall(r"(\d+) bytes of the journal are left from before", caplog.text)
        assert len(said) == (count > 0)
        assert all(0 < int(number) <= size for number in said)
        caplog.clear()


DATABASE = ("store.db",), ("store.db", "store.db-wal", "store.db-shm")


@pytest.mark.parametrize("names", DATABASE, ids=["alone", "with its log"])
def test_nothing_appended_after_the_database_was_deleted_is_lost(
    file_store: StoreHarness, record, names: tuple[str, ...]
) -> None:
    journal = Journal(
        file_store.journal_directory, 1, segment_bytes=3000
    )  # segments are removed all the time
    writer = Writer(file_store.journal_directory, file_store.url)
    after: list[int] = []
    seq = 0
    with in_background(writer.run):
        for _ in range(4):
            for _ in range(300):
                seq += 1
                journal.append([record(seq, metadata={f"key-{seq % 50}": seq})])
                after.append(seq)
                time.sleep(0.0005)
            if len(after) < 1200:
                for name in names:
                    (file_store.root / name).unlink(missing_ok=True)
                after.clear()
        journal.close()
    writer.close()
    assert seq == 1200
    assert set(after) <= set(file_store.stored_ids())
    assert file_store.rows("PRAGMA integrity_check") == [("ok",)]
    assert segment_paths(file_store.journal_directory) == []


def test_what_is_still_in_the_journal_moves_into_a_new_database(
    file_store: StoreHarness, record
) -> None:
    writer = Writer(file_store.journal_directory, file_store.url)
    file_store.journal.append([record(1)])
    assert writer.drain() == 1
    (file_store.root / "store.db").unlink()
    file_store.journal.close()
    file_store.journal.append([record(2)])
    assert writer.drain() == 2  # the closed segment was not removed before it was moved again
    assert file_store.stored_ids() == [1, 2]
    assert writer.drain() == 0
    (file_store.root / "store.db").unlink()
    assert writer.drain() == 1  # without news, too
    writer.close()
    assert file_store.stored_ids() == [2]


def test_a_commit_to_a_deleted_file_removes_no_segment(file_store: StoreHarness, record) -> None:
    writer = Writer(file_store.journal_directory, file_store.url)
    writer.drain()
    file_store.journal.append([record(1)])
    file_store.journal.close()

    def delete(_: sa.Connection) -> None:
        (file_store.root / "store.db").unlink()

    # After the look at the file, before the commit.
    sa.event.listen(writer._engine, "commit", delete, once=True)
    assert writer.drain() == 2
    writer.close()
    assert file_store.stored_ids() == [1]


@pytest.mark.parametrize("names", DATABASE, ids=["alone", "with its log"])
def test_a_database_put_in_place_of_another_takes_the_rest(
    file_store: StoreHarness, record, tmp_path: Path, names: tuple[str, ...]
) -> None:
    other = StoreHarness(tmp_path / "other", f"sqlite:///{tmp_path}/other/store.db")
    other.journal.append([record(1, metadata={"b": 1, "a": 2}, predictions=[{"label": "x"}])])
    other.commit_journal()
    other.journal.close()
    writer = Writer(file_store.journal_directory, file_store.url)
    file_store.journal.append([record(seq, metadata={"a": seq}) for seq in range(2, 500)])
    writer.drain()
    file_store.journal.close()
    writer.drain()
    for name in names[1:]:
        (file_store.root / name).unlink()
    (other.root / "store.db").rename(file_store.root / "store.db")
    file_store.journal.append([record(500, metadata={"a": 500})])
    assert writer.drain() == 1
    writer.close()
    assert file_store.stored_ids() == [1, 500]
    assert file_store.rows(KEYS.format("meta_num")) == [
        ("a", 0, 2.0, 1), ("a", 0, 500.0, 500), ("b", 0, 1.0, 1)
    ]  # fmt: skip
    assert file_store.rows("PRAGMA integrity_check") == [("ok",)]


class Trickled(Writer):
    """A writer during each of whose commits a further record comes."""

    coming: list[int]
    journal: Journal

    def _commit(self, batch, offsets, **options) -> None:
        if self.coming:
            self.journal.append([self.record(self.coming.pop())])
        super()._commit(batch, offsets, **options)


def test_what_trickles_in_is_committed_together(file_store: StoreHarness, record) -> None:
    writer = Trickled(file_store.journal_directory, file_store.url)
    writer.coming, writer.journal, writer.record = [3, 2], file_store.journal, record
    file_store.journal.append([record(1)])
    assert writer.drain(may_pause=True) == 1  # the rest has a pause to gather
    assert writer.drain() == 2
    assert file_store.stored_ids() == [1, 2, 3]
    writer.coming = []
    file_store.journal.append([record(4)])
    file_store.journal.close()
    assert writer.drain(may_pause=True) == 1
    assert segment_paths(file_store.journal_directory) == []  # though it never found nothing
    writer.close()
