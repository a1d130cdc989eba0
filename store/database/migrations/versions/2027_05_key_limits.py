"""The limits of each key, as one text; keys that are stored already have none of their own."""

from alembic import op

revision = "2027.05"
down_revision = "2027.04"


def upgrade() -> None:
    """Add the column."""
    op.execute("ALTER TABLE access_key ADD COLUMN limits TEXT DEFAULT '' NOT NULL")
