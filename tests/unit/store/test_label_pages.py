"""Labels are found in order, wherever their scores lie among the bands of the index; on both databases."""

import operator
from typing import Any

import pytest

from quadriga.store.database.schema import SCORE_BANDS, score_band
from quadriga.store.query.inferences import QueryRequest
from quadriga.store.records.records import timestamp_text
from tests.unit.store_harness import StoreHarness

SCORES = [
    None,
    -2.0,
    0.0,
    *(edge + step for edge in SCORE_BANDS for step in (-1e-9, 0.0)),
    1.0,
    1.5,
] * 2
BOUNDS = (-3.0, 0.25, 0.95, 0.9375, 1.0, 2.0)
COMPARED = {"ge": operator.ge, "gt": operator.gt, "lt": operator.lt, "le": operator.le}


def scored(name: str, score: float | None) -> dict[str, Any]:
    return {"label": name} if score is None else {"label": name, "score": score}


@pytest.fixture
def labelled(store: StoreHarness, record) -> StoreHarness:
    store.add(
        *(
            record(seq, predictions=[scored("a", score), scored("b", 0.5)])
            for seq, score in enumerate(SCORES)
        )
    )
    return store


def ids(store: StoreHarness, where: Any, order: str, limit: int = 7) -> list[int]:
    request = QueryRequest(where=where, order=order, limit=limit)  # type: ignore[arg-type]
    return [
        int(inference.id)
        for page in store.inferences.pages(request)
        for inference in page.inferences
    ]


def passing(name: str, bound: float) -> list[int]:
    compare = COMPARED[name]
    return [seq for seq, score in enumerate(SCORES) if score is not None and compare(score, bound)]


def test_each_bound_finds_its_scores(labelled: StoreHarness) -> None:
    for bound in BOUNDS:
        for name in COMPARED:
            where = {"label": {"name": "a", "score": {name: bound}}}
            expected = passing(name, bound)
            assert ids(labelled, where, "ts") == expected, (name, bound)
            assert ids(labelled, where, "-ts") == expected[::-1], (name, bound)
            assert labelled.inferences.count(QueryRequest(where)).count == len(expected)


def test_an_or_of_more_labels_than_are_merged(labelled: StoreHarness) -> None:
    expected = passing("ge", 0.9375)
    parts = [
        {"label": {"name": "a", "score": {"ge": bound}}} for bound in (0.99, 0.9375, 0.95, 1.2)
    ]
    both = {"label": {"name": {"in": ["a", "b"]}, "score": {"ge": 0.9375}}}
    for where in ({"or": parts[:2]}, {"or": parts}, {"or": [*parts, both]}, both):
        assert ids(labelled, where, "-ts") == expected[::-1]
        assert labelled.inferences.count(QueryRequest(where)).count == len(expected)


def test_a_larger_score_has_no_smaller_band() -> None:
    numbers = sorted(score for score in SCORES if score is not None)
    assert [score_band(score) for score in (-float("inf"), *SCORE_BANDS)] == list(
        range(len(SCORE_BANDS) + 1)
    )
    assert sorted(map(score_band, numbers)) == [score_band(score) for score in numbers]


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_769_990_399_999, "2026-02-01T23:59:59.999Z"),
        (1_709_164_801_007, "2024-02-29T00:00:01.007Z"),
    ],
)
def test_a_moment_is_written_as_text(milliseconds: int, text: str) -> None:
    assert timestamp_text(milliseconds) == text
