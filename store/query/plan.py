"""Chooses how a filter is answered: from which index, or by walking the inferences in order.

A narrow comparison of the outermost AND drives by its index, and the others are tested on the rows that
it gives. Where all are wide, most rows match, and walking by time finds a page soonest. Ids are times, so
a time range bounds every plan.
"""

from typing import NamedTuple

import sqlalchemy as sa

from store.ids import LARGEST
from store.query.catalog import Catalog
from store.query.sql import (
    EMPTY_RANGE,
    FALSE,
    TRUE,
    Leaf,
    Scan,
    Sql,
    compile_leaf,
    seq_range,
)
from store.query.syntax import And, Compare, Filter, Label, Not, Range, merged

NARROW = 10_000
"""Rows up to which an index drives: it gives all of them, before the first is looked at."""

WALKED_ROW_COST = 8
"""Testing a row costs so many times what a row of an index costs."""

MAX_PROBES = 16
MAX_SCANS = 64
"""Of an OR; SQLite joins at most 500 selects."""


class Window(NamedTuple):
    """Ids that may answer, both ends included."""

    low: int = 0
    high: int = LARGEST

    def narrowed(self, low: int, high: int) -> "Window":
        """Return what both windows hold."""
        return Window(max(self.low, low), min(self.high, high))


class Plan(NamedTuple):
    """How to find the matching rows: `FROM` and `WHERE`, without columns, order and limit."""

    source: Sql
    """Joins `inference` as `i`; `{model}` stands where the model is joined, if its columns matter."""
    key: str
    """The column with the id, by which the rows are ordered."""
    ids: Sql | None
    """Gives `d.seq` of each match, where an index alone can tell."""
    is_narrow: bool
    """Whether an index drives that gives its ids in no order."""


class Planner:
    """Plans filters within one snapshot of the database.

    Args:
        connection: The snapshot.
        narrow: See `NARROW`; an argument so that tests can force each plan.
    """

    def __init__(self, connection: sa.Connection, narrow: int = NARROW) -> None:
        self._connection = connection
        self._narrow = narrow
        self._probes = 0

    def plan(self, tree: Filter, after: Window = Window()) -> Plan:  # noqa: B008 - it is immutable
        """Plan a filter.

        Args:
            tree: The filter.
            after: Where a page begins, as its cursor says.
        """
        catalog = Catalog(self._connection, tree)
        asked, rest = Window(), []
        for part in _conjuncts(tree):
            if isinstance(part, Compare) and _is_range(part):
                asked = asked.narrowed(*seq_range(part))
            else:
                rest.append(part)
        window = asked.narrowed(*after)
        if window.low > window.high:
            window = Window(*EMPTY_RANGE)
        parts = [self._compile(part, catalog, window) for part in rest]
        chosen = self._choose(parts, window, is_bounded=asked != Window())
        tests = [part.test for part in parts if not (part is chosen and part.exact)]
        key = "d.seq" if chosen is not None and _in_order(chosen) else "i.seq"
        ids = _exact_ids(parts, window)
        return Plan(_source(chosen, tests, window), key, ids, chosen is not None and key == "i.seq")

    def _choose(self, parts: list[Leaf], window: Window, *, is_bounded: bool) -> Leaf | None:
        """Return the part that drives, `None` to walk."""
        best, rows = self._narrowest(parts, window)
        if best is None:
            rows = self._narrow + 1
            best = next((part for part in parts if _in_order(part)), None)
        if is_bounded and best is not None:
            cap = rows // WALKED_ROW_COST
            walk = Scan("inference AS d", Sql("1 = 1"), ordered=True)
            if self._count(walk, window, cap + 1) <= cap:
                return None
        return best

    def _narrowest(self, parts: list[Leaf], window: Window) -> tuple[Leaf | None, int]:
        best, fewest = None, self._narrow + 1
        for part in parts:
            if part.scans is None or self._probes >= MAX_PROBES:
                continue
            self._probes += 1
            rows = 0
            for scan in part.scans:
                rows += self._count(scan, window, fewest - rows)
                if rows >= fewest:
                    break
            if rows < fewest:
                best, fewest = part, rows
        return best, fewest

    def _count(self, scan: Scan, window: Window, cap: int) -> int:
        """Count the rows that a scan reads, up to a cap."""
        text, values = (
            f"SELECT 1 FROM {scan.source} WHERE {scan.condition.text}",
            scan.condition.values,
        )
        if scan.ordered:
            text, values = f"{text} AND d.seq BETWEEN ? AND ?", (*values, *window)
        counted = self._connection.exec_driver_sql(
            f"SELECT count(*) FROM ({text} LIMIT ?)", (*values, cap)
        )
        return int(counted.scalar_one())

    def _compile(self, tree: Filter, catalog: Catalog, window: Window) -> Leaf:
        if isinstance(tree, Compare | Range | Label):
            return compile_leaf(tree, catalog)
        if isinstance(tree, Not):
            test = self._compile(tree.part, catalog, window).test
            return Leaf(Sql(f"NOT {test.text}", test.values))
        inner = _conjuncts(tree) if isinstance(tree, And) else tree.parts
        parts = [self._compile(part, catalog, window) for part in inner]
        if len(parts) < 2:
            return parts[0] if parts else TRUE if isinstance(tree, And) else FALSE
        if isinstance(tree, And):
            best, _ = self._narrowest(parts, window)
            return Leaf(_joined(" AND ", parts), best.scans if best else None)
        scans = tuple(scan for part in parts for scan in part.scans or ())
        if len(scans) > MAX_SCANS or any(part.scans is None for part in parts):
            return Leaf(_joined(" OR ", parts))
        return Leaf(_joined(" OR ", parts), scans, all(part.exact for part in parts))


def _source(driver: Leaf | None, tests: list[Sql], window: Window) -> Sql:
    if driver is not None and _in_order(driver):
        assert driver.scans is not None
        scan = driver.scans[0]
        # CROSS keeps the order of the join, and so that of the rows.
        text = (
            f" FROM {scan.source} CROSS JOIN inference AS i{{model}}"
            f" WHERE {scan.condition.text} AND d.seq BETWEEN ? AND ? AND i.seq = d.seq"
        )
        values = (*scan.condition.values, *window)
    else:
        text, values = " FROM inference AS i{model} WHERE i.seq BETWEEN ? AND ?", tuple(window)
        if driver is not None and driver.scans is not None:
            ids = _ids(driver.scans, window)
            text, values = f"{text} AND i.seq IN ({ids.text})", values + ids.values
    for test in tests:
        text, values = f"{text} AND {test.text}", values + test.values
    return Sql(text, values)


def _ids(scans: tuple[Scan, ...], window: Window) -> Sql:
    if not scans:
        return Sql("SELECT 0 WHERE 1 = 0")
    selects = [
        f"SELECT d.seq FROM {scan.source} WHERE {scan.condition.text} AND d.seq BETWEEN ? AND ?"
        for scan in scans
    ]
    values = tuple(value for scan in scans for value in (*scan.condition.values, *window))
    return Sql(" UNION ALL ".join(selects), values)


def _exact_ids(parts: list[Leaf], window: Window) -> Sql | None:
    if len(parts) == 1 and parts[0].exact and parts[0].scans and len(parts[0].scans) == 1:
        return _ids(parts[0].scans, window)
    return None


def _conjuncts(tree: Filter) -> list[Filter]:
    """Return what must all hold."""
    return merged(_flat(tree))


def _flat(tree: Filter) -> list[Filter]:
    if isinstance(tree, And):
        return [leaf for part in tree.parts for leaf in _flat(part)]
    return [tree]


def _is_range(part: Compare) -> bool:
    return part.field in {"id", "ts"} and part.operator not in {"in", "exists"}


def _in_order(part: Leaf) -> bool:
    return part.scans is not None and len(part.scans) == 1 and part.scans[0].ordered


def _joined(word: str, parts: list[Leaf]) -> Sql:
    values = tuple(value for part in parts for value in part.test.values)
    return Sql(f"({word.join(part.test.text for part in parts)})", values)
