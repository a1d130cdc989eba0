"""Datasets from inferences: Chariot's archive, and COCO.

Source: Chariot, dataset archives; COCO, "Data format" and "Results format".
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, BinaryIO

import msgspec

from quadriga.store.exchange.archives import Archive
from quadriga.store.exchange.coco import coco_form
from quadriga.store.exchange.dataset_options import ExportParameters, label_numbers
from quadriga.store.exchange.formats.writing import Picture
from quadriga.store.exchange.predictions import chariot_annotation, decode_objects, score_of
from quadriga.store.records import metadata
from quadriga.store.records.records import StoredInference

Pages = Iterable[Sequence[StoredInference]]
GPS = {"latitude": "GPSLatitude", "longitude": "GPSLongitude", "captured_at": "GPSDateTime"}
"""Our metadata keys, and those that Chariot reads place and time from."""

OWN = {
    "id": "inference_id",
    "request_id": "request_id",
    "image_no": "image_no",
    "model.name": "model",
    "model.version": "model_version",
    "model.sha256": "model_sha256",
    "task": "task",
    "action": "action",
    "status": "status",
    "latency_ms": "latency_ms",
    "input.name": "input_name",
    "input.hash": "data_hash",
    "input.width": "image_width",
    "input.height": "image_height",
    "input.mime": "image_mime",
    "input.kept": "image_kept",
    "input.bytes": "image_bytes",
}
"""Fields of a record, and the keys under which a dataset for Chariot has them."""
NOT_METADATA = {*OWN.values(), *GPS.values(), "created_at", "annotations_from"}
"""Keys of an image's metadata in an export that are no metadata of people."""

_encode = msgspec.json.encode


class ChariotWriter:
    """Writes Chariot's archive: `annotations.jsonl`, `metadata.jsonl`, `images/`."""

    def __init__(self, archive: Archive, _: ExportParameters) -> None:
        self._annotations = archive.add_text_file("annotations.jsonl")
        self._metadata = archive.add_text_file("metadata.jsonl")

    def add(self, picture: Picture) -> str:
        """Write the lines of a picture; see `FormatWriter.add`."""
        path = f"images/{picture.name}"
        split = {"split": picture.split} if picture.split else {}
        shown = [*filter(None, map(chariot_annotation, picture.annotations))]
        self._annotations.write(_encode({"path": path, **split, "annotations": shown}) + b"\n")
        link = {"image_url": picture.link} if picture.link else {}
        described = _described(picture.record, picture.source) | link
        self._metadata.write(_encode({"path": path, "metadata": described}) + b"\n")
        return path

    def finish(self) -> None:
        """Write nothing more."""


def _described(record: StoredInference, source: str) -> dict[str, Any]:
    flat = metadata.flatten(metadata.decode(record.metadata))
    return {
        **flat,
        **{theirs: flat[ours] for ours, theirs in GPS.items() if ours in flat},
        **own_fields(record),
        "created_at": record.created_at,
        "annotations_from": source,
    }


def own_fields(record: StoredInference) -> dict[str, Any]:
    """Return the fields of a record under the keys that datasets have them by, without those that it has not."""
    own = {key: attrgetter(field)(record) for field, key in OWN.items()}
    return {key: value for key, value in own.items() if value is not None}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object that has these values at these fields, such as `model.name`."""
    document: dict[str, Any] = {}
    for field, value in values.items():
        outer, _, name = field.rpartition(".")
        (document.setdefault(outer, {}) if outer else document)[name] = value
    return document


class _Array:
    """A JSON array that is being written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.length = 0

    def add(self, value: Any) -> None:
        self._file.write((b",\n" if self.length else b"\n") + _encode(value))
        self.length += 1


class CocoWriter:
    """Writes COCO: `annotations.json`, `results.json` with the predictions, `images/`.

    An image also has its whole record, as `inference`; an annotation of an oriented box also has
    `oriented_bbox`, as Chariot writes it. Each split has files and a folder of its own, `annotations_train.json`;
    ids of images and categories are the same in none and all of them.
    """

    def __init__(self, archive: Archive, parameters: ExportParameters) -> None:
        categories = label_numbers(parameters.labels, 1)
        self._parts = {
            split: _CocoPart(archive, split, categories) for split in parameters.split or [""]
        }
        self._numbers = count(1)

    def add(self, picture: Picture) -> str:
        """Write a picture with its annotations and predictions; see `FormatWriter.add`."""
        self._parts[picture.split].add(picture, next(self._numbers))
        folder = f"images/{picture.split}/" if picture.split else "images/"
        return f"{folder}{picture.name}"

    def finish(self) -> None:
        """Write the annotations and the categories behind the images."""
        for part in self._parts.values():
            part.finish()


class _CocoPart:
    """The files of one split, or of all images; all parts share the ids of `categories`, by label."""

    def __init__(self, archive: Archive, split: str, categories: dict[str, int]) -> None:
        self._categories = categories
        suffix = f"_{split}" if split else ""
        self._beside = archive.side_file()
        self._file = archive.add_text_file(f"annotations{suffix}.json")
        self._predicted = archive.add_text_file(f"results{suffix}.json")
        self._file.write(b'{"info":{"description":"Quadriga"},"images":[')
        self._predicted.write(b"[")
        self._pictures, self._truths = _Array(self._file), _Array(self._beside)
        self._results = _Array(self._predicted)

    def add(self, picture: Picture, number: int) -> None:
        """Write an image with its annotations and predictions."""
        record = picture.record
        size_wh, image_id = (record.input.width, record.input.height), {"image_id": number}
        image = {
            "id": number,
            "file_name": picture.name,
            "width": record.input.width,
            "height": record.input.height,
            **({"coco_url": picture.link} if picture.link else {}),
        }
        self._pictures.add({**image, "date_captured": record.created_at, "inference": record})
        for item in picture.annotations:
            if coco := coco_form(item, size_wh, self._categories):
                crowd = int(bool(item.get("crowd")))
                row = {"id": self._truths.length + 1, "iscrowd": crowd, **image_id, **coco}
                self._truths.add(row)
        for item in decode_objects(record.predictions):
            if coco := coco_form(item, size_wh, self._categories):
                self._results.add({**image_id, **coco, "score": score_of(item)})

    def finish(self) -> None:
        """Write the annotations and the categories behind the images."""
        self._file.write(b'],\n"annotations":[')
        self._beside.seek(0)
        shutil.copyfileobj(self._beside, self._file)
        named = [{"id": number, "name": name} for name, number in self._categories.items()]
        self._file.write(b'],\n"categories":' + _encode(named) + b"}\n")
        self._predicted.write(b"]\n")
