"""Ground truth: statements joined to inferences that are stored already or arrive later.

The ground truth of an inference is the latest statement, the one with the largest id, that it is joined to.
So the order in which statements and inferences arrive does not matter.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from quadriga.store import metadata
from quadriga.store.database import execute, execute_in, insert, upsert
from quadriga.store.ids import LARGEST_ID
from quadriga.store.records import JournaledRecord, TruthStatement, json_text
from quadriga.store.rows import storable_text
from quadriga.store.schema import INDEXED_CHARACTERS, KeyType

_COLUMNS = {"request_id": "request_id", "input.hash": "input_hash"}


class _JoinKeys(NamedTuple):
    """Values of an inference that statements are joined on."""

    seq: int
    request_id: str
    image_no: int
    input_hash: str | None
    metadata: str | msgspec.Raw  # JSON


def join_text(value: str | float | bool) -> str:  # noqa: FBT001 - a JSON value
    """Return a metadata value as statements name it; `2.0` is `2`."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) <= metadata.LARGEST_INTEGER:
        value = int(value)
    return json_text(value)


def save_statements(
    connection: sa.Connection, statements: Iterable[tuple[int, TruthStatement]]
) -> None:
    """Store statements, each with its id, and link them to stored inferences, in the writer's transaction."""
    rows = [
        (
            seq,
            statement.join,
            statement.value,
            storable_text(statement.source),
            None if statement.annotations is None else json_text(statement.annotations),
        )
        for seq, statement in statements
    ]
    upsert(connection, "truth", rows)
    link_stored(
        connection, candidate_ids(connection, ((join, value) for _, join, value, *_ in rows))
    )


def candidate_ids(
    connection: sa.Connection, joins: Iterable[tuple[str, str]], limit: int | None = None
) -> set[int]:
    """Return all inferences that (join, value) pairs match, and a few others.

    With a limit, the result is incomplete if there are more, but then larger than the limit.
    """
    limit_clause = "" if limit is None else f" LIMIT {limit + 1}"
    by_join: dict[str, set[str]] = defaultdict(set)
    for join, value in joins:
        by_join[join].add(value)
    ids: set[int] = set()
    for join, values in by_join.items():
        if join == "id":
            ids |= {int(value) for value in values if int(value) <= LARGEST_ID}
        elif join.startswith("meta."):
            ids |= _with_metadata(connection, join[5:], values, limit_clause)
        else:
            requests = {_request(value) for value in values} if join == "request_id" else set()
            statement = f"SELECT seq FROM inference WHERE {_COLUMNS[join]} IN ({{}}){limit_clause}"
            ids |= {int(seq) for (seq,) in execute_in(connection, statement, values | requests)}
    return ids


def _request(value: str) -> str:
    request, separator, image = value.rpartition("#")
    return request if separator and image.isdecimal() else value


def _with_metadata(
    connection: sa.Connection, path: str, values: set[str], limit_clause: str
) -> set[int]:
    ids: set[int] = set()
    keys = execute(connection, "SELECT type, id FROM meta_key WHERE path = ?", (path,)).all()
    for type_, key in keys:
        table, indexed_values = _indexed(type_, values)
        statement = f"SELECT seq FROM {table} WHERE key = ? AND val IN ({{}}){limit_clause}"
        ids |= {int(seq) for (seq,) in execute_in(connection, statement, indexed_values, (key,))}
    return ids


def _indexed(type_: int, values: set[str]) -> tuple[str, set[Any]]:
    """Return the index table of values of a type, and the values in their indexed form."""
    if type_ == KeyType.STR:
        return "meta_str", {value[:INDEXED_CHARACTERS] for value in values}
    if type_ == KeyType.BOOL:
        return "meta_num", {float(value == "true") for value in values & {"true", "false"}}
    numbers = set()
    for value in values if type_ == KeyType.NUM else ():
        with suppress(ValueError):
            numbers.add(float(value))
    return "meta_num", numbers


def link_stored(connection: sa.Connection, seqs: Collection[int]) -> None:
    """Link stored inferences to their ground truth again, as after a change of their metadata."""
    if seqs and (joins := _stated_joins(connection)):
        columns = "seq, request_id, image_no, input_hash, meta"
        statement = f"SELECT {columns} FROM inference WHERE seq IN ({{}})"
        _link(
            connection, [_JoinKeys(*row) for row in execute_in(connection, statement, seqs)], joins
        )


def link_new(connection: sa.Connection, records: Iterable[JournaledRecord]) -> None:
    """Link newly inserted inferences to statements that came before them."""
    if joins := _stated_joins(connection):
        subjects = [
            _JoinKeys(
                record.seq,
                storable_text(record.request_id),
                record.image_no,
                record.input.hash,
                record.metadata,
            )
            for record in records
        ]
        _link(connection, subjects, joins)


def _stated_joins(connection: sa.Connection) -> set[str]:
    """Return the joins of all statements: few names, each found by one index lookup."""
    statement = "SELECT min(join_on) FROM truth WHERE join_on > ?"
    joins: list[str] = []
    while next_join := execute(connection, statement, (joins[-1] if joins else "",)).scalar():
        joins.append(next_join)
    return set(joins)


def _link(connection: sa.Connection, subjects: Sequence[_JoinKeys], joins: set[str]) -> None:
    by_join: dict[str, dict[str, list[int]]] = {join: defaultdict(list) for join in joins}
    for subject in subjects:
        for join, value in _join_values(subject, joins):
            by_join[join][value].append(subject.seq)
    latest: dict[int, int] = {}
    statement = (
        "SELECT value, max(id) FROM truth WHERE join_on = ? AND value IN ({}) GROUP BY value"
    )
    for join, seqs in by_join.items():
        for value, statement_id in execute_in(connection, statement, seqs, (join,)):
            for seq in seqs[value]:
                latest[seq] = max(latest.get(seq, 0), int(statement_id))
    statement = "SELECT id FROM truth WHERE annotations IS NULL AND id IN ({})"
    retracted = {seq for (seq,) in execute_in(connection, statement, set(latest.values()))}
    execute_in(
        connection,
        "DELETE FROM ground_truth WHERE seq IN ({})",
        [subject.seq for subject in subjects],
    )
    rows = [
        (seq, statement_id) for seq, statement_id in latest.items() if statement_id not in retracted
    ]
    insert(connection, "ground_truth", rows)


def _join_values(subject: _JoinKeys, joins: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the (join, value) pairs of a subject for the given joins."""
    if "id" in joins:
        yield "id", str(subject.seq)
    if "request_id" in joins:
        yield "request_id", subject.request_id
        yield "request_id", f"{subject.request_id}#{subject.image_no}"
    if "input.hash" in joins and subject.input_hash is not None:
        yield "input.hash", subject.input_hash
    if any(join.startswith("meta.") for join in joins):
        for path, value in metadata.flatten(metadata.decode(subject.metadata)).items():
            if f"meta.{path}" in joins:
                yield f"meta.{path}", join_text(value)
