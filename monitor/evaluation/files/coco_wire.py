"""Converts COCO's annotations and results to the form of the wire: boxes by their edges, masks as contours."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quadriga.monitor.evaluation.files.coco import read_instances
from quadriga.monitor.evaluation.pixels.run_lengths import runs_from_segmentations
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationError
from quadriga.store.changes.annotations import parse_annotations
from quadriga.store.exchange.coco import (
    CocoAnnotation,
    CocoResult,
    Segmentation,
    annotations_by_image,
    labels_by_id,
)
from quadriga.store.exchange.text_files import decode_json
from quadriga.tasks.geometry import rings, to_points
from quadriga.tasks.predictions import BOX_KEYS, ltwh_to_xyxy


def coco_images(
    truth: Path, predictions: Path, task: str, ids: Collection[str]
) -> list[EvaluatedImage]:
    """Return the images with these ids from COCO's files, which `coco_state` has read before."""
    instances, images = read_instances(truth.read_bytes(), truth.name)
    results = decode_json(list[CocoResult], predictions.read_bytes(), predictions.name)
    labels = labels_by_id(instances.categories)
    sizes = {str(image.id): (image.width, image.height) for image in images}

    def items(rows: Sequence[CocoResult | CocoAnnotation]) -> dict[str, msgspec.Raw]:
        """Return the JSON of the items of each image."""
        by_image: dict[str, list[dict[str, Any]]] = {id_: [] for id_ in ids}
        for row in rows:
            id_ = str(row.image_id)
            if id_ in by_image and row.category_id in labels:
                score = {"score": row.score} if isinstance(row, CocoResult) else {}
                shape = _shape(task, row, sizes[id_], id_)
                by_image[id_].append({"label": labels[row.category_id], **score, **shape})
        return {id_: msgspec.Raw(msgspec.json.encode(rows)) for id_, rows in by_image.items()}

    predicted, annotated = items(results), items(instances.annotations)
    return [EvaluatedImage(id_, predicted[id_], annotated[id_], *sizes[id_]) for id_ in ids]


def annotated_images(
    data: bytes, name: str, task: str
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the file names of a file of instances, each with the annotations of the image.

    The task, its full name, decides whether boxes, oriented boxes, masks or only the labels count.
    """
    instances, images = read_instances(data, name)
    labels = labels_by_id(instances.categories)
    by_image = annotations_by_image(instances.annotations, labels, f"{name}: ")
    for image in images:
        annotations = []
        for index, row in by_image.get(image.id, []):
            location = f"{name}: annotations[{index}]"
            annotation: dict[str, Any] = {"label": labels[row.category_id]}
            if task != "IMAGE_CLASSIFICATION":
                annotation |= _shape(task, row, (image.width, image.height), location)
                annotation |= {"crowd": True} if row.crowd else {}
                annotation |= {} if row.area is None else {"area": row.area}
            if task != "IMAGE_CLASSIFICATION" or annotation not in annotations:
                annotations += parse_annotations([annotation], location)
        if image.file_name is None:
            raise EvaluationError(f"{name}: file_name is required for image {image.id!r}")
        yield image.file_name, annotations


def _shape(
    task: str, row: Any, size: tuple[int | None, int | None], location: str
) -> dict[str, Any]:
    """Return the shape of an annotation or a result of an image of that size, in the form of the task.

    A contour has the same pixels as the mask that it replaces.
    """
    if task == "IMAGE_SEGMENTATION":
        return {"contour": _contour(row.segmentation, size, location)}
    if task == "ORIENTED_OBJECT_DETECTION":
        if row.oriented_bbox is None:
            raise EvaluationError(f"{location}: oriented_bbox is required")
        return dict(row.oriented_bbox)
    if row.bbox is None:
        raise EvaluationError(f"{location}: bbox is required")
    return dict(zip(BOX_KEYS, ltwh_to_xyxy(*row.bbox), strict=True))


def _contour(
    segmentation: Segmentation | None, size: tuple[int | None, int | None], location: str
) -> list[list[dict[str, float]]]:
    width, height = size[0] or 0, size[1] or 0
    if width <= 0 or height <= 0:
        raise EvaluationError(f"{location}: expected width and height of the image, got {size}")
    runs = runs_from_segmentations(
        [segmentation], np.array([(width, height)], np.int64), lambda _: location
    )
    columns = np.zeros((width, height), np.uint8)
    for start, end in zip(runs.start.tolist(), runs.end.tolist(), strict=True):
        columns.ravel()[start:end] = 1
    outlines = rings(np.ascontiguousarray(columns.T))
    return [[{"x": point.x, "y": point.y} for point in to_points(ring)] for ring in outlines]
