"""Runs a plan: returns matches in order, batch by batch of candidates, within a budget.

A batch is the next candidates that the driving index, or a full scan, returns in order; the statement ends
as soon as it has enough matches. If the budget ends the search, the result says where to continue.
"""

import re
import time
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from quadriga.store.database.database import execute, fetch_all
from quadriga.store.query.sql.plan import IdRange, Plan, Planner
from quadriga.store.query.sql.sql import FULL_SCAN, TRUE, Scan, Sql

MAX_BATCH_ROWS = 10_000
"""Maximum candidates of a batch."""

SELECT_IDS = "SELECT i.seq FROM ({}) AS m CROSS JOIN inference AS i WHERE i.seq = m.seq"
"""Selects ids; conditions on the inferences can be appended."""

PROBE_ROWS, FREQUENT_RATIO = 64, 16
"""Matches are frequent if at least one in `FREQUENT_RATIO` of the first `PROBE_ROWS` candidates matches."""

PROBABLE_FACTOR = 4
"""Candidates of the first batch per requested match, if most candidates match."""

_COLUMN = re.compile(r"\bi\.(\w+)")


class Budget(NamedTuple):
    """Limits of one search; at least one batch is searched."""

    rows: int = 1_000_000
    """Maximum candidates to test."""
    seconds: float = 1.0
    first_batch_rows: int = 1000
    """Candidates of the first batch; each following batch is three times as large."""


class SearchResult(NamedTuple):
    """Matches of a search, in order."""

    rows: list[Any]
    """Selected rows, the id first."""
    resume_id: int | None
    """Last tested candidate if the budget ended the search, else None."""


class Search:
    """Runs one plan in one direction.

    Args:
        connection: The snapshot that the plan was made in.
        plan: The plan.
        descending: Whether to return the largest ids first.
    """

    def __init__(self, connection: sa.Connection, plan: Plan, *, descending: bool) -> None:
        self._connection = connection
        self._plan = plan
        self._descending = descending
        self._direction = "DESC" if descending else "ASC"
        self._is_sqlite = connection.dialect.name == "sqlite"

    def first_matches(
        self, limit: int, page_range: IdRange, budget: Budget, select: str = "{}"
    ) -> SearchResult:
        """Return the first matches.

        Args:
            limit: Maximum number of matches.
            page_range: Ids that the page may have, from its cursor.
            budget: Limits of the search.
            select: Query for the selected columns, the id first, as `SELECT_IDS`; `{}` is a table of ids.
        """
        id_range = self._plan.id_range.intersect(*page_range)
        if id_range.is_empty or self._plan.scans == ():
            return SearchResult([], None)
        if self._plan.predicate is None:
            candidates = self._candidates(id_range, limit).wrap(select)
            return SearchResult(self._fetch_sorted(candidates), None)
        return self._search_batches(limit, id_range, budget, select)

    def _search_batches(
        self, limit: int, id_range: IdRange, budget: Budget, select: str
    ) -> SearchResult:
        """Test the candidates batch by batch until there are enough matches, or the budget ends."""
        deadline = time.monotonic() + budget.seconds
        remaining_rows, rows = budget.rows, budget.first_batch_rows
        if self._plan.is_probable:  # and sorting a few is cheaper
            rows = min(rows, PROBABLE_FACTOR * limit)
        matches: list[Any] = []
        while True:
            rows = min(rows, remaining_rows)
            matches += self._fetch_sorted(
                self._matches(select, id_range, rows, limit - len(matches))
            )
            last_id = self._last_candidate(id_range, rows) if len(matches) < limit else None
            remaining_rows -= rows
            if last_id is None:
                return SearchResult(matches, None)
            if remaining_rows <= 0 or time.monotonic() > deadline:
                return SearchResult(matches, last_id)
            id_range = id_range.after(last_id, descending=self._descending)
            if id_range.is_empty:
                return SearchResult(matches, None)
            rows = min(rows * 3, MAX_BATCH_ROWS)

    def early_matches(self, limit: int, page_range: IdRange, select: str) -> list[Any]:
        """Return the first matches, as `first_matches`, if they are frequent, or if there are few candidates; else none."""
        id_range = self._plan.id_range.intersect(*page_range)
        if id_range.is_empty or self._plan.scans == ():
            return []
        if not self._plan.tests_scope_alone:
            probe = self._fetch_sorted(self._matches("{}", id_range, PROBE_ROWS, limit))
            if len(probe) < min(PROBE_ROWS // FREQUENT_RATIO, limit):
                return []
        rows = min(limit * FREQUENT_RATIO * 2, MAX_BATCH_ROWS)
        matches = self._fetch_sorted(self._matches(select, id_range, rows, limit))
        is_complete = len(matches) == limit or self._last_candidate(id_range, rows) is None
        return matches if is_complete else []

    def count(self) -> int:
        """Count all matches."""
        plan = self._plan
        if plan.id_range.is_empty or plan.scans == ():
            return 0
        test, values = plan.predicate or TRUE.sql
        if plan.scans is None:
            statement = (
                f"SELECT count(*) FROM inference AS i WHERE i.seq BETWEEN ? AND ? AND {test}"
            )
            return int(execute(self._connection, statement, (*plan.id_range, *values)).scalar_one())
        ids = self._union([_select(scan, plan.id_range) for scan in plan.scans])
        statement = f"SELECT count(*) FROM ({ids.text}) AS c"
        if plan.predicate:
            statement += f" CROSS JOIN inference AS i WHERE i.seq = c.seq AND {test}"
        return int(execute(self._connection, statement, ids.values + values).scalar_one())

    def resume_before(self, seq: int | None) -> int | None:
        """Return after which id a later page goes on, given the last tested one; None at the end.

        The last tested row may be one that may not be seen. Then this is an id beside that of the next one that may:
        a cursor, which anybody can read, says of no other row that it is there.
        """
        admitted = self._plan.admitted
        if seq is None or admitted is None:
            return seq
        best, symbol, step = ("max", "<", 1) if self._descending else ("min", ">", -1)
        nexts = (
            execute(
                self._connection,
                f"SELECT {best}(seq) FROM inference WHERE model_id = ? AND seq {symbol} ?",
                (model_id, seq),
            ).scalar()
            for model_id in admitted
        )
        next_seqs = [int(next_seq) for next_seq in nexts if next_seq is not None]
        nearest = max if self._descending else min
        return nearest(next_seqs) + step if next_seqs else None

    def _fetch_sorted(self, query: Sql) -> list[Any]:
        rows = fetch_all(self._connection, *query)
        return sorted(rows, key=itemgetter(0), reverse=self._descending)

    def _candidates(self, id_range: IdRange, rows: int) -> Sql:
        """Return a query of the first `rows` candidate ids, in order."""
        return self._ordered(id_range, rows).wrap("{} LIMIT ?", rows)

    def _last_candidate(self, id_range: IdRange, rows: int) -> int | None:
        """Return the last of `rows` candidates, or None if there are fewer."""
        query = self._ordered(id_range, rows).wrap("{} LIMIT 1 OFFSET ?", rows - 1)
        last_id = execute(self._connection, *query).scalar()
        return None if last_id is None else int(last_id)

    def _ordered(self, id_range: IdRange, rows: int) -> Sql:
        """Return a query of at least `rows` candidate ids, in order: the first of each scan."""
        order = f"ORDER BY 1 {self._direction}"
        scans = (FULL_SCAN,) if self._plan.scans is None else self._plan.scans
        queries = [_select(scan, id_range) for scan in scans]
        if len(queries) > 1:
            queries = [
                query if scan.ordered and self._is_sqlite else Sql(
                    f"SELECT seq FROM ({query.text} {order} LIMIT ?) AS d{position}", (*query.values, rows)
                )
                for position, (scan, query) in enumerate(zip(scans, queries, strict=True))
            ]  # fmt: skip
        return self._union(queries).wrap(f"{{}} {order}")

    def _union(self, queries: list[Sql]) -> Sql:
        """Return a query of the ids of all parts, each once."""
        return Sql.join(" UNION ALL " if self._plan.is_disjoint else " UNION ", queries)

    def _matches(self, select: str, id_range: IdRange, rows: int, limit: int) -> Sql:
        """Return a query of the matches among `rows` candidates."""
        test, values = self._plan.predicate or TRUE.sql
        direction = self._direction
        if self._plan.scans is None:
            columns = ", ".join(sorted({"seq", *_COLUMN.findall(test)}))
            statement = (
                f"SELECT i.seq FROM (SELECT {columns} FROM inference AS d WHERE d.seq BETWEEN ? AND ?"
                f" ORDER BY d.seq {direction} LIMIT ?) AS i WHERE {test}"
            )
            order = "" if self._is_sqlite else f" ORDER BY i.seq {direction}"
            ids = Sql(f"{statement}{order} LIMIT ?", (*id_range, rows, *values, limit))
            return ids.wrap(select)
        query = SELECT_IDS if select == "{}" else select
        statement, candidate_values = self._candidates(id_range, rows).wrap(query)
        # SQLite preserves the order of the candidates, and an ORDER BY would sort them again.
        order = "" if self._is_sqlite else f" ORDER BY m.seq {direction}"
        return Sql(f"{statement} AND {test}{order} LIMIT ?", (*candidate_values, *values, limit))


def find_first(
    connection: sa.Connection,
    planner: Planner,
    *,
    descending: bool,
    limit: int,
    id_range: IdRange,
    budget: Budget,
    select: str = "{}",
) -> SearchResult:
    """Return the first matches of a filter, as `Search.first_matches`, without probing indexes where matches are frequent.

    The id to resume after is one that a page of the caller may begin after.
    """
    early_plan = planner.early_plan()
    if early_plan is not None:
        search = Search(connection, early_plan, descending=descending)
        if rows := search.early_matches(limit, id_range, select):
            return SearchResult(rows, None)
    search = Search(connection, planner.plan, descending=descending)
    rows, tested_id = search.first_matches(limit, id_range, budget, select)
    return SearchResult(rows, search.resume_before(tested_id))


def _select(scan: Scan, id_range: IdRange) -> Sql:
    # The plus prevents the use of the id index, so that the condition's index is used; metadata has just one.
    seq = "d.seq" if scan.ordered or scan.source.startswith("meta_") else "+d.seq"
    statement = f"SELECT {seq} AS seq FROM {scan.source} WHERE {scan.condition.text}"
    if id_range == IdRange():
        return Sql(statement, scan.condition.values)
    return Sql(f"{statement} AND {seq} BETWEEN ? AND ?", (*scan.condition.values, *id_range))
