"""Inferences, what they are found by and counted in, what is made and said of them later, journal offsets."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026.11"
down_revision = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
_CODE_POINTS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_JSON: sa.types.TypeEngine[str] = sa.Text().with_variant(postgresql.JSONB(), "postgresql")
_STRICT: dict[str, Any] = {"sqlite_strict": True}
_BY_KEY: dict[str, Any] = {**_STRICT, "sqlite_with_rowid": False}
_BY_SEQ: dict[str, Any] = {"postgresql_partition_by": "RANGE (seq)"}


def _set(name: str, kind: Any, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **options)


def _key(name: str, kind: Any, **options: Any) -> sa.Column[Any]:
    return _set(name, kind, autoincrement=False, **options)


def upgrade() -> None:
    """Create all tables of the first release."""
    op.create_table(
        "model",
        _set("id", sa.Integer),
        _set("name", _CODE_POINTS),
        _set("version", _CODE_POINTS),
        _set("sha256", _CODE_POINTS),
        _set("task", _CODE_POINTS),
        sa.PrimaryKeyConstraint("id", name="pk_model"),
        sa.UniqueConstraint(
            "name", "version", "sha256", "task", name="uq_model_name_version_sha256_task"
        ),
        **_STRICT,
    )
    op.create_table(
        "label",
        _set("id", sa.Integer),
        _set("name", _CODE_POINTS),
        sa.PrimaryKeyConstraint("id", name="pk_label"),
        sa.UniqueConstraint("name", name="uq_label_name"),
        **_STRICT,
    )
    op.create_table(
        "meta_key",
        _set("id", sa.Integer),
        _set("path", _CODE_POINTS),
        _set("type", sa.Integer, doc="A `KeyType`."),
        sa.PrimaryKeyConstraint("id", name="pk_meta_key"),
        sa.UniqueConstraint("path", "type", name="uq_meta_key_path_type"),
        **_STRICT,
    )
    op.create_table(
        "inference",
        _key("seq", _BIG, doc="`store.ids`; the time too."),
        _set("request_id", _CODE_POINTS),
        _set("image_no", sa.Integer),
        _set("model_id", sa.Integer),
        _set("action", _CODE_POINTS),
        _set("status", sa.Integer, server_default="200"),
        _set("latency_us", _BIG),
        _set("input_name", sa.Text),
        sa.Column("input_hash", _CODE_POINTS),
        sa.Column("input_width", sa.Integer),
        sa.Column("input_height", sa.Integer),
        sa.Column("input_mime", sa.Text),
        sa.Column("input_bytes", _BIG),
        _set("input_kept", sa.Integer),
        sa.Column(
            "prediction_count", sa.Integer, doc="NULL where predictions are no list of objects."
        ),
        _set("predictions", sa.Text, doc="JSON, as answered."),
        _set("meta", sa.Text, doc="JSON, as given, with later changes."),
        sa.Column(
            "meta_flat",
            _JSON,
            doc="JSON, path to value, see `store.metadata.index`; NULL where it equals `meta`, in SQLite.",
        ),
        _set("standard", sa.Text, server_default="{}", doc="JSON, the engine's."),
        sa.PrimaryKeyConstraint("seq", name="pk_inference"),
        **_STRICT,
        **_BY_SEQ,
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
        _key("key", sa.Integer),
        _set("val", _REAL, doc="Booleans as 0 and 1; presence alone as 0."),
        _key("seq", _BIG),
        sa.PrimaryKeyConstraint("key", "val", "seq", name="pk_meta_num"),
        **_BY_KEY,
        **_BY_SEQ,
    )
    op.create_table(
        "meta_str",
        _key("key", sa.Integer),
        _set("val", _CODE_POINTS, doc="The first `INDEXED_CHARACTERS` characters."),
        _key("seq", _BIG),
        sa.PrimaryKeyConstraint("key", "val", "seq", name="pk_meta_str"),
        **_BY_KEY,
        **_BY_SEQ,
    )
    op.create_table(
        "pred",
        _key("label", sa.Integer),
        _set("band", sa.Integer, doc="Of `score`: `store.schema.band`."),
        _key("seq", _BIG),
        _set("score", _REAL, doc="The label's best; -inf where none has a score."),
        _set("worst", _REAL, doc="The label's worst; -inf as `score`."),
        _set("n", sa.Integer, doc="Predictions with the label."),
        sa.PrimaryKeyConstraint(
            "label", "band", "seq", name="pk_pred", postgresql_include=["score"]
        ),
        **_BY_KEY,
        **_BY_SEQ,
    )
    op.create_index("ix_pred_seq_label_score", "pred", ["seq", "label", "score"])
    op.create_table(
        "signal",
        _key("seq", _BIG),
        sa.Column("picture", sa.LargeBinary, doc="float32, little-endian."),
        sa.Column("embedding", sa.LargeBinary, doc="float16, little-endian."),
        sa.Column("space", sa.Text, doc="Of the embedding; those of two are not compared."),
        sa.PrimaryKeyConstraint("seq", name="pk_signal"),
        **_STRICT,
        **_BY_SEQ,
    )
    op.create_table(
        "rollup",
        _key("model_id", sa.Integer),
        _key("minute", _BIG, doc="Since 1970."),
        _set("n", _BIG),
        _set("errors", _BIG, doc="Of `n`, those with a status of 500 or more."),
        _set("latency", sa.Text, doc="JSON of a `store.rollups.Sketch`."),
        _set("labels", sa.Text, doc="JSON, label id to number of predictions."),
        _set("kept_bytes", _BIG, doc="Of inputs kept; 0 where there are none."),
        sa.PrimaryKeyConstraint("model_id", "minute", name="pk_rollup"),
        **_BY_KEY,
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
        _key("id", _BIG, doc="Of the change; its time."),
        _set("seq", _BIG),
        _set("change", sa.Text, doc="JSON of a `MetadataChange`."),
        _set("before", sa.Text, doc="JSON, the metadata until then."),
        sa.PrimaryKeyConstraint("id", name="pk_metadata_change"),
        **_STRICT,
    )
    op.create_index("ix_metadata_change_seq", "metadata_change", ["seq"])
    op.create_table(
        "truth",
        _key("id", _BIG, doc="Of the statement; its time."),
        _set("join_on", _CODE_POINTS, doc="`TruthStatement.join`."),
        _set("value", _CODE_POINTS),
        _set("source", sa.Text),
        sa.Column("annotations", sa.Text, doc="JSON; NULL takes the truth away."),
        sa.PrimaryKeyConstraint("id", name="pk_truth"),
        **_STRICT,
    )
    op.create_index("ix_truth_join_on_value_id", "truth", ["join_on", "value", "id"])
    op.create_table(
        "ground_truth",
        _key("seq", _BIG),
        _set("truth_id", _BIG, doc="The latest that holds."),
        sa.PrimaryKeyConstraint("seq", name="pk_ground_truth"),
        **_STRICT,
    )
    op.create_index("ix_ground_truth_truth_id", "ground_truth", ["truth_id"])
    op.create_table(
        "feedback",
        _key("id", _BIG, doc="Its time."),
        _set("seq", _BIG),
        _set("kind", sa.Text),
        sa.Column("value", _REAL),
        _set("comment", sa.Text),
        _set("source", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_feedback"),
        **_STRICT,
    )
    op.create_index("ix_feedback_seq", "feedback", ["seq"])
    op.create_table(
        "retention",
        _set("model", sa.Text, doc="Name, of all versions."),
        sa.Column("inputs_days", _REAL, doc="NULL is for ever."),
        sa.Column("inferences_days", _REAL, doc="NULL is for ever."),
        sa.PrimaryKeyConstraint("model", name="pk_retention"),
        **_STRICT,
    )
    op.create_table(
        "journal_offset",
        _set("segment", _CODE_POINTS, doc="With the id of its journal before it."),
        _set("offset", _BIG, doc="Bytes whose records are committed."),
        sa.PrimaryKeyConstraint("segment", name="pk_journal_offset"),
        **_BY_KEY,
    )
