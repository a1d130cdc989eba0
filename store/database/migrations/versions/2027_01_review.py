"""A review status of each statement of ground truth; statements that are stored already have none."""

from alembic import op

revision = "2027.01"
down_revision = "2026.12"


def upgrade() -> None:
    """Add the column."""
    is_sqlite = op.get_context().dialect.name == "sqlite"
    name = "TEXT" if is_sqlite else 'TEXT COLLATE "C"'
    op.execute(f"ALTER TABLE truth ADD COLUMN review {name} DEFAULT '' NOT NULL")
