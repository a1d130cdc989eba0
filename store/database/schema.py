"""The store's tables, which the migrations make: see `store/database/migrations/versions`.

A row of `inference` is the truth: what was predicted and the metadata, as JSON. `meta_num`, `meta_str`,
`pred`, `rollup` and `rollup_sum` are derived from it, exist to find and count it, and can be rebuilt. `signal` holds what
drift is told by, made from the image while it was in memory. In PostgreSQL all of these but the rollups are
partitioned by `seq`, which is the time.
"""

import enum
from bisect import bisect_right
from typing import NamedTuple


class InferenceRow(NamedTuple):
    """A row to insert into `inference`, in the order of the columns of its table."""

    seq: int
    request_id: str
    image_no: int
    model_id: int
    action: str
    status: int
    latency_us: int
    input_name: str
    input_hash: str | None
    input_width: int | None
    input_height: int | None
    input_mime: str | None
    input_bytes: int | None
    input_kept: int
    prediction_count: int | None
    predictions: str
    meta: str
    meta_flat: str | None
    standard: str


COLUMNS = {
    "inference": InferenceRow._fields,
    "meta_num": ("key", "val", "seq"),
    "meta_str": ("key", "val", "seq"),
    "pred": ("label", "band", "seq", "score", "worst", "n"),
    "signal": ("seq", "picture", "embedding", "space"),
    "rollup": ("model_id", "minute", "n", "errors", "latency", "labels", "kept_bytes"),
    "rollup_sum": ("model_id", "period", "minute", "n", "errors", "latency", "labels"),
    "metadata_change": ("id", "seq", "change", "before"),
    "truth": (
        "id", "join_on", "value", "source", "annotations", "task", "model", "owner", "review",
    ),
    "ground_truth": ("seq", "truth_id"),
    "other_truth": ("seq", "truth_id"),
    "repeated_id": ("seq", "first_seq"),
    "feedback": ("id", "seq", "kind", "value", "comment", "source"),
    "retention": ("model", "team", "inputs_days", "inferences_days"),
    "journal_offset": ("segment", '"offset"'),
    "worker_number": ("number", "owner", "place", "host", "seen_ms"),
    "access_key": (
        "id", "hash", "name", "roles", "team", "models", "created_ms", "expires_ms", "revoked_ms",
        "used_ms", "limits",
    ),
    "traffic": ("model", "rule", "changed_ms", "changed_by"),
}  # fmt: skip
"""Columns of the tables that rows are written to, in the order of their values; the key comes first."""

INDEX_TABLES = ("meta_num", "meta_str", "pred")
"""Tables that inferences are found by."""

_KEYS = {"rollup": 2, "rollup_sum": 3, "retention": 2, **dict.fromkeys(INDEX_TABLES, 3)}
"""How many columns are the key, where it is more than one; the last is an index's `seq`."""

INDEXED_CHARACTERS = 256
"""`meta_str` holds no more of a string; longer ones are told apart on the JSON."""

MAX_KEYS = 10_000
"""Once a team has so many rows of `meta_key`, its metadata of a path that has none is not indexed."""

SCORE_BANDS = (0.25, *(1 - 0.5**k for k in range(1, 11)))
"""Lower bounds of the bands of scores after the first; narrower near 1, where most scores are."""


def key_columns(table: str) -> tuple[str, ...]:
    """Return the columns that are the key of a table."""
    return COLUMNS[table][: _KEYS.get(table, 1)]


def score_band(score: float) -> int:
    """Return the band of a score, 0 to `len(BANDS)`; a larger score has no smaller one."""
    return bisect_right(SCORE_BANDS, score)


class KeyType(enum.IntEnum):
    """The types that values of one metadata path are told apart by."""

    NUM = 0
    STR = 1
    BOOL = 2
    OTHER = 3
    """A list or an object, which is searched by its presence only."""
    CELL = 4
    """Location, stored under the path `""`, as a `quadriga.store.records.geo` cell, from `latitude` and `longitude`."""
    FULL = 5
    """No value: under the path `""`, a team whose metadata is not indexed at every path."""
