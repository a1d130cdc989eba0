"""Filters that find what changed: the images behind each signal of a drift report, and behind slices."""

import re

import msgspec

from quadriga.engine.console.filter_line import comparison_text, joined, window_filter
from quadriga.engine.console.formats import number
from quadriga.monitor.drift.metadata import PRESENCE_SUFFIX
from quadriga.monitor.report.drift_texts import is_spread_change, readable_number
from quadriga.monitor.report.schema import Report, Signal
from quadriga.quoting import one_line
from quadriga.store.query.filters.syntax import SIGNAL_FIELDS
from quadriga.store.query.names import CLASSIFICATION
from quadriga.store.records.records import json_text


class ImagesBehind(msgspec.Struct, frozen=True):
    """Images that show how a signal changed, or how it used to be."""

    words: str
    """The images in words, with the source of their limit."""
    line: str
    """Filter that finds them."""


MAX_IDS = 12
"""Images that a filter lists by their ids: those least like the baseline."""


_NUMBER_TEXT = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)


_NUMBER_FIELDS = {"latency_ms", "predictions"}
"""Signals that are a field of a filter by the same name."""


class _Limit(msgspec.Struct, frozen=True):
    """A bound on the values of a signal."""

    words: str
    operator: str
    value: float


def images_behind(signal: Signal, report: Report) -> list[ImagesBehind]:
    """Return the images behind a changed signal; none where no field of a filter has its values.

    Of numbers they are those of the window beyond the baseline's 10th or 90th percentile, on the side to which the
    signal moved; of labels those with the label that gained most, and those of the baseline with the one that lost
    most; of embeddings those least like the baseline.
    """
    current = window_filter(report.model, report.data.current).line
    baseline = window_filter(report.model, report.data.baseline).line
    if not current:
        return []
    if signal.kind == "embedding":
        return _least_alike(report)
    if signal.kind == "categorical":
        return _with_labels(signal, current, baseline, task=report.task)
    return _beyond_the_baseline(signal, current)


def _least_alike(report: Report) -> list[ImagesBehind]:
    ids = [image.inference_id for image in report.unlike[:MAX_IDS]]
    if not ids or not all(id_.isascii() and id_.isdigit() for id_ in ids):
        return []
    return [ImagesBehind(f"the {len(ids)} least like the baseline", f"id=in:{','.join(ids)}")]


def _beyond_the_baseline(signal: Signal, window: str) -> list[ImagesBehind]:
    field = _field_of(signal.name)
    limits = _limits(signal)
    if not field or not limits:
        return []
    comparisons = [comparison_text(field, limit.value, limit.operator) for limit in limits]
    tail = comparisons[0] if len(comparisons) == 1 else f"({' | '.join(comparisons)})"
    words = " or ".join(limit.words for limit in limits)
    return [ImagesBehind(words, joined([window, tail]))]


def _field_of(name: str) -> str:
    """Return the field of a filter that has the numbers of a signal; empty without one."""
    if name.startswith("meta.") or name in _NUMBER_FIELDS:
        return name
    return f"sig.{name}" if f"sig.{name}" in SIGNAL_FIELDS else ""


def _limits(signal: Signal) -> list[_Limit]:
    """Return where the images of a change begin: on the side of the change, or on both if values spread."""
    before, after = signal.before, signal.after
    if before is None or after is None:
        return []
    # Few distinct values may end at the baseline's percentile itself: no image is beyond it then.
    word, operator = ("below", "lt") if after.low < before.low else ("at most", "le")
    low = _limit(signal.name, f"{word} {{}}, the baseline's 10th", operator, before.low)
    word, operator = ("above", "gt") if after.high > before.high else ("at least", "ge")
    high = _limit(signal.name, f"{word} {{}}, the baseline's 90th", operator, before.high)
    if is_spread_change(signal):
        return [low, high] if after.high - after.low > before.high - before.low else []
    return [high] if after.mean > before.mean else [low]


def _limit(signal: str, words: str, operator: str, value: float) -> _Limit:
    shown = number(readable_number(signal, value))
    return _Limit(f"{words.format(shown)} percentile", operator, value)


def _with_labels(signal: Signal, current: str, baseline: str, *, task: str) -> list[ImagesBehind]:
    sides = signal.histogram.baseline, signal.histogram.current
    labels = [str(label) for label in signal.histogram.edges]
    if not labels or not all(len(side) == len(labels) and sum(side) for side in sides):
        return []
    shares = [[count / sum(side) for count in side] for side in sides]
    gains = {label: after - before for label, before, after in zip(labels, *shares, strict=True)}
    gained, lost = max(gains, key=gains.__getitem__), min(gains, key=gains.__getitem__)
    listed = []
    for window, label, words in (
        (current, gained, "now with {}, which gained most"),
        (baseline, lost, "of the baseline with {}, which lost most"),
    ):
        comparison = label_comparison(signal.name, label, task)
        if window and comparison:
            line = joined([window, comparison])
            listed.append(ImagesBehind(words.format(one_line(label, 60)), line))
    return listed


def label_comparison(name: str, label: str, task: str = "") -> str:
    """Return the comparison that finds a label of a signal, of a classification as its best one; empty where no field has it."""
    if name.endswith(PRESENCE_SUFFIX):
        field = name.removesuffix(PRESENCE_SUFFIX)
        return comparison_text(field, label == "yes", "exists") if field.startswith("meta.") else ""
    if name == "label":
        return comparison_text("best" if task == CLASSIFICATION else name, label)
    if not name.startswith("meta."):
        return ""
    if label in ("true", "false"):
        return comparison_text(name, label == "true")
    if _NUMBER_TEXT.fullmatch(label):  # a number among texts, or a text that reads as one
        return f"{_field_text(name)}=in:{label},{json_text(label)}"
    return comparison_text(name, label)


def slice_comparison(by: str, value: str) -> str:
    """Return the comparison that finds a slice of an evaluation, whose value is as in a filter; before 0.3 texts had no quotes."""
    is_operand = (
        value.startswith('"') or value in ("true", "false") or _NUMBER_TEXT.fullmatch(value)
    )
    return f"{_field_text(by)}={value}" if is_operand else comparison_text(by, value)


def _field_text(name: str) -> str:
    return comparison_text(name, 0).rpartition("=")[0]
