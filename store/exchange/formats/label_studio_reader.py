"""Reads tasks of Label Studio: the annotations that were submitted last, not the predictions.

Source: Label Studio, "Label Studio JSON format of annotated tasks".
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from quadriga.quoting import quoted
from quadriga.store.exchange.dataset_files import DatasetFiles, nearest_to_root
from quadriga.store.exchange.formats.reading import AnnotatedImage, DatasetImages, contour_of
from quadriga.store.exchange.outlines import pixels, unbridged, xywhr_json
from quadriga.store.exchange.text_files import decode_as
from quadriga.store.records.errors import QueryError
from quadriga.tasks.predictions import BOX_KEYS

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
            if is_tasks(file.read(_FIRST_BYTES)):
                return name
    return None


def is_tasks(begin: bytes) -> bool:
    """Check whether a JSON file begins as an array."""
    return begin.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["


def read_label_studio(images: DatasetImages, task: str | None) -> Iterator[AnnotatedImage]:
    """Yield the images of a dataset; those that nobody has annotated have no truth.

    Raises:
        QueryError: A task is none; the message names it.
    """
    name = tasks_file(images.files) or ""
    yield from read_tasks(images.files.read(name), name, images, task)


def read_tasks(
    data: bytes, name: str, images: DatasetImages, task: str | None
) -> Iterator[AnnotatedImage]:
    """Yield the images of the text of a file of tasks, as `read_label_studio`."""
    raw_tasks = decode_as(list[msgspec.Raw], data, f"{name}: expected a JSON array of tasks")
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
            shape = _rectangle(region, value, task)
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


def _rectangle(
    region: Mapping[str, Any], value: Mapping[str, Any], task: str | None
) -> dict[str, float]:
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
