"""COCO's annotations and results in the form of the wire: boxes by their edges, masks as contours."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quadriga.monitor.evaluation.evaluators import decode
from quadriga.monitor.evaluation.files.coco import read_instances
from quadriga.monitor.evaluation.pixels.run_lengths import runs_of
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationError
from quadriga.store.changes.annotations import parse_annotations
from quadriga.store.errors import QueryError
from quadriga.store.exchange.coco import (
    CocoResult,
    Segmentation,
    annotations_by_image,
    labels_by_id,
)
from quadriga.tasks.contours import rings, to_points
from quadriga.tasks.shapes import BOX_KEYS, ltwh_to_xyxy


def images_of_coco(
    truth: Path, predictions: Path, task: str, ids: Collection[str]
) -> list[EvaluatedImage]:
    """Return some images of COCO's files, which `state_of_coco` has read, by their ids."""
    known, images = read_instances(truth.read_bytes(), truth.name)
    answers = decode(list[CocoResult], predictions.read_bytes(), predictions.name)
    labels = labels_by_id(known.categories)
    sizes = {str(one.id): (one.width, one.height) for one in images}
    sides: tuple[dict[str, Any], ...] = ({one: [] for one in ids}, {one: [] for one in ids})
    for side, rows in zip(sides, (answers, known.annotations), strict=True):
        for row in rows:
            image = str(row.image_id)
            if image in side and row.category_id in labels:
                score = {"score": row.score} if side is sides[0] else {}
                shape = _shape(task, row, sizes[image], image)
                side[image].append({"label": labels[row.category_id], **score, **shape})
    found, there = sides
    return [EvaluatedImage(one, _raw(found[one]), _raw(there[one]), *sizes[one]) for one in ids]


def annotated_images(
    data: bytes, name: str, task: str
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Read a file of instances as names of images' files, each with what is true of the image.

    The task, its full name, says whether boxes, oriented boxes, masks or the labels alone count.
    """
    known, images = read_instances(data, name)
    labels = labels_by_id(known.categories)
    try:
        by_image = annotations_by_image(known.annotations, labels, f"{name}: ")
    except QueryError as error:
        raise EvaluationError(str(error)) from error
    for image in images:
        truth = []
        for at, row in by_image.get(image.id, []):
            where = f"{name}: annotations[{at}]"
            one: dict[str, Any] = {"label": labels[row.category_id]}
            if task != "IMAGE_CLASSIFICATION":
                one |= _shape(task, row, (image.width, image.height), where)
                one |= {"crowd": True} if row.crowd else {}
                one |= {} if row.area is None else {"area": row.area}
            if task != "IMAGE_CLASSIFICATION" or one not in truth:
                truth += parse_annotations([one], where)
        if image.file_name is None:
            raise EvaluationError(f"{name}: expected a file_name of image {image.id!r}, got none")
        yield image.file_name, truth


def _shape(task: str, row: Any, size: tuple[int | None, int | None], where: str) -> dict[str, Any]:
    """Return the shape of an annotation or a result of an image of that size, as the task has it.

    A contour is filled to the same pixels as the mask it stands for.
    """
    if task == "IMAGE_SEGMENTATION":
        return {"contour": _contour(row.segmentation, size, where)}
    if task == "ORIENTED_OBJECT_DETECTION":
        if row.oriented_bbox is None:
            raise EvaluationError(f"{where}: expected an oriented_bbox, got none")
        return dict(row.oriented_bbox)
    if row.bbox is None:
        raise EvaluationError(f"{where}: expected a bbox, got none")
    return dict(zip(BOX_KEYS, ltwh_to_xyxy(*row.bbox), strict=True))


def _contour(
    segmentation: Segmentation | None, size: tuple[int | None, int | None], where: str
) -> list[list[dict[str, float]]]:
    width, height = size[0] or 0, size[1] or 0
    if width <= 0 or height <= 0:
        raise EvaluationError(f"{where}: expected width and height of the image, got {size}")
    runs = runs_of([segmentation], np.array([(width, height)], np.int64), lambda _: where)
    columns = np.zeros((width, height), np.uint8)
    for start, end in zip(runs.start.tolist(), runs.end.tolist(), strict=True):
        columns.ravel()[start:end] = 1
    outlines = rings(np.ascontiguousarray(columns.T))
    return [[{"x": one.x, "y": one.y} for one in to_points(ring)] for ring in outlines]


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
