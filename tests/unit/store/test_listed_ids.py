"""Cells of a report as a part of a filter: how they are written, and what their lists of ids find on both databases."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from quadriga.store.query.filters.forms import parse
from quadriga.store.query.filters.syntax import And, Compare, Not, Or, ReportCells
from quadriga.store.query.inferences import Count, InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import QueryError
from quadriga.store.records.scope import Scope
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

SEQS = [seq << 24 for seq in range(1, 61)]
STAR = ReportCells("1-a", ("star",))
NORTH = Compare("meta.camera", "eq", "north")
NORTH_TEXT = "meta.camera=north"


@pytest.mark.parametrize(
    ("where", "tree"),
    [
        ("report=1-a", ReportCells("1-a")),
        ("report=1-a & truth=star", STAR),
        ("truth=star & meta.camera=north & report=1-a", And((STAR, NORTH))),
        ({"report": "1-a", "truth": "star", "meta.camera": "north"}, And((STAR, NORTH))),
        ({"and": [{"report": "1-a"}, {"truth": "star"}]}, STAR),
        ({"and": ["report=1-a & truth=star", "meta.camera=north"]}, And((STAR, NORTH))),
        ("!(report=1-a & truth=star)", Not(STAR)),
        ("(report=1-a & truth=star) | meta.camera=north", Or((STAR, NORTH))),
        ('report=1-a & truth="" & predicted=in:star,ring', ReportCells("1-a", ("",), ("star", "ring"))),
        ("report=1-a & truth=in:", ReportCells("1-a", ())),
    ],
)  # fmt: skip
def test_labels_belong_to_the_report_beside_them(where: Any, tree: Any) -> None:
    assert parse(where, 0) == tree


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("truth=star", "expected truth and predicted once each beside one report"),
        ("(report=1-a | truth=star)", "got truth 1 times beside 0 reports"),
        ("report=1-a & !predicted=star", "got predicted 1 times beside 0 reports"),
        ("report=1-a & report=1-b", "got report 2 times beside 2 reports"),
        ("report=1-a & truth=star & truth=ring", "got truth 2 times beside 1 reports"),
        ({"report": {"in": ["a"]}}, "expected where.report to have one of eq, got 'in'"),
        ({"report": 5}, "expected where.report to be a string"),
        ({"report": "a", "truth": {"ne": "b"}}, "expected where.truth to have one of eq, in"),
    ],
)
def test_labels_without_their_report_are_refused(where: Any, message: str) -> None:
    with pytest.raises(QueryError) as refused:
        parse(where, 0)
    assert message in str(refused.value)


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[StoreHarness]:
    chance, store = random.Random(1), StoreHarness(tmp_path, database_url)
    store.commit(
        *(
            make_record(
                seq,
                team="b" if number % 3 == 0 else "a",
                metadata={"camera": chance.choice(["north", "east"])},
                latency_ms=chance.random() * 10,
            )
            for number, seq in enumerate(SEQS)
        )
    )
    yield store
    store.close()


def reader_of(store: StoreHarness, ids: list[int], narrow_rows: int) -> InferenceReader:
    """Return a reader for which every report lists these inferences."""
    return InferenceReader(
        store.url,
        store.journal_directory,
        store.blobs,
        narrow_rows=narrow_rows,
        cell_ids=lambda *_: ids,
    )


@pytest.mark.parametrize("narrow_rows", [0, 12, 10_000])
def test_lists_of_any_length_find_what_is_stored(store: StoreHarness, narrow_rows: int) -> None:
    stored = random.Random(2).sample(SEQS, 20)
    filler = range(1, 70_000)  # more than a statement may bind, of inferences that are not stored
    for listed in ([], stored[:1], stored, [*stored, *stored, *filler]):
        with closing(reader_of(store, listed, narrow_rows)) as reader:
            norths = {one.id for one in reader.query(QueryRequest(NORTH_TEXT)).inferences}
            ids = [str(seq) for seq in sorted(set(listed) & set(SEQS))]
            for order, expected in (("ts", ids), ("-ts", ids[::-1])):
                request = QueryRequest("report=a", order=order, limit=7)
                pages = list(reader.pages(request))
                assert [one.id for page in pages for one in page.inferences] == expected
            assert reader.count(QueryRequest("report=a")) == Count(len(ids), is_exact=True)
            both = reader.query(QueryRequest(f"report=a & {NORTH_TEXT} & latency_ms=ge:0"))
            assert [one.id for one in both.inferences] == [i for i in ids[::-1] if i in norths]
            either = reader.query(QueryRequest(f"report=a | {NORTH_TEXT}", limit=1000))
            assert {one.id for one in either.inferences} == norths | set(ids)
            neither = reader.query(QueryRequest(f"!report=a & !{NORTH_TEXT}", limit=1000))
            assert {one.id for one in neither.inferences} == set(map(str, SEQS)) - norths - set(ids)
            assert [int(i) for batch in reader.matching_ids("report=a") for i in batch] == list(map(int, ids))  # fmt: skip


def test_a_list_shows_a_team_no_inference_of_another(store: StoreHarness) -> None:
    with closing(reader_of(store, SEQS, 10_000)) as everything:
        for team in ("a", "b"):
            page = everything.within(Scope(team)).query(QueryRequest("report=a", limit=1000))
            assert {one.team for one in page.inferences} == {team}
            assert len(page.inferences) == (20 if team == "b" else 40)


def test_a_reader_without_reports_says_so(store: StoreHarness) -> None:
    reader = InferenceReader(store.url, store.journal_directory, store.blobs)
    with closing(reader), pytest.raises(QueryError, match="reports are with the server's data"):
        reader.query(QueryRequest("report=1-a"))
