"""The verdict on a window: whether a metric fell, by more than chance explains."""

from typing import Literal, NamedTuple

from quadriga.monitor.evaluation.limits import describe_fall, is_error, written
from quadriga.monitor.report.schema import Metric

Status = Literal["ok", "fall", "insufficient"]


class Verdict(NamedTuple):
    """What is known about the metric of a window."""

    status: Status
    """`insufficient`: neither a fall nor its absence is known."""
    reason: str = ""
    """Sentence that says why it is not `ok`."""


class Reference(NamedTuple):
    """What the metric of a window is compared with; a part that is None is not compared."""

    metric: Metric | None = None
    """The metric of an earlier report."""
    report: str = ""
    """Id of that report."""
    at_least: float | None = None
    """Value that the metric must reach; an error such as `ECE` must not exceed it."""


def has_interval(metric: Metric) -> bool:
    """Return whether a metric has a value and both ends of an interval."""
    return metric.value is not None and metric.ci95 is not None and None not in metric.ci95


def judge(metric: Metric, images: int, min_images: int, reference: Reference) -> Verdict:
    """Judge the metric of a window.

    A fall is known if the metric is below the reference's by more than the chance of both intervals, or if its whole
    interval is below the limit. Without an interval nothing is known.

    Args:
        metric: The metric of the window.
        images: Number of images of the window that have ground truth.
        min_images: Smallest number of images that a verdict is based on.
        reference: What the metric is compared with.
    """
    name = written(metric)
    if images < min_images:
        return Verdict(
            "insufficient",
            f"too few images have ground truth: expected {min_images} or more, got {images}",
        )
    if metric.value is None:
        return Verdict(
            "insufficient",
            f"{name} is undefined" + (f": {metric.reason}" if metric.reason else ""),
        )
    if not has_interval(metric):
        return Verdict(
            "insufficient", f"{name} has no interval: {metric.ci_reason or 'reason unknown'}"
        )
    if reference.metric is not None:
        fall = describe_fall(metric, reference.metric, reference.report)
        if fall is not None:
            return Verdict("fall", fall)
    missed = _missed_limit(metric, reference.at_least)
    return Verdict("ok") if missed is None else Verdict("fall", missed)


def _missed_limit(metric: Metric, limit: float | None) -> str | None:
    """Return how the whole interval of a metric misses a limit, as text; None if it does not."""
    low, high = metric.ci95 or (None, None)
    if limit is None or low is None or high is None:
        return None
    if is_error(metric):
        missed = f"{written(metric)} is {low:.4g} at least, expected at most {limit:g}"
        return missed if low > limit else None
    missed = f"{written(metric)} is {high:.4g} at most, expected at least {limit:g}"
    return missed if high < limit else None
