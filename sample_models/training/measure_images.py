"""Measure both models on the sample images, from files to figures; torch is not needed.

Run from the repository root: `python -m sample_models.training.measure_images`.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from sample_models.training.boxes import BoxSet
from sample_models.training.measurement import measure_classifier, measure_detector
from sample_models.training.scenes import Image

Annotations = list[dict[str, Any]]


def main() -> None:
    """Print the figures of both models as one JSON object."""
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


if __name__ == "__main__":
    main()
