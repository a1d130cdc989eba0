"""What names mean: of models everywhere, and of models, reports, ids and metadata keys in a filter.

A model is called by its folder's name or by its id `m-<name>`, in any letter case: every path, command and protocol finds it
by `find_model_name`. `resolve` goes through a filter once before it is planned.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Sequence

import sqlalchemy as sa

from quadriga.quoting import MAX_HINTS, MAX_MODEL_NAME, near_names, quoted
from quadriga.store.database.database import execute, execute_in
from quadriga.store.database.schema import KeyType
from quadriga.store.query.filters.syntax import (
    Compare,
    Filter,
    IdList,
    Leaf,
    ReportCells,
    ResolvedFilter,
    leaves,
    map_leaves,
)
from quadriga.store.query.sql.catalog import Catalog, model_spellings, split_version
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.store.records.ids import LARGEST_ID
from quadriga.store.records.records import is_replay
from quadriga.store.records.scope import Scope

_MAX_LISTED = 5

_MAX_KNOWN_KEYS = 10_000
_NAMING = {"eq", "in"}
"""Operators by which a filter names what it means."""

_IS_NOT_STORED = "NOT EXISTS (SELECT 1 FROM inference AS i WHERE i.seq = r.seq)"

NamesOf = Callable[[], Collection[str]]

CellIds = Callable[[Scope, ReportCells], Iterable[int]]
"""Returns the inferences that some cells of a report list; a `NotFoundError` if the scope has no such report."""


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
