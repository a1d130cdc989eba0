"""Estimated accuracy of stored inferences without ground truth, on both databases."""

import numpy as np
import pytest

from quadriga.monitor.drift.estimates import estimate_stored_accuracy
from quadriga.monitor.drift.parameters import DriftParameters, StoredWindow
from quadriga.monitor.drift.stored import compare_stored
from quadriga.store.records.records import InputReference, ModelReference, TruthStatement
from tests.unit.monitor.drift.window_reports import id_at_second, time_at_second
from tests.unit.store.conftest import make_record

MODEL = ModelReference("one", "1", "aa" * 32)
TASK = "IMAGE_CLASSIFICATION"
KNOWN, ASKED = 200, 150


IDS = np.array([id_at_second(second) for second in range(1, KNOWN + ASKED + 1)])


def fill(store, *, labels=2):
    """Answer with the chance to be right as score; of the first the truth is known."""
    draw = np.random.default_rng(3)
    records, truths = [], []
    for second in range(1, KNOWN + ASKED + 1):
        score = float(draw.uniform(0.5, 1.0 if second <= KNOWN else 0.7))
        predictions = [{"label": "a", "score": score}, {"label": "b", "score": 1 - score}][:labels]
        image = InputReference("image", f"blake3:{second:064x}", 64, 48, "image/jpeg", bytes=900)
        records.append(
            make_record(
                id_at_second(second), model=MODEL, task=TASK, predictions=predictions, input=image
            )
        )
        truth = "a" if draw.random() < score else "b"
        truths.append(TruthStatement("id", str(id_at_second(second)), [{"label": truth}]))
    store.commit(*records)
    store.commit_changes(*truths[:KNOWN])


def test_the_report_of_a_classifier_has_its_estimated_accuracy(store):
    fill(store)
    times = [time_at_second(second) for second in (0, KNOWN + 1)]
    parameters = DriftParameters("one", start=times[1], baseline=StoredWindow(*times))
    metrics = compare_stored(store.inferences, parameters).metrics
    assert [metric.parameters["method"] for metric in metrics] == [
        "atc_max_confidence",
        "atc_negative_entropy",
        "cbpe",
    ]
    assert metrics[2].value == pytest.approx(0.6, abs=0.1)
    assert (metrics[2].n, metrics[2].parameters["n_baseline"]) == (ASKED, KNOWN)
    assert metrics == estimate_stored_accuracy(store.inferences, TASK, IDS[:KNOWN], IDS[KNOWN:])


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_single_label_gives_no_entropy_estimate(store):
    fill(store, labels=1)
    metrics = estimate_stored_accuracy(store.inferences, TASK, IDS[:KNOWN], IDS[KNOWN:])
    assert [metric.parameters["method"] for metric in metrics] == ["atc_max_confidence", "cbpe"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("task", "baseline"),
    [("OBJECT_DETECTION", IDS[:KNOWN]), (TASK, IDS[:99]), (TASK, IDS[KNOWN:]), (TASK, IDS[:0])],
    ids=["task", "few", "none", "empty"],
)
def test_without_ground_truth_there_is_no_estimate(store, task, baseline):
    fill(store)
    assert estimate_stored_accuracy(store.inferences, task, baseline, IDS[KNOWN:]) == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_unusable_predictions_are_skipped(store):
    fill(store)
    image = InputReference("image", None, 64, 48, "image/jpeg")
    for at, predictions in enumerate(([], [{"label": "a", "score": 0.9}])):
        seq = id_at_second(1000 + at)
        store.commit(make_record(seq, model=MODEL, task=TASK, predictions=predictions, input=image))
        store.commit_changes(TruthStatement("id", str(seq), [{"label": "a"}] * (1 + at)))
    more = [id_at_second(1000), id_at_second(1001)]
    metrics = estimate_stored_accuracy(
        store.inferences, TASK, np.array([*IDS[:KNOWN], *more]), np.array(more)
    )
    assert [(metric.n, metric.parameters["n_baseline"]) for metric in metrics] == [(1, KNOWN)] * 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_boxes_of_the_same_images_change_no_estimate(store):
    fill(store)
    before = estimate_stored_accuracy(store.inferences, TASK, IDS[:KNOWN], IDS[KNOWN:])
    box = {"label": "b", "xmin": 1, "ymin": 1, "xmax": 9, "ymax": 9}
    store.commit_changes(
        *(
            TruthStatement("input.hash", f"blake3:{second:064x}", [box])
            for second in range(1, KNOWN + ASKED + 1)
        )
    )
    after = estimate_stored_accuracy(store.inferences, TASK, IDS[:KNOWN], IDS[KNOWN:])
    assert after == before
    assert before


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_rejected_truth_is_no_truth(store):
    fill(store)
    rejected = [
        TruthStatement("id", str(id_), [{"label": "b"}], review="rejected") for id_ in IDS[:50]
    ]
    store.commit_changes(*rejected)
    metrics = estimate_stored_accuracy(store.inferences, TASK, IDS[:KNOWN], IDS[KNOWN:])
    assert metrics[-1].parameters["n_baseline"] == KNOWN - 50
