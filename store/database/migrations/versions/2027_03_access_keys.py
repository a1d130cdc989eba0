"""The keys with which people and programs use the server: only a hash of each, never the key itself."""

import re

from alembic import op

revision = "2027.03"
down_revision = "2027.02"

_TYPES = {"BIGINT": ("INTEGER", "BIGINT"), "OF_ROWS": ("STRICT", "")}
"""What stands in braces, in SQLite and in PostgreSQL."""

_TABLE = """
CREATE TABLE access_key (
    id TEXT NOT NULL,                   -- part of the key; names it in lists and logs
    hash TEXT NOT NULL,                 -- SHA-256 of the whole key, in hexadecimal digits
    name TEXT NOT NULL,                 -- for people
    roles TEXT NOT NULL,                -- separated by commas
    team TEXT NOT NULL,                 -- empty for none
    models TEXT NOT NULL,               -- patterns separated by commas; empty for all models
    created_ms {BIGINT} NOT NULL,
    expires_ms {BIGINT},                -- null: never
    revoked_ms {BIGINT},
    used_ms {BIGINT},                   -- last use, to a minute
    CONSTRAINT pk_access_key PRIMARY KEY (id)
) {OF_ROWS}
"""


def upgrade() -> None:
    """Create the table."""
    column = 0 if op.get_context().dialect.name == "sqlite" else 1
    types = {name: by_database[column] for name, by_database in _TYPES.items()}
    op.execute(re.sub(r" *--.*", "", _TABLE).format_map(types))
