"""Ground truth: statements of what is true, joined to inferences that are stored or that come later.

The truth of an inference is the latest statement, the one with the largest id, of all that it is joined to.
So it does not matter in which order statements and inferences arrive.
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
    """What statements are joined to."""

    seq: int
    request_id: str
    image_no: int
    input_hash: str | None
    metadata: str | msgspec.Raw  # JSON


def join_text(value: str | float | bool) -> str:  # noqa: FBT001 - of JSON
    """Return a value of metadata as statements name it; `2.0` is `2`."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) <= metadata.LARGEST_INTEGER:
        value = int(value)
    return json_text(value)


def save_statements(connection: sa.Connection, given: Iterable[tuple[int, TruthStatement]]) -> None:
    """Keep statements, each with its id, and join them to what is stored; in the writer's transaction."""
    rows = [
        (
            seq,
            made.join,
            made.value,
            storable_text(made.source),
            None if made.annotations is None else json_text(made.annotations),
        )
        for seq, made in given
    ]
    upsert(connection, "truth", rows)
    link_stored(
        connection, candidate_ids(connection, ((join, value) for _, join, value, *_ in rows))
    )


def candidate_ids(
    connection: sa.Connection, joined: Iterable[tuple[str, str]], limit: int | None = None
) -> set[int]:
    """Return inferences that (join, value) pairs may tell: all of those that they do, few others.

    With a limit some more are given than so many, not all, where there are more.
    """
    end = "" if limit is None else f" LIMIT {limit + 1}"
    by_join: dict[str, set[str]] = defaultdict(set)
    for join, value in joined:
        by_join[join].add(value)
    found: set[int] = set()
    for join, values in by_join.items():
        if join == "id":
            found |= {int(value) for value in values if int(value) <= LARGEST_ID}
        elif join.startswith("meta."):
            found |= _with_metadata(connection, join[5:], values, end)
        else:
            requests = {_request(value) for value in values} if join == "request_id" else set()
            statement = f"SELECT seq FROM inference WHERE {_COLUMNS[join]} IN ({{}}){end}"
            found |= {int(seq) for (seq,) in execute_in(connection, statement, values | requests)}
    return found


def _request(value: str) -> str:
    request, separator, image = value.rpartition("#")
    return request if separator and image.isdecimal() else value


def _with_metadata(connection: sa.Connection, path: str, values: set[str], end: str) -> set[int]:
    found: set[int] = set()
    keys = execute(connection, "SELECT type, id FROM meta_key WHERE path = ?", (path,)).all()
    for type_, key in keys:
        table, of_type = _indexed(type_, values)
        statement = f"SELECT seq FROM {table} WHERE key = ? AND val IN ({{}}){end}"
        found |= {int(seq) for (seq,) in execute_in(connection, statement, of_type, (key,))}
    return found


def _indexed(type_: int, values: set[str]) -> tuple[str, set[Any]]:
    """Return the table that values of a type are found in, and the values as it has them."""
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
    """Give stored inferences their truth anew, as after a change of their metadata."""
    if seqs and (joins := _stated_joins(connection)):
        columns = "seq, request_id, image_no, input_hash, meta"
        statement = f"SELECT {columns} FROM inference WHERE seq IN ({{}})"
        _link(
            connection, [_JoinKeys(*row) for row in execute_in(connection, statement, seqs)], joins
        )


def link_new(connection: sa.Connection, records: Iterable[JournaledRecord]) -> None:
    """Give inferences just inserted the truth that was stated before they came."""
    if joins := _stated_joins(connection):
        subjects = [
            _JoinKeys(
                one.seq, storable_text(one.request_id), one.image_no, one.input.hash, one.metadata
            )
            for one in records
        ]
        _link(connection, subjects, joins)


def _stated_joins(connection: sa.Connection) -> set[str]:
    """Return what statements are joined on: few names, each found by one look at the index."""
    statement = "SELECT min(join_on) FROM truth WHERE join_on > ?"
    joins: list[str] = []
    while found := execute(connection, statement, (joins[-1] if joins else "",)).scalar():
        joins.append(found)
    return set(joins)


def _link(connection: sa.Connection, subjects: Sequence[_JoinKeys], joins: set[str]) -> None:
    by_join: dict[str, dict[str, list[int]]] = {join: defaultdict(list) for join in joins}
    for one in subjects:
        for join, value in _joined(one, joins):
            by_join[join][value].append(one.seq)
    latest: dict[int, int] = {}
    statement = (
        "SELECT value, max(id) FROM truth WHERE join_on = ? AND value IN ({}) GROUP BY value"
    )
    for join, seqs in by_join.items():
        for value, stated in execute_in(connection, statement, seqs, (join,)):
            for seq in seqs[value]:
                latest[seq] = max(latest.get(seq, 0), int(stated))
    statement = "SELECT id FROM truth WHERE annotations IS NULL AND id IN ({})"
    taken_away = {seq for (seq,) in execute_in(connection, statement, set(latest.values()))}
    execute_in(
        connection, "DELETE FROM ground_truth WHERE seq IN ({})", [one.seq for one in subjects]
    )
    rows = [(seq, stated) for seq, stated in latest.items() if stated not in taken_away]
    insert(connection, "ground_truth", rows)


def _joined(one: _JoinKeys, joins: set[str]) -> Iterator[tuple[str, str]]:
    """Yield what a subject has of what statements are joined on."""
    if "id" in joins:
        yield "id", str(one.seq)
    if "request_id" in joins:
        yield "request_id", one.request_id
        yield "request_id", f"{one.request_id}#{one.image_no}"
    if "input.hash" in joins and one.input_hash is not None:
        yield "input.hash", one.input_hash
    if any(join.startswith("meta.") for join in joins):
        for path, value in metadata.flatten(metadata.decode(one.metadata)).items():
            if f"meta.{path}" in joins:
                yield f"meta.{path}", join_text(value)
