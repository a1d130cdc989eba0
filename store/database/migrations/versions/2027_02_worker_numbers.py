"""The numbers of workers: which data folder has which, so that no two servers give out the same ids."""

import re

from alembic import op

revision = "2027.02"
down_revision = "2027.01"

_TYPES = {"BIGINT": ("INTEGER", "BIGINT"), "OF_ROWS": ("STRICT", "")}
"""What stands in braces, in SQLite and in PostgreSQL."""

_TABLE = """
CREATE TABLE worker_number (
    number INTEGER NOT NULL,            -- part of the ids that a worker gives out
    owner TEXT NOT NULL,                -- id of the journal in the data folder of its server
    place TEXT NOT NULL,                -- machine and inode of that folder; empty while no server runs on it
    host TEXT NOT NULL,                 -- name of the machine, for messages
    seen_ms {BIGINT} NOT NULL,          -- last sign of its server, by the clock of the database
    CONSTRAINT pk_worker_number PRIMARY KEY (number)
) {OF_ROWS}
"""


def upgrade() -> None:
    """Create the table."""
    column = 0 if op.get_context().dialect.name == "sqlite" else 1
    types = {name: by_database[column] for name, by_database in _TYPES.items()}
    op.execute(re.sub(r" *--.*", "", _TABLE).format_map(types))
