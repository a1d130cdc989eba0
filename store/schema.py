"""The store's tables.

A row of `inference` is the truth: what was predicted and the metadata, as JSON. `meta_num`, `meta_str`,
`pred` and `rollup` are derived from it, exist to find and count it, and can be rebuilt. In PostgreSQL these
four but `rollup` are partitioned by `seq`, which is the time.
"""

import enum
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

INDEXED_CHARACTERS = 256
"""`meta_str` holds no more of a string; longer ones are told apart on the JSON."""

MAX_KEYS = 10_000
"""Once there are so many rows of `meta_key`, metadata of a path that has none is not indexed."""

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
_CODE_POINTS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that compares by code point, as SQLite's does."""

_JSON: sa.types.TypeEngine[str] = sa.Text().with_variant(postgresql.JSONB(), "postgresql")
PARTITIONED = ("inference", "meta_num", "meta_str", "pred")
_BY_SEQ = "RANGE (seq)"


class Month(NamedTuple):
    """A partition of each of the partitioned tables."""

    suffix: str
    first: int
    """The smallest id that it can hold."""
    after: int
    """The smallest id behind it."""


class KeyType(enum.IntEnum):
    """The types that values of one metadata path are told apart by."""

    NUM = 0
    STR = 1
    BOOL = 2
    OTHER = 3
    """A list or an object, which is found by its presence alone."""
    CELL = 4
    """Of the path `""`: the place as a `store.query.geo` cell, from `latitude` and `longitude`."""


model = sa.Table(
    "model",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", _CODE_POINTS, nullable=False),
    sa.Column("version", _CODE_POINTS, nullable=False),
    sa.Column("sha256", _CODE_POINTS, nullable=False),
    sa.Column("task", _CODE_POINTS, nullable=False),
    sa.UniqueConstraint("name", "version", "sha256", "task"),
    sqlite_strict=True,
)

label = sa.Table(
    "label",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", _CODE_POINTS, nullable=False),
    sa.UniqueConstraint("name"),
    sqlite_strict=True,
)

meta_key = sa.Table(
    "meta_key",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("path", _CODE_POINTS, nullable=False),
    sa.Column("type", sa.Integer, nullable=False, doc="A `KeyType`."),
    sa.UniqueConstraint("path", "type"),
    sqlite_strict=True,
)

inference = sa.Table(
    "inference",
    metadata,
    sa.Column("seq", _BIG, primary_key=True, autoincrement=False, doc="`store.ids`; the time too."),
    sa.Column("request_id", _CODE_POINTS, nullable=False, index=True),
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
    sa.Column("prediction_count", sa.Integer, doc="NULL where predictions are no list of objects."),
    sa.Column("predictions", sa.Text, nullable=False, doc="JSON, as answered."),
    sa.Column("meta", sa.Text, nullable=False, doc="JSON, as given, with later changes."),
    sa.Column(
        "meta_flat",
        _JSON,
        doc="JSON, path to value, see `store.metadata.index`; NULL where it equals `meta`, in SQLite.",
    ),
    sa.Column("standard", sa.Text, nullable=False, server_default="{}", doc="JSON, the engine's."),
    sa.Index(None, "model_id", "seq"),
    sa.Index(
        None,
        "input_hash",
        sqlite_where=sa.text("input_hash IS NOT NULL"),
        postgresql_where=sa.text("input_hash IS NOT NULL"),
    ),
    sqlite_strict=True,
    postgresql_partition_by=_BY_SEQ,
)

meta_num = sa.Table(
    "meta_num",
    metadata,
    sa.Column("key", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("val", _REAL, primary_key=True, doc="Booleans as 0 and 1; presence alone as 0."),
    sa.Column("seq", _BIG, primary_key=True, autoincrement=False),
    sqlite_strict=True,
    sqlite_with_rowid=False,
    postgresql_partition_by=_BY_SEQ,
)

meta_str = sa.Table(
    "meta_str",
    metadata,
    sa.Column("key", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column(
        "val", _CODE_POINTS, primary_key=True, doc="The first `INDEXED_CHARACTERS` characters."
    ),
    sa.Column("seq", _BIG, primary_key=True, autoincrement=False),
    sqlite_strict=True,
    sqlite_with_rowid=False,
    postgresql_partition_by=_BY_SEQ,
)

pred = sa.Table(
    "pred",
    metadata,
    sa.Column("label", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column(
        "score", _REAL, primary_key=True, doc="The label's best; -inf where none has a score."
    ),
    sa.Column("seq", _BIG, primary_key=True, autoincrement=False),
    sa.Column("worst", _REAL, nullable=False, doc="The label's worst; -inf as `score`."),
    sa.Column("n", sa.Integer, nullable=False, doc="Predictions with the label."),
    sa.Index(None, "seq", "label", "score"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
    postgresql_partition_by=_BY_SEQ,
)

rollup = sa.Table(
    "rollup",
    metadata,
    sa.Column("model_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("minute", _BIG, primary_key=True, autoincrement=False, doc="Since 1970."),
    sa.Column("n", _BIG, nullable=False),
    sa.Column("errors", _BIG, nullable=False, doc="Of `n`, those with a status of 500 or more."),
    sa.Column("latency", sa.Text, nullable=False, doc="JSON of a `store.rollups.Sketch`."),
    sa.Column("labels", sa.Text, nullable=False, doc="JSON, label id to number of predictions."),
    sa.Column("kept_bytes", _BIG, nullable=False, doc="Of inputs kept; 0 where there are none."),
    sa.Index(
        None,
        "model_id",
        "minute",
        "kept_bytes",
        sqlite_where=sa.text("kept_bytes > 0"),
        postgresql_where=sa.text("kept_bytes > 0"),
    ),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

metadata_change = sa.Table(
    "metadata_change",
    metadata,
    sa.Column("id", _BIG, primary_key=True, autoincrement=False, doc="Of the change; its time."),
    sa.Column("seq", _BIG, nullable=False, index=True),
    sa.Column("change", sa.Text, nullable=False, doc="JSON of a `MetadataChange`."),
    sa.Column("before", sa.Text, nullable=False, doc="JSON, the metadata until then."),
    sqlite_strict=True,
)

truth = sa.Table(
    "truth",
    metadata,
    sa.Column("id", _BIG, primary_key=True, autoincrement=False, doc="Of the statement; its time."),
    sa.Column("join_on", _CODE_POINTS, nullable=False, doc="`TruthStatement.join`."),
    sa.Column("value", _CODE_POINTS, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("annotations", sa.Text, doc="JSON; NULL takes the truth away."),
    sa.Index(None, "join_on", "value", "id"),
    sqlite_strict=True,
)

ground_truth = sa.Table(
    "ground_truth",
    metadata,
    sa.Column("seq", _BIG, primary_key=True, autoincrement=False),
    sa.Column("truth_id", _BIG, nullable=False, index=True, doc="The latest that holds."),
    sqlite_strict=True,
)

feedback = sa.Table(
    "feedback",
    metadata,
    sa.Column("id", _BIG, primary_key=True, autoincrement=False, doc="Its time."),
    sa.Column("seq", _BIG, nullable=False, index=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("value", _REAL),
    sa.Column("comment", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sqlite_strict=True,
)

retention = sa.Table(
    "retention",
    metadata,
    sa.Column("model", sa.Text, primary_key=True, doc="Name, of all versions."),
    sa.Column("inputs_days", _REAL, doc="NULL is for ever."),
    sa.Column("inferences_days", _REAL, doc="NULL is for ever."),
    sqlite_strict=True,
)

journal_offset = sa.Table(
    "journal_offset",
    metadata,
    sa.Column(
        "segment", _CODE_POINTS, primary_key=True, doc="With the id of its journal before it."
    ),
    sa.Column("offset", _BIG, nullable=False, doc="Bytes whose records are committed."),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
