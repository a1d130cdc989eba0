"""Signals derived from a stored row."""

import json
import math

import pytest

from quadriga.monitor.drift.row_signals import SignalInputs, derive_signals

BOX = {"label": "ship", "score": 0.9, "xmin": 10, "ymin": 20, "xmax": 50, "ymax": 40}
TURNED = {"label": "ship", "score": 0.8, "cx": 0.5, "cy": 0.25, "w": 0.2, "h": 0.1, "r": 4.0}
RING = [{"x": 0, "y": 0}, {"x": 10, "y": 0}, {"x": 10, "y": 20}, {"x": 0, "y": 20}]
HOLE = [{"x": 2, "y": 2}, {"x": 2, "y": 4}, {"x": 4, "y": 4}, {"x": 4, "y": 2}]
DETECTION, CLASSIFICATION = "OBJECT_DETECTION", "IMAGE_CLASSIFICATION"


def signals(task, predictions, metadata=None, seq=1, size=(100, 200)):
    row = SignalInputs(
        seq,
        task,
        predictions if isinstance(predictions, str) else json.dumps(predictions),
        metadata=json.dumps(metadata or {}),
        latency_ms=2.5,
        width=size[0],
        height=size[1],
        bytes=5000,
    )
    signals = derive_signals(row)
    return {
        name: pytest.approx(value) if isinstance(value, float) else value
        for name, value in signals.items()
        if name not in {"latency_ms", "width", "height", "bytes_per_pixel"}
    }


@pytest.mark.parametrize(
    ("task", "predictions", "expected"),
    [
        (DETECTION, [], {"predictions": 0}),
        (
            DETECTION,
            [BOX],
            {
                "label": "ship", "score": 0.9, "predictions": 1,
                "area": 0.04, "aspect": 2, "x": 0.3, "y": 0.15,
            },
        ),
        (
            "ORIENTED_OBJECT_DETECTION",
            [TURNED],
            {
                "label": "ship", "score": 0.8, "predictions": 1, "angle": 4.0 - math.pi,
                "area": 0.02, "aspect": 1, "x": 0.5, "y": 0.25,
            },
        ),
        (
            "IMAGE_SEGMENTATION",
            [{"label": "sea", "score": 1, "contour": [RING, HOLE]}],
            {
                "label": "sea", "score": 1, "predictions": 1, "mask_share": 196 / 20000,
                "area": 11 * 21 / 20000, "aspect": 11 / 21, "x": 0.05, "y": 0.05,
            },
        ),
        (CLASSIFICATION, [{"label": "a", "score": 0.7}], {"label": "a", "score": 0.7}),
        (
            CLASSIFICATION,
            [{"label": "b", "score": 0.25}, {"label": "a", "score": 0.75}],
            {
                "label": "a", "score": 0.75, "margin": 0.5,
                "entropy": -0.75 * math.log(0.75) - 0.25 * math.log(0.25),
            },
        ),
        (
            "IMAGE_TEXT_TO_TEXT",
            [{"prompt": "a", "answer": "four"}, {"prompt": "b", "answer": "eleven"}],
            {"answer_length": 5},
        ),
        ("TENSOR", {"outputs": [1, 2]}, {}),
        (DETECTION, '[{"label": 7}]', {}),
        (DETECTION, [{"label": "a", "xmin": 5, "xmax": 5}], {"label": "a", "predictions": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_signals_of_predictions(task, predictions, expected):
    assert signals(task, predictions) == expected


def test_signals_of_the_request():
    row = SignalInputs(
        1, "TENSOR", "[]", metadata='{"a": 1}', latency_ms=2.5, width=100, height=200, bytes=5000
    )
    signals = derive_signals(row)
    assert signals["latency_ms"] == 2.5
    assert (signals["width"], signals["height"], signals["bytes_per_pixel"]) == (100, 200, 0.25)
    assert "width" not in derive_signals(SignalInputs(1, "TENSOR", "[]", "{}", latency_ms=2.5))


def test_signals_of_metadata():
    metadata = {"camera": {}, "camera.id": "n" * 300, "day": True, "x": 3, "tags": []}
    derived = signals("TENSOR", {}, metadata)
    assert derived == {"meta.camera.id": "n" * 256, "meta.day": True, "meta.x": 3}


def test_the_label_is_of_a_prediction_chosen_by_a_stable_hash():
    labels = [*["a"] * 3, "b"]
    answer = [{"label": label} for label in labels]
    chosen = [signals(DETECTION, answer, seq=seq << 22)["label"] for seq in range(2000)]
    assert 0.22 < chosen.count("b") / 2000 < 0.28
    assert chosen == [signals(DETECTION, answer, seq=seq << 22)["label"] for seq in range(2000)]
