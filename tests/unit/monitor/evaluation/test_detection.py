"""Detections from the wire to the report, beside pycocotools and hotcoco."""

import contextlib
import io

import hotcoco
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadriga.monitor.evaluation.evaluators import build_state, load_evaluator
from quadriga.monitor.evaluation.objects.detection import DetectionEvaluator
from quadriga.monitor.evaluation.reporting import EvaluationOptions, evaluate_state
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationError, merge_states
from tests import coco_reference
from tests.unit.monitor.evaluation.detection_images import box, coco_of, made
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards, wire_image


def whole(images, shards=1, by=()):
    """Deal images out, and put them together again."""
    return state_of_shards(DetectionEvaluator(), images, shards, by)


def headlines(images, weights=None):
    state = whole(images)
    weights = np.ones((1, len(state.ids))) if weights is None else weights
    return np.stack(
        [
            headline.values
            for headline in DetectionEvaluator().evaluate(state).headlines(weights)[:12]
        ]
    )


def hotcoco_of(images):
    dataset, results = coco_of(images)
    truth = hotcoco.COCO(dataset)
    evaluation = hotcoco.COCOeval(truth, truth.load_res(results), "bbox")
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation.run()
    return evaluation


@pytest.mark.parametrize("seed", range(10))
def test_from_the_wire_to_the_numbers_all_is_as_pycocotools_has_it(seed):
    images = made(seed)
    state = whole(images, shards=3)
    evaluated = DetectionEvaluator().evaluate(state)
    headlines = evaluated.headlines(np.ones((1, len(images))))[:12]
    mine = [
        *coco_reference.curves_of(evaluated.ranking),
        [headline.values[0] for headline in headlines],
    ]
    for our, their in zip(mine, coco_reference.reference(*coco_of(images), "bbox"), strict=True):
        np.testing.assert_allclose(our, their, rtol=0, atol=1e-12)


def test_headlines_are_named_in_the_order_of_coco():
    evaluated = DetectionEvaluator().evaluate(whole(made(0)))
    names = [
        (
            headline.type,
            headline.parameters["iou"],
            headline.parameters["area"],
            headline.parameters["max_dets"],
        )
        for headline in evaluated.headlines(np.ones((1, 12)))[:12]
    ]
    ten = "0.50:0.95"
    assert names == [
        *(("AP", iou, "all", 100) for iou in (ten, 0.5, 0.75)),
        *(("AP", ten, area, 100) for area in ("small", "medium", "large")),
        *(("AR", ten, "all", most) for most in (1, 10, 100)),
        *(("AR", ten, area, 100) for area in ("small", "medium", "large")),
    ]


@settings(max_examples=25)
@given(st.integers(0, 1000), st.data())
def test_a_weight_is_how_often_an_image_is_there(seed, data):
    images = made(seed * 2 + 1, images=6, ties=False)
    times = data.draw(st.lists(st.integers(0, 3), min_size=6, max_size=6))
    copies = [
        msgspec.structs.replace(image, id=f"{image.id}{copy}")
        for image, count in zip(images, times, strict=True)
        for copy in range(count)
    ]
    weights = np.array([[1] * 6, times, [1, 0] * 3], np.float64)
    values = headlines(images, weights)
    np.testing.assert_allclose(values[:, [1]], headlines(copies), rtol=0, atol=1e-12)
    np.testing.assert_allclose(values[:, [2]], headlines(images[::2]), rtol=0, atol=1e-12)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.data())
def test_any_dealing_of_the_images_gives_the_same_report(seed, data):
    images = made(seed)
    shards = data.draw(st.lists(st.integers(0, 3), min_size=12, max_size=12))
    order = data.draw(st.permutations(range(12)))
    dealt = merge_states(
        [
            build_state(
                DetectionEvaluator(), [images[at] for at in order if shards[at] == shard], []
            )
            for shard in range(4)
        ]
    )
    reports = [
        evaluate_state(
            DetectionEvaluator(),
            state,
            task="OBJECT_DETECTION",
            options=EvaluationOptions(resamples=20),
        )
        for state in (whole(images), dealt)
    ]
    first, second = (
        msgspec.json.encode(msgspec.structs.replace(report, id="", created="", provenance={}))
        for report in reports
    )
    assert first == second


@pytest.mark.parametrize("seed", range(1, 12, 2))
def test_errors_and_confusion_are_those_of_hotcoco(seed):
    images = made(seed, ties=False, crowds=False)
    details = DetectionEvaluator().evaluate(whole(images)).details()
    reference = hotcoco_of(images)
    theirs = reference.tide_errors()["delta_ap"]
    mine = dict(details.errors_tide)
    mine["FP"], mine["FN"] = mine.pop("FalsePos"), mine.pop("FalseNeg")
    for kind, worth in mine.items():
        # Objects of equal overlap may be told apart by their order.
        assert worth == pytest.approx(theirs[kind], abs=0.04), kind
    matrix = reference.confusion_matrix(iou_thr=0.5, min_score=0.3, max_det=1000)["matrix"]
    labels = details.confusion.labels
    assert details.confusion.matrix == matrix[:-1, :-1].tolist()
    assert [details.confusion.hallucinations.get(label, 0) for label in labels] == matrix[
        -1, :-1
    ].tolist()
    assert [details.confusion.misses.get(label, 0) for label in labels] == matrix[:-1, -1].tolist()


def metric(findings, kind, **parameters):
    [match] = [
        metric
        for metric in findings.metrics
        if metric.type == kind and parameters.items() <= metric.parameters.items()
    ]
    return match.value


PLAIN = [
    wire_image(1, [box("car", 0, 0, 10, 10, score=0.9)], [box("car", 0, 0, 10, 10)]),
    wire_image(2, [box("bus", 0, 0, 10, 10, score=0.8)], [box("car", 0, 0, 10, 10)]),
    wire_image(3, [box("bus", 0, 0, 10, 10, score=0.7)], []),
    wire_image(4, [box("bus", 0, 0, 10, 4, score=0.6)], [box("bus", 0, 0, 10, 10)]),
    wire_image(
        5, [box("dog", 0, 0, 10, 10, score=0.4)], [box("car", 50, 50, 60, 60, difficult=True)]
    ),
]


def test_of_many_labels_the_most_common_are_in_the_confusion(monkeypatch):
    monkeypatch.setattr("quadriga.monitor.evaluation.labels.label_counts.MAX_LABELS", 1)
    confusion = DetectionEvaluator().evaluate(whole(PLAIN)).details().confusion
    assert confusion.labels == ["car"]
    assert confusion.matrix == [[1]]
    assert confusion.parameters["labels"] == 3


def test_what_is_behind_each_number_is_named():
    findings = DetectionEvaluator().evaluate(whole(PLAIN)).details()
    assert findings.confusion.labels == ["bus", "car", "dog"]
    assert findings.confusion.matrix == [[0, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert findings.confusion.hallucinations == {"bus": 2, "dog": 1}
    assert findings.confusion.misses == {"bus": 1}
    named = [
        (
            example.truth,
            example.predicted,
            example.inference_id,
            example.ground_truth_id,
            example.prediction_id,
        )
        for example in findings.confusion.examples
    ]
    assert named == [
        ("car", "car", "1", "0", "0"),
        ("car", "bus", "2", "0", "0"),
        (None, "bus", "3", None, "0"),
        (None, "bus", "4", None, "0"),
        (None, "dog", "5", None, "0"),
        ("bus", None, "4", "0", None),
    ]
    assert {reason: values.tolist() for reason, values in findings.badness.items()} == {
        "miss": [0, 0, 0, 1, 0],
        "false_positive": [0, 0, 0.7, 0, 0.4],
        "wrong_label": [0, 0.8, 0, 0, 0],
        "low_overlap": [0, 0, 0, 0.6, 0],
    }
    assert findings.excluded == {"unseen_label": 1}


def test_rates_at_a_score_and_at_the_best_one():
    findings = DetectionEvaluator().evaluate(whole(PLAIN)).details()
    half = {"score": 0.5, "iou": 0.5}
    assert metric(findings, "Precision", **half, label=None) == 1 / 4
    assert metric(findings, "Recall", **half, label=None) == 1 / 3
    assert metric(findings, "Counts", **half, label=None, of="false positives") == 3
    assert metric(findings, "Counts", **half, label="car", of="false negatives") == 1
    assert metric(findings, "F1", chosen="best F1", label=None) == 1 / 2
    assert metric(findings, "Precision", chosen="best F1", score=0.9, label=None) == 1
    assert metric(findings, "F1", chosen="best F1 of the label", label="car") == 2 / 3
    assert metric(findings, "AP", iou=0.5, label="bus") == 0
    assert metric(findings, "AP", iou="0.50:0.95", label="dog") is None


def test_curves_have_their_scores_and_end_where_the_recall_does():
    findings = DetectionEvaluator().evaluate(whole(PLAIN)).details()
    curve, unfound = (
        next(
            item for item in findings.curves["pr"] if item["label"] == label and item["iou"] == 0.5
        )
        for label in ("car", "bus")
    )
    assert curve["recall"][50] == 0.5
    assert curve["precision"][50:52] == [pytest.approx(1), 0]
    assert curve["score"][50:52] == [0.9, None]
    assert (set(unfound["precision"]), set(unfound["score"])) == ({0}, {None})
    means = [item["iou"] for item in findings.curves["pr"] if item["label"] is None]
    assert means == [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]
    assert sum(findings.curves["reliability"][0]["count"]) == 4
    assert metric(findings, "ECE", bins=15) == pytest.approx((0.1 + 0.8 + 0.7 + 0.6) / 4)


@pytest.mark.parametrize(
    "images",
    [
        [],
        [wire_image(1, [], [])],
        [wire_image(1, [], [box("car", 0, 0, 9, 9)])],
        [wire_image(1, [box("car", 0, 0, 9, 9, score=0.5)], [])],
        [wire_image(1, [box("car", 0, 0, 9, 9, score=7)], [box("car", 0, 0, 9, 9, crowd=True)])],
        [wire_image(1, [box("car", 3, 3, 3, 3, score=0.5)], [box("car", 3, 3, 3, 3)])],
    ],
    ids=["no images", "nothing", "no predictions", "no truths", "only a crowd", "points"],
)
def test_what_is_undefined_is_none(images):
    report = evaluate_state(
        load_evaluator("detection"),
        whole(images),
        task="OBJECT_DETECTION",
    )
    expected = 0 if any(b"car" in bytes(image.ground_truth) for image in images) else None
    if any(b"crowd" in bytes(image.ground_truth) for image in images):
        expected = None
    assert report.metrics[0].value == expected
    assert msgspec.json.encode(report)


CAR = box("car", 1, 2, 3, 4, score=0.5)


@pytest.mark.parametrize(
    ("predictions", "truths", "text"),
    [
        ([CAR, box("car", 5, 2, 3, 4, score=1)], [], r"predictions\[1\]: .* xmin <= xmax .* got .* 5.0"),
        ([{"label": "car"}], [], r"predictions\[0\]: expected a field `score`"),
        ([CAR | {"ymax": None}], [], r"predictions\[0\].ymax: expected `float`, got `null`"),
        ([], [CAR, CAR | {"label": 3}], r"ground_truth\[1\].label: expected `str`, got `int`"),
        ([], [CAR | {"area": -1}], r"ground_truth\[0\].area: expected `float` >= 0"),
        ([], [CAR | {"xmax": 1e51}], r"ground_truth\[0\].xmax: expected `float` <= 1e\+50"),
        ([CAR | {"score": -1e51}], [], r"predictions\[0\].score: expected `float` >= -1e\+50"),
        ([], {}, r"ground_truth: expected `array`, got `object`"),
    ],
)  # fmt: skip
def test_what_is_no_box_is_refused_with_its_place(predictions, truths, text):
    with pytest.raises(EvaluationError, match=f"image '17': {text}"):
        whole([wire_image(3, [CAR], []), wire_image(17, predictions, truths)])


@pytest.mark.parametrize("number", [b"1e999", b"NaN"])
def test_a_number_that_is_none_is_refused(number):
    text = msgspec.json.encode([CAR]).replace(b'"xmax":3', b'"xmax":' + number)
    with pytest.raises(EvaluationError, match="image '1': predictions"):
        whole([EvaluatedImage("1", msgspec.Raw(text), msgspec.Raw(b"[]"))])


def test_what_takes_a_crowd_or_a_difficult_object_is_not_confused():
    findings = (
        DetectionEvaluator()
        .evaluate(
            whole(
                [
                    wire_image(
                        1,
                        [box("car", 0, 0, 8, 8, score=score) for score in (0.9, 0.8)]
                        + [box("car", 50, 0, 60, 10, score=0.7)],
                        [
                            box("bus", 0, 0, 10, 10, crowd=True),
                            box("dog", 50, 0, 60, 10, difficult=True),
                            box("dog", 90, 0, 99, 10),
                        ],
                    )
                ]
            )
        )
        .details()
    )
    assert findings.confusion.matrix == [[0] * 3] * 3
    assert findings.confusion.hallucinations == {}
    assert findings.confusion.misses == {"dog": 1}


def test_what_is_beyond_the_hundredth_is_left_out_and_counted():
    predictions = [box("car", 0, 0, 9, 9, score=1 - index / 200) for index in range(103)]
    findings = DetectionEvaluator().evaluate(whole([wire_image(1, predictions, [CAR])])).details()
    assert findings.excluded == {"over_max_dets": 3}
    assert sum(findings.confusion.hallucinations.values()) == 100


def test_a_label_that_nothing_finds_is_worth_its_misses():
    there = [box("found", 0, 0, 10, 10), box("lost", 50, 50, 60, 60)]
    half = wire_image("1", [box("found", 0, 0, 10, 10, score=0.9)], there)
    errors = DetectionEvaluator().evaluate(whole([half])).details().errors_tide
    assert errors["Miss"] == errors["FalseNeg"] == pytest.approx(0.5)
    nothing = wire_image("1", [], there)
    errors = DetectionEvaluator().evaluate(whole([nothing])).details().errors_tide
    assert errors["Miss"] is None
    assert errors["Loc"] == 0


def test_each_label_has_an_interval_of_the_same_resamples():
    images = made(3, images=150, ties=False)
    report = evaluate_state(
        DetectionEvaluator(),
        whole(images),
        task="OBJECT_DETECTION",
        options=EvaluationOptions(resamples=50),
    )
    averaged = [
        metric
        for metric in report.metrics
        if metric.type == "AP"
        and metric.parameters["iou"] == "0.50:0.95"
        and metric.parameters["label"]
    ]
    assert {metric.parameters["label"] for metric in averaged} == set(whole(images).labels)
    rare = [metric for metric in averaged if metric.n is not None and metric.n < 40]
    assert {(metric.ci95, metric.ci_reason) for metric in rare} <= {(None, "fewer than 40 objects")}
    averaged = [metric for metric in averaged if metric not in rare]
    assert len(averaged) > 1
    for metric in averaged:
        low, high = metric.ci95
        assert low <= metric.value <= high
    # of one label alone, the mean over labels is the label's
    label = averaged[0].parameters["label"]
    alone = [
        wire_image(
            metric.id,
            *(
                [item for item in msgspec.json.decode(items) if item["label"] == label]
                for items in (metric.predictions, metric.ground_truth)
            ),
        )
        for metric in images
    ]
    state = whole(alone)
    label_report = evaluate_state(
        DetectionEvaluator(),
        state,
        task="OBJECT_DETECTION",
        options=EvaluationOptions(resamples=50),
    )
    assert label_report.metrics[0].ci95 == pytest.approx(averaged[0].ci95, abs=1e-12)
    assert all(metric.parameters.get("label") is None for metric in report.metrics[:12])


@pytest.mark.parametrize(
    ("scores", "is_warned"),
    [
        ([0.5, *[0.9] * 30], True),
        ([0.051] * 20, True),
        ([0.05, *[0.9] * 30], False),
        ([0.001, *[0.9] * 30], False),
        ([0.9] * 19, False),
        ([], False),
    ],
)
def test_a_report_says_if_low_scores_seem_to_be_left_out(scores, is_warned):
    images = [
        wire_image(at, [box("bus", 0, 0, 9, 9, score=score)], [box("bus", 0, 0, 9, 9)])
        for at, score in enumerate(scores)
    ]
    warnings = DetectionEvaluator().evaluate(whole(images)).details().warnings
    assert [text.startswith("AP and AR are those above") for text in warnings] == [True] * is_warned
    if is_warned:
        assert f"below {min(scores):g}" in warnings[0]
