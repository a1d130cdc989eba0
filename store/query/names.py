"""What names mean: of models everywhere, and of models, reports, ids and metadata keys in a filter.

A model is called by its folder's name or by its id `m-<name>`, in any letter case: every path, command and protocol finds it
by `find_model_name`. `resolve` goes through a filter once before it is planned; `Catalog` has the ids of what it names.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from quadriga.quoting import MAX_HINTS, MAX_MODEL_NAME, near_names, quoted
from quadriga.store.database.database import execute, execute_in, fetch_all
from quadriga.store.database.rows import SELECT_MODELS, ModelRow
from quadriga.store.database.schema import KeyType
from quadriga.store.query.filters.syntax import (
    MIN_HASH_DIGITS,
    Compare,
    Filter,
    IdList,
    Leaf,
    ReportCells,
    ResolvedFilter,
    leaves,
    map_leaves,
)
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.store.records.ids import LARGEST_ID
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
_MAX_LISTED = 5
_MAX_KNOWN_KEYS = 10_000
_NAMING = {"eq", "in"}
"""Operators by which a filter names what it means."""

_IS_NOT_STORED = "NOT EXISTS (SELECT 1 FROM inference AS i WHERE i.seq = r.seq)"

NamesOf = Callable[[], Collection[str]]

CellIds = Callable[[Scope, ReportCells], Iterable[int]]
"""Returns the inferences that some cells of a report list; a `NotFoundError` if the scope has no such report."""


def model_spellings(name: str) -> tuple[str, ...]:
    """Return the names of models that a name may mean, in lower case, the likeliest first."""
    lower_name = name.lower()
    return lower_name, lower_name.removeprefix(_ID_PREFIX), _ID_PREFIX + lower_name


def split_version(text: str) -> tuple[str, str]:
    """Return the name and the version of `name@version` or `name:version`; the version is empty without one.

    No model's name has one of these characters.
    """
    name, _, version = text.partition("@" if "@" in text.partition(":")[0] else ":")
    return name, version


def find_model_name(name: str, names: Iterable[str]) -> str | None:
    """Return which of some models a name means; None if it means none.

    The exact name comes first, then the name in another letter case, then the one that has `name` as its id, and
    last the one whose name is the id: with the folders `bar` and `m-bar`, `m-bar` is the second.
    """
    if len(name) > MAX_MODEL_NAME:
        return None
    names = set(names)
    if name in names:
        return name
    by_lower_case: dict[str, str] = {}
    for known in sorted(names):
        by_lower_case.setdefault(known.lower(), known)
    candidates = model_spellings(name)
    return next((by_lower_case[text] for text in candidates if text in by_lower_case), None)


class ModelNames:
    """The names of the models of a server and its store.

    Args:
        stored: Returns the names of models that have stored inferences, or had some.
        served: Returns the names of models that the server knows; None where the server is not asked, as in a job:
            then no name counts as unknown.
    """

    def __init__(self, stored: NamesOf, served: NamesOf | None = None) -> None:
        self._stored = stored
        self._served = served

    def resolve(self, name: str) -> str:
        """Return the name of the model that a name means.

        Raises:
            NotFoundError: No model of this name is served or stored; the message has names that are near.
        """
        served = set() if self._served is None else set(self._served())
        if (model_name := find_model_name(name, served)) is not None:
            return model_name
        names = served | set(self._stored())
        model_name = find_model_name(name, names)
        if model_name is not None:
            return model_name
        if self._served is None:
            return name
        raise NotFoundError(unknown_model_text(name, names))

    def check(self, name: str) -> None:
        """Check that a model is known, where names can be unknown; raises as `resolve`."""
        if self._served is not None:
            self.resolve(name)


def unknown_model_text(name: str, names: Collection[str]) -> str:
    """Return the error about a name that no model has, with the names that are near."""
    by_lower_case = {known.lower(): known for known in sorted(names)}
    near = [
        by_lower_case[match]
        for spelling in (model_spellings(name)[:2] if len(name) <= MAX_MODEL_NAME else ())
        for match in difflib.get_close_matches(spelling, by_lower_case, n=_MAX_LISTED)
    ]
    error = f"model not found: {quoted(name, 140)}"
    if near:
        return f"{error}; did you mean {' or '.join(dict.fromkeys(near))}?"
    if not names:
        return f"{error}; there is none"
    hidden_count = len(names) - _MAX_LISTED
    hidden = f" and {hidden_count} more" if hidden_count > 0 else ""
    return f"{error}; there are {', '.join(sorted(names)[:_MAX_LISTED])}{hidden}"


def resolve(
    tree: Filter, names: ModelNames, cell_ids: Callable[[ReportCells], Iterable[int]]
) -> ResolvedFilter:
    """Return what a filter means for its caller.

    Args:
        tree: The filter.
        names: The models that the caller may see; those that the filter names, with or without a version, must be known.
        cell_ids: As `CellIds`, for the scope of the caller; the ids stand in place of a report's cells.

    Raises:
        NotFoundError: The filter compares with a model or a report that is not known.
    """
    all_leaves = leaves(tree)
    compared = [leaf for leaf in all_leaves if isinstance(leaf, Compare)]
    named = [leaf for leaf in compared if leaf.operator in _NAMING]
    models = [
        split_version(str(value))[0]
        for leaf in named
        if leaf.field == "model"
        for value in leaf.values
    ]
    for model in models:
        names.check(model)
    has_cells = any(isinstance(leaf, ReportCells) for leaf in all_leaves)

    def listed(leaf: Leaf) -> Leaf:
        if isinstance(leaf, ReportCells):
            return IdList(tuple(sorted(set(cell_ids(leaf)))))
        return leaf

    return ResolvedFilter(
        map_leaves(tree, listed) if has_cells else tree,
        paths=tuple(leaf.field[5:] for leaf in compared if leaf.field.startswith("meta.")),
        ids=tuple(int(value) for leaf in named if leaf.field == "id" for value in leaf.values),
        with_replays=has_cells
        or any(map(is_replay, models))
        or any(leaf.field in {"id", "request_id"} for leaf in named)
        or any(leaf.field.startswith(("std.replay_of", "std.shadow")) for leaf in compared),
    )


def follow_ids(connection: sa.Connection, resolved: ResolvedFilter) -> ResolvedFilter:
    """Return a filter in which ids that lead to an inference, as `first_ids` tells, are that of the inference."""
    first = first_ids(connection, resolved.ids) if resolved.ids else {}
    if not first:
        return resolved

    def followed(leaf: Leaf) -> Leaf:
        if isinstance(leaf, Compare) and leaf.field == "id" and leaf.operator in _NAMING:
            values = tuple(first.get(int(value), value) for value in leaf.values)
            return Compare("id", leaf.operator, values if leaf.operator == "in" else values[0])
        return leaf

    return resolved._replace(tree=map_leaves(resolved.tree, followed))


def no_reports(_: Scope, cells: ReportCells) -> Iterable[int]:
    """Refuse the cells of a report where no reports are at hand."""
    raise QueryError(
        f"cannot find report {cells.report[:80]!r}: reports are with the server's data"
    )


def first_ids(connection: sa.Connection, seqs: Collection[int]) -> dict[int, int]:
    """Return the ids that are stored in place of those ids that lead to one; an id that is stored leads nowhere.

    Servers that share a database may both answer a request that is sent again under its idempotency key, each with an id of
    its own. One inference is stored; the other id leads to it for as long as it is there.
    """
    statement = (
        f"SELECT seq, first_seq FROM repeated_id AS r WHERE seq IN ({{}}) AND {_IS_NOT_STORED}"
    )
    rows = execute_in(connection, statement, [seq for seq in seqs if seq <= LARGEST_ID])
    return {int(seq): int(first_seq) for seq, first_seq in rows}


def repeated_ids(connection: sa.Connection, first_seqs: Collection[int]) -> list[int]:
    """Return the ids that lead to some inferences, rising."""
    statement = f"SELECT seq FROM repeated_id AS r WHERE first_seq IN ({{}}) AND {_IS_NOT_STORED}"
    return sorted(int(seq) for (seq,) in execute_in(connection, statement, first_seqs))


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


def unknown_key_warnings(
    connection: sa.Connection, scope: Scope, paths: Sequence[str]
) -> list[str]:
    """Return a sentence about each metadata key of a filter that no stored inference has, with the key that is nearest.

    Of many keys the first five have one each; another says how many more there are. Nothing is said to who sees some models
    alone: whose keys there are, nothing tells apart.
    """
    if scope.models or not paths:
        return []
    catalog = Catalog(connection, scope, paths)
    unknown = [path for path in dict.fromkeys(paths) if not _is_known(catalog, path)]
    if not unknown:
        return []
    of_team, values = (" AND team = ?", (scope.team,)) if scope.team else ("", ())
    statement = f"SELECT DISTINCT path FROM meta_key WHERE path <> ''{of_team} LIMIT ?"
    rows = execute(connection, statement, (*values, _MAX_KNOWN_KEYS))
    known = [path for (path,) in rows]
    warnings = []
    for path in unknown[:MAX_HINTS]:
        near = near_names(path, known, 1)
        hint = f"; did you mean meta.{near[0]}?" if near else ""
        warnings.append(f"no stored inference has the metadata key {quoted(path, 80)}{hint}")
    if (more := len(unknown) - MAX_HINTS) > 0:
        keys = "metadata key" if more == 1 else "metadata keys"
        warnings.append(f"no stored inference has {more:,} more {keys} of the filter")
    return warnings


def _is_known(catalog: Catalog, path: str) -> bool:
    """Check whether an inference has a key, or may have: of a team with too many keys some are not indexed."""
    has_ids = any(catalog.key_ids(path, type_) for type_ in KeyType)
    return has_ids or not catalog.is_indexed(path)
