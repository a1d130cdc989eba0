"""Predictions with types: boxes, oriented boxes, regions with holes, classes, answers."""

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from .class_labels import ClassIds, LabelsOf, number_labels
from .errors import InputError, load_package
from .images import image_size, open_image

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DRAWN_WIDTH_PX = 640
"""Maximum width of the picture in a notebook."""


class Predictions:
    """Predictions of one image, of any task."""

    predictions: Sequence[Mapping[str, Any]]
    """What the model predicted, as the server's JSON has it."""
    labels_of: LabelsOf | None = None
    """Asks the server for the labels of the model in their order, once for all results; None without a server."""
    _size: Callable[[], tuple[int, int]]
    _image_bytes: Callable[[], bytes]

    @property
    def labels(self) -> list[str]:
        """Labels of the predictions, in their order; none of answers."""
        return [str(row["label"]) for row in self.predictions if "label" in row]

    @property
    def scores(self) -> "npt.NDArray[np.float32]":
        """Scores, float32 (N,), of the predictions with labels; NaN where there is none."""
        scores = [row.get("score") for row in self.predictions if "label" in row]
        return _float32([float("nan") if score is None else score for score in scores])

    @property
    def classes(self) -> dict[str, float]:
        """Scores of an image's classes by their labels, the best first."""
        rows = [row for row in self.predictions if {"label", "score"} <= row.keys()]
        best = sorted(rows, key=lambda row: -row["score"])
        return {row["label"]: row["score"] for row in best if not row.keys() & SHAPE_KEYS}

    @property
    def answers(self) -> list[str]:
        """Answers of an image-text model, one for each prompt."""
        return [str(row["answer"]) for row in self.predictions if "answer" in row]

    @property
    def text(self) -> str:
        """The answers of an image-text model, one a line."""
        return "\n".join(self.answers)

    @property
    def boxes(self) -> "Boxes":
        """Upright boxes: those of a detector, and those around regions."""
        return Boxes([row for row in self.predictions if "xmin" in row or "contour" in row])

    @property
    def oriented_boxes(self) -> "OrientedBoxes":
        """Rotated boxes."""
        return OrientedBoxes([row for row in self.predictions if "cx" in row], self._size)

    @property
    def regions(self) -> "list[Region]":
        """Regions of a segmentation model, with their holes."""
        return [Region(row) for row in self.predictions if "contour" in row]

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Width and height of the image in pixels, as a person sees it (its EXIF data turn it)."""
        return self._size()

    def draw(self, image: Any = None) -> Any:
        """Return a Pillow image with the predictions on it.

        Args:
            image: Pillow image to draw on a copy of; None for the image itself.

        Raises:
            MissingPackage: Pillow is not installed.
        """
        from .drawing import draw_predictions

        picture = open_image(self._image_bytes()) if image is None else image
        return draw_predictions(picture, self)

    def to_supervision(self, class_ids: ClassIds | None = None) -> Any:
        """Return `supervision.Detections` of boxes, oriented boxes or regions.

        Args:
            class_ids: Numbers of the labels, or the labels in the order of their numbers; None for the order of the model's
                labels, as `client.models.get` has them, from 0.

        Raises:
            MissingPackage: supervision is not installed.
            InputError: The predictions have no shapes, or a label has no number.
        """
        supervision = load_package("supervision", "to_supervision()")
        numpy = load_package("numpy", "to_supervision()")
        rows, labels, numbers = self._numbered(class_ids, 0)
        if not rows:
            return supervision.Detections.empty()
        data: dict[str, Any] = {"class_name": numpy.array(labels)}
        if all("cx" in row for row in rows):
            data["xyxyxyxy"] = corners = OrientedBoxes(rows, lambda: self.image_size).corners
            xyxy = numpy.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
        else:
            xyxy = _float32([[0.0] * 4 if "cx" in row else box_xyxy(row) for row in rows], 4)
        masks = None
        if all("contour" in row for row in rows):
            masks = numpy.stack([region.mask(self.image_size) for region in self.regions])
        return supervision.Detections(
            xyxy=xyxy,
            mask=masks,
            confidence=Boxes(rows).scores,
            class_id=numpy.asarray(numbers, dtype=int),
            data=data,
        )

    def to_coco(
        self, image_id: int = 1, category_ids: ClassIds | None = None
    ) -> list[dict[str, Any]]:
        """Return annotations of COCO, one for each box or region, with `score`.

        A region with holes is a list of rings, of which COCO's own readers fill the union; rotated boxes are polygons.

        Args:
            image_id: Id of the image in the dataset.
            category_ids: Ids of the labels, as `class_ids` of `to_supervision`, but from 1.

        Raises:
            InputError: The predictions have no shapes, or a label has no id.
        """
        rows, _, numbers = self._numbered(category_ids, 1)
        annotations = []
        for row, number in zip(rows, numbers, strict=True):
            rings = self._rings(row)
            left, top, right, bottom = box_around(rings) if rings else box_xyxy(row)
            annotation = {
                "image_id": image_id,
                "category_id": number,
                "bbox": [left, top, right - left, bottom - top],
                "area": abs(_area(rings)) if rings else (right - left) * (bottom - top),
                "iscrowd": 0,
                "score": row.get("score"),
            }
            if rings:
                annotation["segmentation"] = [[*map(float, chain(*ring))] for ring in rings]
            annotations.append(annotation)
        return annotations

    def to_yolo(self, class_ids: ClassIds | None = None) -> str:
        """Return lines of a YOLO label file: class and shape, relative to the image's size.

        A box is its centre, width and height; a rotated box its four corners; a region its longest ring, as the format has no
        holes.

        Args:
            class_ids: Numbers of the labels, as for `to_supervision`.

        Raises:
            InputError: The predictions have no shapes, or a label has no number.
        """
        rows, _, numbers = self._numbered(class_ids, 0)
        if not rows:
            return ""
        width, height = self.image_size
        lines = []
        for row, number in zip(rows, numbers, strict=True):
            if "xmin" in row:
                left, top, right, bottom = box_xyxy(row)
                values = [(left + right) / 2 / width, (top + bottom) / 2 / height]
                values += [(right - left) / width, (bottom - top) / height]
            else:
                longest = max(self._rings(row), key=len, default=[])
                values = [value for x, y in longest for value in (x / width, y / height)]
            lines.append(" ".join([str(number), *(f"{value:.6f}" for value in values)]))
        return "\n".join(lines) + "\n"

    def _numbered(
        self, ids: ClassIds | None, first: int
    ) -> tuple[list[Mapping[str, Any]], list[str], list[int]]:
        """Return the predictions with shapes, their labels, and the number of each label.

        Raises:
            InputError: There are predictions, but none of them has a shape; or a label has no number.
        """
        rows = [row for row in self.predictions if row.keys() & SHAPE_KEYS]
        if self.predictions and not rows:
            raise InputError(
                "expected boxes, rotated boxes or regions, got predictions without shapes: "
                f"{', '.join(self.predictions[0])}"
            )
        labels = [str(row["label"]) for row in rows]
        return rows, labels, number_labels(labels, ids, self.labels_of, first)

    def _rings(self, row: Mapping[str, Any]) -> list[list[tuple[float, float]]]:
        """Return the rings of a region, or that of a rotated box, in pixels; none of an upright box."""
        if "cx" in row:
            corners = OrientedBoxes([row], lambda: self.image_size).corners[0].tolist()
            return [[(across, down) for across, down in corners]]
        return ring_points(row) if "contour" in row else []

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each prediction.

        The columns are `label`, `score`, `xmin`, `ymin`, `xmax` and `ymax` of its box, or of that around a region, in pixels,
        `cx`, `cy`, `w`, `h` and `r` of a rotated box as the server's JSON has them, and `answer`. What a prediction does not
        have is missing.

        Raises:
            MissingPackage: pandas is not installed.
        """
        pandas = load_package("pandas", "to_pandas()")
        rows = [prediction_row(row) for row in self.predictions]
        return pandas.DataFrame(rows, columns=list(PREDICTION_COLUMNS))

    def _repr_html_(self) -> str:
        """Return the picture with its predictions, for notebooks."""
        from .drawing import html_of

        try:
            picture = self.draw()
            picture.thumbnail((DRAWN_WIDTH_PX, DRAWN_WIDTH_PX))
            file = io.BytesIO()
            picture.save(file, "JPEG", quality=85)
            data = base64.b64encode(file.getvalue()).decode()
        except (InputError, ImportError):  # without Pillow, or without its image
            data = ""
        return html_of(self, data)


_BOX_COLUMNS = ("xmin", "ymin", "xmax", "ymax")
PREDICTION_COLUMNS = ("label", "score", *_BOX_COLUMNS, "cx", "cy", "w", "h", "r", "answer")
"""Columns of a prediction in a table."""

SHAPE_KEYS = {"xmin", "cx", "contour"}
"""Keys of which a prediction with a shape has one."""


class Result(Predictions):
    """The answer of a model to one image."""

    def __init__(
        self,
        raw: Mapping[str, Any],
        output: Mapping[str, Any],
        image: bytes,
        source: str,
        *,
        labels_of: LabelsOf | None = None,
    ) -> None:
        self.raw = raw
        """The answer of the server."""
        self.predictions = output["data"][0]
        self.parameters: Mapping[str, Any] = output.get("parameters") or {}
        """Parameters of the output, such as its semantic score."""
        self.labels_of = labels_of
        self.source = source
        """Name of the image: its path, or its type."""
        self._image = image

    @property
    def ok(self) -> bool:
        """True; a `FailedInference` has False."""
        return True

    @property
    def id(self) -> str | None:
        """Id of the stored inference; None if it is not stored."""
        return self.parameters.get("inference_id") or None

    @property
    def request_id(self) -> str:
        """Id of the request, under which the server's log has it."""
        return str(self.raw.get("id") or "")

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.raw.get("model_name") or "")

    @property
    def version(self) -> str:
        """Version of the model that answered."""
        return str(self.raw.get("model_version") or "")

    def _image_bytes(self) -> bytes:
        return self._image

    def _size(self) -> tuple[int, int]:
        return image_size(self._image)

    def __repr__(self) -> str:
        return f"Result({self.model}:{self.version}, id={self.id}, {summary(self.predictions)})"


class _Shapes:
    """Shapes of predictions, one for each row."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)}: {summary(self._rows)})"

    @property
    def labels(self) -> list[str]:
        """Labels of the boxes."""
        return [str(row.get("label", "")) for row in self._rows]

    @property
    def scores(self) -> "npt.NDArray[np.float32]":
        """Scores of the boxes, float32 (N,)."""
        return _float32([row.get("score") or 0.0 for row in self._rows])


class Boxes(_Shapes):
    """Upright boxes, in pixels of the image as a person sees it."""

    @property
    def xyxy(self) -> "npt.NDArray[np.float32]":
        """Corners, float32 (N, 4): left, top, right, bottom."""
        return _float32([box_xyxy(row) for row in self._rows], 4)

    @property
    def xywh(self) -> "npt.NDArray[np.float32]":
        """Left, top, width, height, float32 (N, 4), as COCO has them; `cxcywh` begins with the centre."""
        boxes = self.xyxy
        boxes[:, 2:] -= boxes[:, :2]
        return boxes

    @property
    def cxcywh(self) -> "npt.NDArray[np.float32]":
        """Centre, width, height, float32 (N, 4), as `xywh` of Ultralytics."""
        boxes = self.xywh
        boxes[:, :2] += boxes[:, 2:] / 2
        return boxes


class OrientedBoxes(_Shapes):
    """Rotated boxes.

    Args:
        rows: Predictions with `cx`, `cy`, `w` and `h` relative to the image, and `r` in radians.
        size: Returns width and height of the image.
    """

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], size: Callable[[], tuple[int, int]]
    ) -> None:
        super().__init__(rows)
        self._size = size

    @property
    def xywhr(self) -> "npt.NDArray[np.float32]":
        """Centre, width and height in pixels, and the rotation in radians, clockwise as seen: float32 (N, 5)."""
        if not self._rows:
            return _float32([], 5)
        width, height = self._size()
        units = {"cx": width, "cy": height, "w": width, "h": height, "r": 1}
        return _float32([[row[key] * unit for key, unit in units.items()] for row in self._rows], 5)

    @property
    def corners(self) -> "npt.NDArray[np.float32]":
        """Corners in pixels, float32 (N, 4, 2): the left top one before the rotation first, then clockwise."""
        numpy = load_package("numpy", "corners as an array")
        boxes = self.xywhr
        half = boxes[:, 2:4] / 2
        cos, sin = numpy.cos(boxes[:, 4]), numpy.sin(boxes[:, 4])
        along = numpy.stack([cos, sin], axis=1) * half[:, :1]
        across = numpy.stack([-sin, cos], axis=1) * half[:, 1:]
        steps = [-along - across, along - across, along + across, across - along]
        corners: npt.NDArray[np.float32] = boxes[:, None, :2] + numpy.stack(steps, axis=1)
        return corners.astype(numpy.float32)


@dataclass(frozen=True, slots=True, repr=False)
class Region:
    """A region: the pixels on its rings, or inside an odd number of them; so the ring of a hole takes it out."""

    row: Mapping[str, Any]
    """The prediction as the server's JSON has it."""

    @property
    def label(self) -> str:
        """Label of the region."""
        return str(self.row.get("label", ""))

    @property
    def score(self) -> float:
        """Score of the region."""
        return float(self.row.get("score") or 0.0)

    @property
    def rings(self) -> "list[npt.NDArray[np.float32]]":
        """Rings in pixels, each float32 (points, 2); those of holes among them."""
        return [_float32(ring, 2) for ring in ring_points(self.row)]

    def mask(self, size: tuple[int, int]) -> "npt.NDArray[np.bool_]":
        """Return the pixels of the region, bool (height, width).

        Args:
            size: Width and height of the image.

        Raises:
            MissingPackage: numpy or Pillow is not installed.
        """
        from .drawing import region_mask

        mask = region_mask(ring_points(self.row), size)
        filled: npt.NDArray[np.bool_] = load_package("numpy", "a mask").asarray(mask) > 0
        return filled

    def __repr__(self) -> str:
        points = sum(map(len, self.row["contour"]))
        return f"Region({self.label!r}, {self.score:.2f}, rings={len(self.row['contour'])}, points={points})"


def prediction_row(prediction: Mapping[str, Any]) -> dict[str, Any]:
    """Return a prediction or an annotation as a row of a table; several answers are JSON."""
    row = {name: prediction.get(name) for name in PREDICTION_COLUMNS}
    if "answers" in prediction:
        row["answer"] = json.dumps(prediction["answers"], ensure_ascii=False)
    if "contour" in prediction:
        row |= zip(_BOX_COLUMNS, box_xyxy(prediction), strict=True)
    return row


def ring_points(row: Mapping[str, Any]) -> list[list[tuple[float, float]]]:
    """Return the rings of a region as points."""
    return [[(point["x"], point["y"]) for point in ring] for ring in row["contour"]]


def box_xyxy(row: Mapping[str, Any]) -> list[float]:
    """Return the box of a detection, or the upright one around a region: left, top, right, bottom."""
    if "xmin" in row:
        return [row[name] for name in _BOX_COLUMNS]
    return box_around(ring_points(row))


def box_around(rings: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """Return the upright box around points: left, top, right, bottom."""
    points = [point for ring in rings for point in ring]
    if not points:
        return [0.0, 0.0, 0.0, 0.0]
    across, down = zip(*points, strict=True)
    return [min(across), min(down), max(across), max(down)]


def summary(predictions: Sequence[Mapping[str, Any]]) -> str:
    """Return what there is in a few words, for a person."""
    texts = [str(row.get("label", row.get("answer", "?"))) for row in predictions]
    more = f" and {len(texts) - 5} more" if len(texts) > 5 else ""
    return f"{', '.join(texts[:5]) or 'nothing'}{more}"


def _float32(rows: Any, columns: int | None = None) -> "npt.NDArray[np.float32]":
    numpy = load_package("numpy", "predictions as an array")
    array: npt.NDArray[np.float32] = numpy.asarray(rows, dtype=numpy.float32)
    return array if columns is None else array.reshape(-1, columns)


def _area(rings: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Return the area within rings in pixels: outer rings and those of holes go opposite ways around."""
    total = 0.0
    for ring in rings:
        following = [*ring[1:], *ring[:1]]
        total += sum(x * v - u * y for (x, y), (u, v) in zip(ring, following, strict=True)) / 2
    return total
