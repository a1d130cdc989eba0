"""Reports: a dict with its numbers by name, as text and as a table."""

import json
import math

import pytest

from quadriga.client import Client, Report
from quadriga.client.errors import InputError, MissingPackage
from tests.unit.client.conftest import json_response


def metric(type_: str, value: float | None, ci95=None, n=12, **parameters) -> dict:
    return {"type": type_, "value": value, "ci95": ci95, "n": n, "parameters": parameters}


EVALUATION = {
    "id": "7", "kind": "evaluation", "status": "ok", "model": {"name": "gauge", "version": "2"}, "warnings": ["mind the gap"],
    "data": {"current": {"n": 12}, "excluded": {"no_truth": 3, "failed": 0}},
    "metrics": [
        metric("F1", 1.0, label="bar"), metric("Accuracy", 0.8, [0.5, 0.95]), metric("TopKAccuracy", None, k=5),
        metric("F1", 0.75, [0.6, None], average="macro"), metric("F1", 0.8, average="micro"), metric("F1", 0.5, label="ring"),
        metric("AP", 0.9, iou="0.50:0.95", label=None), metric("AP", 0.95, iou=0.5, label=None),
        metric("Counts", 3.0, of="true positives", label=None),
    ],
}  # fmt: skip
DRIFT = {
    "id": "8", "kind": "drift", "status": "drift", "model": {"name": "gauge", "version": ""}, "data": {"current": {"n": 90}},
    "signals": [
        {"name": "meta.night", "kind": "categorical", "effect": {"name": "js", "value": 0.5, "minimum": 0.1}, "n": [80, 90],
         "alarm": True, "p_adjusted": 0.001},
        {"name": "image.blur", "kind": "numeric", "effect": {"name": "ks", "value": None, "minimum": 0.1}, "n": [2, 0],
         "alarm": False, "status": "insufficient"},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("type_", "parameters", "value"),
    [
        ("F1", {}, 0.75), ("f1", {"average": "micro"}, 0.8), ("F1", {"label": "ring"}, 0.5), ("F1", {"label": None}, 0.75),
        ("Accuracy", {}, 0.8), ("mAP", {}, 0.9), ("AP", {"iou": 0.5}, 0.95), ("TopKAccuracy", {}, None),
    ],
)  # fmt: skip
def test_the_headline_of_a_type_comes_before_that_of_a_label(type_, parameters, value):
    found = Report(EVALUATION).metric(type_, **parameters)
    assert found.value == value
    assert math.isnan(float(found)) if value is None else float(found) == value


@pytest.mark.parametrize(
    ("report", "type_", "parameters", "message"),
    [
        (EVALUATION, "mIOU", {}, "got 'mIOU': it has F1, Accuracy, TopKAccuracy, AP, Counts"),
        (
            EVALUATION,
            "F1",
            {"label": "moon"},
            r"expected F1 of the report to have \{'label': 'moon'\}, got",
        ),
        (DRIFT, "F1", {}, "it has none"),
        ({}, "F1", {}, "it has none"),
    ],
)
def test_a_metric_that_a_report_does_not_have_is_refused(report, type_, parameters, message):
    with pytest.raises(InputError, match=message):
        Report(report).metric(type_, **parameters)


def test_a_report_in_a_few_lines_has_its_warnings_and_headlines():
    assert str(Report(EVALUATION)).splitlines() == [
        "evaluation of gauge@2: ok, 12 images",
        "left out: 3 no_truth",
        "warning: mind the gap",
        "Accuracy 0.8 (0.5 to 0.95)",
        "F1[average=macro] 0.75 (0.6 to —)",
        "AP[iou=0.50:0.95] 0.9",
    ]
    assert str(Report(DRIFT)).splitlines() == [
        "drift of gauge: drift, 90 images", "meta.night alarm: js 0.5", "image.blur insufficient: ks —",
    ]  # fmt: skip
    assert Report({}).summary == "report of ?: ?, 0 images"
    assert Report({"data": {"current": {"n": 1}}}).summary == "report of ?: ?, 1 image"


def test_a_table_has_a_row_for_each_metric_or_signal():
    pandas = pytest.importorskip("pandas")
    table = Report(EVALUATION).to_pandas()
    assert list(table.columns[:5]) == ["type", "value", "low", "high", "n"]
    assert table[table["label"] == "ring"]["value"].tolist() == [0.5]
    assert len(table) == len(EVALUATION["metrics"])
    signals = Report(DRIFT).to_pandas()
    assert signals["alarm"].tolist() == [True, False]
    assert pandas.isna(signals["value"][1])
    assert len(Report({"kind": "drift"}).to_pandas()) == len(Report({}).to_pandas()) == 0


def test_a_metric_prints_as_a_short_text():
    metric = Report(EVALUATION).metric("F1")
    assert repr(metric) == "<Metric F1[average=macro] 0.75 (0.6 to —)>"


def test_without_pandas_a_table_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingPackage, match="pip install pandas"):
        Report(EVALUATION).to_pandas()


def test_an_evaluation_returns_a_report_that_is_still_a_dict(server):
    job = {"id": "7", "state": "succeeded"}
    server.answers(
        json_response(job), json_response(job), json_response(EVALUATION), json_response(job)
    )
    with Client(server.url, key="", retries=0) as client:
        report = client.evaluate("gauge")
        assert (report.metric("F1").value, report["metrics"], report) == (
            0.75,
            EVALUATION["metrics"],
            EVALUATION,
        )
        assert json.loads(json.dumps(report)) == EVALUATION
        assert client.evaluate("gauge", wait=False) == job


def test_reports_are_listed_all_or_page_by_page(server):
    listed = {"reports": [], "unreadable": [], "cursor": "7-a"}
    server.answers(json_response({"reports": []}), json_response(listed))
    with Client(server.url, key="", retries=0) as client:
        assert client.reports.list() == {"reports": []}
        assert client.reports.list(limit=5, cursor="9-b") == listed
    asked = [request.partition(b" HTTP")[0] for request in server.requests]
    assert asked == [b"GET /api/reports", b"GET /api/reports?limit=5&cursor=9-b"]
