"""Choosing images by numbers alone: order, shares of sources, and distances."""

import numpy as np
import pytest

from quadriga.monitor.selection.choice import (
    BAND,
    SelectionCandidates,
    best_first,
    choose,
    mean_percentiles,
    places_within,
    source_quotas,
    within_quotas,
)
from quadriga.monitor.selection.diversity import Embedded, is_usable, spread_out
from quadriga.monitor.selection.stored import NOTHING, uncertainty_of

NAN = float("nan")


def scored(*scores):
    return [{"label": f"label {number}", "score": score} for number, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("task", "predictions", "expected"),
    [
        ("IMAGE_CLASSIFICATION", '[{"label":"a","score":0.6},{"label":"b","score":0.3}]', (0.7, "margin")),
        ("IMAGE_CLASSIFICATION", '[{"label":"b","score":0.3},{"label":"a","score":0.3}]', (1, "margin")),
        ("IMAGE_CLASSIFICATION", '[{"label":"a","score":0.9}]', (0.1, "best score")),
        ("IMAGE_CLASSIFICATION", "[]", (1, "nothing predicted")),
        ("IMAGE_CLASSIFICATION", '[{"label":"a"}]', None),
        ("IMAGE_CLASSIFICATION", '[{"label":"a","score":null},{"label":"b","score":"0.4"}]', None),
        ("OBJECT_DETECTION", '[{"label":"a","score":0.9},{"label":"a","score":0.3}]', (0.7, "lowest score")),
        ("OBJECT_DETECTION", "[]", (NOTHING, "nothing predicted")),
        ("ORIENTED_OBJECT_DETECTION", '[{"label":"a","score":1.5}]', (0, "lowest score")),
        ("IMAGE_SEGMENTATION", '[{"label":"a","score":-3}]', (1, "lowest score")),
        ("IMAGE_SEGMENTATION", '[{"label":"a","score":true}]', None),
        ("IMAGE_TEXT_TO_TEXT", '[{"prompt":"what?","answer":"a dog"}]', None),
        ("IMAGE_TEXT_TO_TEXT", '[{"prompt":"what?","answer":"a dog","score":0.25}]', (0.75, "lowest score")),
        ("IMAGE_TEXT_TO_TEXT", "[]", None),
        ("TENSOR", '[{"score":0.5}]', None),
        ("TENSOR", '{"shape":[1]}', None),
        ("OBJECT_DETECTION", '{"label":"a"}', None),
    ],
)  # fmt: skip
def test_uncertainty_is_that_of_the_task(task, predictions, expected):
    uncertainty = uncertainty_of(task, predictions)
    if expected is None:
        assert uncertainty is None
    else:
        assert (uncertainty.value, uncertainty.basis) == (pytest.approx(expected[0]), expected[1])


def test_percentiles_weigh_columns_of_any_scale_alike_and_leave_out_what_is_missing():
    small = np.array([0.1, 0.2, 0.3, NAN, np.inf])
    large = np.array([900.0, 500, 100, 700, NAN])
    means = mean_percentiles([small, large])
    assert means[:3] == pytest.approx(
        [(1 / 6 + 7 / 8) / 2, (1 / 2 + 3 / 8) / 2, (5 / 6 + 1 / 8) / 2]
    )
    assert means[3] == pytest.approx(5 / 8)
    assert means[4] == -1
    assert mean_percentiles([np.full(3, 7.0)]).tolist() == [0.5] * 3
    assert mean_percentiles([np.zeros(0)]).tolist() == []


def test_ties_are_broken_by_the_keys():
    keys = np.array([5, 1, 3, 2], np.uint64)
    assert best_first(np.array([0.5, 0.5, 0.9, 0.5]), keys).tolist() == [2, 1, 3, 0]


@pytest.mark.parametrize(
    ("sources", "count", "expected"),
    [
        ([], 3, []),
        ([0, 0, 0, 0], 2, [2]),
        ([0, 0, 0, 0], 9, [4]),
        ([0, 0, 0, 0, 1, 1], 4, [2, 2]),
        ([0, 0, 0, 0, 1], 4, [3, 1]),
        ([0, 1, 1, 0, 2], 1, [1, 0, 0]),
        ([2, 1, 1, 0, 2], 2, [0, 1, 1]),
        ([0, 1, 1, 1, 0, 2, 0], 5, [2, 2, 1]),
        ([0, 1, 1, 1, 0, 2, 0], 6, [2, 3, 1]),
    ],
)
def test_no_source_gets_more_than_its_share_while_others_have_candidates(sources, count, expected):
    quotas = source_quotas(np.array(sources, np.int64), count)
    assert quotas.tolist() == expected


def test_shares_of_many_sources_are_exact():
    rng = np.random.default_rng(0)
    for _ in range(200):
        sources = rng.integers(0, rng.integers(1, 9), rng.integers(1, 40))
        count = int(rng.integers(1, 50))
        quotas, sizes = source_quotas(sources, count), np.bincount(sources)
        assert quotas.sum() == min(count, len(sources))
        assert (quotas <= sizes).all()
        has_more = quotas < sizes
        assert not has_more.any() or quotas.max() - quotas[has_more].min() <= 1


def test_the_first_of_each_source_are_within_its_quota():
    sources = np.array([1, 0, 1, 1, 0])
    assert places_within(sources).tolist() == [0, 0, 1, 2, 1]
    assert within_quotas(sources, np.array([1, 2])).tolist() == [True, True, True, False, False]
    assert within_quotas(sources[:0], np.zeros(0, np.int64)).tolist() == []


def at_degrees(*degrees):
    radians = np.deg2rad(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float16).reshape(-1, 2)


def embedded(degrees, labelled=(), rows=None):
    rows = np.arange(len(degrees)) if rows is None else np.array(rows)
    ids = 100 + np.arange(len(labelled))
    return Embedded(rows, at_degrees(*degrees), at_degrees(*labelled), ids)


def spread(embeddings, *, count, sources=None):
    sources = np.zeros(count, np.int64) if sources is None else np.array(sources)
    ids = np.arange(len(sources)) + 1
    return ids, sources, embeddings


def test_each_image_is_the_farthest_from_those_before():
    ids, sources, embeddings = spread(embedded([0, 10, 90, 180]), count=4)
    picks = spread_out(ids, sources, np.array([3]), embeddings)
    assert [pick.row for pick in picks] == [0, 3, 2]
    assert [pick.nearest_id for pick in picks] == [None, 1, 1]
    assert picks[0].distance is None
    assert picks[1].distance == pytest.approx(2, abs=1e-2)
    assert picks[2].distance == pytest.approx(2**0.5, abs=1e-2)


def test_labelled_images_come_first():
    ids, sources, embeddings = spread(embedded([-20, 10, 90], labelled=[180, 5, 90]), count=3)
    picks = spread_out(ids, sources, np.array([3]), embeddings)
    assert [pick.row for pick in picks] == [0, 1, 2]
    assert [pick.nearest_id for pick in picks] == [101, 101, 102]
    assert picks[2].distance == pytest.approx(0, abs=1e-2)


def test_equal_embeddings_are_chosen_in_their_order():
    ids, sources, embeddings = spread(embedded([7] * 6), count=6)
    picks = spread_out(ids, sources, np.array([4]), embeddings)
    assert [pick.row for pick in picks] == [0, 1, 2, 3]


def test_images_without_an_embedding_come_last_and_fill_their_source():
    ids, sources, embeddings = spread(
        embedded([0, 90], rows=[1, 3]), count=5, sources=[0, 0, 1, 1, 1]
    )
    picks = spread_out(ids, sources, np.array([2, 2]), embeddings)
    assert [pick.row for pick in picks] == [1, 3, 0, 2]
    assert [pick.distance is None for pick in picks] == [True, False, True, True]


def test_embeddings_without_a_direction_cannot_be_compared():
    rows = np.array([[1, 0], [0, 0], [np.inf, 1], [np.nan, 1], [-0.0, 2]], np.float16)
    assert is_usable(rows).tolist() == [True, False, False, False, True]
    assert is_usable(rows[:0]).tolist() == []


class HeldEmbeddings:
    """Embeddings in memory, by inference, in degrees."""

    def __init__(self, degrees):
        self.degrees = degrees
        self.read_ids = []

    def __call__(self, ids):
        self.read_ids = ids.tolist()
        return embedded([self.degrees[id_] for id_ in self.read_ids])


def candidates(uncertainties, drifts=None, sources=None):
    count = len(uncertainties)
    drifts = [NAN] * count if drifts is None else drifts
    sources = [0] * count if sources is None else sources
    keys = np.arange(count, dtype=np.uint64)
    columns = np.array(uncertainties, np.float64), np.array(drifts, np.float64)
    return SelectionCandidates(np.arange(count) + 1, keys, *columns, np.array(sources, np.int64))


def rows_of(choice):
    return [pick.row for pick in choice.picks]


def test_without_diversity_the_first_are_taken_and_no_embedding_is_read():
    embeddings = HeldEmbeddings({})
    choice = choose(candidates([0.1, 0.9, NAN, 0.5]), 3, ["uncertainty"], embeddings)
    assert rows_of(choice) == [1, 3, 0]
    assert embeddings.read_ids == []
    choice = choose(candidates([0.1, 0.9, 0.5], drifts=[1, NAN, 0.2]), 2, ["drift"], embeddings)
    assert rows_of(choice) == [0, 2]
    assert rows_of(choose(candidates([]), 3, ["uncertainty", "diversity"], embeddings)) == []


def test_diversity_chooses_within_the_band_of_the_first():
    uncertainties = [1 - number / 20 for number in range(20)]
    embeddings = HeldEmbeddings({number: number * 9 for number in range(1, 21)})
    choice = choose(candidates(uncertainties), 2, ["uncertainty", "diversity"], embeddings)
    assert embeddings.read_ids == list(range(1, 2 * BAND + 1))
    assert rows_of(choice) == [0, 9]
    assert (choice.band, choice.embedded) == (10, 10)


def test_more_than_there_are_is_all_of_them():
    embeddings = HeldEmbeddings({1: 0, 2: 90, 3: 180})
    for by in (["uncertainty"], ["diversity"], ["uncertainty", "diversity", "drift"]):
        choice = choose(candidates([NAN, NAN, NAN], sources=[0, 1, 1]), 500, by, embeddings)
        assert sorted(rows_of(choice)) == [0, 1, 2]


def test_a_source_that_is_always_unsure_does_not_crowd_out_the_others():
    uncertainties = [0.9] * 50 + [0.1] * 3
    sources = [0] * 50 + [1] * 3
    for by in (["uncertainty"], ["uncertainty", "diversity"]):
        embeddings = HeldEmbeddings({number: number * 3 for number in range(1, 54)})
        choice = choose(candidates(uncertainties, sources=sources), 6, by, embeddings)
        assert sorted(np.array(sources)[rows_of(choice)].tolist()) == [0, 0, 0, 1, 1, 1]
