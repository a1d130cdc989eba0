"""The traffic of models: which versions answer requests that name none, and which one sees them as a shadow."""

import re

from alembic import op

revision = "2027.08"
down_revision = "2027.07"
oldest = "2027.07"

_TYPES = {"BIGINT": ("INTEGER", "BIGINT"), "OF_ROWS": ("STRICT", "")}
"""What stands in braces, in SQLite and in PostgreSQL."""

_TABLE = """
CREATE TABLE traffic (
    model TEXT NOT NULL,                -- name of the model, as its folder has it
    rule TEXT NOT NULL,                 -- shares, sticky key and shadow, as JSON
    changed_ms {BIGINT} NOT NULL,       -- by the clock of the database
    changed_by TEXT NOT NULL,           -- name of the key
    CONSTRAINT pk_traffic PRIMARY KEY (model)
) {OF_ROWS}
"""
_ROW = f"INSERT INTO schema_compatibility (revision, oldest) VALUES ('{revision}', '{oldest}')"


def upgrade() -> None:
    """Create the table."""
    column = 0 if op.get_context().dialect.name == "sqlite" else 1
    types = {name: by_database[column] for name, by_database in _TYPES.items()}
    op.execute(re.sub(r" *--.*", "", _TABLE).format_map(types))
    op.execute(_ROW)
