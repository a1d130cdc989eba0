import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.browsing import comparison
from quadriga.store.browsing.comparison import (
    ComparisonRequest,
    DisagreementsRequest,
    compare,
    find_disagreements,
)
from quadriga.store.database.database import execute, writer_engine
from quadriga.store.journal.journal import segment_paths
from quadriga.store.query import inferences as module
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import Order, Pagination, QueryRequest
from quadriga.store.query.sql.search import Budget
from quadriga.store.records.errors import (
    NotFoundError,
    NotReadyError,
    QueryError,
    QueryTimeoutError,
)
from quadriga.store.records.records import InputReference, ModelReference
from tests.background import at_once, in_background
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness


def test_before_the_first_migration_it_is_not_ready(file_store: StoreHarness) -> None:
    with pytest.raises(NotReadyError):
        file_store.page_ids()
    with pytest.raises(NotFoundError):
        file_store.inferences.get("1")
    assert file_store.inferences.latest_seq() == 0


def test_the_latest_id_of_a_database_that_does_not_answer_is_unknown(
    file_store: StoreHarness, record, tmp_path: Path
) -> None:
    file_store.journal.append([record(5)])
    for content in (b"", b"no database" * 1000):
        (tmp_path / "store.db").write_bytes(content)
        with pytest.raises(NotReadyError):
            file_store.inferences.latest_seq()
    (tmp_path / "store.db").unlink()
    assert file_store.inferences.latest_seq() == 5


def test_a_record_is_readable_the_moment_it_is_journaled(store: StoreHarness, record) -> None:
    first, second = record(5, latency_ms=1.23456, metadata={"a": [1, None]}), record(6)
    store.journal.append([first, second])
    early = store.inferences.get("5")
    store.writer.drain()
    late = store.inferences.get("5")
    assert msgspec.json.encode(early) == msgspec.json.encode(late)
    assert late.latency_ms == 1.235
    assert store.page_ids() == [6, 5]
    store.journal.append([record(7)])
    assert store.inferences.get("7").id == "7"
    store.journal.close()
    store.writer.drain()
    assert segment_paths(store.journal_directory) == []
    assert store.inferences.get("7").id == "7"


def test_the_latest_id_is_of_the_journal_or_of_the_database(store: StoreHarness, record) -> None:
    store.journal.append([record(5), record(3)])
    assert store.inferences.latest_seq() == 5
    store.journal.close()
    store.writer.drain()
    assert store.inferences.latest_seq() == 5
    store.journal.append([record(9)])
    assert store.inferences.latest_seq() == 9


def test_pages_join_without_gaps_while_records_arrive(store: StoreHarness, record) -> None:
    store.journal.append([record(seq) for seq in range(1, 11)])
    store.writer.drain()
    page = store.inferences.query(QueryRequest(limit=4))
    store.journal.append([record(seq) for seq in range(11, 14)])
    store.writer.drain()
    second = store.inferences.query(QueryRequest(limit=4, cursor=page.cursor))
    third = store.inferences.query(QueryRequest(limit=4, cursor=second.cursor))
    assert [int(inference.id) for p in (page, second, third) for inference in p.inferences] == list(
        range(10, 0, -1)
    )
    assert third.cursor is None
    exact = store.inferences.query(QueryRequest(limit=13))
    assert (len(exact.inferences), exact.cursor) == (13, None)
    assert store.page_ids(order="ts", limit=3) == [1, 2, 3]


def test_the_ids_of_all_matches_come_in_order(
    store: StoreHarness, record, monkeypatch, tmp_path
) -> None:
    store.journal.append(
        [record(seq, metadata={"odd": seq % 2, "name": str(seq)}) for seq in range(1, 31)]
    )
    store.writer.drain()
    cautious = InferenceReader(
        store.url,
        tmp_path / "journal",
        FileBlobs(tmp_path / "blobs"),
        budget=Budget(rows=4, first_batch_rows=4),
    )
    for inferences, most in ((store.inferences, 10_000), (store.inferences, 7), (cautious, 7)):
        monkeypatch.setattr(module, "IDS_PER_BATCH", most)
        for where, wanted in [
            (None, range(1, 31)),
            ({"meta.odd": 1, "meta.name": {"ne": "7"}}, [*range(1, 6, 2), *range(9, 31, 2)]),
            ({"meta.name": {"contains": "1"}}, [1, *range(10, 20), 21]),
            ({"model": "nobody"}, []),
        ]:
            id_pages = list(inferences.matching_ids(where))
            assert [id_ for page in id_pages for id_ in page] == list(wanted)
            assert max(map(len, id_pages)) <= most
    cautious.close()


def test_a_cursor_is_of_one_filter_and_order(store: StoreHarness, record) -> None:
    store.journal.append([record(seq) for seq in range(1, 11)])
    store.writer.drain()
    where = {"action": "predict", "task": "detection"}
    cursor = store.inferences.query(QueryRequest(where, limit=4)).cursor
    same = {"task": "detection", "action": "predict"}
    assert store.page_ids(where=same, limit=2, cursor=cursor) == [6, 5]
    for other in ({"where": {}}, {"where": where, "order": "ts"}):
        with pytest.raises(QueryError, match="another filter or order"):
            store.page_ids(cursor=cursor, **other)
    for broken in ("", "é", "a", "AAAA", cursor[:-2]):
        with pytest.raises(QueryError, match="cursor"):
            store.page_ids(where=where, cursor=broken)


@pytest.mark.parametrize(
    ("how", "count"), [(None, None), ("none", None), ("capped", 10_001), ("exact", 10_050)]
)
def test_a_count_is_of_all_pages(store: StoreHarness, record, how, count) -> None:
    store.journal.append([record(seq, metadata={"n": seq % 2}) for seq in range(1, 10_051)])
    store.writer.drain()
    for where in ({}, {"meta.n": {"ge": 0}}, {"or": [{"meta.n": 0}, {"not": {"meta.n": 0}}]}):
        page = store.inferences.query(QueryRequest(where, limit=1, count=how))
        after = QueryRequest(where, limit=1, count=how, cursor=page.cursor)
        assert (page.count, store.inferences.query(after).count) == (count, count)


def test_a_query_can_wait_for_what_is_journaled(store: StoreHarness, record) -> None:
    store.journal.append([record(1)])
    store.writer.drain()
    with in_background(store.writer.run):
        for seq in range(2, 12):
            store.journal.append([record(seq)])
            if seq % 3 == 0:
                store.journal.close()  # finished segments are removed meanwhile
            assert store.page_ids(consistency="journal", limit=1) == [seq]


def test_a_count_and_comparisons_can_wait_for_what_is_journaled(
    store: StoreHarness, record
) -> None:
    versions = [ModelReference("ships", version, "ab" * 32) for version in ("1", "2")]
    with in_background(store.writer.run):
        for done in range(1, 11):
            image = InputReference("image", f"blake3:{done:064x}", 8, 8)
            store.journal.append(
                [
                    record(2 * done + number, model=version, input=image)
                    for number, version in enumerate(versions)
                ]
            )
            counted = store.inferences.count(QueryRequest(consistency="journal"))
            assert counted.count == 2 * done
            request = ComparisonRequest("ships@1", "ships:2", consistency="journal")
            assert compare(store.inferences, request).pairs == done
            other = DisagreementsRequest("ships:1", "ships@2", consistency="journal")
            assert find_disagreements(store.inferences, other).compared == done


@pytest.mark.parametrize("seconds", [60, 0])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_canary_is_compared_from_its_side_and_what_the_time_did_not_reach_is_said(
    store: StoreHarness, record, monkeypatch, is_first, seconds
) -> None:
    is_partial = seconds == 0
    monkeypatch.setattr(comparison, "MAX_S", seconds)
    live, canary = (ModelReference("ships", version, "ab" * 32) for version in ("1", "2"))

    def of(seq: int, model: ModelReference, image: int):
        image_hash = f"blake3:{image:064x}"
        return record(seq, model=model, input=InputReference("image", image_hash, 8, 8))

    store.commit(*(of(seq, live, seq) for seq in range(1, 900)), of(900, canary, 5))
    names = ("ships@2", "ships@1") if is_first else ("ships@1", "ships@2")
    searched = []
    search = InferenceReader.matching_ids
    monkeypatch.setattr(
        InferenceReader,
        "matching_ids",
        lambda reader, where, **options: searched.append(where) or search(reader, where, **options),
    )
    answer = compare(store.inferences, ComparisonRequest(*names))
    assert (answer.pairs, answer.partial) == (0 if is_partial else 1, is_partial)
    if not is_partial:
        assert [side.version for side in (answer.a, answer.b)] == [name[-1] for name in names]
    assert searched[-1]["and"][0] == {"model": "ships:2"}
    filtered = ComparisonRequest(
        *names, where={"id": {"le": "5"} if not is_first else {"ge": "900"}}
    )
    answer = compare(store.inferences, filtered)
    assert (answer.pairs, answer.partial) == (0 if is_partial else 1, is_partial)


def test_waiting_for_a_dead_writer_ends(store: StoreHarness, record, monkeypatch) -> None:
    monkeypatch.setattr(module, "JOURNAL_TIMEOUT_S", 0.05)
    store.journal.append([record(1)])
    with pytest.raises(NotReadyError, match=r"not committed after 0.05 s: \d+ bytes"):
        store.page_ids(consistency="journal")
    with pytest.raises(NotReadyError, match="not committed"):
        store.inferences.count(QueryRequest(consistency="journal"))
    for request, search in (
        (ComparisonRequest("m:1", "m:2", consistency="journal"), compare),
        (DisagreementsRequest("m:1", "m:2", consistency="journal"), find_disagreements),
    ):
        with pytest.raises(NotReadyError, match="not committed"):
            search(store.inferences, request)


def test_a_query_that_takes_too_long_says_how_to_narrow_it(
    store: StoreHarness, record, tmp_path: Path
) -> None:
    store.journal.append([record(seq, metadata={"s": "x" * 2000}) for seq in range(1, 3000)])
    store.writer.drain()
    hasty = InferenceReader(
        store.url,
        tmp_path / "journal",
        FileBlobs(tmp_path),
        timeout_s=2e-3,
        budget=Budget(10**6, 9),
    )
    searches = [{"not": {"meta.s": {"contains": "y" * length}}} for length in range(1, 60)]
    with pytest.raises(QueryTimeoutError, match="narrow it"):
        hasty.count(QueryRequest({"and": searches}))
    hasty.close()


def test_threads_share_the_readers(store: StoreHarness, record) -> None:
    store.journal.append([record(seq, metadata={"n": seq}) for seq in range(1, 101)])
    store.writer.drain()
    answers: list[list[int]] = []

    def ask() -> None:
        answers.extend(store.page_ids(where={"meta.n": seq}) for seq in range(1, 11))

    at_once([ask] * 12)
    assert sorted(answers) == sorted([seq] for seq in range(1, 11) for _ in range(12))


def test_an_idle_writer_costs_little(store: StoreHarness, record) -> None:
    store.journal.append([record(1)])
    cost = []

    def idle(stop: threading.Event) -> None:
        store.writer.drain()
        begun = time.thread_time()
        store.writer.run(stop)
        cost.append(time.thread_time() - begun)

    with in_background(idle):
        time.sleep(1.5)
    assert cost[0] < 0.45  # less than 0.015 on a quiet machine, 1.5 of a loop without pauses


def test_readers_leave_a_deleted_database(file_store: StoreHarness, record, tmp_path: Path) -> None:
    file_store.journal.append([record(seq) for seq in range(1, 5000)])
    file_store.journal.close()
    file_store.writer.drain()
    assert file_store.page_ids(limit=2) == [4999, 4998]
    (tmp_path / "store.db").unlink()
    with pytest.raises(NotReadyError, match="database not found"):
        file_store.page_ids()
    file_store.journal.append([record(7)])
    assert file_store.inferences.get("7").id == "7"
    file_store.writer.drain()
    assert file_store.page_ids() == [7]
    with pytest.raises(NotFoundError):
        file_store.inferences.get("4999")
    file_store.journal.append([record(8)])
    file_store.writer.drain()
    assert file_store.page_ids() == [8, 7]


def test_readers_take_a_database_put_in_place_of_another(
    file_store: StoreHarness, record, tmp_path: Path
) -> None:
    other = StoreHarness(tmp_path / "other", f"sqlite:///{tmp_path}/other/store.db")
    other.journal.append([record(3)])
    other.writer.drain()
    for part in (other.inferences, other.writer, other.journal):
        part.close()
    file_store.journal.append([record(seq) for seq in range(10, 5000)])
    file_store.journal.close()
    file_store.writer.drain()
    assert file_store.page_ids(limit=1) == [4999]
    (tmp_path / "other" / "store.db").rename(tmp_path / "store.db")
    with pytest.raises(NotReadyError, match="got the old log"):  # they do not mix the two
        file_store.page_ids()
    file_store.writer.drain()
    assert file_store.page_ids() == [3]


READER = """
import sys
from pathlib import Path
from quadriga.store.database.database import ReaderPool
from quadriga.store.records.errors import NotReadyError
readers = ReaderPool(sys.argv[1])
for _ in sys.stdin:
    try:
        with readers.snapshot() as connection:
            print(connection.exec_driver_sql("SELECT count(*) FROM inference").scalar(), flush=True)
    except NotReadyError:
        print("not ready", flush=True)
"""


def test_readers_in_other_processes_leave_a_deleted_database(
    file_store: StoreHarness, record, tmp_path: Path
) -> None:
    file_store.journal.append([record(seq) for seq in range(1, 5000)])
    file_store.journal.close()
    file_store.writer.drain()
    with subprocess.Popen(
        [sys.executable, "-c", READER, f"sqlite:///{tmp_path}/store.db"],
        cwd=Path(__file__).parents[3], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip

        def ask() -> str:
            child.stdin.write("\n")
            child.stdin.flush()
            return child.stdout.readline().strip()

        assert ask() == "4999"
        (tmp_path / "store.db").unlink()
        assert ask() == "not ready"
        for seq in range(1, 4):
            file_store.journal.append([record(seq)])
            file_store.writer.drain()
            assert ask() == str(seq)
        child.stdin.close()


def test_a_search_that_takes_long_answers_what_it_has(
    store: StoreHarness, record, tmp_path: Path
) -> None:
    store.journal.append(
        [record(seq, status=500 if seq % 20 == 1 else 200) for seq in range(1, 101)]
    )
    store.writer.drain()
    budget = Budget(rows=30, first_batch_rows=10)
    short = InferenceReader(store.url, tmp_path / "journal", FileBlobs(tmp_path), budget=budget)
    where = "status=500"
    pages, cursor = [], None
    while not pages or cursor:
        page = short.query(QueryRequest(where, limit=2, cursor=cursor, count="capped"))
        assert (page.count, page.count_is_exact) == (1, False)
        pages.append(([int(inference.id) for inference in page.inferences], page.partial))
        cursor = page.cursor
    assert pages == [([81], True), ([61, 41], False), ([21], True), ([1], False)]
    assert short.count(QueryRequest(where)).count == 5
    short.close()


def test_pages_of_an_offset_are_whole_or_refused(store: StoreHarness, record, tmp_path) -> None:
    store.journal.append(
        [record(seq, status=500 if seq % 20 == 1 else 200) for seq in range(1, 101)]
    )
    store.writer.drain()

    def ids(reader: InferenceReader, offset: int, order: Order = "-ts") -> list[int]:
        pagination = Pagination(offset=offset)
        request = QueryRequest("status=500", order=order, limit=2, pagination=pagination)
        return [int(inference.id) for inference in reader.query(request).inferences]

    assert [ids(store.inferences, offset) for offset in (0, 1, 3, 5)] == [
        [81, 61], [61, 41], [21, 1], [],
    ]  # fmt: skip
    assert ids(store.inferences, 1, "ts") == [21, 41]
    following = QueryRequest("status=500", limit=2, pagination=Pagination(offset=1))
    pages = [[int(row.id) for row in page.inferences] for page in store.inferences.pages(following)]
    assert pages == [[61, 41], [21, 1]]
    for rows in (30, 50):  # the budget ends among the skipped matches, or within the page
        budget = Budget(rows=rows, first_batch_rows=10)
        short = InferenceReader(store.url, tmp_path / "journal", FileBlobs(tmp_path), budget=budget)
        with pytest.raises(QueryTimeoutError, match="a whole page at offset 2 in time: narrow"):
            ids(short, 2)
        short.close()


def test_what_was_said_afterwards_is_found(store: StoreHarness, record) -> None:
    store.journal.append([record(seq) for seq in range(1, 6)])
    store.writer.drain()
    truths = {
        10: '[{"label": "ship"}, {"label": "a\\u0000b"}]',
        11: '[{"label": 1}, 5, "ship", {"inner": {"label": "ship"}}]',
        12: None,
    }
    with writer_engine(store.url) as engine, engine.begin() as connection:
        for (number, annotations), seq in zip(truths.items(), (1, 2, 3), strict=True):
            values = (number, "id", str(seq), "", annotations)
            execute(
                connection,
                "INSERT INTO truth (id, join_on, value, source, annotations) VALUES (?, ?, ?, ?, ?)",
                values,
            )
            execute(connection, "INSERT INTO ground_truth VALUES (?, ?)", (seq, number))
        for number, seq in ((20, 2), (21, 2), (22, 4)):
            values = (number, seq, "thumbs", 1.0, "", "")
            execute(connection, "INSERT INTO feedback VALUES (?, ?, ?, ?, ?, ?)", values)
    for where, ids in {
        "ground_truth=exists:true": [2, 1],
        "ground_truth=exists:false": [5, 4, 3],
        "ground_truth.label=ship": [1],
        "ground_truth.label=in:ship,boat": [1],
        "ground_truth.label=contains:\ufffd": [1],
        "!ground_truth.label=ship": [5, 4, 3, 2],
        "ground_truth.label=exists:true": [1],
        "feedback=exists:true": [4, 2],
        "feedback=exists:true & ground_truth=exists:true": [2],
        "feedback=exists:true | ground_truth=exists:true": [4, 2, 1],
    }.items():
        assert store.page_ids(where=where) == ids, where
        assert store.inferences.count(QueryRequest(where)).count == len(ids)


@pytest.mark.parametrize(
    ("column", "field", "text"),
    [
        ("predictions", "predictions", '[{"label":"a","scorg":0.5},'),
        ("predictions", "predictions", ""),
        ("meta", "metadata", '{"site" "a"}'),
        ("standard", "standard_metadata", "{}}"),
    ],
)
def test_damaged_json_is_left_out_and_named(
    store: StoreHarness, column: str, field: str, text: str
) -> None:
    store.commit(make_record(1, metadata={"site": "a"}), make_record(2))
    store.execute(f"UPDATE inference SET {column} = '{text}' WHERE seq = 1")
    page = store.inferences.query(QueryRequest({}, order="ts"))
    for damaged in (page.inferences[0], store.inferences.get("1")):
        assert damaged.left_out == [field]
        shown = msgspec.json.decode(msgspec.json.encode(damaged))
        assert not shown[field]
        whole = {
            key: value for key, value in shown.items() if key not in (field, "left_out", "feedback")
        }
        expected = msgspec.json.decode(msgspec.json.encode(page.inferences[1]))
        assert whole.keys() == expected.keys() - {field}
    assert page.inferences[1].left_out is msgspec.UNSET
