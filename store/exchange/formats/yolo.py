"""YOLO's folders: `images/<split>/`, `labels/<split>/` with a line for each object, and `data.yaml`.

Source: Ultralytics, "Object Detection Datasets Overview", "Oriented Bounding Box", "Instance Segmentation", and
`verify_image_label` of its `data/utils.py`, which says which lines count.
"""

import math
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

import yaml

from quadriga.store.exchange.archives import Archive
from quadriga.store.exchange.dataset_files import DatasetFiles, nearest_to_root
from quadriga.store.exchange.dataset_options import ExportParameters, label_numbers
from quadriga.store.exchange.formats.reading import (
    IMAGES,
    AnnotatedImage,
    DatasetImages,
    box_around,
    contour_of,
    oriented_if,
    read_text,
)
from quadriga.store.exchange.formats.writing import Picture, check_any_written
from quadriga.store.exchange.outlines import bridged, clamped, oriented_box, pixels, unbridged
from quadriga.store.exchange.text_files import to_utf8
from quadriga.store.records.errors import QueryError
from quadriga.tasks.predictions import XY, Shape, Xyxy, shape_of_json

Kind = Literal["detect", "obb", "segment"]
"""What a line describes, in Ultralytics' names of tasks."""

_WITHOUT_SPLIT = "train"


class YoloWriter:
    """Writes labels of one kind; shapes of other kinds become it.

    Args:
        archive: The archive.
        parameters: Names of the splits, and of the labels that are numbered first.
        kind: `detect` for boxes, `obb` for the four corners of oriented boxes, `segment` for polygons.
    """

    def __init__(self, archive: Archive, parameters: ExportParameters, kind: Kind) -> None:
        self._archive = archive
        self._kind = kind
        self._splits = dict.fromkeys(parameters.split or (_WITHOUT_SPLIT,), False)
        self._classes = label_numbers(parameters.labels, 0)

    def add(self, picture: Picture) -> str:
        """Write the labels of a picture; see `FormatWriter.add`."""
        size_wh = picture.size_wh()
        lines = []
        for label, item in picture.labelled():
            numbers = self._numbers(shape_of_json(item), size_wh)
            if numbers is not None:
                lines.append((label, " ".join(map(repr, numbers))))
        check_any_written(picture, len(lines))
        split = picture.split or _WITHOUT_SPLIT
        self._splits[split] = True
        text = "".join(
            f"{self._classes.setdefault(label, len(self._classes))} {numbers}\n"
            for label, numbers in lines
        )
        self._archive.write_text(f"labels/{split}/{picture.stem}.txt", text)
        return f"images/{split}/{picture.name}"

    def finish(self) -> None:
        """Write `data.yaml`."""
        data = {
            **{name: f"images/{name}" for name, is_used in self._splits.items() if is_used},
            "task": self._kind,
            "nc": len(self._classes),
            "names": {number: label for label, number in self._classes.items()},
        }
        text = yaml.safe_dump(data, allow_unicode=True, sort_keys=False)
        self._archive.write_text("data.yaml", text)

    def _numbers(self, shape: Shape, size_wh: tuple[int, int]) -> list[float] | None:
        """Return the numbers of a line, as fractions of the image; None without any shape in the image."""
        if self._kind == "detect":
            box = shape.upright_box(*size_wh)
            return None if box is None else _relative_box(box, size_wh)
        points = _outline(shape, size_wh, as_contour=self._kind == "segment")
        if not points or not all(math.isfinite(value) for point in points for value in point):
            return None
        width, height = size_wh
        return [
            value
            for x, y in points
            for value in (clamped(x, width) / width, clamped(y, height) / height)
        ]


def _relative_box(box: Xyxy, size_wh: tuple[int, int]) -> list[float] | None:
    """Return centre, width and height of the part of a box that lies in the image, as fractions of it."""
    width, height = size_wh
    if not all(map(math.isfinite, box)):
        return None
    xmin, ymin, xmax, ymax = box
    if xmax < 0 or ymax < 0 or xmin > width or ymin > height:
        return None
    xmin, xmax = clamped(xmin, width), clamped(xmax, width)
    ymin, ymax = clamped(ymin, height), clamped(ymax, height)
    if xmin == xmax or ymin == ymax:
        return None
    centre = (xmin + xmax) / 2 / width, (ymin + ymax) / 2 / height
    return [*centre, (xmax - xmin) / width, (ymax - ymin) / height]


def _outline(shape: Shape, size_wh: tuple[int, int], *, as_contour: bool) -> list[XY]:
    """Return a polygon around a shape: its contour if `as_contour`, else four corners."""
    if as_contour and shape.rings:
        line = bridged(shape.rings)
        return line + [line[-1]] * (3 - len(line))  # two points would be read as a box
    corners = shape.oriented_corners(*size_wh)
    if corners is not None:
        return corners
    box = shape.upright_box(*size_wh)
    if box is None:
        return []
    xmin, ymin, xmax, ymax = box
    return [(xmin, ymin), (xmax, ymin), (xmax, ymax), (xmin, ymax)]


_TASKS = {
    "detect": "OBJECT_DETECTION",
    "obb": "ORIENTED_OBJECT_DETECTION",
    "segment": "IMAGE_SEGMENTATION",
}
"""Ultralytics' names of tasks, which `data.yaml` may have, and ours."""

_CORNERS = 8
_BEYOND = 0.01
"""How far numbers may lie beyond the image, as a fraction of it."""
_MAX_YAML_BYTES = 16 << 20
_MAX_YAML_DEPTH = 16


class _Texts(yaml.SafeLoader):  # type: ignore[misc]  # it has no types here
    """Reads scalars as texts: `no`, `1.10` and `null` are names."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


def is_yolo(files: DatasetFiles) -> bool:
    """Check whether a dataset has YOLO's labels."""
    return bool(_yaml_files(files)) and any(_is_labels(name) for name in files.names)


def read_yolo(images: DatasetImages, task: str | None) -> Iterator[AnnotatedImage]:
    """Yield the images of a dataset, as Ultralytics reads them: one without a file of labels has nothing in it.

    That is so of images below `images`, in a split that has labels. Lines that repeat another of the same file are left out.

    Args:
        images: The images.
        task: Full name of the task; None for that of `data.yaml`. It tells oriented boxes from polygons of four points.

    Raises:
        QueryError: A line is none that Ultralytics trains with; the message names it.
    """
    files = images.files
    config_name = _yaml_files(files)[0]
    config = _config(files, config_name)
    names = _class_names(config, config_name)
    task = task or _TASKS.get(str(config.get("task")))
    root = PurePosixPath(config_name).parent
    labelled, splits = set(), set()
    for name in filter(_is_labels, files.names):
        parts = PurePosixPath(name).with_suffix("").parts
        image = images.of_labels(name, len(parts) - 1 - parts[::-1].index("labels"))
        labelled.add(image)
        splits.add(_split(name, root))
        size_wh = None
        annotations = []
        rows = dict[tuple[float, ...], str]()
        for number, line in enumerate(read_text(files, name).splitlines(), 1):
            if line.strip():
                rows.setdefault(_numbers(line, f"{name}:{number}"), f"{name}:{number}")
        for row, place in rows.items():
            size_wh = size_wh or images.size_wh(image, name)
            annotations.append(_annotation(row, place, names, size_wh, task=task))
        if size_wh is not None:
            annotations = oriented_if(annotations, task, size_wh)
        yield AnnotatedImage(
            place=name,
            path=image,
            annotations=annotations,
            split=_split(name, root),
            about=images.about(image),
        )
    for name in files.names:
        path = PurePosixPath(name)
        is_image = path.suffix.lower() in IMAGES and "images" in path.parts[:-1]
        if is_image and name not in labelled and (split := _split(name, root)) in splits:
            yield AnnotatedImage(
                place=name,
                path=name,
                annotations=[],
                split=split,
                is_background=True,
                about=images.about(name),
            )


def _yaml_files(files: DatasetFiles) -> list[str]:
    preferred = nearest_to_root(files, lambda name: name in ("data.yaml", "data.yml"))
    return preferred or nearest_to_root(files, lambda name: name.endswith((".yaml", ".yml")))


def _is_labels(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix == ".txt" and "labels" in path.parts[:-1]


def _split(name: str, root: PurePosixPath) -> str | None:
    """Return the folder of a file below `labels` or `images`, or above it."""
    path = PurePosixPath(name)
    parts = path.relative_to(root).parts if path.is_relative_to(root) else path.parts
    others = [part for part in parts[:-1] if part not in ("labels", "images")]
    return others[0] if others else None


def _config(files: DatasetFiles, name: str) -> dict[str, Any]:
    try:
        text = to_utf8(files.read(name, _MAX_YAML_BYTES), name).decode()
        _check_events(text, name)
        config = yaml.load(text, _Texts)  # noqa: S506 - it is safe
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise QueryError(f"{name}: expected YAML, got: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("names"), dict | list):
        raise QueryError(f"{name}: expected the names of classes under `names`, got none")
    return config


def _check_events(text: str, name: str) -> None:
    """Check that YAML has no aliases, by which a few lines become gigabytes, and no depth, which takes hours."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > _MAX_YAML_DEPTH:
            raise QueryError(
                f"{name}: expected no aliases, and at most {_MAX_YAML_DEPTH} levels of YAML"
            )


def _class_names(config: dict[str, Any], place: str) -> dict[int, str]:
    names = config["names"]
    pairs = dict(enumerate(names)) if isinstance(names, list) else names
    classes = {
        int(number): name
        for number, name in pairs.items()
        if str(number).isdecimal() and isinstance(name, str) and name
    }
    if len(classes) < len(pairs):
        raise QueryError(
            f"{place}: expected a number and a text for each class in `names`, got {names!r:.80}"
        )
    return classes


def _annotation(
    row: tuple[float, ...],
    place: str,
    names: dict[int, str],
    size_wh: tuple[int, int],
    *,
    task: str | None,
) -> dict[str, Any]:
    label, *numbers = row
    if label not in names:
        raise QueryError(f"{place}: expected the number of a class in `names`, got {label:g}")
    item = {"label": names[int(label)]}
    if is_box := len(numbers) == 4:
        cx, cy, w, h = numbers
        numbers = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
    points = _points(numbers, size_wh)
    # Ultralytics trains detectors with the boxes around polygons
    if is_box or task == "OBJECT_DETECTION":
        return item | box_around(points)
    if len(numbers) == _CORNERS and task is None:
        raise QueryError(
            f"{place}: 8 numbers are an oriented box or a polygon: --task oriented or --task segmentation says which"
        )
    if len(numbers) == _CORNERS and task == "ORIENTED_OBJECT_DETECTION":
        return item | oriented_box(points, *size_wh)
    return item | contour_of(unbridged(points))


def _numbers(line: str, place: str) -> tuple[float, ...]:
    """Return the class and the numbers of a line, checked as Ultralytics checks them."""
    try:
        label, *numbers = map(float, line.split())
    except ValueError:
        label, numbers = math.nan, []
    count, is_box = len(numbers), len(numbers) == 4
    is_inside = all(-_BEYOND <= number <= 1 + _BEYOND for number in numbers)
    checks = {
        "the number of a class and fractions of the image": count > 0,
        "a class and a shape without a score, as ground truth has none": count not in (5, 9),
        "a class and 4 numbers of a box, or pairs of numbers of points": is_box
        or (count >= 6 and count % 2 == 0),
        "finite numbers": all(map(math.isfinite, numbers)),
        "fractions of the image, from 0 to 1": is_inside,
        "a width and a height above 0": not is_box or min(numbers[2:]) > 0,
    }
    for expected, is_met in checks.items():
        if not is_met:
            raise QueryError(
                f"{place}: expected {expected}, got {line[:80]!r} with {count} numbers"
            )
    return label, *numbers


def _points(numbers: list[float], size_wh: tuple[int, int]) -> list[XY]:
    width, height = size_wh
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return [(pixels(x, width), pixels(y, height)) for x, y in pairs]
