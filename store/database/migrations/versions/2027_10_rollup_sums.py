"""Counts of models by hour, by day and of all time, beside those by minute: sums of what is counted already.

An older version counts minutes alone, so none may write meanwhile.
"""

import re

import sqlalchemy as sa
from alembic import op

from quadriga.store.database.database import execute
from quadriga.store.database.rollups import sum_again

revision = "2027.10"
down_revision = "2027.09"
oldest = "2027.10"

_TYPES = {"BIGINT": ("INTEGER", "BIGINT"), "BY_KEY": ("STRICT, WITHOUT ROWID", "")}
"""What stands in braces, in SQLite and in PostgreSQL."""

_TABLE = """
CREATE TABLE rollup_sum (
    model_id INTEGER NOT NULL,
    period {BIGINT} NOT NULL,           -- its minutes, see `quadriga.store.database.rollups.PERIODS`
    minute {BIGINT} NOT NULL,           -- the first, since 1970
    n {BIGINT} NOT NULL,
    errors {BIGINT} NOT NULL,
    latency TEXT NOT NULL,
    labels TEXT NOT NULL,
    CONSTRAINT pk_rollup_sum PRIMARY KEY (model_id, period, minute)
) {BY_KEY}
"""
_ROW = f"INSERT INTO schema_compatibility (revision, oldest) VALUES ('{revision}', '{oldest}')"


def upgrade() -> None:
    """Create the table and fill it."""
    connection = op.get_bind()
    column = 0 if connection.dialect.name == "sqlite" else 1
    types = {name: by_database[column] for name, by_database in _TYPES.items()}
    op.execute(re.sub(r" *--.*", "", _TABLE).format_map(types))
    if not op.get_context().as_sql:
        _fill(connection)
    op.execute(_ROW)


def _fill(connection: sa.Connection) -> None:
    for model_id in execute(connection, "SELECT id FROM model ORDER BY id").scalars().all():
        minutes = execute(
            connection, "SELECT model_id, minute FROM rollup WHERE model_id = ?", (model_id,)
        )
        sum_again(connection, [(*key,) for key in minutes])
