"""One comparison as SQL of SQLite: the exact test on a row, and the index that holds all matches.

Row aliases: `i` is `inference`, `d` the index table that drives. Values are always bound.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from store.ids import LARGEST, TIME_SHIFT, first_at
from store.query.catalog import Catalog, marks
from store.query.syntax import Compare, Label, Range, Scalar, merged
from store.schema import INDEXED_CHARACTERS, KeyType

EXACT_INTEGERS = 1 << 53
"""Below, an integer and its value as REAL are the same."""

EMPTY_RANGE = (1, 0)
_SYMBOLS = {"eq": "=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_RELAXED = {"eq": "=", "gt": ">=", "ge": ">=", "lt": "<=", "le": "<="}
_COLUMNS = {
    "request_id": "+i.request_id",  # the plus keeps SQLite from planning by itself
    "action": "i.action",
    "input.hash": "+i.input_hash",
    "latency_ms": "i.latency_us / 1000.0",
}
_INDEXED_COLUMNS = {"request_id": "d.request_id", "input.hash": "d.input_hash"}
_JSON_TYPES = {KeyType.NUM: "m.type IN ('integer', 'real')", KeyType.STR: "m.type = 'text'"}


class Sql(NamedTuple):
    """SQL text and the values bound in it, in order."""

    text: str
    values: tuple[Any, ...] = ()


class Scan(NamedTuple):
    """A range of an index, as `SELECT d.seq FROM <source> WHERE <condition>`."""

    source: str
    condition: Sql
    ordered: bool
    """Whether its ids come in order, as where one value is looked for."""


class Leaf(NamedTuple):
    """A comparison as SQL."""

    test: Sql
    """Exact, on row `i`; never NULL."""
    scans: tuple[Scan, ...] | None = None
    """Together they give every match; `None` where no index does."""
    exact: bool = False
    """Whether the scans give nothing else."""


TRUE, FALSE = Leaf(Sql("1 = 1")), Leaf(Sql("1 = 0"), (), exact=True)


def compile_leaf(leaf: Compare | Range | Label, catalog: Catalog) -> Leaf:
    """Translate one comparison."""
    if isinstance(leaf, Range):
        return _range(leaf, catalog)
    if isinstance(leaf, Label):
        return _label(leaf, catalog)
    if leaf.field.startswith("meta."):
        (either,) = merged([leaf])
        return _range(either, catalog) if isinstance(either, Range) else _meta(leaf, catalog)
    if leaf.field in {"id", "ts"}:
        return _seq(leaf)
    if leaf.field in {"model", "task"}:
        return _model(leaf, catalog)
    return _column(leaf)


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


def _seq(leaf: Compare) -> Leaf:
    if leaf.operator == "exists":
        return TRUE
    if leaf.operator != "in":
        return Leaf(Sql("+i.seq BETWEEN ? AND ?", seq_range(leaf)))
    ranges = [seq_range(Compare(leaf.field, "eq", value)) for value in _values(leaf)]
    ids = tuple(low for low, high in ranges if low <= high)
    if leaf.field == "ts":
        times = tuple(first >> TIME_SHIFT for first in ids)
        return Leaf(Sql(f"(i.seq >> {TIME_SHIFT}) IN ({marks(times)})", times))
    scan = Scan("inference AS d", Sql(f"d.seq IN ({marks(ids)})", ids), ordered=True)
    return Leaf(Sql(f"+i.seq IN ({marks(ids)})", ids), (scan,), exact=True)


def _model(leaf: Compare, catalog: Catalog) -> Leaf:
    if leaf.operator == "exists":
        return TRUE
    ids = catalog.model_ids(leaf.field, _values(leaf))
    if not ids:
        return FALSE
    text = f"i.model_id IN ({marks(ids)})"
    scan = Scan("inference AS d", Sql("d" + text[1:], ids), ordered=len(ids) == 1)
    return Leaf(Sql("+" + text, ids), (scan,), exact=True)


def _column(leaf: Compare) -> Leaf:
    column = _COLUMNS[leaf.field]
    values = _values(leaf)
    present = f"{column} IS NOT NULL"
    if leaf.operator == "exists":
        return Leaf(Sql(present))
    if leaf.operator == "in":
        comparison = f"IN ({marks(values)})"
    elif leaf.operator == "contains":
        return Leaf(Sql(f"({present} AND instr({column}, ?) > 0)", values))
    else:
        comparison = f"{_SYMBOLS[leaf.operator]} ?"
    test = Sql(f"({present} AND {column} {comparison})", values)
    indexed = _INDEXED_COLUMNS.get(leaf.field)
    if indexed is None or leaf.operator not in {"eq", "in"}:
        return Leaf(test)
    condition = Sql(f"{indexed} {comparison}", values)
    scan = Scan("inference AS d", condition, ordered=leaf.operator == "eq")
    return Leaf(test, (scan,), exact=True)


def _label(leaf: Label, catalog: Catalog) -> Leaf:
    names = tuple(name for name in leaf.names if name in catalog.labels)
    if not names:
        return FALSE
    labels = tuple(catalog.labels[name] for name in names)
    is_label = f"d.label IN ({marks(labels)})"
    # The index has a label's best score: right for lower bounds, a first sieve for others.
    lower = [(o if o == "gt" else "ge", v) for o, v in leaf.bounds if o in {"gt", "ge", "eq"}]
    by_best = all(operator in {"gt", "ge"} for operator, _ in leaf.bounds)
    if leaf.bounds and not lower:
        lower = [("gt", -math.inf)]
    conditions = "".join(f" AND d.score {_SYMBOLS[operator]} ?" for operator, _ in lower)
    bound = (*labels, *(value for _, value in lower))
    scan = Scan("pred AS d", Sql(is_label + conditions, bound), ordered=False)
    text = f"EXISTS (SELECT 1 FROM pred AS d WHERE d.seq = i.seq AND {is_label}{conditions})"
    if by_best:  # of several labels, the index has a row each: not one for each match
        return Leaf(Sql(text, bound), (scan,), exact=len(labels) == 1)
    score = "json_extract(m.value, '$.score')"
    scores = "".join(f" AND {score} {_SYMBOLS[operator]} ?" for operator, _ in leaf.bounds)
    text += (
        " AND EXISTS (SELECT 1 FROM json_each(i.predictions) AS m WHERE m.type = 'object'"
        " AND json_type(m.value, '$.label') = 'text'"
        f" AND json_extract(m.value, '$.label') IN ({marks(names)})"
        f" AND json_type(m.value, '$.score') IN ('integer', 'real'){scores})"
    )
    values = (*bound, *names, *(value for _, value in leaf.bounds))
    return Leaf(Sql(f"({text})", values), (scan,))


def _meta(leaf: Compare, catalog: Catalog) -> Leaf:
    path = leaf.field[5:]
    tests: list[Sql] = []
    scans: list[Scan] = []
    exact = True
    if leaf.operator == "exists":
        keys = [(type_, catalog.keys.get((path, type_))) for type_ in KeyType]
        scans = [_key_scan(type_, key) for type_, key in keys if key is not None]
        tests = [Sql("m.type <> 'null'")] if scans else []
    for type_, values in _by_type(_values(leaf)).items() if leaf.operator != "exists" else ():
        key = catalog.keys.get((path, type_))
        if key is None:
            continue  # nobody has this key with a value of this type
        tests.append(_json_test(type_, leaf.operator, values))
        scan, is_exact = _value_scan(type_, key, leaf.operator, values)
        scans.append(scan)
        exact = exact and is_exact
    if not tests:
        return FALSE
    return Leaf(_on_key(path, tests), tuple(scans), exact)


def _range(leaf: Range, catalog: Catalog) -> Leaf:
    path = leaf.field[5:]
    values = tuple(value for _, value in leaf.bounds)
    ((type_, _),) = _by_type(values).items()
    key = catalog.keys.get((path, type_))
    if key is None:
        return FALSE
    exact, cut = _exact[type_](values)
    symbols = _SYMBOLS if exact else _RELAXED
    condition = "".join(f" AND d.val {symbols[operator]} ?" for operator, _ in leaf.bounds)
    test = "".join(f" AND m.value {_SYMBOLS[operator]} ?" for operator, _ in leaf.bounds)
    scan = Scan(_table(type_), Sql("d.key = ?" + condition, (key, *cut)), ordered=False)
    return Leaf(_on_key(path, [Sql(_JSON_TYPES[type_] + test, values)]), (scan,), exact)


def _on_key(path: str, tests: list[Sql]) -> Sql:
    """Return whether one of the tests holds for the value of a metadata key."""
    text = (
        "EXISTS (SELECT 1 FROM json_each(coalesce(i.meta_flat, i.meta)) AS m WHERE m.key = ?"
        f" AND ({' OR '.join(test.text for test in tests)}))"
    )
    return Sql(text, (path, *(value for test in tests for value in test.values)))


def _json_test(type_: KeyType, operator: str, values: tuple[Scalar, ...]) -> Sql:
    if type_ is KeyType.BOOL:
        words = ", ".join(sorted({"'true'" if value else "'false'" for value in values}))
        return Sql(f"m.type IN ({words})")
    if operator == "contains":
        return Sql(f"{_JSON_TYPES[type_]} AND instr(m.value, ?) > 0", values)
    return Sql(f"{_JSON_TYPES[type_]} AND m.value IN ({marks(values)})", values)


def _value_scan(
    type_: KeyType, key: int, operator: str, values: tuple[Scalar, ...]
) -> tuple[Scan, bool]:
    """Return the range of an index that holds all matches, and whether it holds nothing else."""
    if operator == "contains":
        return _key_scan(type_, key), False
    exact, cut = _exact[type_](values)
    condition = Sql(f"d.key = ? AND d.val IN ({marks(cut)})", (key, *cut))
    return Scan(_table(type_), condition, ordered=len(cut) == 1), exact


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


def _values(leaf: Compare) -> tuple[Scalar, ...]:
    return leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)
