"""What a page shows beside its list, when the database takes too long: the page is there without it."""

from collections.abc import Iterator

import pytest

from quadriga.engine.console.filter_line import FilterLinks, InferenceFilter
from quadriga.engine.console.pages.inference import SameImage, _usual_measures, find_same_image
from quadriga.engine.console.pages.inferences import BINS, VALUES, _hints, counted_facets
from quadriga.store.browsing.facets import FacetsRequest, find_facets
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import QueryTimeoutError
from quadriga.store.records.records import IMAGE_STATISTICS, InputReference, StoredSignals
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness, store_entries

FIRST = 700_000_000_000
FILTER = InferenceFilter("meta.camera=north & meta.light=day")
LINKS = FilterLinks(FILTER, lambda path, **options: options.get("q", ""), "/")


@pytest.fixture
def harness(tmp_path) -> Iterator[StoreHarness]:
    """Yield a store of one image that two models answered."""
    url = f"sqlite:///{tmp_path}/store.db"
    image = InputReference("image", "blake3:" + "0" * 64, 640, 480, "image/jpeg", kept=True)
    metadata = {"camera": "north", "light": "day"}
    records = [make_record(FIRST + n, input=image, metadata=metadata) for n in range(2)]
    store_entries(url, tmp_path / "journal", records)
    harness = StoreHarness(tmp_path, url)
    yield harness
    harness.close()


@pytest.fixture
def slow(harness: StoreHarness) -> Iterator[InferenceReader]:
    """Yield a reader whose only connection is in use, so that none becomes free in time."""
    reader = InferenceReader(
        harness.url, harness.journal_directory, harness.blobs, connections=1, timeout_s=0.5
    )
    with reader.snapshot():
        with pytest.raises(QueryTimeoutError):
            reader.query(QueryRequest())
        yield reader
    reader.close()


def test_facets_have_the_chosen_values_alone(harness, slow):
    request = FacetsRequest(FILTER.line, None, VALUES, BINS)
    facets = find_facets(harness.inferences, request)
    assert [counted.facet for counted in counted_facets(slow, facets, LINKS)] == facets.facets


def test_an_inference_is_shown_without_what_is_usual_and_without_other_answers(harness, slow):
    inference = harness.inferences.query(QueryRequest()).inferences[0]
    assert find_same_image(harness.inferences, inference).answers
    assert find_same_image(slow, inference) == SameImage()
    signals = StoredSignals(b"\0" * 4 * len(IMAGE_STATISTICS), b"", "")
    assert _usual_measures(slow, inference, signals).spans == {}


def test_an_empty_list_is_shown_without_hints(harness, slow):
    without = InferenceFilter("meta.camera=north & meta.light=night")
    assert [counted.count for _, counted, _ in _hints(harness.inferences, without, LINKS)] == [2]
    assert _hints(slow, without, LINKS) == []
