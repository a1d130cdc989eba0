import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadriga.store.changes.ground_truth import link_new
from quadriga.store.database.database import lock_rows, open_writer
from quadriga.store.database.rows import NameIds, RowBatch
from quadriga.store.records.errors import MetadataError
from quadriga.store.records.metadata import check
from quadriga.store.records.records import (
    Deletion,
    Feedback,
    ImageSignals,
    InferenceRecord,
    InputReference,
    JournaledChange,
    JournaledRecord,
    MetadataChange,
    RetentionRule,
    SignalsOfImages,
    StoredSignals,
    TruthStatement,
    is_add_only,
)
from tests.postgres_server import PostgresServer
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import FIRST_CHANGE_ID, TABLES, StoreHarness

JSON_RECORD = msgspec.json.Decoder(JournaledRecord)


def read(column: Any) -> Any:
    """Return JSON of the database, which one driver has read already."""
    return msgspec.json.decode(column) if isinstance(column, str) else column


def index_rows(store: StoreHarness) -> list[list[tuple[Any, ...]]]:
    """Return what inferences are found by, by the names of keys."""
    columns = "path, type, val, seq"
    return [
        sorted(store.rows(f"SELECT {columns} FROM {table} JOIN meta_key ON meta_key.id = key"))
        for table in ("meta_num", "meta_str")
    ]


def test_changed_metadata_is_what_an_inference_is_found_by(
    store: StoreHarness, tmp_path: Path
) -> None:
    before = {
        "camera": "north", "floor": 2, "place": {"a": 1}, "latitude": 1, "longitude": 2, "n": None
    }  # fmt: skip
    store.commit(make_record(1, metadata=before), make_record(2, metadata=before))
    store.commit_changes(
        MetadataChange(1, {"camera": "south" * 99, "place": {"b": [1]}, "ok": True}, ["floor", "x"])
    )
    after = {
        "camera": "south" * 99, "place": {"b": [1]}, "latitude": 1, "longitude": 2, "n": None,
        "ok": True,
    }  # fmt: skip
    assert store.metadata(1) == after
    assert store.metadata(2) == before
    fresh = [index_rows(store)]
    for table in ("inference", "meta_num", "meta_str", "pred"):
        store.execute(f"DELETE FROM {table}")  # as if it had been so from the beginning
    store.commit(make_record(1, metadata=after), make_record(2, metadata=before))
    fresh.append(index_rows(store))
    assert fresh[0] == fresh[1]


def test_the_history_tells_what_metadata_was(store: StoreHarness) -> None:
    store.commit(make_record(1, metadata={"a": 1}))
    first, second = MetadataChange(1, {"a": 2}), MetadataChange(1, {}, ["a"])
    store.commit_changes(first, second)
    rows = store.rows("SELECT id, seq, change, before FROM metadata_change ORDER BY id")
    assert [row[:2] for row in rows] == [(FIRST_CHANGE_ID + 1, 1), (FIRST_CHANGE_ID + 2, 1)]
    assert [msgspec.json.decode(row[2], type=MetadataChange) for row in rows] == [first, second]
    assert [row[3] for row in rows] == ['{"a":1}', '{"a":2}']
    assert store.metadata(1) == {}


def test_metadata_that_would_break_the_rules_stays_and_the_others_change(
    store: StoreHarness,
) -> None:
    store.commit(make_record(1, metadata={"a": {"b": 1}}), make_record(2))
    store.commit_changes(MetadataChange(1, {"a.b": 2}), MetadataChange(2, {"c": 3}))
    assert (store.metadata(1), store.metadata(2)) == ({"a": {"b": 1}}, {"c": 3})
    assert (store.root / "dead.jsonl").read_text().count("twice once flattened") == 1


def test_a_change_of_what_is_not_there_is_passed_over(store: StoreHarness) -> None:
    store.commit_changes(
        MetadataChange(5, {"a": 1}), Feedback(5, "thumbs", 1.0), Deletion([5, 6]),
        TruthStatement("id", "5", None),
    )  # fmt: skip
    assert store.writer.records_rejected == 0
    assert {table for table, rows in store.all_rows().items() if rows} == {"truth"}


def test_feedback_is_read_with_its_inference(store: StoreHarness) -> None:
    store.commit(make_record(1))
    store.commit_changes(
        Feedback(1, "thumbs", -1.0), Feedback(1, "note\0", None, "too\0 dark", "amy")
    )
    given_ = msgspec.to_builtins(store.inferences.get("1").feedback)
    assert [(entry["kind"], entry["value"], entry["comment"], entry["source"]) for entry in given_] == [
        ("thumbs", -1.0, "", ""), ("note\ufffd", None, "too\ufffd dark", "amy")
    ]  # fmt: skip
    assert given_[0]["id"] == str(FIRST_CHANGE_ID + 1)
    assert given_[0]["created_at"] == "2025-01-01T00:04:22.144Z"


@pytest.mark.parametrize(
    "change", [MetadataChange(1, {"a": 1}), Feedback(1, "x"), TruthStatement("id", "1", [])]
)
def test_new_ids_lie_above_those_of_changes(store: StoreHarness, change: Any) -> None:
    store.commit(make_record(1))
    store.commit_changes(change)
    store.journal.close()
    store.writer.drain()
    assert store.inferences.latest_seq() == FIRST_CHANGE_ID + 1


def test_signals_are_kept_of_inferences_that_are_there(store: StoreHarness) -> None:
    store.commit(make_record(1), make_record(2), make_record(3))
    store.commit_changes(
        SignalsOfImages([ImageSignals(1, b"\0\xff"), ImageSignals(9, b"?")]),
        SignalsOfImages([ImageSignals(1, b"", b"\0<", "ab" * 8), ImageSignals(2, b"12")]),
        SignalsOfImages([ImageSignals(2, b"34")]),
    )
    assert store.inferences.signals(range(1, 2000)) == {
        1: StoredSignals(b"\0\xff", b"\0<", "ab" * 8),
        2: StoredSignals(b"34", None, None),
    }
    assert store.rows("SELECT count(*) FROM signal") == [(2,)]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (make_record(1), True),
        (JournaledChange(1, SignalsOfImages([ImageSignals(7)])), True),
        (JournaledChange(1, Feedback(7, '"change":{"type":"signals"')), False),
    ],
    ids=["record", "signals", "feedback"],
)
def test_servers_write_side_by_side_what_only_adds(entry: Any, expected: bool) -> None:  # noqa: FBT001 - a table
    assert is_add_only(msgspec.json.encode(entry)) is expected


def test_a_rule_of_retention_replaces_the_one_before(store: StoreHarness) -> None:
    store.commit_changes(
        RetentionRule("a", 1.5, 2.0), RetentionRule("b"), RetentionRule("a", None, 7.0)
    )
    rows = store.rows("SELECT model, inputs_days, inferences_days FROM retention")
    assert sorted(rows) == [("a", None, 7.0), ("b", None, None)]


def everything(seq: int) -> InferenceRecord:
    """Make a record with rows in every table."""
    metadata = {"s": "x" * 300, "n": 1.5, "o": {"b": True, "l": [1]}, "latitude": 1, "longitude": 2}
    reference = InputReference("image", f"blake3:{seq:064x}", 1, 1, "image/png", kept=True)
    labels = [{"label": "a", "score": 0.5}, {"label": "b"}]
    return make_record(seq, metadata=metadata, input=reference, predictions=labels)


def changes_of(seq: int) -> list[Any]:
    """Make every kind of change of a record."""
    return [
        MetadataChange(seq, {"extra": {"k": "v"}, "n": 1e300}, ["s"]),
        Feedback(seq, "thumbs", 1.0),
        TruthStatement("id", str(seq), [{"label": "a"}]),
        TruthStatement("request_id", f"request-{seq}#0", []),
        TruthStatement("request_id", f"request-{seq}", None),
        TruthStatement("request_id", f"request-{seq}", [{"label": "of a classifier"}]),
        SignalsOfImages([ImageSignals(seq, b"\0\0\x80?", b"\0<", "ab" * 8)]),
    ]


def test_a_deletion_leaves_no_row_anywhere(store: StoreHarness) -> None:
    store.commit(*(everything(seq) for seq in range(1, 6)))
    store.commit_changes(*(change for seq in range(1, 6) for change in changes_of(seq)))
    store.execute("INSERT INTO repeated_id SELECT seq + 1000, seq FROM inference")
    rows = store.all_rows()
    assert all(len(rows[table]) >= 5 for table in set(TABLES) - {"retention", "ground_truth"})
    store.commit_changes(Deletion([2, 4]), Deletion([4, 99]))
    assert store.page_ids(where={}) == [5, 3, 1]
    seqs = {
        seq for table in ("meta_num", "meta_str", "pred") for *_, seq in index_tuples(store, table)
    }
    assert seqs == {1, 3, 5}
    assert store.writer.freed_blob_keys == {f"blake3:{seq:064x}" for seq in (2, 4)}
    store.commit_changes(Deletion([1, 3, 5]))
    assert {table: rows for table, rows in store.all_rows().items() if rows} == {}


def index_tuples(store: StoreHarness, table: str) -> list[tuple[Any, ...]]:
    names = {"pred": "label, score, seq"}.get(table, "key, val, seq")
    return store.rows(f"SELECT {names} FROM {table}")


def test_a_statement_of_a_request_stays_while_one_of_its_images_does(store: StoreHarness) -> None:
    store.commit(make_record(1, request_id="r"), make_record(2, request_id="r", image_no=1))
    store.commit_changes(
        *(TruthStatement("request_id", value, []) for value in ("r", "r#0", "r#1", "r#0x"))
    )
    store.commit_changes(Deletion([1]))
    assert {value for (value,) in store.rows("SELECT value FROM truth")} == {"r", "r#1", "r#0x"}
    store.commit_changes(Deletion([2]))
    assert {value for (value,) in store.rows("SELECT value FROM truth")} == {"r#0x"}


def test_a_thousand_go_at_once(store: StoreHarness) -> None:
    metadata = [{"n": n, "s": str(n), "deep": {"x": n / 3}} for n in range(1500)]
    store.commit(*(make_record(seq + 1, metadata=metadata[seq]) for seq in range(1500)))
    store.commit_changes(Deletion(list(range(1, 1001))))
    assert store.rows("SELECT count(*), min(seq) FROM inference") == [(500, 1001)]
    for table in ("meta_num", "meta_str", "pred"):
        assert store.rows(f"SELECT min(seq) FROM {table}") == [(1001,)]


def test_a_replay_changes_nothing(store: StoreHarness) -> None:
    store.commit(*(everything(seq) for seq in range(1, 6)))
    store.commit_changes(*(change for seq in range(1, 6) for change in changes_of(seq)))
    store.commit_changes(TruthStatement("meta.extra.k", "v", [{"label": "late"}]), Deletion([3]))
    store.commit_changes(MetadataChange(1, {"n": 2}), RetentionRule("m", 1.0, 2.0))
    before = store.all_rows()
    store.recommit_journal()
    assert store.writer.records_committed > 0
    assert store.writer.records_rejected == 0
    assert store.all_rows() == before


KEYS = st.sampled_from(["a", "b", "latitude", "longitude", "a.b"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)


@settings(max_examples=25)
@given(OBJECTS, st.lists(st.tuples(OBJECTS, st.lists(KEYS, max_size=2)), max_size=4))
def test_any_changes_leave_what_their_result_would_have_had(
    store: StoreHarness, first, changes
) -> None:
    def is_good(metadata) -> bool:
        try:
            check(metadata)
        except MetadataError:
            return False
        return True

    expected = first if is_good(first) else {}
    (last,) = store.rows("SELECT coalesce(max(seq), 0) FROM inference")[0]
    changed, fresh = last + 1, last + 2
    store.commit(make_record(changed, metadata=expected))
    for new, remove in changes:
        store.commit_changes(MetadataChange(changed, new, remove))
        result = {key: value for key, value in expected.items() if key not in remove} | new
        expected = result if is_good(result) else expected
    store.commit(make_record(fresh, metadata=expected))
    assert store.metadata(changed) == expected
    stored_rows = store.rows("SELECT meta, meta_flat FROM inference ORDER BY seq DESC LIMIT 2")
    flats = [read(flat) if flat else read(meta) for meta, flat in stored_rows]
    assert flats[0] == flats[1]
    for table in ("meta_num", "meta_str"):
        by_seq = {changed: set(), fresh: set()}
        for *key, seq in store.rows(f"SELECT key, val, seq FROM {table}"):
            if seq in by_seq:
                by_seq[seq].add(tuple(key))
        assert by_seq[changed] == by_seq[fresh]


def test_a_statement_waits_for_what_another_server_is_inserting(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.create()
    first_store, two = StoreHarness(tmp_path / "one", url), StoreHarness(tmp_path / "two", url)
    two.commit(make_record(1))
    statement = TruthStatement("request_id", "r", [], task="OBJECT_DETECTION")
    stating = threading.Thread(target=first_store.commit_changes, args=(statement,))
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    record = JSON_RECORD.decode(msgspec.json.encode(make_record(2, request_id="r")))
    engine = open_writer(url)
    with engine.begin() as connection:
        lock_rows(connection, exclusive=False)
        rows = RowBatch(NameIds(connection))
        rows.add(record)
        rows.insert(connection)
        link_new(connection, [record])
        stating.start()
        while stating.is_alive() and not two.rows(waiting):
            pass
    stating.join(60)
    try:
        assert first_store.rows("SELECT seq FROM ground_truth") == [(2,)]
    finally:
        engine.dispose()
        first_store.close()
        two.close()
        postgres.drop(url)
