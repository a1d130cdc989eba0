"""The list of reports, the whole report with its links, and the link from a cell of a confusion matrix to its inferences."""

import html
import json
import re
import shutil
from typing import Any

import pytest
from msgspec.structs import replace

from quadriga.engine.console.filter_line import comparison_text, joined
from quadriga.engine.console.pages import reports
from quadriga.monitor.report.page import render_page
from quadriga.monitor.report.saved import PAGE_FILE, REPORT_FILE
from quadriga.monitor.report.schema import (
    Data,
    Metric,
    PastSignal,
    PastWindow,
    Slice,
    Window,
    Worst,
)
from quadriga.store.query.filters.syntax import ReportCells
from quadriga.store.query.request import QueryRequest
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
    cell = {"report": REPORT, "truth": truth, "predicted": predicted}
    line = joined(comparison_text(*part) for part in cell.items() if part[1] is not None)
    expected = [None if label is None else (label,) for label in (truth, predicted)]
    assert QueryRequest(where=line).parse_filter() == ReportCells(REPORT, *expected)


def test_time_and_outcome_of_each_report_in_the_list_lead_to_it_by_names_of_their_own(
    server, settings
):
    evaluation = replace(drift_report(0), kind="evaluation", metrics=[Metric("AP", 0.9151)])
    since = {"signal": "image.blur", "other": 0.1, "at": "2026-10-01T14:49:00Z", "before": 50.0, "after": 9.0}  # fmt: skip
    in_part = Slice("meta.camera", "east", 40, [Metric("wasserstein_iqr", 0.6, since, n=9)])
    reports = [
        evaluation,
        replace(evaluation, id=report_id(1), metrics=[], data=Data(Window()), status="insufficient"),
        drift_report(2, numeric("score", 5, 9)),
        drift_report(3, numeric("score", 5, 5)),
        drift_report(4, numeric("score", 5, 9, alarm=False, status="insufficient")),
        drift_report(5, status="error"),
        drift_report(6, numeric("score", 5, 9, alarm=False, status="insufficient"), status="insufficient"),
        drift_report(7, numeric("image.blur", 5, 5), slices=[in_part]),
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
    moved = ["moved, no alarm", "moved, too few", "failed", "moved, no alarm"]
    assert outcomes == [*moved, "no alarm", "changed", "too few", "AP 0.915"]
    whole = open_page(server, f"/console/reports/{report_id(7)}").text
    assert '<span class="tag warn">moved in a part</span>' in whole
    assert "from 2026-10-01 14:49 UTC on" in whole


def test_reports_are_listed_page_by_page(server, settings, monkeypatch):
    """Those that cannot be read are on the page of their time; what was removed meanwhile moves nothing."""
    monkeypatch.setattr(reports, "SHOWN", 2)
    folders = [keep_report(settings, drift_report(number)) for number in range(5)]
    (folders[2] / REPORT_FILE).write_bytes(b"{")

    def page(query: str) -> tuple[list[str], list[str], Any]:
        listed = json.loads(open_page(server, f"/api/reports{query}").text)
        ids = [report["id"] for report in listed["reports"]]
        return ids, listed["unreadable"], listed.get("cursor", "none")

    def ids(*numbers: int) -> list[str]:
        return [report_id(number) for number in numbers]

    assert page("") == (ids(4, 3, 1, 0), ids(2), "none")
    assert page("?limit=2") == (ids(4, 3), [], report_id(3))
    assert page(f"?limit=2&cursor={report_id(3)}") == (ids(1), ids(2), report_id(1))
    assert page(f"?limit=2&cursor={report_id(1)}") == (ids(0), [], None)
    assert page("?limit=5") == (ids(4, 3, 1, 0), ids(2), None)
    first = open_page(server, "/console/reports").text
    (link,) = re.findall(r'<a class="button" rel="next" href="([^"]*)"', first)
    assert [report_id(number) in first for number in range(5)] == [False] * 3 + [True] * 2
    shutil.rmtree(folders[3])  # of which the link has the id
    second = open_page(server, html.unescape(link)).text
    assert [report_id(number) in second for number in range(5)] == [False, True, True, False, False]
    assert page(f"?limit=2&cursor={report_id(0)}") == ([], [], None)


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "limit=", "limit=5&cursor=x", "cursor=../1"])  # fmt: skip
def test_no_page_of_reports_is_a_mistake(server, query):
    page = open_page(server, f"/api/reports?{query}")
    assert page.status == 400
    wrong = "cursor" if "cursor" in query else "limit"
    assert wrong in json.loads(page.text)["error"]
    assert open_page(server, "/console/reports?cursor=x").status == 400


@pytest.mark.parametrize(
    ("url", "written_url"),
    [("https://here/of\"'<x>", "https://here/of&#34;&#39;&lt;x&gt;"), ("", "")],
)
def test_the_page_of_a_report_has_links_to_earlier_reports_and_ways_back(url, written_url):
    moved = {"blur": PastSignal(0.01, 0.2, alarm=True, status="ok")}
    past = [PastWindow(None, None, 9, "drift", id_, moved) for id_ in (report_id(0), "<b>")]
    page = render_page(drift_report(1, history=past), lambda _: None, f"{url}/console")
    back = (f"{written_url}/console/reports/{report_id(1)}", "Back to the report in the console")
    links = re.findall(r"<a href=\"([^\"]*)\">([^<]*)</a>", page)
    assert links[0] == links[-1] == back
    assert (f"{written_url}/console/reports/{report_id(0)}", report_id(0)) in links
    assert f'href="{written_url}/console/reports/%3Cb%3E"' in page
    assert page.index("back") < page.index("<header>")
    assert page.index("<footer>") < page.rindex("back")


def test_the_console_shows_the_whole_report_with_links_and_the_file_has_none(server, settings):
    image = Worst("1790000000000000123", "miss", 2, predictions=[], ground_truth=[])
    hostile = Worst("<script>alert(1)</script>", "miss", 1)
    report = replace(
        drift_report(0), kind="evaluation", metrics=[Metric("AP", 0.5)], worst=[image, hostile]
    )
    folder = keep_report(settings, report)
    (folder / PAGE_FILE).write_text(render_page(report, lambda _: None))
    shown = open_page(server, f"/console/reports/{report.id}")
    (link,) = re.findall(
        r'<a class="button" href="([^"]*)">The whole report, to print and pass on</a>', shown.text
    )
    whole = open_page(server, link, headers={"host": "127.0.0.1:8080"})
    assert whole.status == 200
    addresses = re.findall(r'href="([^"]*)"', whole.text)
    assert addresses == [
        f"/console/reports/{report.id}",
        "/console/inferences/1790000000000000123",
        f"/console/reports/{report.id}",
    ]  # without a host: a proxy before the server may take another, and https
    policy = whole.headers["content-security-policy"].split("; ")
    assert "default-src 'none'" in policy
    assert not any("script" in rule for rule in policy)
    assert any(rule.startswith("sandbox") for rule in policy)
    kept = open_page(server, f"/api/reports/{report.id}/page")
    assert "href=" not in kept.text
    assert kept.text == (folder / PAGE_FILE).read_text()
    assert open_page(server, "/console/reports/1-a/page").status == 404
