"""What a statement of ground truth is a truth of: the task that its annotations fit, and the inferences that it applies to.

A statement has a task and a model. An empty task means any, an empty model every one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from quadriga.store.records.errors import ChangeError

DEFAULT_OWNER = "default"
"""Owner of all statements, until several teams share a server."""

_KINDS = {
    "box": "boxes",
    "oriented": "oriented boxes",
    "contour": "contours",
    "answer": "answers",
    "label": "labels alone",
}
"""Kinds of annotations, as messages name them; a label alone comes last, because the others have labels too."""

_KEY_OF_KIND = {
    "xmin": "box",
    "cx": "oriented",
    "contour": "contour",
    "answer": "answer",
    "answers": "answer",
    "prompt": "answer",
}
_KINDS_OF_TASK = {
    "IMAGE_CLASSIFICATION": ("label",),
    "OBJECT_DETECTION": ("box",),
    "ORIENTED_OBJECT_DETECTION": ("oriented",),
    "IMAGE_SEGMENTATION": ("contour",),
    "IMAGE_TEXT_TO_TEXT": ("answer", "label"),
}
"""Kinds of annotations that an evaluation of each task reads; other tasks take any. A label alone is the first's."""

Annotations = Sequence[Mapping[str, Any]]


def annotated_task(annotations: Annotations) -> str | None:
    """Return the task that annotations in the wire form are of; None for an empty list, or if they are of several."""
    kinds = _kinds(annotations)
    fitting = (task for task, allowed in _KINDS_OF_TASK.items() if kinds <= {*allowed})
    return next(fitting, None) if kinds else None


def derived_task(annotations: Annotations | None, inference_task: str | None) -> str:
    """Return the task of a statement that names none, as one of a file may.

    Args:
        annotations: Annotations in the wire form.
        inference_task: Task of the inference that the statement is joined to by id, if that is stored.

    Returns:
        The inference's task if the annotations fit it, else the annotations' own; any task if there are none.
    """
    if inference_task is not None and fits(inference_task, annotations or ()):
        return inference_task
    kinds = _kinds(annotations or ())
    tasks_by_kind = {kinds_[0]: task for task, kinds_ in _KINDS_OF_TASK.items()}
    return next((tasks_by_kind[kind] for kind in _KINDS if kind in kinds), "")


def fits(task: str, annotations: Annotations) -> bool:
    """Check whether annotations in the wire form are of a task."""
    return task not in _KINDS_OF_TASK or _kinds(annotations) <= {*_KINDS_OF_TASK[task]}


def check_fit(task: str, annotations: Annotations, where: str = "annotations") -> None:
    """Check that annotations in the wire form are of a task.

    Raises:
        ChangeError: One is not; the message names the first, below `where`.
    """
    allowed = _KINDS_OF_TASK.get(task, tuple(_KINDS))
    for index, annotation in enumerate(annotations):
        kind = _kind(annotation)
        if kind not in allowed:
            expected = " or ".join(_KINDS[name] for name in allowed)
            raise ChangeError(
                f"{where}[{index}]: expected {expected} as ground truth of {task}, got one of {_KINDS[kind]}"
            )


def describe_kinds(annotations: Annotations) -> str:
    """Return the kinds that annotations in the wire form are of, as text."""
    kinds = _kinds(annotations)
    return " and ".join(name for kind, name in _KINDS.items() if kind in kinds)


def _kinds(annotations: Annotations) -> set[str]:
    return {_kind(annotation) for annotation in annotations}


def _kind(annotation: Mapping[str, Any]) -> str:
    return next((kind for key, kind in _KEY_OF_KIND.items() if key in annotation), "label")
