"""Teams: a model of one team is another row than the same model of another, so what refers to it belongs to the team.

What is stored already belongs to no team.
"""

import re

from alembic import op

revision = "2027.04"
down_revision = "2027.03"

_SQLITE = """
CREATE TABLE new_model (
    id INTEGER NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, sha256 TEXT NOT NULL, task TEXT NOT NULL,
    team TEXT DEFAULT '' NOT NULL,      -- of the keys that made the inferences, empty for none
    CONSTRAINT pk_model PRIMARY KEY (id),
    CONSTRAINT uq_model_name_version_sha256_task_team UNIQUE (name, version, sha256, task, team)
) STRICT;
INSERT INTO new_model (id, name, version, sha256, task) SELECT id, name, version, sha256, task FROM model;
DROP TABLE model;
ALTER TABLE new_model RENAME TO model;
CREATE TABLE new_retention (
    model TEXT NOT NULL,                -- name, of all versions
    inputs_days REAL,                   -- NULL is for ever
    inferences_days REAL,               -- NULL is for ever
    team TEXT DEFAULT '' NOT NULL,      -- whose inferences the rule is for, empty for those of every team
    CONSTRAINT pk_retention PRIMARY KEY (model, team)
) STRICT;
INSERT INTO new_retention (model, inputs_days, inferences_days)
    SELECT model, inputs_days, inferences_days FROM retention;
DROP TABLE retention;
ALTER TABLE new_retention RENAME TO retention
"""
"""SQLite cannot change the constraints of a table: the two small ones are made anew."""

_POSTGRESQL = """
ALTER TABLE model ADD COLUMN team TEXT COLLATE "C" DEFAULT '' NOT NULL;
ALTER TABLE model DROP CONSTRAINT uq_model_name_version_sha256_task;
ALTER TABLE model ADD CONSTRAINT uq_model_name_version_sha256_task_team UNIQUE (name, version, sha256, task, team);
ALTER TABLE retention ADD COLUMN team TEXT COLLATE "C" DEFAULT '' NOT NULL;
ALTER TABLE retention DROP CONSTRAINT pk_retention;
ALTER TABLE retention ADD CONSTRAINT pk_retention PRIMARY KEY (model, team)
"""


def upgrade() -> None:
    """Add the team to the two tables and to what tells their rows apart."""
    is_sqlite = op.get_context().dialect.name == "sqlite"
    for statement in re.sub(r" *--.*", "", _SQLITE if is_sqlite else _POSTGRESQL).split(";"):
        op.execute(statement)
