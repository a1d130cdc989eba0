"""Runs a plan: ids of matches in order, a window of candidates after another, within a budget.

A window is the next so many candidates that the driving index, or a walk, gives in order; the statement
ends as soon as it has enough matches. What is not done within the budget is said, and where to go on.
"""

import re
import time
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from quadriga.store.database import execute, fetch_all
from quadriga.store.errors import QueryError
from quadriga.store.ids import LARGEST_ID
from quadriga.store.query.plan import IdRange, Plan
from quadriga.store.query.sql import FULL_SCAN, TRUE, Scan, Sql

MAX_BATCH_ROWS = 10_000
"""Of a window."""

SELECT_IDS = "SELECT i.seq FROM ({}) AS m CROSS JOIN inference AS i WHERE i.seq = m.seq"
"""To which tests of inferences can be added."""

PROBE_ROWS, FREQUENT_RATIO = 64, 16
"""Matches come often if one of so many among the first few candidates is one."""

PROBABLE_FACTOR = 4
"""Candidates of the first window for each match wanted, where most are matches."""

_COLUMN = re.compile(r"\bi\.(\w+)")


class Budget(NamedTuple):
    """What one search may take; at least one window is searched."""

    rows: int = 1_000_000
    """Candidates to test."""
    seconds: float = 1.0
    first_batch_rows: int = 1000
    """Candidates of the first window; each is thrice the one before."""
    unbounded_rows: int = 100_000
    """So many inferences may be walked through without an index or a time."""


class SearchResult(NamedTuple):
    """Matches, in order."""

    rows: list[Any]
    """What the search selects, the id first."""
    resume_id: int | None
    """The last candidate that was looked at, where the budget ended the search."""


class Search:
    """Runs one plan in one direction.

    Args:
        connection: The snapshot that the plan was made in.
        plan: What to run.
        descending: Largest ids first.
    """

    def __init__(self, connection: sa.Connection, plan: Plan, *, descending: bool) -> None:
        self._connection = connection
        self._plan = plan
        self._descending = descending
        self._direction = "DESC" if descending else "ASC"
        self._is_sqlite = connection.dialect.name == "sqlite"

    def first_matches(
        self, limit: int, after: IdRange, budget: Budget, select: str = "{}"
    ) -> SearchResult:
        """Return the first matches.

        Args:
            limit: How many at most.
            after: Where a page begins, as its cursor says.
            budget: What it may take.
            select: What to select of them, the id first, as `IDS`; `{}` is a table of their ids.

        Raises:
            QueryError: No index and no time bounds what had to be looked at.
        """
        window = self._plan.id_range.intersect(*after)
        found: list[Any] = []
        if window.low > window.high or self._plan.scans == ():
            return SearchResult(found, None)
        if self._plan.predicate is None:
            return SearchResult(self._selected(self._candidates(window, limit).wrap(select)), None)
        self._check_bounded(budget)
        deadline, left, rows = (
            time.monotonic() + budget.seconds,
            budget.rows,
            budget.first_batch_rows,
        )
        if self._plan.is_probable:  # and to sort a few is cheaper
            rows = min(rows, PROBABLE_FACTOR * limit)
        while True:
            rows = min(rows, left)
            found += self._selected(self._matches(select, window, rows, limit - len(found)))
            end = self._end(window, rows) if len(found) < limit else None
            left -= rows
            if end is None:
                return SearchResult(found, None)
            if left <= 0 or time.monotonic() > deadline:
                return SearchResult(found, end)
            window = window.intersect(
                *((0, end - 1) if self._descending else (end + 1, LARGEST_ID))
            )
            if window.low > window.high:
                return SearchResult(found, None)
            rows = min(rows * 3, MAX_BATCH_ROWS)

    def early_matches(self, limit: int, after: IdRange, select: str) -> list[Any]:
        """Return the first matches, as `first`, if they come often; else none."""
        window = self._plan.id_range.intersect(*after)
        if window.low > window.high or self._plan.scans == ():
            return []
        few = self._selected(self._matches("{}", window, PROBE_ROWS, limit))
        if len(few) < min(PROBE_ROWS // FREQUENT_RATIO, limit):
            return []
        rows = min(limit * FREQUENT_RATIO * 2, MAX_BATCH_ROWS)
        found = self._selected(self._matches(select, window, rows, limit))
        return found if len(found) == limit else []

    def count(self) -> int:
        """Count all matches."""
        plan = self._plan
        if plan.id_range.low > plan.id_range.high or plan.scans == ():
            return 0
        test, values = plan.predicate or TRUE.sql
        if plan.scans is None:
            text = f"SELECT count(*) FROM inference AS i WHERE i.seq BETWEEN ? AND ? AND {test}"
            return int(execute(self._connection, text, (*plan.id_range, *values)).scalar_one())
        ids = self._union([_select(scan, plan.id_range) for scan in plan.scans])
        text = f"SELECT count(*) FROM ({ids.text}) AS c"
        if plan.predicate:
            text += f" CROSS JOIN inference AS i WHERE i.seq = c.seq AND {test}"
        return int(execute(self._connection, text, ids.values + values).scalar_one())

    def _check_bounded(self, budget: Budget) -> None:
        plan = self._plan
        if plan.scans is not None or plan.is_time_bounded or plan.is_dense:
            return
        there = execute(
            self._connection,
            "SELECT count(*) FROM (SELECT 1 FROM inference LIMIT ?) AS c",
            (budget.unbounded_rows + 1,),
        ).scalar_one()
        if there > budget.unbounded_rows:
            raise QueryError(
                f"expected a filter that an index or a time bounds, as there are more than {budget.unbounded_rows} "
                'inferences, got neither; add for example {"ts": {"ge": "-24h"}}, a model, a label, '
                "or a metadata key with eq, in, gt, ge, lt or le"
            )

    def _selected(self, query: Sql) -> list[Any]:
        rows = fetch_all(self._connection, *query)
        return sorted(rows, key=itemgetter(0), reverse=self._descending)

    def _candidates(self, window: IdRange, rows: int) -> Sql:
        """Return the ids of so many candidates, in order."""
        return self._ordered(window, rows).wrap("{} LIMIT ?", rows)

    def _end(self, window: IdRange, rows: int) -> int | None:
        """Return the last of so many candidates; `None` where there are fewer."""
        last_one = self._ordered(window, rows).wrap("{} LIMIT 1 OFFSET ?", rows - 1)
        last = execute(self._connection, *last_one).scalar()
        return None if last is None else int(last)

    def _ordered(self, window: IdRange, rows: int) -> Sql:
        """Return the ids of at least so many candidates, in order: the first of each scan."""
        order = f"ORDER BY 1 {self._direction}"
        scans = (FULL_SCAN,) if self._plan.scans is None else self._plan.scans
        parts = [_select(scan, window) for scan in scans]
        if len(parts) > 1:
            parts = [
                part if scan.ordered and self._is_sqlite else Sql(
                    f"SELECT seq FROM ({part.text} {order} LIMIT ?) AS d{at}", (*part.values, rows)
                )
                for at, (scan, part) in enumerate(zip(scans, parts, strict=True))
            ]  # fmt: skip
        return self._union(parts).wrap(f"{{}} {order}")

    def _union(self, parts: list[Sql]) -> Sql:
        """Return the ids that parts give, each once."""
        return Sql.join(" UNION ALL " if self._plan.is_disjoint else " UNION ", parts)

    def _matches(self, select: str, window: IdRange, rows: int, limit: int) -> Sql:
        """Return a query of the matches among so many candidates."""
        test, values = self._plan.predicate or TRUE.sql
        direction = self._direction
        if self._plan.scans is None:
            columns = ", ".join(sorted({"seq", *_COLUMN.findall(test)}))
            text = (
                f"SELECT i.seq FROM (SELECT {columns} FROM inference AS d WHERE d.seq BETWEEN ? AND ?"
                f" ORDER BY d.seq {direction} LIMIT ?) AS i WHERE {test}"
            )
            order = "" if self._is_sqlite else f" ORDER BY i.seq {direction}"
            ids = Sql(f"{text}{order} LIMIT ?", (*window, rows, *values, limit))
            return ids.wrap(select)
        query = SELECT_IDS if select == "{}" else select
        text, bound = self._candidates(window, rows).wrap(query)
        # SQLite keeps the order of the candidates as it is, and would sort what has it already.
        order = "" if self._is_sqlite else f" ORDER BY m.seq {direction}"
        return Sql(f"{text} AND {test}{order} LIMIT ?", (*bound, *values, limit))


def _select(scan: Scan, window: IdRange) -> Sql:
    # The plus leaves the index of what is looked for, not that of ids; metadata has but the one.
    seq = "d.seq" if scan.ordered or scan.source.startswith("meta_") else "+d.seq"
    text = f"SELECT {seq} AS seq FROM {scan.source} WHERE {scan.condition.text}"
    if window == IdRange():
        return Sql(text, scan.condition.values)
    return Sql(f"{text} AND {seq} BETWEEN ? AND ?", (*scan.condition.values, *window))
