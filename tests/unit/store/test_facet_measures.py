"""Facets of what was measured on images: as many as there are, of the images that may be seen, and their ends are filters."""

import numpy as np
import pytest

from quadriga.store.browsing import facets
from quadriga.store.browsing.facets import MEASURES, FacetsRequest, find_facets, tail_bound
from quadriga.store.query.filters.syntax import SIGNAL_FIELDS
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.records import ImageSignals, JournaledChange, SignalsOfImages
from quadriga.store.records.scope import Scope
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness, store_entries

FIRST = 700_000_000_000
COUNT = 40


def numbers(place: int) -> bytes:
    """Return the numbers of an image: each is its place among the images, and a tenth for each field before it."""
    return np.array([place + 0.1 * n for n in range(len(SIGNAL_FIELDS))], "<f4").tobytes()


@pytest.fixture
def harness(tmp_path):
    """Yield a store of images of two teams, of which the last was not measured, and the one before by another release."""
    url = f"sqlite:///{tmp_path}/store.db"
    records = [make_record(FIRST + n, team="ab"[n % 2]) for n in range(COUNT)]
    measured = [ImageSignals(FIRST + n, numbers(n)) for n in range(COUNT - 2)]
    measured.append(ImageSignals(FIRST + COUNT - 2, numbers(0)[:-4]))
    change = JournaledChange(FIRST + 1000, SignalsOfImages(measured))
    store_entries(url, tmp_path / "journal", [*records, change])
    harness = StoreHarness(tmp_path, url)
    yield harness
    harness.close()


def measures(answer):
    return {facet.field: facet for facet in answer.facets if facet.field.startswith("sig.")}


def test_each_measure_is_counted_where_it_was_measured(harness):
    found = measures(find_facets(harness.inferences, FacetsRequest()))
    assert list(found) == sorted(MEASURES)
    for field, facet in found.items():
        assert (facet.type, facet.count, facet.values) == ("number", COUNT - 2, [])
        offset = 0.1 * SIGNAL_FIELDS.index(field)
        for bin_ in facet.histogram:
            assert bin_.count == sum(bin_.low <= n + offset < bin_.high for n in range(COUNT - 2))


@pytest.mark.parametrize("field", MEASURES)
def test_the_ends_are_filters_that_find_a_quarter_at_most(harness, field):
    (facet,) = find_facets(harness.inferences, FacetsRequest(fields=[field])).facets
    for operator in ("lt", "ge"):
        bound = tail_bound(facet.histogram, is_low=operator == "lt")
        count = harness.inferences.count(QueryRequest(f"{field}={operator}:{bound}")).count
        assert 0 < count <= facet.count / 4


def test_a_team_has_the_measures_of_its_own_images(harness):
    found = measures(find_facets(harness.inferences.within(Scope(team="b")), FacetsRequest()))
    assert {facet.count for facet in found.values()} == {COUNT // 2 - 1}


def test_of_many_matches_some_images_stand_for_all(harness, monkeypatch):
    monkeypatch.setattr(facets, "MEASURED", 10)
    found = measures(find_facets(harness.inferences, FacetsRequest()))
    for facet in found.values():
        assert facet.distinct <= 10
        assert abs(facet.count - (COUNT - 2)) <= 4
        assert sum(bin_.count for bin_ in facet.histogram) == facet.count


def test_other_fields_alone_have_no_measures(harness):
    assert measures(find_facets(harness.inferences, FacetsRequest(fields="model,label"))) == {}


def test_few_different_numbers_are_no_list_of_values(harness):
    where = {"id": {"in": [str(FIRST), str(FIRST + 1)]}}
    found = measures(find_facets(harness.inferences, FacetsRequest(where)))
    assert [(facet.count, facet.distinct, facet.values) for facet in found.values()] == [(2, 2, [])] * 3  # fmt: skip
