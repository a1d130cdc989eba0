"""SQL of one comparison: the exact test on a row, and the index scans that return all matches; places are in `geo_sql`.

Row aliases: `i` is `inference`, `d` the driving index table. Values are always bound.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

from quadriga.store.database.database import placeholders
from quadriga.store.database.schema import INDEXED_CHARACTERS, SCORE_BANDS, KeyType, score_band
from quadriga.store.query.filters.syntax import (
    BOUNDS,
    SIGNAL_FIELDS,
    BoundOperator,
    Compare,
    IdList,
    PredictionCondition,
    Range,
    Scalar,
)
from quadriga.store.query.names import CLASSIFICATION, Catalog
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


# Metadata of clients is indexed by key, type and value: numbers as REAL, strings by their first characters.

EXACT_INTEGERS = 1 << 53
"""Integers below this limit equal their REAL value."""

_RELAXED = {"eq": "=", "gt": ">=", "ge": ">=", "lt": "<=", "le": "<="}


def compile_metadata(leaf: Compare | Range, catalog: Catalog, dialect: SqlDialect) -> Predicate:
    """Compile a comparison of a field `meta.<path>` or `std.<path>`."""
    root, _, path = leaf.field.partition(".")
    is_indexed = root == "meta" and catalog.is_indexed(path)
    if isinstance(leaf, Compare) and leaf.operator in BOUNDS and leaf.operator != "eq":
        leaf = Range(leaf.field, ((leaf.operator, leaf.values[0]),))
    tests: list[Sql] = []
    scans: list[Scan] = []
    fewer_scans: list[Scan] = []
    all_exact, teams = True, 1
    for type_, test in _metadata_tests(leaf, dialect):
        keys = catalog.key_ids(path, type_) if is_indexed else ()
        if is_indexed and not keys:
            continue  # no inference has this key with a value of this type
        tests.append(test)
        if keys:
            key_scans, fewer, is_exact = _metadata_scans(leaf, type_, keys)
            scans += key_scans
            fewer_scans += fewer
            all_exact, teams = all_exact and is_exact, max(teams, len(keys))
    if not tests:
        return FALSE
    source = dialect.metadata if root == "meta" else dialect.standard
    bound = (path,) if root == "meta" else dialect.standard_path(path)
    text, values = Sql.join(" OR ", dict.fromkeys(tests))
    test = Sql(f"EXISTS (SELECT 1 FROM {source} AND ({text}))", (*bound, *values))
    is_dense = not (isinstance(leaf, Compare) and leaf.operator == "contains")
    if not is_indexed:
        return Predicate(test)
    return Predicate(
        test,
        tuple(scans),
        all_exact,
        is_dense,
        fewer_scans=tuple(fewer_scans) if len(fewer_scans) < len(scans) else (),
        teams=teams,
    )


def _metadata_tests(leaf: Compare | Range, dialect: SqlDialect) -> Iterator[tuple[KeyType, Sql]]:
    """Yield the conditions on the JSON, each with the type of the values that satisfy it."""
    if isinstance(leaf, Range):
        bounds = [(operator, dialect.bind_exact(value)) for operator, value in leaf.bounds]
        ((type_, _),) = _by_type(value for _, value in leaf.bounds).items()
        yield type_, Sql.bounded(dialect.text if type_ is KeyType.STR else dialect.number, bounds)
    elif leaf.operator == "exists":
        for type_ in KeyType:
            yield type_, Sql(dialect.present)
    else:
        for type_, values in _by_type(leaf.values).items():
            yield type_, _json_test(type_, leaf.operator, values, dialect)


def _json_test(
    type_: KeyType, operator: str, values: tuple[Scalar, ...], dialect: SqlDialect
) -> Sql:
    if type_ is KeyType.BOOL:
        return comparison_sql(
            dialect.boolean, "in", tuple("true" if v else "false" for v in values), dialect
        )
    if type_ is KeyType.STR:
        return comparison_sql(dialect.text, operator, values, dialect)
    return comparison_sql(dialect.number, "in", tuple(map(dialect.bind_exact, values)), dialect)


def _metadata_scans(
    leaf: Compare | Range, type_: KeyType, keys: tuple[int, ...]
) -> tuple[tuple[Scan, ...], tuple[Scan, ...], bool]:
    """Return index scans that return all matches, fewer that do for several teams, and whether they return nothing else."""
    if isinstance(leaf, Range):
        is_exact, indexed_values = _indexed(type_, [value for _, value in leaf.bounds])
        symbols = SYMBOLS if is_exact else _RELAXED
        condition = "".join(f" AND d.val {symbols[operator]} ?" for operator, _ in leaf.bounds)
        range_condition = among("d.key", keys).wrap(f"{{}}{condition}", *indexed_values)
        range_scan = Scan(index_table(type_), range_condition, ordered=False)
        return (range_scan,), (range_scan,), is_exact
    if leaf.operator in {"exists", "contains"}:
        all_values = key_scan(type_, keys)
        return (all_values,), (all_values,), leaf.operator == "exists"
    is_exact, indexed_values = _indexed(type_, _by_type(leaf.values)[type_])
    values, source = tuple(dict.fromkeys(indexed_values)), index_table(type_)
    both = Sql.join(" AND ", (among("d.key", keys), among("d.val", values)))
    fewest = (Scan(source, both, ordered=False, is_by_value=True),)
    if len(values) > MAX_MERGED_SCANS or len(keys) * len(values) > MAX_MERGED_TEAM_SCANS:
        return fewest, fewest, is_exact
    pairs = [Sql("d.key = ? AND d.val = ?", (key, value)) for key in keys for value in values]
    scans = tuple(Scan(source, pair, ordered=True) for pair in pairs)
    return scans, fewest if len(keys) > 1 else scans, is_exact


def _indexed(type_: KeyType, values: Iterable[Scalar]) -> tuple[bool, tuple[Any, ...]]:
    """Return whether the index distinguishes the values from all others, and their indexed forms."""
    if type_ is KeyType.STR:
        prefixes = tuple(str(value)[:INDEXED_CHARACTERS] for value in values)
        return all(len(value) < INDEXED_CHARACTERS for value in prefixes), prefixes
    numbers = tuple(float(value) for value in values)
    return all(abs(number) < EXACT_INTEGERS for number in numbers), numbers


def _by_type(values: Iterable[Scalar]) -> dict[KeyType, tuple[Scalar, ...]]:
    groups: dict[KeyType, list[Scalar]] = {}
    for value in values:
        type_ = {str: KeyType.STR, bool: KeyType.BOOL}.get(type(value), KeyType.NUM)
        groups.setdefault(type_, []).append(value)
    return {type_: tuple(dict.fromkeys(group)) for type_, group in groups.items()}


# The index `pred` has a row for each label of an image: its best and worst score, -inf for a prediction without score, and the
# number of predictions. What that cannot decide is tested on the predictions themselves. Within a band of best scores the ids are
# in order, so the newest of several bands can be read without reading all of them.

_IS_BOUND = {
    "eq": float.__eq__, "gt": float.__gt__, "ge": float.__ge__,
    "lt": float.__lt__, "le": float.__le__,
}  # fmt: skip


def compile_prediction(
    leaf: PredictionCondition, catalog: Catalog, dialect: SqlDialect
) -> Predicate:
    """Compile the condition that some prediction, or a number of them, has the given properties."""
    labels = None
    if leaf.labels is not None:
        labels = catalog.label_ids(leaf.labels)
    can_be_none = all(_IS_BOUND[operator](0.0, bound) for operator, bound in leaf.count)
    needs_one = not leaf.count or not can_be_none
    if labels == ():
        return FALSE if needs_one else TRUE
    scores = tuple((operator, bound) for name, operator, bound in leaf.bounds if name == "score")
    if labels is None or not needs_one:
        return Predicate(_counted(leaf, dialect))
    # The plus prevents the use of the index by `seq`.
    is_label = Sql(f"+d.label IN ({placeholders(labels)})", labels)
    best, worst = _sieve(scores, "+")
    possible = Sql.join(" AND ", (is_label, *best, *worst))
    name_count = len(set(leaf.labels or ()))
    teams = -(-len(labels) // name_count)
    scans, fewer_scans = _label_scans(labels, scores, teams)
    predicate = partial(
        Predicate,
        scans=scans,
        is_disjoint=name_count == 1,  # an inference has the label of its team alone
        fewer_scans=fewer_scans,
        teams=teams,
    )
    if leaf.is_best:
        return predicate(_of_best(is_label, catalog))
    if len(scores) == len(leaf.bounds) and not leaf.count:
        test, is_index_enough = _by_scores(leaf, scores, possible, dialect)
        return predicate(test, is_exact=is_index_enough)
    if not leaf.bounds:  # a number of predictions with the label, whatever their scores
        total = f"SELECT sum(d.n) FROM pred AS d WHERE d.seq = i.seq AND {is_label.text}"
        test = _counts(Sql(f"coalesce(({total}), 0)", labels), leaf.count)
        return predicate(test)
    test = Sql.join(" AND ", (_of_row(possible), _counted(leaf, dialect))).wrap("({})")
    return predicate(test)


def _label_scans(
    labels: tuple[int, ...], scores: tuple[tuple[BoundOperator, float], ...], teams: int
) -> tuple[tuple[Scan, ...], tuple[Scan, ...]]:
    """Return a scan for each band of each label, unless there are too many, and one for each label.

    For a label that several teams have, the second is a single one.
    """
    best, worst = _sieve(scores)
    lowest = score_band(max((bound for _, (bound,) in best), default=-math.inf))

    def scan(label: tuple[int, ...], sign: str, band: int) -> Scan:
        in_band = among("d.label", label).wrap(f"{{}} AND d.band {sign} ?", band)
        best_bounds = best if band == lowest else ()  # higher bands are above the bound
        condition = Sql.join(" AND ", (in_band, *best_bounds, *worst))
        return Scan("pred AS d", condition, ordered=sign == "=")

    groups = [labels] if teams == len(labels) else [(label,) for label in labels]
    fewer_scans = tuple(scan(group, ">=", lowest) for group in groups)
    bands = range(lowest, len(SCORE_BANDS) + 1)
    count = len(labels) * len(bands)
    if count > MAX_MERGED_SCANS * teams or count > MAX_MERGED_TEAM_SCANS:
        return fewer_scans, fewer_scans
    return tuple(scan((label,), "=", band) for label in labels for band in bands), fewer_scans


def _sieve(
    scores: tuple[tuple[BoundOperator, float], ...], plus: str = ""
) -> tuple[list[Sql], list[Sql]]:
    """Return the conditions on the best and the worst score that a prediction within the bounds implies."""
    lower = [(op if op == "gt" else "ge", v) for op, v in scores if op in {"gt", "ge", "eq"}]
    upper = [(op if op == "lt" else "le", v) for op, v in scores if op in {"lt", "le", "eq"}]
    if upper and not lower:
        lower = [("gt", -math.inf)]  # requires a prediction with a score
    return (
        [Sql(f"{plus}d.score {SYMBOLS[operator]} ?", (bound,)) for operator, bound in lower],
        [Sql(f"d.worst {SYMBOLS[operator]} ?", (bound,)) for operator, bound in upper],
    )


def _by_scores(
    leaf: PredictionCondition,
    scores: tuple[tuple[BoundOperator, float], ...],
    possible: Sql,
    dialect: SqlDialect,
) -> tuple[Sql, bool]:
    """Return the condition, and whether the index suffices, which it does for lower bounds alone."""
    if all(operator in {"gt", "ge"} for operator, _ in scores):
        return _of_row(possible), True
    best, worst = Sql.bounded("d.score", scores), Sql.bounded("d.worst", scores)
    exact = _counted(leaf, dialect)
    text = (
        f"{possible.text} AND CASE WHEN {best.text} THEN 1 = 1"
        f" WHEN d.worst > ? AND {worst.text} THEN 1 = 1 ELSE {exact.text} END"
    )
    values = (*possible.values, *best.values, -math.inf, *worst.values, *exact.values)
    return _of_row(Sql(text, values)), False


def _of_best(is_label: Sql, catalog: Catalog) -> Sql:
    """Return the condition that a label is there, and of a classification none has a higher score."""
    classifications = tuple(model.id for model in catalog.models if model.task == CLASSIFICATION)
    if not classifications:
        return _of_row(is_label)
    higher = "EXISTS (SELECT 1 FROM pred AS o WHERE o.seq = d.seq AND o.score > d.score)"
    is_beaten = among("i.model_id", classifications).wrap(f"NOT ({{}} AND {higher})")
    return _of_row(Sql.join(" AND ", (is_label, is_beaten)))


def _of_row(condition: Sql) -> Sql:
    # The LIMIT prevents PostgreSQL from turning it into a join.
    return condition.wrap(
        "EXISTS (SELECT 1 FROM pred AS d WHERE d.seq = i.seq AND {} LIMIT 1 OFFSET 0)"
    )


def _counted(leaf: PredictionCondition, dialect: SqlDialect) -> Sql:
    """Return the condition on the predictions themselves."""
    tests = [
        Sql.bounded(_property(name, dialect), [(op, bound)]) for name, op, bound in leaf.bounds
    ]
    if leaf.labels is not None:
        label = dialect.prediction_text.format("label")
        tests.insert(0, Sql(f"{label} IN ({placeholders(leaf.labels)})", leaf.labels))
    text, values = Sql.join(" AND ", tests or [TRUE.sql])
    matching = f"FROM {dialect.predictions} WHERE {text}"
    if not leaf.count:
        return Sql(f"EXISTS (SELECT 1 {matching})", values)
    return _counts(Sql(f"(SELECT count(*) {matching})", values), leaf.count)


def _counts(expression: Sql, bounds: tuple[tuple[BoundOperator, float], ...]) -> Sql:
    comparisons = [
        Sql(f"{expression.text} {SYMBOLS[operator]} ?", (*expression.values, bound))
        for operator, bound in bounds
    ]
    return Sql.join(" AND ", comparisons).wrap("({})")


def _property(name: str, dialect: SqlDialect) -> str:
    """Return the expression of a property in pixels, of a box, an oriented box or the box around a contour."""
    if name == "score":
        return dialect.prediction_number.format(name)
    if name == "area":
        return f"{_property('width', dialect)} * {_property('height', dialect)}"
    is_size = name in {"width", "height"}
    axis, side = ("x", "width") if name in {"width", "cx"} else ("y", "height")
    oriented = dialect.prediction_number.format(side[0] if is_size else name)
    template = "{1} - {0}" if is_size else "({0} + {1}) / 2.0"
    box = template.format(
        *(dialect.prediction_number.format(f"{axis}{end}") for end in ("min", "max"))
    )
    contours = template.format(
        *(dialect.contour_extreme.format(axis, end) for end in ("min", "max"))
    )
    return f"coalesce({box}, {oriented} * i.input_{side}, {contours})"
