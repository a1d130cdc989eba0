"""Labels and metadata keys of teams: one of one team is another row than the same of another, as models are.

So an entry of an index belongs to one team. The names of a store keep their ids for the team that has stored most, and
the entries of the others get ids of their own, one label or key after the other: memory does not grow with the store,
while the disk holds what changes twice until the end. A store of one team, or of none, has nothing to move.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "2027.06"
down_revision = "2027.05"

_SQLITE = """
CREATE TABLE new_label (
    id INTEGER NOT NULL, name TEXT NOT NULL,
    team TEXT DEFAULT '' NOT NULL,      -- of the inferences with the label, empty for none
    CONSTRAINT pk_label PRIMARY KEY (id), CONSTRAINT uq_label_name_team UNIQUE (name, team)
) STRICT;
INSERT INTO new_label (id, name) SELECT id, name FROM label;
DROP TABLE label;
ALTER TABLE new_label RENAME TO label;
CREATE INDEX ix_label_team ON label (team);
CREATE TABLE new_meta_key (
    id INTEGER NOT NULL, path TEXT NOT NULL, type INTEGER NOT NULL,
    team TEXT DEFAULT '' NOT NULL,      -- of the inferences with the key, empty for none
    CONSTRAINT pk_meta_key PRIMARY KEY (id), CONSTRAINT uq_meta_key_path_type_team UNIQUE (path, type, team)
) STRICT;
INSERT INTO new_meta_key (id, path, type) SELECT id, path, type FROM meta_key;
DROP TABLE meta_key;
ALTER TABLE new_meta_key RENAME TO meta_key;
CREATE INDEX ix_meta_key_team ON meta_key (team)
"""
"""SQLite cannot change the constraints of a table: the two small ones are made anew."""

_POSTGRESQL = """
ALTER TABLE label ADD COLUMN team TEXT COLLATE "C" DEFAULT '' NOT NULL;
ALTER TABLE label DROP CONSTRAINT uq_label_name;
ALTER TABLE label ADD CONSTRAINT uq_label_name_team UNIQUE (name, team);
CREATE INDEX ix_label_team ON label (team);
ALTER TABLE meta_key ADD COLUMN team TEXT COLLATE "C" DEFAULT '' NOT NULL;
ALTER TABLE meta_key DROP CONSTRAINT uq_meta_key_path_type;
ALTER TABLE meta_key ADD CONSTRAINT uq_meta_key_path_type_team UNIQUE (path, type, team);
CREATE INDEX ix_meta_key_team ON meta_key (team)
"""

_MOVE = """
UPDATE {table} SET {column} = own.id
FROM inference AS i JOIN model AS m ON m.id = i.model_id JOIN {names} AS own ON own.team = m.team
WHERE {table}.{column} = ? AND i.seq = {table}.seq AND own.id <> {table}.{column} AND {name}
"""
"""Gives the entries of an id, in the index of one name, the ids that the teams of their inferences have for the name."""

_STRING = 1  # types of metadata keys, as of this revision
_FULL = 5  # with the path '': metadata of the team is stored that is not indexed
_BOUND = 10_000  # rows of `meta_key` from which on new paths were not indexed
_BATCH = 1000
_counts = msgspec.json.Decoder(dict[int, int])


def upgrade() -> None:
    """Add the columns, and give each team the names that its inferences have."""
    is_sqlite = op.get_context().dialect.name == "sqlite"
    for statement in re.sub(r" *--.*", "", _SQLITE if is_sqlite else _POSTGRESQL).split(";"):
        op.execute(statement)
    if not op.get_context().as_sql:  # a script has no rows to read
        _give_names(op.get_bind())


def _give_names(connection: sa.Connection) -> None:
    first, *other_teams = _teams(connection) or [""]
    is_full = _run(connection, "SELECT count(*) FROM meta_key").scalar_one() >= _BOUND
    for table in ("label", "meta_key"):
        _run(connection, f"UPDATE {table} SET team = ?", (first,))
    if other_teams:
        _move_labels(connection, first, other_teams)
        _move_keys(connection, first, other_teams)
    if is_full:
        marks = [("", _FULL, team) for team in (first, *other_teams)]
        _run(connection, "INSERT INTO meta_key (path, type, team) VALUES (?, ?, ?)", marks)


def _teams(connection: sa.Connection) -> list[str]:
    """Return the teams that have stored something, the one that was counted most often first."""
    statement = (
        "SELECT m.team FROM model AS m LEFT JOIN rollup AS r ON r.model_id = m.id"
        " GROUP BY m.team ORDER BY coalesce(sum(r.n), 0) DESC, m.team"
    )
    return [team for (team,) in _run(connection, statement)]


def _move_labels(connection: sa.Connection, first: str, other_teams: list[str]) -> None:
    labels = dict(_run(connection, "SELECT id, name FROM label").all())
    add = "INSERT INTO label (name, team) SELECT name, ? FROM label WHERE team = ?"
    for team in other_teams:
        _run(connection, add, (team, first))
    move = _MOVE.format(table="pred", column="label", names="label", name="own.name = ?")
    for id_, name in labels.items():
        _run(connection, move, (id_, name))
    used = _move_counts(connection, labels)
    is_unused = "NOT EXISTS (SELECT 1 FROM pred WHERE pred.label = label.id)"
    unused = [
        (id_,)
        for (id_,) in _run(connection, f"SELECT id FROM label WHERE {is_unused}")
        if id_ not in used
    ]
    if unused:
        _run(connection, "DELETE FROM label WHERE id = ?", unused)


def _move_counts(connection: sa.Connection, labels: dict[int, str]) -> set[int]:
    """Give the counts of each model the labels of its team; return all labels that are counted."""
    own_ids: dict[str, dict[str, int]] = {}
    for id_, name, team in _run(connection, "SELECT id, name, team FROM label"):
        own_ids.setdefault(team, {})[name] = id_
    teams = dict(_run(connection, "SELECT id, team FROM model").all())
    page = (
        "SELECT model_id, minute, labels FROM rollup WHERE (model_id, minute) > (?, ?)"
        " ORDER BY model_id, minute LIMIT ?"
    )
    change = "UPDATE rollup SET labels = ? WHERE model_id = ? AND minute = ?"
    last: tuple[int, int] = (-1, -1)
    used: set[int] = set()
    while rows := _run(connection, page, (*last, _BATCH)).all():
        changed = []
        for model_id, minute, text in rows:
            own, counts = own_ids[teams[model_id]], _counts.decode(text)
            moved = {own[labels[id_]] if id_ in labels else id_: n for id_, n in counts.items()}
            used |= moved.keys()
            if moved != counts:
                changed.append((msgspec.json.encode(moved).decode(), model_id, minute))
        if changed:
            _run(connection, change, changed)
        last = (rows[-1][0], rows[-1][1])
    return used


def _move_keys(connection: sa.Connection, first: str, other_teams: list[str]) -> None:
    keys = _run(connection, "SELECT id, path, type FROM meta_key").all()
    add = (
        "INSERT INTO meta_key (path, type, team) SELECT path, type, ? FROM meta_key WHERE team = ?"
    )
    for team in other_teams:
        _run(connection, add, (team, first))
    name = "own.path = ? AND own.type = ?"
    move = {
        table: _MOVE.format(table=table, column='"key"', names="meta_key", name=name)
        for table in ("meta_num", "meta_str")
    }
    for id_, path, type_ in keys:
        _run(connection, move["meta_str" if type_ == _STRING else "meta_num"], (id_, path, type_))
    is_used = " OR ".join(
        f'EXISTS (SELECT 1 FROM {table} AS d WHERE d."key" = meta_key.id)' for table in move
    )
    _run(connection, f"DELETE FROM meta_key WHERE NOT ({is_used})")


def _run(connection: sa.Connection, statement: str, values: Sequence[Any] = ()) -> Any:
    text = statement if connection.dialect.name == "sqlite" else statement.replace("?", "%s")
    return connection.exec_driver_sql(text, values)
