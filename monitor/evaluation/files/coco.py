"""Reads COCO's files, instances and results: into an evaluation state, and as images in the form of the wire.

On the wire boxes have edges, and masks are contours.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import concat_tables, index_within_runs
from quadriga.monitor.evaluation.objects.detection import box_tables
from quadriga.monitor.evaluation.pixels.instances import mask_tables
from quadriga.monitor.evaluation.pixels.run_lengths import (
    masks_from_segmentations,
    runs_from_segmentations,
)
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    EvaluationState,
    ItemTable,
    Table,
    nonzero_counts,
    slice_values,
)
from quadriga.store.changes.annotations import parse_annotations
from quadriga.store.exchange.coco import (
    CocoAnnotation,
    CocoImage,
    CocoInstances,
    CocoResult,
    ImageId,
    Segmentation,
    annotations_by_image,
    labels_by_id,
)
from quadriga.store.exchange.text_files import decode_json
from quadriga.tasks import full_name
from quadriga.tasks.arrays import Float64Array, Int64Array
from quadriga.tasks.geometry import rings, to_points
from quadriga.tasks.predictions import BOX_KEYS, ltwh_to_xyxy

_PIXELS, _FEWEST = 1 << 30, 1 << 10
"""Maximum number of pixels of images whose masks are in memory at once, and the minimum counted per image; the
masks themselves take far less."""

_LONGEST = 1 << 19
"""Maximum side of an image, in pixels."""


def read_instances(data: bytes, name: str) -> tuple[CocoInstances, list[CocoImage]]:
    """Decode a file of instances, and its images."""
    instances: CocoInstances = decode_json(CocoInstances, data, name)
    images = [
        decode_json(CocoImage, image, f"{name}: images[{position}]")
        for position, image in enumerate(instances.images)
    ]
    return instances, images


def coco_state(
    truth: Path, predictions: Path, by: Sequence[str] = (), task: str | None = None
) -> tuple[str, EvaluationState]:
    """Read a file of instances and a file of results; return the full name of the task and a state to merge.

    Every image of the file of instances counts, with annotations or without. As in pycocotools, `iscrowd`
    makes a crowd, `area` decides about the size of an annotation, and `ignore` means nothing.

    Args:
        truth: File of instances: `images`, `categories`, `annotations`.
        predictions: File with a list of results, with `bbox` or with `segmentation`: run lengths or polygons.
        by: Keys to slice by: `meta.<key of an image>`.
        task: `OBJECT_DETECTION` or `IMAGE_SEGMENTATION`; None for masks if results have them, else boxes.

    Raises:
        EvaluationError: A file is not in COCO's format, or results are not of these images and categories.
        OSError: A file cannot be read.
    """
    instances, images = read_instances(truth.read_bytes(), truth.name)
    results: list[CocoResult] = decode_json(
        list[CocoResult], predictions.read_bytes(), predictions.name
    )
    task = _task_of(results, task)
    labels = [category.label for category in instances.categories]
    category_ids = [category.id for category in instances.categories]
    image_at = _numbered([image.id for image in images], f"{truth.name}: images: id")
    label_at = _numbered(category_ids, f"{truth.name}: categories: id")
    _numbered(labels, f"{truth.name}: categories: name")
    prediction_table = _table(predictions.name, results, image_at, label_at, are_listed=True)
    annotation_table = _table(
        f"{truth.name}: annotations", instances.annotations, image_at, label_at
    )
    sides = [(image.width or 0, image.height or 0) for image in images]
    sizes = np.array(sides, np.int64).reshape(-1, 2)
    ids = [str(image.id) for image in images]
    names = [image.file_name for image in images if image.file_name]
    return task, EvaluationState(
        ids=ids,
        images=names if len(set(names)) == len(ids) else ids,
        sizes=sizes,
        slices={key: _values(instances.images, key) for key in by},
        labels=labels,
        tables=_TABLES[task](prediction_table, annotation_table, sizes),
        excluded=nonzero_counts(
            unlisted_annotation=len(instances.annotations) - len(annotation_table.rows)
        ),
    )


def _task_of(results: Sequence[CocoResult], task: str | None) -> str:
    """Return the full name of a task, or of that of the results if none is named."""
    has_masks = any(result.segmentation is not None for result in results)
    name = full_name(task or ("IMAGE_SEGMENTATION" if has_masks else "OBJECT_DETECTION"))
    if name not in _TABLES:
        raise EvaluationError(f"expected {' or '.join(_TABLES)} as task, got {name!r:.80}")
    return name


def _numbered(names: Sequence[ImageId], location: str) -> dict[ImageId, int]:
    """Return the position of each name; names are distinct."""
    numbers = {name: index for index, name in enumerate(names)}
    if len(numbers) < len(names):
        repeated = next(name for index, name in enumerate(names) if numbers[name] != index)
        raise EvaluationError(f"{location}: expected each once, got {repeated!r:.80} twice")
    return numbers


def _table(
    name: str,
    rows: Sequence[CocoAnnotation | CocoResult],
    images: Mapping[ImageId, int],
    labels: Mapping[ImageId, int],
    *,
    are_listed: bool = False,
) -> ItemTable:
    """Build a table of annotations or results, sorted by image, without those of unlisted images and categories.

    If all have to be listed, the first that is not raises an `EvaluationError`.
    """
    count = len(rows)
    image = np.fromiter((images.get(row.image_id, -1) for row in rows), np.int64, count)
    label = np.fromiter((labels.get(row.category_id, -1) for row in rows), np.int64, count)
    is_listed = (image >= 0) & (label >= 0)
    if are_listed and not is_listed.all():
        index = int(np.argmin(is_listed))
        key, place = ("category_id", "categories") if image[index] >= 0 else ("image_id", "images")
        raise EvaluationError(
            f"{name}[{index}]: expected {key} to be one of the {place}, got {getattr(rows[index], key)!r}"
        )
    order = np.argsort(image, kind="stable")
    order = order[is_listed[order]]
    image = image[order]
    return ItemTable(
        [rows[at] for at in order.tolist()],
        {"image": image, "label": label[order], "number": index_within_runs(image)},
        lambda at: f"{name}[{order[at]}]",
    )


def _values(images: Sequence[msgspec.Raw], by: str) -> list[str | None]:
    """Return the value of the slice key of each image."""
    path = f"{by.removeprefix('meta.')}."
    fields_only = []
    for image in images:
        fields: dict[str, Any] = msgspec.json.decode(image)
        searched = {key: value for key, value in fields.items() if path.startswith(f"{key}.")}
        fields_only.append(EvaluatedImage("", metadata=searched))
    return slice_values(fields_only, by)


def _boxes(predictions: ItemTable, annotations: ItemTable, _: Int64Array) -> dict[str, Table]:
    def boxes(items: ItemTable) -> Float64Array:
        missing = 0, 0, -1, -1
        boxes = np.array([row.bbox or missing for row in items.rows], np.float64).reshape(-1, 4)
        expected = "bbox to be x, y, width and height"
        items.check(boxes[:, 2:].min(axis=1) >= 0, expected, lambda at: str(items.rows[at].bbox))
        return boxes

    return box_tables(predictions, boxes(predictions), annotations, boxes(annotations))


def _instances(
    predictions: ItemTable, annotations: ItemTable, sizes: Int64Array
) -> dict[str, Table]:
    """Return the tables of masks; see `quadriga.monitor.evaluation.pixels.instances`."""
    item_tables = predictions, annotations
    images = np.concatenate([table.table["image"] for table in item_tables])
    objects = np.bincount(images, minlength=len(sizes))
    chunk_index = np.cumsum(objects * np.maximum(sizes.prod(axis=1), _FEWEST)) // _PIXELS
    bounds = [0, *(np.flatnonzero(np.diff(chunk_index)) + 1).tolist(), len(sizes)]
    tables = []
    for span in pairwise(bounds):
        chunk_tables = [
            table.take(np.arange(*np.searchsorted(table.table["image"], span)))
            for table in item_tables
        ]
        masks = (
            masks_from_segmentations(
                [row.segmentation for row in table.rows], _sizes(table, sizes), table.locate
            )
            for table in chunk_tables
        )
        tables.append(mask_tables(*zip(chunk_tables, masks, strict=True)))
    return concat_tables(tables)


def _sizes(items: ItemTable, sizes: Int64Array) -> Int64Array:
    """Return the width and height of the image of each object, (N, 2)."""
    item_sizes = sizes[items.table["image"]]
    for row in np.flatnonzero(
        (item_sizes <= 0).any(axis=1) | (item_sizes > _LONGEST).any(axis=1)
    ).tolist():
        raise EvaluationError(
            f"image {items.rows[row].image_id!r}: expected width and height of 1 to {_LONGEST},"
            f" got {item_sizes[row, 0]} and {item_sizes[row, 1]}"
        )
    return item_sizes


_TABLES = {"OBJECT_DETECTION": _boxes, "IMAGE_SEGMENTATION": _instances}


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
