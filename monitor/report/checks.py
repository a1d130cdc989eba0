"""Outcome of a report for a pipeline: its checks, as JUnit's XML and as Markdown."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as ET

from quadriga.monitor.report import drift_texts, metric_texts
from quadriga.monitor.report.schema import Report, sorted_by_effect
from quadriga.quoting import one_line, printable

_MAX_SIGNALS = 50
_MAX_LETTERS = 300
_MARKUP = re.compile(r"[\\`*_{}\[\]()#+!|<>&~@:$^]|(?<=www)\.", re.IGNORECASE)
"""Characters that Markdown, its tables, or a forge's mentions, links and formulas give a meaning."""


class Check(NamedTuple):
    """One thing that a report was held against."""

    name: str
    failure: str | None = None
    """Why the check failed; None if it passed."""
    skipped: str | None = None
    """Why nothing can be said; None if something can."""


def signal_checks(report: Report) -> list[Check]:
    """Return a check for each signal of a drift report, alarms first; signals with too few values are skipped."""
    checks = []
    for signal in sorted_by_effect(report.signals):
        alarm = f"{signal.name} changed: {drift_texts.format_effect(signal.effect)}"
        is_failed = signal.alarm or drift_texts.is_undecided(signal)
        if drift_texts.is_undecided(signal):
            alarm = f"{signal.name} moved and cannot be judged: {signal.reason}"
        skipped = signal.reason or "too few values" if signal.status == "insufficient" else None
        checks.append(
            Check(
                f"no drift in {signal.name}",
                alarm if is_failed else None,
                None if is_failed else skipped,
            )
        )
    return checks


def render_junit(report: Report, checks: Sequence[Check]) -> bytes:
    """Render checks as JUnit's XML, UTF-8; without any, the one check is that there is a report.

    The properties of the suite are the headlines of the report. Texts of users lose characters that XML cannot hold.
    """
    checks = checks or [Check("report")]
    name = printable(f"quadriga {report.kind} {_subject(report)}".strip())
    counts = {
        "tests": str(len(checks)),
        "failures": str(sum(check.failure is not None for check in checks)),
        "errors": "0",
        "skipped": str(sum(check.skipped is not None for check in checks)),
    }
    suites = ET.Element("testsuites", {"name": "quadriga", **counts})
    suite = ET.SubElement(
        suites, "testsuite", {"name": name, "timestamp": report.created[:19], **counts}
    )
    properties = ET.SubElement(suite, "properties")
    values = {"report": report.id, "outcome": _sentence(report), **dict(_values(report))}
    for key, value in values.items():
        ET.SubElement(
            properties,
            "property",
            name=printable(key),
            value=printable(value),
        )
    for check in checks:
        case = ET.SubElement(
            suite, "testcase", classname=name, name=printable(check.name), time="0"
        )
        for tag, text in (("failure", check.failure), ("skipped", check.skipped)):
            if text is not None:
                message = printable(text)
                ET.SubElement(case, tag, message=message).text = message
    ET.indent(suites)
    return ET.tostring(suites, "unicode", xml_declaration=False).encode() + b"\n"


def render_markdown(report: Report, checks: Sequence[Check]) -> str:
    """Render a report in short as GitHub's Markdown: outcome, checks, headlines, what was left out.

    Texts of users cannot become markup, links or mentions.
    """
    return "\n".join(_markdown_lines(report, checks)) + "\n"


def _markdown_lines(report: Report, checks: Sequence[Check]) -> Iterator[str]:
    failed = [check for check in checks if check.failure is not None]
    kind = "Evaluation" if report.kind == "evaluation" else "Drift"
    mark = "❌ " if failed else "✅ " if checks else ""
    yield f"### {mark}{kind} of {_text(_subject(report))}"
    if sentence := _sentence(report):
        yield f"\n{_text(sentence, 600)}"
    if checks and report.kind == "evaluation":
        yield "\n| check | |\n|---|---|"
        yield from (
            f"| {_text(check.name)} | {'❌ ' + _text(check.failure) if check.failure else '✅'} |"
            for check in checks
        )
    yield from _signal_lines(report) if report.kind == "drift" else _headline_lines(report)
    for warning in report.warnings:
        yield f"\n{_text(warning)}"
    for count, reason in metric_texts.excluded_text(report.data.excluded):
        yield f"\nLeft out: {count} {_text(reason)}"


def _headline_lines(report: Report) -> Iterator[str]:
    metrics = metric_texts.table_metrics(report)
    if not metrics:
        return
    differences = [
        {metric_texts.title(metric): metric for metric in comparison.differences}
        for comparison in report.comparisons
    ]
    others = [
        _text(f"than {comparison.model.name} {comparison.model.version}")
        for comparison in report.comparisons
    ]
    columns = ["metric", "value", "95 %", *others]
    yield f"\n| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}"
    for name, metric in zip(metric_texts.titles(metrics), metrics, strict=True):
        cells = [metric_texts.format_number(metric.value), metric_texts.format_interval(metric)]
        for compared in differences:
            difference = compared.get(metric_texts.title(metric))
            cells.append(metric_texts.format_difference(difference))
        yield f"| {_text(name)} | {' | '.join(cells)} |"


def _signal_lines(report: Report) -> Iterator[str]:
    signals = sorted_by_effect(report.signals)
    if not signals:
        return
    yield "\n| signal | | effect (least that alarms) |\n|---|---|---:|"
    for signal in signals[:_MAX_SIGNALS]:
        state = _text(drift_texts.status_text(signal))
        effect = _text(drift_texts.format_effect(signal.effect))
        yield f"| {_text(signal.name)} | {'❌ ' * signal.alarm}{state} | {effect} |"
    if len(signals) > _MAX_SIGNALS:
        yield f"\nand {len(signals) - _MAX_SIGNALS:,} more signals with smaller effects"


def _subject(report: Report) -> str:
    return f"{report.model.name} {report.model.version}".strip() or report.task or "files"


def _sentence(report: Report) -> str:
    if report.kind == "drift":
        verdict = drift_texts.verdict(report)
        return (
            f"{verdict} {drift_texts.headline(report)}" if drift_texts.is_moved(report) else verdict
        )
    sentences = [metric_texts.headline(report), *metric_texts.findings(report)]
    return " ".join(filter(None, sentences)) or drift_texts.verdict(report)


def _values(report: Report) -> Iterator[tuple[str, str]]:
    metrics = metric_texts.headlines(report)
    for name, metric in zip(metric_texts.titles(metrics), metrics, strict=True):
        interval = "" if metric.ci95 is None else f" ({metric_texts.format_interval(metric)})"
        yield name, f"{metric_texts.format_number(metric.value)}{interval}"


def _text(text: str, max_letters: int = _MAX_LETTERS) -> str:
    """Return a text on one line in which Markdown has no meaning."""
    line = one_line(text, max_letters)
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", line)
