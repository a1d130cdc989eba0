"""What is journaled arrives in ClickHouse, once, whatever dies meanwhile, and the database waits for nothing."""

import logging
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from quadriga.extras.clickhouse.sending import ClickHouseSender, SendPosition, backfill
from quadriga.store.database.database import execute, open_writer
from quadriga.store.database.partitions import create_partitions
from quadriga.store.journal.journal import Journal, segment_paths, segment_sizes
from quadriga.store.records.errors import StoreError
from quadriga.store.records.ids import EPOCH_MS, IdSource, smallest_id_at
from quadriga.store.records.records import (
    Deletion,
    Feedback,
    InputReference,
    JournaledChange,
    MetadataChange,
    ModelReference,
    RetentionRule,
    TruthStatement,
)
from quadriga.store.writing.writer import Writer
from tests.background import in_background, until
from tests.clickhouse_server import ClickHouseServer
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import run_statements, store_entries

IDS_PER_DAY = smallest_id_at(EPOCH_MS + 86_400_000)
PAGE = Path(__file__).parents[3] / "docs" / "scaling.md"


@pytest.fixture(scope="module")
def server() -> Iterator[ClickHouseServer]:
    running = ClickHouseServer()
    yield running
    running.close()


class ClickHouseHarness:
    """A data folder and a ClickHouse database."""

    def __init__(self, root: Path, server: ClickHouseServer) -> None:
        self.server = server
        self.database = server.create()
        self.directory = root / "journal"
        self.journal = Journal(self.directory, 0)

    def sender(self) -> ClickHouseSender:
        return ClickHouseSender(self.directory, self.server.url(self.database))

    def send(self, *records) -> int:
        """Journal records, and send them."""
        self.journal.append(records)
        return self.sender().drain()

    def position(self) -> SendPosition:
        """Return how far the journal is sent."""
        file = self.directory.with_name("clickhouse.json")
        if not file.exists():
            return SendPosition()
        return msgspec.json.decode(file.read_bytes(), type=SendPosition)

    def query(self, text: str) -> list[dict]:
        return self.server.query(self.database, text)

    def stored_ids(self) -> list[int]:
        return [row["seq"] for row in self.query("SELECT seq FROM inference ORDER BY seq")]


@pytest.fixture
def harness(tmp_path, server) -> Iterator[ClickHouseHarness]:
    harness = ClickHouseHarness(tmp_path, server)
    yield harness
    harness.journal.close()


def test_a_record_becomes_one_wide_row(harness) -> None:
    metadata = {"a": {"b": 1, "l": [1]}, "s": "é\n'", "t": True, "f": 0.5, "n": None}
    predictions = [{"label": "a\0", "score": 0.25}, {"label": "b"}, {"text": "none"}]
    seq = (86_400_000 << 22) + 7
    standard = {"engine": "0.1"}
    record = make_record(seq, metadata=metadata, predictions=predictions, standard=standard)
    assert harness.send(record) == 1
    (row,) = harness.query("SELECT * FROM inference")
    for name, value in {
        "predictions": predictions,
        "metadata": metadata,
        "standard": standard,
    }.items():
        assert msgspec.json.decode(row.pop(name)) == value
    assert row == {
        "seq": seq,
        "time": "2025-01-02 00:00:00.000",
        "request_id": f"request-{seq}",
        "image_no": 0,
        "model": "shapes-detector",
        "version": "1",
        "sha256": "ab" * 32,
        "task": "OBJECT_DETECTION",
        "team": "",
        "action": "predict",
        "status": 200,
        "latency_ms": 4.2,
        "input_name": "image",
        "input_hash": "blake3:" + "0" * 64,
        "input_width": 640,
        "input_height": 480,
        "input_mime": "image/jpeg",
        "input_bytes": None,
        "input_kept": False,
        "labels": ["a\0", "b"],
        "scores": [0.25, None],
        "meta_num": {"a.b": 1, "f": 0.5},
        "meta_str": {"s": "é\n'"},
        "meta_bool": {"t": True},
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"predictions": {"x": [1, "NaN"]}, "input": InputReference("text"), "status": 500},
        {"predictions": None, "model": ModelReference("", "", "")},
        {"metadata": {"big": (1 << 63) - 1, "small": 5e-324, "large": 1.7e308, "'": "\\"}},
        {"predictions": [{"label": 3, "score": 1}, {"label": "x", "score": "high"}, {"label": "y", "score": True}]},
        {"latency_ms": 0.0, "request_id": "\t'\"\\", "action": "\0"},
    ],
)  # fmt: skip
def test_any_record_arrives(harness, fields) -> None:
    record = make_record(5, **fields)
    assert harness.send(record) == 1
    (row,) = harness.query("SELECT * FROM inference")
    assert (row["request_id"], row["action"]) == (record.request_id, record.action)
    assert msgspec.json.decode(row["metadata"]) == record.metadata


def test_changes_are_rows_of_their_own(harness) -> None:
    changes = [
        MetadataChange(1, {"camera": "south"}, ["altitude"]),
        TruthStatement("id", "1", [{"label": "circle"}], "me"),
        TruthStatement("id", "1", None),
        Feedback(1, "thumbs", None, "ok?", "me"),
        Deletion([1, 2]),
        RetentionRule("x", 1, 2),
    ]
    made = [JournaledChange(10 + number, change) for number, change in enumerate(changes)]
    assert harness.send(make_record(1), *made, make_record(2)) == 8
    assert harness.stored_ids() == [1, 2]
    rows_by_table = {
        table: harness.query(f"SELECT * EXCEPT time FROM {table} ORDER BY ALL")
        for table in ("metadata_change", "truth", "feedback", "deletion")
    }
    assert rows_by_table == {
        "metadata_change": [{"id": 10, "seq": 1, "set": '{"camera":"south"}', "remove": ["altitude"]}],
        "truth": [
            {"id": 11, "join_on": "id", "value": "1", "annotations": '[{"label":"circle"}]', "source": "me",
             "task": "IMAGE_CLASSIFICATION", "model": "", "owner": "default", "expected": None,
             "review": ""},
            {"id": 12, "join_on": "id", "value": "1", "annotations": None, "source": "",
             "task": "", "model": "", "owner": "default", "expected": None,
             "review": ""},
        ],
        "feedback": [
            {"id": 13, "seq": 1, "kind": "thumbs", "value": None, "comment": "ok?", "source": "me"}
        ],
        "deletion": [{"id": 14, "seq": 1}, {"id": 14, "seq": 2}],
    }  # fmt: skip


def test_what_is_no_record_is_left_out(harness, caplog) -> None:
    bad = make_record(2, metadata={"\n": 1})
    assert harness.send(make_record(1), bad, make_record(3)) == 3
    assert harness.stored_ids() == [1, 3]
    assert "cannot be sent to ClickHouse" in caplog.text


@pytest.mark.parametrize("arrived", ["all", "some", "none"])
def test_of_what_may_have_arrived_the_rest_is_sent(harness, tmp_path, arrived) -> None:
    seqs, counted = [1, 2, 3, 40 * IDS_PER_DAY], "SELECT count() AS n FROM {}"
    changes = [
        JournaledChange(10, Deletion([1, 2, 3])),
        JournaledChange(11, TruthStatement("id", "1", [])),
        JournaledChange(12, Feedback(1, "thumbs", None, "ok?", "me")),
        JournaledChange(13, MetadataChange(1, {"camera": "south"})),
    ]
    tables = {"inference": 5, "deletion": 3, "truth": 1, "feedback": 1, "metadata_change": 1}
    harness.send(*(make_record(seq) for seq in seqs), *changes)
    lost = {"all": "1 = 0", "some": f"{{}} IN (2, 11, 13, {seqs[-1]})", "none": "1 = 1"}[arrived]
    for table in tables:
        key = "id" if table in {"truth", "metadata_change"} else "seq"
        harness.query(f"DELETE FROM {table} WHERE {lost.format(key)}")
    ((segment, size),) = segment_sizes(harness.directory).items()
    interrupted = SendPosition({}, {segment: (0, size)})
    (tmp_path / "clickhouse.json").write_bytes(msgspec.json.encode(interrupted))
    assert harness.send(make_record(4)) == 9
    assert harness.stored_ids() == sorted([*seqs, 4])
    assert {table: harness.query(counted.format(table))[0]["n"] for table in tables} == tables


def test_what_is_sent_anew_in_other_parts_is_merged(harness, tmp_path) -> None:
    harness.send(*(make_record(n) for n in (1, 2, 3)))
    (tmp_path / "clickhouse.json").unlink()
    harness.send(make_record(4))
    assert len(harness.stored_ids()) == 7
    assert harness.query("SELECT count() AS n FROM inference FINAL") == [{"n": 4}]
    harness.query("OPTIMIZE TABLE inference FINAL")
    assert harness.stored_ids() == [1, 2, 3, 4]


def test_what_was_stored_before_is_sent_by_a_copy(
    database_url, tmp_path, server, monkeypatch
) -> None:
    monkeypatch.setattr("quadriga.extras.clickhouse.sending._FILLED_AT_ONCE", 100)
    harness = ClickHouseHarness(tmp_path, server)
    url = server.url(harness.database)
    metadata = {"camera": "north", "on": True}
    old = [make_record(n * 1000, metadata=metadata) for n in range(1, 250)]
    old += [make_record(20 * IDS_PER_DAY), make_record(30 * IDS_PER_DAY)]
    store_entries(database_url, tmp_path / "old", old)
    truth = (5, "id", "1", "", '[{"label": "circle"}]')
    feedback = (8, 1000, "thumbs", None, "ok?", "me")
    run_statements(
        database_url,
        (
            "INSERT INTO truth (id, join_on, value, source, annotations) VALUES (?, ?, ?, ?, ?)",
            truth,
        ),
        ("INSERT INTO feedback VALUES (?, ?, ?, ?, ?, ?)", feedback),
    )
    harness.send(make_record(20 * IDS_PER_DAY))
    assert backfill(database_url, url).copied == {"inference": 250, "truth": 1, "feedback": 1}
    assert backfill(database_url, url).copied == {}
    assert len(harness.stored_ids()) == 251
    text = (
        "SELECT count() AS n FROM inference WHERE meta_str['camera'] = 'north' AND meta_bool['on']"
    )
    assert harness.query(text) == [{"n": 249}]
    harness.query("INSERT INTO deletion (id, seq) VALUES (1, 1000)")
    harness.query("DELETE FROM inference WHERE seq < 100000")
    assert backfill(database_url, url).copied == {"inference": 99}
    assert len(harness.stored_ids()) == 251
    harness.journal.close()
    with pytest.raises(StoreError, match="expected ClickHouse to answer"):
        backfill(database_url, "http://127.0.0.1:1/x")


def test_a_segment_stays_until_both_have_it(harness, tmp_path) -> None:
    harness.journal.append([make_record(1)])
    harness.journal.close()
    sink = harness.sender()
    writer = Writer(
        harness.directory, f"sqlite:///{tmp_path}/store.db", is_segment_needed=sink.has_unsent
    )
    assert writer.drain() == 1
    assert len(segment_paths(harness.directory)) == 1
    sink.drain()
    writer.drain()
    assert segment_paths(harness.directory) == []
    writer.close()
    harness.send(make_record(2))
    assert harness.position().offsets == segment_sizes(harness.directory), (
        "the removed segment is forgotten"
    )


def test_a_damaged_end_holds_no_segment_back(harness) -> None:
    harness.journal.append([make_record(1)])
    harness.journal.close()
    (segment,) = segment_paths(harness.directory)
    with segment.open("ab") as file:
        file.write(b"torn")
    sink = harness.sender()
    assert sink.has_unsent(segment)
    sink.drain()
    assert not sink.has_unsent(segment)


def test_a_clickhouse_that_is_away_keeps_nothing_waiting(tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr("quadriga.extras.clickhouse.sending.POLL_S", 0.05)
    monkeypatch.setattr("quadriga.extras.clickhouse.sending.MAX_BACK_OFF_S", 0.1)
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)
    server = ClickHouseServer()
    try:
        harness = ClickHouseHarness(tmp_path, server)
        harness.send(make_record(1))
        server.kill()
        sink = harness.sender()
        with in_background(sink.run):
            writer = Writer(
                harness.directory,
                f"sqlite:///{tmp_path}/store.db",
                is_segment_needed=sink.has_unsent,
            )
            for number in range(2, 30):
                harness.journal.append([make_record(number)])
                assert writer.drain() == (2 if number == 2 else 1)
            harness.journal.close()
            writer.drain()
            assert len(segment_paths(harness.directory)) == 1
            server.start()
            until(lambda: writer.drain() == 0 and not segment_paths(harness.directory))
        writer.close()
        assert harness.stored_ids() == list(range(1, 30))
        assert segment_paths(harness.directory) == []
        assert "bytes of the journal wait for ClickHouse" in caplog.text
        assert "ClickHouse answers again" in caplog.text
    finally:
        server.close()


SENDING = """
import sys, threading
from pathlib import Path
import quadriga.extras.clickhouse.sending as clickhouse
clickhouse.POLL_S = 0.02
clickhouse.BATCH_RECORDS = 50
clickhouse.ClickHouseSender(Path(sys.argv[1]), sys.argv[2]).run(threading.Event())
"""


def test_all_is_stored_once_whoever_is_killed(tmp_path) -> None:
    chance = random.Random(7)
    server = ClickHouseServer()
    try:
        harness = ClickHouseHarness(tmp_path, server)
        ids = IdSource(0)
        written: list[int] = []
        for turn in range(6):
            command = [
                sys.executable,
                "-c",
                SENDING,
                str(harness.directory),
                server.url(harness.database),
            ]
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            before = harness.position()
            limit = time.monotonic() + 60
            while harness.position() == before and time.monotonic() < limit:
                harness.journal.append(records := [make_record(ids.next()) for _ in range(20)])
                written += [record.seq for record in records]
                time.sleep(chance.random() * 0.02)
            if turn % 2:
                server.kill()
            process.kill()
            process.wait(30)
            if turn % 2:
                server.start()
        assert harness.position().offsets, "something was sent before the last kill"
        harness.sender().drain()
        stored_rows = harness.query("SELECT seq FROM inference FINAL ORDER BY seq")
        assert [row["seq"] for row in stored_rows] == written
    finally:
        server.close()
        harness.journal.close()


STATEMENTS = [
    statement
    for statement in re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    if "DROP TABLE" not in statement
]


def test_the_statements_of_the_page_do_what_it_says(harness) -> None:
    now, hour_ms = time.time_ns() // 1_000_000, 3_600_000
    ago = [smallest_id_at(now - hours * hour_ms) + 1 for hours in (1, 2, 2, 30, 400)]
    north = {"camera_id": "north", "altitude": 120}
    circle = [{"label": "circle", "score": 0.9}, {"label": "star", "score": 0.1}]
    weak = [{"label": "circle", "score": 0.1}, {"label": "star", "score": 0.9}]
    harness.send(
        make_record(ago[0], metadata=north, predictions=circle),
        make_record(ago[1], metadata={**north, "altitude": 99}, predictions=weak),
        make_record(ago[2] + 1, metadata={"camera_id": "south", "altitude": 120}, status=500),
        make_record(
            ago[3], metadata=north, model=ModelReference("other", "1", ""), predictions=circle
        ),
        make_record(ago[4], metadata=north, predictions=[]),
        *(
            JournaledChange(10 + number, change)
            for number, change in enumerate(
                [
                    Deletion([ago[0]]),
                    TruthStatement("id", str(ago[0]), [{"label": "star"}]),
                    TruthStatement("id", str(ago[0]), [{"label": "circle"}]),
                    TruthStatement("id", str(ago[1]), [{"label": "circle"}]),
                    TruthStatement("id", str(ago[1]), None),
                    TruthStatement("request_id", "x", []),
                    MetadataChange(ago[0], {"camera_id": "west"}),
                    MetadataChange(ago[0], {"camera_id": "east"}),
                    MetadataChange(ago[0], {"altitude": 1}),
                ]
            )
        ),
    )
    ttl, by_key, by_label, by_hour, by_day, truth, metadata = STATEMENTS
    harness.query(ttl)
    assert [row["seq"] for row in harness.query(by_key)] == [ago[0]]
    assert [row["seq"] for row in harness.query(by_label)] == [ago[0], ago[2] + 1]
    hours = harness.query(by_hour)
    assert [(row["model"], row["n"], row["errors"]) for row in hours] == [
        ("other", 1, 0), ("shapes-detector", 2, 1), ("shapes-detector", 1, 0)
    ]  # fmt: skip
    assert {row["p99_ms"] for row in hours} == {4.2}
    labels = harness.query(by_day)
    assert sum(row["n"] for row in labels if row["label"] == "circle") == 3
    assert {row["label"] for row in labels} == {"circle", "star"}
    (held,) = harness.query(truth)
    assert (held["seq"], held["ground_truth"]) == (ago[0], '[{"label":"circle"}]')
    cameras = {row["seq"]: row["camera_id"] for row in harness.query(metadata)}
    assert cameras == {
        ago[0]: "east", ago[1]: "north", ago[2] + 1: "south", ago[3]: "north", ago[4]: "north"
    }  # fmt: skip


def test_dropping_partitions_drops_a_month(postgres) -> None:
    url = postgres.create()
    (drop,) = re.findall(r"DROP TABLE .*", PAGE.read_text())
    engine = open_writer(url)
    february = smallest_id_at(1_769_904_000_000)
    with engine.connect() as connection:
        create_partitions(connection, [february - 1, february])
        for seq in (february - 1, february):
            execute(connection, "INSERT INTO meta_num VALUES (1, 1, ?)", (seq,))
        execute(connection, drop)
        assert execute(connection, "SELECT seq FROM meta_num").scalars().all() == [february]
    engine.dispose()
    postgres.drop(url)
