"""Choice of the index scans that find the candidates of a filter, or of a full scan in order.

A narrow comparison of the outermost AND drives the query by its index, and the others are tested on the
rows that it returns. If all are wide, one whose index returns ids in order drives, or the inferences are
scanned by time, because most rows match. Ids are times, so a time range bounds every plan.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa

from quadriga.store.database.database import fetch_all
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
from quadriga.store.query.sql.catalog import Catalog
from quadriga.store.query.sql.dialects import DIALECTS
from quadriga.store.query.sql.geo_sql import compile_place
from quadriga.store.query.sql.metadata_sql import compile_metadata
from quadriga.store.query.sql.prediction_sql import compile_prediction
from quadriga.store.query.sql.sql import (
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
