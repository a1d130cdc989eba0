"""Reads the statements of ground truth that a tool of annotators made, by what they are joined to and by their source."""

from collections.abc import Collection, Iterator

import sqlalchemy as sa

from quadriga.store.changes.ground_truth import StoredStatement
from quadriga.store.database.database import execute, execute_in

MAX_STATEMENTS = 100
"""Maximum statements about one image that are read, the newest first."""

_COLUMNS = "id, join_on, value, source, annotations, task, model, owner, review"


def statements_joined(
    connection: sa.Connection, join: str, value: str, owner: str
) -> list[StoredStatement]:
    """Return the statements of an owner with a join and a value, newest first; at most `MAX_STATEMENTS`."""
    query = (
        f"SELECT {_COLUMNS} FROM truth WHERE join_on = ? AND value = ? AND owner = ?"
        " ORDER BY id DESC LIMIT ?"
    )
    rows = execute(connection, query, (join, value, owner, MAX_STATEMENTS))
    return [StoredStatement(*row) for row in rows]


def joined_values(
    connection: sa.Connection, join: str, values: Collection[str], owner: str
) -> set[str]:
    """Return those of some values that an owner has statements for, with a join."""
    query = "SELECT DISTINCT value FROM truth WHERE join_on = ? AND owner = ? AND value IN ({})"
    return {value for (value,) in execute_in(connection, query, values, (join, owner))}


def statements_of_source(
    connection: sa.Connection, prefix: str, owner: str
) -> Iterator[tuple[str, str, str, str]]:
    """Yield join, value, model and source of the statements of an owner whose source begins with a text.

    It reads all statements, as sources are not indexed: about a second for a million.
    """
    query = (
        "SELECT join_on, value, model, source FROM truth WHERE owner = ? AND substr(source, 1, ?) = ?"
        " AND join_on <> ''"
    )
    for row in execute(connection, query, (owner, len(prefix), prefix)):
        yield row[0], row[1], row[2], row[3]
