"""Images of a report: small pictures with annotations and predictions drawn over them."""

import base64
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

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
ShownImage = Worst | Unlike | Neighbour | ChangedImage


class Picture(NamedTuple):
    """A picture of an inference, in the frame that its predictions refer to."""

    url: str | None
    """None without a picture."""
    width: int = 0
    height: int = 0
    """Size of the frame; 0 if it is not known."""
    note: str = ""
    """Reason why there is no picture."""


Pictures = Callable[[ShownImage, int], Picture | None]
"""Returns the picture of an image, its longer side of so many pixels; None for an image that is not to be shown."""

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
    """URL of the picture; None without one."""
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


def shown_images(report: Report) -> list[ShownImage]:
    """Return the images of a report that may be shown."""
    images: list[ShownImage] = [*_one_of_each_reason(report.worst)[:MAX_IMAGES]]
    for unlike in report.unlike[:MAX_UNLIKE]:
        images += [unlike, *unlike.nearest[:MAX_NEIGHBOURS]]
    for changed in report.changed:
        images += [*changed.current, *changed.baseline]
    return images


def worst_cards(report: Report, pictures: Pictures) -> list[ImageCard]:
    """Draw the worst images of a report, the worst of each reason first, each image once."""
    by_inference: dict[str, list[Worst]] = {}
    for entry in report.worst:
        by_inference.setdefault(entry.inference_id, []).append(entry)
    cards: list[ImageCard] = []
    for image in _one_of_each_reason(report.worst)[:MAX_IMAGES]:
        others = [entry for entry in by_inference[image.inference_id] if entry is not image]
        reasons = [
            f"{entry.reason.replace('_', ' ')}: {_score_text(entry.score)}"
            for entry in (image, *others)
        ]
        cards += _card(image, reasons, pictures, ground_truth=image.ground_truth)
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


def unlike_cards(report: Report, pictures: Pictures) -> list[list[ImageCard]]:
    """Draw the images least like the baseline, each followed by its nearest baseline images."""
    rows = []
    for image in report.unlike[:MAX_UNLIKE]:
        row = _card(image, [f"Semantic score {format_brief(image.score)}"], pictures)
        for neighbour in image.nearest[:MAX_NEIGHBOURS] if row else ():
            reasons = [f"Distance {format_brief(neighbour.distance)}"]
            row += _card(neighbour, reasons, pictures, longest_px=_SMALL_PX)
        rows.append(row)
    return [row for row in rows if row]


def changed_cards(report: Report, pictures: Pictures) -> dict[str, list[ImageCard]]:
    """Draw the images of each signal that is shown in full: those of the window, then those of the baseline."""
    return {
        changed.signal: [
            card
            for side, images in (("now", changed.current), ("usual", changed.baseline))
            for image in images
            for card in _card(
                image,
                [_value_text(changed.signal, side, image.value)],
                pictures,
                longest_px=_SMALL_PX,
            )
        ]
        for changed in report.changed
    }


def _value_text(signal: str, side: str, value: float | str | None) -> str:
    if value is None:
        return side
    return f"{side}: {one_line(value) if isinstance(value, str) else format_brief(readable_number(signal, value))}"


def _card(
    image: ShownImage,
    reasons: list[str],
    pictures: Pictures,
    *,
    ground_truth: Any = (),
    longest_px: int = MAX_SIDE_PX,
) -> list[ImageCard]:
    """Return the card of an image; none if it is not to be shown."""
    picture = pictures(image, longest_px)
    if picture is None:
        return []
    notes = [picture.note] if picture.note else []
    width, height = image.width or picture.width, image.height or picture.height
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
    card = ImageCard(
        inference_id=image.inference_id,
        time=format_time(image.created_at),
        reasons=reasons,
        width=width,
        height=height,
        picture=picture.url,
        outlines=[*truth, *predicted],
        names=names_that_fit(in_turns, letter_height),
        letter_height=letter_height,
        truths=item_texts(annotations),
        predictions=item_texts(predictions),
        notes=notes,
    )
    return [card]


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


def embedded_pictures(image_bytes: ImageBytes) -> Pictures:
    """Return what embeds small pictures as `data:` URLs.

    `image_bytes` returns the file of an image by its hash or path; None if it is not stored.
    """

    def picture(image: ShownImage, longest_px: int) -> Picture:
        data = image_bytes(image.image or image.inference_id)
        if data is None:
            return Picture(None, note="The image is not kept.")
        try:
            pixels = _pixels(data, image)
        except ImageError:
            return Picture(None, note="The image cannot be decoded.")
        height, width = pixels.shape[:2]
        return Picture(_data_url(pixels, longest_px), width, height)

    return picture


def _pixels(data: bytes, item: ShownImage) -> Pixels:
    """Return the picture in the frame that predictions refer to: uint8 (H, W, 3), RGB."""
    image = decode(data)
    if (item.height, item.width) == (image.width, image.height) != (item.width, item.height):
        image = decode(data, exif="ignore")
    return image.rgb()


def _data_url(pixels: Pixels, longest_px: int) -> str:
    """Encode a small JPEG as a `data:` URL."""
    height, width = pixels.shape[:2]
    scale = min(1.0, longest_px / max(width, height))
    size_wh = max(1, round(width * scale)), max(1, round(height * scale))
    small = cv2.resize(pixels, size_wh, interpolation=cv2.INTER_AREA) if scale < 1 else pixels
    _, data = cv2.imencode(".jpg", small[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY))
    return "data:image/jpeg;base64," + base64.b64encode(data.tobytes()).decode()
