"""How the numbers of a report are named for people."""

import re
from typing import Any

from monitor.report import Metric, Report

UNDEFINED = "—"

_WITHOUT = {"rule": "COCO", "iou": "0.50:0.95", "area": "all", "max_dets": 100}
"""What goes without saying."""

_WORDS = {
    "iou": "IoU {}",
    "area": "{}",
    "max_dets": "{} per image",
    "score": "score ≥ {}",
    "k": "k = {}",
    "average": "{} average",
    "bins": "{} bins",
    "rule": "{}",
    "label": "{}",
}
_FEW = 16

_NOT_SHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")


def title(metric: Metric, *, of_label: bool = True) -> str:
    """Name a metric with what it is taken over, as `AP, IoU 0.5, small`."""
    said = [
        _WORDS.get(key, key.replace("_", " ") + " {}").format(value)
        for key, value in metric.parameters.items()
        if value is not None and _WITHOUT.get(key) != value and (of_label or key != "label")
    ]
    return ", ".join([metric.type, *said])


def number(value: Any) -> str:
    """Write a number; a dash where it is undefined."""
    if value is None:
        return UNDEFINED
    if isinstance(value, bool | str) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 2 and value == int(value)):
        written = f"{value:,.0f}"
    else:
        written = f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return written.replace("-", "\N{MINUS SIGN}")


def interval(metric: Metric) -> str:
    """Write a 95 % interval."""
    if metric.ci95 is None:
        return UNDEFINED
    low, high = (number(end) for end in metric.ci95)
    return f"{low} to {high}"


def headlines(report: Report) -> list[Metric]:
    """Return the numbers that stand above: those that slices, other models and the bootstrap give as well."""
    told = [one.metrics for one in report.comparisons] + [one.metrics for one in report.slices]
    if told and told[0]:
        return report.metrics[: len(told[0])]
    with_interval = [at for at, one in enumerate(report.metrics) if one.ci95 is not None]
    if with_interval:
        return report.metrics[: with_interval[-1] + 1]
    return [one for one in report.metrics if one.parameters.get("label") is None][:_FEW]


def plain(text: str | None, most: int = 40) -> str:
    """Return a text of a user on one line, its middle cut out where it is long."""
    if text is None:
        return "(none)"
    text = " ".join(printable(text).split()) or "(empty)"
    return text if len(text) <= most else f"{text[: most - 8]}…{text[-7:]}"


def printable(text: str) -> str:
    """Put a sign for what neither HTML nor XML may hold."""
    return _NOT_SHOWN.sub("\N{REPLACEMENT CHARACTER}", text)
