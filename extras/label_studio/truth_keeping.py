"""Keeps annotations of Label Studio as ground truth, whatever the order and number of their events.

Each statement names its annotation and the time of its change in its source. The ground truth of an image is the
statement that was changed last, of those whose annotation is not deleted; what people state in other ways counts by when
they stated it. A statement that comes late is stated all the same, and the right one is stated again after it: so whoever
writes last, of several workers or servers, has seen all others. A deletion is stated under a key of the annotation, as its
event may come first and names no task.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from quadriga.extras.label_studio.webhook_events import ToolAnnotation
from quadriga.store.changes.ground_truth import StoredStatement
from quadriga.store.changes.tool_statements import (
    joined_values,
    statements_joined,
    statements_of_source,
)
from quadriga.store.changes.truth_service import GroundTruthService
from quadriga.store.errors import NotReadyError
from quadriga.store.ids import time_ms
from quadriga.store.inferences import InferenceReader
from quadriga.store.records import timestamp_text

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
