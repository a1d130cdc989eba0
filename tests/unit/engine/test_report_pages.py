"""The list of reports, and the link from a cell of a confusion matrix to the filter of its inferences."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.structs import replace

from quadriga.engine.console.frame import Frame
from quadriga.engine.console.report_pages import cell_list_link
from quadriga.monitor.report.cells import CellRequest
from quadriga.monitor.report.schema import Data, Metric, Window
from quadriga.store.query.request import QueryRequest
from quadriga.store.query.syntax import ReportCells
from tests.unit.engine.console_harness import open_page
from tests.unit.engine.drift_reports import drift_report, keep_report, numeric, report_id

REPORT = "1795610251094742221-70e8"


@pytest.mark.parametrize(
    ("truth", "predicted"),
    [
        ("star", "cross"),
        ("", "star"),
        ("star", ""),
        ("a & b | (c)", "<script>alert(1)</script>"),
        ('quo"te\\', "gt:5"),
        ("!not", "true"),
        ("12", "\u202eright to left"),
        (None, "star"),
        ("star", None),
        ("x" * 5000, "y"),
    ],
)
def test_the_filter_of_a_cell_has_its_labels_as_they_are(truth, predicted):
    link = cell_list_link(
        Frame("", has_store=True), REPORT, CellRequest(truth=truth, predicted=predicted)
    )
    (line,) = parse_qs(urlsplit(link).query)["q"]
    expected = [None if label is None else (label,) for label in (truth, predicted)]
    assert QueryRequest(where=line).parse_filter() == ReportCells(REPORT, *expected)


def test_time_and_outcome_of_each_report_in_the_list_lead_to_it_by_names_of_their_own(
    server, settings
):
    evaluation = replace(drift_report(0), kind="evaluation", metrics=[Metric("AP", 0.9151)])
    reports = [
        evaluation,
        replace(evaluation, id=report_id(1), metrics=[], data=Data(Window()), status="insufficient"),
        drift_report(2, numeric("score", 5, 9)),
        drift_report(3, numeric("score", 5, 5)),
        drift_report(4, numeric("score", 5, 9, alarm=False, status="insufficient")),
        drift_report(5, status="error"),
    ]  # fmt: skip
    for report in reports:
        keep_report(settings, report)
    page = open_page(server, "/console/reports")
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", page.text, re.DOTALL)
    outcomes = []
    for row, report in zip(rows, reversed(reports), strict=True):
        links = re.findall(r'<a href="([^"]*)"[^>]*>(.*?)</a>', row, re.DOTALL)
        assert {link for link, _ in links} == {f"/console/reports/{report.id}"}
        when, outcome = (re.sub("<[^>]*>", "", words) for _, words in links)
        assert when != outcome
        outcomes.append(outcome)
    assert outcomes == ["failed", "moved, too few", "as usual", "changed", "too few", "AP 0.915"]
