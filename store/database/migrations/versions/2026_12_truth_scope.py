"""A scope of ground truth: the task, the model and the owner of each statement."""

import re

from alembic import op

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


def upgrade() -> None:
    """Add the columns and the table."""
    _execute_all(_COLUMNS)
    _execute_all(_INDEXES)


def _execute_all(statements: str) -> None:
    column = 0 if op.get_context().dialect.name == "sqlite" else 1
    types = {name: by_database[column] for name, by_database in _TYPES.items()}
    for statement in re.sub(r" *--.*", "", statements).format_map(types).split(";"):
        op.execute(statement)
