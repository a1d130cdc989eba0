"""What changed in a drift report, signal by signal: in words, both distributions, and the images behind it."""

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from quadriga.engine.console.cards import Card, card
from quadriga.engine.console.drift_links import ImagesBehind, images_behind, images_of_slices
from quadriga.engine.console.formats import number
from quadriga.engine.console.frame import Frame
from quadriga.monitor.report.drift_texts import (
    Change,
    alarms_in_reading_order,
    describe_change,
    format_p_value,
    maybe_chance_signals,
    undecided_signals,
)
from quadriga.monitor.report.metric_texts import one_line
from quadriga.monitor.report.schema import ChangedImage, Report, Signal
from quadriga.store.query.columns import read_inferences
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotReadyError, QueryTimeoutError

MAX_SHOWN = 24
"""Signals that are shown in full; the table of all signals has the others."""
MAX_WITH_IMAGES = 8
"""Signals that have images."""
WIDTH, HEIGHT = 400, 60
"""Size of a distribution, in its own units."""
_MAX_LABELS = 5
_OUTLINES = 40


class LabelBars(msgspec.Struct, frozen=True):
    """Shares of a label on both sides, as bars."""

    label: str
    x: float
    before: float
    after: float
    """Heights, in units of the distribution."""
    width: float


class Distribution(msgspec.Struct, frozen=True):
    """The values of a signal on both sides: areas of numbers, or bars of labels."""

    before: str = ""
    after: str = ""
    """SVG paths."""
    bars: list[LabelBars] = []


class ShownImage(msgspec.Struct, frozen=True):
    """An image of a signal."""

    card: Card
    value: str
    """Value of the signal; empty for embeddings."""


class SignalChange(msgspec.Struct, frozen=True, kw_only=True):
    """A signal with an alarm."""

    change: Change
    effect: str
    p: str
    distribution: Distribution | None
    places: list[ImagesBehind]
    """The slices, such as a camera, in which it moved more than in the rest."""
    images: list[ImagesBehind]
    now: list[ShownImage]
    before: list[ShownImage]


def signal_changes(report: Report, inferences: InferenceReader) -> list[SignalChange]:
    """Describe the signals with an alarm in the order in which a person reads them.

    Images that were deleted meanwhile are left out, and all of them while the database is away.
    """
    alarms = alarms_in_reading_order(report.signals)[:MAX_SHOWN]
    shown = {signal.name for signal in alarms[:MAX_WITH_IMAGES]}
    by_signal = {images.signal: images for images in report.changed if images.signal in shown}
    listed = [
        image for images in by_signal.values() for image in (*images.current, *images.baseline)
    ]
    cards = _read_cards(inferences, listed)
    changes = []
    for signal in alarms:
        images = by_signal.get(signal.name)
        changes.append(
            SignalChange(
                change=describe_change(signal, report),
                effect=number(round(signal.effect.value or 0.0, 3)),
                p=format_p_value(signal.p_adjusted),
                distribution=distribution(signal),
                places=images_of_slices(signal, report),
                images=images_behind(signal, report),
                now=_shown(images.current if images else (), cards),
                before=_shown(images.baseline if images else (), cards),
            )
        )
    return changes


def image_links(frame: Frame, change: SignalChange) -> list[tuple[str, str]]:
    """Return the words and the link of each filter of a change."""
    return _links(frame, change.images)


def place_links(frame: Frame, change: SignalChange) -> list[tuple[str, str]]:
    """Return the words and the link of each slice in which a signal moved most; the link is empty without a filter."""
    return _links(frame, change.places)


def undecided_places(frame: Frame, report: Report) -> dict[str, list[tuple[str, str]]]:
    """Return the slices, as `place_links`, in which each signal moved most that moved without an alarm."""
    return {
        signal.name: _links(frame, images_of_slices(signal, report))
        for signal in (*undecided_signals(report), *maybe_chance_signals(report))
    }


def _links(frame: Frame, images: Sequence[ImagesBehind]) -> list[tuple[str, str]]:
    return [
        (behind.words, frame.link("/console/inferences", q=behind.line) if behind.line else "")
        for behind in images
    ]


def distribution(signal: Signal) -> Distribution | None:
    """Return the values of a signal on both sides as coordinates; None where a side has none."""
    sides = signal.histogram.baseline, signal.histogram.current
    if not all(side and sum(side) for side in sides) or len(sides[0]) != len(sides[1]):
        return None
    before, after = ([count / sum(side) for count in side] for side in sides)
    if signal.kind == "categorical":
        labels = [str(label) for label in signal.histogram.edges]
        return (
            Distribution(bars=_bars(labels, before, after)) if len(labels) == len(before) else None
        )
    top = max(*before, *after)
    return Distribution(_area(before, top), _area(after, top))


def _area(shares: Sequence[float], top: float) -> str:
    """Return the path of an area with a step for each bin."""
    step = WIDTH / len(shares)
    steps = "".join(
        f"V{HEIGHT - share / top * (HEIGHT - 2):.1f}H{(position + 1) * step:.1f}"
        for position, share in enumerate(shares)
    )
    return f"M0 {HEIGHT}{steps}V{HEIGHT}Z"


def _bars(
    labels: Sequence[str], before: Sequence[float], after: Sequence[float]
) -> list[LabelBars]:
    """Return the bars of the labels whose shares differ most, the most frequent first."""
    rows = sorted(zip(labels, before, after, strict=True), key=lambda row: -abs(row[2] - row[1]))
    rows = sorted(rows[:_MAX_LABELS], key=lambda row: -max(row[1:]))
    top = max(max(row[1:]) for row in rows)
    if not top:
        return []
    step = WIDTH / _MAX_LABELS
    return [
        LabelBars(
            one_line(label, 16),
            x=round(position * step, 1),
            before=round(share_before / top * (HEIGHT - 2), 1),
            after=round(share_after / top * (HEIGHT - 2), 1),
            width=round(step * 0.36, 1),
        )
        for position, (label, share_before, share_after) in enumerate(rows)
    ]


def _read_cards(inferences: InferenceReader, images: Sequence[ChangedImage]) -> dict[str, Card]:
    ids = sorted({int(image.inference_id) for image in images if image.inference_id.isdecimal()})
    with suppress(NotReadyError, QueryTimeoutError):
        return {
            inference.id: card(inference, outlines=_OUTLINES)
            for inference in read_inferences(inferences, ids)
        }
    return {}


def _shown(images: Sequence[ChangedImage], cards: dict[str, Card]) -> list[ShownImage]:
    return [
        ShownImage(cards[image.inference_id], _value_text(image.value))
        for image in images
        if image.inference_id in cards and cards[image.inference_id].has_image
    ]


def _value_text(value: float | str | None) -> str:
    if value is None:
        return ""
    return one_line(value, 24) if isinstance(value, str) else number(value)
