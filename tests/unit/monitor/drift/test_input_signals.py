"""Numeric features of stored tensors as signals of drift, on both databases."""

import numpy as np

from quadriga.monitor.drift.parameters import DriftParameters, StoredWindow
from quadriga.monitor.drift.stored import compare_stored
from quadriga.store.blobs.tensor_file import MAX_FEATURES, MEDIA_TYPE, encode_tensors
from quadriga.store.records.records import InputReference, ModelReference
from tests.unit.monitor.drift.window_reports import id_at_second, time_at_second
from tests.unit.store.conftest import make_record

MODEL = ModelReference("one", "1", "aa" * 32)
MIDDLE = 1000
"""The second in which the baseline ends."""


def fill(store, seconds, *, shift=0.0, features=("age", "income"), width=2, task="TENSOR", rows=1):
    """Store inferences whose first feature is shifted."""
    draw = np.random.default_rng(min(seconds))
    records = []
    for second in seconds:
        values = draw.normal(size=(rows, width)).astype("<f4")
        values[:, 0] += shift
        raw = values.tobytes()
        data = encode_tensors([("x", "FP32", values.shape, raw)], rows=rows, features=features)
        key = store.blobs.put(data)
        input_ = InputReference("x", key, mime=MEDIA_TYPE, kept=True, bytes=len(data))
        predictions = [{"name": "y", "datatype": "FP32", "shape": [1], "data": [0.5]}]
        record = {"model": MODEL, "task": task, "input": input_, "predictions": predictions}
        records.append(make_record(id_at_second(second), **record))
    store.commit(*records)


def compared(store, **fields):
    baseline = StoredWindow(end=time_at_second(MIDDLE))
    parameters = DriftParameters("one", start=time_at_second(MIDDLE), baseline=baseline, **fields)
    return compare_stored(store.inferences, parameters)


def alarms(report):
    return {signal.name for signal in report.signals if signal.alarm}


def test_a_feature_that_moved_is_named(store):
    fill(store, range(1, 200))
    fill(store, range(MIDDLE, MIDDLE + 200), shift=2.0)
    report = compared(store)
    kinds = {signal.name: signal.kind for signal in report.signals}
    assert kinds.items() >= {"input.age": "numeric", "input.income": "numeric"}.items()
    assert (report.status, alarms(report)) == ("drift", {"input.age"})


def test_one_row_of_each_request_counts_and_unnamed_features_have_their_positions(store):
    fill(store, range(1, 200), rows=3, features=())
    fill(store, range(MIDDLE, MIDDLE + 200), rows=3, features=(), shift=2.0)
    report = compared(store)
    assert alarms(report) == {"input.x[0]"}
    assert report.data.current.n == 200


def test_features_beyond_the_cap_are_left_out_and_that_is_said(store):
    fill(store, range(1, 40), features=(), width=MAX_FEATURES + 20)
    fill(store, range(MIDDLE, MIDDLE + 40), features=(), width=MAX_FEATURES + 20)
    report = compared(store)
    names = {signal.name for signal in report.signals if signal.name.startswith("input.")}
    assert names == {f"input.x[{index}]" for index in range(MAX_FEATURES)}
    reason = f"this and later features are beyond the first {MAX_FEATURES}"
    assert report.parameters["left_out"] == {f"input.x[{MAX_FEATURES}]": reason}


def test_inputs_that_were_removed_or_are_large_have_no_features(store):
    fill(store, range(1, 60))
    fill(store, range(MIDDLE, MIDDLE + 60), features=(), width=20_000)
    store.commit(
        make_record(
            id_at_second(MIDDLE + 100), model=MODEL, task="TENSOR", predictions=[],
            input=InputReference("x", "blake3:" + "0" * 64, mime=MEDIA_TYPE, kept=True, bytes=100),
        )
    )  # fmt: skip
    report = compared(store)
    assert "input.x[0]" not in {signal.name for signal in report.signals}
    assert report.data.current.n == 61
