"""What of an image decided: the drop of a score while a part of the image is covered.

A window two cells of a grid wide and high moves in steps of one cell, so that each cell is covered
by up to four windows; a cell's value is the mean drop of those.

Source: Zeiler and Fergus 2014, "Visualizing and Understanding Convolutional Networks", section 4.2; the
score of a box is that of Petsiuk et al. 2021, "Black-box Explanation of Object Detectors via Saliency
Maps" (D-RISE), without its term for the other classes.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from quadriga.tasks.geometry import iou_matrix
from quadriga.tasks.image import Image
from quadriga.tasks.predictions import Classification, Detection, Prediction

CellRect = tuple[int, int, int, int]
"""Top, bottom, left, right in cells, the ends excluded."""


def cell_rects(rows: int, columns: int) -> list[CellRect]:
    """Give the windows that cover a grid: two cells each way, one at its edges."""
    return [
        (max(0, top), min(rows, top + 2), max(0, left), min(columns, left + 2))
        for top in range(-1, rows)
        for left in range(-1, columns)
    ]


def occluded_images(
    image: Image, rows: int, columns: int, places: Sequence[CellRect]
) -> Iterator[Image]:
    """Cover one window after the other with the mean colour; a cell has a pixel at least."""
    colour = image.pixels.reshape(-1, 3).mean(0).round().astype(np.uint8)
    y = np.linspace(0, image.height, rows + 1).round().astype(int)
    x = np.linspace(0, image.width, columns + 1).round().astype(int)
    for top, bottom, left, right in places:
        pixels = image.pixels.copy()
        pixels[y[top] : y[bottom], x[left] : x[right]] = colour
        yield Image(pixels, image.mime)


def score(target: Classification | Detection, answer: Sequence[Prediction]) -> float:
    """Give a class's score in another answer, a box's best overlap (IoU) times score; or 0."""
    if isinstance(target, Classification):
        scores = [
            item.score
            for item in answer
            if isinstance(item, Classification) and item.label == target.label
        ]
        return max(scores, default=0.0)
    found = [item for item in answer if isinstance(item, Detection) and item.label == target.label]
    if not found:
        return 0.0
    overlaps = iou_matrix(_boxes([target]), _boxes(found))[0]
    return float(max(overlaps * np.array([item.score for item in found])))


def saliency(
    whole: float, scores: Sequence[float], rows: int, columns: int, places: Sequence[CellRect]
) -> npt.NDArray[np.float64]:
    """Spread the drops from the score of the whole image over the cells that were covered.

    Returns:
        float64 (rows, columns), mean drop; below 0 where covering helps.
    """
    drops, covers = np.zeros((rows, columns)), np.zeros((rows, columns))
    for found, (top, bottom, left, right) in zip(scores, places, strict=True):
        drops[top:bottom, left:right] += whole - found
        covers[top:bottom, left:right] += 1
    return drops / covers


def _boxes(items: Sequence[Detection]) -> npt.NDArray[np.float64]:
    return np.array([[each.xmin, each.ymin, each.xmax, each.ymax] for each in items])
