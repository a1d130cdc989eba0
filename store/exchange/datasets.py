"""Datasets from inferences: Chariot's archive, and COCO.

Source: Chariot, dataset archives; COCO, "Data format" and "Results format".
"""

import shutil
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import msgspec

from store import metadata
from store.blobs.interface import Blobs
from store.exchange import shapes
from store.exchange.archives import Archive
from store.records import StoredInference

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


class ChariotDataset:
    """Chariot's archive: `annotations.jsonl`, `metadata.jsonl`, `images/`.

    Args:
        target: The file; its folder is the archive's alone.
        images: Where the images are; None leaves them out.
        annotated: See `store.exchange.export.ExportParameters`.
    """

    def __init__(self, target: Path, images: Blobs | None, annotated: Annotated) -> None:
        self._archive = Archive(target, images)
        self._annotated = annotated
        self._annotations = self._archive.text("annotations.jsonl")
        self._metadata = self._archive.text("metadata.jsonl")

    def add(self, page: Sequence[StoredInference]) -> None:
        """Write a page."""
        for record in page:
            chosen = annotations_of_record(record, self._annotated)
            name = None if chosen is None else self._archive.image(record)
            if chosen is None or name is None:
                continue
            source, annotations = chosen
            path = f"images/{name}"
            shown = filter(None, map(shapes.chariot_annotation, annotations))
            self._annotations.write(_encode({"path": path, "annotations": list(shown)}) + b"\n")
            described = _described(record, source)
            self._metadata.write(_encode({"path": path, "metadata": described}) + b"\n")

    def close(self, *, is_whole: bool) -> None:
        """As `store.exchange.export.Format.close`."""
        self._archive.close(is_whole=is_whole)


def _described(record: StoredInference, source: str) -> dict[str, Any]:
    """Return metadata as Chariot takes it: flat, with its names of place and time."""
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
    whole: dict[str, Any] = {}
    for field, value in values.items():
        outer, _, name = field.rpartition(".")
        (whole.setdefault(outer, {}) if outer else whole)[name] = value
    return whole


class Coco:
    """A zip of COCO: `annotations.json`, `results.json` with the predictions, `images/`.

    An image also has its whole record, as `inference`; an annotation of an oriented box also has
    `oriented_bbox`, as Chariot writes it.
    """

    def __init__(self, target: Path, images: Blobs | None, annotated: Annotated) -> None:
        self._archive = Archive(target, images)
        self._annotated = annotated
        self._categories: dict[str, int] = {}
        self._images = self._annotations = self._results = 0
        self._annotation_lines = target.with_name("annotations.lines").open("w+b")
        self._archive.text("annotations.json").write(
            b'{"info":{"description":"Quadriga"},"images":['
        )
        self._archive.text("results.json").write(b"[")

    def add(self, page: Sequence[StoredInference]) -> None:
        """Write a page."""
        for record in page:
            chosen = annotations_of_record(record, self._annotated)
            name = None if chosen is None else self._archive.image(record)
            if chosen is not None and name is not None:
                self._add(record, name, chosen[1])

    def _add(self, record: StoredInference, name: str, annotations: list[dict[str, Any]]) -> None:
        image = {
            "id": self._images + 1,
            "file_name": name,
            "width": record.input.width,
            "height": record.input.height,
            "date_captured": record.created_at,
            "inference": record,
        }
        comma = b",\n" if self._images else b"\n"
        self._images += 1
        self._archive.text("annotations.json").write(comma + _encode(image))
        for one in annotations:
            if (found := self._annotation(one, record)) is not None:
                comma = b",\n" if self._annotations else b"\n"
                self._annotations += 1
                line = {"id": self._annotations, "iscrowd": int(bool(one.get("crowd")))} | found
                self._annotation_lines.write(comma + _encode(line))
        for one in shapes.objects(record.predictions):
            if (found := self._annotation(one, record)) is not None:
                comma = b",\n" if self._results else b"\n"
                self._results += 1
                line = found | {"score": shapes.score(one)}
                self._archive.text("results.json").write(comma + _encode(line))

    def _annotation(self, one: Mapping[str, Any], record: StoredInference) -> dict[str, Any] | None:
        """Return what annotations and results have in common; None without a label."""
        name = shapes.label(one)
        if name is None:
            return None
        category = self._categories.setdefault(name, len(self._categories) + 1)
        found: dict[str, Any] = {"image_id": self._images, "category_id": category}
        size = record.input.width, record.input.height
        if (box := shapes.box(one, *size)) is not None:
            xmin, ymin, xmax, ymax = box
            found["bbox"] = [xmin, ymin, xmax - xmin, ymax - ymin]
            rings = shapes.rings(one)
            if (corners := shapes.corners(one, *size)) is not None:
                rings = [corners]
                found["oriented_bbox"] = {name: one[name] for name in shapes.ORIENTED}
            if rings:
                found["segmentation"] = shapes.polygons(rings)
            found["area"] = shapes.area(rings) if rings else (xmax - xmin) * (ymax - ymin)
        return found

    def close(self, *, is_whole: bool) -> None:
        """As `store.exchange.export.Format.close`."""
        if is_whole:
            self._end()
        self._annotation_lines.close()
        self._archive.close(is_whole=is_whole)

    def _end(self) -> None:
        file = self._archive.text("annotations.json")
        file.write(b'],\n"annotations":[')
        self._annotation_lines.seek(0)
        shutil.copyfileobj(self._annotation_lines, file)
        categories = [{"id": number, "name": name} for name, number in self._categories.items()]
        file.write(b'],\n"categories":' + _encode(categories) + b"}\n")
        self._archive.text("results.json").write(b"]\n")


def annotations_of_record(
    record: StoredInference, annotated: Annotated
) -> tuple[str, list[dict[str, Any]]] | None:
    """Return whose annotations an inference gets, and these; None where it has none such.

    Of the predictions of a classifier only the best one is an annotation.
    """
    if annotated != "predictions" and record.ground_truth is not None:
        return "ground_truth", shapes.objects(record.ground_truth)
    if annotated == "ground_truth":
        return None
    predictions = shapes.objects(record.predictions)
    if record.task == "IMAGE_CLASSIFICATION" and predictions:
        predictions = [max(predictions, key=lambda one: shapes.score(one) or 0.0)]
    return "predictions", predictions
