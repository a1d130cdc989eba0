"""Numbers of images as fields of a filter: what they find on both databases, beside a definition in NumPy."""

import operator
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quadriga.store.query.inferences import Count, InferenceReader
from quadriga.store.query.request import QueryRequest, query_from_url
from quadriga.store.query.sql.search import Budget
from quadriga.store.records.records import IMAGE_STATISTICS, ImageSignals, SignalsOfImages
from quadriga.store.records.scope import Scope
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.1, -5.5, 1e-45, -1e-45, 1.1754944e-38, 5.877e-39, 3.4028235e38, -3.4e38,
          16777215.0, 1 / 3, 100.0, 0.5]  # fmt: skip
Numbers = dict[int, list[float]]


@pytest.fixture
def stored(database_url: str, tmp_path: Path) -> Iterator[tuple[StoreHarness, Numbers]]:
    chance, store = random.Random(4), StoreHarness(tmp_path, database_url)
    numbers: Numbers = {}
    for number in range(1, 61):
        store.commit(make_record(number << 24, team="ab"[number % 2], latency_ms=number))
        if number % 5:
            picture = np.array(chance.choices(FLOATS, k=len(IMAGE_STATISTICS)), np.float32)
            numbers[number << 24] = [float(value) for value in picture]
            signals = ImageSignals(number << 24, picture.astype("<f4").tobytes(), b"12", "space")
            store.commit_changes(SignalsOfImages([signals]))
    # One of another release has fewer numbers, one has an embedding alone.
    store.commit_changes(
        SignalsOfImages([ImageSignals(5 << 24, b"1234"), ImageSignals(10 << 24, embedding=b"12")])
    )
    yield store, numbers
    store.close()


@pytest.mark.parametrize("name", ["eq", "ne", "gt", "ge", "lt", "le"])
def test_signals_are_compared_as_they_were_measured(
    stored: tuple[StoreHarness, Numbers], name: str
) -> None:
    store, numbers = stored
    compare = getattr(operator, name)
    for position, statistic in enumerate(IMAGE_STATISTICS):
        for bound in map(float, np.float32(FLOATS)):
            expected = {seq for seq, values in numbers.items() if compare(values[position], bound)}
            if name == "ne":  # as everywhere: what has no number is not equal
                expected |= {number << 24 for number in range(1, 61)} - numbers.keys()
            where = {f"sig.image.{statistic}": {name: bound}}
            page = store.inferences.query(QueryRequest(where, limit=1000))
            assert {int(one.id) for one in page.inferences} == expected, (where, bound)


def test_signals_combine_with_other_fields_and_forms(stored: tuple[StoreHarness, Numbers]) -> None:
    store, numbers = stored
    bright = {seq for seq, values in numbers.items() if values[0] > 0.2}
    for request in (
        QueryRequest("sig.image.brightness=gt:0.2"),
        QueryRequest({"sig.image.brightness": {"gt": 0.2}}),
        query_from_url("sig.image.brightness=gt:0.2"),
    ):
        assert {int(one.id) for one in store.inferences.query(request).inferences} == bright
    with_signals = store.inferences.count(QueryRequest("sig.image.dark=exists:true"))
    assert with_signals == Count(len(numbers), is_exact=True)
    both = store.inferences.query(QueryRequest("sig.image.brightness=gt:0.2 & latency_ms=lt:30"))
    assert {int(one.id) for one in both.inferences} == {seq for seq in bright if seq < 30 << 24}
    of_team = store.inferences.within(Scope("a"))
    page = of_team.query(QueryRequest("sig.image.brightness=gt:0.2"))
    assert {int(one.id) for one in page.inferences} == {seq for seq in bright if seq >> 24 & 1 == 0}


def test_pages_of_signals_are_bounded_and_continue(stored: tuple[StoreHarness, Numbers]) -> None:
    store, numbers = stored
    reader = InferenceReader(
        store.url, store.journal_directory, store.blobs, budget=Budget(7, 1, 7)
    )
    with closing(reader):
        request = QueryRequest("sig.image.contrast=le:0.1", limit=3)
        pages = list(reader.pages(request))
        assert any(page.partial for page in pages)
        ids = [int(one.id) for page in pages for one in page.inferences]
        assert ids == sorted((seq for seq, v in numbers.items() if v[1] <= float(np.float32(0.1)) and v[1] <= 0.1), reverse=True)  # fmt: skip


def test_a_float_that_is_none_compares_with_nothing(file_store: StoreHarness) -> None:
    """Only finite numbers are stored; a file of another program does no harm."""
    file_store.commit(make_record(1 << 24))
    for broken in (float("nan"), float("inf")):
        data = np.full(len(IMAGE_STATISTICS), broken, "<f4").tobytes()
        file_store.commit_changes(SignalsOfImages([ImageSignals(1 << 24, data)]))
        where: dict[str, Any] = {"sig.image.blur": {"lt": 1e30}}
        assert file_store.inferences.query(QueryRequest(where)).inferences == []
