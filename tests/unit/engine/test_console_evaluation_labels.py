"""The table of labels on the page of an evaluation: order, counts, and the filters behind them."""

from urllib.parse import parse_qs, urlsplit

import pytest

from quadriga.engine.console.frame import Frame
from quadriga.engine.console.pages.reports import ReportTargets
from quadriga.monitor.report.page import (
    MAX_ROWS,
    confusion_rule,
    counted_unit,
    label_table,
    page_content,
)
from quadriga.monitor.report.schema import Confusion, Data, Metric, Report, Window
from quadriga.store.query.filters.syntax import ReportCells
from quadriga.store.query.request import QueryRequest

REPORT = "1795610251094742221-70e8"
HOSTILE = '"><script>alert(1)</script> & in:a,b'
CONFUSION = Confusion(
    ["star", HOSTILE, "ring"],
    [[8, 2, 0], [0, 5, 0], [0, 0, 0]],
    hallucinations={"star": 3, "ring": 1},
    misses={HOSTILE: 4},
    parameters={"of": "objects", "labels": 3, "iou": 0.5, "score": 0.05},
)


def metric(label, value, kind="AP", **parameters):
    return Metric(kind, value, {"iou": "0.50:0.95", **parameters, "label": label})


def report_of(metrics, confusion=CONFUSION, kind="evaluation"):
    return Report(kind, "OBJECT_DETECTION", Data(Window(n=9)), metrics=metrics, confusion=confusion)  # fmt: skip


def cells_of(row, own):
    targets = ReportTargets(Frame("", has_store=True), report_of([]), REPORT)
    link = targets.errors(row.label, own, row.lost if own == "truth" else row.wrong)
    assert link.startswith("/console/inferences?")
    (line,) = parse_qs(urlsplit(link).query)["q"]
    return QueryRequest(where=line).parse_filter()


def test_all_labels_stand_worst_first_with_what_is_counted():
    table = label_table(
        report_of(
            [
                metric(None, 0.7),
                metric("star", 0.9),
                metric(HOSTILE, 0.4),
                metric("star", 0.2, rule="VOC"),  # of another rule
                metric("ring", None),
                metric("rare", 0.0),
            ]
        )
    )
    assert [row.metric.value for row in table.rows] == [0.0, 0.4, 0.9, None]
    rare, hostile, star, ring = table.rows
    assert (rare.hits, rare.lost, rare.wrong) == (None, None, None)
    assert (star.hits, star.lost, star.wrong) == (8, {HOSTILE: 2}, {"": 3})
    assert (hostile.hits, hostile.lost, hostile.wrong) == (5, {"": 4}, {"star": 2})
    assert (ring.hits, ring.lost, ring.wrong) == (0, {}, {"": 1})
    assert cells_of(star, "truth") == ReportCells(REPORT, ("star",), (HOSTILE,))
    assert cells_of(star, "predicted") == ReportCells(REPORT, ("",), ("star",))
    assert cells_of(hostile, "truth") == ReportCells(REPORT, (HOSTILE,), ("",))
    assert cells_of(hostile, "predicted") == ReportCells(REPORT, ("star",), (HOSTILE,))


@pytest.mark.parametrize(
    ("metrics", "confusion", "kind", "count"),
    [
        ([], None, "evaluation", None),
        ([metric(None, 0.5)], CONFUSION, "evaluation", None),
        ([metric("a", 0.5)], CONFUSION, "drift", None),
        ([metric("a", 0.5)], None, "evaluation", 1),
        ([metric("a", 0.5, "F1"), metric("b", 0.5, "IOU")], None, "evaluation", 1),
        ([metric(str(n), n / 999) for n in range(MAX_ROWS + 5)], None, "evaluation", MAX_ROWS),
    ],
)
def test_reports_without_labels_and_with_too_many(metrics, confusion, kind, count):
    table = page_content(report_of(metrics, confusion, kind), lambda *_: None)["labels"]
    assert (table and len(table.rows)) == count
    assert count is None or not table.has_counts
    assert count is None or table.more == max(len(metrics) - MAX_ROWS, 0)


@pytest.mark.parametrize(
    ("confusion", "unit"),
    [
        (CONFUSION, "objects"),
        (Confusion(["star"], [[7]], parameters={"of": "pixels", "labels": 1}), "pixels"),
        (None, "objects"),
    ],
)
def test_the_table_says_what_it_counts(confusion, unit):
    assert counted_unit(confusion) == unit


def test_shares_are_left_out_where_the_matrix_leaves_labels_out():
    cut = Confusion(["star"], [[1]], parameters={"labels": 500})
    table = label_table(report_of([metric("star", 0.5)], cut))
    assert (table.rows[0].hits, table.is_whole) == (1, False)


@pytest.mark.parametrize(
    ("confusion", "said"),
    [
        (None, ""),
        (Confusion(), ""),
        (Confusion(parameters={"score": 0.5}), ""),
        (CONFUSION, "predictions with a score of at least 0.05, overlap (IoU) at least 0.5"),
    ],
)
def test_the_matrix_says_what_it_counts(confusion, said):
    assert confusion_rule(confusion) == said
