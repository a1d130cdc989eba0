"""Chooses how a filter is answered: from which index, or by walking the inferences in order.

A narrow comparison of the outermost AND drives by its index, and the others are tested on the rows that
it gives. Where all are wide, one whose index gives its ids in order drives, or the inferences are walked
by time: most rows match. Ids are times, so a time range bounds every plan.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa

from quadriga.store.database import fetch_all
from quadriga.store.ids import LARGEST_ID
from quadriga.store.query.catalog import Catalog
from quadriga.store.query.dialects import DIALECTS
from quadriga.store.query.geo_sql import compile_place
from quadriga.store.query.metadata_sql import compile_metadata
from quadriga.store.query.prediction_sql import compile_prediction
from quadriga.store.query.sql import (
    EMPTY_RANGE,
    FALSE,
    FULL_SCAN,
    MAX_MERGED_SCANS,
    TRUE,
    Predicate,
    Scan,
    Sql,
    compile_compare,
    seq_range,
)
from quadriga.store.query.syntax import (
    And,
    Compare,
    Filter,
    Leaf,
    Not,
    PlaceCondition,
    PredictionCondition,
    Range,
    conjuncts,
    leaves,
)

NARROW_ROWS = 10_000
"""Rows up to which an index drives that gives all of them, before the first is looked at."""

WALKED_ROW_COST = 8
"""Testing a row costs so many times what a row of an index costs."""

MAX_PROBES = 16
MAX_SCANS = 64
"""Of an OR; SQLite joins at most 500 selects."""


class IdRange(NamedTuple):
    """Ids that may answer, both ends included."""

    low: int = 0
    high: int = LARGEST_ID

    def intersect(self, low: int, high: int) -> "IdRange":
        """Return what both windows hold."""
        return IdRange(max(self.low, low), min(self.high, high))


class Plan(NamedTuple):
    """How to find the matching rows."""

    scans: tuple[Scan, ...] | None
    """What drives; `None` is a walk through the inferences."""
    predicate: Sql | None
    """What rows `i` must pass, beside lying in the window."""
    id_range: IdRange
    is_time_bounded: bool
    """Whether the filter says when."""
    is_dense: bool
    """Whether matches come often enough that a walk finds them."""
    is_disjoint: bool
    """Whether no two of the scans give the same id."""
    is_probable: bool
    """Whether most of what the scans give passes, as nothing else is tested than what drives."""


class Planner:
    """Plans a filter within one snapshot of the database.

    Args:
        connection: The snapshot.
        tree: The filter.
        narrow: See `NARROW`; an argument so that tests can force each plan.
    """

    def __init__(self, connection: sa.Connection, tree: Filter, narrow: int = NARROW_ROWS) -> None:
        self._connection = connection
        self._words = DIALECTS[connection.dialect.name]
        self._narrow = narrow
        self._probes = 0
        self._wide: set[Any] = connection.info.setdefault("wide", set())
        fields = [one.field for one in leaves(tree) if isinstance(one, Compare | Range)]
        paths = [field[5:] for field in fields if field.startswith("meta.")]
        self._catalog = Catalog(connection, paths)
        asked, rest = IdRange(), []
        for part in conjuncts(tree):
            if isinstance(part, Compare) and _is_range(part):
                asked = asked.intersect(*seq_range(part))
            else:
                rest.append(part)
        self._is_bounded = asked != IdRange()
        self._window = asked if asked.low <= asked.high else IdRange(*EMPTY_RANGE)
        self._parts = [part for part in map(self._compile, rest) if part != TRUE]
        self._usable = _usable(self._parts)

    @cached_property
    def plan(self) -> Plan:
        """How to find the matches, chosen by what the indexes hold."""
        return self._planned(self._choose())

    def early_plan(self) -> Plan | None:
        """Return a plan that needs no look at the indexes, and finds a page soon if matches come often.

        `None` where `plan` needs no look either, or what would drive it was narrow lately.
        """
        ordered = _first_in_order(self._usable)
        if ordered:
            return self._planned(ordered) if len(self._usable) > 1 else None
        plan = self._planned(None)
        is_wide = self._usable and all(_subject(part) in self._wide for part in self._usable)
        return plan if is_wide and (plan.is_time_bounded or plan.is_dense) else None

    def _planned(self, chosen: Predicate | None) -> Plan:
        tests = [part.sql for part in self._parts if not (part is chosen and part.is_exact)]
        test = Sql.join(" AND ", tests) if tests else None
        is_dense = all(part.scans is not None and part.is_dense for part in self._parts)
        scans, is_apart = (None, True) if chosen is None else (chosen.scans, chosen.is_disjoint)
        is_likely = self._parts == [chosen]
        return Plan(scans, test, self._window, self._is_bounded, is_dense, is_apart, is_likely)

    def _choose(self) -> Predicate | None:
        """Return the part that drives, `None` to walk."""
        usable = self._usable
        if len(usable) == 1 and _in_order(usable[0]):
            return usable[0]
        best, rows = self._narrowest(usable, self._window)
        if best is None:
            return _first_in_order(usable)
        if self._is_bounded and not _in_order(best):
            cap = rows // WALKED_ROW_COST
            if self._count((FULL_SCAN,), self._window, cap + 1) <= cap:
                return None
        return best

    def _narrowest(self, parts: list[Predicate], window: IdRange) -> tuple[Predicate | None, int]:
        best, fewest = None, self._narrow + 1
        for part in parts:
            if part.scans is None or self._probes >= MAX_PROBES:
                continue
            # What comes in order is not read to its end; it counts where there is a choice.
            scans = part.fewer_scans or [
                scan for scan in part.scans if len(parts) > 1 or not scan.ordered
            ]
            self._probes += len(scans)
            rows = self._count(scans, window, fewest)
            (self._wide.add if rows > self._narrow else self._wide.discard)(_subject(part))
            if rows < fewest:
                best, fewest = part, rows
        return best, fewest

    def _count(self, scans: Sequence[Scan], window: IdRange, cap: int) -> int:
        """Count the rows that scans read, up to a cap."""
        parts = []
        for source, (condition, values), ordered in scans:
            text = f"SELECT 1 FROM {source} WHERE {condition}"
            if ordered:
                parts.append(Sql(f"{text} AND d.seq BETWEEN ? AND ?", (*values, *window)))
            else:
                parts.append(Sql(text, values))
        if not parts:
            return 0
        counted = Sql.join(" UNION ALL ", parts).wrap("SELECT count(*) FROM ({} LIMIT ?) AS c", cap)
        ((rows,),) = fetch_all(self._connection, *counted)
        return int(rows)

    def _compile(self, tree: Filter) -> Predicate:
        if isinstance(tree, Leaf):
            return self._compile_leaf(tree)
        if isinstance(tree, Not):
            return Predicate(self._compile(tree.operand).sql.wrap("NOT {}"))
        parts = list(
            map(self._compile, conjuncts(tree) if isinstance(tree, And) else tree.operands)
        )
        if len(parts) < 2:
            return parts[0] if parts else TRUE if isinstance(tree, And) else FALSE
        if isinstance(tree, And):
            usable = _usable(parts)
            best = self._narrowest(usable, IdRange())[0] or _first_in_order(usable)
            dense = all(part.scans is not None and part.is_dense for part in parts)
            scans, few = (best.scans, best.fewer_scans) if best else (None, ())
            return Predicate(_joined(" AND ", parts), scans, is_dense=dense, fewer_scans=few)
        scans = tuple(scan for part in parts for scan in part.scans or ())
        is_exact = all(part.is_exact for part in parts)
        if len(scans) > MAX_MERGED_SCANS:
            scans = tuple(scan for part in parts for scan in part.fewer_scans or part.scans or ())
        if len(scans) > MAX_SCANS or any(part.scans is None for part in parts):
            return Predicate(_joined(" OR ", parts))
        is_dense = any(part.is_dense for part in parts)
        return Predicate(_joined(" OR ", parts), scans, is_exact, is_dense)

    def _compile_leaf(self, leaf: Leaf) -> Predicate:
        if isinstance(leaf, PredictionCondition):
            return compile_prediction(leaf, self._catalog, self._words)
        if isinstance(leaf, PlaceCondition):
            return compile_place(leaf, self._catalog, self._words)
        if isinstance(leaf, Range) or leaf.field.startswith(("meta.", "std.")):
            return compile_metadata(leaf, self._catalog, self._words)
        return compile_compare(leaf, self._catalog, self._words)


def _is_range(part: Compare) -> bool:
    return part.field in {"id", "ts"} and part.operator not in {"in", "exists"}


def _in_order(part: Predicate) -> bool:
    """Tell whether the first ids in order can be had without all of them."""
    scans = part.scans
    return (
        scans is not None and len(scans) <= MAX_MERGED_SCANS and all(scan.ordered for scan in scans)
    )


def _first_in_order(parts: list[Predicate]) -> Predicate | None:
    return next(filter(_in_order, parts), None)


def _usable(parts: list[Predicate]) -> list[Predicate]:
    return sorted((part for part in parts if part.scans is not None), key=_preference)


def _subject(part: Predicate) -> tuple[Any, ...]:
    """Return what a part looks for in its index, as a metadata key or a label."""
    return tuple((scan.source, scan.condition.values[:1]) for scan in (part.scans or ())[:1])


def _preference(part: Predicate) -> tuple[bool, bool, int]:
    """Order parts by what is asked first: ids in order, of those what is rarer than a model, few scans."""
    scans = part.scans or ()
    return not _in_order(part), any(scan.source == "inference AS d" for scan in scans), len(scans)


def _joined(word: str, parts: list[Predicate]) -> Sql:
    return Sql.join(word, [part.sql for part in parts]).wrap("({})")
