"""Why a filter finds nothing: it compares with a metadata key that no stored inference has."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import sqlalchemy as sa

from quadriga.quoting import MAX_HINTS, near_names, quoted
from quadriga.store.database.database import execute
from quadriga.store.database.schema import KeyType
from quadriga.store.query.filters.syntax import Compare, Range, leaves
from quadriga.store.query.inferences import InferenceReader, Page
from quadriga.store.query.paging import Count
from quadriga.store.query.request import QueryRequest
from quadriga.store.query.sql.catalog import Catalog
from quadriga.store.records.errors import NotReadyError, QueryTimeoutError
from quadriga.store.records.scope import Scope

_MAX_KNOWN = 10_000


def query_with_warnings(inferences: InferenceReader, request: QueryRequest) -> Page:
    """Return a page of matches, as `InferenceReader.query`; of a filter that finds nothing with its warnings."""
    page = inferences.query(request)
    if page.inferences or page.cursor is not None or request.cursor is not None or request.offset:
        return page
    warnings = unknown_key_warnings(inferences, request.where)
    return msgspec.structs.replace(page, warnings=warnings) if warnings else page


def count_with_warnings(inferences: InferenceReader, request: QueryRequest) -> Count:
    """Return the number of matches, as `InferenceReader.count`; of a filter that finds nothing with its warnings."""
    count = inferences.count(request)
    warnings = [] if count.count else unknown_key_warnings(inferences, request.where)
    return msgspec.structs.replace(count, warnings=warnings) if warnings else count


def unknown_key_warnings(inferences: InferenceReader, where: Any) -> list[str]:
    """Return a sentence about each metadata key of a filter that no stored inference has, with the key that is nearest.

    Of many keys the first five have one each; another says how many more there are. Nothing is said to who sees some models
    alone: whose keys there are, nothing tells apart. Nor is anything said where the database takes too long, as the answer
    that it would stand beside is there already.
    """
    scope = inferences.scope
    if scope.models:
        return []
    fields = [
        leaf.field
        for leaf in leaves(QueryRequest(where=where).parse_filter())
        if isinstance(leaf, Compare | Range) and leaf.field.startswith("meta.")
    ]
    paths = list(dict.fromkeys(field.removeprefix("meta.") for field in fields))
    if not paths:
        return []
    unknown: list[str] = []
    known: list[str] = []
    with suppress(QueryTimeoutError, NotReadyError), inferences.snapshot() as connection:
        catalog = Catalog(connection, scope, paths)
        unknown = [path for path in paths if not _is_known(catalog, path)]
        known = _known_paths(connection, scope) if unknown else []
    warnings = [_warning(path, known) for path in unknown[:MAX_HINTS]]
    return [*warnings, *_warning_of_more(len(unknown) - MAX_HINTS)]


def _warning_of_more(count: int) -> list[str]:
    if count <= 0:
        return []
    keys = "metadata key" if count == 1 else "metadata keys"
    return [f"no stored inference has {count:,} more {keys} of the filter"]


def _is_known(catalog: Catalog, path: str) -> bool:
    """Check whether an inference has a key, or may have: of a team with too many keys some are not indexed."""
    has_ids = any(catalog.key_ids(path, type_) for type_ in KeyType)
    return has_ids or not catalog.is_indexed(path)


def _known_paths(connection: sa.Connection, scope: Scope) -> list[str]:
    of_team, values = (" AND team = ?", (scope.team,)) if scope.team else ("", ())
    statement = f"SELECT DISTINCT path FROM meta_key WHERE path <> ''{of_team} LIMIT ?"
    return [path for (path,) in execute(connection, statement, (*values, _MAX_KNOWN))]


def _warning(path: str, known: Sequence[str]) -> str:
    near = near_names(path, known, 1)
    hint = f"; did you mean meta.{near[0]}?" if near else ""
    return f"no stored inference has the metadata key {quoted(path, 80)}{hint}"
