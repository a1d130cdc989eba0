"""Ids that lead to the inference of another id, as two servers answered one request under one idempotency key."""

import re

from alembic import op

revision = "2027.09"
down_revision = "2027.08"
oldest = "2027.07"

_TYPES = {"BIGINT": ("INTEGER", "BIGINT"), "OF_ROWS": ("STRICT", "")}
"""What stands in braces, in SQLite and in PostgreSQL."""

_TABLE = """
CREATE TABLE repeated_id (
    seq {BIGINT} NOT NULL,              -- id that a client was answered, of no inference
    first_seq {BIGINT} NOT NULL,        -- id of the inference that is stored
    CONSTRAINT pk_repeated_id PRIMARY KEY (seq)
) {OF_ROWS}
"""
_INDEX = "CREATE INDEX ix_repeated_id_first_seq ON repeated_id (first_seq)"
_ROW = f"INSERT INTO schema_compatibility (revision, oldest) VALUES ('{revision}', '{oldest}')"


def upgrade() -> None:
    """Create the table."""
    column = 0 if op.get_context().dialect.name == "sqlite" else 1
    types = {name: by_database[column] for name, by_database in _TYPES.items()}
    op.execute(re.sub(r" *--.*", "", _TABLE).format_map(types))
    op.execute(_INDEX)
    op.execute(_ROW)
