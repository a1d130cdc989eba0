"""Comparisons with metadata, the client's and the engine's, as SQL.

The client's is indexed by key, type and value: numbers as REAL, strings by their first characters.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from quadriga.store.query.catalog import Catalog
from quadriga.store.query.dialects import SqlDialect
from quadriga.store.query.sql import (
    FALSE,
    SYMBOLS,
    Predicate,
    Scan,
    Sql,
    compared_values,
    comparison_sql,
    index_table,
    key_scan,
    scans_by_value,
)
from quadriga.store.query.syntax import BOUNDS, Compare, Range, Scalar
from quadriga.store.schema import INDEXED_CHARACTERS, KeyType

EXACT_INTEGERS = 1 << 53
"""Below, an integer and its value as REAL are the same."""

_RELAXED = {"eq": "=", "gt": ">=", "ge": ">=", "lt": "<=", "le": "<="}


def compile_metadata(leaf: Compare | Range, catalog: Catalog, words: SqlDialect) -> Predicate:
    """Translate a comparison of `meta.` or `std.` and a path."""
    root, _, path = leaf.field.partition(".")
    is_indexed = root == "meta" and catalog.is_indexed(path)
    if isinstance(leaf, Compare) and leaf.operator in BOUNDS and leaf.operator != "eq":
        leaf = Range(leaf.field, ((leaf.operator, compared_values(leaf)[0]),))
    tests: list[Sql] = []
    scans: list[Scan] = []
    exact = True
    for type_, test in _tests(leaf, words):
        key = catalog.key(path, type_) if is_indexed else None
        if is_indexed and key is None:
            continue  # nobody has this key with a value of this type
        tests.append(test)
        if key is not None:
            found, is_exact = _scans(leaf, type_, key)
            scans += found
            exact = exact and is_exact
    if not tests:
        return FALSE
    source = words.metadata if root == "meta" else words.standard
    bound = (path,) if root == "meta" else words.standard_path(path)
    text, values = Sql.join(" OR ", dict.fromkeys(tests))
    test = Sql(f"EXISTS (SELECT 1 FROM {source} AND ({text}))", (*bound, *values))
    is_dense = not (isinstance(leaf, Compare) and leaf.operator == "contains")
    return Predicate(test, tuple(scans), exact, is_dense) if is_indexed else Predicate(test)


def _tests(leaf: Compare | Range, words: SqlDialect) -> Iterator[tuple[KeyType, Sql]]:
    """Give the tests of JSON, each with the type of what passes it."""
    if isinstance(leaf, Range):
        bounds = [(operator, words.bind_exact(value)) for operator, value in leaf.bounds]
        ((type_, _),) = _by_type(value for _, value in leaf.bounds).items()
        yield type_, Sql.bounded(words.text if type_ is KeyType.STR else words.number, bounds)
    elif leaf.operator == "exists":
        for type_ in KeyType:
            yield type_, Sql(words.present)
    else:
        for type_, values in _by_type(compared_values(leaf)).items():
            yield type_, _json_test(type_, leaf.operator, values, words)


def _json_test(type_: KeyType, operator: str, values: tuple[Scalar, ...], words: SqlDialect) -> Sql:
    if type_ is KeyType.BOOL:
        return comparison_sql(
            words.boolean, "in", tuple("true" if v else "false" for v in values), words
        )
    if type_ is KeyType.STR:
        return comparison_sql(words.text, operator, values, words)
    return comparison_sql(words.number, "in", tuple(map(words.bind_exact, values)), words)


def _scans(leaf: Compare | Range, type_: KeyType, key: int) -> tuple[tuple[Scan, ...], bool]:
    """Return the parts of an index that hold all matches, and whether they hold nothing else."""
    if isinstance(leaf, Range):
        exact, cut = _indexed(type_, [value for _, value in leaf.bounds])
        symbols = SYMBOLS if exact else _RELAXED
        condition = "".join(f" AND d.val {symbols[operator]} ?" for operator, _ in leaf.bounds)
        within = Sql(f"d.key = ?{condition}", (key, *cut))
        return (Scan(index_table(type_), within, ordered=False),), exact
    if leaf.operator in {"exists", "contains"}:
        return (key_scan(type_, key),), leaf.operator == "exists"
    exact, cut = _indexed(type_, _by_type(compared_values(leaf))[type_])
    return scans_by_value(index_table(type_), "d.val", tuple(dict.fromkeys(cut)), key), exact


def _indexed(type_: KeyType, values: Iterable[Scalar]) -> tuple[bool, tuple[Any, ...]]:
    """Return whether the index tells values from all others, and as what it has them."""
    if type_ is KeyType.STR:
        cut = tuple(str(value)[:INDEXED_CHARACTERS] for value in values)
        return all(len(value) < INDEXED_CHARACTERS for value in cut), cut
    numbers = tuple(float(value) for value in values)
    return all(abs(number) < EXACT_INTEGERS for number in numbers), numbers


def _by_type(values: Iterable[Scalar]) -> dict[KeyType, tuple[Scalar, ...]]:
    found: dict[KeyType, list[Scalar]] = {}
    for value in values:
        type_ = {str: KeyType.STR, bool: KeyType.BOOL}.get(type(value), KeyType.NUM)
        found.setdefault(type_, []).append(value)
    return {type_: tuple(dict.fromkeys(group)) for type_, group in found.items()}
