"""Finds the rows of a filter: chooses the index scans that return its candidates, and tests these in order, within a budget.

A narrow comparison of the outermost AND drives the query by its index, and the others are tested on the rows that it returns.
If all are wide, one whose index returns ids in order drives, or the inferences are scanned by time, because most rows match. Ids
are times, so a time range bounds every plan.

A batch is the next candidates that the driving index, or a full scan, returns in order; the statement ends as soon as it has
enough matches. If the budget ends the search, the result says where to continue.
"""

import re
import time
from collections.abc import Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from quadriga.store.database.database import execute, fetch_all
from quadriga.store.query.filters.syntax import (
    And,
    Compare,
    Filter,
    IdList,
    Leaf,
    Not,
    PlaceCondition,
    PredictionCondition,
    Range,
    ReportCells,
    ResolvedFilter,
    conjuncts,
)
from quadriga.store.query.names import Catalog
from quadriga.store.query.sql.dialects import DIALECTS
from quadriga.store.query.sql.geo_sql import compile_place
from quadriga.store.query.sql.predicates import (
    EMPTY_RANGE,
    FALSE,
    FULL_SCAN,
    MAX_MERGED_SCANS,
    MAX_MERGED_TEAM_SCANS,
    TRUE,
    Predicate,
    Scan,
    Sql,
    compile_compare,
    compile_ids,
    compile_metadata,
    compile_prediction,
    of_models,
    seq_range,
)
from quadriga.store.records.ids import LARGEST_ID
from quadriga.store.records.scope import Scope

NARROW_ROWS = 10_000
"""Maximum rows of an index scan that is read completely before the first row is tested."""

WALKED_ROW_COST = 8
"""Cost of testing a row, in rows of an index scan."""

MAX_PROBES = 16
MAX_SCANS = 64
"""Maximum scans of an OR; SQLite joins at most 500 selects."""


class IdRange(NamedTuple):
    """Range of ids, both ends included."""

    low: int = 0
    high: int = LARGEST_ID

    @property
    def is_empty(self) -> bool:
        """Whether no id is in the range."""
        return self.low > self.high

    def intersect(self, low: int, high: int) -> "IdRange":
        """Return the intersection with another range."""
        return IdRange(max(self.low, low), min(self.high, high))

    def after(self, seq: int, *, descending: bool) -> "IdRange":
        """Return the part that comes after an id in an order."""
        return self.intersect(*((0, seq - 1) if descending else (seq + 1, LARGEST_ID)))


class Plan(NamedTuple):
    """Plan that finds the matching rows of a filter."""

    scans: tuple[Scan, ...] | None
    """Index scans that return the candidates; `None` is a full scan of the inferences."""
    predicate: Sql | None
    """Condition on the rows `i`, beside `id_range`."""
    id_range: IdRange
    is_time_bounded: bool
    """Whether the filter restricts the time."""
    is_dense: bool
    """Whether matches are frequent enough for a full scan to find them."""
    is_disjoint: bool
    """Whether no two scans return the same id."""
    is_probable: bool
    """Whether most candidates match, because nothing beyond the scans is tested."""
    admitted: tuple[int, ...] | None = None
    """Ids of the models whose rows may be seen; None where all candidates may."""
    tests_scope_alone: bool = False
    """Whether the predicate is no more than that a row may be seen."""


class Planner:
    """Plans a filter within one snapshot of the database.

    Args:
        connection: Connection with the snapshot.
        resolved: The filter.
        scope: What may be seen: the filter is one of these rows alone.
        narrow_rows: See `NARROW_ROWS`; a parameter so that tests can force each plan.
    """

    def __init__(
        self,
        connection: sa.Connection,
        resolved: ResolvedFilter,
        scope: Scope,
        *,
        narrow_rows: int = NARROW_ROWS,
    ) -> None:
        self._connection = connection
        self._dialect = DIALECTS[connection.dialect.name]
        self._narrow_rows = narrow_rows
        self._probes = 0
        self._wide: set[Any] = connection.info.setdefault("wide", set())
        self._catalog = Catalog(
            connection, scope, resolved.paths, with_replays=resolved.with_replays
        )
        id_range, operands = IdRange(), []
        for operand in conjuncts(resolved.tree):
            if isinstance(operand, Compare) and _is_range(operand):
                id_range = id_range.intersect(*seq_range(operand))
            else:
                operands.append(operand)
        self._is_bounded = id_range != IdRange()
        self._id_range = IdRange(*EMPTY_RANGE) if id_range.is_empty else id_range
        self._is_scoped = False
        self._predicates = [
            predicate for predicate in map(self._compile, operands) if predicate != TRUE
        ]
        self._usable = _usable(self._predicates)
        is_among_models = any(map(_is_among_models, operands))
        hides_replays = not is_among_models and self._catalog.hides_replays
        self._is_of_team = bool(scope.team) and not scope.models and not hides_replays
        self._is_scoped = hides_replays or not (scope.is_everything or is_among_models)
        self._may_see_all = scope.is_everything and not hides_replays

    @property
    def admitted_ids(self) -> tuple[int, ...] | None:
        """Ids of the models whose inferences may be found; None if all may."""
        return None if self._may_see_all else self._catalog.admitted_ids

    @cached_property
    def _scope(self) -> Predicate | None:
        """Condition that a row may be seen, read only where a plan needs it; None if the filter says it anyway."""
        admitted = self._catalog.admitted_ids if self._is_scoped else None
        return None if admitted is None else of_models(admitted)

    @cached_property
    def plan(self) -> Plan:
        """Plan chosen by probing the indexes."""
        return self._build_plan(self._choose())

    def early_plan(self) -> Plan | None:
        """Return a plan that needs no probing and finds a page early if matches are frequent.

        Returns `None` if `plan` needs no probing either, or if its driving predicate was narrow recently.
        """
        ordered = _first_in_order(self._usable)
        if ordered:
            is_tested = len(self._usable) > 1 or not self._is_sufficient(ordered)
            return self._build_plan(ordered) if is_tested else None
        scope = self._scope
        plan = self._build_plan(scope if scope is not None and _in_order(scope) else None)
        is_wide = self._usable and all(
            _subject(predicate) in self._wide for predicate in self._usable
        )
        return plan if is_wide and (plan.is_time_bounded or plan.is_dense) else None

    def _implies_scope(self, chosen: Predicate) -> bool:
        """Check whether the scans of a predicate return nothing that is outside of the scope."""
        return self._is_of_team and all(scan.is_of_teams for scan in chosen.scans or (FULL_SCAN,))

    def _is_sufficient(self, chosen: Predicate) -> bool:
        """Check whether there is no scope that the scans of a predicate leave to be tested."""
        return not self._is_scoped or self._implies_scope(chosen)

    def _build_plan(self, chosen: Predicate | None) -> Plan:
        is_of_scope = chosen is not None and self._implies_scope(chosen)
        scope = None if is_of_scope else self._scope
        # The test of the scope is the cheapest.
        predicates = self._predicates if scope is None else [scope, *self._predicates]
        tests = [
            predicate.sql
            for predicate in predicates
            if not (predicate is chosen and predicate.is_exact)
        ]
        return Plan(
            scans=None if chosen is None else chosen.scans,
            predicate=Sql.join(" AND ", tests) if tests else None,
            id_range=self._id_range,
            is_time_bounded=self._is_bounded,
            is_dense=all(
                predicate.scans is not None and predicate.is_dense for predicate in self._predicates
            ),
            is_disjoint=True if chosen is None else chosen.is_disjoint,
            is_probable=predicates == [chosen],
            admitted=None if is_of_scope else self.admitted_ids,
            tests_scope_alone=chosen is not None
            and chosen.is_exact
            and predicates == [scope, chosen],
        )

    def _choose(self) -> Predicate | None:
        """Return the driving predicate, or `None` for a full scan."""
        usable = self._usable
        if len(usable) == 1 and _in_order(usable[0]) and self._is_sufficient(usable[0]):
            return usable[0]
        scope = self._scope
        if scope is not None and not usable:
            if _in_order(scope):
                return scope
            usable, scope = [scope], None
        best, rows = self._narrowest(usable, self._id_range)
        if best is None and scope is not None:
            best, rows = self._narrowest([scope], self._id_range)
        if best is None:
            return _first_in_order(usable if scope is None else [*usable, scope])
        if self._is_bounded and not _in_order(best):
            cap = rows // WALKED_ROW_COST
            if self._count((FULL_SCAN,), self._id_range, cap + 1) <= cap:
                return None
        return best

    def _narrowest(
        self, predicates: list[Predicate], id_range: IdRange
    ) -> tuple[Predicate | None, int]:
        best, fewest = None, self._narrow_rows + 1
        for predicate in predicates:
            if predicate.scans is None or self._probes >= MAX_PROBES:
                continue
            # Scans in order stop early, so their size matters only where there is a choice.
            is_alone = len(predicates) == 1 and self._is_sufficient(predicate)
            scans = predicate.fewer_scans or [
                scan for scan in predicate.scans if not is_alone or not scan.ordered
            ]
            self._probes += len(scans)
            rows = self._count(scans, id_range, fewest)
            (self._wide.add if rows > self._narrow_rows else self._wide.discard)(
                _subject(predicate)
            )
            if rows < fewest:
                best, fewest = predicate, rows
        return best, fewest

    def _count(self, scans: Sequence[Scan], id_range: IdRange, cap: int) -> int:
        """Count the rows that the scans return, up to a cap."""
        queries = []
        for scan in scans:
            source, (condition, values) = scan.source, scan.condition
            query = f"SELECT 1 FROM {source} WHERE {condition}"
            if scan.ordered or scan.is_by_value:
                queries.append(Sql(f"{query} AND d.seq BETWEEN ? AND ?", (*values, *id_range)))
            else:
                queries.append(Sql(query, values))
        if not queries:
            return 0
        count_query = Sql.join(" UNION ALL ", queries).wrap(
            "SELECT count(*) FROM ({} LIMIT ?) AS c", cap
        )
        ((rows,),) = fetch_all(self._connection, *count_query)
        return int(rows)

    def _compile(self, tree: Filter) -> Predicate:
        if isinstance(tree, Leaf):
            return self._compile_leaf(tree)
        if isinstance(tree, Not):
            return Predicate(self._compile(tree.operand).sql.wrap("NOT {}"))
        operands = conjuncts(tree) if isinstance(tree, And) else tree.operands
        predicates = [self._compile(operand) for operand in operands]
        if len(predicates) == 1:
            return predicates[0]
        if isinstance(tree, And):
            return self._all_of(predicates) if predicates else TRUE
        return _any_of(predicates) if predicates else FALSE

    def _all_of(self, predicates: list[Predicate]) -> Predicate:
        """Return the AND of predicates, driven by the narrowest."""
        usable = _usable(predicates)
        best = self._narrowest(usable, IdRange())[0] or _first_in_order(usable)
        is_dense = all(
            predicate.scans is not None and predicate.is_dense for predicate in predicates
        )
        scans, fewer_scans = (best.scans, best.fewer_scans) if best else (None, ())
        return Predicate(
            _join_predicates(" AND ", predicates),
            scans,
            is_dense=is_dense,
            fewer_scans=fewer_scans,
            teams=best.teams if best else 1,
        )

    def _compile_leaf(self, leaf: Leaf) -> Predicate:
        if isinstance(leaf, PredictionCondition):
            return compile_prediction(leaf, self._catalog, self._dialect)
        if isinstance(leaf, PlaceCondition):
            return compile_place(leaf, self._catalog, self._dialect)
        if isinstance(leaf, IdList):
            return compile_ids(leaf, self._dialect)
        if isinstance(leaf, ReportCells):
            raise TypeError("expected the cells of reports to be found before a filter is planned")
        if isinstance(leaf, Range) or leaf.field.startswith(("meta.", "std.")):
            return compile_metadata(leaf, self._catalog, self._dialect)
        return compile_compare(leaf, self._catalog, self._dialect)


def _any_of(predicates: list[Predicate]) -> Predicate:
    """Return the OR of predicates, with the scans of all unless these are too many."""
    scans = tuple(scan for predicate in predicates for scan in predicate.scans or ())
    teams = max(predicate.teams for predicate in predicates)
    if len(scans) > MAX_MERGED_SCANS * teams:
        scans = tuple(
            scan
            for predicate in predicates
            for scan in predicate.fewer_scans or predicate.scans or ()
        )
    test = _join_predicates(" OR ", predicates)
    too_many = len(scans) > min(MAX_SCANS * teams, MAX_MERGED_TEAM_SCANS)
    if too_many or any(predicate.scans is None for predicate in predicates):
        return Predicate(test)
    return Predicate(
        test,
        scans,
        is_exact=all(predicate.is_exact for predicate in predicates),
        is_dense=any(predicate.is_dense for predicate in predicates),
        teams=teams,
    )


def _is_range(condition: Compare) -> bool:
    return condition.field in {"id", "ts"} and condition.operator not in {"in", "exists"}


def _is_among_models(tree: Filter) -> bool:
    """Check whether a condition admits rows of listed models alone, which are of the scope."""
    return (
        isinstance(tree, Compare)
        and tree.field in {"model", "version", "model.sha256", "task"}
        and tree.operator != "exists"
    )


def _in_order(predicate: Predicate) -> bool:
    """Check whether the first ids in order are available without reading all of them."""
    scans, most = predicate.scans, min(MAX_MERGED_SCANS * predicate.teams, MAX_MERGED_TEAM_SCANS)
    return scans is not None and len(scans) <= most and all(scan.ordered for scan in scans)


def _first_in_order(predicates: list[Predicate]) -> Predicate | None:
    return next(filter(_in_order, predicates), None)


def _usable(predicates: list[Predicate]) -> list[Predicate]:
    return sorted(
        (predicate for predicate in predicates if predicate.scans is not None), key=_preference
    )


def _subject(predicate: Predicate) -> tuple[Any, ...]:
    """Return what a predicate looks up in its index, such as a metadata key or a label."""
    # Of a long list of ids, which would be remembered with the connection, the beginning tells enough.
    return tuple(
        (
            scan.source,
            *(
                value[:512] if isinstance(value, str) else value
                for value in scan.condition.values[:1]
            ),
        )
        for scan in (predicate.scans or ())[:1]
    )


def _preference(predicate: Predicate) -> tuple[bool, bool, int]:
    """Sort key: scans in order first, then values that are rarer than a model, then few scans."""
    scans = predicate.scans or ()
    return (
        not _in_order(predicate),
        any(scan.source == "inference AS d" for scan in scans),
        len(scans),
    )


def _join_predicates(operator: str, predicates: list[Predicate]) -> Sql:
    return Sql.join(operator, [predicate.sql for predicate in predicates]).wrap("({})")


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
