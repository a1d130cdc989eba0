"""Images of a report to look at: small pictures with what is true and what was predicted over them."""

import base64
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Any

import cv2
import msgspec

from quadriga.monitor.report.metric_texts import brief, number
from quadriga.monitor.report.outlines import FINE_PX, LETTERS, Drawn, Outline, outline, read, words
from quadriga.monitor.report.schema import Neighbour, Report, Unlike, Worst
from quadriga.tasks.image import Pixels, decode
from quadriga.tasks.image_formats import ImageError

ImageBytes = Callable[[str], bytes | None]

MOST_IMAGES = 24
MOST_UNLIKE, MOST_NEAREST = 12, 3
_JPEG_QUALITY = 72
_LEAST_SCORE = 0.3
_MOST_OUTLINES, _MOST_NAMED = 100, 12
_SMALL_PX = 320
"""Longer side of what stands beside something else."""


class Card(msgspec.Struct, frozen=True):
    """An image."""

    inference_id: str
    reasons: list[str]
    width: int
    height: int
    """Of the frame that outlines are in; 0 where nothing is known."""
    picture: str | None
    """`data:` address of a JPEG; None where there is none."""
    outlines: list[Outline]
    truths: list[str]
    predictions: list[str]
    """What has no place in the picture, in words."""
    notes: list[str]
    """What is not to be seen, and why."""

    @property
    def are_named(self) -> bool:
        """Whether there is room for names beside outlines."""
        return len(self.outlines) <= _MOST_NAMED

    @property
    def letter(self) -> float:
        """Height of letters in the frame, so that they can be read on the page."""
        return max(self.width, self.height) / LETTERS


def gallery(report: Report, image_bytes: ImageBytes) -> list[Card]:
    """Draw the worst images of a report, the worst of each reason first, each image once.

    `image_bytes` returns the file of an image by its hash or place; None where it is not kept.
    """
    by_reason: dict[str, list[Worst]] = {}
    for one in report.worst:
        by_reason.setdefault(one.reason, []).append(one)
    by_image: dict[str, list[Worst]] = {}
    for one in chain.from_iterable(zip_longest(*by_reason.values())):
        if one is not None:
            by_image.setdefault(one.inference_id, []).append(one)
    return [
        _card(
            same[0],
            [f"{each.reason.replace('_', ' ')}: {number(each.score)}" for each in same],
            image_bytes,
            truth=same[0].ground_truth,
        )
        for same in list(by_image.values())[:MOST_IMAGES]
    ]


def unlike(report: Report, image_bytes: ImageBytes) -> list[list[Card]]:
    """Draw the images least like the baseline, each with those of the baseline that are nearest to it."""
    return [
        [
            _card(one, [f"Semantic score {brief(one.score)}"], image_bytes),
            *(
                _card(near, [f"Distance {brief(near.distance)}"], image_bytes, longest_px=_SMALL_PX)
                for near in one.nearest[:MOST_NEAREST]
            ),
        ]
        for one in report.unlike[:MOST_UNLIKE]
    ]


def _card(
    one: Worst | Unlike | Neighbour,
    reasons: list[str],
    image_bytes: ImageBytes,
    *,
    truth: Any = (),
    longest_px: int = FINE_PX,
) -> Card:
    notes: list[str] = []
    pixels = _pixels(one, image_bytes, notes)
    width, height = one.width or 0, one.height or 0
    if pixels is not None and not (width and height):
        height, width = pixels.shape[:2]
    try:
        truths, predictions = read(truth), read(one.predictions)
    except msgspec.MsgspecError:
        truths, predictions = [], []
        notes.append("Predictions or truth cannot be read.")
    drawn = [("truth", item) for item in truths if item.is_placed][:_MOST_OUTLINES]
    drawn += [("prediction", item) for item in _drawn(predictions, notes)]
    outlines = [outline(kind, item, (width, height)) for kind, item in drawn if width and height]
    return Card(
        one.inference_id,
        reasons,
        width,
        height,
        None if pixels is None else _data_address(pixels, longest_px),
        [one for one in outlines if one is not None],
        words(truths),
        words(predictions),
        notes,
    )


def _drawn(predictions: Sequence[Drawn], notes: list[str]) -> list[Drawn]:
    """Return the predictions to be drawn, the best ones: more would hide the picture."""
    placed = [item for item in predictions if item.is_placed]
    kept = [item for item in placed if item.score is None or item.score >= _LEAST_SCORE]
    kept = sorted(kept, key=lambda item: -(item.score or 0))[:_MOST_OUTLINES]
    if len(kept) < len(placed):
        notes.append(f"Not drawn, for low scores: {len(placed) - len(kept)}.")
    return kept


def _pixels(
    one: Worst | Unlike | Neighbour, image_bytes: ImageBytes, notes: list[str]
) -> Pixels | None:
    """Return the picture in the frame that predictions refer to: uint8 (H, W, 3), RGB."""
    data = image_bytes(one.image or one.inference_id)
    if data is None:
        notes.append("The image is not kept.")
        return None
    try:
        image = decode(data)
        if (one.height, one.width) == (image.width, image.height) != (one.width, one.height):
            image = decode(data, exif="ignore")
        return image.rgb()
    except ImageError:
        notes.append("The image cannot be decoded.")
        return None


def _data_address(pixels: Pixels, longest_px: int) -> str:
    """Write a small JPEG as an address that holds it."""
    height, width = pixels.shape[:2]
    scale = min(1.0, longest_px / max(width, height))
    size_wh = max(1, round(width * scale)), max(1, round(height * scale))
    small = cv2.resize(pixels, size_wh, interpolation=cv2.INTER_AREA) if scale < 1 else pixels
    _, data = cv2.imencode(".jpg", small[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY))
    return "data:image/jpeg;base64," + base64.b64encode(data.tobytes()).decode()
