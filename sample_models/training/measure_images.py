"""Measure the models on the sample images, from files to figures; torch is not needed.

Run from the repository root: `python -m sample_models.training.measure_images`.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from sample_models.training.boxes import BoxSet
from sample_models.training.measurement import (
    measure_classifier,
    measure_detector,
    measure_oriented,
    measure_segmenter,
)
from sample_models.training.questions import QUESTIONS
from sample_models.training.scenes import Image, cover
from sample_models.training.text_generation import measure_answers

Annotations = list[dict[str, Any]]


def main() -> None:
    """Print the figures as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("sample_models"))
    parser.add_argument("--images", type=Path, default=Path("sample_models/images"))
    options = parser.parse_args()
    classifier = options.models / "shapes-classifier"
    labels = read_labels(classifier)
    single = (
        (image, labels.index(rows[0]["class_label"]))
        for image, rows in read_samples(options.images / "classification")
    )
    figures = {"classifier": measure_classifier(classifier / "model.onnx", single, labels)}
    detector = options.models / "shapes-detector"
    labels = read_labels(detector)
    several = (
        (image, annotated_boxes(rows, labels))
        for image, rows in read_samples(options.images / "detection")
    )
    figures["detector"] = measure_detector(detector / "model.onnx", several, labels)
    oriented = options.models / "ships-oriented-detector"
    labels = read_labels(oriented)
    craft = (
        (image, annotated_oriented_boxes(rows, labels, image.shape[1::-1]))
        for image, rows in read_samples(options.images / "oriented")
    )
    figures["oriented"] = measure_oriented(oriented / "model.onnx", craft, labels)
    segmenter = options.models / "shapes-segmenter"
    labels = read_labels(segmenter)
    outlined = (
        (image, annotated_classes(rows, labels, image.shape[1::-1]))
        for image, rows in read_samples(options.images / "segmentation")
    )
    figures["segmenter"] = measure_segmenter(segmenter / "model.onnx", outlined, labels)
    questions = (
        (image, {row["context"]: row["generated_text"] for row in rows})
        for image, rows in read_samples(options.images / "image-text")
    )
    wordings = {wording: (wording,) for every in QUESTIONS.values() for wording in every[:1]}
    figures["image-text"] = measure_answers(
        options.models / "shapes-image-text", questions, wordings
    )
    print(json.dumps(figures, indent=2))


def read_labels(package: Path) -> tuple[str, ...]:
    """Read the class names of a model folder."""
    return tuple((package / "labels.txt").read_text().splitlines())


def read_samples(folder: Path) -> Iterator[tuple[Image, Annotations]]:
    """Read each annotated image of a folder: uint8 (H, W, 3) RGB, upright, with annotations."""
    for line in (folder / "annotations.jsonl").read_text().splitlines():
        row = json.loads(line)
        # OpenCV obeys the EXIF orientation here.
        pixels = cv2.imread(str(folder / row["path"]), cv2.IMREAD_COLOR_RGB)
        if pixels is None:
            raise ValueError(f"expected {folder / row['path']} to be an image")
        yield pixels.astype(np.uint8), row["annotations"]


def annotated_boxes(rows: Annotations, labels: tuple[str, ...]) -> BoxSet:
    """Turn annotations with boxes in pixels into a box set."""
    sides = [[row["bbox"][key] for key in ("xmin", "ymin", "xmax", "ymax")] for row in rows]
    indices = [labels.index(row["class_label"]) for row in rows]
    boxes = np.array(sides, dtype=np.float64).reshape(-1, 4)
    return BoxSet(boxes, np.array(indices, dtype=np.int64), np.ones(len(boxes)))


def annotated_oriented_boxes(
    rows: Annotations, labels: tuple[str, ...], image_wh: tuple[int, ...]
) -> BoxSet:
    """Turn annotations with oriented boxes, divided by width and height, into a box set."""
    sides = [[row["oriented_bbox"][key] for key in ("cx", "cy", "w", "h", "r")] for row in rows]
    indices = [labels.index(row["class_label"]) for row in rows]
    boxes = np.array(sides, dtype=np.float64).reshape(-1, 5) * (*image_wh, *image_wh, 1)
    return BoxSet(boxes, np.array(indices, dtype=np.int64), np.ones(len(boxes)))


def annotated_classes(
    rows: Annotations, labels: tuple[str, ...], image_wh: tuple[int, ...]
) -> npt.NDArray[np.uint8]:
    """Fill annotated contours: uint8 (H, W), indices into the labels, background first."""
    classes = np.zeros((image_wh[1], image_wh[0]), dtype=np.uint8)
    for row in rows:
        for contour in row["contour"]:
            polygon = np.array([[point["x"], point["y"]] for point in contour])
            rows_covered, columns, coverage = cover(polygon, (image_wh[0], image_wh[1]))
            classes[rows_covered, columns][coverage >= 128] = labels.index(row["class_label"])
    return classes


if __name__ == "__main__":
    main()
