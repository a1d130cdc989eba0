"""The link from a cell of a confusion matrix to the filter of its inferences, whatever its labels are."""

from urllib.parse import parse_qs, urlsplit

import pytest

from quadriga.engine.console.frame import Frame
from quadriga.engine.console.report_pages import cell_list_link
from quadriga.monitor.report.cells import CellRequest
from quadriga.store.query.request import QueryRequest
from quadriga.store.query.syntax import ReportCells

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
