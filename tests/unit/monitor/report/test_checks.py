"""Reports as a pipeline reads them: JUnit's XML and Markdown."""

import html
import re
from xml.etree import ElementTree as ET

import msgspec
import pytest

from quadriga.monitor.report.checks import Check, render_junit, render_markdown, signal_checks
from quadriga.monitor.report.schema import Report
from tests.drift_reports import REPORTS
from tests.reports import HOSTILE, detection

CHECKS = [
    Check("mAP=0.5"),
    Check("AP[label=a|b]=0.9", "AP is 0.2, expected at least 0.9"),
    Check("no drift in x", skipped="too few values"),
]


def markup_free(text):
    """Undo what keeps texts from being markup."""
    return html.unescape(text)


@pytest.mark.parametrize("name", list(REPORTS))
def test_every_report_has_both_forms(name):
    report = REPORTS[name]()
    checks = signal_checks(report)
    suite = ET.fromstring(render_junit(report, checks)).find("testsuite")
    assert len(suite.findall("testcase")) == max(len(checks), 1)
    assert int(suite.get("failures")) == sum(signal.alarm for signal in report.signals)
    text = render_markdown(report, checks)
    assert text.startswith("### ")
    assert "<script" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", text)


def test_the_cases_of_junit_are_the_checks():
    suites = ET.fromstring(render_junit(detection(), CHECKS))
    assert [suites.get(name) for name in ("tests", "failures", "errors", "skipped")] == [*"3101"]
    passed, failed, skipped = suites.iter("testcase")
    assert (passed.get("name"), len(passed)) == ("mAP=0.5", 0)
    assert failed.find("failure").get("message") == "AP is 0.2, expected at least 0.9"
    assert skipped.find("skipped").get("message") == "too few values"


def test_a_report_without_checks_is_one_case_that_passed():
    (case,) = ET.fromstring(render_junit(detection(), [])).iter("testcase")
    assert (case.get("name"), len(case)) == ("report", 0)


def test_texts_of_users_are_neither_markup_nor_links_nor_mentions():
    model = msgspec.structs.replace(
        detection().model, name="@all [x](javascript:a) www.evil.example |<b>"
    )
    report = msgspec.structs.replace(
        detection(), model=model, warnings=[HOSTILE, "https://a.example"]
    )
    text = render_markdown(report, CHECKS)
    for part in ("@all", "[x]", "www.", "https:", "<b>", "<script", "$x_1$"):
        assert part not in text
    assert "@all [x](javascript:a) www.evil.example |<b>" in markup_free(text)


def test_each_row_of_a_table_has_its_columns():
    lines = render_markdown(detection(), CHECKS).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) > 10
    assert {line.count("|") for line in rows[:5]} == {3}
    assert "| AP&#91;label=a&#124;b&#93;=0.9 | ❌ AP is 0.2, expected at least 0.9 |" in rows
    assert len({line.count("|") for line in rows[5:]}) == 1


def test_a_drift_report_names_its_alarms_first():
    report = next(made for made in (make() for make in REPORTS.values()) if made.status == "drift")
    checks = signal_checks(report)
    assert checks[0].failure.startswith(f"{checks[0].name.removeprefix('no drift in ')} changed: ")
    text = render_markdown(report, checks)
    assert text.startswith("### ❌ Drift of ")
    assert text.index("❌ ALARM") < text.index("| ok |")


def test_an_empty_report_says_why():
    report = Report(
        kind="evaluation", task="OBJECT_DETECTION", status="insufficient", data=detection().data
    )
    assert "No image has ground truth" in render_markdown(report, [])
