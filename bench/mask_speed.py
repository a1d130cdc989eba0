"""Evaluation of instance masks, beside pycocotools: files and contours to the twelve numbers.

Times are CPU seconds of one process, the least of some rounds that take turns; read the ratios.
"""

import argparse
import contextlib
import io
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import msgspec
import numpy as np
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from monitor.evaluation.coco import state_of_coco
from monitor.evaluation.evaluators import state_of
from monitor.evaluation.instances import Instances
from monitor.evaluation.state import EvaluatedImage, State, merge
from tasks.contours import Mask, fill, rings

WIDTH, HEIGHT, LABELS = 640, 480, 80
TRUTHS, PREDICTIONS = 7, 25
"""Of an image; as many truths as an image of COCO's has, with more predictions."""

Scene = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Predictions and truths of an image, with their `rings`."""


def region(pick: np.random.Generator, place: np.ndarray | None) -> tuple[Mask, np.ndarray]:
    """Draw a region of a ragged outline, at a place or anywhere."""
    if place is None:
        size = 10 ** pick.uniform(0.7, 2.2)
        place = np.array([*pick.uniform(0, (WIDTH, HEIGHT)), size, pick.uniform(0.4, 1), pick.random()])
    x, y, size, aspect, turn = place
    angle = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    radius = size / 2 * pick.uniform(0.85, 1.15, 40)
    points = np.stack([radius * np.cos(angle), aspect * radius * np.sin(angle)], axis=1)
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    mask = fill([np.rint(points @ rotation + (x, y)).astype(np.int32)], WIDTH, HEIGHT)
    return mask, place


def scenes(count: int) -> list[Scene]:
    """Make images: three of four predictions are near a truth, and most of those have its label."""
    pick = np.random.default_rng(1)
    made = []
    for _ in range(count):
        truths: list[dict[str, Any]] = []
        places = []
        for _ in range(TRUTHS):
            mask, place = region(pick, None)
            places.append(place)
            truths.append({"label": int(pick.integers(LABELS)), "mask": mask, "crowd": pick.random() < 0.01})
        predictions = []
        for _ in range(PREDICTIONS):
            near = int(pick.integers(TRUTHS)) if pick.random() < 0.75 else None
            moved = None
            if near is not None:
                moved = places[near] + pick.normal(0, (3, 3, 2, 0.02, 0.05))
                moved[2] = max(moved[2], 2)
            label = truths[near]["label"] if near is not None and pick.random() < 0.8 else pick.integers(LABELS)
            mask, _ = region(pick, moved)
            predictions.append({"label": int(label), "mask": mask, "score": float(pick.random())})
        made.append((predictions, truths))
    return made
