"""One comparison as SQL: the exact test on a row, and the parts of an index that hold all matches.

Row aliases: `i` is `inference`, `d` the index table that drives. Values are always bound.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from store.ids import LARGEST, TIME_SHIFT, first_at
from store.query.catalog import Catalog, marks
from store.query.syntax import Compare, Range, Scalar, merged
from store.query.words import Words
from store.schema import INDEXED_CHARACTERS, KeyType

EXACT_INTEGERS = 1 << 53
"""Below, an integer and its value as REAL are the same."""

MAX_MERGED = 16
"""Of so many parts of an index, each in order, the first rows in order are found together."""

EMPTY_RANGE = (1, 0)
SYMBOLS = {"eq": "=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_RELAXED = {"eq": "=", "gt": ">=", "ge": ">=", "lt": "<=", "le": "<="}
_COLUMNS = {
    "request_id": "i.request_id",
    "action": "i.action",
    "input.hash": "i.input_hash",
    "latency_ms": "i.latency_us / CAST(1000 AS DOUBLE PRECISION)",
    "status": "i.status",
    "predictions": "i.prediction_count",
}
_INDEXED_COLUMNS = {"request_id": "d.request_id", "input.hash": "d.input_hash"}
_TRUTH = (
    "EXISTS (SELECT 1 FROM ground_truth AS g JOIN truth AS t ON t.id = g.truth_id"
    " WHERE g.seq = i.seq AND t.annotations IS NOT NULL{0} LIMIT 1 OFFSET 0)"
)


class Sql(NamedTuple):
    """SQL text and the values bound in it, in order."""

    text: str
    values: tuple[Any, ...] = ()


class Scan(NamedTuple):
    """A range of an index, as `SELECT d.seq FROM <source> WHERE <condition>`."""

    source: str
    condition: Sql
    ordered: bool
    """Whether its ids come in order, each once, as where one value is looked for."""


class Test(NamedTuple):
    """A comparison as SQL."""

    test: Sql
    """Exact, on row `i`; never NULL."""
    scans: tuple[Scan, ...] | None = None
    """Together they give every match; `None` where no index does."""
    exact: bool = False
    """Whether the scans give nothing else."""
    dense: bool = True
    """Whether most of what the scans give are matches."""


TRUE, FALSE = Test(Sql("1 = 1")), Test(Sql("1 = 0"), (), exact=True)


def compile_compare(leaf: Compare | Range, catalog: Catalog, words: Words) -> Test:
    """Translate a comparison of a field with values."""
    if isinstance(leaf, Range):
        return _range(leaf, catalog, words)
    if leaf.field.startswith(("meta.", "std.")):
        (either,) = merged([leaf])
        if isinstance(either, Range):
            return _range(either, catalog, words)
        return _meta(leaf, catalog, words)
    compilers: dict[str, Callable[[Compare, Catalog, Words], Test]] = {
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
        first, after = first_at(-(-value // 1000)), first_at(value // 1000 + 1)
    low = max({"gt": after, "ge": first, "eq": first}.get(leaf.operator, 0), 0)
    high = min(
        {"lt": first - 1, "le": after - 1, "eq": after - 1}.get(leaf.operator, LARGEST), LARGEST
    )
    return (low, high) if low <= high else EMPTY_RANGE


def _seq(leaf: Compare, *_: object) -> Test:
    if leaf.operator == "exists":
        return TRUE
    if leaf.operator != "in":
        return Test(Sql("i.seq BETWEEN ? AND ?", seq_range(leaf)))
    ranges = [seq_range(Compare(leaf.field, "eq", value)) for value in values_of(leaf)]
    ids = tuple(low for low, high in ranges if low <= high)
    if not ids:
        return FALSE
    if leaf.field == "ts":
        times = tuple(first >> TIME_SHIFT for first in ids)
        return Test(Sql(f"(i.seq >> {TIME_SHIFT}) IN ({marks(times)})", times))
    scan = Scan("inference AS d", Sql(f"d.seq IN ({marks(ids)})", ids), ordered=True)
    return Test(Sql(f"i.seq IN ({marks(ids)})", ids), (scan,), exact=True)


def _model(leaf: Compare, catalog: Catalog, _: Words) -> Test:
    if leaf.operator == "exists":
        return TRUE
    ids = catalog.model_ids(leaf.field, values_of(leaf))
    if not ids:
        return FALSE
    test = Sql(f"i.model_id IN ({marks(ids)})", ids)
    return Test(test, _each("inference AS d", "d.model_id", ids), exact=True)


def _each(source: str, column: str, values: tuple[Any, ...], *key: Any) -> tuple[Scan, ...]:
    """Return the parts of an index with these values: one for each, unless they are many."""
    first = "d.key = ? AND " if key else ""
    if len(values) <= MAX_MERGED:
        return tuple(
            Scan(source, Sql(f"{first}{column} = ?", (*key, value)), ordered=True)
            for value in values
        )
    condition = Sql(f"{first}{column} IN ({marks(values)})", (*key, *values))
    return (Scan(source, condition, ordered=False),)


def _column(leaf: Compare, _: Catalog, words: Words) -> Test:
    column = _COLUMNS[leaf.field]
    values = tuple(dict.fromkeys(values_of(leaf)))
    present = f"{column} IS NOT NULL"
    if leaf.operator == "exists":
        return Test(Sql(present))
    comparison = _comparison(column, leaf.operator, values, words)
    test = Sql(f"({present} AND {comparison.text})", comparison.values)
    if comparison is FALSE.test:
        return FALSE
    indexed = _INDEXED_COLUMNS.get(leaf.field)
    if indexed is None or leaf.operator not in {"eq", "in"}:
        return Test(test)
    return Test(test, _each("inference AS d", indexed, values), exact=True)


def _answer(leaf: Compare, _: Catalog, words: Words) -> Test:
    text = words.text_of.format("answer")
    test = _comparison(text, leaf.operator, values_of(leaf), words)
    return Test(Sql(f"EXISTS (SELECT 1 FROM {words.predictions} WHERE {test.text})", test.values))


def _place_exists(_: Compare, catalog: Catalog, words: Words) -> Test:
    key = catalog.keys.get(("", KeyType.CELL))
    if key is None:
        return FALSE
    test = f"EXISTS (SELECT 1 FROM {words.place} WHERE p.latitude + p.longitude IS NOT NULL)"
    return Test(Sql(test), (_key_scan(KeyType.CELL, key),), exact=True)


def _truth(leaf: Compare, _: Catalog, words: Words) -> Test:
    scan = Scan("ground_truth AS d", Sql("1 = 1"), ordered=True)
    if leaf.field == "ground_truth":
        return Test(Sql(_TRUTH.format("")), (scan,))
    test = _comparison(words.text, leaf.operator, values_of(leaf), words)
    label = f" AND EXISTS (SELECT 1 FROM {words.annotated} AND {test.text})"
    return Test(Sql(_TRUTH.format(label), test.values), (scan,), dense=False)


def _feedback(*_: object) -> Test:
    test = "EXISTS (SELECT 1 FROM feedback AS f WHERE f.seq = i.seq LIMIT 1 OFFSET 0)"
    return Test(Sql(test), (Scan("feedback AS d", Sql("1 = 1"), ordered=False),))


def _comparison(expression: str, operator: str, values: tuple[Scalar, ...], words: Words) -> Sql:
    """Return a test of an expression that may be NULL."""
    if operator == "exists":
        return Sql(f"{expression} IS NOT NULL")
    if operator == "contains":
        return Sql(words.contains.format(expression), values)
    if operator == "in":
        if not values:
            return FALSE.test
        return Sql(f"{expression} IN ({marks(values)})", values)
    return Sql(f"{expression} {SYMBOLS[operator]} ?", values)


def _meta(leaf: Compare, catalog: Catalog, words: Words) -> Test:
    is_indexed, path = _path(leaf.field)
    tests: list[Sql] = []
    scans: list[Scan] = []
    exact = True
    if leaf.operator == "exists":
        keys = [(type_, catalog.keys.get((path, type_))) for type_ in KeyType]
        scans = [_key_scan(type_, key) for type_, key in keys if key is not None]
        tests = [Sql(words.present)] if scans or not is_indexed else []
    for type_, values in _by_type(values_of(leaf)).items() if leaf.operator != "exists" else ():
        key = catalog.keys.get((path, type_))
        if is_indexed and key is None:
            continue  # nobody has this key with a value of this type
        tests.append(_json_test(type_, leaf.operator, values, words))
        if key is not None:
            found, is_exact = _value_scans(type_, key, leaf.operator, values)
            scans += found
            exact = exact and is_exact
    if not tests:
        return FALSE
    test = _on_key(leaf.field, tests, words)
    return (
        Test(test, tuple(scans), exact, leaf.operator != "contains") if is_indexed else Test(test)
    )


def _range(leaf: Range, catalog: Catalog, words: Words) -> Test:
    is_indexed, path = _path(leaf.field)
    values = tuple(value for _, value in leaf.bounds)
    ((type_, _),) = _by_type(values).items()
    column = words.text if type_ is KeyType.STR else words.number
    text = " AND ".join(f"{column} {SYMBOLS[operator]} ?" for operator, _ in leaf.bounds)
    test = _on_key(leaf.field, [Sql(text, tuple(map(words.exact, values)))], words)
    if not is_indexed:
        return Test(test)
    key = catalog.keys.get((path, type_))
    if key is None:
        return FALSE
    exact, cut = _exact[type_](values)
    symbols = SYMBOLS if exact else _RELAXED
    condition = "".join(f" AND d.val {symbols[operator]} ?" for operator, _ in leaf.bounds)
    scan = Scan(_table(type_), Sql("d.key = ?" + condition, (key, *cut)), ordered=False)
    return Test(test, (scan,), exact)


def _path(field: str) -> tuple[bool, str]:
    """Return whether an index has a field's values, and its path."""
    root, _, path = field.partition(".")
    return root == "meta", path


def _on_key(field: str, tests: list[Sql], words: Words) -> Sql:
    """Return whether one of the tests holds for the value of a metadata key."""
    is_indexed, path = _path(field)
    source = words.metadata if is_indexed else words.standard
    bound = (path,) if is_indexed else words.standard_path(path)
    text = f"EXISTS (SELECT 1 FROM {source} AND ({' OR '.join(test.text for test in tests)}))"
    return Sql(text, (*bound, *(value for test in tests for value in test.values)))


def _json_test(type_: KeyType, operator: str, values: tuple[Scalar, ...], words: Words) -> Sql:
    if type_ is KeyType.BOOL:
        return _comparison(
            words.boolean, "in", tuple("true" if v else "false" for v in values), words
        )
    if type_ is KeyType.STR:
        return _comparison(words.text, operator, values, words)
    return _comparison(words.number, "in", tuple(map(words.exact, values)), words)


def _value_scans(
    type_: KeyType, key: int, operator: str, values: tuple[Scalar, ...]
) -> tuple[tuple[Scan, ...], bool]:
    """Return the parts of an index that hold all matches, and whether they hold nothing else."""
    if operator == "contains":
        return (_key_scan(type_, key),), False
    exact, cut = _exact[type_](values)
    return _each(_table(type_), "d.val", tuple(dict.fromkeys(cut)), key), exact


def _exact_numbers(values: tuple[Scalar, ...]) -> tuple[bool, tuple[Any, ...]]:
    numbers = tuple(float(value) for value in values)
    return all(abs(number) < EXACT_INTEGERS for number in numbers), numbers


def _exact_strings(values: tuple[Scalar, ...]) -> tuple[bool, tuple[Any, ...]]:
    cut = tuple(str(value)[:INDEXED_CHARACTERS] for value in values)
    return all(len(value) < INDEXED_CHARACTERS for value in cut), cut


_exact: dict[KeyType, Callable[[tuple[Scalar, ...]], tuple[bool, tuple[Any, ...]]]] = {
    KeyType.NUM: _exact_numbers,
    KeyType.STR: _exact_strings,
    KeyType.BOOL: _exact_numbers,
}


def _key_scan(type_: KeyType, key: int) -> Scan:
    return Scan(_table(type_), Sql("d.key = ?", (key,)), ordered=False)


def _table(type_: KeyType) -> str:
    return "meta_str AS d" if type_ is KeyType.STR else "meta_num AS d"


def _by_type(values: tuple[Scalar, ...]) -> dict[KeyType, tuple[Scalar, ...]]:
    found: dict[KeyType, list[Scalar]] = {}
    for value in values:
        if isinstance(value, str):
            found.setdefault(KeyType.STR, []).append(value)
        else:
            type_ = KeyType.BOOL if isinstance(value, bool) else KeyType.NUM
            found.setdefault(type_, []).append(value)
    return {type_: tuple(dict.fromkeys(group)) for type_, group in found.items()}


def values_of(leaf: Compare) -> tuple[Scalar, ...]:
    """Return the values that a field is compared with."""
    return leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)
