"""What is usual for the images of a model: percentiles of its newest measured images, and of nothing else."""

from typing import Any

import numpy as np
import pytest

from quadriga.store.browsing.image_measures import LEAST, NEWEST, find_usual_measures
from quadriga.store.records.records import (
    IMAGE_STATISTICS,
    ImageSignals,
    ModelReference,
    SignalsOfImages,
)
from quadriga.store.records.scope import Scope
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

OTHER = ModelReference("other", "1", "ee" * 32)


def measured(store: StoreHarness, numbers: Any, first: int = 1, **fields: Any) -> None:
    """Store an inference of each number, and the numbers as the brightness of its image."""
    ids = range(first, first + len(numbers))
    store.commit(*(make_record(id_, **fields) for id_ in ids))
    signals = []
    for id_, number in zip(ids, numbers, strict=True):
        statistics = np.zeros(len(IMAGE_STATISTICS), "<f4")
        statistics[:2] = number, -number
        signals.append(ImageSignals(id_, statistics.tobytes(), b"", ""))
    store.commit_changes(SignalsOfImages(signals))


def test_nine_in_ten_images_lie_between(store: StoreHarness) -> None:
    numbers = np.arange(100.0)
    measured(store, numbers)
    usual = find_usual_measures(store.inferences, "shapes-detector")
    assert usual.images == 100
    assert usual.spans.keys() == set(IMAGE_STATISTICS)
    assert usual.spans["brightness"] == pytest.approx(np.percentile(numbers, (5, 95)))
    assert usual.spans["contrast"] == pytest.approx(np.percentile(-numbers, (5, 95)))
    assert usual.spans["burnt"] == (0, 0)


def test_only_the_newest_count(store: StoreHarness) -> None:
    measured(store, [1000.0] * 50)
    measured(store, [5.0] * NEWEST, first=100)
    usual = find_usual_measures(store.inferences, "shapes-detector")
    assert (usual.images, usual.spans["brightness"]) == (NEWEST, (5, 5))


@pytest.mark.parametrize("count", [0, 1, LEAST - 1])
def test_of_a_few_images_nothing_is_usual(store: StoreHarness, count: int) -> None:
    store.commit(make_record(9000), *(make_record(9001 + number) for number in range(LEAST)))
    measured(store, [5.0] * count)
    usual = find_usual_measures(store.inferences, "shapes-detector")
    assert (usual.images, usual.spans) == (count, {})


def test_other_models_and_other_teams_do_not_count(store: StoreHarness) -> None:
    measured(store, [5.0] * LEAST, team="a")
    measured(store, [90.0] * LEAST, first=1000, team="b")
    measured(store, [70.0] * LEAST, first=2000, model=OTHER, team="a")
    usual = find_usual_measures(store.inferences.within(Scope("a")), "shapes-detector")
    assert (usual.images, usual.spans["brightness"]) == (LEAST, (5, 5))
    unseen = find_usual_measures(store.inferences.within(Scope("b")), "other")
    assert (unseen.images, unseen.spans) == (0, {})


def test_numbers_of_another_length_are_left_out(store: StoreHarness) -> None:
    measured(store, [5.0] * LEAST)
    store.commit(make_record(500))
    store.commit_changes(SignalsOfImages([ImageSignals(500, b"\x00" * 12, b"", "")]))
    assert find_usual_measures(store.inferences, "shapes-detector").images == LEAST
