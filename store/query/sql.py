"""One comparison as SQL: the exact test on a row, and the parts of an index that hold all matches.

Row aliases: `i` is `inference`, `d` the index table that drives. Values are always bound.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

from quadriga.store.database import placeholders
from quadriga.store.ids import LARGEST_ID, TIME_SHIFT, smallest_id_at
from quadriga.store.query.catalog import Catalog
from quadriga.store.query.dialects import SqlDialect
from quadriga.store.query.syntax import BoundOperator, Compare, Scalar
from quadriga.store.schema import KeyType

MAX_MERGED_SCANS = 16
"""Of so many parts of an index, each in order, the first rows in order are found together."""

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
    def join(cls, word: str, parts: Iterable["Sql"]) -> "Sql":
        """Return the parts with a word between."""
        texts, values = zip(*parts, strict=True)
        return cls(word.join(texts), tuple(chain.from_iterable(values)))

    def wrap(self, form: str, *after: Any) -> "Sql":
        """Return a form with this in place of its `{}`, and the values bound after it."""
        return Sql(form.replace("{}", self.text, 1), self.values + after)

    @classmethod
    def bounded(cls, expression: str, bounds: Iterable[tuple[BoundOperator, Any]]) -> "Sql":
        """Return that an expression is within all bounds, of which there are some."""
        parts = [cls(f"{expression} {SYMBOLS[symbol]} ?", (bound,)) for symbol, bound in bounds]
        return cls.join(" AND ", parts)


class Scan(NamedTuple):
    """A range of an index, as `SELECT d.seq FROM <source> WHERE <condition>`; it gives an id once."""

    source: str
    condition: Sql
    ordered: bool
    """Whether its ids come in order, as where one value is looked for."""


FULL_SCAN = Scan("inference AS d", Sql("1 = 1"), ordered=True)
"""All inferences."""


class Predicate(NamedTuple):
    """A comparison as SQL."""

    sql: Sql
    """Exact, on row `i`; never NULL."""
    scans: tuple[Scan, ...] | None = None
    """Together they give every match; `None` where no index does."""
    is_exact: bool = False
    """Whether the scans give nothing else."""
    is_dense: bool = True
    """Whether most of what the scans give are matches."""
    is_disjoint: bool = False
    """Whether no two of the scans give the same id."""
    fewer_scans: tuple[Scan, ...] = ()
    """Scans that are fewer, if there are such, and give the same."""


TRUE, FALSE = Predicate(Sql("1 = 1")), Predicate(Sql("1 = 0"), (), is_exact=True)


def compile_compare(leaf: Compare, catalog: Catalog, words: SqlDialect) -> Predicate:
    """Translate a comparison of a field that is no metadata."""
    compilers: dict[str, Callable[[Compare, Catalog, SqlDialect], Predicate]] = {
        "id": _seq, "ts": _seq,
        "model": _model, "version": _model, "task": _model,
        "answer": _answer, "geo": _place_exists,
        "ground_truth": _truth, "ground_truth.label": _truth, "feedback": _feedback,
    }  # fmt: skip
    return compilers.get(leaf.field, _column)(leaf, catalog, words)


def seq_range(leaf: Compare) -> tuple[int, int]:
    """Return the smallest and the largest id that a comparison with `id` or `ts` admits."""
    value = leaf.value
    assert isinstance(value, int)
    if leaf.field == "id":
        first, after = value, value + 1
    else:  # ids know milliseconds: those from `first` on have reached the moment, `after` passed it
        first, after = smallest_id_at(-(-value // 1000)), smallest_id_at(value // 1000 + 1)
    low = {"gt": after, "ge": first, "eq": first}.get(leaf.operator, 0)
    high = {"lt": first - 1, "le": after - 1, "eq": after - 1}.get(leaf.operator, LARGEST_ID)
    low, high = max(low, 0), min(high, LARGEST_ID)
    return (low, high) if low <= high else EMPTY_RANGE


def _seq(leaf: Compare, *_: object) -> Predicate:
    if leaf.operator == "exists":
        return TRUE
    if leaf.operator != "in":
        return Predicate(Sql("i.seq BETWEEN ? AND ?", seq_range(leaf)))
    ranges = [seq_range(Compare(leaf.field, "eq", value)) for value in compared_values(leaf)]
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
        return TRUE
    ids = catalog.model_ids(leaf.field, compared_values(leaf))
    if not ids:
        return FALSE
    test = Sql(f"i.model_id IN ({placeholders(ids)})", ids)
    return Predicate(test, scans_by_value("inference AS d", "d.model_id", ids), is_exact=True)


def scans_by_value(
    source: str, column: str, values: tuple[Any, ...], *key: Any
) -> tuple[Scan, ...]:
    """Return the parts of an index with these values: one for each, unless they are many."""
    first = "d.key = ? AND " if key else ""
    if len(values) <= MAX_MERGED_SCANS:
        return tuple(
            Scan(source, Sql(f"{first}{column} = ?", (*key, value)), ordered=True)
            for value in values
        )
    condition = Sql(f"{first}{column} IN ({placeholders(values)})", (*key, *values))
    return (Scan(source, condition, ordered=False),)


def _column(leaf: Compare, _: Catalog, words: SqlDialect) -> Predicate:
    column = _COLUMNS[leaf.field]
    values = tuple(dict.fromkeys(compared_values(leaf)))
    present = f"{column} IS NOT NULL"
    if leaf.operator == "exists":
        return Predicate(Sql(present))
    comparison = comparison_sql(column, leaf.operator, values, words)
    test = Sql(f"({present} AND {comparison.text})", comparison.values)
    if comparison is FALSE.sql:
        return FALSE
    indexed = _INDEXED_COLUMNS.get(leaf.field)
    if indexed is None or leaf.operator not in {"eq", "in"}:
        return Predicate(test)
    return Predicate(test, scans_by_value("inference AS d", indexed, values), is_exact=True)


def _answer(leaf: Compare, _: Catalog, words: SqlDialect) -> Predicate:
    text = words.prediction_text.format("answer")
    test = comparison_sql(text, leaf.operator, compared_values(leaf), words)
    return Predicate(
        Sql(f"EXISTS (SELECT 1 FROM {words.predictions} WHERE {test.text})", test.values)
    )


def _place_exists(_: Compare, catalog: Catalog, words: SqlDialect) -> Predicate:
    key = catalog.key("", KeyType.CELL)
    if key is None:
        return FALSE
    test = Sql(f"EXISTS (SELECT 1 FROM {words.place})")
    return Predicate(test, (key_scan(KeyType.CELL, key),), is_exact=True)


def _truth(leaf: Compare, _: Catalog, words: SqlDialect) -> Predicate:
    scan = Scan("ground_truth AS d", Sql("1 = 1"), ordered=True)
    if leaf.field == "ground_truth":
        return Predicate(Sql(_TRUTH.format("")), (scan,))
    test = comparison_sql(words.text, leaf.operator, compared_values(leaf), words)
    label = f" AND EXISTS (SELECT 1 FROM {words.annotation_labels} AND {test.text})"
    return Predicate(Sql(_TRUTH.format(label), test.values), (scan,), is_dense=False)


def _feedback(*_: object) -> Predicate:
    test = "EXISTS (SELECT 1 FROM feedback AS f WHERE f.seq = i.seq LIMIT 1 OFFSET 0)"
    return Predicate(Sql(test), (Scan(_FEEDBACK, Sql("1 = 1"), ordered=False),))


def comparison_sql(
    expression: str, operator: str, values: tuple[Scalar, ...], words: SqlDialect
) -> Sql:
    """Return a test of an expression that may be NULL."""
    if operator == "exists":
        return Sql(f"{expression} IS NOT NULL")
    if operator == "contains":
        return Sql(words.contains.format(expression), values)
    if operator == "in":
        if not values:
            return FALSE.sql
        return Sql(f"{expression} IN ({placeholders(values)})", values)
    return Sql(f"{expression} {SYMBOLS[operator]} ?", values)


def key_scan(type_: KeyType, key: int) -> Scan:
    """Return all of a metadata key in its index."""
    return Scan(index_table(type_), Sql("d.key = ?", (key,)), ordered=False)


def index_table(type_: KeyType) -> str:
    """Return the index of a type."""
    return "meta_str AS d" if type_ is KeyType.STR else "meta_num AS d"


def compared_values(leaf: Compare) -> tuple[Scalar, ...]:
    """Return the values that a field is compared with."""
    return leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)
