"""The first lines of an evaluation: where it is worst, what costs most, and nothing that its numbers do not show."""

import pytest

from quadriga.monitor.report.checks import render_markdown
from quadriga.monitor.report.metric_texts import counts_by_label, findings, table_metrics
from quadriga.monitor.report.page import render_page
from quadriga.monitor.report.schema import Confusion, Data, Metric, Report, Slice, Window
from tests.reports import HOSTILE

EAST = ("meta.camera", "east", 80, 0.331, (0.25, 0.41))
WEST = ("meta.camera", "west", 80, 0.65, (0.55, 0.75))


def part(by, value, n, metric, ci95, *, kind="AP"):
    return Slice(by, value, n, [Metric(kind, metric, ci95=ci95, n=n)])


def report(*slices, kind="AP", value=0.607, **fields):
    metrics = [Metric(kind, value, ci95=(value - 0.05, value + 0.05), n=400)]
    data = Data(Window(n=400))
    return Report(
        "evaluation", "OBJECT_DETECTION", data, **{"metrics": metrics, "slices": slices} | fields
    )


@pytest.mark.parametrize(
    ("slices", "words"),
    [
        ([EAST, WEST], "camera east, AP 0.331 on 80 images"),
        ([EAST, ("hour", "14", 90, 0.2, (0.1, 0.3))], "hour 14, AP 0.200 on 90 images"),
        ([("night", "true", 80, 0.3, (0.2, 0.4))], "night, AP 0.300 on 80 images"),
        ([("night", "false", 80, 0.3, (0.2, 0.4))], "not night, AP 0.300 on 80 images"),
        ([("meta.lane", '"5"', 80, 0.3, (0.2, 0.4))], "lane 5, AP 0.300 on 80 images"),
        ([("meta.lane", None, 80, 0.3, (0.2, 0.4))], "lane (empty), AP 0.300 on 80 images"),
        # Too few images, no interval, an interval that reaches the whole, and no value.
        ([("meta.camera", "east", 29, 0.1, (0.05, 0.2))], None),
        ([("meta.camera", "east", 80, 0.1, None)], None),
        ([("meta.camera", "east", 80, 0.1, (None, None))], None),
        ([("meta.camera", "east", 80, 0.5, (0.38, 0.61))], None),
        ([("meta.camera", "east", 80, None, (0.1, 0.2))], None),
        ([WEST], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_worst_slice_is_named_only_where_it_is_worse(slices, words):
    expected = [] if words is None else [f"Worst: {words}."]
    assert findings(report(*(part(*slice_) for slice_ in slices))) == expected


def test_the_worst_of_many_slices_has_to_be_worse_by_more_than_that_of_one():
    near = part("meta.camera", "east", 80, 0.5, (0.4, 0.6))
    others = [part("meta.lane", str(lane), 80, 0.61, (0.51, 0.71)) for lane in range(40)]
    assert findings(report(near)) == ["Worst: camera east, AP 0.500 on 80 images."]
    assert findings(report(near, *others)) == []


def test_of_an_error_the_slice_with_the_largest_is_the_worst():
    good = part("meta.camera", "east", 80, 0.02, (0.01, 0.03), kind="ECE")
    bad = part("meta.camera", "west", 80, 0.4, (0.3, 0.5), kind="ECE")
    (sentence,) = findings(report(good, bad, kind="ECE", value=0.1))
    assert sentence == "Worst: camera west, ECE (less is better) 0.400 on 80 images."


@pytest.mark.parametrize(
    ("costs", "ap", "expected"),
    [
        ({"Cls": 0.01, "Miss": 0.06, "FalseNeg": 0.5}, 0.76, ["Objects not found cost most: 0.060 of AP at IoU 0.5, 25 % of what is lost."]),
        ({"Bkg": 0.06}, None, ["Predictions where nothing is cost most: 0.060 of AP at IoU 0.5."]),
        ({"Bkg": 0.004, "FalsePos": 0.4}, 0.9, []),
        ({"Bkg": None, "Miss": None}, 0.9, []),
        ({"Miss": 0.0}, 1.0, []),
        ({}, 0.9, []),
    ],
)  # fmt: skip
def test_the_dearest_kind_of_error_is_named_with_its_share(costs, ap, expected):
    metrics = [Metric("AP", 0.6), Metric("AP", 0.1, {"iou": 0.5, "label": "star"})]
    if ap is not None:
        metrics.append(Metric("AP", ap, {"iou": 0.5}))
    made = report(metrics=metrics, errors_tide=costs, parameters={"tide": {"iou": 0.5}})
    assert findings(made) == expected


AT = {"score": 0.3, "iou": 0.5, "labels": 2}


def test_the_first_table_has_the_rates_and_the_objects_at_the_working_score():
    confusion = Confusion(["star", HOSTILE], [[6, 2], [0, 4]], {"star": 3}, {HOSTILE: 1}, [], AT)
    made = report(confusion=confusion)
    rates = {metric.type: (metric.value, metric.n) for metric in table_metrics(made)[1:]}
    assert rates == {"Precision": (10 / 15, 15), "Recall": (10 / 13, 13), "F1": (20 / 28, 13)}
    assert counts_by_label(made).startswith("13 objects: star 8, <script>")
    page, lines = render_page(made, lambda _: None), render_markdown(made, [])
    for shown in (page, lines):
        assert "Recall, score ≥ 0.3" in shown
        assert "0.769" in shown
    assert "13 objects: star 8, &lt;script&gt;" in page


@pytest.mark.parametrize(
    "confusion",
    [
        None,
        Confusion(),
        Confusion(["a"], [[1]], parameters={"of": "images", "labels": 1}),
        Confusion(["a"], [[1]], parameters={"score": 0.3, "iou": 0.5, "labels": 900}),  # left out
    ],
)
def test_what_counts_no_objects_or_not_all_has_no_rates(confusion):
    made = report(confusion=confusion)
    assert table_metrics(made) == made.metrics


def test_without_predictions_and_objects_there_are_no_rates_to_divide():
    made = report(confusion=Confusion(["a"], [[0]], parameters=AT | {"labels": 1}))
    assert [metric.value for metric in table_metrics(made)[1:]] == [None] * 3
    assert counts_by_label(made) == ""


def test_the_objects_of_many_labels_are_counted_in_a_line():
    labels = [f"label {at}" for at in range(12)]
    matrix = [[at * (at == other) for other in range(12)] for at in range(12)]
    text = counts_by_label(report(confusion=Confusion(labels, matrix)))
    assert text.startswith("66 objects: label 11 11, label 10 10, ")
    assert text.endswith(" and 4 more labels")


def test_caveats_stand_below_the_numbers():
    made = report(part(*EAST), warnings=["AP is that above a score threshold"])
    page = render_page(made, lambda _: None)
    order = ["Worst: camera east", ">Numbers</h2>", "AP is that above a score threshold"]
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    bare = render_page(report(metrics=[], warnings=["Nothing is here"]), lambda _: None)
    assert bare.count("Nothing is here") == 1
