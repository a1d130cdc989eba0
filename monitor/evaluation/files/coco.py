"""COCO's files, of what is true and of what a model found, as a state."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import end_to_end, within
from quadriga.monitor.evaluation.evaluators import decode
from quadriga.monitor.evaluation.item_tables import Listed
from quadriga.monitor.evaluation.objects.detection import box_tables
from quadriga.monitor.evaluation.pixels.instances import mask_tables
from quadriga.monitor.evaluation.pixels.run_lengths import masks_of
from quadriga.monitor.evaluation.slicing import slice_values
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    State,
    Table,
    counted,
)
from quadriga.store.exchange.coco import (
    CocoAnnotation,
    CocoImage,
    CocoInstances,
    CocoResult,
    ImageId,
)
from quadriga.tasks import full_name
from quadriga.tasks.arrays import Float64Array, Int64Array

_PIXELS, _FEWEST = 1 << 30, 1 << 10
"""Of the images of the masks that are held at once, an image counting as so many at least; the masks
themselves take far less."""

_LONGEST = 1 << 19
"""Pixels of a side of an image."""


def read_instances(data: bytes, name: str) -> tuple[CocoInstances, list[CocoImage]]:
    """Read a file of instances; also gives its images."""
    instances: CocoInstances = decode(CocoInstances, data, name)
    images = [
        decode(CocoImage, image, f"{name}: images[{position}]")
        for position, image in enumerate(instances.images)
    ]
    return instances, images


def state_of_coco(
    truth: Path, predictions: Path, by: Sequence[str] = (), task: str | None = None
) -> tuple[str, State]:
    """Turn a file of instances and one of results into the full name of the task and a state for `merge`.

    Every image of the file of instances counts, with annotations or without. As in pycocotools, `iscrowd`
    makes a crowd, `area` decides about the size of an annotation, and `ignore` means nothing.

    Args:
        truth: Instances: `images`, `categories`, `annotations`.
        predictions: A list of results, with `bbox` or with `segmentation`: run lengths or polygons.
        by: What is to be sliced by: `meta.<key of an image>`.
        task: `OBJECT_DETECTION` or `IMAGE_SEGMENTATION`; without it masks if results have them, else boxes.

    Raises:
        EvaluationError: A file is none of COCO's, or results are not of these images and categories.
        OSError: A file cannot be read.
    """
    known, images = read_instances(truth.read_bytes(), truth.name)
    answers: list[CocoResult] = decode(list[CocoResult], predictions.read_bytes(), predictions.name)
    has_masks = any(one.segmentation is not None for one in answers)
    task = full_name(task or ("IMAGE_SEGMENTATION" if has_masks else "OBJECT_DETECTION"))
    if task not in _TABLES:
        raise EvaluationError(f"expected {' or '.join(_TABLES)} as task, got {task!r:.80}")
    labels = [one.label for one in known.categories]
    image_at = _numbered([one.id for one in images], f"{truth.name}: images: id")
    label_at = _numbered([one.id for one in known.categories], f"{truth.name}: categories: id")
    _numbered(labels, f"{truth.name}: categories: name")
    found = _listed(predictions.name, answers, image_at, label_at)
    there = _listed(f"{truth.name}: annotations", known.annotations, image_at, label_at)
    if len(found.rows) < len(answers):
        raise EvaluationError(_stray(predictions.name, answers, image_at, label_at))
    sizes = np.array([(one.width or 0, one.height or 0) for one in images], np.int64).reshape(-1, 2)
    ids = [str(one.id) for one in images]
    names = [one.file_name for one in images if one.file_name]
    return task, State(
        ids,
        names if len(set(names)) == len(ids) else ids,
        sizes,
        {name: _values(known.images, name) for name in by},
        labels,
        _TABLES[task](found, there, sizes),
        counted(unlisted_annotation=len(known.annotations) - len(there.rows)),
    )


def _numbered(names: Sequence[ImageId], place: str) -> dict[ImageId, int]:
    """Return the position of each name."""
    numbers = {name: at for at, name in enumerate(names)}
    if len(numbers) < len(names):
        twice = next(name for at, name in enumerate(names) if numbers[name] != at)
        raise EvaluationError(f"{place}: expected each once, got {twice!r:.80} twice")
    return numbers


def _listed(
    name: str,
    rows: Sequence[CocoAnnotation | CocoResult],
    images: Mapping[ImageId, int],
    labels: Mapping[ImageId, int],
) -> Listed:
    """Sort annotations or results by image, without those of other images and categories."""
    count = len(rows)
    image = np.fromiter((images.get(row.image_id, -1) for row in rows), np.int64, count)
    label = np.fromiter((labels.get(row.category_id, -1) for row in rows), np.int64, count)
    order = np.argsort(image, kind="stable")
    order = order[(image[order] >= 0) & (label[order] >= 0)]
    image = image[order]
    return Listed(
        [rows[at] for at in order.tolist()],
        {"image": image, "label": label[order], "number": within(image)},
        lambda at: f"{name}[{order[at]}]",
    )


def _stray(
    name: str,
    answers: list[CocoResult],
    images: Mapping[ImageId, int],
    labels: Mapping[ImageId, int],
) -> str:
    """Tell which result is of none of the images or categories."""
    for at, one in enumerate(answers):
        if one.image_id not in images:
            return f"{name}[{at}]: expected image_id to be one of the images, got {one.image_id!r}"
        if one.category_id not in labels:
            break
    return f"{name}[{at}]: expected category_id to be one of the categories, got {one.category_id}"


def _values(images: Sequence[msgspec.Raw], by: str) -> list[str | None]:
    """Return the value that each image is sliced by."""
    path = f"{by.removeprefix('meta.')}."
    known = []
    for image in images:
        fields: dict[str, Any] = msgspec.json.decode(image)
        searched = {key: value for key, value in fields.items() if path.startswith(f"{key}.")}
        known.append(EvaluatedImage("", metadata=searched))
    return slice_values(known, by)


def _boxes(found: Listed, there: Listed, _: Int64Array) -> dict[str, Table]:
    def boxes(listed: Listed) -> Float64Array:
        none = 0, 0, -1, -1
        found = np.array([row.bbox or none for row in listed.rows], np.float64).reshape(-1, 4)
        expected = "bbox to be x, y, width and height"
        listed.check(found[:, 2:].min(axis=1) >= 0, expected, lambda at: str(listed.rows[at].bbox))
        return found

    return box_tables(found, boxes(found), there, boxes(there))


def _instances(found: Listed, there: Listed, sizes: Int64Array) -> dict[str, Table]:
    """Return the tables of masks, as `quadriga.monitor.evaluation.pixels.instances` has them."""
    both = found, there
    images = np.concatenate([one.table["image"] for one in both])
    objects = np.bincount(images, minlength=len(sizes))
    parts = np.cumsum(objects * np.maximum(sizes.prod(axis=1), _FEWEST)) // _PIXELS
    bounds = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(sizes)]
    tables = []
    for span in pairwise(bounds):
        some = [one.of(np.arange(*np.searchsorted(one.table["image"], span))) for one in both]
        masks = (
            masks_of([row.segmentation for row in one.rows], _sizes(one, sizes), one.where)
            for one in some
        )
        tables.append(mask_tables(*zip(some, masks, strict=True)))
    return end_to_end(tables)


def _sizes(listed: Listed, sizes: Int64Array) -> Int64Array:
    """Return (N, 2) the size of the image of each object."""
    of = sizes[listed.table["image"]]
    for at in np.flatnonzero((of <= 0).any(axis=1) | (of > _LONGEST).any(axis=1)).tolist():
        raise EvaluationError(
            f"image {listed.rows[at].image_id!r}: expected width and height of 1 to {_LONGEST},"
            f" got {of[at, 0]} and {of[at, 1]}"
        )
    return of


_TABLES = {"OBJECT_DETECTION": _boxes, "IMAGE_SEGMENTATION": _instances}
