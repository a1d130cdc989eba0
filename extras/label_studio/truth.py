"""Annotations that webhooks of Label Studio send, as ground truth, whatever the order and number of their events.

Each statement names its annotation and the time of its change in its source. The ground truth of an image is the
statement that was changed last, of those whose annotation is not deleted; what people state in other ways counts by when
they stated it. A statement that comes late is stated all the same, and the right one is stated again after it: so whoever
writes last, of several workers or servers, has seen all others. A deletion is stated under a key of the annotation, as its
event may come first and names no task.

Source: Label Studio, "Available Label Studio Webhooks" (Annotation Created, Updated and Deleted).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from quadriga.proto.errors import InvalidRequest, Unsupported
from quadriga.quoting import quoted
from quadriga.store.changes.ground_truth import (
    StoredStatement,
    joined_values,
    statements_joined,
    statements_of_source,
)
from quadriga.store.changes.truth_service import GroundTruthService
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import JSON_ERRORS, NotReadyError
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import timestamp_text

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


METADATA_KEY = "label_studio"
"""Key of the metadata that tells which task an inference was made for."""

JOIN = f"meta.{METADATA_KEY}"
MAX_ROUNDS = 5
"""Times that the right statement is stated again, as others write meanwhile."""

_SOURCE = re.compile(r"Label Studio (\S+/[0-9]+) at ([0-9T:.Z-]+) by .*", re.DOTALL)
_MAX_SOURCE_CHARACTERS = 250


class Target(msgspec.Struct, frozen=True):
    """What statements about one image are joined to."""

    join: str
    value: str
    task: str | None
    """Full name of the task; None for that of the inference."""
    model: str = ""
    """Model that the statements are limited to; empty for every one."""


class ToolTruth:
    """States ground truth within the scope of a caller.

    Args:
        inferences: Reads the store within the scope.
        ground_truth: States within the scope.
    """

    def __init__(self, inferences: InferenceReader, ground_truth: GroundTruthService) -> None:
        self._inferences = inferences
        self._ground_truth = ground_truth
        self._owner = inferences.scope.owner

    def state(
        self, annotation: ToolAnnotation, target: Target, truth: list[dict[str, Any]] | None
    ) -> bool:
        """State an annotation as the ground truth of a target; return whether it was new.

        Args:
            annotation: The annotation.
            target: The image.
            truth: Its annotations in the form of the wire; None for a task that was skipped.
        """
        source = _source(annotation)
        known = [_key_and_time(statement) for statement in self._statements(target)]
        is_new = not any(
            key == annotation.key and time >= annotation.time for key, time in known
        ) and not self._deleted([annotation.key])
        if is_new:
            self._write(target, truth, source)
        self._settle(target)
        return is_new

    def withdraw(self, uid: str, keys: Collection[str], task: str, model: str) -> int:
        """Withdraw the deleted annotations of a project; return the number of images that they were stated for.

        Args:
            uid: Name of the project.
            keys: Keys of the annotations.
            task: Full name of the task of the model.
            model: Model that the statements of the deletion are limited to; empty for every one.
        """
        source = f"Label Studio {uid} deleted"
        new = sorted({*keys} - self._deleted(keys))
        self._write_all(Target(JOIN, "", task, model), new, None, source)
        targets = self._targets(uid, {*keys}, task)
        emptied: dict[Target, list[str]] = {}
        for target in targets:
            newest, best = self._newest_and_best(target)
            if newest is not None and best is None and newest.annotations is not None:
                group = msgspec.structs.replace(target, value="")
                emptied.setdefault(group, []).append(target.value)
        for group, values in emptied.items():
            self._write_all(group, values, None, source)
        for target in targets:
            self._settle(target)
        return len(targets)

    def _targets(self, uid: str, keys: Collection[str], task: str) -> list[Target]:
        """Return the images that annotations of a project were stated for."""
        targets = set()
        with self._inferences.snapshot() as connection:
            prefix = f"Label Studio {uid}/"
            for join, value, model, source in statements_of_source(connection, prefix, self._owner):
                match = _SOURCE.fullmatch(source)
                if match is not None and match[1] in keys:
                    targets.add(Target(join, value, None if join == "id" else task, model))
        return sorted(targets, key=lambda target: (target.join, target.value, target.model))

    def _settle(self, target: Target) -> None:
        """State the right statement of a target again until it is the newest one."""
        for _ in range(MAX_ROUNDS):
            newest, best = self._newest_and_best(target)
            if newest is None:
                return
            source = newest.source if best is None else best.source
            text = None if best is None else best.annotations
            if text == newest.annotations and (text is None or source == newest.source):
                return
            annotations = None if text is None else msgspec.json.decode(text)
            if best is None:
                source = f"Label Studio {_key_and_time(newest)[0].partition('/')[0]} deleted"
            review = "" if best is None else best.review
            self._write(target, annotations, source, review)
        raise NotReadyError("the ground truth of the task changes all the time: send it again")

    def _newest_and_best(
        self, target: Target
    ) -> tuple[StoredStatement | None, StoredStatement | None]:
        """Return the statement that holds, and the one that should; None for none."""
        statements = self._statements(target)
        if not statements:
            return None, None
        keys = {key for key, _ in map(_key_and_time, statements) if key}
        return statements[0], _latest(statements, self._deleted(keys))

    def _statements(self, target: Target) -> list[StoredStatement]:
        with self._inferences.snapshot() as connection:
            return statements_joined(connection, target.join, target.value, self._owner)

    def _deleted(self, keys: Collection[str]) -> set[str]:
        with self._inferences.snapshot() as connection:
            return joined_values(connection, JOIN, keys, self._owner)

    def _write(
        self,
        target: Target,
        truth: list[dict[str, Any]] | None,
        source: str,
        review: str = "",
    ) -> None:
        self._write_all(target, [target.value], truth, source=source, review=review)

    def _write_all(
        self,
        target: Target,
        values: Collection[str],
        truth: list[dict[str, Any]] | None,
        source: str,
        review: str = "",
    ) -> None:
        """State the same for the images of several values."""
        if not values:
            return
        body = {
            "join": target.join,
            "items": [{"value": value, "annotations": truth} for value in values],
            "source": source,
            "task": target.task,
            "model": target.model or None,
            "review": review or None,
        }
        self._ground_truth.add_statements(msgspec.json.encode(body))


def _source(annotation: ToolAnnotation) -> str:
    text = f"Label Studio {annotation.key} at {annotation.time} by {annotation.author}"
    return text[:_MAX_SOURCE_CHARACTERS]


def _key_and_time(statement: StoredStatement) -> tuple[str, str]:
    """Return the annotation of a statement, empty for one that people made elsewhere, and the time of its change."""
    match = _SOURCE.fullmatch(statement.source)
    if match is None:
        return "", timestamp_text(time_ms(statement.id))
    return match[1], match[2]


def _latest(
    statements: Sequence[StoredStatement], deleted: Collection[str]
) -> StoredStatement | None:
    """Return the statement that was changed last and holds; None if there is none."""
    latest_of: dict[str, StoredStatement] = {}
    others = []
    for statement in statements:  # the newest first
        key, time = _key_and_time(statement)
        if not key and re.fullmatch(r"Label Studio \S+ deleted", statement.source):
            continue
        if not key:
            others.append(statement)
        elif key not in deleted:
            known = latest_of.get(key)
            if known is None or _key_and_time(known)[1] < time:
                latest_of[key] = statement
    holding = [*latest_of.values(), *others]
    return max(holding, key=lambda item: (_key_and_time(item)[1], item.id), default=None)
