"""Pairs of predictions and objects, whatever their labels, and matches in parts."""

import numpy as np
import pytest

from quadriga.monitor.evaluation.objects import matching
from quadriga.monitor.evaluation.objects.average_precision import AREA_RANGES, IOU_THRESHOLDS
from quadriga.monitor.evaluation.objects.matching import (
    CORRECT,
    OverlapPairs,
    match_objects,
    near_pairs,
)


@pytest.fixture(params=[1 << 17, 40], ids=["at once", "in parts"])
def at_once(request, monkeypatch):
    monkeypatch.setattr(matching, "_AT_ONCE", request.param)


def made(seed, images=7, count=60):
    """Make predictions and objects in any order, with overlaps of few values."""
    pick = np.random.default_rng(seed)
    overlaps = pick.choice([0, 0.05, 0.3, 0.5, 0.55, 0.9, 1.0], (count, count))
    predictions = {
        "image": pick.integers(0, images, count),
        "label": pick.integers(0, 3, count),
        "score": pick.choice([0.1, 0.5, 0.9], count),
        "area": pick.uniform(0, 20_000, count),
    }
    truths = {
        "image": pick.integers(0, images, count),
        "label": pick.integers(0, 3, count),
        "area": pick.uniform(0, 20_000, count),
        "crowd": pick.random(count) < 0.1,
        "difficult": pick.random(count) < 0.1,
    }
    return predictions, truths, overlaps


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("seed", range(2))
def test_near_pairs_are_all_of_an_image_that_overlap_enough(seed):
    predictions, truths, overlaps = made(seed)
    pairs = near_pairs(
        predictions, truths, lambda prediction, annotation: overlaps[prediction, annotation], 0.3
    )
    together = predictions["image"][:, None] == truths["image"]
    expected = np.argwhere(together & (overlaps >= 0.3))
    order = np.lexsort((pairs.truth, pairs.prediction))
    np.testing.assert_array_equal(pairs.prediction[order], expected[:, 0])
    np.testing.assert_array_equal(pairs.truth[order], expected[:, 1])
    candidates = np.argwhere(np.ones_like(overlaps, bool))
    looked_up = pairs.overlaps()(candidates[:, 0], candidates[:, 1]).reshape(overlaps.shape)
    np.testing.assert_array_equal(looked_up, np.where(together & (overlaps >= 0.3), overlaps, 0))


def test_no_pairs_overlap_by_nothing():
    predictions, truths, overlaps = made(0)
    pairs = near_pairs(
        predictions, truths, lambda prediction, annotation: overlaps[prediction, annotation], 2
    )
    assert pairs.overlaps()(np.arange(5), np.arange(5)).tolist() == [0] * 5


def test_of_each_prediction_the_last_pair_counts():
    pairs = OverlapPairs(np.array([0, 2, 0]), np.array([4, 5, 6]), np.array([0.9, 0.5, 0.7]))
    overlap, matched_object = pairs.last_of_each(3)
    assert overlap.tolist() == [0.7, 0, 0.5]
    assert matched_object.tolist() == [6, -1, 5]


@pytest.mark.parametrize(("areas", "matched_object"), [((0, 5000), 0), ((5000, 0), 1)])
def test_the_matched_object_is_that_of_the_first_range(areas, matched_object):
    """The second object, which overlaps less, is preferred where the first is too small to count."""
    one, two = np.zeros(1, int), np.zeros(2, int)
    ranked = match_objects(
        {"image": one, "label": one, "score": np.ones(1), "area": np.full(1, 9000.0)},
        {"image": two, "label": two, "area": np.array([10.0, 9000.0]), "crowd": two > 0, "difficult": two > 0},
        lambda _, annotation: np.array([0.9, 0.6])[annotation],
        thresholds=np.array([0.5]),
        areas=np.array([(minimum, 1e10) for minimum in areas]),
        max_detections=1,
        shape=(1, 1),
    )  # fmt: skip
    assert ranked.matched_object.tolist() == [matched_object]
    assert (ranked.outcome == CORRECT).all()
    assert ranked.outcome.dtype == np.uint8


def test_predictions_of_equal_scores_are_in_the_order_of_very_many_images():
    image = np.array([131_071, 65_539, 3, 70_000, 65_536, 65_535])
    zeros, none = np.zeros(6, int), np.zeros(0, int)
    ranked = match_objects(
        {"image": image, "label": zeros, "score": zeros + 0.5, "area": zeros + 1.0},
        {"image": none, "label": none, "area": none, "crowd": none > 0, "difficult": none > 0},
        lambda prediction, _: np.zeros(len(prediction)),
        thresholds=IOU_THRESHOLDS,
        areas=AREA_RANGES,
        max_detections=1,
        shape=(1, 131_072),
    )
    assert ranked.image.tolist() == sorted(image.tolist())


@pytest.mark.parametrize("seed", range(2))
def test_matching_in_parts_is_matching_at_once(seed, monkeypatch):
    predictions, truths, overlaps = made(seed)

    def matched():
        return match_objects(
            predictions,
            truths,
            lambda prediction, annotation: overlaps[prediction, annotation],
            thresholds=IOU_THRESHOLDS,
            areas=AREA_RANGES,
            max_detections=4,
            shape=(3, 7),
        )._replace(actual_counts=None)

    at_once = matched()
    monkeypatch.setattr(matching, "_AT_ONCE", 10)
    for at_once_column, chunked_column in zip(at_once, matched(), strict=True):
        np.testing.assert_array_equal(at_once_column, chunked_column)
