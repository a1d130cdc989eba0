"""Inferences of every task, for tests of export and import."""

import json
import zipfile
from pathlib import Path
from typing import Any

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.records.records import InferenceRecord, InputReference

MS = 1_769_860_800_123 - 1_735_689_600_000
RING = [{"x": 1, "y": 1}, {"x": 9, "y": 1}, {"x": 9, "y": 9}, {"x": 1, "y": 9}]
HOLE = [{"x": 3, "y": 3}, {"x": 5, "y": 3}, {"x": 5, "y": 5}, {"x": 3, "y": 5}]

PREDICTIONS: dict[str, Any] = {
    "IMAGE_CLASSIFICATION": [{"label": "a", "score": 0.2}, {"label": "b", "score": 0.8}],
    "OBJECT_DETECTION": [
        {"label": "a", "score": 0.5, "xmin": 1.5, "ymin": 2, "xmax": 3.5, "ymax": 5}
    ],
    "ORIENTED_OBJECT_DETECTION": [
        {"label": "b", "score": 0.25, "cx": 0.5, "cy": 0.5, "w": 0.2, "h": 0.5, "r": 0.0}
    ],
    "IMAGE_SEGMENTATION": [{"label": "c", "score": 1.0, "contour": [RING, HOLE]}],
    "IMAGE_TEXT_TO_TEXT": [{"prompt": "what?", "answer": "dogs and \u00e9\u0000"}],
    "TENSOR": [[1.0, 2e-9], [3, 4]],
}


def records_of_every_task(record, blobs: FileBlobs) -> list[InferenceRecord]:
    """Return an inference of every task with an image, and one that failed without an image."""
    records = []
    for index, (task, predictions) in enumerate(PREDICTIONS.items()):
        data = b"image %d" % index
        records.append(
            record(
                MS + index << 22,
                task=task,
                predictions=predictions,
                input=InputReference(
                    "image", blobs.put(data), 100, 50, "image/png", kept=True, bytes=len(data)
                ),
                metadata={"camera": "north", "at": {"floor": index}, "latitude": 1.5, "list": [1]},
                standard={"protocol": "v2"},
                latency_ms=1.2345,
            )
        )
    records.append(record(MS + 99 << 22, status=500, predictions=[], input=InputReference("x")))
    return records


def read_zip_lines(file: Path, name: str) -> list[Any]:
    """Return the JSON of each line of a member of a zip archive."""
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        return [json.loads(line) for line in archive.read(name).splitlines()]
