"""A store copied into another database holds the same, whichever two they are."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from quadriga.store.database.database import execute, migrate, open_writer
from quadriga.store.journal.journal import Journal
from quadriga.store.maintenance.copying import copy_store, count_inferences
from quadriga.store.records.errors import StoreError
from quadriga.store.records.ids import EPOCH_MS, smallest_id_at
from quadriga.store.records.records import InputReference, ModelReference
from quadriga.store.writing.writer import Writer
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import check_sums, commit_journal, run_statements, select_rows

IDS_PER_DAY = smallest_id_at(EPOCH_MS + 86_400_000)
TABLES = {
    "inference": "SELECT i.*, name, version, sha256, task, team FROM inference i JOIN model m ON m.id = model_id",
    "meta_num": "SELECT path, type, team, val, seq FROM meta_num JOIN meta_key ON id = key",
    "meta_str": "SELECT path, type, team, val, seq FROM meta_str JOIN meta_key ON id = key",
    "pred": "SELECT name, team, score, seq, worst, n FROM pred JOIN label ON id = label",
    "rollup": "SELECT m.name, m.team, minute, n, errors, latency, labels, kept_bytes FROM rollup JOIN model m ON m.id = model_id",
    "metadata_change": "SELECT * FROM metadata_change",
    "truth": "SELECT * FROM truth",
    "ground_truth": "SELECT * FROM ground_truth",
    "other_truth": "SELECT * FROM other_truth",
    "repeated_id": "SELECT * FROM repeated_id",
    "feedback": "SELECT * FROM feedback",
    "signal": "SELECT * FROM signal",
    "retention": "SELECT * FROM retention",
    "journal_offset": "SELECT * FROM journal_offset",
}


def contents(url: str) -> dict[str, list[str]]:
    """Return all that a store holds, with names in place of their ids, as text in order."""
    engine = open_writer(url)
    rows_by_table = {}
    with engine.connect() as connection:
        names = execute(connection, "SELECT id, name, team FROM label")
        labels = {str(key): (name, team) for key, name, team in names}
        for table, text in TABLES.items():
            rows = [dict(row) for row in execute(connection, text).mappings()]
            for row in rows:
                row.pop("model_id", None)
                row.pop("meta_flat", None)  # NULL in SQLite where it equals meta, never elsewhere
                if table == "rollup":
                    counts = msgspec.json.decode(row["labels"])
                    row["labels"] = sorted((labels[label], n) for label, n in counts.items())
            rows_by_table[table] = sorted(map(repr, rows))
    engine.dispose()
    return rows_by_table


def assert_same(target: str, source: str) -> None:
    """Check that two stores hold the same, but for offsets of segments that are gone."""
    ours, theirs = contents(target), contents(source)
    assert set(theirs.pop("journal_offset")) <= set(ours.pop("journal_offset"))
    assert ours == theirs
    check_sums(target)


def fill(url: str, root: Path, records, statements=()) -> None:
    """Let a writer store records, and execute statements."""
    journal = Journal(root / "journal", 0)
    journal.append(records)
    commit_journal(url, root / "journal")
    journal.close()
    run_statements(url, *statements)


def other_kind(url: str, tmp_path: Path, request) -> str:
    """Return an empty database of the other kind."""
    if url.startswith("postgresql"):
        return f"sqlite:///{tmp_path}/other/store.db"
    server = request.getfixturevalue("postgres")
    return server.create(migrated=False)


@pytest.fixture
def target(database_url, tmp_path, request):
    url = other_kind(database_url, tmp_path, request)
    yield url
    if url.startswith("postgresql"):
        request.getfixturevalue("postgres").drop(url)


def some_records(days: int = 3, per_day: int = 20) -> list:
    """Return records of all kinds: of several models and days, failed, without labels, of raw tensors."""
    kinds = [
        {"metadata": {"camera": "north", "altitude": 120.5, "wet": True, "a": {"b": [1], "c": 2}}},
        {"metadata": {"latitude": 48.1, "longitude": 11.5, "big": (1 << 53) + 1, "n": None}},
        {"metadata": {"note": "x" * 300, 'quote"%s?': "?%s"}, "standard": {"engine": "0.1"}},
        {"predictions": {"x": [1.5, "NaN"]}, "status": 500, "task": "CUSTOM"},
        {"predictions": [{"label": "a\0b"}, {"label": "circle", "score": 0.25}, {"score": 1}]},
        {"input": InputReference("text")},
        {"input": InputReference("é", "blake3:1", 1, 2, "image/png", kept=True, bytes=77)},
        {"model": ModelReference("other", "2", "cd"), "latency_ms": 4.2004, "team": "quality"},
    ]
    return [
        make_record(day * IDS_PER_DAY + number + 1, **kinds[number % len(kinds)])
        for day in range(0, 10 * days, 10)
        for number in range(per_day)
    ]


CHANGED = '{"camera": "south", "altitude": 7}'
SAID = [
    ("INSERT INTO truth (id, join_on, value, source, annotations) VALUES (?, ?, ?, ?, ?)", (5, "id", "1", "", '[{"label": "circle"}]')),
    ("INSERT INTO truth (id, join_on, value, source, annotations) VALUES (?, ?, ?, ?, ?)", (6, "id", "2", "me", None)),
    ("INSERT INTO ground_truth VALUES (?, ?)", (1, 5)),
    ("INSERT INTO truth VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (7, "id", "9", "", "[]", "TENSOR", "other", "default", "approved")),
    ("INSERT INTO other_truth VALUES (?, ?)", (9, 7)),
    ("INSERT INTO repeated_id VALUES (?, ?)", (IDS_PER_DAY * 9, 9)),
    ("INSERT INTO feedback VALUES (?, ?, ?, ?, ?, ?)", (8, 1, "thumbs", None, "ok?", "me")),
    ("INSERT INTO feedback VALUES (?, ?, ?, ?, ?, ?)", (IDS_PER_DAY * 9, 1, "x", 0.5, "", "")),
    ("INSERT INTO signal VALUES (?, ?, ?, ?)", (1, b"\x00\x00\x80?", b"\x00<", "ab" * 8)),
    ("INSERT INTO signal VALUES (?, ?, ?, ?)", (2, b"\x00\x00\x80?", None, None)),
    ("INSERT INTO retention VALUES (?, ?, ?, ?)", ("other", 1.5, None, "quality")),
    ("INSERT INTO metadata_change VALUES (?, ?, ?, ?)", (9, 1, "{}", "{}")),
    ("INSERT INTO journal_offset VALUES (?, ?)", ("aa/0.journal", 1 << 40)),
]  # fmt: skip


def rollups(url: str) -> list:
    """Return statements for what the writer counts, in whatever ids this database has for the names."""
    ((model,),) = select_rows(url, "SELECT id FROM model WHERE name = 'other'")
    of_model = "SELECT l.id FROM label AS l JOIN model AS m ON m.team = l.team WHERE l.name = 'circle' AND m.name = 'other'"
    ((label,),) = select_rows(url, of_model)
    row = "INSERT INTO rollup VALUES (?, ?, ?, ?, ?, ?, ?)"
    return [(row, (model, minute, 2, 1, "{}", f'{{"{label}": 3}}', 77)) for minute in range(3)]


def test_everything_is_copied_there_and_back(database_url, target, tmp_path) -> None:
    fill(database_url, tmp_path / "a", some_records(), SAID)
    run_statements(database_url, *rollups(database_url))
    # the target has other ids for the same names
    fill(migrated(target), tmp_path / "b", [make_record(99, metadata={"altitude": "x"})])
    run_statements(
        target, *((f"DELETE FROM {table}", ()) for table in ("inference", "meta_str", "pred"))
    )
    progress = copy_store(database_url, target)
    assert progress.copied["inference"] == 60
    there = contents(database_url)
    assert [table for table, rows in there.items() if not rows] == []
    assert_same(target, database_url)
    assert count_inferences(target) == count_inferences(database_url) == 60
    again = f"sqlite:///{tmp_path}/again.db"
    copy_store(target, again)
    assert_same(again, database_url)


def migrated(url: str) -> str:
    migrate(url)
    return url


def test_a_second_copy_adds_what_is_new_and_only_that(database_url, target, tmp_path) -> None:
    records = some_records()
    late, *others = records
    fill(database_url, tmp_path, others, SAID)
    copy_store(database_url, target)
    assert copy_store(database_url, target).copied == dict.fromkeys(
        [
            "inference",
            "metadata_change",
            "truth",
            "ground_truth",
            "other_truth",
            "feedback",
            "signal",
            "repeated_id",
        ],
        0,
    ) | {"rollup": 0}
    fill(database_url, tmp_path, [late], [
        ("UPDATE inference SET input_kept = 0 WHERE seq = ?", (7,)),
        ("UPDATE ground_truth SET truth_id = 6 WHERE seq = 1", ()),
    ])  # fmt: skip
    copied = copy_store(database_url, target).copied
    assert (copied["inference"], copied["ground_truth"]) == (2, 1)
    assert_same(target, database_url)


def test_metadata_changed_since_is_copied_again(database_url, target, tmp_path) -> None:
    fill(database_url, tmp_path, some_records(1))
    copy_store(database_url, target)
    change = "INSERT INTO metadata_change VALUES (?, ?, ?, ?)"
    index = "INSERT INTO meta_{} SELECT id, ?, 1 FROM meta_key WHERE path = ? AND type = ?"
    run_statements(
        database_url,
        ("UPDATE inference SET meta = ?, meta_flat = ? WHERE seq = 1", (CHANGED, CHANGED)),
        ("DELETE FROM meta_num WHERE seq = 1", ()),
        ("DELETE FROM meta_str WHERE seq = 1", ()),
        (change, (IDS_PER_DAY * 3, 1, "{}", "{}")),
        (change, (IDS_PER_DAY * 3 + 1, 1 << 60, "{}", "{}")),
        (index.format("str"), ("south", "camera", 1)),
        (index.format("num"), (7.0, "altitude", 0)),
    )
    assert copy_store(database_url, target).copied["metadata_change"] == 2
    assert_same(target, database_url)


def test_what_only_the_target_holds_stays_unless_asked(database_url, target, tmp_path) -> None:
    fill(database_url, tmp_path, some_records(), SAID)
    copy_store(database_url, target)
    run_statements(database_url, *[
        (f"DELETE FROM {table} WHERE seq = 1", ()) for table in ("inference", "meta_num", "meta_str", "pred", "ground_truth")
    ] + [("DELETE FROM inference WHERE seq >= ?", (20 * IDS_PER_DAY,)),
        ("DELETE FROM meta_num WHERE seq >= ?", (20 * IDS_PER_DAY,)),
        ("DELETE FROM meta_str WHERE seq >= ?", (20 * IDS_PER_DAY,)),
        ("DELETE FROM pred WHERE seq >= ?", (20 * IDS_PER_DAY,)),
        ("DELETE FROM feedback WHERE id = 8", ())])  # fmt: skip
    assert copy_store(database_url, target).removed == 0
    assert (count_inferences(database_url), count_inferences(target)) == (39, 60)
    assert copy_store(database_url, target, delete=True).removed == 23
    assert_same(target, database_url)


def test_a_copy_that_is_killed_goes_on(database_url, target, tmp_path) -> None:
    total = 600
    fill(database_url, tmp_path, [make_record(n + 1, metadata={"n": n}) for n in range(total)])
    script = (
        "import signal, sys; from quadriga.store.maintenance import copying; copying._BATCH, copying._PAGE = 40, 100\n"
        "def report(progress):\n"
        "    print(copied := progress.copied['inference'], flush=True)\n"
        "    if copied > int(sys.argv[3]) + 100: signal.pause()  # on a busy machine its end comes late\n"
        "copying.copy_store(*sys.argv[1:3], report=report)"
    )
    seen = 0
    for wanted in (100, 300):
        process = subprocess.Popen(
            [sys.executable, "-c", script, database_url, target, str(wanted - seen)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in process.stdout:
            if int(line) + seen >= wanted:
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.close()
        process.wait(30)
        seen += int(line)
    progress = copy_store(database_url, target)
    assert 0 < progress.copied["inference"] <= total - seen
    assert_same(target, database_url)


def test_a_server_may_write_the_source_meanwhile(
    database_url, target, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("quadriga.store.maintenance.copying._BATCH", 50)
    monkeypatch.setattr("quadriga.store.maintenance.copying._PAGE", 100)
    journal = Journal(tmp_path / "journal", 0)
    writer = Writer(tmp_path / "journal", database_url)
    journal.append([make_record(n + 1) for n in range(300)])
    writer.drain()
    added = iter(range(300, 600))

    def write(_) -> None:
        journal.append([make_record(next(added) * 7 + 1) for _ in range(5)])
        writer.drain()

    copy_store(database_url, target, report=write)
    writer.close()
    journal.close()
    copy_store(database_url, target)
    assert count_inferences(target) > 300
    assert_same(target, database_url)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
keys = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="."), min_size=1, max_size=9
)
predictions = st.lists(
    st.fixed_dictionaries(
        {"label": st.text(st.characters(exclude_categories=["Cs"]), max_size=3)},
        optional={"score": st.floats(0, 1)},
    ),
    max_size=4,
)


@pytest.fixture
def middle(postgres):
    url = postgres.create()
    yield url
    postgres.drop(url)


records = st.lists(
    st.tuples(
        st.integers(1, 1 << 54),
        st.dictionaries(
            keys, json_values | st.dictionaries(keys, json_values, max_size=2), max_size=4
        ),
        predictions | json_values,
        st.integers(0, 10**9),
    ),
    max_size=8,
    unique_by=lambda item: item[0],
)


@settings(max_examples=6, phases=[Phase.generate])
@given(records)
def test_any_record_survives_the_round_trip(tmp_path, middle, rows) -> None:
    root = tmp_path / str(time.monotonic_ns())
    first, last, empty = (f"sqlite:///{root}/{name}.db" for name in ("first", "last", "empty"))
    made = [
        make_record(seq, metadata=metadata, predictions=predictions, latency_ms=latency / 1000)
        for seq, metadata, predictions, latency in rows
    ]
    fill(first, root, made)
    migrate(empty)
    copy_store(empty, middle, delete=True)  # of what the example before has left, but for counts
    run_statements(middle, ("DELETE FROM rollup", ()))
    copy_store(first, middle)
    copy_store(middle, last)
    assert_same(last, first)


def test_a_source_that_is_not_there_is_an_error(tmp_path) -> None:
    with pytest.raises(StoreError, match="database not found"):
        copy_store(f"sqlite:///{tmp_path}/nothing.db", f"sqlite:///{tmp_path}/target.db")
    with pytest.raises(StoreError, match="sqlite or postgresql"):
        count_inferences("mysql://x")
