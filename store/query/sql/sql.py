"""SQL of one comparison: the exact test on a row, and the index scans that return all matches.

Row aliases: `i` is `inference`, `d` the driving index table. Values are always bound.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from quadriga.store.database.database import placeholders
from quadriga.store.database.schema import KeyType
from quadriga.store.query.filters.syntax import (
    SIGNAL_FIELDS,
    BoundOperator,
    Compare,
    IdList,
    Scalar,
)
from quadriga.store.query.sql.catalog import Catalog
from quadriga.store.query.sql.dialects import SqlDialect
from quadriga.store.records.ids import LARGEST_ID, TIME_SHIFT, smallest_id_at

MAX_MERGED_SCANS = 16
"""Maximum number of ordered index scans merged per query, for each team that is seen."""

MAX_MERGED_TEAM_SCANS = 320
"""Maximum number of ordered index scans merged per query, for all teams; SQLite joins at most 500 selects."""

_OF_TEAMS = ("meta_num AS d", "meta_str AS d", "pred AS d")

EMPTY_RANGE = (1, 0)
SYMBOLS = {"eq": "=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_COLUMNS = {
    "request_id": "i.request_id",
    "action": "i.action",
    "input.hash": "i.input_hash",
    "latency_ms": "i.latency_us / CAST(1000 AS DOUBLE PRECISION)",
    "status": "i.status",
    "predictions": "i.prediction_count",
}
_INDEXED_COLUMNS = {"request_id": "d.request_id", "input.hash": "d.input_hash"}
_FEEDBACK = "(SELECT DISTINCT seq FROM feedback) AS d"
_TRUTH = (
    "EXISTS (SELECT 1 FROM ground_truth AS g JOIN truth AS t ON t.id = g.truth_id"
    " WHERE g.seq = i.seq AND t.annotations IS NOT NULL{0} LIMIT 1 OFFSET 0)"
)


class Sql(NamedTuple):
    """SQL text and the values bound in it, in order."""

    text: str
    values: tuple[Any, ...] = ()

    @classmethod
    def join(cls, separator: str, queries: Iterable["Sql"]) -> "Sql":
        """Join queries by an operator or keyword."""
        texts, values = zip(*queries, strict=True)
        return cls(separator.join(texts), tuple(chain.from_iterable(values)))

    def wrap(self, template: str, *values: Any) -> "Sql":
        """Return the template with this query in place of its `{}`, and `values` bound after it."""
        return Sql(template.replace("{}", self.text, 1), self.values + values)

    @classmethod
    def bounded(cls, expression: str, bounds: Iterable[tuple[BoundOperator, Any]]) -> "Sql":
        """Return the condition that an expression satisfies all bounds; at least one is required."""
        comparisons = [
            cls(f"{expression} {SYMBOLS[symbol]} ?", (bound,)) for symbol, bound in bounds
        ]
        return cls.join(" AND ", comparisons)


class Scan(NamedTuple):
    """Index range, as `SELECT d.seq FROM <source> WHERE <condition>`, which returns each id once."""

    source: str
    condition: Sql
    ordered: bool
    """Whether ids are returned in order, as for a single value."""
    is_by_value: bool = False
    """Whether ids are in order for each value that is looked up, so that a range of ids reads no others."""
    is_list: bool = False
    """Whether the ids are listed in the filter itself: all of them are read at once, however few are wanted."""

    @property
    def is_of_teams(self) -> bool:
        """Whether it reads an index by ids of names, so that it returns rows of the teams that have these names."""
        return self.source.endswith(_OF_TEAMS)


FULL_SCAN = Scan("inference AS d", Sql("1 = 1"), ordered=True)
"""Scan of all inferences in order."""


class Predicate(NamedTuple):
    """Comparison as SQL, with the index scans that return its candidates."""

    sql: Sql
    """Exact condition on row `i`; never NULL."""
    scans: tuple[Scan, ...] | None = None
    """Scans that together return every match; `None` if there is no suitable index."""
    is_exact: bool = False
    """Whether the scans return nothing but matches."""
    is_dense: bool = True
    """Whether most candidates of the scans match."""
    is_disjoint: bool = False
    """Whether no two scans return the same id."""
    fewer_scans: tuple[Scan, ...] = ()
    """Alternative with fewer scans that returns the same candidates, if there is one."""
    teams: int = 1
    """Teams that have scans of their own, for the same names."""


TRUE, FALSE = Predicate(Sql("1 = 1")), Predicate(Sql("1 = 0"), (), is_exact=True)


def compile_compare(leaf: Compare, catalog: Catalog, dialect: SqlDialect) -> Predicate:
    """Compile a comparison of a field that is not metadata."""
    compilers: dict[str, Callable[[Compare, Catalog, SqlDialect], Predicate]] = {
        "id": _seq, "ts": _seq,
        "model": _model, "version": _model, "model.sha256": _model, "task": _model,
        "answer": _answer, "geo": _place_exists,
        "ground_truth": _truth, "ground_truth.label": _truth,
        "ground_truth.review": _review, "feedback": _feedback,
        **dict.fromkeys(SIGNAL_FIELDS, _signal),
    }  # fmt: skip
    return compilers.get(leaf.field, _column)(leaf, catalog, dialect)


def seq_range(leaf: Compare) -> tuple[int, int]:
    """Return the smallest and the largest id that a comparison with `id` or `ts` matches."""
    value = leaf.value
    assert isinstance(value, int)
    if leaf.field == "id":
        start_id, stop_id = value, value + 1
    else:  # ids have milliseconds: from `start_id` on they have reached the moment, from `stop_id` passed it
        start_id, stop_id = smallest_id_at(-(-value // 1000)), smallest_id_at(value // 1000 + 1)
    low = {"gt": stop_id, "ge": start_id, "eq": start_id}.get(leaf.operator, 0)
    high = {"lt": start_id - 1, "le": stop_id - 1, "eq": stop_id - 1}.get(leaf.operator, LARGEST_ID)
    low, high = max(low, 0), min(high, LARGEST_ID)
    return (low, high) if low <= high else EMPTY_RANGE


def _seq(leaf: Compare, *_: object) -> Predicate:
    if leaf.operator == "exists":
        return TRUE
    if leaf.operator != "in":
        return Predicate(Sql("i.seq BETWEEN ? AND ?", seq_range(leaf)))
    ranges = [seq_range(Compare(leaf.field, "eq", value)) for value in leaf.values]
    ids = tuple(low for low, high in ranges if low <= high)
    if not ids:
        return FALSE
    if leaf.field == "ts":
        times = tuple(first >> TIME_SHIFT for first in ids)
        return Predicate(Sql(f"(i.seq >> {TIME_SHIFT}) IN ({placeholders(times)})", times))
    scan = Scan("inference AS d", Sql(f"d.seq IN ({placeholders(ids)})", ids), ordered=True)
    return Predicate(Sql(f"i.seq IN ({placeholders(ids)})", ids), (scan,), is_exact=True)


def _model(leaf: Compare, catalog: Catalog, _: SqlDialect) -> Predicate:
    if leaf.operator == "exists":
        return of_models(catalog.hashed_model_ids) if leaf.field == "model.sha256" else TRUE
    return of_models(catalog.model_ids(leaf.field, leaf.values))


def compile_ids(leaf: IdList, dialect: SqlDialect) -> Predicate:
    """Compile a list of ids, however many; those of inferences that are not stored, or not seen, find nothing."""
    if not leaf.ids:
        return FALSE
    bound = (dialect.render_ids(leaf.ids),)
    listed = Sql(dialect.in_list.format("d.seq"), bound)
    test = Sql(dialect.in_list.format("i.seq"), bound)
    return Predicate(
        test, (Scan("inference AS d", listed, ordered=True, is_list=True),), is_exact=True
    )


@lru_cache(256)
def of_models(ids: tuple[int, ...]) -> Predicate:
    """Return the condition that a row is of one of the models with these ids."""
    if not ids:
        return FALSE
    test = Sql(f"i.model_id IN ({placeholders(ids)})", ids)
    scans = scans_by_value("inference AS d", "d.model_id", ids)
    return Predicate(test, scans, is_exact=True, is_disjoint=True)


def scans_by_value(source: str, column: str, values: tuple[Any, ...]) -> tuple[Scan, ...]:
    """Return index scans of the given values: one for each value, or a single one if there are many."""
    if len(values) <= MAX_MERGED_SCANS:
        return tuple(Scan(source, Sql(f"{column} = ?", (value,)), ordered=True) for value in values)
    return (Scan(source, among(column, values), ordered=False),)


def among(column: str, values: tuple[Any, ...]) -> Sql:
    """Return the condition that a column has one of some values."""
    if len(values) == 1:
        return Sql(f"{column} = ?", values)
    return Sql(f"{column} IN ({placeholders(values)})", values)


def _column(leaf: Compare, _: Catalog, dialect: SqlDialect) -> Predicate:
    column = _COLUMNS[leaf.field]
    values = tuple(dict.fromkeys(leaf.values))
    present = f"{column} IS NOT NULL"
    if leaf.operator == "exists":
        return Predicate(Sql(present))
    comparison = comparison_sql(column, leaf.operator, values, dialect)
    test = Sql(f"({present} AND {comparison.text})", comparison.values)
    if comparison is FALSE.sql:
        return FALSE
    indexed = _INDEXED_COLUMNS.get(leaf.field)
    if indexed is None or leaf.operator not in {"eq", "in"}:
        return Predicate(test)
    return Predicate(test, scans_by_value("inference AS d", indexed, values), is_exact=True)


def _answer(leaf: Compare, _: Catalog, dialect: SqlDialect) -> Predicate:
    expression = dialect.prediction_text.format("answer")
    test = comparison_sql(expression, leaf.operator, leaf.values, dialect)
    return Predicate(
        Sql(f"EXISTS (SELECT 1 FROM {dialect.predictions} WHERE {test.text})", test.values)
    )


def _place_exists(_: Compare, catalog: Catalog, dialect: SqlDialect) -> Predicate:
    keys = catalog.key_ids("", KeyType.CELL)
    if not keys:
        return FALSE
    test = Sql(f"EXISTS (SELECT 1 FROM {dialect.place})")
    return Predicate(test, (key_scan(KeyType.CELL, keys),), is_exact=True)


def _truth(leaf: Compare, _: Catalog, dialect: SqlDialect) -> Predicate:
    scan = Scan("ground_truth AS d", Sql("1 = 1"), ordered=True)
    if leaf.field == "ground_truth":
        return Predicate(Sql(_TRUTH.format("")), (scan,))
    test = comparison_sql(dialect.text, leaf.operator, leaf.values, dialect)
    label_condition = f" AND EXISTS (SELECT 1 FROM {dialect.annotation_labels} AND {test.text})"
    return Predicate(Sql(_TRUTH.format(label_condition), test.values), (scan,), is_dense=False)


def _review(leaf: Compare, _: Catalog, dialect: SqlDialect) -> Predicate:
    expression = "nullif(t.review, '')"
    test = comparison_sql(expression, leaf.operator, leaf.values, dialect)
    scan = Scan("ground_truth AS d", Sql("1 = 1"), ordered=True)
    condition = Sql(_TRUTH.format(f" AND {test.text}"), test.values)
    return Predicate(condition, (scan,), is_dense=False)


def _feedback(*_: object) -> Predicate:
    test = "EXISTS (SELECT 1 FROM feedback AS f WHERE f.seq = i.seq LIMIT 1 OFFSET 0)"
    return Predicate(Sql(test), (Scan(_FEEDBACK, Sql("1 = 1"), ordered=False),))


def _signal(leaf: Compare, _: Catalog, dialect: SqlDialect) -> Predicate:
    """Compile a comparison of a number of the image, which is read from the signals of each candidate."""
    number = dialect.float32("s.picture", 4 * SIGNAL_FIELDS.index(leaf.field))
    test = comparison_sql(number, leaf.operator, leaf.values, dialect)
    # Signals of other releases had other numbers.
    exists = (
        "EXISTS (SELECT 1 FROM signal AS s WHERE s.seq = i.seq"
        f" AND length(s.picture) = {4 * len(SIGNAL_FIELDS)} AND {{}} LIMIT 1 OFFSET 0)"
    )
    scan = Scan("signal AS d", Sql("1 = 1"), ordered=True)
    return Predicate(test.wrap(exists), (scan,), is_dense=False)


def comparison_sql(
    expression: str, operator: str, values: tuple[Scalar, ...], dialect: SqlDialect
) -> Sql:
    """Return a condition on an expression, which may be NULL."""
    if operator == "exists":
        return Sql(f"{expression} IS NOT NULL")
    if operator == "contains":
        return Sql(dialect.contains.format(expression), values)
    if operator == "in":
        if not values:
            return FALSE.sql
        return Sql(f"{expression} IN ({placeholders(values)})", values)
    return Sql(f"{expression} {SYMBOLS[operator]} ?", values)


def key_scan(type_: KeyType, keys: tuple[int, ...]) -> Scan:
    """Return the scan of all values of a metadata key, given its ids."""
    return Scan(index_table(type_), among("d.key", keys), ordered=False)


def index_table(type_: KeyType) -> str:
    """Return the index table of a value type, with its alias."""
    return "meta_str AS d" if type_ is KeyType.STR else "meta_num AS d"
