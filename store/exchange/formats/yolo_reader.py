"""Reads YOLO's folders: a line of `labels/…/<name>.txt` for each object of `images/…/<name>.jpg`, names from `data.yaml`.

Source: Ultralytics, "Object Detection Datasets Overview", "Oriented Bounding Box", "Instance Segmentation".
"""

import math
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import yaml

from quadriga.store.errors import QueryError
from quadriga.store.exchange.dataset_files import DatasetFiles, nearest_to_root
from quadriga.store.exchange.formats.reading import (
    AnnotatedImage,
    DatasetImages,
    box_of,
    contour_of,
    oriented_if,
    read_text,
)
from quadriga.store.exchange.outlines import oriented_box, pixels, unbridged
from quadriga.tasks.shapes import XY

_TASKS = {
    "detect": "OBJECT_DETECTION",
    "obb": "ORIENTED_OBJECT_DETECTION",
    "segment": "IMAGE_SEGMENTATION",
}
"""Ultralytics' names of tasks, which `data.yaml` may have, and ours."""

_CORNERS = 8
_MAX_YAML_BYTES = 16 << 20
_MAX_YAML_DEPTH = 16


def is_yolo(files: DatasetFiles) -> bool:
    """Check whether a dataset has YOLO's labels."""
    return bool(_yaml_files(files)) and any(_is_labels(name) for name in files.names)


def read_yolo(
    files: DatasetFiles, images: DatasetImages, task: str | None
) -> Iterator[AnnotatedImage]:
    """Yield the images of a dataset; one with an empty file of labels has nothing in it, one without a file no truth.

    Args:
        files: The files.
        images: The images among them.
        task: Full name of the task; None for that of `data.yaml`. It tells oriented boxes from polygons of four points.

    Raises:
        QueryError: A line is none; the message names it.
    """
    config_name = _yaml_files(files)[0]
    config = _config(files, config_name)
    names = _class_names(config, config_name)
    task = task or _TASKS.get(str(config.get("task")))
    root = PurePosixPath(config_name).parent
    labelled = set()
    for name in filter(_is_labels, files.names):
        parts = PurePosixPath(name).with_suffix("").parts
        image = images.of_labels(name, len(parts) - 1 - parts[::-1].index("labels"))
        labelled.add(image)
        size_wh = None
        annotations = []
        for number, line in enumerate(read_text(files, name).splitlines(), 1):
            if line.strip():
                place = f"{name}:{number}"
                size_wh = size_wh or images.size_wh(image, name)
                annotations.append(_annotation(line, place, names, size_wh, task=task))
        if size_wh is not None:
            annotations = oriented_if(annotations, task, size_wh)
        yield AnnotatedImage(
            place=name,
            path=image,
            annotations=annotations,
            split=_split(name, root),
            about=images.about(image),
        )


def _yaml_files(files: DatasetFiles) -> list[str]:
    preferred = nearest_to_root(files, lambda name: name in ("data.yaml", "data.yml"))
    return preferred or nearest_to_root(files, lambda name: name.endswith((".yaml", ".yml")))


def _is_labels(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix == ".txt" and "labels" in path.parts[:-1]


def _split(labels: str, root: PurePosixPath) -> str | None:
    """Return the folder of a file of labels below `labels`, or above it."""
    parts = PurePosixPath(labels).relative_to(root).parts[:-1]
    others = [part for part in parts if part != "labels"]
    return others[0] if others else None


def _config(files: DatasetFiles, name: str) -> dict[str, Any]:
    try:
        text = files.read(name, _MAX_YAML_BYTES).decode()
        _check_events(text, name)
        config = yaml.safe_load(text)
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
    pairs = names.items() if isinstance(names, dict) else enumerate(names)
    try:
        return {int(number): str(name) for number, name in pairs}
    except (TypeError, ValueError) as error:
        raise QueryError(
            f"{place}: expected numbers of classes in `names`, got: {error}"
        ) from error


def _annotation(
    line: str, place: str, names: dict[int, str], size_wh: tuple[int, int], *, task: str | None
) -> dict[str, Any]:
    try:
        label, numbers = _numbers(line)
    except ValueError as error:
        raise QueryError(f"{place}: {error}") from error
    if label not in names:
        raise QueryError(f"{place}: expected the number of a class in `names`, got {label}")
    item = {"label": names[label]}
    if len(numbers) in (4, 5):  # a fifth one is a score
        return item | _box(numbers, size_wh)
    points = _points(numbers[: len(numbers) // 2 * 2], size_wh)
    if len(numbers) == _CORNERS and task is None:
        raise QueryError(
            f"{place}: 8 numbers are an oriented box or a polygon: --task oriented or --task segmentation says which"
        )
    if len(numbers) <= _CORNERS + 1 and task == "ORIENTED_OBJECT_DETECTION":
        return item | oriented_box(points[:4], *size_wh)
    return item | contour_of(unbridged(points))


def _numbers(line: str) -> tuple[int, list[float]]:
    """Return the class and the numbers of a line; a ValueError says what was expected."""
    texts = line.split()
    try:
        label, numbers = int(texts[0]), [float(text) for text in texts[1:]]
    except ValueError:
        raise ValueError(
            f"expected the number of a class and fractions of the image, got {line[:80]!r}"
        ) from None
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"expected finite numbers, got {line[:80]!r}")
    if len(numbers) not in (4, 5, 9) and (len(numbers) < 6 or len(numbers) % 2):
        raise ValueError(
            f"expected a class and 4 numbers of a box, or pairs of numbers of points, got {len(numbers)} numbers"
        )
    return label, numbers


def _box(numbers: list[float], size_wh: tuple[int, int]) -> dict[str, float]:
    (cx, cy, w, h), (width, height) = numbers[:4], size_wh
    return box_of(
        pixels(cx - w / 2, width),
        pixels(cy - h / 2, height),
        pixels(cx + w / 2, width),
        pixels(cy + h / 2, height),
    )


def _points(numbers: list[float], size_wh: tuple[int, int]) -> list[XY]:
    width, height = size_wh
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return [(pixels(x, width), pixels(y, height)) for x, y in pairs]
