"""Adds up rollups, group by group."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from store.database import marks, run
from store.errors import QueryError
from store.query.catalog import Catalog
from store.query.syntax import And, Compare, Filter, Not, Or
from store.rollups import MINUTE_MS, Tally, decoded

MAX_MINUTES = 250_000
"""Rows of rollups whose latencies or labels are added up."""

MAX_GROUPS = 10_000
NAMES = ("model", "version", "task")
"""What inferences are grouped by beside time and label."""

_MINUTE_US = MINUTE_MS * 1000
_LATEST = 1 << 40
_NOTHING = "'{}'"


class Grouping(NamedTuple):
    """What tells groups apart."""

    names: tuple[str, ...]
    """Among `NAMES`."""
    width_ms: int = 0
    """Of a group by time; 0 is none."""
    offset_ms: int = 0
    """Of the first of them, since 1970."""
    by_label: bool = False


class Groups:
    """Tallies of groups: by the time at which a group begins, in milliseconds since 1970, then by names."""

    def __init__(self, grouping: Grouping) -> None:
        self.grouping = grouping
        self.tallies: dict[tuple[Any, ...], Tally] = {}
        self.labels: dict[int, str] = {}
        """Names of the labels that the tallies count by number."""

    def of(self, at_ms: int, names: Mapping[str, str]) -> Tally:
        """Return the tally of the group that an inference of this time and these names belongs to."""
        grouping, start_ms = self.grouping, 0
        if grouping.width_ms:
            start_ms = at_ms - (at_ms - grouping.offset_ms) % grouping.width_ms
        key = (start_ms, *(names[name] for name in grouping.names))
        tally = self.tallies.get(key)
        if tally is None:
            if len(self.tallies) >= MAX_GROUPS:
                raise QueryError(f"expected at most {MAX_GROUPS:,} groups, got more; narrow it")
            tally = self.tallies[key] = Tally()
        return tally


class Span(NamedTuple):
    """A filter that rollups can answer."""

    first: int
    """Minute since 1970."""
    after: int
    conditions: tuple[Filter, ...]
    """On model, version and task alone."""


def span_of(tree: Filter) -> Span | None:
    """Return what rollups can answer of a filter; None where the rows must be looked at."""
    first, after, conditions = 0, _LATEST, []
    for part in _parts(tree):
        if _is_of_names(part):
            conditions.append(part)
        elif (
            isinstance(part, Compare)
            and part.field == "ts"
            and part.operator in {"ge", "lt"}
            and isinstance(part.value, int)
            and part.value % _MINUTE_US == 0
        ):
            minute = part.value // _MINUTE_US
            if part.operator == "ge":
                first = max(first, minute)
            else:
                after = min(after, minute)
        else:
            return None
    return Span(first, after, tuple(conditions))


def _parts(tree: Filter) -> list[Filter]:
    """Return what must all hold."""
    if isinstance(tree, And):
        return [leaf for part in tree.parts for leaf in _parts(part)]
    return [tree]


def _is_of_names(tree: Filter) -> bool:
    if isinstance(tree, And | Or):
        return all(_is_of_names(part) for part in tree.parts)
    if isinstance(tree, Not):
        return _is_of_names(tree.part)
    return isinstance(tree, Compare) and tree.field in NAMES


def _holds(tree: Filter, catalog: Catalog, model_id: int) -> bool:
    if isinstance(tree, And):
        return all(_holds(part, catalog, model_id) for part in tree.parts)
    if isinstance(tree, Or):
        return any(_holds(part, catalog, model_id) for part in tree.parts)
    if isinstance(tree, Not):
        return not _holds(tree.part, catalog, model_id)
    assert isinstance(tree, Compare)
    values = tree.value if isinstance(tree.value, tuple) else (tree.value,)
    return tree.operator == "exists" or model_id in catalog.model_ids(tree.field, values)


def add_rollups(
    connection: sa.Connection, span: Span, groups: Groups, *, latency: bool, labels: bool
) -> None:
    """Add what is counted within a span, latencies and labels where they are asked for.

    Raises:
        QueryError: There are too many groups, or minutes.
    """
    models: dict[int, dict[str, str]] = {}
    tree = And(span.conditions)
    catalog = Catalog(connection)
    every: Iterable[Any] = run(connection, "SELECT id, name, version, task FROM model")
    for model_id, *names in every:
        if _holds(tree, catalog, model_id):
            models[model_id] = dict(zip(NAMES, names, strict=True))
    if not models:
        return
    condition = (
        f"FROM rollup WHERE model_id IN ({marks(models)}) AND minute >= ? AND minute < ? AND n > 0"
    )
    values = (*models, span.first, span.after)
    _add_counts(connection, condition, values, models, groups)
    if labels:
        named: Iterable[Any] = run(connection, "SELECT id, name FROM label")
        groups.labels |= {label: name for label, name in named}  # noqa: C416 - rows, not pairs
    if latency or labels:
        columns = f"{'latency' if latency else _NOTHING}, {'labels' if labels else _NOTHING}"
        found: Iterable[Any] = run(
            connection,
            f"SELECT model_id, minute, {columns} {condition} LIMIT ?",
            (*values, MAX_MINUTES + 1),
        )
        for number, (model_id, minute, of_latency, of_labels) in enumerate(found):
            if number >= MAX_MINUTES:
                raise QueryError(
                    f"expected at most {MAX_MINUTES:,} minutes of models, got more; narrow ts, or ask "
                    "for count and error_rate alone"
                )
            tally = Tally(latency=decoded(of_latency), labels=decoded(of_labels))
            groups.of(minute * MINUTE_MS, models[model_id]).add(tally)


def _add_counts(
    connection: sa.Connection,
    condition: str,
    values: tuple[int, ...],
    models: Mapping[int, Mapping[str, str]],
    groups: Groups,
) -> None:
    width, offset = groups.grouping.width_ms // MINUTE_MS, groups.grouping.offset_ms // MINUTE_MS
    start = f"(minute - {offset}) / {width} * {width} + {offset}" if width else "0"
    counts: Iterable[Any] = run(
        connection,
        f"SELECT model_id, start, sum(n), sum(errors) FROM"
        f" (SELECT model_id, {start} AS start, n, errors {condition}) AS r GROUP BY 1, 2",
        values,
    )
    for model_id, minute, n, errors in counts:
        groups.of(minute * MINUTE_MS, models[model_id]).add(Tally(int(n), int(errors)))
