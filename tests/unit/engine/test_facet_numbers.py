"""Facets of large numbers and of tasks: each has its own name, and its link finds as many as it counts."""

from collections.abc import Iterator

import pytest

from quadriga.engine.console.filter_line import FilterLinks, InferenceFilter
from quadriga.engine.console.pages.inferences import (
    CountedFacet,
    FacetGroup,
    counted_facets,
    facet_groups,
)
from quadriga.store.browsing.facets import (
    Facet,
    FacetsRequest,
    FacetValue,
    HistogramBin,
    find_facets,
)
from quadriga.store.query.request import QueryRequest
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

NUMBERS = {
    "around 2^53": [2**53 - 1, 2**53, 2**53 + 1, 2**53 + 3],
    "negative": [-(2**53) - 1, -(2**53) - 3, -1],
    "largest": [2**63 - 1, 2**63 - 2, -(2**63)],
    "nanoseconds": [1_790_000_000_123_456_789, 1_790_000_000_123_456_790],
    "milliseconds": [1_790_000_000_123, 1_790_000_000_124],
    "small": [0, 1, 2],
    "fractions": [0.1 + 0.2, 0.5, 1e300, -2e-7],
    "a whole number and its float": [2, 2.0, 2**53 + 1, float(2**53)],
}


@pytest.fixture
def store(tmp_path) -> Iterator[StoreHarness]:
    harness = StoreHarness(tmp_path, f"sqlite:///{tmp_path}/store.db")
    yield harness
    harness.close()


def groups_of(store: StoreHarness, line: str) -> dict[str, FacetGroup]:
    links = FilterLinks(InferenceFilter(line), lambda path, q: q, "/")
    facets = find_facets(store.inferences, FacetsRequest(line or {}))
    groups, _ = facet_groups(counted_facets(store.inferences, facets, links), links)
    return {group.facet.field: group for group in groups}


@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_the_link_of_a_number_finds_as_many_as_it_counts(store, numbers):
    store.commit(*(make_record(1 + at, metadata={"n": number}) for at, number in enumerate(numbers)))  # fmt: skip
    values = groups_of(store, "")["meta.n"].values
    assert len({value.name for value in values}) == len(values) == len(set(numbers))
    assert sum(value.count for value in values) == len(numbers)
    for value in values:
        assert store.inferences.count(QueryRequest(value.link)).count == value.count, value.name
        (chosen,) = [v for v in groups_of(store, value.link)["meta.n"].values if v.is_chosen]
        assert (chosen.name, chosen.count, chosen.link) == (value.name, value.count, "")


def test_a_task_has_its_plain_name_and_its_link_the_name_that_filters_have(store):
    tasks = ["OBJECT_DETECTION", "IMAGE_CLASSIFICATION"]
    store.commit(*(make_record(1 + at, task=task) for at, task in enumerate(tasks)))
    shown = groups_of(store, "")["task"].values
    assert {(value.name, value.link) for value in shown} == {
        ("detection", "task=OBJECT_DETECTION"),
        ("classification", "task=IMAGE_CLASSIFICATION"),
    }


def test_what_each_image_has_differently_comes_after_what_was_measured():
    def counted(field: str, counts: list[int], bins: int = 0) -> CountedFacet:
        values = [FacetValue(f"{field} {at}", count) for at, count in enumerate(counts[:8])]
        histogram = [HistogramBin(at, at + 1, 5) for at in range(bins)]
        kind = "number" if bins else "string"
        made = Facet(field, kind, sum(counts) or 40, len(counts), values, histogram)
        return CountedFacet(made, is_exact=True)

    facets = [
        counted("meta.path", [2, 2] + [1] * 40),
        counted("sig.image.blur", [], bins=4),
        counted("meta.frame", [900] * 200),
        counted("meta.camera", [30, 12]),
        counted("ground_truth.review", [3, 4]),
        counted("meta.few", [2, 1]),
    ]
    links = FilterLinks(InferenceFilter(""), lambda path, q: q, "/")
    groups, _ = facet_groups(facets, links)
    assert [group.facet.field for group in groups] == [
        "meta.camera", "meta.few", "sig.image.blur", "meta.path", "meta.frame", "ground_truth.review",
    ]  # fmt: skip
