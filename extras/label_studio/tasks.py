"""Datasets of Label Studio: `tasks.json`, a task for each image, with ground truth as annotations and the model's predictions.

Of a dataset the annotations that were submitted last are read, not the predictions.

Source: Label Studio, "Label Studio JSON format of annotated tasks", "Import pre-annotated data into Label Studio".
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Literal
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import quoteattr

import msgspec

from quadriga.quoting import quoted
from quadriga.store.exchange.archives import Archive
from quadriga.store.exchange.dataset_files import DatasetFiles, nearest_to_root
from quadriga.store.exchange.dataset_options import Annotated, choose_annotations, has_truth
from quadriga.store.exchange.formats.reading import AnnotatedImage, DatasetImages, contour_of
from quadriga.store.exchange.formats.writing import LeftOutError, Picture, xml_text
from quadriga.store.exchange.outlines import bridged, pixels, unbridged, xywhr_json
from quadriga.store.exchange.predictions import decode_objects, label_of, score_of
from quadriga.store.exchange.text_files import decode_as
from quadriga.store.exchange.tool_datasets import ToolFormat, is_array
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import StoredInference
from quadriga.tasks.predictions import BOX_KEYS, RelativeXywhr, Xyxy, shape_of_json

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


_LABELS = ("rectanglelabels", "polygonlabels", "choices", "labels")
_FIRST_BYTES = 256


class _Annotation(msgspec.Struct):
    result: list[dict[str, Any]]
    was_cancelled: bool = False


class _Task(msgspec.Struct):
    data: dict[str, Any]
    annotations: list[_Annotation] | None = None
    id: int | str | None = None


def tasks_file(files: DatasetFiles) -> str | None:
    """Return the name of a file of tasks, a JSON array of objects; None if there is none."""
    for name in nearest_to_root(files, lambda name: name.endswith(".json")):
        with files.open(name) as file:
            if is_array(file.read(_FIRST_BYTES)):
                return name
    return None


def read_label_studio(images: DatasetImages, task: str | None) -> Iterator[AnnotatedImage]:
    """Yield the images of a dataset; those that nobody has annotated have no truth.

    Raises:
        QueryError: A task is none; the message names it.
    """
    name = tasks_file(images.files) or ""
    yield from read_tasks(BytesIO(images.files.read(name)), name, images, task)


def read_tasks(
    file: BinaryIO, name: str, images: DatasetImages, task: str | None
) -> Iterator[AnnotatedImage]:
    """Yield the images of an open file of tasks, as `read_label_studio`."""
    raw_tasks = decode_as(list[msgspec.Raw], file.read(), f"{name}: expected a JSON array of tasks")
    for number, raw in enumerate(raw_tasks):
        place = f"{name}: task {number}"
        decoded = decode_as(_Task, raw, f"{place}: expected a task of Label Studio")
        yield _annotated(decoded, place, images, task)


def _annotated(
    task: _Task, place: str, images: DatasetImages, wanted: str | None
) -> AnnotatedImage:
    link = str(task.data.get("image") or "")
    path = images.find(*_paths(link))
    about = images.about(path) | {key: value for key, value in task.data.items() if key != "image"}
    submitted = [item for item in task.annotations or () if not item.was_cancelled]
    truth = None
    if submitted:
        wanted = wanted or about.get("task")
        truth = truth_of_results(submitted[-1].result, place, wanted)
    # What stands in `annotations` is truth, whatever else the image was exported with.
    about = {key: value for key, value in about.items() if key != "annotations_from"}
    split = about.get("split")
    return AnnotatedImage(
        place=place,
        path=path,
        annotations=truth,
        split=split if isinstance(split, str) else None,
        about=about,
    )


def truth_of_results(
    results: Iterable[Mapping[str, Any]], place: str, task: str | None
) -> list[dict[str, Any]]:
    """Return the results of an annotation as annotations in the form of the wire.

    Args:
        results: The regions and choices of the annotation.
        place: What messages call the annotation.
        task: Full name of the task whose truth it is; None for what the results say.

    Raises:
        QueryError: A result is neither a rectangle, a polygon nor a choice; the message names it.
    """
    return [
        item
        for index, region in enumerate(results)
        for item in _annotation(region, f"{place}: result {index}", task)
    ]


def _paths(link: str) -> list[str]:
    """Return the paths that an image may have in the dataset, from a path, a URL, or a link to local files."""
    parts = urlsplit(link) if "://" in link or link.startswith("/data/") else None
    if parts is None:
        return [link]
    path = unquote(parts.query.partition("d=")[2] or parts.path).lstrip("/")
    # Label Studio puts a random part before the names of files that were uploaded.
    name = PurePosixPath(path).name
    return [path, f"images/{name}", f"images/{name.partition('-')[2]}"]


def _annotation(
    region: Mapping[str, Any], place: str, task: str | None
) -> Iterator[dict[str, Any]]:
    kind, value = region.get("type"), region.get("value")
    if not isinstance(value, dict):
        return  # a relation between regions
    labels = next((value[key] for key in _LABELS if isinstance(value.get(key), list)), None)
    if labels is None:
        raise QueryError(
            f"{place}: expected rectangles, polygons and choices with labels, got {quoted(kind, 40)}"
        )
    shape: dict[str, Any] = {}
    try:
        if "points" in value:
            shape = _contour(region, value)
        elif "width" in value:
            shape = _box(region, value, task)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise QueryError(
            f"{place}: expected percents of an image of known size, got: {error}"
        ) from error
    for label in labels:
        yield {"label": str(label), **shape}


def _sizes(region: Mapping[str, Any]) -> tuple[int, int]:
    width, height = region["original_width"], region["original_height"]
    if not (isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0):
        raise ValueError("original_width and original_height")
    return width, height


def _contour(region: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    width, height = _sizes(region)
    points = [
        (pixels(_number(point[0]) / 100, width), pixels(_number(point[1]) / 100, height))
        for point in value["points"]
    ]
    return contour_of(unbridged(points))


def _box(region: Mapping[str, Any], value: Mapping[str, Any], task: str | None) -> dict[str, float]:
    """Return a box, or an oriented box if it is turned, around its left top corner, or if that is the task."""
    width, height = _sizes(region)
    x, y, w, h = (_number(value[key]) / 100 for key in ("x", "y", "width", "height"))
    degrees = _number(value.get("rotation", 0))
    if not degrees and task != "ORIENTED_OBJECT_DETECTION":
        edges = (
            pixels(x, width), pixels(y, height), pixels(x + w, width), pixels(y + h, height),
        )  # fmt: skip
        return dict(zip(BOX_KEYS, edges, strict=True))
    radians = math.remainder(math.radians(degrees), math.tau)
    cosine, sine = math.cos(radians), math.sin(radians)
    half_w, half_h = w * width / 2, h * height / 2
    cx = (x * width + half_w * cosine - half_h * sine) / width
    cy = (y * height + half_w * sine + half_h * cosine) / height
    return xywhr_json(cx, cy, w, h, radians)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(quoted(value, 40))
    return value


LABEL_STUDIO = ToolFormat(
    writer=lambda archive, parameters: LabelStudioWriter(archive, parameters.annotations),
    is_format=tasks_file,
    read=read_label_studio,
    read_file=read_tasks,
)
