"""SQL of comparisons with metadata of clients and standard metadata.

Metadata of clients is indexed by key, type and value: numbers as REAL, strings by their first characters.
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
"""Integers below this limit equal their REAL value."""

_RELAXED = {"eq": "=", "gt": ">=", "ge": ">=", "lt": "<=", "le": "<="}


def compile_metadata(leaf: Compare | Range, catalog: Catalog, dialect: SqlDialect) -> Predicate:
    """Compile a comparison of a field `meta.<path>` or `std.<path>`."""
    root, _, path = leaf.field.partition(".")
    is_indexed = root == "meta" and catalog.is_indexed(path)
    if isinstance(leaf, Compare) and leaf.operator in BOUNDS and leaf.operator != "eq":
        leaf = Range(leaf.field, ((leaf.operator, compared_values(leaf)[0]),))
    tests: list[Sql] = []
    scans: list[Scan] = []
    all_exact = True
    for type_, test in _tests(leaf, dialect):
        key = catalog.key(path, type_) if is_indexed else None
        if is_indexed and key is None:
            continue  # no inference has this key with a value of this type
        tests.append(test)
        if key is not None:
            key_scans, is_exact = _scans(leaf, type_, key)
            scans += key_scans
            all_exact = all_exact and is_exact
    if not tests:
        return FALSE
    source = dialect.metadata if root == "meta" else dialect.standard
    bound = (path,) if root == "meta" else dialect.standard_path(path)
    text, values = Sql.join(" OR ", dict.fromkeys(tests))
    test = Sql(f"EXISTS (SELECT 1 FROM {source} AND ({text}))", (*bound, *values))
    is_dense = not (isinstance(leaf, Compare) and leaf.operator == "contains")
    return Predicate(test, tuple(scans), all_exact, is_dense) if is_indexed else Predicate(test)


def _tests(leaf: Compare | Range, dialect: SqlDialect) -> Iterator[tuple[KeyType, Sql]]:
    """Yield the conditions on the JSON, each with the type of the values that satisfy it."""
    if isinstance(leaf, Range):
        bounds = [(operator, dialect.bind_exact(value)) for operator, value in leaf.bounds]
        ((type_, _),) = _by_type(value for _, value in leaf.bounds).items()
        yield type_, Sql.bounded(dialect.text if type_ is KeyType.STR else dialect.number, bounds)
    elif leaf.operator == "exists":
        for type_ in KeyType:
            yield type_, Sql(dialect.present)
    else:
        for type_, values in _by_type(compared_values(leaf)).items():
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


def _scans(leaf: Compare | Range, type_: KeyType, key: int) -> tuple[tuple[Scan, ...], bool]:
    """Return index scans that return all matches, and whether they return nothing else."""
    if isinstance(leaf, Range):
        is_exact, indexed_values = _indexed(type_, [value for _, value in leaf.bounds])
        symbols = SYMBOLS if is_exact else _RELAXED
        condition = "".join(f" AND d.val {symbols[operator]} ?" for operator, _ in leaf.bounds)
        range_condition = Sql(f"d.key = ?{condition}", (key, *indexed_values))
        return (Scan(index_table(type_), range_condition, ordered=False),), is_exact
    if leaf.operator in {"exists", "contains"}:
        return (key_scan(type_, key),), leaf.operator == "exists"
    is_exact, indexed_values = _indexed(type_, _by_type(compared_values(leaf))[type_])
    return scans_by_value(
        index_table(type_), "d.val", tuple(dict.fromkeys(indexed_values)), key
    ), is_exact


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
