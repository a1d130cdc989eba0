"""Label Studio: `tasks.json`, a task for each image, with ground truth as annotations and the model's predictions.

Source: Label Studio, "Label Studio JSON format of annotated tasks", "Import pre-annotated data into Label Studio".
"""

import math
from collections.abc import Iterable
from typing import Any, Literal
from xml.sax.saxutils import quoteattr

import msgspec

from quadriga.store.exchange.annotated_records import Annotated, choose_annotations, has_truth
from quadriga.store.exchange.archives import Archive
from quadriga.store.exchange.formats.cvat import xml_text
from quadriga.store.exchange.formats.writing import LeftOutError, Picture
from quadriga.store.exchange.outlines import bridged
from quadriga.store.exchange.predictions import decode_objects, label_of, score_of
from quadriga.store.records.records import StoredInference
from quadriga.tasks.predictions import RelativeXywhr, Xyxy, shape_of_json

Control = Literal["RectangleLabels", "PolygonLabels", "Choices"]
_NAMES: dict[Control, str] = {
    "RectangleLabels": "box",
    "PolygonLabels": "polygon",
    "Choices": "choice",
}
_encode = msgspec.json.encode


class LabelStudioWriter:
    """Writes tasks, one on each line, and the labelling interface that shows them.

    Args:
        archive: The archive.
        annotated: `ground_truth` leaves out the predictions, `predictions` the ground truth.
    """

    def __init__(self, archive: Archive, annotated: Annotated) -> None:
        self._archive = archive
        self._annotated = annotated
        self._file = archive.add_text_file("tasks.json")
        self._file.write(b"[")
        self._count = 0
        self._labels: dict[Control, dict[str, None]] = {name: {} for name in _NAMES}

    def add(self, picture: Picture) -> str:
        """Write the task of a picture; see `FormatWriter.add`."""
        size_wh = picture.size_wh()
        record = picture.record
        path = "/".join(filter(None, ("images", picture.split, picture.name)))
        number = self._count + 1
        task: dict[str, Any] = {
            "id": number,
            "data": {"image": picture.link or path, **_about(picture)},
        }
        for name, items in _lists(record, self._annotated).items():
            results = [*self._results(items, size_wh)]
            if items and not results:
                raise LeftOutError("none of its annotations has a label")
            of_model = {"model_version": f"{record.model.name}@{record.model.version}"}
            author = of_model if name == "predictions" else {}
            task[name] = [{"id": number, **author, "result": results}]
        self._file.write((b",\n" if self._count else b"\n") + _encode(task))
        self._count += 1
        return path

    def finish(self) -> None:
        """Write the labelling interface, and the end of the tasks."""
        self._file.write(b"\n]\n")
        lines = ["<View>", '  <Image name="image" value="$image"/>']
        for control, labels in self._labels.items():
            if labels:
                name, child = _NAMES[control], "Choice" if control == "Choices" else "Label"
                lines.append(f'  <{control} name="{name}" toName="image">')
                lines += [f"    <{child} value={quoteattr(xml_text(label))}/>" for label in labels]
                lines.append(f"  </{control}>")
        self._archive.write_text("label_config.xml", "\n".join([*lines, "</View>", ""]))

    def _results(
        self, items: Iterable[dict[str, Any]], size_wh: tuple[int, int]
    ) -> Iterable[dict[str, Any]]:
        for number, item in enumerate(items):
            label = label_of(item)
            region = None if label is None else region_of(item, size_wh)
            if label is None or region is None:
                continue
            control, value = region
            self._labels[control][label] = None
            kind = control.lower()
            width, height = size_wh
            score = score_of(item)
            yield {
                "id": f"r{number}",
                "type": kind,
                "from_name": _NAMES[control],
                "to_name": "image",
                "original_width": width,
                "original_height": height,
                "image_rotation": 0,
                "value": {**value, kind: [label]},
                **({} if score is None else {"score": score}),
            }


def _lists(record: StoredInference, annotated: Annotated) -> dict[str, list[dict[str, Any]]]:
    """Return the lists of a task that are written: `annotations`, `predictions`, or both."""
    lists = {}
    if annotated != "predictions" and has_truth(record):
        lists["annotations"] = decode_objects(record.ground_truth)
    chosen = choose_annotations(record, "predictions")
    if annotated != "ground_truth" and chosen is not None:
        lists["predictions"] = chosen[1]
    return lists


def _about(picture: Picture) -> dict[str, Any]:
    """Return what a task says of its image, beside where it is; an import finds the inference by it."""
    record = picture.record
    return {
        "inference_id": record.id,
        "model": record.model.name,
        "task": record.task,
        "data_hash": record.input.hash,
        **({"split": picture.split} if picture.split else {}),
        "metadata": record.metadata,
    }


def region_of(
    item: dict[str, Any], size_wh: tuple[int, int]
) -> tuple[Control, dict[str, Any]] | None:
    """Return the control and the value of an annotation, in percents of the image; None if it has no finite shape."""
    shape = shape_of_json(item)
    if shape.oriented_box is not None:
        return _finite("RectangleLabels", _turned_rectangle(shape.oriented_box, size_wh))
    if shape.box is not None:
        return _finite("RectangleLabels", _rectangle(shape.box, size_wh))
    if shape.rings:
        width, height = size_wh
        points = [[x * 100 / width, y * 100 / height] for x, y in bridged(shape.rings)]
        if not all(math.isfinite(value) for point in points for value in point):
            return None
        return "PolygonLabels", {"points": points, "closed": True}
    return "Choices", {}


def _finite(control: Control, value: dict[str, float]) -> tuple[Control, dict[str, Any]] | None:
    return (control, value) if all(map(math.isfinite, value.values())) else None


def _rectangle(box: Xyxy, size_wh: tuple[int, int]) -> dict[str, float]:
    (xmin, ymin, xmax, ymax), (width, height) = box, size_wh
    return {
        "x": xmin * 100 / width,
        "y": ymin * 100 / height,
        "width": (xmax - xmin) * 100 / width,
        "height": (ymax - ymin) * 100 / height,
        "rotation": 0,
    }


def _turned_rectangle(oriented_box: RelativeXywhr, size_wh: tuple[int, int]) -> dict[str, float]:
    """Return an oriented box as its left top corner, around which it is turned, clockwise, in degrees."""
    (cx, cy, w, h, r), (width, height) = oriented_box, size_wh
    half_w, half_h = w * width / 2, h * height / 2
    cosine, sine = math.cos(r), math.sin(r)
    x = cx * width - half_w * cosine + half_h * sine
    y = cy * height - half_w * sine - half_h * cosine
    return {
        "x": x * 100 / width,
        "y": y * 100 / height,
        "width": w * 100,
        "height": h * 100,
        "rotation": math.degrees(r) % 360,
    }
