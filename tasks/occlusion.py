"""Occlusion maps: the drop of a score while a rectangle of the image is covered.

A rectangle two cells of a grid wide and high moves in steps of one cell, so that each cell is covered
by up to four rectangles; the value of a cell is the mean drop over them.

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
"""Rectangle of a grid: top, bottom, left and right in cells, the ends excluded."""


def cell_rects(rows: int, columns: int) -> list[CellRect]:
    """Return the rectangles that cover a grid: two cells each way, one at its edges."""
    return [
        (max(0, top), min(rows, top + 2), max(0, left), min(columns, left + 2))
        for top in range(-1, rows)
        for left in range(-1, columns)
    ]


def occluded_images(
    image: Image, rows: int, columns: int, cell_rects: Sequence[CellRect]
) -> Iterator[Image]:
    """Yield the image with each rectangle covered by the mean colour; a cell has at least a pixel."""
    colour = image.pixels.reshape(-1, 3).mean(0).round().astype(np.uint8)
    y = np.linspace(0, image.height, rows + 1).round().astype(int)
    x = np.linspace(0, image.width, columns + 1).round().astype(int)
    for top, bottom, left, right in cell_rects:
        pixels = image.pixels.copy()
        pixels[y[top] : y[bottom], x[left] : x[right]] = colour
        yield Image(pixels, image.mime)


def score(target: Classification | Detection, predictions: Sequence[Prediction]) -> float:
    """Return how well predictions repeat a target: the score of its class, or the best overlap (IoU) times score of a box.

    It is 0 if no prediction has the label of the target.
    """
    if isinstance(target, Classification):
        scores = [
            prediction.score
            for prediction in predictions
            if isinstance(prediction, Classification) and prediction.label == target.label
        ]
        return max(scores, default=0.0)
    candidates = [
        prediction
        for prediction in predictions
        if isinstance(prediction, Detection) and prediction.label == target.label
    ]
    if not candidates:
        return 0.0
    overlaps = iou_matrix(_boxes([target]), _boxes(candidates))[0]
    return float(max(overlaps * np.array([prediction.score for prediction in candidates])))


def saliency(
    uncovered_score: float,
    scores: Sequence[float],
    rows: int,
    columns: int,
    cell_rects: Sequence[CellRect],
) -> npt.NDArray[np.float64]:
    """Spread the drops of the covered scores over the covered cells.

    Returns:
        Mean drop of each cell, float64 (rows, columns); below 0 if covering raises the score.
    """
    drops, covers = np.zeros((rows, columns)), np.zeros((rows, columns))
    for covered_score, (top, bottom, left, right) in zip(scores, cell_rects, strict=True):
        drops[top:bottom, left:right] += uncovered_score - covered_score
        covers[top:bottom, left:right] += 1
    return drops / covers


def _boxes(detections: Sequence[Detection]) -> npt.NDArray[np.float64]:
    return np.array(
        [
            [detection.xmin, detection.ymin, detection.xmax, detection.ymax]
            for detection in detections
        ]
    )
