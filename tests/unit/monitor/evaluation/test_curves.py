"""Curves of reports: the numbers beside their names are those of the report."""

import re

import msgspec

from quadriga.monitor.report.charts.evaluation import roc_chart, score_curves
from quadriga.monitor.report.schema import Data, Metric, Report, Window


def report(curves, metrics):
    return Report("evaluation", "x", Data(Window()), curves=curves, metrics=metrics)


def names(draw, curves, metrics):
    chart = draw(report(curves, metrics))
    return re.findall(r">(0\.\d\d [^<]*)<", str(chart.svg))


def precision_over_recall(of):
    return score_curves(of).chart


def pr(label, iou=None):
    return {
        "label": label,
        "iou": iou,
        "recall": [1, 0.5, 0],
        "precision": [0.5, 1, 1],
        "score": [0.1, 0.5, 1],
    }


def test_numbers_are_those_of_the_metrics():
    coco = {"rule": "COCO", "area": "all", "max_dets": 100}
    metrics = [
        Metric("AP", 0.11, coco | {"iou": "0.50:0.95", "label": "a"}),
        Metric("AP", 0.22, coco | {"iou": 0.5, "label": None, "area": "small"}),
        Metric("AP", 0.33, coco | {"iou": 0.5, "label": None}),
        Metric("AP", 0.44, coco | {"iou": 0.5, "label": "a"}),
        Metric("AP", 0.55, {"rule": "DOTA VOC07", "iou": 0.75, "label": "a"}),
        Metric("AP", 0.66, coco | {"iou": 0.75, "label": "a"}),
    ]
    curves = {"pr": [pr("a", 0.5), pr(None, 0.5), pr("a", 0.75)]}
    assert names(precision_over_recall, curves, metrics) == ["0.44 a", "0.33 mean", "0.66 a"]


def test_macro_average_belongs_to_the_mean():
    metrics = [
        Metric("AveragePrecision", 0.11, {"average": "micro"}),
        Metric("AveragePrecision", 0.22, {"average": "macro"}),
    ]
    assert names(precision_over_recall, {"pr": [pr(None)]}, metrics) == ["0.22 mean"]


def test_without_a_metric_it_is_the_area():
    curve = {
        "label": "a",
        "false_positive_rate": [1, 0, 0.5],
        "true_positive_rate": [1, 0, None],
        "threshold": [],
    }
    assert names(roc_chart, {"roc": [curve]}, []) == ["0.50 a"]


def test_the_worst_labels_are_drawn():
    metrics = [Metric("AveragePrecision", at / 10, {"label": f"l{at}"}) for at in range(9)]
    curves = {"pr": [pr(f"l{at}") for at in (8, 3, 1, 0, 2, 7, 6, 5, 4)]}
    assert names(precision_over_recall, curves, metrics) == [f"0.{at}0 l{at}" for at in range(4)]


def test_no_curve_is_no_picture():
    empty = pr("a") | {"recall": [], "precision": []}
    assert roc_chart(report({}, [])) is None
    assert score_curves(report({"pr": [empty]}, [])) is None


def test_the_points_of_a_score_stand_beside_the_chart():
    """A point without a score is none, and a label without a surer prediction has no dot."""
    sure = pr("a") | {"recall": [0, 0.5, 1, 1], "precision": [1, 1, 0.8, 0], "score": [0.9, 0.6, 0.3, None]}  # fmt: skip
    unsure = pr("b") | {"score": [0.1, 0.2, 0.4]}
    bare = {name: column for name, column in pr("c").items() if name != "score"}
    curves = score_curves(report({"pr": [sure, unsure, bare]}, []))
    rows = {row.name: row for row in curves.rows}
    assert [point[:3] for point in map(list, map(msgspec.to_builtins, rows["a"].points))] == [
        [0, 1, 0.9],
        [0.5, 1, 0.6],
        [1, 0.8, 0.3],
    ]
    assert (rows["a"].chosen.recall, rows["a"].chosen.precision) == (0.5, 1)
    assert rows["b"].chosen is None
    assert rows["c"].points == []
    dots = re.findall(r'<circle class="f(\d)" data-dot="" cx="[\d.]+" cy="[\d.]+" r="(\d)"/>', curves.chart.svg)  # fmt: skip
    styles = {row.style: row.name for row in curves.rows}
    assert {styles[style]: radius for style, radius in dots} == {"a": "4", "b": "0", "c": "0"}
