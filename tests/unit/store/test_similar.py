"""Inferences that resemble one: the order, what cannot be compared, what a caller may not see, and the limits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quadriga.store.browsing import similar
from quadriga.store.browsing.similar import (
    SimilarRequest,
    find_similar,
    has_direction,
)
from quadriga.store.query.request import request_from_url
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.store.records.records import ImageSignals, InputReference, SignalsOfImages
from quadriga.store.records.scope import Scope
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

FIRST = 700_000_000_000
SPACE, OTHER_SPACE = "ab" * 8, "cd" * 8


def of_image(number: int) -> InputReference:
    return InputReference("image", f"blake3:{number:064x}", 640, 480, "image/jpeg")


def halves(*numbers: float) -> bytes:
    return np.array(numbers, "<f2").tobytes()


EMBEDDINGS: dict[int, tuple[bytes, str]] = {
    1: (halves(1, 0, 0), SPACE),
    2: (halves(5, 5, 0), SPACE),  # 45 degrees
    3: (halves(-2, 0, 0), SPACE),  # the opposite
    4: (halves(0.5, 0.0625, 0), SPACE),
    5: (halves(1, 0, 0), OTHER_SPACE),
    6: (halves(1, 0), SPACE),  # another length
    7: (halves(np.inf, 0, 0), SPACE),
    8: (halves(np.nan, 0, 0), SPACE),
    9: (halves(0, 0, 0), SPACE),
    10: (b"odd", SPACE),
    11: (b"", ""),
    12: (halves(1, 0, 0), SPACE),  # the same bytes of the image as 1
    14: (halves(3, 0, 0), SPACE),  # of the other team
    15: (halves(8, 1, 0), SPACE),  # as similar as 4, and newer
}  # fmt: skip


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[StoreHarness]:
    harness = StoreHarness(tmp_path, database_url)
    for number in range(1, 17):
        harness.commit(
            make_record(
                FIRST + number,
                team="b" if number == 14 else "a",
                input=of_image(1 if number == 12 else number),
                metadata={"even": number % 2 == 0},
            )
        )
    harness.commit_changes(
        SignalsOfImages(
            [
                ImageSignals(FIRST + number, b"", embedding, space)
                for number, (embedding, space) in EMBEDDINGS.items()
            ]
        )
    )
    yield harness
    harness.close()


def similar_to(
    store: StoreHarness, number: int, scope: Scope | None = None, **request: Any
) -> tuple[list[int], int, bool]:
    reader = store.inferences if scope is None else store.inferences.within(scope)
    answer = find_similar(reader, str(FIRST + number), SimilarRequest(**request))
    return [int(item.id) - FIRST for item in answer.inferences], answer.compared, answer.partial


def test_the_most_similar_come_first_and_what_cannot_be_compared_not_at_all(store):
    assert similar_to(store, 1) == ([14, 15, 4, 2, 3], 5, False)
    answer = find_similar(store.inferences, str(FIRST + 1), SimilarRequest())
    cosines = [item.similarity for item in answer.inferences]
    assert cosines == pytest.approx([1, 65**-0.5 * 8, 65**-0.5 * 8, 2**-0.5, -1], abs=1e-5)
    assert similar_to(store, 5) == ([], 0, False)
    assert similar_to(store, 2, limit=1) == ([15], 6, False)


def test_only_matches_of_the_filter_are_compared(store):
    assert similar_to(store, 1, where={"meta.even": True}) == ([14, 4, 2], 3, False)
    assert similar_to(store, 1, where="meta.even=false") == ([15, 3], 2, False)
    assert similar_to(store, 1, where={"meta.none": 1}) == ([], 0, False)
    newest = str(FIRST + 15)
    assert similar_to(store, 1, where={"id": {"ge": newest}}) == ([15], 1, False)


def test_a_team_sees_its_own_alone(store):
    assert similar_to(store, 1, Scope(team="a")) == ([15, 4, 2, 3], 4, False)
    for number in (1, 99):
        with pytest.raises(NotFoundError, match="inference not found"):
            similar_to(store, number, Scope(team="b"))
    assert similar_to(store, 14, Scope(team="b")) == ([], 0, False)


@pytest.mark.parametrize("number", [7, 8, 9, 10, 11, 13])
def test_without_an_embedding_nothing_is_similar(store, number):
    with pytest.raises(NotFoundError, match="no embedding"):
        similar_to(store, number)
    assert not has_direction(EMBEDDINGS.get(number, (None, ""))[0])


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_batches_change_nothing(store, monkeypatch, batch):
    monkeypatch.setattr(similar, "_MAX_BATCH", batch)
    assert similar_to(store, 1) == ([14, 15, 4, 2, 3], 5, False)
    assert similar_to(store, 1, where={"meta.even": True}) == ([14, 4, 2], 3, False)


def test_at_most_so_many_are_looked_at_the_newest(store, monkeypatch):
    monkeypatch.setattr(similar, "_MAX_BATCH", 2)
    monkeypatch.setattr(similar, "MAX_COMPARED", 3)
    assert similar_to(store, 1) == ([14, 15], 2, True)
    monkeypatch.setattr(similar, "MAX_COMPARED", 16)
    assert similar_to(store, 1) == ([14, 15, 4, 2, 3], 5, False)


def test_what_takes_too_long_ends_with_what_was_compared(store, monkeypatch):
    monkeypatch.setattr(similar, "_MAX_BATCH", 3)
    monkeypatch.setattr(similar, "MAX_S", -1.0)
    assert similar_to(store, 1) == ([14, 15], 2, True)
    assert similar_to(store, 1, where={"meta.even": True}) == ([14], 1, True)


@pytest.mark.parametrize("inference_id", ["", "x", "-1", "1" * 30])
def test_a_malformed_id_is_refused(store, inference_id):
    with pytest.raises(QueryError):
        find_similar(store.inferences, inference_id, SimilarRequest())


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "by=score", "q=(", "q=nothing=5"])  # fmt: skip
def test_a_malformed_query_is_refused(store, query):
    with pytest.raises(QueryError):
        find_similar(store.inferences, str(FIRST + 1), request_from_url(query, SimilarRequest))


def test_a_query_of_a_url_is_read(store):
    assert request_from_url("meta.even=true&limit=2", SimilarRequest) == SimilarRequest(
        '"meta.even"=true', 2
    )
