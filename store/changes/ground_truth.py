"""Ground truth: statements joined to inferences that are stored already or arrive later.

The ground truth of an inference is the latest statement, the one with the largest id, that it is joined to and that
applies to its task and model. So the order in which statements and inferences arrive does not matter. Where there is
none, `other_truth` has the latest statement that is joined and does not apply.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from quadriga.store.changes.annotations import derived_task
from quadriga.store.database.database import execute, execute_in, insert, stored_ids, upsert
from quadriga.store.database.rows import models_by_id, storable_text
from quadriga.store.database.schema import INDEXED_CHARACTERS, KeyType
from quadriga.store.query.names import Catalog, first_ids
from quadriga.store.records import metadata
from quadriga.store.records.errors import ChangeError
from quadriga.store.records.ids import LARGEST_ID
from quadriga.store.records.records import ANY_REVISION, JournaledRecord, TruthStatement, json_text
from quadriga.store.records.scope import DEFAULT_OWNER, EVERYTHING, Scope, owner_of

REFUSED = ""
"""Join of a stored statement whose expected revision was not current: it is joined to nothing, and stays refused."""

_COLUMNS = {"request_id": "request_id", "input.hash": "input_hash"}
_SCOPE = f"task IN ('', ?) AND model IN ('', ?) AND owner IN ('{DEFAULT_OWNER}', ?)"
_IS_STATED = "EXISTS (SELECT 1 FROM truth AS t WHERE t.join_on = j.column1 LIMIT 1 OFFSET 0)"
_FEW_JOINS = 16
_JOINS_AT_ONCE = 500
_MAX_HISTORY_CHARACTERS = 16 << 20  # of all annotations in a history


class Subject(NamedTuple):
    """An inference: what statements are joined on, and what decides which of them apply."""

    seq: int
    request_id: str
    image_no: int
    input_hash: str | None
    metadata: str | msgspec.Raw  # JSON
    task: str
    model: str
    team: str = ""
    standard: str | msgspec.Raw = "{}"  # JSON

    @property
    def is_crop(self) -> bool:
        """Whether the image was cut out of another one, whose metadata it has."""
        standard = self.standard
        encoded = standard.encode() if isinstance(standard, str) else bytes(standard)
        return b'"crop":' in encoded and "crop" in metadata.decode(encoded)

    def is_of(self, owner: str) -> bool:
        """Check whether statements of an owner are for the inference: its own team, or the owner for every team."""
        return owner in (DEFAULT_OWNER, owner_of(self.team))

    def is_in_scope(self, task: str, model: str) -> bool:
        """Check whether a statement about a task and a model, empty for all, applies."""
        return task in ("", self.task) and model in ("", self.model)


class StoredStatement(NamedTuple):
    """A statement as the database has it."""

    id: int
    join: str
    value: str
    source: str
    annotations: str | None
    task: str
    model: str
    owner: str
    review: str


JoinedSubjects = dict[tuple[str, str], list[Subject]]
"""The inferences that are stored now, by the join and the value that select them."""

MAX_OF_TOOL = 100
"""Maximum statements about one image that a tool of annotators reads, the newest first."""

_STATEMENT = "t.id, t.join_on, t.value, t.source, t.annotations, t.task, t.model, t.owner, t.review"


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
    """Store statements, each with its id, and link them to stored inferences, in the writer's transaction.

    A statement whose expected revision is not current is stored as `REFUSED`. One that is stored already stays as it
    is, so that a replay decides nothing anew.
    """
    by_id = dict(statements)
    statements = [*zip(by_id, follow_repeated(connection, by_id.values()), strict=True)]
    query = "SELECT id FROM truth WHERE id IN ({})"
    stored = {int(id_) for (id_,) in execute_in(connection, query, [id_ for id_, _ in statements])}
    tasks = _tasks_of_targets(connection, [statement for _, statement in statements])
    for is_conditional, group in groupby(statements, lambda item: item[1].expected is not None):
        # Each conditional statement sees those before it.
        for batch in ([item] for item in group) if is_conditional else [[*group]]:
            new = [item for item in batch if item[0] not in stored]
            insert(connection, "truth", [_row(connection, *item, tasks) for item in new])
            joins = ((statement.join, statement.value) for _, statement in batch)
            link_stored(connection, candidate_ids(connection, joins))


def follow_repeated(
    connection: sa.Connection, statements: Iterable[TruthStatement]
) -> list[TruthStatement]:
    """Return statements, those by an id that leads to the inference of another id by that one."""
    statements = list(statements)
    named = {int(statement.value) for statement in statements if statement.join == "id"}
    values = {str(seq): str(first) for seq, first in first_ids(connection, named).items()}
    return [
        msgspec.structs.replace(statement, value=values[statement.value])
        if statement.join == "id" and statement.value in values
        else statement
        for statement in statements
    ]


def _row(
    connection: sa.Connection, id_: int, statement: TruthStatement, tasks: dict[str, str]
) -> tuple[Any, ...]:
    annotations, task = statement.annotations, statement.task
    if task is None:
        task = derived_task(
            annotations, tasks.get(statement.value) if statement.join == "id" else None
        )
    return (
        id_,
        statement.join if _is_expected(connection, statement) else REFUSED,
        statement.value,
        storable_text(statement.source),
        None if annotations is None else json_text(annotations),
        storable_text(task),
        storable_text(statement.model),
        storable_text(statement.owner),
        storable_text(statement.review),
    )


def _is_expected(connection: sa.Connection, statement: TruthStatement) -> bool:
    """Check whether the revision that a statement expects is current."""
    if statement.expected is None:
        return True
    current = current_revision(connection, int(statement.value))
    return bool(current) if statement.expected == ANY_REVISION else current == statement.expected


def _tasks_of_targets(
    connection: sa.Connection, statements: Collection[TruthStatement]
) -> dict[str, str]:
    """Return the tasks of the stored inferences that statements without a task name by id, by that id."""
    seqs = {
        int(statement.value)
        for statement in statements
        if statement.task is None and statement.join == "id"
    }
    return {str(subject.seq): subject.task for subject in read_subjects(connection, seqs)}


def current_revision(connection: sa.Connection, seq: int) -> int:
    """Return the id of the statement that is the ground truth of an inference, 0 if there is none."""
    statement = "SELECT truth_id FROM ground_truth WHERE seq = ?"
    return int(execute(connection, statement, (seq,)).scalar() or 0)


def statements_about(connection: sa.Connection, seq: int, limit: int) -> list[StoredStatement]:
    """Return the statements that are joined to a stored inference and apply to it, newest first, up to a limit.

    The first is the ground truth, or removed it. There are fewer if their annotations are very long, but always one, if any.
    """
    sizes: dict[int, int] = {}
    query = (
        "SELECT id, coalesce(length(annotations), 0) FROM truth"
        f" WHERE join_on = ? AND value = ? AND {_SCOPE} ORDER BY id DESC LIMIT ?"
    )
    subjects = read_subjects(connection, [seq])
    joins = stated_joins(connection, subjects)
    for subject in subjects:
        for join, value in join_values(subject, joins):
            values = (join, value, subject.task, subject.model, owner_of(subject.team), limit)
            sizes |= {int(id_): int(size) for id_, size in execute(connection, query, values)}
    ids: list[int] = []
    total = 0
    for id_ in sorted(sizes, reverse=True)[:limit]:
        total += sizes[id_]
        if ids and total > _MAX_HISTORY_CHARACTERS:
            break
        ids.append(id_)
    rows = execute_in(connection, f"SELECT {_STATEMENT} FROM truth AS t WHERE t.id IN ({{}})", ids)
    return sorted((StoredStatement(*row) for row in rows), reverse=True)


def read_subjects(connection: sa.Connection, seqs: Collection[int]) -> list[Subject]:
    """Return the stored ones of some inferences."""
    columns = "seq, request_id, image_no, input_hash, meta, standard, model_id"
    statement = f"SELECT {columns} FROM inference WHERE seq IN ({{}})"
    rows = execute_in(connection, statement, seqs)
    models = models_by_id(connection, (row[-1] for row in rows))
    subjects = []
    for seq, request_id, image_no, input_hash, meta, standard, model_id in rows:
        model = models[model_id]
        subjects.append(
            Subject(
                seq,
                request_id,
                image_no,
                input_hash,
                metadata=meta,
                task=model.task,
                model=storable_text(model.name),
                team=model.team,
                standard=standard,
            )
        )
    return subjects


def joined_subjects(
    connection: sa.Connection,
    pairs: Collection[tuple[str, str]],
    scope: Scope = EVERYTHING,
    limit: int | None = None,
) -> JoinedSubjects:
    """Return the stored inferences within a scope that (join, value) pairs match.

    Raises:
        ChangeError: There are more than a limit.
    """
    admitted = Catalog(connection, scope, with_replays=True).admitted_ids
    ids = candidate_ids(connection, pairs, limit, admitted)
    if limit is not None and len(ids) > limit:
        raise ChangeError(f"expected statements that match at most {limit} inferences, got more")
    joins = {join for join, _ in pairs}
    joined: JoinedSubjects = {pair: [] for pair in pairs}
    for subject in read_subjects(connection, ids):
        if scope.admits(subject.model, subject.team):
            for pair in joined.keys() & join_values(subject, joins):
                joined[pair].append(subject)
    return joined


def candidate_ids(
    connection: sa.Connection,
    joins: Iterable[tuple[str, str]],
    limit: int | None = None,
    admitted: tuple[int, ...] | None = None,
) -> set[int]:
    """Return all inferences that (join, value) pairs match, and a few others.

    With a limit, the result is incomplete if there are more, but then larger than the limit. With ids of models,
    those matched otherwise than by their ids are of these models.
    """
    of_models = of_teams = ""
    if admitted is not None:
        model_ids = ", ".join(map(str, admitted or (0,)))
        of_models = f" AND i.model_id IN ({model_ids})"
        of_teams = f" AND team IN (SELECT team FROM model WHERE id IN ({model_ids}))"
    limit_clause = "" if limit is None else f" LIMIT {limit + 1}"
    by_join: dict[str, set[str]] = defaultdict(set)
    for join, value in joins:
        by_join[join].add(value)
    ids: set[int] = set()
    for join, values in by_join.items():
        if join == "id":
            ids |= {int(value) for value in values if int(value) <= LARGEST_ID}
        elif join.startswith("meta."):
            keys_query = f"SELECT type, id FROM meta_key WHERE path = ?{of_teams}"
            keys = execute(connection, keys_query, (join[5:],)).all()
            ids |= _with_metadata(
                connection, keys, values, of_models=of_models, limit_clause=limit_clause
            )
        else:
            requests = {_request(value) for value in values} if join == "request_id" else set()
            condition = f"i.{_COLUMNS[join]} IN ({{}}){of_models}"
            statement = f"SELECT i.seq FROM inference AS i WHERE {condition}{limit_clause}"
            ids |= {int(seq) for (seq,) in execute_in(connection, statement, values | requests)}
    return ids


def _request(value: str) -> str:
    request, separator, image = value.rpartition("#")
    return request if separator and image.isdecimal() else value


def _with_metadata(
    connection: sa.Connection,
    keys: Sequence[Any],
    values: set[str],
    *,
    of_models: str,
    limit_clause: str,
) -> set[int]:
    ids: set[int] = set()
    for type_, key in keys:
        table, indexed_values = _indexed(type_, values)
        source = f"{table} AS d"
        if of_models:
            source += " JOIN inference AS i ON i.seq = d.seq"
        condition = f"d.key = ? AND d.val IN ({{}}){of_models}"
        statement = f"SELECT d.seq FROM {source} WHERE {condition}{limit_clause}"
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
    if seqs:
        subjects = read_subjects(connection, seqs)
        if joins := stated_joins(connection, subjects):
            _link(connection, subjects, joins)


def link_new(connection: sa.Connection, records: Iterable[JournaledRecord]) -> None:
    """Link newly inserted inferences to statements that came before them."""
    if not execute(connection, "SELECT EXISTS (SELECT 1 FROM truth)").scalar():
        return
    subjects = [
        Subject(
            record.seq,
            storable_text(record.request_id),
            record.image_no,
            record.input.hash,
            metadata=record.metadata,
            task=record.task,
            model=storable_text(record.model.name),
            team=record.team or "",
            standard=record.standard,
        )
        for record in records
    ]
    if joins := stated_joins(connection, subjects):
        _link(connection, subjects, joins)


def stated_joins(connection: sa.Connection, subjects: Iterable[Subject]) -> set[str]:
    """Return the joins of all statements, or if they are many, those by which subjects may be joined.

    So the cost grows with the keys of the subjects, not with those that statements name.
    """
    following = "SELECT min(join_on) FROM truth WHERE join_on > ?"
    joins: list[str] = []
    while len(joins) < _FEW_JOINS:
        join = execute(connection, following, (joins[-1] if joins else "",)).scalar()
        if join is None:
            return set(joins)
        joins.append(join)
    possible = {"id", "request_id", "input.hash"}
    for subject in subjects:
        paths = metadata.flatten(metadata.decode(subject.metadata))
        possible.update(f"meta.{path}" for path in paths)
    stated: set[str] = set()
    remaining = sorted(possible)
    for start in range(0, len(remaining), _JOINS_AT_ONCE):
        chunk = tuple(remaining[start : start + _JOINS_AT_ONCE])
        rows = ", ".join(["(?)"] * len(chunk))
        query = f"SELECT j.column1 FROM (VALUES {rows}) AS j WHERE {_IS_STATED}"
        stated.update(execute(connection, query, chunk).scalars())
    return stated


def _link(connection: sa.Connection, subjects: Sequence[Subject], joins: set[str]) -> None:
    by_join: dict[str, dict[str, list[Subject]]] = {join: defaultdict(list) for join in joins}
    for subject in subjects:
        for join, value in join_values(subject, joins):
            by_join[join][value].append(subject)
    latest: dict[int, int] = {}
    others: dict[int, set[int]] = defaultdict(set)
    statement = (
        "SELECT value, owner, task, model, max(id) FROM truth WHERE join_on = ? AND value IN ({})"
        " GROUP BY value, owner, task, model"
    )
    for join, joined in by_join.items():
        for value, owner, task, model, id_ in execute_in(connection, statement, joined, (join,)):
            for subject in joined[value]:
                if not subject.is_of(owner):
                    continue
                if subject.is_in_scope(task, model):
                    latest[subject.seq] = max(latest.get(subject.seq, 0), int(id_))
                else:
                    others[subject.seq].add(int(id_))
    _write_links(connection, [subject.seq for subject in subjects], latest, others)


def _write_links(
    connection: sa.Connection,
    seqs: Sequence[int],
    latest: dict[int, int],
    others: dict[int, set[int]],
) -> None:
    """Replace the links of inferences, given the latest statement that applies to each, and those that do not apply."""
    statement = "SELECT id FROM truth WHERE annotations IS NULL AND id IN ({})"
    ids = set(latest.values()).union(*others.values())
    retracted = {int(id_) for (id_,) in execute_in(connection, statement, ids)}
    for table in ("ground_truth", "other_truth"):
        execute_in(connection, f"DELETE FROM {table} WHERE seq IN ({{}})", seqs)
    applied = [(seq, id_) for seq, id_ in latest.items() if id_ not in retracted]
    insert(connection, "ground_truth", applied)
    without = others.keys() - dict(applied).keys()
    remaining = {
        seq: [id_ for id_ in others[seq] - retracted if id_ > latest.get(seq, 0)] for seq in without
    }
    insert(connection, "other_truth", [(seq, max(ids)) for seq, ids in remaining.items() if ids])


def join_values(subject: Subject, joins: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the (join, value) pairs of a subject for the given joins.

    Metadata of a crop are those of the image that it was cut from, so what is stated by them is of that image alone.
    """
    if "id" in joins:
        yield "id", str(subject.seq)
    if "request_id" in joins:
        yield "request_id", subject.request_id
        yield "request_id", f"{subject.request_id}#{subject.image_no}"
    if "input.hash" in joins and subject.input_hash is not None:
        yield "input.hash", subject.input_hash
    if any(join.startswith("meta.") for join in joins) and not subject.is_crop:
        for path, value in metadata.flatten(metadata.decode(subject.metadata)).items():
            if f"meta.{path}" in joins:
                yield f"meta.{path}", join_text(value)


def keep_repeated(connection: sa.Connection, first_seqs: Mapping[int, int]) -> None:
    """Let ids lead to stored inferences, and give these the ground truth that was stated by the ids before.

    Args:
        connection: Connection in a transaction after `lock_repeated`: no other one writes of these inferences meanwhile.
        first_seqs: Ids, each with that of its inference; an id that is stored itself is passed over.
    """
    if not first_seqs:
        return
    stored = stored_ids(connection, first_seqs.keys())
    rows = [pair for pair in first_seqs.items() if pair[0] not in stored]
    upsert(connection, "repeated_id", rows)
    by_value = {str(seq): first_seq for seq, first_seq in rows}
    query = "SELECT DISTINCT value FROM truth WHERE join_on IN (?, ?) AND value IN ({})"
    joins = ("id", REFUSED)
    stated = {value for (value,) in execute_in(connection, query, by_value, joins)}
    for value in sorted(stated):
        statement = "UPDATE truth SET value = ? WHERE join_on IN (?, ?) AND value = ?"
        execute(connection, statement, (str(by_value[value]), *joins, value))
    link_stored(connection, {by_value[value] for value in stated})


def statements_joined(
    connection: sa.Connection, join: str, value: str, owner: str
) -> list[StoredStatement]:
    """Return the statements of an owner with a join and a value, newest first; at most `MAX_OF_TOOL`."""
    query = (
        f"SELECT {_STATEMENT} FROM truth AS t WHERE join_on = ? AND value = ? AND owner = ?"
        " ORDER BY id DESC LIMIT ?"
    )
    return [
        StoredStatement(*row)
        for row in execute(connection, query, (join, value, owner, MAX_OF_TOOL))
    ]


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
