"""COCO's numbers, beside the program that defines them."""

from typing import Any

import numpy as np
import pytest

from quadriga.monitor.evaluation.objects.average_precision import (
    AREA_RANGES,
    IOU_THRESHOLDS,
    RECALLS,
    _steps,
    coco_numbers,
)
from quadriga.monitor.evaluation.objects.matching import match_objects
from quadriga.tasks.arrays import Float64Array, Int64Array
from tests import coco_reference
from tests.coco_reference import Arrays

Boxes = list[dict[str, Any]]
LABELS = 3
IMAGES = 10


def truth(image: int, label: int, box: list[float], **fields: Any) -> dict[str, Any]:
    return {
        "image_id": image, "category_id": label, "bbox": box, "area": box[2] * box[3],
        "iscrowd": 0, **fields,
    }  # fmt: skip


def found(image: int, label: int, box: list[float], score: float) -> dict[str, Any]:
    return {"image_id": image, "category_id": label, "bbox": box, "score": score}


def reference(truths: Boxes, predictions: Boxes) -> Arrays:
    dataset = {
        "info": {},
        "images": [{"id": number} for number in range(1, IMAGES + 1)],
        "categories": [{"id": number} for number in range(1, LABELS + 1)],
        "annotations": [{"id": n, **annotation} for n, annotation in enumerate(truths, 1)],
    }
    return coco_reference.reference(dataset, predictions, "bbox")


def ours(truths: Boxes, predictions: Boxes) -> Arrays:
    def column(rows: Boxes, name: str, kind: type) -> Any:
        return np.array([row[name] for row in rows], kind)

    boxes = column(truths, "bbox", float).reshape(-1, 4)
    others = column(predictions, "bbox", float).reshape(-1, 4)
    crowd = column(truths, "iscrowd", bool)

    def overlap(prediction: Int64Array, annotation: Int64Array) -> Float64Array:
        a, b = others[prediction], boxes[annotation]
        low = np.maximum(a[:, :2], b[:, :2])
        sides = np.minimum(a[:, :2] + a[:, 2:], b[:, :2] + b[:, 2:]) - low
        common = np.where((sides > 0).all(axis=1), sides.prod(axis=1), 0)
        own_area, annotated_area = a[:, 2] * a[:, 3], b[:, 2] * b[:, 3]
        return common / np.where(crowd[annotation], own_area, own_area + annotated_area - common)

    things = {
        "image": column(truths, "image_id", int),
        "label": column(truths, "category_id", int) - 1,
        "area": column(truths, "area", float),
        "crowd": crowd,
        "difficult": np.zeros(len(truths), bool),
    }
    answers = {
        "image": column(predictions, "image_id", int),
        "label": column(predictions, "category_id", int) - 1,
        "score": column(predictions, "score", float),
        "area": others[:, 2] * others[:, 3],
    }
    shape = LABELS, IMAGES + 1
    ranking = match_objects(
        answers,
        things,
        overlap,
        thresholds=IOU_THRESHOLDS,
        areas=AREA_RANGES,
        max_detections=100,
        shape=shape,
    )
    numbers, _ = coco_numbers(ranking, np.ones((1, IMAGES + 1)))
    return *coco_reference.curves_of(ranking), numbers[:, 0]


def random_case(seed: int) -> tuple[Boxes, Boxes]:
    """Objects and answers with crowds, ties in score and in overlap, and areas on the borders."""
    pick = np.random.default_rng(seed)
    on_a_grid, digits, most = seed % 2 == 0, (3, 1, 15)[seed % 3], 150 if seed % 5 == 0 else 12
    truths: Boxes = []
    predictions: Boxes = []

    def box() -> Float64Array:
        sides = pick.integers(0, 20, 4) * 8.0 if on_a_grid else pick.uniform(0, 200, 4)
        return np.array([*sides[:2], *(sides[2:] + 1)])

    for image in range(1, IMAGES + 1):
        image_truths: Boxes = []
        for _ in range(pick.integers(0, 9)):
            annotation = truth(image, int(pick.integers(1, LABELS + 1)), box().tolist())
            annotation["iscrowd"] = int(pick.random() < 0.1)
            if pick.random() < 0.2:
                annotation["area"] = float(pick.choice([32**2, 96**2, 32**2 - 0.5, 96**2 + 0.5]))
            image_truths.append(annotation)
        for _ in range(pick.integers(0, most + 1)):
            label, around = int(pick.integers(1, LABELS + 1)), box()
            if image_truths and pick.random() < 0.7:
                target = image_truths[pick.integers(len(image_truths))]
                shift = pick.choice([-8, 0, 8], 4) if on_a_grid else pick.normal(0, 8, 4)
                label, around = target["category_id"], np.array(target["bbox"]) + shift
                around[2:] = np.maximum(around[2:], 1)
            score = round(float(pick.random()), digits)
            predictions.append(found(image, label, around.tolist(), score))
        truths += image_truths
    return truths, predictions


SQUARE = [0.0, 0.0, 40.0, 40.0]
CASES = {
    "perfect": ([truth(1, 1, SQUARE)], [found(1, 1, SQUARE, 0.9)]),
    "twice": ([truth(1, 1, SQUARE)], [found(1, 1, SQUARE, 0.9), found(1, 1, SQUARE, 0.8)]),
    "tied scores in two images": (
        [truth(1, 1, SQUARE), truth(2, 1, SQUARE)],
        [found(2, 1, SQUARE, 0.5), found(1, 1, [90, 90, 5, 5], 0.5), found(1, 1, SQUARE, 0.5)],
    ),
    "tied overlaps": (
        [truth(1, 1, [0, 0, 10, 10]), truth(1, 1, [10, 0, 10, 10])],
        [found(1, 1, [5, 0, 10, 10], 0.9), found(1, 1, [0, 0, 10, 10], 0.8)],
    ),
    "only a crowd": (
        [truth(1, 1, SQUARE, iscrowd=1)],
        [found(1, 1, [0, 0, 20, 20], 0.9), found(1, 1, [5, 5, 20, 20], 0.8)],
    ),
    "a crowd is taken last": (
        [truth(1, 1, SQUARE, iscrowd=1), truth(1, 1, [0, 0, 30, 40])],
        [found(1, 1, SQUARE, 0.9), found(1, 1, SQUARE, 0.8)],
    ),
    "a label without objects": ([truth(1, 1, SQUARE)], [found(1, 2, SQUARE, 0.9)]),
    "an image without objects": ([truth(1, 1, SQUARE)], [found(2, 1, SQUARE, 0.9)]),
    "overlap of exactly a half": (
        [truth(1, 1, [0, 0, 20, 10])],
        [found(1, 1, [0, 0, 10, 10], 0.9)],
    ),
    "areas on the borders": (
        [truth(1, 1, [0, 0, 32, 32]), truth(1, 1, [50, 50, 96, 96]), truth(2, 1, SQUARE, area=1.0)],
        [found(1, 1, [0, 0, 32, 32], 0.9), found(1, 1, [50, 50, 96, 96], 0.8), found(2, 1, SQUARE, 0.7)],
    ),
    "more than a hundred": (
        [truth(1, 1, [2.0 * n, 0, 2, 2]) for n in range(120)],
        [found(1, 1, [2.0 * n, 0, 2, 2], 1 - n / 200) for n in range(120)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_edge_cases_are_those_of_the_reference(name: str) -> None:
    for mine, theirs in zip(ours(*CASES[name]), reference(*CASES[name]), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(30))  # each combination of what follows from it
def test_random_cases_are_those_of_the_reference(seed: int) -> None:
    for mine, theirs in zip(ours(*random_case(seed)), reference(*random_case(seed)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)


def test_no_predictions_are_no_precision_and_no_objects_are_nothing() -> None:
    *_, numbers = ours([truth(1, 1, SQUARE)], [])
    assert numbers[[0, 8]].tolist() == [0, 0]
    *_, numbers = ours([], [found(1, 1, SQUARE, 0.5)])
    assert np.isnan(numbers).all()


def test_each_recall_is_reached_where_pycocotools_finds_it():
    for to_find in (1, 3, 7, 50, 100, 300, 1000, 99_999):
        recalls = np.arange(1, to_find + 1) / to_find
        reached = np.cumsum(_steps(recalls[:, None], np.array([0])))
        expected = np.searchsorted(RECALLS, recalls, "right")
        np.testing.assert_array_equal(reached, expected)
