"""What the database knows by name: metadata keys, labels and models, as ids of its index tables."""

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa

from quadriga.store.database import execute, execute_in
from quadriga.store.schema import MAX_KEYS, KeyType

SHORT_TASK_NAMES = {
    "IMAGE_CLASSIFICATION": "classification",
    "OBJECT_DETECTION": "detection",
    "ORIENTED_OBJECT_DETECTION": "oriented",
    "IMAGE_SEGMENTATION": "segmentation",
    "IMAGE_TEXT_TO_TEXT": "image-text",
}
"""Short names of tasks."""


class ModelRow(NamedTuple):
    """A row of `model`."""

    id: int
    name: str
    version: str
    task: str


class Catalog:
    """Ids of what a filter names, as one snapshot of the database has them.

    A name keeps its id, so those found before are known of the connection. Of metadata, the paths
    to come are read at once.
    """

    def __init__(self, connection: sa.Connection, paths: Iterable[str] = ()) -> None:
        self._connection = connection
        self._keys: dict[str, dict[KeyType, int]] = connection.info.setdefault("keys", {})
        self._labels: dict[str, int] = connection.info.setdefault("labels", {})
        self._read_now: set[str] = set()
        self._read({path for path in paths if path not in self._keys})

    def key(self, path: str, type_: KeyType) -> int | None:
        """Return the id of a metadata key; `None` where nobody has it with a value of this type."""
        if type_ not in self._keys.get(path, ()):
            self._read({path})
        return self._keys.get(path, {}).get(type_)

    def is_indexed(self, path: str) -> bool:
        """Tell whether an index has all that metadata has at a path."""
        if path not in self._keys:
            self._read({path})
        return path in self._keys or not self._is_spent

    def label_ids(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the labels that have one of these names."""
        names = set(names)
        new = names - self._labels.keys()
        for name, number in execute_in(
            self._connection, "SELECT name, id FROM label WHERE name IN ({})", new
        ):
            self._labels[name] = int(number)
        return tuple(self._labels[name] for name in names if name in self._labels)

    def model_ids(self, field: str, names: Collection[Any]) -> tuple[int, ...]:
        """Return the models that have one of these names, versions or tasks, in any case."""
        wanted = {str(name).lower() for name in names}
        return tuple(model.id for model in self.models if wanted & _aliases(field, model))

    @cached_property
    def _is_spent(self) -> bool:
        there = execute(self._connection, "SELECT count(*) FROM meta_key").scalar_one()
        return int(there) >= MAX_KEYS

    @cached_property
    def models(self) -> list[ModelRow]:
        """All models."""
        rows: Iterable[Any] = execute(
            self._connection, "SELECT id, name, version, task FROM model"
        ).all()
        return [ModelRow(*row) for row in rows]

    def _read(self, paths: set[str]) -> None:
        new = paths - self._read_now
        text = "SELECT path, type, id FROM meta_key WHERE path IN ({})"
        for path, type_, number in execute_in(self._connection, text, new):
            self._keys.setdefault(path, {})[KeyType(type_)] = int(number)
        self._read_now |= new


def _aliases(field: str, model: ModelRow) -> set[str]:
    """Return what a model, or its task, may be called, in lower case."""
    if field == "model":
        name = model.name.lower()
        return {name, f"m-{name}", f"{name}:{model.version.lower()}"}
    if field == "version":
        return {model.version.lower()}
    return {model.task.lower(), SHORT_TASK_NAMES.get(model.task, model.task.lower())}
