"""A record whose id the database has for another record is stored under a new id; the same record is known."""

import json
import random

import msgspec
import pytest
import sqlalchemy as sa

from quadriga.store.database.partitions import create_partitions
from quadriga.store.journal.journal import Journal
from quadriga.store.records.ids import IMPORT_WORKER, TIME_SHIFT, smallest_id_at, time_ms
from quadriga.store.records.records import (
    IDEMPOTENCY_KEY,
    ImageSignals,
    InputReference,
    JournaledChange,
    MetadataChange,
    SignalsOfImages,
)
from quadriga.store.writing.writer import REPEATED_WITHIN_MS, Writer
from tests.background import in_background, until
from tests.unit.store_harness import StoreHarness

SEQ = smallest_id_at(1_795_460_000_000) | 3 << 12 | 7
REQUESTS = "SELECT request_id FROM inference ORDER BY request_id"
IMAGE = InputReference("image", "blake3:" + "1" * 64, 640, 480, "image/jpeg")
KEPT = InputReference("image", "blake3:" + "0" * 64, 640, 480, "image/jpeg", kept=True)


def new_ids(store: StoreHarness) -> list[int]:
    return [seq for seq in store.stored_ids() if seq != SEQ]


@pytest.mark.parametrize(
    "other",
    [
        {"request_id": "other"},
        {"image_no": 1},
        {"task": "IMAGE_CLASSIFICATION"},
        {"latency_ms": 4.3},
        {"input": IMAGE},
        {"predictions": []},
        {"status": 500},
        {"standard": {"stages_ms": {"infer": 1.5}}},
    ],
    ids=lambda other: next(iter(other)),
)
@pytest.mark.parametrize("commits", [1, 2])
def test_a_known_id_with_another_content_is_stored_under_a_new_id(
    store: StoreHarness, record, caplog, other, commits: int
) -> None:
    first, second = record(SEQ), record(SEQ, **other)
    if commits == 1:
        store.commit(first, second)
    else:
        store.commit(first)
        store.commit(second)
    (new_id,) = new_ids(store)
    assert (time_ms(new_id), new_id >> 12 & 1023) == (time_ms(SEQ), IMPORT_WORKER)
    standard = msgspec.json.decode(store.inferences.get(str(new_id)).standard_metadata)
    assert standard["acknowledged_id"] == str(SEQ)
    assert f"id {SEQ} belongs to another record: stored as {new_id}" in caplog.text
    before = store.all_rows()
    store.recommit_journal()
    assert store.all_rows() == before


NAME = "5" * 32


def repeated(record, seq: int, latency_ms: float, name: str = NAME):
    """Return a record of a request that has an idempotency key."""
    standard = {IDEMPOTENCY_KEY: name}
    return record(seq, latency_ms=latency_ms, standard=standard, request_id="one")


@pytest.mark.parametrize("commits", [1, 2])
def test_a_request_that_was_sent_again_under_its_key_is_stored_once(
    store: StoreHarness, record, caplog, commits: int
) -> None:
    first, second = repeated(record, SEQ, 4.0), repeated(record, SEQ, 5.0)
    if commits == 1:
        store.commit(first, second)
    else:
        store.commit(first)
        store.commit(second)
    assert store.stored_ids() == [SEQ]
    assert store.rows("SELECT latency_us FROM inference") == [(4000,)]
    assert "belongs to another record" not in caplog.text


def test_another_request_with_the_same_id_is_stored_beside_it(store: StoreHarness, record) -> None:
    store.commit(repeated(record, SEQ, 4.0), repeated(record, SEQ, 5.0, "6" * 32))
    assert len(store.stored_ids()) == 2


@pytest.mark.parametrize("commits", [1, 2])
def test_servers_of_one_database_store_a_request_once(
    store: StoreHarness, record, commits: int
) -> None:
    """Each server has claims of its own, so that the ids differ; in SQLite there is one server."""
    first, second = repeated(record, SEQ, 4.0), repeated(record, SEQ + 4096, 5.0)
    other = repeated(record, SEQ + 8192, 5.0, "6" * 32)
    if commits == 1:
        store.commit(first, second, other)
    else:
        store.commit(first)
        store.commit(second, other)
    is_shared = store.url.startswith("postgresql")
    expected = [SEQ, SEQ + 8192] if is_shared else [SEQ, SEQ + 4096, SEQ + 8192]
    assert sorted(store.stored_ids()) == expected


@pytest.mark.parametrize("commits", [1, 2])
def test_records_of_one_id_are_told_apart_before_one_is_a_repetition(
    store: StoreHarness, record, commits: int
) -> None:
    """The second record of an id is stored elsewhere already: the first one is not dropped with it."""
    store.commit(repeated(record, SEQ - 4096, 4.0))
    entries = [repeated(record, SEQ, 4.0, "6" * 32), repeated(record, SEQ, 5.0)]
    for part in [entries] if commits == 1 else [entries[:1], entries[1:]]:
        store.commit(*part)
    names = [
        json.loads(text)[IDEMPOTENCY_KEY]
        for (text,) in store.rows("SELECT standard FROM inference")
    ]
    assert {*names} == {NAME, "6" * 32}
    assert len(names) == (2 if store.url.startswith("postgresql") else 3)


def test_after_an_hour_a_key_is_new(store: StoreHarness, record) -> None:
    later = SEQ + (REPEATED_WITHIN_MS + 1 << TIME_SHIFT)
    store.commit(repeated(record, SEQ, 4.0))
    store.commit(repeated(record, later, 5.0))
    assert sorted(store.stored_ids()) == [SEQ, later]


def test_the_same_content_is_known_whatever_became_of_it(store: StoreHarness, record) -> None:
    unusual = record(SEQ, latency_ms=4.20049, request_id="a\0b", action="\0", input=KEPT)
    store.commit(unusual)
    store.commit_changes(MetadataChange(SEQ, {"operator": "amy"}))
    store.execute("UPDATE inference SET input_kept = 0")
    before = store.all_rows()
    store.recommit_journal()
    assert store.all_rows() == before


def test_many_records_of_one_id_are_all_found(store: StoreHarness, record) -> None:
    # Enough that some begin their search for a free id at the same one, of 4,096.
    names = sorted(f"{number:09}" for number in random.Random(1).sample(range(10**9), 200))
    store.commit(*(record(SEQ, request_id=name) for name in names))
    assert store.rows(REQUESTS) == [(name,) for name in names]
    store.recommit_journal()
    assert len(store.stored_ids()) == 200


def test_signals_follow_their_record(store: StoreHarness, record) -> None:
    store.commit(record(SEQ), record(SEQ, request_id="other"))
    store.commit_changes(SignalsOfImages([ImageSignals(SEQ, b"abcd"), ImageSignals(5, b"efgh")]))
    (new_id,) = new_ids(store)
    assert [*store.inferences.signals([SEQ, new_id])] == [new_id]


def test_an_import_repeats_nothing_even_if_its_file_was_edited(store: StoreHarness, record) -> None:
    store.commit(record(SEQ))
    importing = Journal(store.journal_directory, IMPORT_WORKER)
    importing.append([record(SEQ, predictions=[])])
    importing.close()
    store.writer.drain()
    assert store.stored_ids() == [SEQ]


def test_a_record_that_another_server_stores_meanwhile_is_not_rejected(
    tmp_path, postgres, record
) -> None:
    url = postgres.create()
    first, second = (StoreHarness(tmp_path / name, url) for name in ("first", "second"))
    first.commit(record(1, predictions=[{"label": "circle"}]))
    second.journal.append([record(SEQ, request_id="other")])
    with first.writer._engine.connect() as connection:
        create_partitions(connection, [SEQ])
    with first.writer._engine.begin() as connection:  # its transaction is not committed yet
        connection.exec_driver_sql(
            f"INSERT INTO inference SELECT {SEQ}, request_id, image_no, model_id, action, status, latency_us,"
            " input_name, input_hash, input_width, input_height, input_mime, input_bytes, input_kept,"
            " prediction_count, predictions, meta, meta_flat, standard FROM inference WHERE seq = 1"
        )
        with in_background(lambda stop: second.writer.drain()):
            with second.inferences.snapshot() as reading:
                waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
                until(lambda: reading.exec_driver_sql(waiting).first() is not None)
            connection.commit()
    assert second.writer.records_rejected == 0
    assert second.rows(REQUESTS) == [("other",), ("request-1",), ("request-1",)]
    for store in (first, second):
        store.close()
    postgres.drop(url)


def test_a_record_that_the_database_refuses_is_tried_twice_and_rejected_alone(
    store: StoreHarness, record, monkeypatch
) -> None:
    insert, tried = Writer._insert, []

    def refuse(writer, batch, ends):
        tried.append([frame.seq for frame in batch])
        if len(tried) > 9:
            raise OSError("tried again and again")  # ends the writer
        if SEQ in tried[-1]:
            raise sa.exc.IntegrityError("INSERT", None, Exception("a constraint failed"))
        insert(writer, batch, ends)

    monkeypatch.setattr(Writer, "_insert", refuse)
    store.journal.append([record(SEQ), record(SEQ + 1)])
    store.writer.drain()
    assert tried == [[SEQ, SEQ + 1], [SEQ, SEQ + 1], [SEQ], [SEQ], [], [SEQ + 1]]
    assert (store.stored_ids(), store.writer.records_rejected) == ([SEQ + 1], 1)


def test_a_change_of_another_kind_keeps_its_id(store: StoreHarness, record) -> None:
    store.commit(record(SEQ), record(SEQ, request_id="other"))
    store.commit(JournaledChange(SEQ + 1, MetadataChange(SEQ, {"operator": "amy"})))
    assert (store.metadata(SEQ), store.metadata(new_ids(store)[0])) == ({"operator": "amy"}, {})
