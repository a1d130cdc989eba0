"""Classification, beside scikit-learn."""

import warnings
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import sklearn.metrics as reference

from quadriga.monitor.evaluation.evaluators import build_state
from quadriga.monitor.evaluation.labels.classification import ClassificationEvaluator
from quadriga.monitor.evaluation.reporting import EvaluationOptions, evaluate_state
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationError, merge_states
from quadriga.monitor.report.schema import ReportedModel
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards, wire_image

RATES = {
    "Precision": reference.precision_score,
    "Recall": reference.recall_score,
    "F1": reference.f1_score,
}


def image_of(number, scores, truths):
    """Make an image from scores by label, or pairs, and true labels."""
    pairs = scores.items() if isinstance(scores, dict) else scores
    answer = [{"label": label, "score": score} for label, score in pairs]
    truth = [{"label": label} for label in truths]
    return wire_image(number, answer, truth)


def evaluated(images):
    evaluation = ClassificationEvaluator()
    state = state_of_shards(evaluation, images, 3)
    return evaluation.evaluate(state)


def whole(images):
    """Return all numbers by their type and parameters, as JSON."""
    metrics = evaluated(images)
    numbers = {
        (headline.type, text(headline.parameters)): float(headline.values[0])
        for headline in metrics.headlines(np.ones((1, len(images))))
    }
    rest = {
        (headline.type, text(headline.parameters)): headline.value
        for headline in metrics.details().metrics
    }
    assert not numbers.keys() & rest.keys()
    return {
        **rest,
        **{key: None if np.isnan(headline) else headline for key, headline in numbers.items()},
    }


def text(parameters):
    return msgspec.json.encode(parameters, order="sorted").decode()


def key(name, **parameters):
    return name, text(parameters)


def close(mine, theirs):
    if mine is None or theirs is None or np.isnan(theirs):
        return mine is None and (theirs is None or np.isnan(theirs))
    return abs(mine - theirs) < 1e-12


def single_case(seed):
    """Scores (I, K) that sum to one, and true labels; some labels only true, some only answered."""
    pick = np.random.default_rng(seed)
    count, labels = int(pick.integers(20, 60)), (2, 3, 6, 12)[seed % 4]
    true = pick.integers(0, labels - (seed % 3 == 0 and labels > 2), count)
    scores = pick.dirichlet(np.full(labels, 0.5), count)
    scores[np.arange(count), true] += pick.random(count)
    if seed % 5 == 0:
        scores[:, true[0]] = 0  # true, and never answered
    if seed % 2:
        scores = np.round(scores, 1) + 0.001 * (pick.random() < 0.5)  # heavy ties
    scores[scores.sum(axis=1) == 0] = 1
    scores /= scores.sum(axis=1, keepdims=True)
    return scores, true


def images_of(scores, truths):
    labels = [f"label {number}" for number in range(scores.shape[1])]
    return [
        image_of(number, dict(zip(labels, row.tolist(), strict=True)), [labels[at] for at in true])
        for number, (row, true) in enumerate(zip(scores, truths, strict=True))
    ]


def expected_single(scores, true, weights=None):
    """Ask scikit-learn for everything it knows about single labels."""
    answer, labels = scores.argmax(axis=1), scores.shape[1]
    keyed = {"sample_weight": weights}
    expected = {key("Accuracy"): reference.accuracy_score(true, answer, **keyed)}
    if labels > 5:
        # scikit-learn puts the later of equal scores first.
        expected[key("TopKAccuracy", k=5)] = reference.top_k_accuracy_score(
            true, scores - 1e-9 * np.arange(labels), k=5, labels=np.arange(labels), **keyed
        )
    names = [f"label {number}" for number in range(labels)]
    actual, answered = (np.isin(np.arange(labels), values) for values in (true, answer))
    for name, rate in RATES.items():
        for average in ("macro", "micro", "weighted"):
            expected[key(name, average=average)] = rate(
                true, answer, average=average, zero_division=0, **keyed
            )
        by_label = rate(
            true, answer, average=None, labels=np.arange(labels), zero_division=0, **keyed
        )
        present = actual if name == "Recall" else actual | answered
        for number in range(labels):
            value = by_label[number] if present[number] else None
            expected[key(name, label=names[number])] = value
    for name, area in (
        ("ROCAUC", reference.roc_auc_score),
        ("AveragePrecision", reference.average_precision_score),
    ):
        by_label = [
            area(true == number, scores[:, number], **keyed)
            if actual[number] and (name != "ROCAUC" or (true != number).any())
            else np.nan
            for number in range(labels)
        ]
        for number, value in enumerate(by_label):
            expected[key(name, label=names[number])] = value
        present = [value for value in by_label if not np.isnan(value)]
        expected[key(name, average="macro")] = np.mean(present) if present else None
    squares = (scores - np.eye(labels)[true]) ** 2
    expected[key("Brier", rule="sum over labels")] = np.average(
        squares.sum(axis=1), weights=weights
    )
    expected |= expected_calibration(scores.max(axis=1), answer == true, weights)
    return expected


def expected_calibration(score, right, weights):
    """Go through the bins one by one."""
    weights = np.ones(len(score)) if weights is None else weights
    expected, most, edges = 0.0, 0.0, np.linspace(0, 1, 16)
    for low, high in pairwise(edges):
        is_in_bin = (score > low) & (score <= high) | (low == 0) & (score == 0)
        if is_in_bin.any():
            gap = abs(np.average(right[is_in_bin] - score[is_in_bin], weights=weights[is_in_bin]))
            expected += gap * weights[is_in_bin].sum() / weights.sum()
            most = max(most, gap)
    rule = {"bins": 15, "rule": "equal width, upper edge included"}
    return {key("ECE", **rule): expected, key("MCE", **rule): most}


@pytest.mark.parametrize("seed", range(24))
def test_single_labels_are_those_of_scikit_learn(seed):
    scores, true = single_case(seed)
    mine = whole(images_of(scores, true[:, None]))
    theirs = expected_single(scores, true)
    for name, value in theirs.items():
        assert close(mine[name], value), (name, mine[name], value)
    missing = mine.keys() - theirs.keys()
    assert {name for name, _ in missing} == {"TopKAccuracy"}


def test_brier_is_the_one_of_scikit_learn():
    scores, true = single_case(2)
    mine = whole(images_of(scores, true[:, None]))[key("Brier", rule="sum over labels")]
    theirs = reference.brier_score_loss(
        true, scores, labels=np.arange(scores.shape[1]), scale_by_half=False
    )
    assert close(mine, theirs)


@pytest.mark.parametrize("seed", range(8))
def test_weights_are_those_of_scikit_learn(seed):
    scores, true = single_case(seed)
    count = len(true)
    pick = np.random.default_rng(seed)
    weights = pick.integers(0, 4, (5, count)).astype(float)
    weights[0] = pick.random(count) < 0.3
    weights[1] = 1
    headlines = evaluated(images_of(scores, true[:, None])).headlines(weights)
    order = sorted(range(count), key=lambda at: (len(str(at)), str(at)))
    for row, weight in enumerate(weights):
        has_weight = weight > 0
        theirs = expected_single(
            scores[order][has_weight], true[order][has_weight], weight[has_weight]
        )
        for headline in headlines:
            name = key(headline.type, **headline.parameters)
            if name in theirs:
                value = float(headline.values[row])
                assert close(None if np.isnan(value) else value, theirs[name]), name


def multi_case(seed):
    pick = np.random.default_rng(seed)
    count, labels = int(pick.integers(20, 60)), (1, 2, 4, 9)[seed % 4]
    true = pick.random((count, labels)) < pick.random(labels)
    true[0], true[1] = True, False
    scores = np.clip(pick.normal(0.4, 0.2, (count, labels)) + 0.2 * true, 0, 1)
    if seed % 3 == 0:
        scores = np.round(scores, 1)
    if labels > 2:
        true[:, 1] = False  # only answered
        scores[:, 2] /= 3  # true, and never answered
    return scores, true


def expected_multi(scores, true):
    labels = scores.shape[1]
    answer = scores >= 0.5
    if labels == 1:  # scikit-learn takes one column for a binary problem
        true, answer = np.pad(true, ((0, 0), (0, 1))), np.pad(answer, ((0, 0), (0, 1)))
    present = np.flatnonzero(true.any(axis=0) | answer.any(axis=0))
    at = {"score": 0.5}
    expected = {
        key("Accuracy", **at, rule="all labels"): reference.accuracy_score(true, answer),
        key("HammingLoss", **at): (answer != true).sum() / len(true) / labels,
        key("F1", **at, average="samples"): reference.f1_score(
            true, answer, average="samples", zero_division=0
        ),
    }
    for name, rate in RATES.items():
        for average in ("macro", "micro", "weighted"):
            expected[key(name, **at, average=average)] = rate(
                true, answer, average=average, labels=present, zero_division=0
            )
        by_label = rate(true, answer, average=None, zero_division=0)
        for number in present:
            if name != "Recall" or true[:, number].any():
                expected[key(name, **at, label=f"label {number}")] = by_label[number]
    roc, precision = [], []
    for number in range(labels):
        has_label = true[:, number].any()
        with warnings.catch_warnings(action="ignore"):
            roc.append(reference.roc_auc_score(true[:, number], scores[:, number]))
        precision.append(
            reference.average_precision_score(true[:, number], scores[:, number])
            if has_label
            else np.nan
        )
    for name, by_label in (("ROCAUC", roc), ("AveragePrecision", precision)):
        defined = [value for value in by_label if not np.isnan(value)]
        expected[key(name, average="macro")] = np.mean(defined)
        expected |= {key(name, label=f"label {at}"): value for at, value in enumerate(by_label)}
    return expected


@pytest.mark.parametrize("seed", range(24))
def test_many_labels_are_those_of_scikit_learn(seed):
    scores, true = multi_case(seed)
    images = images_of(scores, [np.flatnonzero(row) for row in true])
    mine = whole(images)
    theirs = expected_multi(scores, true)
    for name, value in theirs.items():
        assert close(mine[name], value), (name, mine[name], value)
    assert all(mine[name] is None for name in mine.keys() - theirs.keys())
    selected = np.random.default_rng(seed).random(len(images)) < 0.5
    selected[0] = True
    order = sorted(range(len(images)), key=lambda at: (len(str(at)), str(at)))
    headlines = evaluated(images).headlines(selected[order][None].astype(float))
    theirs = expected_multi(scores[selected], true[selected])
    for headline in headlines:
        name = key(headline.type, **headline.parameters)
        assert close(float(headline.values[0]), theirs[name]), name


def test_a_score_that_is_not_given_is_zero():
    pick = np.random.default_rng(1)
    scores, true = single_case(2)
    scores = np.where(pick.random(scores.shape) < 0.5, 0, scores)
    scores /= np.maximum(scores.sum(axis=1, keepdims=True), 1e-9)  # nothing is left for the others
    scores[(scores > 0).sum(axis=1) == 1] = 0  # a best label alone does not say that
    labels = [f"label {number}" for number in range(scores.shape[1])]
    few = [
        image_of(
            at,
            {labels[to]: row[to] for to in range(len(labels)) if row[to]},
            [labels[label]],
        )
        for at, (row, label) in enumerate(zip(scores.tolist(), true, strict=True))
    ]
    scored = [at for at, row in enumerate(scores) if row.any()]
    theirs = expected_single(scores[scored], true[scored])
    mine = whole([few[at] for at in scored])
    for name in theirs.keys() - {key("TopKAccuracy", k=5)}:  # only what is given is ranked
        assert close(mine[name], theirs[name]), name


def test_curves_are_those_of_scikit_learn():
    scores, true = single_case(7)
    images = images_of(scores, true[:, None])
    curves = evaluated(images).details().curves
    assert [curve["label"] for curve in curves["pr"]] == [
        None, *sorted(f"label {at}" for at in range(12) if at in true)
    ]  # fmt: skip
    for pr, roc in zip(curves["pr"][1:], curves["roc"][1:], strict=True):
        assert pr["label"] == roc["label"]
        number = int(pr["label"].split()[1])
        precision, recall, score = reference.precision_recall_curve(
            true == number, scores[:, number]
        )
        for mine, theirs in (
            (pr["recall"], recall[:-1]),
            (pr["precision"], precision[:-1]),
            (pr["score"], score),
        ):
            np.testing.assert_allclose(mine, theirs[::-1], rtol=0, atol=1e-12)
        alarms, hit_rates, score = reference.roc_curve(
            true == number, scores[:, number], drop_intermediate=False
        )
        np.testing.assert_allclose(roc["false_positive_rate"], alarms, rtol=0, atol=1e-12)
        np.testing.assert_allclose(roc["true_positive_rate"], hit_rates, rtol=0, atol=1e-12)
        assert roc["threshold"][0] is None
        np.testing.assert_allclose(roc["threshold"][1:], score[1:], rtol=0, atol=1e-12)


def test_long_curves_keep_their_shape_in_200_points():
    pick = np.random.default_rng(0)
    true = pick.random(5000) < 0.3
    scores = pick.normal(true * 1.5, 1)
    scores = 1 / (1 + np.exp(-np.stack([scores, -scores], axis=1)))
    curves = evaluated(images_of(scores, (~true).astype(int)[:, None])).details().curves
    roc = curves["roc"][1]
    assert len(roc["threshold"]) <= 200
    assert [roc["false_positive_rate"][at] for at in (0, -1)] == [0, 1]
    alarms, hit_rates, _ = reference.roc_curve(true, scores[:, 0])
    x, y = (np.array(roc[f"{name}_positive_rate"]) for name in ("false", "true"))
    drawn = np.interp(alarms + hit_rates, x + y, y - x)  # across the diagonal
    assert np.abs(drawn - (hit_rates - alarms)).max() < 0.01
    assert abs(np.trapezoid(y, x) - reference.roc_auc_score(true, scores[:, 0])) < 1e-3
    assert len(curves["pr"][1]["recall"]) <= 200


SURE = {"cat": 0.8, "dog": 0.2}


def test_who_is_taken_for_whom_comes_with_examples():
    images = [
        image_of(1, SURE, ["cat"]),
        image_of(2, SURE, ["dog"]),
        image_of(3, {"dog": 0.05, "cat": 0.95}, ["dog"]),
        image_of(4, {}, ["cow"]),
    ]
    details = evaluated(images).details()
    confusion = details.confusion
    assert confusion.labels == ["cat", "cow", "dog"]
    assert confusion.matrix == [[1, 0, 0], [0, 0, 0], [2, 0, 0]]
    assert confusion.misses == {"cow": 1}
    assert [msgspec.structs.astuple(example) for example in confusion.examples] == [
        ("dog", "cat", "3", "0", "1"),
        ("dog", "cat", "2", "0", "0"),
        ("cow", None, "4", "0", None),
    ]
    np.testing.assert_allclose(details.badness["wrong_label"], [0, 0.6, 0.9, 0])
    assert details.badness["miss"].tolist() == [0, 0, 0, 1]


def test_of_equal_scores_the_first_is_the_answer():
    def accuracy(scores):
        return whole([image_of(1, scores, ["a"])])[key("Accuracy")]

    assert accuracy([("a", 0.5), ("b", 0.5)]) == 1
    assert accuracy([("b", 0.5), ("a", 0.5)]) == 0


def test_a_label_given_twice_has_its_higher_score():
    images = [
        image_of(1, [("a", 0.1), ("b", 0.3), ("a", 0.6)], ["a", "a"]),
        image_of(2, [("a", 0.1), ("b", 0.9)], ["b"]),
    ]
    metrics = whole(images)
    assert metrics[key("Accuracy")] == 1
    assert metrics[key("ROCAUC", label="a")] == 1
    confused = [image_of(1, [("b", 0.1), ("a", 0.3), ("b", 0.6)], ["a"])]
    (example,) = evaluated(confused).details().confusion.examples
    assert example.prediction_id == "2"


def test_what_is_undefined_is_none():
    metrics = whole([image_of(1, {"a": 0.7, "b": 0.3}, ["a"])])
    assert metrics[key("Accuracy")] == 1
    assert metrics[key("ROCAUC", average="macro")] is None
    assert metrics[key("ROCAUC", label="a")] is None
    assert metrics[key("AveragePrecision", label="a")] == 1
    assert metrics[key("Recall", label="b")] is None
    assert metrics[key("Precision", label="b")] is None
    assert metrics[key("TopKAccuracy", k=5)] is None
    assert all(value is None for value in whole([]).values())
    nothing = whole([image_of(1, {}, [])])
    assert nothing[key("Accuracy", score=0.5, rule="all labels")] == 1
    assert nothing[key("ROCAUC", average="macro")] is None


def test_of_many_labels_the_commonest_are_in_the_matrix():
    images = [image_of(at, {f"{at:04}": 0.5, "0000": 0.6}, [f"{at:04}"]) for at in range(1002)]
    confusion = evaluated([*images, image_of(1002, {"1001": 1}, ["1001"])]).details().confusion
    assert len(confusion.labels) == len(confusion.matrix) == 1000
    assert confusion.labels[-2:] == ["0998", "1001"]
    assert confusion.matrix[-1][-1] == 1
    assert confusion.matrix[-1][0] == 1
    assert confusion.parameters == {"of": "images", "labels": 1002}


def test_scores_that_are_no_probabilities_have_no_calibration():
    images = [image_of(1, {"a": 7.5, "b": -3}, ["a"]), image_of(2, {"a": -1, "b": 2}, ["b"])]
    metrics = whole(images)
    assert metrics[key("ROCAUC", average="macro")] == 1
    assert metrics[key("Brier", rule="sum over labels")] is None
    assert metrics[key("ECE", bins=15, rule="equal width, upper edge included")] is None
    curves = evaluated(images).details().curves
    assert "reliability" not in curves
    assert sum(curves["scores"][0]["right"]) == 2


def test_reliability_says_how_often_a_bin_is_right():
    images = [image_of(at, {"a": 0.8}, ["a" if at < 3 else "b"]) for at in range(4)]
    (curve,) = evaluated(images).details().curves["reliability"]
    full = [at for at, count in enumerate(curve["count"]) if count]
    assert [curve["edges"][at] for at in (full[0], full[0] + 1)] == pytest.approx([11 / 15, 0.8])
    assert curve["accuracy"][full[0]] == 0.75
    assert curve["confidence"][full[0]] == pytest.approx(0.8)
    assert curve["accuracy"].count(None) == 14


@pytest.mark.parametrize(
    ("answer", "truth", "message"),
    [
        (
            b'[{"label":"a"}]',
            b"[]",
            r"image '7': predictions\[0\]: expected a field `score`",
        ),
        (
            b'[{"label":"a","score":"b"}]',
            b"[]",
            r"image '7': predictions\[0\].score: expected `float`, got `str`",
        ),
        (
            b'[{"label":"a","score":-1e51}]',
            b"[]",
            r"image '7': predictions\[0\].score: expected `float` >= -1e\+50",
        ),
        (b"{}", b"[]", "image '7': predictions: expected `array`, got `object`"),
        (b"[]", b'["a"]', r"image '7': ground_truth\[0\]: expected `object`, got `str`"),
    ],
)
def test_what_is_no_classification_is_refused(answer, truth, message):
    image = EvaluatedImage("7", msgspec.Raw(answer), msgspec.Raw(truth))
    with pytest.raises(EvaluationError, match=message):
        build_state(ClassificationEvaluator(), [image], [])


@pytest.mark.parametrize("many", [False, True])
def test_a_report_is_the_same_however_the_images_are_dealt_out(many):
    scores, true = multi_case(3)
    truths = [np.flatnonzero(row) for row in true] if many else true.argmax(axis=1)[:, None]
    images = images_of(scores, truths)
    evaluation = ClassificationEvaluator()
    pick = np.random.default_rng(0)
    reports = []
    for shards in (1, 4, 7):
        dealt = pick.integers(0, shards, len(images))
        states = [
            build_state(evaluation, [images[at] for at in np.flatnonzero(dealt == shard)], [])
            for shard in pick.permutation(shards)
        ]
        report = evaluate_state(
            evaluation,
            merge_states(states),
            task="IMAGE_CLASSIFICATION",
            model=ReportedModel("m"),
            options=EvaluationOptions(resamples=20),
        )
        assert report.parameters["multi_label"] is many
        report = msgspec.structs.replace(report, id="", created="", provenance={})
        reports.append(msgspec.json.encode(report))
    assert reports[0] == reports[1] == reports[2]
