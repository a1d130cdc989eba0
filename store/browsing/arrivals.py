"""What arrives: the matches of a filter as they are stored, each once, in the order of their ids.

Ids are times, but rows become visible by the commits of several writers, so that a lower id may come after a higher one. An
id is passed once nothing lower waits in the journal of this server. What comes later nevertheless, as from another server
whose writer is behind, is found for a while, since every look remembers which ids it has seen.
"""

import time
from typing import Any

import msgspec

from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.query.sql.search import IdRange, find_first
from quadriga.store.records.errors import QueryError
from quadriga.store.records.ids import TIME_SHIFT, smallest_id_at, time_ms
from quadriga.store.records.records import timestamp_text

SETTLE_MS = 1000
"""Time in which a record that has its id is in the journal, unless something holds it up."""

LATE_MS = 30_000
"""How late an inference may become visible, behind others with higher ids, and is still found."""

MAX_REMEMBERED = 2000
"""Maximum ids that are remembered; of more matches within `LATE_MS` the newest."""

MOST_PER_S = 200
"""Matches of a second that are returned: of more the newest."""

MOST_AT_ONCE = 1000
"""Maximum matches of one look, as after a break."""

_LATE = LATE_MS << TIME_SHIFT
_MAX_DIGITS = 19


class ArrivalsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of what arrives."""

    where: Any = None
    """A filter, as of a query."""
    after: str | None = None
    """Id behind which to begin: that of the last inference that was received; without one, only what is new arrives."""


class Arrived(msgspec.Struct, frozen=True):
    """What one look found."""

    ids: list[int]
    """Ids of the matches, oldest first."""
    skipped: int = 0
    """Number of matches that are left out, as there are too many."""
    is_exact: bool = True
    """Whether no more than `skipped` are left out."""


def settled(inferences: InferenceReader, now_ms: int) -> int:
    """Return the id up to which all that this server records is in the database, but for what is late.

    Args:
        inferences: The store.
        now_ms: Milliseconds since 1970.
    """
    waiting_id = inferences.oldest_waiting_id()
    newest_ms = now_ms if waiting_id is None else min(now_ms, time_ms(waiting_id))
    return smallest_id_at(newest_ms - SETTLE_MS)


class NewInferences:
    """Follows the matches of a filter for one listener; used by one thread at a time.

    Args:
        where: A filter, as of a query.
        after: Id behind which to begin; None for what arrives from now on.

    Raises:
        QueryError: The id is malformed.
    """

    def __init__(self, where: Any, after: str | None = None) -> None:
        self._where = where
        self._after = None if after is None else _id_of(after)
        self._seen: set[int] = set()
        self._floor = 0
        self.position = 0
        """Id up to which everything was found, but for what is late; 0 before the first look."""

    def look(self, inferences: InferenceReader, now_ms: int | None = None) -> Arrived:
        """Find what has arrived since the last look; errors as for `InferenceReader.query`.

        Args:
            inferences: What may be seen.
            now_ms: Milliseconds since 1970; by default those of this machine's clock.
        """
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        settled_id = settled(inferences, now_ms)  # before the database is read
        newest_id = smallest_id_at(now_ms)
        is_first = not self.position
        position = self.position
        if is_first:
            position = settled_id if self._after is None else min(self._after, newest_id)
        elif position - _LATE > newest_id:  # the clock was ahead, and was set right
            position, self._floor = settled_id, 0
        reached = max(settled_id, position)
        low = max(position - _LATE, self._floor, 0)
        ids, floor = self._find(inferences, IdRange(low, reached))
        if is_first:
            self._seen = {seq for seq in ids if seq <= position}
        new = [seq for seq in reversed(ids) if seq not in self._seen]
        is_exact = floor <= position  # else there may be more between the two
        self._seen = {*ids, *(seq for seq in self._seen if seq > reached)}
        self._floor, self.position = max(floor, low), reached
        seconds = (reached - position >> TIME_SHIFT) // 1000
        limit = min(max(seconds, 1) * MOST_PER_S, MOST_AT_ONCE)
        skipped = max(len(new) - limit, 0)
        return Arrived(new[skipped:], skipped, is_exact or not new)

    def _find(self, inferences: InferenceReader, id_range: IdRange) -> tuple[list[int], int]:
        """Return the newest matches, newest first, and the id from which on there are no others."""
        since = timestamp_text(time_ms(id_range.low))
        parts = [{"ts": {"ge": since}}, *([self._where] if self._where else [])]
        tree = inferences.read_filter(QueryRequest(where={"and": parts}))
        with inferences.snapshot() as connection:
            rows, resume_id = find_first(
                connection,
                inferences.planner(connection, tree),
                descending=True,
                limit=MAX_REMEMBERED,
                id_range=id_range,
                budget=inferences.budget,
            )
        ids = [int(row[0]) for row in rows]
        if len(ids) == MAX_REMEMBERED:
            return ids, ids[-1]
        return ids, id_range.low if resume_id is None else resume_id


def _id_of(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise QueryError(f"expected after to be an id as a string of digits, got {text[:80]!r}")
    return int(text)
