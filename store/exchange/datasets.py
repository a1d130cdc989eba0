"""Datasets from inferences: Chariot's archive, and COCO.

Source: Chariot, dataset archives; COCO, "Data format" and "Results format".
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from quadriga.store import metadata
from quadriga.store.blobs.interface import Blobs
from quadriga.store.exchange.archives import Archive
from quadriga.store.exchange.coco import coco_form
from quadriga.store.exchange.predictions import chariot_annotation, decode_objects, score_of
from quadriga.store.records import REJECTED, StoredInference

Pages = Iterable[Sequence[StoredInference]]
Annotated = Literal["either", "ground_truth", "predictions"]
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

_encode = msgspec.json.encode


def write_chariot(pages: Pages, target: Path, images: Blobs | None, annotated: Annotated) -> None:
    """Write Chariot's archive: `annotations.jsonl`, `metadata.jsonl`, `images/`."""
    with Archive(target, images) as archive:
        annotations_file = archive.add_text_file("annotations.jsonl")
        metadata_file = archive.add_text_file("metadata.jsonl")
        for record, name, source, annotations in _annotated(pages, archive, annotated):
            path = {"path": f"images/{name}"}
            shown = [*filter(None, map(chariot_annotation, annotations))]
            annotations_file.write(_encode({**path, "annotations": shown}) + b"\n")
            metadata_file.write(_encode({**path, "metadata": _described(record, source)}) + b"\n")


def _described(record: StoredInference, source: str) -> dict[str, Any]:
    flat = metadata.flatten(metadata.decode(record.metadata))
    own = {key: attrgetter(field)(record) for field, key in OWN.items()}
    return {
        **flat,
        **{theirs: flat[ours] for ours, theirs in GPS.items() if ours in flat},
        **{key: value for key, value in own.items() if value is not None},
        "created_at": record.created_at,
        "annotations_from": source,
    }


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


def write_coco(pages: Pages, target: Path, images: Blobs | None, annotated: Annotated) -> None:
    """Write a zip of COCO: `annotations.json`, `results.json` with the predictions, `images/`.

    An image also has its whole record, as `inference`; an annotation of an oriented box also has
    `oriented_bbox`, as Chariot writes it.
    """
    categories: dict[str, int] = {}
    lines = target.with_name("annotations.lines")
    with Archive(target, images) as archive, lines.open("w+b") as beside:
        file, predicted = (
            archive.add_text_file("annotations.json"),
            archive.add_text_file("results.json"),
        )
        file.write(b'{"info":{"description":"Quadriga"},"images":[')
        predicted.write(b"[")
        pictures, truths, results = _Array(file), _Array(beside), _Array(predicted)
        for record, name, _, annotations in _annotated(pages, archive, annotated):
            size = {"width": record.input.width, "height": record.input.height}
            image = {"id": pictures.length + 1, "file_name": name, **size}
            pictures.add({**image, "date_captured": record.created_at, "inference": record})
            size_wh, image_id = (record.input.width, record.input.height), {"image_id": image["id"]}
            for item in annotations:
                if coco := coco_form(item, size_wh, categories):
                    crowd = int(bool(item.get("crowd")))
                    row = {"id": truths.length + 1, "iscrowd": crowd, **image_id, **coco}
                    truths.add(row)
            for item in decode_objects(record.predictions):
                if coco := coco_form(item, size_wh, categories):
                    results.add({**image_id, **coco, "score": score_of(item)})
        file.write(b'],\n"annotations":[')
        beside.seek(0)
        shutil.copyfileobj(beside, file)
        named = [{"id": number, "name": name} for name, number in categories.items()]
        file.write(b'],\n"categories":' + _encode(named) + b"}\n")
        predicted.write(b"]\n")


def _annotated(
    pages: Pages, archive: Archive, annotated: Annotated
) -> Iterator[tuple[StoredInference, str, str, list[dict[str, Any]]]]:
    """Yield inferences with the names of their images, whose annotations they get, and these."""
    for record in chain.from_iterable(pages):
        chosen = _chosen(record, annotated)
        name = None if chosen is None else archive.add_image(record)
        if chosen is not None and name is not None:
            yield record, name, *chosen


def _chosen(
    record: StoredInference, annotated: Annotated
) -> tuple[str, list[dict[str, Any]]] | None:
    """Return whose annotations an inference gets, and these; None where it has none such.

    Of the predictions of a classifier only the best one is an annotation.
    """
    has_truth = record.ground_truth is not None and record.ground_truth_review != REJECTED
    if annotated != "predictions" and has_truth:
        return "ground_truth", decode_objects(record.ground_truth)
    if annotated == "ground_truth":
        return None
    predictions = decode_objects(record.predictions)
    if record.task == "IMAGE_CLASSIFICATION" and predictions:
        predictions = [max(predictions, key=lambda item: score_of(item) or 0.0)]
    return "predictions", predictions
