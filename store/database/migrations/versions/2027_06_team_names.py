"""Labels and metadata keys of teams: one of one team is another row than the same of another, as models are."""

import re

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


def upgrade() -> None:
    """Add the columns."""
    is_sqlite = op.get_context().dialect.name == "sqlite"
    for statement in re.sub(r" *--.*", "", _SQLITE if is_sqlite else _POSTGRESQL).split(";"):
        op.execute(statement)
