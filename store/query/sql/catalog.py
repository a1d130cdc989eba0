"""Catalog: ids of the metadata keys, labels and models that a filter names."""

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from quadriga.store.database.database import execute, execute_in, fetch_all
from quadriga.store.database.rows import SELECT_MODELS, ModelRow
from quadriga.store.database.schema import KeyType
from quadriga.store.query.filters.syntax import MIN_HASH_DIGITS
from quadriga.store.records.records import is_replay
from quadriga.store.records.scope import Scope

CLASSIFICATION = "IMAGE_CLASSIFICATION"
"""Task whose inferences have one label: the best one, that of the highest score."""

SHORT_TASK_NAMES = {
    CLASSIFICATION: "classification",
    "OBJECT_DETECTION": "detection",
    "ORIENTED_OBJECT_DETECTION": "oriented",
    "IMAGE_SEGMENTATION": "segmentation",
    "IMAGE_TEXT_TO_TEXT": "image-text",
}
"""Short names of tasks."""


_ID_PREFIX = "m-"
_KeyIds = dict[str, dict[tuple[KeyType, str], int]]  # by path, then by type and team


def model_spellings(name: str) -> tuple[str, ...]:
    """Return the names of models that a name may mean, in lower case, the likeliest first; see `quadriga.store.query.names`."""
    lower_name = name.lower()
    return lower_name, lower_name.removeprefix(_ID_PREFIX), _ID_PREFIX + lower_name


def split_version(text: str) -> tuple[str, str]:
    """Return the name and the version of `name@version` or `name:version`; the version is empty without one.

    No model's name has one of these characters.
    """
    name, _, version = text.partition("@" if "@" in text.partition(":")[0] else ":")
    return name, version


class Catalog:
    """Ids of the names in a filter, in one snapshot of the database: those of a team, or of all teams for a scope of none.

    The ids of the metadata paths in `paths` are read at once. Replays are found by their names alone, unless they are
    wanted `with_replays`.
    """

    def __init__(
        self,
        connection: sa.Connection,
        scope: Scope,
        paths: Iterable[str] = (),
        *,
        with_replays: bool = False,
    ) -> None:
        self._connection = connection
        self._scope = scope
        self._with_replays = with_replays
        self._keys: _KeyIds = {}
        self._read_paths: set[str] = set()
        self._read(set(paths))

    def key_ids(self, path: str, type_: KeyType) -> tuple[int, ...]:
        """Return the ids of a metadata key, one for each team that has it with a value of this type."""
        self._read({path})
        return tuple(
            id_ for (key_type, _), id_ in self._keys.get(path, {}).items() if key_type == type_
        )

    def is_indexed(self, path: str) -> bool:
        """Check whether all values at a metadata path are indexed, of every team that may be seen."""
        self._read({path})
        full = {team for type_, team in self._keys.get("", ()) if type_ == KeyType.FULL}
        return full <= {team for _, team in self._keys.get(path, ())}

    def label_ids(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the ids of the labels with these names, one of each for each team that has it."""
        statement, values = self._of_team("SELECT id FROM label WHERE name IN ({})")
        rows = execute_in(self._connection, statement, set(names), values)
        return tuple(int(id_) for (id_,) in rows)

    def model_ids(self, field: str, names: Collection[Any]) -> tuple[int, ...]:
        """Return the ids of the models with one of these names, versions, hashes or tasks, ignoring case."""
        if field == "model":
            return tuple(id_ for name in names for id_ in self._ids_of_model(str(name)))
        requested = {str(name).lower() for name in names}
        if field == "model.sha256":
            return tuple(model.id for model in self.listed_models if _has_hash(model, requested))
        return tuple(model.id for model in self.listed_models if requested & _aliases(field, model))

    @property
    def hashed_model_ids(self) -> tuple[int, ...]:
        """The ids of the models whose file is known by its hash: of those served elsewhere it may not be."""
        return tuple(model.id for model in self.listed_models if model.sha256)

    def _ids_of_model(self, text: str) -> list[int]:
        """Return the ids of the versions of the model that a name means, or of one version by `name@version`."""
        name, version = split_version(text.lower())
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
    def models(self) -> list[ModelRow]:
        """The models that the scope admits."""
        team = self._scope.team
        of_team, values = (" WHERE team = ?", (team,)) if team else ("", ())
        rows = fetch_all(self._connection, SELECT_MODELS + of_team, values)
        models = [ModelRow(*row) for row in rows]
        return [model for model in models if self._scope.admits_model(model.name)]

    @cached_property
    def hides_replays(self) -> bool:
        """Whether there are replays that are not to be found without their names."""
        return not self._with_replays and any(is_replay(model.name) for model in self.models)

    @property
    def listed_models(self) -> list[ModelRow]:
        """The models that the scope admits, without replays if those are hidden."""
        if not self.hides_replays:
            return self.models
        return [model for model in self.models if not is_replay(model.name)]

    @cached_property
    def admitted_ids(self) -> tuple[int, ...] | None:
        """Ids of the models whose inferences may be found; None if all may."""
        if self.hides_replays:
            return tuple(model.id for model in self.listed_models)
        if self._scope.is_everything:
            return None
        if not self._scope.models:
            statement = "SELECT id FROM model WHERE team = ?"
            return tuple(
                id_ for (id_,) in fetch_all(self._connection, statement, (self._scope.team,))
            )
        return tuple(model.id for model in self.models)

    def _read(self, paths: set[str]) -> None:
        missing = paths - self._read_paths
        if not missing:
            return
        statement, values = self._of_team(
            "SELECT path, type, team, id FROM meta_key WHERE path IN ({})"
        )
        # Under the path "" stands which teams have more paths than are indexed.
        rows = execute_in(self._connection, statement, missing | {""}, values)
        for path, type_, team, id_ in rows:
            self._keys.setdefault(path, {})[KeyType(type_), team] = int(id_)
        self._read_paths |= missing | {""}

    def _of_team(self, statement: str) -> tuple[str, tuple[str, ...]]:
        """Return a statement with a condition for the team of the scope, and its bound values."""
        team = self._scope.team
        return (
            (statement.replace("WHERE", "WHERE team = ? AND"), (team,)) if team else (statement, ())
        )


def label_names(connection: sa.Connection, scope: Scope) -> dict[int, str]:
    """Return the names of the labels of a team by their ids, or those of all teams for a scope of none."""
    of_team, values = (" WHERE team = ?", (scope.team,)) if scope.team else ("", ())
    rows = execute(connection, f"SELECT id, name FROM label{of_team}", values)
    return dict(rows.all())


def _has_hash(model: ModelRow, texts: Iterable[str]) -> bool:
    """Check whether the hash of a model's file is one of these texts in lower case, or begins with one."""
    digest = model.sha256.lower()
    return any(
        text == digest or (len(text) >= MIN_HASH_DIGITS and digest.startswith(text))
        for text in texts
        if text
    )


def _aliases(field: str, model: ModelRow) -> set[str]:
    """Return the names of a model's version or task that a filter may use, in lower case."""
    if field == "version":
        return {model.version.lower()}
    return {model.task.lower(), SHORT_TASK_NAMES.get(model.task, model.task.lower())}
