"""Images of a report: small pictures with annotations and predictions drawn over them."""

import base64
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import cv2
import msgspec

from quadriga.monitor.report.drift_texts import readable_number
from quadriga.monitor.report.metric_texts import format_brief, format_number, format_time
from quadriga.monitor.report.outlines import (
    LETTERS_PER_SIDE,
    MAX_SIDE_PX,
    SMALL_LETTERS_PER_SIDE,
    DrawnItem,
    Outline,
    decode_items,
    item_outline,
    item_texts,
    names_that_fit,
)
from quadriga.monitor.report.schema import ChangedImage, Neighbour, Report, Unlike, Worst
from quadriga.quoting import one_line
from quadriga.tasks.image import ImageError, Pixels, decode

ImageBytes = Callable[[str], bytes | None]

MAX_IMAGES = 24
MAX_UNLIKE, MAX_NEIGHBOURS = 12, 3
_JPEG_QUALITY = 72
_MIN_SCORE = 0.3
_MAX_OUTLINES = 100
_SMALL_PX = 320
"""Longer side of pictures that are shown beside others, in pixels."""


class ImageCard(msgspec.Struct, frozen=True):
    """A picture with outlines and texts, as the page shows it."""

    inference_id: str
    time: str
    """Time of the inference; empty if it is not known."""
    reasons: list[str]
    width: int
    height: int
    """Size of the frame that outlines refer to; 0 if unknown."""
    picture: str | None
    """`data:` URL of a JPEG; None without a picture."""
    outlines: list[Outline]
    names: list[Outline]
    """Outlines whose names have room."""
    letter_height: float
    """Height of letters in the frame that is readable on the page."""
    truths: list[str]
    predictions: list[str]
    """Texts of annotations and predictions without a position in the picture."""
    notes: list[str]
    """Reasons why something is not shown."""


def worst_cards(report: Report, image_bytes: ImageBytes) -> list[ImageCard]:
    """Draw the worst images of a report, the worst of each reason first, each image once.

    `image_bytes` returns the file of an image by its hash or path; None if it is not stored.
    """
    by_inference: dict[str, list[Worst]] = {}
    for entry in report.worst:
        by_inference.setdefault(entry.inference_id, []).append(entry)
    cards = []
    for image in _one_of_each_reason(report.worst)[:MAX_IMAGES]:
        others = [entry for entry in by_inference[image.inference_id] if entry is not image]
        reasons = [
            f"{entry.reason.replace('_', ' ')}: {_score_text(entry.score)}"
            for entry in (image, *others)
        ]
        cards.append(_card(image, reasons, image_bytes, ground_truth=image.ground_truth))
    return cards


def _score_text(score: float) -> str:
    """Format the badness of an image, which is a count for some reasons: `1`, and `0.571`."""
    return format_number(int(score) if score == int(score) else score)


def _one_of_each_reason(worst: Sequence[Worst]) -> list[Worst]:
    """Return each image once, by its hash: the worst one of each reason, the next one of each, and so on."""
    by_reason: dict[str, list[Worst]] = {}
    for entry in worst:
        by_reason.setdefault(entry.reason, []).append(entry)
    queues = [iter(entries) for entries in by_reason.values()]
    shown: dict[str, Worst] = {}
    while queues:
        for queue in [*queues]:
            image = next((entry for entry in queue if _image_key(entry) not in shown), None)
            if image is None:
                queues.remove(queue)
            else:
                shown[_image_key(image)] = image
    return [*shown.values()]


def _image_key(entry: Worst) -> str:
    return entry.image or entry.inference_id


def unlike_cards(report: Report, image_bytes: ImageBytes) -> list[list[ImageCard]]:
    """Draw the images least like the baseline, each followed by its nearest baseline images."""
    return [
        [
            _card(image, [f"Semantic score {format_brief(image.score)}"], image_bytes),
            *(
                _card(
                    neighbour,
                    [f"Distance {format_brief(neighbour.distance)}"],
                    image_bytes,
                    longest_px=_SMALL_PX,
                )
                for neighbour in image.nearest[:MAX_NEIGHBOURS]
            ),
        ]
        for image in report.unlike[:MAX_UNLIKE]
    ]


def changed_cards(report: Report, image_bytes: ImageBytes) -> dict[str, list[ImageCard]]:
    """Draw the images of each signal that is shown in full: those of the window, then those of the baseline."""
    return {
        changed.signal: [
            _card(
                image,
                [_value_text(changed.signal, side, image.value)],
                image_bytes,
                longest_px=_SMALL_PX,
            )
            for side, images in (("now", changed.current), ("usual", changed.baseline))
            for image in images
        ]
        for changed in report.changed
    }


def _value_text(signal: str, side: str, value: float | str | None) -> str:
    if value is None:
        return side
    return f"{side}: {one_line(value) if isinstance(value, str) else format_brief(readable_number(signal, value))}"


def _card(
    image: Worst | Unlike | Neighbour | ChangedImage,
    reasons: list[str],
    image_bytes: ImageBytes,
    *,
    ground_truth: Any = (),
    longest_px: int = MAX_SIDE_PX,
) -> ImageCard:
    notes: list[str] = []
    pixels = _pixels(image, image_bytes, notes)
    width, height = image.width or 0, image.height or 0
    if pixels is not None and not (width and height):
        height, width = pixels.shape[:2]
    try:
        annotations, predictions = decode_items(ground_truth), decode_items(image.predictions)
    except msgspec.MsgspecError:
        annotations, predictions = [], []
        notes.append("Predictions or truth cannot be read.")
    letters = LETTERS_PER_SIDE if longest_px > _SMALL_PX else SMALL_LETTERS_PER_SIDE
    letter_height = max(width, height) / letters
    truth = _outlines("truth", annotations, (width, height), letters)
    drawn = _drawable_predictions(predictions, notes)
    predicted = _outlines("prediction", drawn, (width, height), letters)
    in_turns = [outline for pair in zip_longest(truth, predicted) for outline in pair if outline]
    return ImageCard(
        inference_id=image.inference_id,
        time=format_time(image.created_at),
        reasons=reasons,
        width=width,
        height=height,
        picture=None if pixels is None else _data_url(pixels, longest_px),
        outlines=[*truth, *predicted],
        names=names_that_fit(in_turns, letter_height),
        letter_height=letter_height,
        truths=item_texts(annotations),
        predictions=item_texts(predictions),
        notes=notes,
    )


def _outlines(
    kind: str, items: Sequence[DrawnItem], size_wh: tuple[int, int], letters: int
) -> list[Outline]:
    """Return the outlines of the first items that have a place; none in an image of unknown size."""
    placed = [item for item in items if item.has_shape][:_MAX_OUTLINES] if all(size_wh) else []
    outlines = (item_outline(kind, item, size_wh, letters) for item in placed)
    return [outline for outline in outlines if outline is not None]


def _drawable_predictions(predictions: Sequence[DrawnItem], notes: list[str]) -> list[DrawnItem]:
    """Return the predictions to draw, those with the highest scores: more would hide the picture."""
    placed = [item for item in predictions if item.has_shape]
    selected = [item for item in placed if item.score is None or item.score >= _MIN_SCORE]
    selected = sorted(selected, key=lambda item: -(item.score or 0))[:_MAX_OUTLINES]
    if len(selected) < len(placed):
        notes.append(f"Not drawn, for low scores: {len(placed) - len(selected)}.")
    return selected


def _pixels(
    item: Worst | Unlike | Neighbour | ChangedImage, image_bytes: ImageBytes, notes: list[str]
) -> Pixels | None:
    """Return the picture in the frame that predictions refer to: uint8 (H, W, 3), RGB."""
    data = image_bytes(item.image or item.inference_id)
    if data is None:
        notes.append("The image is not kept.")
        return None
    try:
        image = decode(data)
        if (item.height, item.width) == (image.width, image.height) != (item.width, item.height):
            image = decode(data, exif="ignore")
        return image.rgb()
    except ImageError:
        notes.append("The image cannot be decoded.")
        return None


def _data_url(pixels: Pixels, longest_px: int) -> str:
    """Encode a small JPEG as a `data:` URL."""
    height, width = pixels.shape[:2]
    scale = min(1.0, longest_px / max(width, height))
    size_wh = max(1, round(width * scale)), max(1, round(height * scale))
    small = cv2.resize(pixels, size_wh, interpolation=cv2.INTER_AREA) if scale < 1 else pixels
    _, data = cv2.imencode(".jpg", small[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY))
    return "data:image/jpeg;base64," + base64.b64encode(data.tobytes()).decode()
