"""COCO's file of instances as images with annotations in the form of the wire."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from monitor.evaluation.coco import read_truth
from monitor.evaluation.coco_wire import shape_of_coco
from monitor.evaluation.state import EvaluationError
from store.changes.annotations import annotations_of


class CocoImage(NamedTuple):
    """One image of a file of instances."""

    file_name: str
    truth: list[dict[str, Any]]


def read_instances(data: bytes, name: str, task: str) -> Iterator[CocoImage]:
    """Read a file of instances.

    Args:
        data: Its bytes.
        name: Of the file, for messages.
        task: Its full name: whether boxes, oriented boxes, masks or the labels alone count.

    Raises:
        EvaluationError: It is none, or its annotations are not of this task.
        ChangeError: An annotation means nothing.
    """
    known, images = read_truth(data, name)
    labels = {one.id: one.label for one in known.categories}
    by_image: dict[Any, list[tuple[int, Any]]] = {one.id: [] for one in images}
    for at, row in enumerate(known.annotations):
        if row.category_id not in labels:
            raise EvaluationError(
                f"{name}: annotations[{at}]: expected category_id to be one of the categories,"
                f" got {row.category_id}"
            )
        if row.image_id in by_image:
            by_image[row.image_id].append((at, row))
    for image in images:
        truth = []
        for at, row in by_image[image.id]:
            where = f"{name}: annotations[{at}]"
            one: dict[str, Any] = {"label": labels[row.category_id]}
            if task != "IMAGE_CLASSIFICATION":
                one |= shape_of_coco(task, row, (image.width, image.height), where)
                one |= {"crowd": True} if row.crowd else {}
                one |= {} if row.area is None else {"area": row.area}
            if task != "IMAGE_CLASSIFICATION" or one not in truth:
                truth += annotations_of([one], where)
        if image.file_name is None:
            raise EvaluationError(f"{name}: expected a file_name of image {image.id!r}, got none")
        yield CocoImage(image.file_name, truth)
