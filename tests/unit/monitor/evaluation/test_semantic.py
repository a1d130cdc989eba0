"""Pixels with labels, beside scikit-learn and a plain loop."""

import msgspec
import numpy as np
import pytest
import sklearn.metrics as reference

from quadriga.monitor.evaluation.evaluators import (
    CombinedMetrics,
    EvaluationDetails,
    Headline,
    build_state,
)
from quadriga.monitor.evaluation.metric_settings import DEFAULT_SETTINGS
from quadriga.monitor.evaluation.pixels.instances import InstanceEvaluator, tables_by_image
from quadriga.monitor.evaluation.pixels.segmentation import (
    PixelMetrics,
    SegmentationEvaluator,
    pixel_tables,
)
from quadriga.monitor.evaluation.reporting import EvaluationOptions, evaluate_state
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.monitor.report.schema import Confusion, Metric, ReportedModel
from quadriga.tasks.geometry import fill, rings
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards, wire_image

WIDTH, HEIGHT = 37, 29
LABELS = ["car", "road", "tree", "background", "sky"]


class SemanticEvaluator:
    """Regions alone, without objects."""

    def tables(self, images, labels):
        return tables_by_image(images, lambda *image: pixel_tables(labels, *image))

    def evaluate(self, state, _settings=DEFAULT_SETTINGS):
        return PixelMetrics(state)


def square(left, top, right, bottom):
    corners = ((left, top), (right, top), (right, bottom), (left, bottom))
    return [[{"x": x, "y": y} for x, y in corners]]


def region(label, contour, **fields):
    return {"label": label, "contour": contour, **fields}


def image_of(number, answers, truths, width=WIDTH, height=HEIGHT):
    return wire_image(number, answers, truths, width, height)


def random_regions(pick, labels):
    regions = []
    for _ in range(pick.integers(0, 6)):
        points = pick.integers(-8, 45, (pick.integers(1, 3), pick.integers(1, 9), 2))
        contour = [[{"x": float(x) + 0.2, "y": float(y)} for x, y in ring] for ring in points]
        score = round(float(pick.random()), 1)
        regions.append(region(str(pick.choice(labels)), contour, score=score))
    return regions


def random_images(seed):
    pick = np.random.default_rng(seed)
    images = []
    for number in range(6):
        truths = random_regions(pick, [*LABELS[:4], "void", "ignore"])
        for region_ in truths:
            region_["crowd"] = bool(pick.random() < 0.1)
        images.append((random_regions(pick, [*LABELS[1:], "void"]), truths, number))
    return images


def painted(regions):
    """Paint the slow way: texts, one mask after the other."""
    canvas = np.full((HEIGHT, WIDTH), "background", object)
    for region_ in regions:
        outlines = [
            np.rint([(point["x"], point["y"]) for point in ring]).astype(np.int32)
            for ring in region_["contour"]
        ]
        canvas[fill(outlines, WIDTH, HEIGHT) > 0] = region_["label"]
    return canvas.ravel().tolist()


def flattened(images):
    """Return true and answered labels of all pixels that count."""
    true, predicted = [], []
    for answers, truths, _ in images:
        hidden = [
            {**pixel, "label": None}
            if pixel["crowd"] or pixel["label"] in {"void", "ignore"}
            else pixel
            for pixel in truths
        ]
        pairs = zip(
            painted(hidden), painted(sorted(answers, key=lambda pixel: pixel["score"])), strict=True
        )
        for pixel, count in pairs:
            if pixel is not None:
                true.append(pixel)
                predicted.append(count)
    return true, predicted


def numbers(headlines):
    return {
        (headline.type, headline.parameters["background"]): float(headline.values[0])
        for headline in headlines
    }


def expected(images):
    true, predicted = flattened(images)
    present = sorted({*true, *predicted})
    named = [label for label in present if label != "background"]
    macro = {"average": "macro", "zero_division": 0}
    return {
        ("mIOU", False): reference.jaccard_score(true, predicted, labels=named, **macro),
        ("mDice", False): reference.f1_score(true, predicted, labels=named, **macro),
        ("PixelAccuracy", True): reference.accuracy_score(true, predicted),
        ("mIOU", True): reference.jaccard_score(true, predicted, labels=present, **macro),
    }


@pytest.mark.parametrize("seed", range(6))
def test_pixels_are_counted_as_scikit_learn_counts_them(seed):
    images = random_images(seed)
    state = state_of_shards(
        SemanticEvaluator(), [image_of(number, *both) for *both, number in images], 2
    )
    evaluated = SemanticEvaluator().evaluate(state)
    mine = numbers(evaluated.headlines(np.ones((1, len(images)))))
    assert mine == pytest.approx(expected(images), rel=0, abs=1e-12)

    true, predicted = flattened(images)
    details = evaluated.details()
    by_label = {
        (metric.type, metric.parameters["label"]): metric.value for metric in details.metrics
    }
    at = {"labels": state.labels, "average": None, "zero_division": 0}
    are_true, are_said = set(true), set(predicted)
    for name, rate in (
        ("IOU", reference.jaccard_score),
        ("Dice", reference.f1_score),
        ("Precision", reference.precision_score),
        ("Recall", reference.recall_score),
    ):
        for label, rated in zip(state.labels, rate(true, predicted, **at), strict=True):
            is_defined = label in are_true or (name != "Recall" and label in are_said)
            value = float(rated) if is_defined else np.nan
            mine = by_label[name, label]
            mine = np.nan if mine is None else mine
            assert mine == pytest.approx(value, rel=0, abs=1e-12, nan_ok=True)

    order = [*state.labels, "background"]
    theirs = reference.confusion_matrix(true, predicted, labels=order)
    confusion = details.confusion_pixels
    assert confusion.matrix == theirs[:-1, :-1].tolist()
    for mine, row in ((confusion.hallucinations, theirs[-1]), (confusion.misses, theirs[:, -1])):
        assert [mine.get(label, 0) for label in state.labels] == row[:-1].tolist()


def test_weights_count_images_again():
    images = random_images(4)
    state = state_of_shards(
        SemanticEvaluator(), [image_of(number, *both) for *both, number in images], 2
    )
    evaluated = SemanticEvaluator().evaluate(state)
    counts = np.array([[1, 0, 2, 0, 3, 1], [0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    headlines = evaluated.headlines(counts.astype(float))
    for row, count in enumerate(counts[:2]):
        mine = {
            (headline.type, headline.parameters["background"]): float(headline.values[row])
            for headline in headlines
        }
        repeated = [
            headline for headline, times in zip(images, count, strict=True) for _ in range(times)
        ]
        assert mine == pytest.approx(expected(repeated), rel=0, abs=1e-12)
    assert all(np.isnan(headline.values[2]) for headline in headlines)


def one_image(answers, truths):
    evaluated = SemanticEvaluator().evaluate(
        state_of_shards(SemanticEvaluator(), [image_of(1, answers, truths, width=10, height=10)], 2)
    )
    return evaluated, numbers(evaluated.headlines(np.ones((1, 1))))


LEFT, RIGHT, ALL = square(0, 0, 4, 9), square(5, 0, 9, 9), square(0, 0, 9, 9)


def test_the_surer_region_is_on_top_whatever_the_order():
    answers = [region("a", ALL, score=0.9), region("b", LEFT, score=0.5)]
    for order in (answers, answers[::-1]):
        _, details = one_image(order, [region("a", ALL)])
        assert details["mIOU", False] == 1


def test_the_later_truth_is_on_top():
    _, details = one_image(
        [region("a", LEFT, score=1), region("b", RIGHT, score=1)],
        [region("a", ALL), region("b", RIGHT)],
    )
    assert details["mIOU", False] == 1


@pytest.mark.parametrize("fields", [{"label": "void"}, {"label": "ignore"}, {"crowd": True}])
def test_pixels_to_be_ignored_do_not_count(fields):
    evaluated, details = one_image(
        [region("a", ALL, score=1)], [region("a", LEFT), {**region("b", RIGHT), **fields}]
    )
    assert details == dict.fromkeys(details, 1.0)
    assert evaluated.details().badness["wrong_pixels"].tolist() == [0]


def test_nothing_is_no_label_but_may_be_right():
    evaluated, details = one_image([], [region("a", LEFT)])
    assert details == {
        ("mIOU", False): 0,
        ("mDice", False): 0,
        ("PixelAccuracy", True): 0.5,
        ("mIOU", True): 0.25,
    }
    assert evaluated.details().badness["wrong_pixels"].tolist() == [1]
    assert evaluated.details().confusion_pixels.misses == {"a": 50}
    empty, details = one_image([], [region("background", LEFT)])
    assert np.isnan(details["mIOU", False])
    assert details["PixelAccuracy", True] == details["mIOU", True] == 1
    assert empty.details().badness["wrong_pixels"].tolist() == [0]


def test_an_absent_label_is_none():
    images = [
        image_of(1, [region("a", ALL, score=1)], [region("a", ALL)]),
        image_of(2, [region("b", ALL, score=1)], [region("void", ALL)]),
    ]
    details = (
        SemanticEvaluator().evaluate(state_of_shards(SemanticEvaluator(), images, 2)).details()
    )
    by_label = {
        (metric.type, metric.parameters["label"]): metric.value for metric in details.metrics
    }
    assert by_label["IOU", "a"] == 1
    assert by_label["IOU", "b"] is None
    assert {label for _, label in by_label} == {"a", "b"}
    assert state_of_shards(SemanticEvaluator(), [], 2).tables["pixels"]["count"].tolist() == []


def test_an_image_may_have_more_labels_than_pixels():
    names = "abcdef"
    answers = [region(label, square(0, 0, 1, 1), score=at) for at, label in enumerate(names)]
    truths = [region(label, square(0, 0, 1, 1)) for label in names[::-1]]
    state = state_of_shards(
        SemanticEvaluator(), [image_of(1, answers, truths, width=2, height=2)], 2
    )
    pixels = {name: column.tolist() for name, column in state.tables["pixels"].items()}
    assert pixels == {"image": [0], "truth_label": [0], "predicted_label": [5], "count": [4]}


def test_a_contour_made_from_a_mask_is_that_mask():
    mask = (np.random.default_rng(0).random((HEIGHT, WIDTH)) < 0.5).astype(np.uint8)
    contour = [[{"x": int(x), "y": int(y)} for x, y in ring] for ring in rings(mask)]
    state = state_of_shards(
        SemanticEvaluator(), [image_of(1, [region("a", contour, score=1)], [])], 2
    )
    pixels = state.tables["pixels"]
    assert pixels["count"][pixels["predicted_label"] == 0].tolist() == [int(mask.sum())]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": None}, "image '1': expected width and height, .* got None and 29"),
        ({"height": 0}, "got 37 and 0"),
        ({"width": 1 << 20, "height": 1 << 20}, "at most 268435456 pixels"),
        (
            {"predictions": msgspec.Raw(
                b'[{"label":"a","score":1,"contour":[[{"x":0,"y":0}]]},{"label":"a","score":0,"contour":[[{"x":1e300,"y":0}]]}]'
            )},
            r"image '1': predictions\[1\]: expected points near the image, got one beyond",
        ),
        ({"predictions": msgspec.Raw(b'[{"label":"a"}]')}, "expected a field `score`"),
        ({"ground_truth": msgspec.Raw(b'[{"label":"a"}]')}, r"ground_truth\[0\]: expected a field `contour`"),
    ],
)  # fmt: skip
def test_what_cannot_be_painted_is_refused(change, message):
    image = msgspec.structs.replace(image_of(1, [], []), **change)
    with pytest.raises(EvaluationError, match=message):
        build_state(SemanticEvaluator(), [image], [])


class Sized:
    """An evaluation of how wide images are."""

    def tables(self, images, labels):
        return {"sizes": {"image": np.arange(len(images)), "width": np.array([1] * len(images))}}

    def evaluate(self, state, _settings=DEFAULT_SETTINGS):
        self.state = state
        return self

    def headlines(self, weights):
        return [Headline("Width", {}, weights @ self.state.sizes[:, 0].astype(float))]

    def details(self):
        return EvaluationDetails(
            metrics=[Metric("Images", float(len(self.state.ids)))],
            curves={"pr": [{"label": None}]},
            confusion=Confusion(["a"]),
            badness={"wide": self.state.sizes[:, 0].astype(float)},
            parameters={"iou": 0.5},
            excluded={"unseen_label": 2},
        )


class SizedPixels:
    """Both."""

    def tables(self, images, labels):
        return Sized().tables(images, labels) | SemanticEvaluator().tables(images, labels)

    def evaluate(self, state, _settings=DEFAULT_SETTINGS):
        return CombinedMetrics([Sized().evaluate(state), SemanticEvaluator().evaluate(state)])


def test_a_composition_says_what_its_parts_say():
    evaluation = SizedPixels()
    images = [image_of(number, *both) for *both, number in random_images(1)]
    report = evaluate_state(
        evaluation,
        state_of_shards(evaluation, images, 2),
        task="IMAGE_SEGMENTATION",
        model=ReportedModel("m"),
        options=EvaluationOptions(resamples=10),
    )
    assert [metric.type for metric in report.metrics[:3]] == ["Width", "mIOU", "mDice"]
    assert {"Images", "IOU"} <= {metric.type for metric in report.metrics}
    reasons = {metric.ci_reason for metric in report.metrics[:5]}
    assert reasons <= {"fewer than 30 images", ""}
    assert report.confusion.labels == ["a"]
    assert report.confusion_pixels.parameters["of"] == "pixels"
    assert report.parameters["iou"] == 0.5
    assert report.parameters["nothing"] == "background"
    assert report.data.excluded == {"unseen_label": 2}
    assert {metric.reason for metric in report.worst} == {"wide", "wrong_pixels"}


def overall(headlines):
    return [headline for headline in headlines if headline.parameters.get("label") is None]


def test_a_segmentation_is_instances_and_pixels():
    images = [image_of(number, *both) for *both, number in random_images(2)]
    weights = np.ones((1, len(images)))
    state = state_of_shards(SegmentationEvaluator(), images, 2)
    mine = SegmentationEvaluator().evaluate(state)
    metrics = [
        evaluator.evaluate(state_of_shards(evaluator, images, 2))
        for evaluator in (InstanceEvaluator(), SemanticEvaluator())
    ]
    both = overall(left for evaluator in metrics for left in evaluator.headlines(weights))
    headlines = overall(mine.headlines(weights))
    assert [left[:2] for left in headlines] == [left[:2] for left in both]
    for left, right in zip(headlines, both, strict=True):
        np.testing.assert_array_equal(left.values, right.values)
    assert mine.details().confusion_pixels == metrics[1].details().confusion_pixels
    objects = state._replace(tables={**state.tables})
    del objects.tables["pixels"]
    alone = overall(SegmentationEvaluator().evaluate(objects).headlines(weights))
    assert [left[:2] for left in alone] == [
        left[:2] for left in overall(metrics[0].headlines(weights))
    ]
