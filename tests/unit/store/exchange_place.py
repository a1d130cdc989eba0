"""A store with inferences of every task, for tests of export and import."""

import json
import zipfile
from pathlib import Path
from typing import Any

import msgspec

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.exchange.export import ExportParameters, export
from quadriga.store.exchange.import_files import read
from quadriga.store.exchange.imports import Importer
from quadriga.store.inferences import InferenceReader
from quadriga.store.records import InferenceRecord, InputReference, JournaledChange
from tests.unit.store.place import fill

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


class ExchangePlace:
    """A store with a database of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.journal = folder / "journal"
        self.url = url
        self.blobs = FileBlobs(folder / "blobs")
        self.inferences = InferenceReader(url, self.journal, self.blobs)

    def add(self, *records: InferenceRecord | JournaledChange) -> None:
        fill(self.url, self.journal, records)

    def export(self, target: Path, **parameters: Any) -> Path:
        asked = msgspec.convert(parameters, ExportParameters)
        export(self.inferences, self.blobs, asked, target)
        return target

    def bring_in(self, file: Path, what: str = "inferences", join: str | None = None) -> Any:
        return Importer(self.journal, self.url, self.blobs, what, join).run(read(file))


def tasks(record, blobs: FileBlobs) -> list[InferenceRecord]:
    """An inference of every task, with and without images."""
    made = []
    for number, (task, predictions) in enumerate(PREDICTIONS.items()):
        data = b"image %d" % number
        made.append(
            record(
                MS + number << 22,
                task=task,
                predictions=predictions,
                input=InputReference(
                    "image", blobs.put(data), 100, 50, "image/png", kept=True, bytes=len(data)
                ),
                metadata={"camera": "north", "at": {"floor": number}, "latitude": 1.5, "list": [1]},
                standard={"protocol": "v2"},
                latency_ms=1.2345,
            )
        )
    made.append(record(MS + 99 << 22, status=500, predictions=[], input=InputReference("x")))
    return made


def members(file: Path, name: str) -> list[Any]:
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        return [json.loads(line) for line in archive.read(name).splitlines()]
