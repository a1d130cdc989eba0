"""A scope of ground truth: the task, the model and the owner of each statement.

What is stored already gets the task that its annotations have; then the links of those inferences whose statement is of
another task are made anew. Everything is read and written in batches, so that memory does not grow with the store.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

from quadriga.store.records import metadata

revision = "2026.12"
down_revision = "2026.11"

_TYPES = {
    "BIGINT": ("INTEGER", "BIGINT"),
    "NAME": ("TEXT", 'TEXT COLLATE "C"'),
    "OF_ROWS": ("STRICT", ""),
}
"""What stands in braces, in SQLite and in PostgreSQL; a `NAME` is compared by code point."""

_COLUMNS = """
ALTER TABLE truth ADD COLUMN task {NAME} DEFAULT '' NOT NULL;
ALTER TABLE truth ADD COLUMN model {NAME} DEFAULT '' NOT NULL;
ALTER TABLE truth ADD COLUMN owner {NAME} DEFAULT 'default' NOT NULL;
CREATE TABLE other_truth (
    seq {BIGINT} NOT NULL,
    truth_id {BIGINT} NOT NULL,         -- the latest of another task or model, where none holds
    CONSTRAINT pk_other_truth PRIMARY KEY (seq)
) {OF_ROWS}
"""
_INDEXES = """
DROP INDEX ix_truth_join_on_value_id;
CREATE INDEX ix_truth_join_on_value_owner_task_model_id ON truth (join_on, value, owner, task, model, id)
"""

_BATCH = 10_000  # rows that are read at once
_BOUND = 900  # values that a statement binds: SQLite's smallest limit is 999
_KINDS = {
    "xmin": "OBJECT_DETECTION",
    "cx": "ORIENTED_OBJECT_DETECTION",
    "contour": "IMAGE_SEGMENTATION",
    "answer": "IMAGE_TEXT_TO_TEXT",
    "answers": "IMAGE_TEXT_TO_TEXT",
    "prompt": "IMAGE_TEXT_TO_TEXT",
}
_LABEL = "IMAGE_CLASSIFICATION"
_TASKS = {_LABEL, *_KINDS.values()}
_annotations = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def upgrade() -> None:
    """Add the columns and the table, and fill them."""
    _execute_all(_COLUMNS)
    if not op.get_context().as_sql:  # a script has no rows to read
        connection = op.get_bind()
        _derive_tasks(connection)
        _execute_all(_INDEXES)
        _link_again(connection)
    else:
        _execute_all(_INDEXES)


def _execute_all(statements: str) -> None:
    column = 0 if op.get_context().dialect.name == "sqlite" else 1
    types = {name: by_database[column] for name, by_database in _TYPES.items()}
    for statement in re.sub(r" *--.*", "", statements).format_map(types).split(";"):
        op.execute(statement)


def _derive_tasks(connection: sa.Connection) -> None:
    """Give each statement the task that its annotations have, or that of the inference that it names by id."""
    query = (
        "SELECT t.id, t.annotations, m.task FROM (SELECT id, join_on, value, annotations FROM truth"
        " WHERE id > ? ORDER BY id LIMIT ?) AS t"
        " LEFT JOIN inference AS i ON t.join_on = 'id' AND i.seq = CAST(t.value AS BIGINT)"
        " LEFT JOIN model AS m ON m.id = i.model_id ORDER BY t.id"
    )
    # PostgreSQL may cast before it looks at the join.
    cast = "CASE WHEN t.join_on = 'id' THEN CAST(t.value AS BIGINT) END"
    query = query.replace("CAST(t.value AS BIGINT)", cast)
    last = -1
    while rows := _rows(connection, query, (last, _BATCH)):
        ids_by_task: dict[str, list[int]] = defaultdict(list)
        for id_, annotations, inference_task in rows:
            ids_by_task[_task(annotations, inference_task)].append(id_)
        for task, ids in ids_by_task.items():
            if task:
                for part in _parts(ids):
                    _run(connection, f"UPDATE truth SET task = ? WHERE id IN ({_marks(part)})", (task, *part))  # fmt: skip
        last = rows[-1][0]


def _task(annotations: str | None, inference_task: str | None) -> str:
    nodes = _annotations.decode(annotations) if annotations else []
    tasks = {next((task for key, task in _KINDS.items() if key in node), _LABEL) for node in nodes}
    if inference_task is not None:
        allowed = {inference_task} | ({_LABEL} if inference_task == "IMAGE_TEXT_TO_TEXT" else set())
        if inference_task not in _TASKS or tasks <= allowed:
            return inference_task
    # Of a mixture, those with a shape decide.
    return next((task for task in (*_KINDS.values(), _LABEL) if task in tasks), "")


def _link_again(connection: sa.Connection) -> None:
    """Link the inferences anew whose statement is of another task than they."""
    joins = _joins(connection)
    last = -1
    page = "SELECT seq FROM ground_truth WHERE seq > ? ORDER BY seq LIMIT ?"
    while seqs := [seq for (seq,) in _rows(connection, page, (last, _BATCH))]:
        for part in _parts(seqs):
            moved = _rows(
                connection,
                "SELECT g.seq, i.request_id, i.image_no, i.input_hash, i.meta, m.task FROM ground_truth AS g"
                " JOIN truth AS t ON t.id = g.truth_id JOIN inference AS i ON i.seq = g.seq"
                " JOIN model AS m ON m.id = i.model_id"
                f" WHERE g.seq IN ({_marks(part)}) AND t.task NOT IN ('', m.task)",
                part,
            )
            if moved:
                _link(connection, moved, joins)
        last = seqs[-1]


def _link(connection: sa.Connection, moved: list[Any], joins: set[str]) -> None:
    tasks = {row[0]: row[-1] for row in moved}
    seqs_by_pair: dict[str, dict[str, list[int]]] = {join: defaultdict(list) for join in joins}
    for seq, request_id, image_no, input_hash, meta, _ in moved:
        for join, value in _pairs((seq, request_id, image_no, input_hash), meta, joins):
            seqs_by_pair[join][value].append(seq)
    latest: dict[int, int] = {}
    others: dict[int, int] = {}
    for join, seqs_by_value in seqs_by_pair.items():
        for part in _parts([*seqs_by_value]):
            query = (
                f"SELECT value, task, max(id) FROM truth WHERE join_on = ? AND value IN ({_marks(part)})"
                " GROUP BY value, task"
            )
            for value, task, id_ in _rows(connection, query, (join, *part)):
                for seq in seqs_by_value[value]:
                    links = latest if task in ("", tasks[seq]) else others
                    links[seq] = max(links.get(seq, 0), id_)
    _write_links(connection, [*tasks], latest, others)


def _write_links(
    connection: sa.Connection, seqs: list[int], latest: dict[int, int], others: dict[int, int]
) -> None:
    retracted = set()
    for part in _parts([*{*latest.values(), *others.values()}]):
        query = f"SELECT id FROM truth WHERE annotations IS NULL AND id IN ({_marks(part)})"
        retracted |= {id_ for (id_,) in _rows(connection, query, part)}
    for part in _parts(seqs):
        _run(connection, f"DELETE FROM ground_truth WHERE seq IN ({_marks(part)})", part)
    applied = {seq: id_ for seq, id_ in latest.items() if id_ not in retracted}
    beside = {
        seq: id_
        for seq, id_ in others.items()
        if seq not in applied and id_ not in retracted and id_ > latest.get(seq, 0)
    }
    for table, links in (("ground_truth", applied), ("other_truth", beside)):
        if links:
            _run(connection, f"INSERT INTO {table} (seq, truth_id) VALUES (?, ?)", [*links.items()])


def _joins(connection: sa.Connection) -> set[str]:
    joins: list[str] = []
    query = "SELECT min(join_on) FROM truth WHERE join_on > ?"
    while (name := _rows(connection, query, (joins[-1] if joins else "",))[0][0]) is not None:
        joins.append(name)
    return set(joins)


def _pairs(keys: tuple[Any, ...], meta: str, joins: set[str]) -> Iterator[tuple[str, str]]:
    """Yield what an inference is joined by, as of this revision."""
    seq, request_id, image_no, input_hash = keys
    own = [("id", str(seq)), ("request_id", request_id), ("request_id", f"{request_id}#{image_no}")]
    if input_hash is not None:
        own.append(("input.hash", input_hash))
    yield from (pair for pair in own if pair[0] in joins)
    if any(join.startswith("meta.") for join in joins):
        for path, value in metadata.flatten(metadata.decode(meta)).items():
            if f"meta.{path}" in joins:
                yield f"meta.{path}", _text(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) <= metadata.LARGEST_INTEGER:
        value = int(value)
    return msgspec.json.encode(value).decode()


def _parts(values: list[Any]) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(values), _BOUND):
        yield tuple(values[start : start + _BOUND])


def _marks(values: tuple[Any, ...]) -> str:
    return ", ".join("?" * len(values))


def _rows(connection: sa.Connection, query: str, values: tuple[Any, ...]) -> list[Any]:
    return [*_run(connection, query, values)]


def _run(connection: sa.Connection, statement: str, values: Sequence[Any]) -> Any:
    text = statement if connection.dialect.name == "sqlite" else statement.replace("?", "%s")
    return connection.exec_driver_sql(text, values)
