"""Counts per model and minute, kept by the writer in the transaction that stores what they count.

They outlive the rows that retention removes, and say what was served. Rows that a user deletes are taken
off again.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable

import msgspec
import sqlalchemy as sa

from quadriga.store.database import execute, execute_in, upsert
from quadriga.store.ids import time_ms
from quadriga.store.records import json_text
from quadriga.store.schema import COLUMNS

MINUTE_MS = 60_000
BUCKET_GROWTH = 1.02
"""Of the sketch's buckets, each to the next: a value is known to (1.02 - 1) / (1.02 + 1), 0.99 %."""

FIRST_ERROR = 500  # the smallest status that counts as an error
_LOG_GROWTH = math.log(BUCKET_GROWTH)
_ZERO = -1
"""The bucket of less than a microsecond; bucket `i` holds what is above GROWTH^(i-1), up to GROWTH^i."""

_counts = msgspec.json.Decoder(dict[int, int])


class Tally(msgspec.Struct):
    """What is counted of some inferences."""

    n: int = 0
    errors: int = 0  # of these, with a status of `FIRST_ERROR` or more
    latency: dict[int, int] = {}  # of each bucket of the sketch, the inferences that fall into it
    labels: dict[int, int] = {}  # of each label, by id, the predictions that have it
    kept_bytes: int = 0  # of inputs kept, see `size_kept`

    def count(self, status: int, latency_us: int, kept: int = 0, size: int | None = None) -> None:
        """Count one inference; whether its input is kept, and its bytes, as of `size_kept`."""
        self.n += 1
        self.errors += status >= FIRST_ERROR
        at = latency_bucket(latency_us)
        self.latency[at] = self.latency.get(at, 0) + 1
        self.kept_bytes += kept_size(kept, size)

    def count_label(self, label: int, n: int) -> None:
        """Count predictions with a label."""
        self.labels[label] = self.labels.get(label, 0) + n

    def add(self, other: "Tally", sign: int = 1) -> None:
        """Add another tally, or take it off (sign -1); nothing falls below 0."""
        self.n = max(self.n + sign * other.n, 0)
        self.errors = max(self.errors + sign * other.errors, 0)
        self.kept_bytes = max(self.kept_bytes + sign * other.kept_bytes, 0)
        _add(self.latency, other.latency, sign)
        _add(self.labels, other.labels, sign)

    def latency_ms(self, quantile: float) -> float | None:
        """Return the latency that so large a part of the inferences did not exceed, by nearest rank.

        Within 1 % of the exact one; None where nothing was counted.
        """
        left = max(math.ceil(quantile * sum(self.latency.values())), 1)
        for at in sorted(self.latency):
            left -= self.latency[at]
            if left <= 0:
                return _middle_us(at) / 1000
        return None


class RollupChanges:
    """What one transaction adds to the counts, or takes off."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[int, int], Tally] = defaultdict(Tally)

    def tally_of(self, model_id: int, seq: int) -> Tally:
        """Return the tally that an inference belongs to."""
        return self._tallies[model_id, minute_of(seq)]

    def apply(self, connection: sa.Connection, sign: int = 1) -> None:
        """Add to what is stored, or take off (sign -1); the last thing that a transaction does.

        Where several servers count in one database, the rows are locked, in order, until the commit.
        """
        tallies = lock_tallies(connection, self._tallies)
        for key, change in self._tallies.items():
            tallies[key].add(change, sign)
        write_tallies(connection, tallies)


def subtract(connection: sa.Connection, seqs: Collection[int]) -> None:
    """Take inferences off the counts that this transaction, which runs alone, is about to delete."""
    counts, tallies = RollupChanges(), {}
    columns = "seq, model_id, status, latency_us, input_kept, input_bytes"
    text = f"SELECT {columns} FROM inference WHERE seq IN ({{}})"
    for seq, model_id, *counted in execute_in(connection, text, seqs):
        tallies[seq] = counts.tally_of(model_id, seq)
        tallies[seq].count(*counted)
    text = "SELECT seq, label, n FROM pred WHERE seq IN ({})"
    for seq, label, n in execute_in(connection, text, seqs):
        if seq in tallies:
            tallies[seq].count_label(label, n)
    counts.apply(connection, -1)


def drop_input_sizes(
    connection: sa.Connection, rows: Iterable[tuple[int, int, int | None]]
) -> None:
    """Take inputs that are kept no longer off `kept_bytes`, in the transaction that marks them, alone.

    Of each there are its id, its model's id and its bytes.
    """
    counts = RollupChanges()
    for seq, model_id, size in rows:
        counts.tally_of(model_id, seq).kept_bytes += kept_size(True, size)
    counts.apply(connection, -1)


def lock_tallies(
    connection: sa.Connection, keys: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], Tally]:
    """Return what is counted of models and minutes, new rows where need be, locked until the commit."""
    ordered = sorted(keys)
    if not ordered:
        return {}
    columns, values = (
        ", ".join(COLUMNS["rollup"]),
        tuple(number for key in ordered for number in key),
    )
    empty = ", ".join(["(?, ?, 0, 0, '{}', '{}', 0)"] * len(ordered))
    text = f"INSERT INTO rollup ({columns}) VALUES {empty} ON CONFLICT DO NOTHING"
    execute(connection, text, values)
    for_update = "" if connection.dialect.name == "sqlite" else " FOR UPDATE"
    pairs = ", ".join(["(?, ?)"] * len(ordered))
    text = f"SELECT {columns} FROM rollup WHERE (model_id, minute) IN (VALUES {pairs})"
    rows = execute(connection, f"{text} ORDER BY model_id, minute{for_update}", values)
    return {
        (row[0], row[1]): Tally(
            row[2], row[3], decode_counts(row[4]), decode_counts(row[5]), row[6]
        )
        for row in rows
    }


def write_tallies(connection: sa.Connection, tallies: dict[tuple[int, int], Tally]) -> None:
    """Write tallies to rows that `lock` returned."""
    rows = [
        (*key, one.n, one.errors, json_text(one.latency), json_text(one.labels), one.kept_bytes)
        for key, one in tallies.items()
    ]
    upsert(connection, "rollup", rows)


def decode_counts(text: str) -> dict[int, int]:
    """Read what is counted by number."""
    return _counts.decode(text)


def minute_of(seq: int) -> int:
    """Return the minute of an id, since 1970."""
    return time_ms(seq) // MINUTE_MS


def kept_size(kept: int | bool, size: int | None) -> int:  # noqa: FBT001 - a column
    """Return what an input counts as kept: never 0, so that whatever is kept is found by it."""
    return max(size or 0, 1) if kept else 0


def latency_bucket(latency_us: int) -> int:
    """Return the bucket of the sketch that a latency falls into."""
    return math.ceil(math.log(latency_us) / _LOG_GROWTH) if latency_us >= 1 else _ZERO


def _middle_us(at: int) -> float:
    """Return the value from which none of a bucket differs by more than 1 %."""
    return 2 * BUCKET_GROWTH**at / (1 + BUCKET_GROWTH) if at > _ZERO else 0.0


def _add(counts: dict[int, int], others: dict[int, int], sign: int) -> None:
    for key, n in others.items():
        total = counts.get(key, 0) + sign * n
        if total > 0:
            counts[key] = total
        else:
            counts.pop(key, None)
