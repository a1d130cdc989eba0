"""Texts of metrics and numbers for people: titles, intervals, what was excluded."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from quadriga.monitor.report.schema import (
    Comparison,
    Metric,
    Report,
)

UNDEFINED = "—"

_WITHOUT = {"rule": "COCO", "iou": "0.50:0.95", "area": "all", "max_dets": 100}
"""What goes without saying."""

_WORDS = {
    "iou": "IoU {}",
    "max_dets": "{} per image",
    "score": "score ≥ {}",
    "k": "k = {}",
    "average": "{} average",
    "bins": "{} bins",
    **dict.fromkeys(("area", "of", "label", "chosen", "rule"), "{}"),
}
_TELLING = {"iou", "area", "max_dets", "score", "k", "average", "of", "label", "chosen"}
"""What is said in short; of average precision the rule, too."""

_LEFT_OUT = {
    "no_truth": "images whose truth is not known",
    "unseen_label": "predictions of a label that no truth has",
    "over_max_dets": "predictions beyond the surest 100 of an image and a label",
    "unasked_prompt": "answers to a prompt that nobody asked",
    "unlisted_annotation": "annotations of an image or a category that is not listed",
    "unreadable": "images whose answer or truth is not of this task",
    "failed": "requests that failed",
    "deleted": "inferences that were deleted meanwhile",
    "duplicate": "earlier answers to the same image",
    "not_answered": "images that one of them did not answer",
    "other_task": "inferences of another task",
    "no_signals": "images without an embedding",
    "other_space": "embeddings of another model",
}

_LESS_IS_BETTER = {"ECE", "MCE", "Brier", "HammingLoss", "Unanswered"}
_FEW = 16
_NOT_SHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")


def title(metric: Metric, *, of_label: bool = True, short: bool = False) -> str:
    """Name a metric with what it is taken over, as `AP, IoU 0.5, small`."""
    passed = {"n"} if of_label else {"n", "label"}
    said = [
        _said(key, value)
        for key, value in metric.parameters.items()
        if value is not None
        and _WITHOUT.get(key) != value
        and key not in passed
        and (not short or key in _TELLING or (key == "rule" and metric.type in {"AP", "AR"}))
    ]
    return ", ".join([metric.type, *said])


def _said(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {key.replace('_', ' ')}"
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return _WORDS.get(key, key.replace("_", " ") + " {}").format(text)


def titles(metrics: Sequence[Metric]) -> list[str]:
    """Name metrics that stand together in short, those that would be alike at length."""
    short = [title(one, short=True) for one in metrics]
    return [
        (name if short.count(name) == 1 else title(one))
        + (" (less is better)" if one.type in _LESS_IS_BETTER else "")
        for name, one in zip(short, metrics, strict=True)
    ]


def format_number(value: Any) -> str:
    """Write a number; a dash where it is undefined."""
    if value is None:
        return UNDEFINED
    if isinstance(value, bool | str) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 2 and value == int(value)):
        written = f"{value:,.0f}"
    else:
        written = f"{value:z.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return written.replace("-", "\N{MINUS SIGN}")


def sample_size_text(metric: Metric) -> str:
    """Write what a metric is taken over: of images unless it says of what."""
    return f"{format_number(metric.n)} {metric.parameters.get('n', '')}".rstrip()


def format_interval(metric: Metric) -> str:
    """Write a 95 % interval."""
    if metric.ci95 is None:
        return UNDEFINED
    low, high = (format_number(end) for end in metric.ci95)
    return f"{low} to {high}"


def difference_rows(other: Comparison) -> list[tuple[str, Metric, Metric | None]]:
    """Return the name, the value and the difference of each number of another model.

    There is no difference where the two models were not evaluated alike.
    """
    by = {(one.type, repr(one.parameters)): one for one in other.differences}
    return [
        (name, one, by.get((one.type, repr(one.parameters))))
        for name, one in zip(titles(other.metrics), other.metrics, strict=True)
    ]


def excluded_text(excluded: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return what does not count: how often, and what it is."""
    found = []
    for reason, count in excluded.items():
        of = reason.removeprefix("baseline_")
        words = _LEFT_OUT.get(of, of.replace("_", " ")) + " in the baseline" * (of != reason)
        if count:
            found.append((f"{count:,}", words))
    return found


def headlines(report: Report) -> list[Metric]:
    """Return the numbers that stand above: those that slices, other models and the bootstrap give as well."""
    if report.kind == "drift":
        return []
    told = [one.metrics for one in report.comparisons] + [one.metrics for one in report.slices]
    if told and told[0]:
        return report.metrics[: len(told[0])]
    with_interval = [at for at, one in enumerate(report.metrics) if one.ci95 is not None]
    if with_interval:
        return report.metrics[: with_interval[-1] + 1]
    return [one for one in report.metrics if one.parameters.get("label") is None][:_FEW]


def one_line(text: str | None, most: int = 40) -> str:
    """Return a text of a user on one line, its middle cut out where it is long."""
    if text is None:
        return "(none)"
    text = " ".join(printable(text).split()) or "(empty)"
    return text if len(text) <= most else f"{text[: most - 8]}…{text[-7:]}"


def printable(text: str) -> str:
    """Put a sign for what neither HTML nor XML may hold."""
    return _NOT_SHOWN.sub("\N{REPLACEMENT CHARACTER}", text)


def format_brief(value: float | None) -> str:
    """Write a small number with what counts of it, such as a p-value or an effect."""
    if value is None:
        return UNDEFINED
    if value and abs(value) < 0.001:
        return f"{value:.0e}"
    return format_number(float(value))
