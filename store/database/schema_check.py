"""Comparison of a database's tables, columns and indexes with those that the migrations make.

The revision that a database is marked with says which tables it should have, not which it has: an unreleased version,
a restored dump or a hand may have changed them. What is expected stands in `migrations/<database>.schema.txt`, one
line for each table, column and index, and belongs to the last revision.
"""

from functools import cache
from importlib.resources import files

import sqlalchemy as sa

from quadriga.store.records.errors import StoreError

_MAX_DIFFERENCES = 5  # that an error lists

_SQLITE_COLUMNS = """
SELECT m.name, c.name, c.type, c."notnull", c.pk
FROM sqlite_schema AS m JOIN pragma_table_info(m.name) AS c WHERE m.type = 'table'
"""
_SQLITE_INDEXES = """
SELECT m.name, i.name, i."unique", i.partial, c.name
FROM sqlite_schema AS m JOIN pragma_index_list(m.name) AS i JOIN pragma_index_info(i.name) AS c
WHERE m.type = 'table' AND i.origin <> 'pk' ORDER BY i.name, c.seqno
"""
_POSTGRESQL_COLUMNS = """
SELECT t.relname, c.attname,
    format_type(c.atttypid, c.atttypmod) || CASE WHEN l.collname = 'C' THEN ' collate C' ELSE '' END,
    c.attnotnull, coalesce(array_position(k.indkey::int2[], c.attnum) + 1, 0)
FROM pg_class AS t JOIN pg_attribute AS c ON c.attrelid = t.oid
LEFT JOIN pg_index AS k ON k.indrelid = t.oid AND k.indisprimary
LEFT JOIN pg_collation AS l ON l.oid = c.attcollation
WHERE t.relnamespace = current_schema()::regnamespace AND t.relkind IN ('r', 'p')
    AND NOT t.relispartition AND c.attnum > 0 AND NOT c.attisdropped
"""
_POSTGRESQL_INDEXES = """
SELECT t.relname, i.indexrelid, i.indisunique, i.indpred IS NOT NULL, c.attname
FROM pg_class AS t JOIN pg_index AS i ON i.indrelid = t.oid
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, position)
JOIN pg_attribute AS c ON c.attrelid = t.oid AND c.attnum = k.attnum
WHERE t.relnamespace = current_schema()::regnamespace AND NOT t.relispartition
    AND t.relkind IN ('r', 'p') AND NOT i.indisprimary AND i.indisvalid
ORDER BY i.indexrelid, k.position
"""
_QUERIES = {
    "sqlite": (_SQLITE_COLUMNS, _SQLITE_INDEXES),
    "postgresql": (_POSTGRESQL_COLUMNS, _POSTGRESQL_INDEXES),
}


def check_schema(connection: sa.Connection, revision: str, *, may_have_more: bool = False) -> None:
    """Check that the tables of a database are those of the last revision.

    Tables and indexes that are not ours may stand beside them; other columns only where `may_have_more`, as a newer
    version added them.

    Raises:
        StoreError: They are not; the message lists differences.
    """
    expected, present = _expected_schema(connection.dialect.name), describe_schema(connection)
    tables = {line.partition(".")[0] for line in expected}
    differences = [f"missing {line}" for line in sorted(expected - present)]
    if not may_have_more:
        differences += [
            f"unexpected {line}"
            for line in sorted(present - expected)
            if line.partition(".")[0] in tables and " index " not in line
        ]
    if differences:
        count, listed = len(differences), "; ".join(differences[:_MAX_DIFFERENCES])
        if count > _MAX_DIFFERENCES:
            listed += f"; {count - _MAX_DIFFERENCES} more"
        raise StoreError(
            f"expected the tables of revision {revision}, got others under its name: {listed}. "
            "An unreleased version or another program changed them: restore a backup, "
            "or begin with an empty database"
        )


def describe_schema(connection: sa.Connection) -> set[str]:
    """Return a line for each column and each index of a database's tables, without its partitions."""
    column_query, index_query = _QUERIES[connection.dialect.name]
    lines = set()
    for table, column, type_, is_required, key_position in connection.exec_driver_sql(column_query):
        required = " not null" if is_required else ""
        key = f" key {key_position}" if key_position else ""
        lines.add(f"{table}.{column} {type_}{required}{key}")
    indexes: dict[tuple[str, str, bool, bool], list[str]] = {}
    for table, index, is_unique, is_partial, column in connection.exec_driver_sql(index_query):
        columns = indexes.setdefault((table, index, bool(is_unique), bool(is_partial)), [])
        columns.append(column)
    for (table, _, is_unique, is_partial), columns in indexes.items():
        unique = "unique " if is_unique else ""
        partial = " where" if is_partial else ""
        lines.add(f"{table}. {unique}index ({', '.join(columns)}){partial}")
    return {line for line in lines if not line.startswith(("alembic_version.", "sqlite_"))}


@cache
def _expected_schema(database: str) -> frozenset[str]:
    text = (
        files("quadriga.store.database.migrations")
        .joinpath(f"{database}.schema.txt")
        .read_text("utf-8")
    )
    return frozenset(text.splitlines())
