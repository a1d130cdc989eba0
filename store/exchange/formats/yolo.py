"""YOLO's folders: `images/<split>/`, `labels/<split>/` with a line for each object, and `data.yaml`.

Source: Ultralytics, "Object Detection Datasets Overview", "Oriented Bounding Box", "Instance Segmentation".
"""

import math
from typing import Literal

import yaml

from quadriga.store.exchange.archives import Archive
from quadriga.store.exchange.dataset_options import DatasetOptions, label_numbers
from quadriga.store.exchange.formats.writing import Picture, check_any_written
from quadriga.store.exchange.outlines import bridged, clamped
from quadriga.tasks.predictions import XY, Shape, Xyxy, shape_of_json

Kind = Literal["detect", "obb", "segment"]
"""What a line describes, in Ultralytics' names of tasks."""

_WITHOUT_SPLIT = "train"


class YoloWriter:
    """Writes labels of one kind; shapes of other kinds become it.

    Args:
        archive: The archive.
        kind: `detect` for boxes, `obb` for the four corners of oriented boxes, `segment` for polygons.
        options: Names of the splits, and of the labels that are numbered first.
    """

    def __init__(self, archive: Archive, kind: Kind, options: DatasetOptions) -> None:
        self._archive = archive
        self._kind = kind
        self._splits = dict.fromkeys(options.splits.names or (_WITHOUT_SPLIT,), False)
        self._classes = label_numbers(options.labels, 0)

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
