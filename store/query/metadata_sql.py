"""Comparisons with metadata, the client's and the engine's, as SQL.

The client's is indexed by key, type and value: numbers as REAL, strings by their first characters.
"""

from typing import Any

from store.query.catalog import Catalog
from store.query.sql import (
    FALSE,
    SYMBOLS,
    Scan,
    Sql,
    Test,
    compared,
    key_scan,
    scan_each,
    table_of,
    values_of,
)
from store.query.syntax import BOUNDS, Compare, Range, Scalar
from store.query.words import Words
from store.schema import INDEXED_CHARACTERS, KeyType

EXACT_INTEGERS = 1 << 53
"""Below, an integer and its value as REAL are the same."""

_RELAXED = {"eq": "=", "gt": ">=", "ge": ">=", "lt": "<=", "le": "<="}


def compile_metadata(leaf: Compare | Range, catalog: Catalog, words: Words) -> Test:
    """Translate a comparison of `meta.` or `std.` and a path."""
    if isinstance(leaf, Compare) and leaf.operator in BOUNDS and leaf.operator != "eq":
        leaf = Range(leaf.field, ((leaf.operator, values_of(leaf)[0]),))
    if isinstance(leaf, Range):
        return _range(leaf, catalog, words)
    return _meta(leaf, catalog, words)


def _meta(leaf: Compare, catalog: Catalog, words: Words) -> Test:
    is_indexed, path = _path(leaf.field, catalog)
    tests: list[Sql] = []
    scans: list[Scan] = []
    exact = True
    if leaf.operator == "exists":
        keys = [(type_, catalog.key(path, type_)) for type_ in KeyType]
        scans = [key_scan(type_, key) for type_, key in keys if key is not None]
        tests = [Sql(words.present)] if scans or not is_indexed else []
    for type_, values in _by_type(values_of(leaf)).items() if leaf.operator != "exists" else ():
        key = catalog.key(path, type_)
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
    is_indexed, path = _path(leaf.field, catalog)
    values = tuple(value for _, value in leaf.bounds)
    ((type_, _),) = _by_type(values).items()
    column = words.text if type_ is KeyType.STR else words.number
    text = " AND ".join(f"{column} {SYMBOLS[operator]} ?" for operator, _ in leaf.bounds)
    test = _on_key(leaf.field, [Sql(text, tuple(map(words.exact, values)))], words)
    if not is_indexed:
        return Test(test)
    key = catalog.key(path, type_)
    if key is None:
        return FALSE
    exact, cut = _indexed(type_, values)
    symbols = SYMBOLS if exact else _RELAXED
    condition = "".join(f" AND d.val {symbols[operator]} ?" for operator, _ in leaf.bounds)
    scan = Scan(table_of(type_), Sql("d.key = ?" + condition, (key, *cut)), ordered=False)
    return Test(test, (scan,), exact)


def _path(field: str, catalog: Catalog) -> tuple[bool, str]:
    """Return whether an index has a field's values, and its path."""
    root, _, path = field.partition(".")
    return root == "meta" and catalog.is_indexed(path), path


def _on_key(field: str, tests: list[Sql], words: Words) -> Sql:
    """Return whether one of the tests holds for the value of a metadata key."""
    root, _, path = field.partition(".")
    is_given = root == "meta"
    source = words.metadata if is_given else words.standard
    bound = (path,) if is_given else words.standard_path(path)
    text, values = Sql.joined(" OR ", tests)
    return Sql(f"EXISTS (SELECT 1 FROM {source} AND ({text}))", (*bound, *values))


def _json_test(type_: KeyType, operator: str, values: tuple[Scalar, ...], words: Words) -> Sql:
    if type_ is KeyType.BOOL:
        return compared(words.boolean, "in", tuple("true" if v else "false" for v in values), words)
    if type_ is KeyType.STR:
        return compared(words.text, operator, values, words)
    return compared(words.number, "in", tuple(map(words.exact, values)), words)


def _value_scans(
    type_: KeyType, key: int, operator: str, values: tuple[Scalar, ...]
) -> tuple[tuple[Scan, ...], bool]:
    """Return the parts of an index that hold all matches, and whether they hold nothing else."""
    if operator == "contains":
        return (key_scan(type_, key),), False
    exact, cut = _indexed(type_, values)
    return scan_each(table_of(type_), "d.val", tuple(dict.fromkeys(cut)), key), exact


def _indexed(type_: KeyType, values: tuple[Scalar, ...]) -> tuple[bool, tuple[Any, ...]]:
    """Return whether the index tells values from all others, and as what it has them."""
    if type_ is KeyType.STR:
        cut = tuple(str(value)[:INDEXED_CHARACTERS] for value in values)
        return all(len(value) < INDEXED_CHARACTERS for value in cut), cut
    numbers = tuple(float(value) for value in values)
    return all(abs(number) < EXACT_INTEGERS for number in numbers), numbers


def _by_type(values: tuple[Scalar, ...]) -> dict[KeyType, tuple[Scalar, ...]]:
    found: dict[KeyType, list[Scalar]] = {}
    for value in values:
        type_ = {str: KeyType.STR, bool: KeyType.BOOL}.get(type(value), KeyType.NUM)
        found.setdefault(type_, []).append(value)
    return {type_: tuple(dict.fromkeys(group)) for type_, group in found.items()}
