"""Reads datasets of several layouts: their images with annotations.

Source: Chariot, dataset archives; COCO, "Data format"; torchvision, ImageFolder.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec

from quadriga.monitor.evaluation.files.coco import annotated_images
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.store.changes.annotations import parse_annotations
from quadriga.store.exchange.coco import FILE_NAME, written_names
from quadriga.store.exchange.dataset_files import (
    DatasetFiles,
    nearest_to_root,
    open_dataset_files,
)
from quadriga.store.exchange.datasets import GPS, NOT_METADATA
from quadriga.store.exchange.formats.reading import DatasetImages, split_of_name
from quadriga.store.exchange.text_files import json_lines, utf8_lines
from quadriga.store.exchange.tool_datasets import FORMS, ToolFormat, read_tool_dataset
from quadriga.store.records.errors import ChangeError


class DatasetImage(NamedTuple):
    """An image of a dataset."""

    path: str
    """Path within the dataset."""
    read: Callable[[], bytes]
    """Returns the file of the image; raises `OSError` if it cannot be read."""
    annotations: list[dict[str, Any]] | None
    """Annotations in the form of the wire; None without ground truth."""
    split: str | None = None
    metadata: dict[str, Any] = {}  # noqa: RUF012 - default of a tuple, never changed
    is_background: bool = False
    """Whether nothing is annotated as there is no file of labels."""


class _Row(msgspec.Struct):
    path: str | None = None
    datum_id: str | None = None
    split: str | None = None
    annotations: Any = None
    metadata: dict[str, Any] = {}


def read_dataset(
    location: Path, task: str, formats: Mapping[str, ToolFormat] = {}
) -> list[DatasetImage]:
    """List the images of a dataset with their annotations, without reading the images themselves.

    The location is a folder or a zip: in Chariot's layout, with COCO's instances, in the form of CVAT, DOTA, YOLO or
    Label Studio, or with a folder per label. The task, its full name, decides which shape of COCO's annotations counts.
    `formats` are those of other tools beside YOLO, by name.

    Raises:
        EvaluationError: The layout is none of these, or a file is invalid; the message names it.
        OSError: A file cannot be read.
    """
    try:
        files = open_dataset_files(location)
        rows = nearest_to_root(files, lambda name: name == "annotations.jsonl")
        instances = nearest_to_root(files, lambda name: FILE_NAME.fullmatch(name) is not None)
        if rows:
            images = _chariot(files, rows[0])
        elif instances:
            images = [image for name in instances for image in _coco(files, name, task)]
        else:
            images = list(_of_tool(files, task, formats))
    except ChangeError as error:
        raise EvaluationError(str(error)) from error
    if not images:
        raise EvaluationError(f"no dataset found in {location.name or location}: expected {FORMS}")
    [(path, times)] = Counter(image.path for image in images).most_common(1)
    if times > 1:
        raise EvaluationError(f"expected each image once, got {path!r:.200} {times} times")
    return images


def _chariot(files: DatasetFiles, name: str) -> list[DatasetImage]:
    folder = PurePosixPath(name).parent
    metadata_by_path: dict[str, dict[str, Any]] = {}
    metadata_name = str(folder / "metadata.jsonl")
    if metadata_name in files:
        for _, row in _rows(files, metadata_name):
            metadata_by_path[row.path or row.datum_id or ""] = row.metadata
    images = []
    for number, row in _rows(files, name):
        path, location = row.path or row.datum_id, f"{name}:{number}"
        if not path:
            raise EvaluationError(f"{location}: path or datum_id is required")
        fields = metadata_by_path.get(path, {}) | row.metadata
        annotations = None
        if row.annotations is not None and fields.get("annotations_from") != "predictions":
            annotations = parse_annotations(row.annotations, f"{location}: annotations")
        image = str(folder / path)
        read = partial(files.read, files.find(image) or image)
        metadata = _metadata(fields)
        images.append(DatasetImage(path, read, annotations, split=row.split, metadata=metadata))
    return images


def _metadata(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of an image, coordinates also under their standard keys."""
    metadata = {key: value for key, value in fields.items() if key not in NOT_METADATA}
    return metadata | {
        standard_key: fields[dataset_key]
        for standard_key, dataset_key in GPS.items()
        if dataset_key in fields
    }


def _rows(files: DatasetFiles, name: str) -> Iterator[tuple[int, _Row]]:
    return json_lines(utf8_lines(BytesIO(files.read(name)), name), name, _Row)


def _coco(files: DatasetFiles, name: str, task: str) -> Iterator[DatasetImage]:
    matched = FILE_NAME.fullmatch(PurePosixPath(name).name)
    split = matched[1] if matched else None
    images = DatasetImages(files)
    parent = PurePosixPath(name).parent
    folders = [  # images lie beside the file, or in one of the usual folders
        above / below
        for above in (parent, parent.parent)
        for below in ("", "images", split or "", f"images/{split or ''}")
    ]
    for file_name, annotations in annotated_images(files.read(name), name, task):
        written = written_names(file_name)
        paths = (str(folder / name) for name in written for folder in folders)
        path = images.find(*paths, name=written[-1])
        path = path if path in files else file_name
        yield DatasetImage(path, partial(files.read, path), annotations, split_of_name(split))


def _of_tool(
    files: DatasetFiles, task: str, formats: Mapping[str, ToolFormat]
) -> Iterator[DatasetImage]:
    """List the images of a dataset in the form of another tool."""
    for image in read_tool_dataset(files, task, formats):
        annotations = image.annotations
        if annotations is not None:
            annotations = (
                None if image.is_predicted else parse_annotations(annotations, image.place)
            )
        yield DatasetImage(
            image.path,
            partial(files.read, image.path),
            annotations,
            split=image.split,
            metadata=image.metadata,
            is_background=image.is_background,
        )
