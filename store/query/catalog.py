"""Catalog: ids of the metadata keys, labels and models that a filter names."""

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa

from quadriga.store.database import execute, execute_in, fetch_all
from quadriga.store.schema import MAX_KEYS, KeyType
from quadriga.store.scope import Scope

SHORT_TASK_NAMES = {
    "IMAGE_CLASSIFICATION": "classification",
    "OBJECT_DETECTION": "detection",
    "ORIENTED_OBJECT_DETECTION": "oriented",
    "IMAGE_SEGMENTATION": "segmentation",
    "IMAGE_TEXT_TO_TEXT": "image-text",
}
"""Short names of tasks."""


_ID_PREFIX = "m-"


def model_spellings(name: str) -> tuple[str, ...]:
    """Return the names of models that a name may mean, in lower case, the likeliest first; see `quadriga.store.model_names`."""
    lower_name = name.lower()
    return lower_name, lower_name.removeprefix(_ID_PREFIX), _ID_PREFIX + lower_name


class ModelRow(NamedTuple):
    """Row of `model`."""

    id: int
    name: str
    version: str
    task: str
    team: str


class Catalog:
    """Ids of the names in a filter, in one snapshot of the database; of models, those that a scope admits.

    A name never changes its id, so ids are cached with the connection. The ids of the metadata paths in
    `paths` are read at once.
    """

    def __init__(self, connection: sa.Connection, scope: Scope, paths: Iterable[str] = ()) -> None:
        self._connection = connection
        self._scope = scope
        self._keys: dict[str, dict[KeyType, int]] = connection.info.setdefault("keys", {})
        self._labels: dict[str, int] = connection.info.setdefault("labels", {})
        self._read_paths: set[str] = set()
        self._read({path for path in paths if path not in self._keys})

    def key(self, path: str, type_: KeyType) -> int | None:
        """Return the id of a metadata key, or `None` if no inference has it with a value of this type."""
        if type_ not in self._keys.get(path, ()):
            self._read({path})
        return self._keys.get(path, {}).get(type_)

    def is_indexed(self, path: str) -> bool:
        """Check whether all values at a metadata path are indexed."""
        if path not in self._keys:
            self._read({path})
        return path in self._keys or not self._is_full

    def label_ids(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the ids of the labels with these names."""
        names = set(names)
        missing = names - self._labels.keys()
        for name, id_ in execute_in(
            self._connection, "SELECT name, id FROM label WHERE name IN ({})", missing
        ):
            self._labels[name] = int(id_)
        return tuple(self._labels[name] for name in names if name in self._labels)

    def model_ids(self, field: str, names: Collection[Any]) -> tuple[int, ...]:
        """Return the ids of the models with one of these names, versions or tasks, ignoring case."""
        if field == "model":
            return tuple(id_ for name in names for id_ in self._ids_of_model(str(name)))
        requested = {str(name).lower() for name in names}
        return tuple(model.id for model in self.models if requested & _aliases(field, model))

    def _ids_of_model(self, text: str) -> list[int]:
        """Return the ids of the versions of the model that a name means, or of one version by `name:version`."""
        name, _, version = text.lower().partition(":")
        for spelling in model_spellings(name):
            ids = [
                model.id
                for model in self.models
                if model.name.lower() == spelling and version in ("", model.version.lower())
            ]
            if ids:
                return ids
        return []

    @cached_property
    def _is_full(self) -> bool:
        key_count = execute(self._connection, "SELECT count(*) FROM meta_key").scalar_one()
        return int(key_count) >= MAX_KEYS

    @cached_property
    def models(self) -> list[ModelRow]:
        """The models that the scope admits."""
        select = "SELECT id, name, version, task, team FROM model"
        if self._scope.team:
            rows = fetch_all(self._connection, f"{select} WHERE team = ?", (self._scope.team,))
        else:
            rows = fetch_all(self._connection, select)
        models = [ModelRow(*row) for row in rows]
        return [model for model in models if self._scope.admits_model(model.name)]

    @cached_property
    def admitted_ids(self) -> tuple[int, ...] | None:
        """Ids of the models that the scope admits; None if it admits everything."""
        return None if self._scope.is_everything else tuple(model.id for model in self.models)

    def _read(self, paths: set[str]) -> None:
        missing = paths - self._read_paths
        statement = "SELECT path, type, id FROM meta_key WHERE path IN ({})"
        for path, type_, id_ in execute_in(self._connection, statement, missing):
            self._keys.setdefault(path, {})[KeyType(type_)] = int(id_)
        self._read_paths |= missing


def _aliases(field: str, model: ModelRow) -> set[str]:
    """Return the names of a model's version or task that a filter may use, in lower case."""
    if field == "version":
        return {model.version.lower()}
    return {model.task.lower(), SHORT_TASK_NAMES.get(model.task, model.task.lower())}
