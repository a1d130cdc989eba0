"""The store's tables.

A row of `inference` is the truth: what was predicted and the metadata, as JSON. `meta_num`, `meta_str`
and `pred` are derived from it, exist to find it, and can be rebuilt.
"""

import enum

import sqlalchemy as sa

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

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")


class KeyType(enum.IntEnum):
    """The types that values of one metadata path are told apart by."""

    NUM = 0
    STR = 1
    BOOL = 2
    OTHER = 3
    """A list or an object, which is found by its presence alone."""


model = sa.Table(
    "model",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("task", sa.Text, nullable=False),
    sa.UniqueConstraint("name", "version", "sha256", "task"),
    sqlite_strict=True,
)

label = sa.Table(
    "label",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.UniqueConstraint("name"),
    sqlite_strict=True,
)

meta_key = sa.Table(
    "meta_key",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("type", sa.Integer, nullable=False, doc="A `KeyType`."),
    sa.UniqueConstraint("path", "type"),
    sqlite_strict=True,
)

inference = sa.Table(
    "inference",
    metadata,
    sa.Column("seq", _BIG, primary_key=True, autoincrement=False, doc="`store.ids`; the time too."),
    sa.Column("request_id", sa.Text, nullable=False, index=True),
    sa.Column("image_no", sa.Integer, nullable=False),
    sa.Column("model_id", sa.Integer, sa.ForeignKey("model.id"), nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("latency_us", _BIG, nullable=False),
    sa.Column("input_name", sa.Text, nullable=False),
    sa.Column("input_hash", sa.Text),
    sa.Column("input_width", sa.Integer),
    sa.Column("input_height", sa.Integer),
    sa.Column("input_mime", sa.Text),
    sa.Column("input_kept", sa.Integer, nullable=False),
    sa.Column("predictions", sa.Text, nullable=False, doc="JSON, as answered."),
    sa.Column("meta", sa.Text, nullable=False, doc="JSON, as given."),
    sa.Column("meta_flat", sa.Text, doc="JSON, path to value; NULL where it equals `meta`."),
    sa.Index(None, "model_id", "seq"),
    sa.Index(
        None,
        "input_hash",
        sqlite_where=sa.text("input_hash IS NOT NULL"),
        postgresql_where=sa.text("input_hash IS NOT NULL"),
    ),
    sqlite_strict=True,
)

meta_num = sa.Table(
    "meta_num",
    metadata,
    sa.Column("key", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("val", _REAL, primary_key=True, doc="Booleans as 0 and 1; presence alone as 0."),
    sa.Column("seq", _BIG, primary_key=True, autoincrement=False),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

meta_str = sa.Table(
    "meta_str",
    metadata,
    sa.Column("key", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("val", sa.Text, primary_key=True, doc="The first `INDEXED_CHARACTERS` characters."),
    sa.Column("seq", _BIG, primary_key=True, autoincrement=False),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

pred = sa.Table(
    "pred",
    metadata,
    sa.Column("label", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column(
        "score", _REAL, primary_key=True, doc="The label's best; -inf where none has a score."
    ),
    sa.Column("seq", _BIG, primary_key=True, autoincrement=False),
    sa.Index(None, "seq", "label", "score"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

journal_offset = sa.Table(
    "journal_offset",
    metadata,
    sa.Column("segment", sa.Text, primary_key=True),
    sa.Column("offset", _BIG, nullable=False, doc="Bytes whose records are committed."),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
