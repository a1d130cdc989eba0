"""Inferences, what they are found by, and how far the journal is moved."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")


def upgrade() -> None:
    """Create all tables of the first release."""
    op.create_table(
        "model",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_model"),
        sa.UniqueConstraint(
            "name", "version", "sha256", "task", name="uq_model_name_version_sha256_task"
        ),
        sqlite_strict=True,
    )
    op.create_table(
        "label",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_label"),
        sa.UniqueConstraint("name", name="uq_label_name"),
        sqlite_strict=True,
    )
    op.create_table(
        "meta_key",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("type", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_meta_key"),
        sa.UniqueConstraint("path", "type", name="uq_meta_key_path_type"),
        sqlite_strict=True,
    )
    op.create_table(
        "inference",
        sa.Column("seq", _BIG, nullable=False, autoincrement=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("image_no", sa.Integer, nullable=False),
        sa.Column("model_id", sa.Integer, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("latency_us", _BIG, nullable=False),
        sa.Column("input_name", sa.Text, nullable=False),
        sa.Column("input_hash", sa.Text),
        sa.Column("input_width", sa.Integer),
        sa.Column("input_height", sa.Integer),
        sa.Column("input_mime", sa.Text),
        sa.Column("input_kept", sa.Integer, nullable=False),
        sa.Column("predictions", sa.Text, nullable=False),
        sa.Column("meta", sa.Text, nullable=False),
        sa.Column("meta_flat", sa.Text),
        sa.PrimaryKeyConstraint("seq", name="pk_inference"),
        sa.ForeignKeyConstraint(["model_id"], ["model.id"], name="fk_inference_model_id_model"),
        sqlite_strict=True,
    )
    op.create_index("ix_inference_request_id", "inference", ["request_id"])
    op.create_index("ix_inference_model_id_seq", "inference", ["model_id", "seq"])
    op.create_index(
        "ix_inference_input_hash",
        "inference",
        ["input_hash"],
        sqlite_where=sa.text("input_hash IS NOT NULL"),
        postgresql_where=sa.text("input_hash IS NOT NULL"),
    )
    for table, key, value in (
        ("meta_num", "key", sa.Column("val", _REAL, nullable=False)),
        ("meta_str", "key", sa.Column("val", sa.Text, nullable=False)),
        ("pred", "label", sa.Column("score", _REAL, nullable=False)),
    ):
        op.create_table(
            table,
            sa.Column(key, sa.Integer, nullable=False, autoincrement=False),
            value,
            sa.Column("seq", _BIG, nullable=False, autoincrement=False),
            sa.PrimaryKeyConstraint(key, value.name, "seq", name=f"pk_{table}"),
            sqlite_strict=True,
            sqlite_with_rowid=False,
        )
    op.create_index("ix_pred_seq_label_score", "pred", ["seq", "label", "score"])
    op.create_table(
        "journal_offset",
        sa.Column("segment", sa.Text, nullable=False),
        sa.Column("offset", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("segment", name="pk_journal_offset"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Remove them again, and every inference with them."""
    for table in (
        "journal_offset", "pred", "meta_str", "meta_num", "inference", "meta_key", "label", "model"
    ):  # fmt: skip
        op.drop_table(table)
