"""SQL of comparisons with metadata of clients and standard metadata.

Metadata of clients is indexed by key, type and value: numbers as REAL, strings by their first characters.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from quadriga.store.database.schema import INDEXED_CHARACTERS, KeyType
from quadriga.store.query.filters.syntax import BOUNDS, Compare, Range, Scalar
from quadriga.store.query.sql.catalog import Catalog
from quadriga.store.query.sql.dialects import SqlDialect
from quadriga.store.query.sql.sql import (
    FALSE,
    MAX_MERGED_SCANS,
    MAX_MERGED_TEAM_SCANS,
    SYMBOLS,
    Predicate,
    Scan,
    Sql,
    among,
    comparison_sql,
    index_table,
    key_scan,
)

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
    for type_, test in _tests(leaf, dialect):
        keys = catalog.key_ids(path, type_) if is_indexed else ()
        if is_indexed and not keys:
            continue  # no inference has this key with a value of this type
        tests.append(test)
        if keys:
            key_scans, fewer, is_exact = _scans(leaf, type_, keys)
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


def _scans(
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
