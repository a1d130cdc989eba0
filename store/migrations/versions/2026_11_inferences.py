"""Inferences, what they are found by and counted in, what is said of them later, and the journal's offsets."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026.11"
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
_CODE_POINTS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_JSON: sa.types.TypeEngine[str] = sa.Text().with_variant(postgresql.JSONB(), "postgresql")
_TABLES = (
    "model",
    "label",
    "meta_key",
    "inference",
    "meta_num",
    "meta_str",
    "pred",
    "rollup",
    "metadata_change",
    "truth",
    "ground_truth",
    "feedback",
    "retention",
    "journal_offset",
)


def upgrade() -> None:
    """Create all tables of the first release."""
    op.create_table(
        "model",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", _CODE_POINTS, nullable=False),
        sa.Column("version", _CODE_POINTS, nullable=False),
        sa.Column("sha256", _CODE_POINTS, nullable=False),
        sa.Column("task", _CODE_POINTS, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_model"),
        sa.UniqueConstraint(
            "name", "version", "sha256", "task", name="uq_model_name_version_sha256_task"
        ),
        sqlite_strict=True,
    )
    op.create_table(
        "label",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", _CODE_POINTS, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_label"),
        sa.UniqueConstraint("name", name="uq_label_name"),
        sqlite_strict=True,
    )
    op.create_table(
        "meta_key",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("path", _CODE_POINTS, nullable=False),
        sa.Column("type", sa.Integer, nullable=False, doc="A `KeyType`."),
        sa.PrimaryKeyConstraint("id", name="pk_meta_key"),
        sa.UniqueConstraint("path", "type", name="uq_meta_key_path_type"),
        sqlite_strict=True,
    )
    op.create_table(
        "inference",
        sa.Column(
            "seq", _BIG, nullable=False, autoincrement=False, doc="`store.ids`; the time too."
        ),
        sa.Column("request_id", _CODE_POINTS, nullable=False),
        sa.Column("image_no", sa.Integer, nullable=False),
        sa.Column("model_id", sa.Integer, nullable=False),
        sa.Column("action", _CODE_POINTS, nullable=False),
        sa.Column("status", sa.Integer, nullable=False, server_default="200"),
        sa.Column("latency_us", _BIG, nullable=False),
        sa.Column("input_name", sa.Text, nullable=False),
        sa.Column("input_hash", _CODE_POINTS),
        sa.Column("input_width", sa.Integer),
        sa.Column("input_height", sa.Integer),
        sa.Column("input_mime", sa.Text),
        sa.Column("input_bytes", _BIG),
        sa.Column("input_kept", sa.Integer, nullable=False),
        sa.Column(
            "prediction_count", sa.Integer, doc="NULL where predictions are no list of objects."
        ),
        sa.Column("predictions", sa.Text, nullable=False, doc="JSON, as answered."),
        sa.Column("meta", sa.Text, nullable=False, doc="JSON, as given, with later changes."),
        sa.Column(
            "meta_flat",
            _JSON,
            doc="JSON, path to value, see `store.metadata.index`; NULL where it equals `meta`, in SQLite.",
        ),
        sa.Column(
            "standard", sa.Text, nullable=False, server_default="{}", doc="JSON, the engine's."
        ),
        sa.PrimaryKeyConstraint("seq", name="pk_inference"),
        sqlite_strict=True,
        postgresql_partition_by="RANGE (seq)",
    )
    op.create_index(
        "ix_inference_input_hash",
        "inference",
        ["input_hash"],
        sqlite_where=sa.text("input_hash IS NOT NULL"),
        postgresql_where=sa.text("input_hash IS NOT NULL"),
    )
    op.create_index("ix_inference_model_id_seq", "inference", ["model_id", "seq"])
    op.create_index("ix_inference_request_id", "inference", ["request_id"])
    op.create_table(
        "meta_num",
        sa.Column("key", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("val", _REAL, nullable=False, doc="Booleans as 0 and 1; presence alone as 0."),
        sa.Column("seq", _BIG, nullable=False, autoincrement=False),
        sa.PrimaryKeyConstraint("key", "val", "seq", name="pk_meta_num"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
        postgresql_partition_by="RANGE (seq)",
    )
    op.create_table(
        "meta_str",
        sa.Column("key", sa.Integer, nullable=False, autoincrement=False),
        sa.Column(
            "val", _CODE_POINTS, nullable=False, doc="The first `INDEXED_CHARACTERS` characters."
        ),
        sa.Column("seq", _BIG, nullable=False, autoincrement=False),
        sa.PrimaryKeyConstraint("key", "val", "seq", name="pk_meta_str"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
        postgresql_partition_by="RANGE (seq)",
    )
    op.create_table(
        "pred",
        sa.Column("label", sa.Integer, nullable=False, autoincrement=False),
        sa.Column(
            "score", _REAL, nullable=False, doc="The label's best; -inf where none has a score."
        ),
        sa.Column("seq", _BIG, nullable=False, autoincrement=False),
        sa.Column("worst", _REAL, nullable=False, doc="The label's worst; -inf as `score`."),
        sa.Column("n", sa.Integer, nullable=False, doc="Predictions with the label."),
        sa.PrimaryKeyConstraint("label", "score", "seq", name="pk_pred"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
        postgresql_partition_by="RANGE (seq)",
    )
    op.create_index("ix_pred_seq_label_score", "pred", ["seq", "label", "score"])
    op.create_table(
        "rollup",
        sa.Column("model_id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("minute", _BIG, nullable=False, autoincrement=False, doc="Since 1970."),
        sa.Column("n", _BIG, nullable=False),
        sa.Column(
            "errors", _BIG, nullable=False, doc="Of `n`, those with a status of 500 or more."
        ),
        sa.Column("latency", sa.Text, nullable=False, doc="JSON of a `store.rollups.Sketch`."),
        sa.Column(
            "labels", sa.Text, nullable=False, doc="JSON, label id to number of predictions."
        ),
        sa.Column(
            "kept_bytes", _BIG, nullable=False, doc="Of inputs kept; 0 where there are none."
        ),
        sa.PrimaryKeyConstraint("model_id", "minute", name="pk_rollup"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_rollup_model_id_minute_kept_bytes",
        "rollup",
        ["model_id", "minute", "kept_bytes"],
        sqlite_where=sa.text("kept_bytes > 0"),
        postgresql_where=sa.text("kept_bytes > 0"),
    )
    op.create_table(
        "metadata_change",
        sa.Column("id", _BIG, nullable=False, autoincrement=False, doc="Of the change; its time."),
        sa.Column("seq", _BIG, nullable=False),
        sa.Column("change", sa.Text, nullable=False, doc="JSON of a `MetadataChange`."),
        sa.Column("before", sa.Text, nullable=False, doc="JSON, the metadata until then."),
        sa.PrimaryKeyConstraint("id", name="pk_metadata_change"),
        sqlite_strict=True,
    )
    op.create_index("ix_metadata_change_seq", "metadata_change", ["seq"])
    op.create_table(
        "truth",
        sa.Column(
            "id", _BIG, nullable=False, autoincrement=False, doc="Of the statement; its time."
        ),
        sa.Column("join_on", _CODE_POINTS, nullable=False, doc="`TruthStatement.join`."),
        sa.Column("value", _CODE_POINTS, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("annotations", sa.Text, doc="JSON; NULL takes the truth away."),
        sa.PrimaryKeyConstraint("id", name="pk_truth"),
        sqlite_strict=True,
    )
    op.create_index("ix_truth_join_on_value_id", "truth", ["join_on", "value", "id"])
    op.create_table(
        "ground_truth",
        sa.Column("seq", _BIG, nullable=False, autoincrement=False),
        sa.Column("truth_id", _BIG, nullable=False, doc="The latest that holds."),
        sa.PrimaryKeyConstraint("seq", name="pk_ground_truth"),
        sqlite_strict=True,
    )
    op.create_index("ix_ground_truth_truth_id", "ground_truth", ["truth_id"])
    op.create_table(
        "feedback",
        sa.Column("id", _BIG, nullable=False, autoincrement=False, doc="Its time."),
        sa.Column("seq", _BIG, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("value", _REAL),
        sa.Column("comment", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_feedback"),
        sqlite_strict=True,
    )
    op.create_index("ix_feedback_seq", "feedback", ["seq"])
    op.create_table(
        "retention",
        sa.Column("model", sa.Text, nullable=False, doc="Name, of all versions."),
        sa.Column("inputs_days", _REAL, doc="NULL is for ever."),
        sa.Column("inferences_days", _REAL, doc="NULL is for ever."),
        sa.PrimaryKeyConstraint("model", name="pk_retention"),
        sqlite_strict=True,
    )
    op.create_table(
        "journal_offset",
        sa.Column(
            "segment", _CODE_POINTS, nullable=False, doc="With the id of its journal before it."
        ),
        sa.Column("offset", _BIG, nullable=False, doc="Bytes whose records are committed."),
        sa.PrimaryKeyConstraint("segment", name="pk_journal_offset"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Remove them again, and every inference with them."""
    for table in reversed(_TABLES):
        op.drop_table(table)
