"""Limits of metrics for pipelines: an evaluation passes, or fails with a line that says which metric and why.

Verdicts on windows: whether a metric fell, by more than chance explains.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.monitor.report.metric_texts import is_less_better
from quadriga.monitor.report.schema import Metric, Report
from quadriga.quoting import listed, near_names, quoted

Status = Literal["ok", "fall", "insufficient"]


class Verdict(NamedTuple):
    """What is known about the metric of a window."""

    status: Status
    """`insufficient`: neither a fall nor its absence is known."""
    reason: str = ""
    """Sentence that says why it is not `ok`."""


def has_interval(metric: Metric) -> bool:
    """Return whether a metric has a value and both ends of an interval."""
    return metric.value is not None and metric.ci95 is not None and None not in metric.ci95


def judge(
    metric: Metric,
    images: int,
    min_images: int,
    *,
    before: tuple[Metric, str] | None = None,
    at_least: float | None = None,
) -> Verdict:
    """Judge the metric of a window.

    A fall is known if the metric is below the reference's by more than the chance of both intervals, or if its whole
    interval is below the limit. Without an interval nothing is known.

    Args:
        metric: The metric of the window.
        images: Number of images of the window that have ground truth.
        min_images: Smallest number of images that a verdict is based on.
        before: The metric of an earlier report, and the id of that; None: it is not compared with one.
        at_least: Value that the metric must reach; an error such as `ECE` must not exceed it. None: no value.
    """
    if images < min_images:
        reason = f"too few images have ground truth: expected {min_images} or more, got {images}"
    elif metric.value is None:
        reason = f"{written(metric)} is undefined" + (f": {metric.reason}" if metric.reason else "")
    elif not has_interval(metric):
        reason = f"{written(metric)} has no interval: {metric.ci_reason or 'reason unknown'}"
    else:
        fall = None if before is None else describe_fall(metric, *before)
        fall = fall or _missed_limit(metric, at_least)
        return Verdict("ok") if fall is None else Verdict("fall", fall)
    return Verdict("insufficient", reason)


def _missed_limit(metric: Metric, limit: float | None) -> str | None:
    """Return how the whole interval of a metric misses a limit, as text; None if it does not."""
    low, high = metric.ci95 or (None, None)
    if limit is None or low is None or high is None:
        return None
    if is_less_better(metric):
        missed = f"{written(metric)} is {low:.4g} at least, expected at most {limit:g}"
        return missed if low > limit else None
    missed = f"{written(metric)} is {high:.4g} at most, expected at least {limit:g}"
    return missed if high < limit else None


_NAME = re.compile(
    r"([^\s\[\]=](?:[^\[\]=]*[^\s\[\]=])?)\s*(?:\[(.*)\])?", re.ASCII | re.DOTALL
)  # begins and ends without a space, as a client could make it try each division of many spaces
_ALIASES = {"map": ("ap", {"iou": "0.50:0.95"})}
_MAX_LISTED = 12
_KINDS: dict[Any, str] = {True: "multi-label", False: "single-label"}


class MetricName(NamedTuple):
    """What tells a metric of a report from others."""

    text: str
    """The metric as it was written."""
    type: str
    """Its type in lower case."""
    parameters: dict[str, str]
    """Parameters that tell it from others of its type."""


class MetricLimit(NamedTuple):
    """A metric, and the value that it must not fall below (or exceed, where smaller is better)."""

    metric: MetricName
    value: float


def parse_limit(text: str) -> MetricLimit:
    """Parse `mAP=0.5`, `Accuracy=0.9` or `AP[iou=0.5,label=star]=0.7`.

    Raises:
        EvaluationError: The text is not of this form.
    """
    written, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    metric = _parse_name(written) if math.isfinite(value) else None
    if metric is None:
        raise EvaluationError(
            f"expected METRIC=NUMBER, such as mAP=0.5 or AP[iou=0.5,label=star]=0.7, got {quoted(text, 80)}"
        )
    return MetricLimit(metric, value)


def parse_metric(text: str) -> MetricName:
    """Parse `mAP`, `Accuracy` or `AP[iou=0.5,label=star]`.

    Raises:
        EvaluationError: The text is not of this form.
    """
    metric = _parse_name(text)
    if metric is None:
        raise EvaluationError(
            f"expected a metric such as mAP or AP[iou=0.5,label=star], got {quoted(text, 80)}"
        )
    return metric


def _parse_name(text: str) -> MetricName | None:
    match = _NAME.fullmatch(text.strip())
    if match is None:
        return None
    parameters = {}
    # Values may have commas, as the rule of ECE has: the next pair begins with a name.
    for pair in re.split(r",(?=[^,=]*=)", match[2]) if match[2] else ():
        key, separator, wanted = pair.partition("=")
        if not separator or not key.strip():
            raise EvaluationError(
                f"expected NAME=VALUE in the brackets of {quoted(text, 80)}, got {pair!r}"
            )
        parameters[key.strip()] = wanted.strip()
    type_, aliased = _ALIASES.get(match[1].lower(), (match[1].lower(), {}))
    return MetricName(text.strip(), type_, aliased | parameters)


def name_of(metric: Metric) -> MetricName:
    """Return the name by which the same metric of another report is found."""
    parameters = {name: str(value) for name, value in metric.parameters.items()}
    return MetricName(written(metric), metric.type.lower(), parameters)


def limit_failure(report: Report, limit: MetricLimit) -> str | None:
    """Return why a report misses a limit; None if it keeps it. An undefined metric misses every limit.

    Raises:
        EvaluationError: The report has no such metric.
    """
    metric, text = find_metric(report.metrics, limit.metric), limit.metric.text
    parameters = "" if written(metric).lower() == text.lower() else f" ({written(metric)})"
    if metric.value is None:
        return f"{text} is undefined, expected {limit.value:g}: {_missing_reason(report, metric)}"
    is_missed, bound = metric.value < limit.value, "least"
    if is_less_better(metric):
        is_missed, bound = metric.value > limit.value, "most"
    failure = f"{text} is {metric.value:.4g}, expected at {bound} {limit.value:g}{parameters}"
    return failure if is_missed else None


def regression(report: Report, earlier: Report) -> str | None:
    """Return how a report's main metric fell below an earlier one's, by more than chance; None if it did not.

    The main metric is the first. Both values are estimates with errors, so the fall is compared with the root of the
    summed squares of the two halves of the 95 % intervals that face each other (Zou and Donner, Statistics in Medicine
    27, 2008). Where either has no interval, every fall counts.

    Raises:
        EvaluationError: The reports are not evaluations of one task, or lack a common metric.
    """
    for other in (report, earlier):
        if other.kind != "evaluation":
            raise EvaluationError(f"expected a report of an evaluation, got one of {other.kind}")
    if report.task != earlier.task:
        raise EvaluationError(f"expected an earlier report of {report.task}, got {earlier.task}")
    if not report.metrics:
        raise EvaluationError("expected a report with metrics, got none")
    metric = report.metrics[0]
    kinds = [_KINDS.get(side.parameters.get("multi_label", "")) for side in (report, earlier)]
    if kinds[0] != kinds[1]:  # a metric of multi-label has the parameters of single-label, and more
        known = ", ".join(map(written, earlier.metrics[:1]))
        reason = f"report {earlier.id} has {known}, as it is {kinds[1]} and this one {kinds[0]}"
        raise EvaluationError(f"metric not found: {written(metric)}; {reason}")
    before = find_metric(earlier.metrics, name_of(metric), f"report {earlier.id}")
    if before.value is None:
        return None
    if metric.value is None:
        return f"{written(metric)} is undefined, was {before.value:.4g}: {_missing_reason(report, metric)}"
    return describe_fall(metric, before, earlier.id)


def describe_fall(metric: Metric, before: Metric, report_id: str) -> str | None:
    """Return how a metric fell below that of an earlier report by more than chance, as text; None if it did not.

    Chance alone exceeds its difference in 2.5 % of the cases; it is 0 where an interval is missing.
    """
    if metric.value is None or before.value is None:
        return None
    fall, sides = before.value - metric.value, (0, 1)
    if is_less_better(metric):
        fall, sides = -fall, (1, 0)
    bounds = [
        side.ci95[at] if side.ci95 else None
        for side, at in zip((before, metric), sides, strict=True)
    ]
    chance = 0.0
    if bounds[0] is not None and bounds[1] is not None:
        chance = math.sqrt((before.value - bounds[0]) ** 2 + (metric.value - bounds[1]) ** 2)
    if fall <= chance:
        return None
    beyond = f", more than chance ({chance:.4g})" if chance else ""
    return f"{written(metric)} is {metric.value:.4g}, was {before.value:.4g} in report {report_id}{beyond}"


def find_metric(metrics: Sequence[Metric], name: MetricName, report: str = "this report") -> Metric:
    """Return the first metric of a type with some parameters; one of all labels where no label is named.

    Raises:
        EvaluationError: There is no such metric.
    """
    same_type = [metric for metric in metrics if metric.type.lower() == name.type]
    matching = [
        metric
        for metric in same_type
        if all(
            _has_value(metric.parameters.get(key), value) for key, value in name.parameters.items()
        )
        and ("label" in name.parameters or metric.parameters.get("label") is None)
    ]
    if matching:
        return matching[0]
    types = dict.fromkeys(metric.type for metric in metrics)
    near = near_names(name.type, types, 3)
    alike = same_type or [
        metric
        for metric in metrics
        if metric.type in near and metric.parameters.get("label") is None
    ]
    known = listed([*dict.fromkeys(map(written, alike))] or [*types], _MAX_LISTED)
    raise EvaluationError(f"metric not found: {name.text}; {report} has {known}")


def _has_value(value: object, text: str) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text) == value
        except ValueError:
            return False
    return str(value).lower() == text.lower() if isinstance(value, bool) else str(value) == text


def written(metric: Metric) -> str:
    """Return a metric's type and parameters as `parse_metric` takes them."""
    parameters = ",".join(
        f"{name}={value}" for name, value in metric.parameters.items() if value is not None
    )
    return f"{metric.type}[{parameters}]" if parameters else metric.type


def _missing_reason(report: Report, metric: Metric) -> str:
    if metric.reason:
        return metric.reason
    excluded = ", ".join(f"{count} {reason}" for reason, count in report.data.excluded.items())
    left_out = f"; left out: {excluded}" if excluded else ""
    return f"{report.data.current.n} images counted{left_out}"
