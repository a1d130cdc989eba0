"""COCO's files: their schema as two policies read it, the annotations of each image, and the form of a shape.

An import takes files of any tool and leaves out the geometry that it cannot use (`ImportedCocoInstances`). An evaluation
measures, so geometry has to be right (`CocoInstances`, `CocoResult`), while ids and names may be of more kinds.

Source: COCO, "Data format" and "Results format".
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import unquote

import msgspec

from quadriga.store.exchange.outlines import bridged, unbridged
from quadriga.store.exchange.predictions import label_of
from quadriga.store.exchange.text_files import decode_as, to_utf8
from quadriga.store.records.errors import QueryError
from quadriga.tasks.predictions import (
    BOX_KEYS,
    MAX_COORDINATE,
    ORIENTED_BOX_KEYS,
    XY,
    contour_area,
    is_inside,
    ltwh_to_xyxy,
    shape_of_json,
    xyxy_to_ltwh,
)

Coordinate = Annotated[float, msgspec.Meta(ge=-MAX_COORDINATE, le=MAX_COORDINATE)]
ImageId = int | str
FILE_NAME = re.compile(r"(?:instances|annotations)(?:[_-](\w+))?\.json", re.ASCII)
"""Name of a file of instances, and its split."""
_Side = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class RunLengths(msgspec.Struct, gc=False):
    """A mask as run lengths: counts of pixels outside and inside by turns, down the columns."""

    size: tuple[int, int]
    """Height and width of the image."""
    counts: str | list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]]


Segmentation = list[list[float]] | RunLengths
"""Polygons x, y, x, y ..., whose union is meant, or run lengths."""


class CocoImage(msgspec.Struct):
    """An image of `CocoInstances`."""

    id: ImageId
    width: _Side | None = None
    height: _Side | None = None
    file_name: str | None = None


class CocoCategory(msgspec.Struct):
    """A category of `CocoInstances`; without a name its id is the label."""

    id: int
    name: str | None = None

    @property
    def label(self) -> str:
        """Label of the category."""
        return str(self.id) if self.name is None else self.name


class CocoAnnotation(msgspec.Struct, gc=False):
    """An annotation of `CocoInstances`, ground truth of an evaluation."""

    image_id: ImageId
    category_id: int
    bbox: tuple[Coordinate, Coordinate, Coordinate, Coordinate] | None = None
    segmentation: Segmentation | None = None
    area: Coordinate | None = None
    crowd: int | bool = msgspec.field(name="iscrowd", default=0)
    difficult: ClassVar[bool] = False
    oriented_bbox: dict[str, float] | None = None
    """The extra key that an export writes: the oriented box in Chariot's form."""


class CocoInstances(msgspec.Struct):
    """A file of instances for an evaluation: all three lists are required, and geometry is checked."""

    images: list[msgspec.Raw]
    """Each a `CocoImage` with further keys, which slices may name."""
    categories: list[CocoCategory]
    annotations: list[CocoAnnotation]


class CocoResult(msgspec.Struct, gc=False):
    """A prediction in a file of results, for an evaluation."""

    image_id: ImageId
    category_id: int
    score: Coordinate
    bbox: tuple[Coordinate, Coordinate, Coordinate, Coordinate] | None = None
    segmentation: Segmentation | None = None


class ImportedCocoImage(msgspec.Struct):
    """An image of `ImportedCocoInstances`."""

    id: int
    file_name: str = ""
    inference: msgspec.Raw = msgspec.Raw(b"null")
    """The extra key that an export writes: the whole record."""


class ImportedCocoAnnotation(msgspec.Struct):
    """An annotation of `ImportedCocoInstances`; geometry of another form is left out."""

    image_id: int
    category_id: int
    bbox: list[float] = []
    segmentation: Any = None
    oriented_bbox: Any = None
    iscrowd: int = 0


class ImportedCocoInstances(msgspec.Struct):
    """A file of instances for an import: only images are required."""

    images: list[ImportedCocoImage]
    annotations: list[ImportedCocoAnnotation] = []
    categories: list[CocoCategory] = []


_AnyAnnotation = TypeVar("_AnyAnnotation", CocoAnnotation, ImportedCocoAnnotation)


def decode_imported(data: bytes) -> ImportedCocoInstances:
    """Read a file of instances for an import.

    Raises:
        QueryError: The file is not JSON of that form, or has an image twice.
    """
    text, expected = to_utf8(data, "COCO's JSON"), "expected COCO's JSON with images"
    instances: ImportedCocoInstances = decode_as(ImportedCocoInstances, text, expected)
    names = Counter(name for image in instances.images for name in (image.id, image.file_name))
    for name, times in names.items():
        if times > 1 and name:
            raise QueryError(f"expected each image once, got {name!r:.200} {times} times")
    return instances


def written_names(file_name: str) -> tuple[str, str, str]:
    """Return a file name as it is, with the separators of Windows as `/`, and with `%20` as a space, too."""
    slashed = file_name.replace("\\", "/")
    return file_name, slashed, unquote(slashed)


def labels_by_id(categories: Sequence[CocoCategory]) -> dict[int, str]:
    """Return the label of each category."""
    return {category.id: category.label for category in categories}


def annotations_by_image(
    annotations: Sequence[_AnyAnnotation], labels: Mapping[int, str], location: str = ""
) -> dict[Any, list[tuple[int, _AnyAnnotation]]]:
    """Return the annotations of each image, by its id, with their positions in the file.

    Raises:
        QueryError: An annotation is of no category; the message begins with `location`.
    """
    by_image: dict[Any, list[tuple[int, _AnyAnnotation]]] = {}
    for position, annotation in enumerate(annotations):
        if annotation.category_id not in labels:
            raise QueryError(
                f"{location}annotations[{position}]: expected category_id to be one of the categories,"
                f" got {annotation.category_id}"
            )
        by_image.setdefault(annotation.image_id, []).append((position, annotation))
    return by_image


def chariot_form(annotation: ImportedCocoAnnotation, label: str) -> dict[str, Any]:
    """Return an imported annotation in Chariot's form, with one shape: the most exact one that it has."""
    chariot: dict[str, Any] = {"class_label": label}
    if annotation.oriented_bbox:
        chariot["oriented_bbox"] = annotation.oriented_bbox
    elif isinstance(annotation.segmentation, list) and annotation.segmentation:
        chariot["contour"] = [
            [{"x": x, "y": y} for x, y in ring]
            for polygon in annotation.segmentation
            if isinstance(polygon, list)
            for ring in unbridged([*zip(polygon[::2], polygon[1::2], strict=False)])
        ]
    elif len(annotation.bbox) == 4:
        chariot["bbox"] = dict(zip(BOX_KEYS, ltwh_to_xyxy(*annotation.bbox), strict=True))
    return chariot | ({"crowd": True} if annotation.iscrowd else {})


def coco_form(
    item: Mapping[str, Any], size_wh: tuple[int | None, int | None], categories: dict[str, int]
) -> dict[str, Any] | None:
    """Return the keys that annotations and results share, for a prediction or an annotation; None without a label.

    Args:
        item: The prediction or annotation in the form of the wire.
        size_wh: Width and height of its image, pixels; None if unknown.
        categories: Id of each label; a new label is added.
    """
    label = label_of(item)
    if label is None:
        return None
    coco: dict[str, Any] = {"category_id": categories.setdefault(label, len(categories) + 1)}
    shape, (width, height) = shape_of_json(item), size_wh
    box = shape.upright_box(width, height)
    if box is None:
        return coco
    coco["bbox"] = list(xyxy_to_ltwh(box))
    rings = shape.rings
    if width is not None and height is not None and shape.oriented_box is not None:
        rings = [shape.oriented_corners(width, height) or []]
        coco["oriented_bbox"] = dict(zip(ORIENTED_BOX_KEYS, shape.oriented_box, strict=True))
    if rings:
        coco["segmentation"] = polygons(rings)
    xmin, ymin, xmax, ymax = box
    coco["area"] = contour_area(rings) if rings else (xmax - xmin) * (ymax - ymin)
    return coco


def polygons(rings: Sequence[Sequence[XY]]) -> list[list[float]]:
    """Return rings as COCO's polygons, x and y in turn.

    COCO fills the union of its polygons, a contour the points inside an odd number of rings. Where a ring
    lies in another, all become one polygon that goes along each and back: that fills the same.
    """
    is_nested = any(
        is_inside(inner[0], outer) for inner in rings for outer in rings if inner is not outer
    )
    if not is_nested:
        return [[value for point in ring for value in point] for ring in rings]
    return [[value for point in bridged(rings) for value in point]]
