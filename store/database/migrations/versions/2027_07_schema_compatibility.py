"""What each revision asks of the code that runs on it, so that an older version knows whether it may."""

from alembic import op

revision = "2027.07"
down_revision = "2027.06"
oldest = "2027.07"

_TABLE = """
CREATE TABLE schema_compatibility (
    revision TEXT NOT NULL,
    oldest TEXT NOT NULL,
    CONSTRAINT pk_schema_compatibility PRIMARY KEY (revision)
) {OF_ROWS}
"""
_OF_ROWS = {"sqlite": "STRICT"}
_ROW = f"INSERT INTO schema_compatibility (revision, oldest) VALUES ('{revision}', '{oldest}')"


def upgrade() -> None:
    """Create the table."""
    op.execute(_TABLE.format(OF_ROWS=_OF_ROWS.get(op.get_context().dialect.name, "")))
    op.execute(_ROW)
