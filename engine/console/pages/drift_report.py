"""What changed in a drift report, signal by signal: in words, as a picture, and the images behind it."""

import re
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from quadriga.engine.console.cards import Card, card
from quadriga.engine.console.filter_line import as_part, check, comparison_text, joined
from quadriga.engine.console.formats import number
from quadriga.monitor.drift.metadata import PRESENCE_SUFFIX
from quadriga.monitor.report.charts.drawing import Chart
from quadriga.monitor.report.charts.drift import signal_chart
from quadriga.monitor.report.drift_texts import (
    Change,
    describe_change,
    format_p_value,
    is_spread_change,
    readable_number,
    readable_signal,
    signal_title,
    signals_in_full,
)
from quadriga.monitor.report.schema import (
    ChangedImage,
    Level,
    Report,
    ReportedModel,
    Signal,
    Window,
)
from quadriga.quoting import one_line
from quadriga.store.query.columns import read_inferences
from quadriga.store.query.filters.syntax import SIGNAL_FIELDS
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.sql.catalog import CLASSIFICATION
from quadriga.store.records.errors import NotReadyError, QueryTimeoutError
from quadriga.store.records.records import json_text


class WindowFilter(msgspec.Struct, frozen=True):
    """The inferences of a window as a filter."""

    line: str
    """Filter of the page of inferences; empty where the window has no times, as of files."""
    is_whole: bool = True
    """Whether the filter of the report is part of it, which is not where it was sent as JSON."""


class ImagesBehind(msgspec.Struct, frozen=True):
    """Images that show how a signal changed, or how it used to be."""

    words: str
    """The images in words, with the source of their limit."""
    line: str
    """Filter that finds them."""


MAX_SHOWN = 24
"""Signals that are shown in full; the table of all signals has the others."""


MAX_WITH_IMAGES = 8
"""Signals that have images."""


_OUTLINES = 40


class ShownImage(msgspec.Struct, frozen=True):
    """An image of a signal."""

    card: Card
    value: str
    """Value of the signal; empty for embeddings."""


class SignalChange(msgspec.Struct, frozen=True, kw_only=True):
    """A signal with an alarm, or one that moved as far but cannot be judged."""

    change: Change
    why_open: str
    """Reason why it cannot be judged; empty with an alarm."""
    effect: str
    p: str
    chart: Chart | None
    """Its values on both sides."""
    places: list[ImagesBehind]
    """The slices, such as a camera, in which it moved more than in the rest."""
    images: list[ImagesBehind]
    now: list[ShownImage]
    before: list[ShownImage]


def signal_changes(report: Report, inferences: InferenceReader) -> list[SignalChange]:
    """Describe the signals that are shown in full, in the order in which a person reads them.

    Images that were deleted meanwhile are left out, and all of them while the database is away.
    """
    listed_signals = signals_in_full(report)[:MAX_SHOWN]
    shown = {signal.name for signal in listed_signals[:MAX_WITH_IMAGES]}
    by_signal = {images.signal: images for images in report.changed if images.signal in shown}
    listed = [
        image for images in by_signal.values() for image in (*images.current, *images.baseline)
    ]
    cards = _read_cards(inferences, listed)
    changes = []
    for signal in listed_signals:
        images = by_signal.get(signal.name)
        changes.append(
            SignalChange(
                change=describe_change(signal, report),
                why_open="" if signal.alarm else signal.reason or "too few independent values",
                effect=number(round(signal.effect.value or 0.0, 3)),
                p=format_p_value(signal.p_adjusted),
                chart=signal_chart(
                    readable_signal(signal, report), signal_title(signal.name, report)
                ),
                places=images_of_slices(signal, report),
                images=images_behind(signal, report),
                now=_shown(signal, images.current if images else (), cards),
                before=_shown(signal, images.baseline if images else (), cards),
            )
        )
    return changes


def _read_cards(inferences: InferenceReader, images: Sequence[ChangedImage]) -> dict[str, Card]:
    ids = sorted({int(image.inference_id) for image in images if image.inference_id.isdecimal()})
    with suppress(NotReadyError, QueryTimeoutError):
        return {
            inference.id: card(inference, outlines=_OUTLINES)
            for inference in read_inferences(inferences, ids)
        }
    return {}


def _shown(
    signal: Signal, images: Sequence[ChangedImage], cards: dict[str, Card]
) -> list[ShownImage]:
    return [
        ShownImage(cards[image.inference_id], _value_text(signal.name, image.value))
        for image in images
        if image.inference_id in cards and cards[image.inference_id].has_image
    ]


def _value_text(signal: str, value: float | str | None) -> str:
    if value is None:
        return ""
    return one_line(value, 24) if isinstance(value, str) else number(readable_number(signal, value))


MAX_PLACES = 3
"""Slices that a changed signal names."""


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


def model_comparisons(model: ReportedModel) -> list[str]:
    """Return the comparisons that find the inferences of a report's model: of its version, if it is about one alone."""
    comparisons = [comparison_text("model", model.name)]
    if model.version and ", " not in model.version:
        comparisons.append(comparison_text("version", model.version))
    return comparisons


def window_filter(model: ReportedModel, window: Window | None) -> WindowFilter:
    """Return the filter that finds the inferences of a model in the time of a window, and by its filter."""
    if window is None or window.start is None or window.end is None or not model.name:
        return WindowFilter("")
    times = [f"ts=ge:{window.start}", f"ts=le:{window.end}"]
    comparisons = [*model_comparisons(model), *times]
    where = window.filter
    if not where:
        return WindowFilter(joined(comparisons))
    if not isinstance(where, str) or check(where) is not None:
        return WindowFilter(joined(comparisons), is_whole=False)
    return WindowFilter(joined([*comparisons, as_part(where)]))


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


def images_of_slices(signal: Signal, report: Report) -> list[ImagesBehind]:
    """Return the slices in which a signal moved more than in the rest, the largest effect first, with their images."""
    window = window_filter(report.model, report.data.current).line
    places = []
    for part in report.slices:
        metric = next((m for m in part.metrics if m.parameters.get("signal") == signal.name), None)
        if metric is None or part.value is None:
            continue
        other = metric.parameters.get("other")
        by, effect = one_line(part.by.removeprefix("meta.")), number(round(metric.value or 0.0, 3))
        words = f"most where {by} is {one_line(part.value)}: moved {effect} there"
        if isinstance(other, int | float):
            words += f", {number(round(float(other), 3))} elsewhere"
        comparison = label_comparison(part.by, part.value, report.task)
        line = joined([window, comparison]) if window and comparison else ""
        places.append(ImagesBehind(words, line))
    return places[:MAX_PLACES]


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
    if is_spread_change(signal):
        is_wider = after.high - after.low > before.high - before.low
        return (
            [_low_limit(signal.name, before, after), _high_limit(signal.name, before, after)]
            if is_wider
            else []
        )
    side = _high_limit if after.mean > before.mean else _low_limit
    return [side(signal.name, before, after)]


def _low_limit(signal: str, before: Level, after: Level) -> _Limit:
    # Few distinct values may end at the baseline's percentile itself: no image is beyond it then.
    word, operator = ("below", "lt") if after.low < before.low else ("at most", "le")
    low = number(readable_number(signal, before.low))
    return _Limit(f"{word} {low}, the baseline's 10th percentile", operator, before.low)


def _high_limit(signal: str, before: Level, after: Level) -> _Limit:
    word, operator = ("above", "gt") if after.high > before.high else ("at least", "ge")
    high = number(readable_number(signal, before.high))
    return _Limit(f"{word} {high}, the baseline's 90th percentile", operator, before.high)


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
