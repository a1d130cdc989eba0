"""Reads the events that webhooks of Label Studio send.

Source: Label Studio, "Available Label Studio Webhooks" (Annotation Created, Updated and Deleted).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from quadriga.proto.errors import InvalidRequest, Unsupported
from quadriga.quoting import quoted
from quadriga.store.errors import JSON_ERRORS

STATED = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED", "ANNOTATIONS_CREATED")
DELETED = "ANNOTATIONS_DELETED"
TRAINING = "START_TRAINING"

MAX_ANNOTATIONS = 10_000
"""Maximum annotations of an event."""


class _Event(msgspec.Struct):
    action: str
    project: msgspec.Raw = msgspec.Raw(b"null")
    annotation: msgspec.Raw = msgspec.Raw(b"null")
    annotations: msgspec.Raw = msgspec.Raw(b"null")
    task: msgspec.Raw = msgspec.Raw(b"null")


class _Project(msgspec.Struct):
    id: int
    created_at: str


class _Annotation(msgspec.Struct):
    id: int
    task: int
    updated_at: str
    result: list[dict[str, Any]]
    was_cancelled: bool = False
    completed_by: Any = None


class _Task(msgspec.Struct):
    id: int
    data: dict[str, Any]


class _Deleted(msgspec.Struct):
    id: int


class ToolAnnotation(msgspec.Struct, frozen=True, kw_only=True):
    """An annotation of one task, as an event has it."""

    key: str
    """What tells the annotation from all others: `3.1764277000/12`."""
    task_key: str
    """What tells its task from all others: `3.1764277000/task 7`."""
    time: str
    """When it was changed last: `2026-11-27T20:54:05.123456Z`."""
    author: str
    """Who completed it, as Label Studio names the user: its number."""
    data: Mapping[str, Any]
    """Data of the task."""
    result: list[dict[str, Any]] | None
    """Regions and choices; None for a task that was skipped."""


class WebhookEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event; one of other things has neither list."""

    action: str
    stated: list[ToolAnnotation] = []
    project: str = ""
    """Name of the project, as of `project_uid`."""
    deleted: list[str] = []
    """Keys of the annotations that were deleted."""


def read_webhook(body: bytes) -> WebhookEvent:
    """Read the body of a webhook.

    Raises:
        InvalidRequest: It is no event of Label Studio, or has no payload.
        Unsupported: It asks for a training.
    """
    event = _decoded(body, _Event, "a body")
    if event.action == TRAINING:
        raise Unsupported("this server does not train: annotations are kept as ground truth")
    if event.action in STATED:
        uid = project_uid(_decoded(event.project, _Project, "project"))
        return WebhookEvent(action=event.action, stated=_stated(event, uid))
    if event.action == DELETED:
        uid = project_uid(_decoded(event.project, _Project, "project"))
        ids = _decoded(event.annotations, list[_Deleted], "annotations")
        _check_number(len(ids))
        deleted = [annotation_key(uid, item.id) for item in ids]
        return WebhookEvent(action=event.action, project=uid, deleted=deleted)
    return WebhookEvent(action=event.action)


def project_uid(project: _Project) -> str:
    """Return the name of a project as Label Studio sends it to ML backends: its number and when it was made."""
    return f"{project.id}.{int(_time(project.created_at, 'project.created_at').timestamp())}"


def task_key(uid: str, task_id: int) -> str:
    """Return what tells a task from those of other projects and other Label Studios."""
    return f"{uid}/task {task_id}"


def annotation_key(uid: str, annotation_id: int) -> str:
    """Return what tells an annotation from those of other projects and other Label Studios."""
    return f"{uid}/{annotation_id}"


def _stated(event: _Event, uid: str) -> list[ToolAnnotation]:
    if event.action == "ANNOTATIONS_CREATED":
        annotations = _decoded(event.annotation, list[_Annotation], "annotation")
        tasks = _decoded(event.task, list[_Task], "task")
    else:
        annotations = [_decoded(event.annotation, _Annotation, "annotation")]
        tasks = [_decoded(event.task, _Task, "task")]
    _check_number(len(annotations))
    data = {task.id: task.data for task in tasks}
    stated = []
    for item in annotations:
        if item.task not in data:
            raise InvalidRequest(f"expected the task {item.task} of annotation {item.id}, got none")
        changed = _time(item.updated_at, "annotation.updated_at").astimezone(UTC)
        stated.append(
            ToolAnnotation(
                key=annotation_key(uid, item.id),
                task_key=task_key(uid, item.task),
                time=changed.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                author=_author(item.completed_by),
                data=data[item.task],
                result=None if item.was_cancelled else item.result,
            )
        )
    return stated


def _author(completed_by: Any) -> str:
    """Return a user's email, where an installation sends that, or the user's number."""
    if isinstance(completed_by, dict):
        completed_by = completed_by.get("email") or completed_by.get("id")
    is_known = isinstance(completed_by, int | str) and not isinstance(completed_by, bool)
    return f"user {completed_by}"[:120] if is_known else "nobody known"


def _time(text: str, name: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"expected {name} to be a time, got {quoted(text, 60)}") from error


def _check_number(count: int) -> None:
    if count > MAX_ANNOTATIONS:
        raise InvalidRequest(f"expected at most {MAX_ANNOTATIONS} annotations, got {count}")


def _decoded(data: Any, type_: Any, name: str) -> Any:
    if bytes(data).strip() == b"null":
        raise InvalidRequest(
            f"{name} is required: switch on Send payload at the webhook in Label Studio"
        )
    try:
        return msgspec.json.decode(data, type=type_)
    except JSON_ERRORS as error:
        raise InvalidRequest(f"expected {name} of a Label Studio webhook, got: {error}") from error
