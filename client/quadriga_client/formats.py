"""Predictions in the forms of other tools: supervision, COCO, YOLO."""

from collections.abc import Mapping, Sequence
from typing import Any

from .class_labels import ClassIds, number_labels
from .errors import InputError, load_package
from .results import SHAPE_KEYS, OrientedBoxes, box_xyxy, ring_points


def supervision_detections(result: Any, class_ids: ClassIds | None) -> Any:
    """Return `supervision.Detections`: boxes, with masks of regions and corners of rotated boxes.

    The labels are `data["class_name"]`; see `Result.to_supervision`.

    Raises:
        MissingPackage: supervision is not installed.
        InputError: The predictions have no shapes, as those of a classifier.
    """
    supervision = load_package("supervision", "to_supervision()")
    numpy = load_package("numpy", "to_supervision()")
    rows = shaped_rows(result)
    if not rows:
        return supervision.Detections.empty()
    labels = [str(row["label"]) for row in rows]
    numbers = number_labels(labels, class_ids, result.labels_of, 0)
    data: dict[str, Any] = {"class_name": numpy.array(labels)}
    if all("cx" in row for row in rows):
        data["xyxyxyxy"] = corners = OrientedBoxes(rows, lambda: result.image_size).corners
        xyxy = numpy.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    else:
        boxes = [[0.0] * 4 if "cx" in row else box_xyxy(row) for row in rows]
        xyxy = numpy.asarray(boxes, dtype=numpy.float32).reshape(-1, 4)
    masks = None
    if all("contour" in row for row in rows):
        size = result.image_size
        masks = numpy.stack([region.mask(size) for region in result.regions])
    return supervision.Detections(
        xyxy=xyxy,
        mask=masks,
        confidence=numpy.asarray([row.get("score") or 0.0 for row in rows], dtype=numpy.float32),
        class_id=numpy.asarray(numbers, dtype=int),
        data=data,
    )


def coco_annotations(
    result: Any, image_id: int, category_ids: ClassIds | None
) -> list[dict[str, Any]]:
    """Return annotations of COCO; see `Result.to_coco`.

    A region with holes is a list of rings here, of which COCO's own readers fill the union; rotated boxes are polygons.
    """
    rows = shaped_rows(result)
    labels = [str(row["label"]) for row in rows]
    numbers = number_labels(labels, category_ids, result.labels_of, 1)
    annotations = []
    for row, number in zip(rows, numbers, strict=True):
        rings = ring_points(row) if "contour" in row else []
        if "cx" in row:
            corners = OrientedBoxes([row], lambda: result.image_size).corners[0].tolist()
            rings = [[(across, down) for across, down in corners]]
        left, top, right, bottom = box_xyxy({"contour": _points(rings)} if rings else row)
        annotation = {
            "image_id": image_id,
            "category_id": number,
            "bbox": [left, top, right - left, bottom - top],
            "area": abs(_area(rings)) if rings else (right - left) * (bottom - top),
            "iscrowd": 0,
            "score": row.get("score"),
        }
        if rings:
            annotation["segmentation"] = [
                [float(value) for point in ring for value in point] for ring in rings
            ]
        annotations.append(annotation)
    return annotations


def yolo_lines(result: Any, class_ids: ClassIds | None) -> str:
    """Return lines of a YOLO label file; see `Result.to_yolo`.

    A box is its centre, width and height; a rotated box its four corners; a region its longest ring, as the format has no
    holes.
    """
    rows = shaped_rows(result)
    if not rows:
        return ""
    labels = [str(row["label"]) for row in rows]
    numbers = number_labels(labels, class_ids, result.labels_of, 0)
    width, height = result.image_size
    lines = []
    for row, number in zip(rows, numbers, strict=True):
        if "cx" in row:
            corners = OrientedBoxes([row], lambda: (width, height)).corners[0]
            values = [value for x, y in corners.tolist() for value in (x / width, y / height)]
        elif "contour" in row:
            longest = max(ring_points(row), key=len, default=[])
            values = [value for x, y in longest for value in (x / width, y / height)]
        else:
            left, top, right, bottom = box_xyxy(row)
            values = [(left + right) / 2 / width, (top + bottom) / 2 / height]
            values += [(right - left) / width, (bottom - top) / height]
        lines.append(" ".join([str(number), *(f"{value:.6f}" for value in values)]))
    return "\n".join(lines) + "\n"


def shaped_rows(result: Any) -> list[Mapping[str, Any]]:
    """Return the predictions with shapes.

    Raises:
        InputError: There are predictions, but none of them has a shape.
    """
    rows = [row for row in result.predictions if row.keys() & SHAPE_KEYS]
    if result.predictions and not rows:
        raise InputError(
            "expected boxes, rotated boxes or regions, got predictions without shapes: "
            f"{', '.join(result.predictions[0])}"
        )
    return rows


def _points(rings: Sequence[Sequence[tuple[float, float]]]) -> list[list[dict[str, float]]]:
    return [[{"x": across, "y": down} for across, down in ring] for ring in rings]


def _area(rings: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Return the area within rings in pixels: outer rings and those of holes go opposite ways around."""
    total = 0.0
    for ring in rings:
        following = [*ring[1:], *ring[:1]]
        total += sum(x * v - u * y for (x, y), (u, v) in zip(ring, following, strict=True)) / 2
    return total
