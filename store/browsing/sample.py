"""A sample of the matches of a filter: all of them where they are few, else some of each part of the time.

The time from the oldest match to the newest is cut into slices. In one of the parts of each slice that have inferences at all,
the first matches are read; how close they follow each other estimates how many matches the slice has.
"""

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from quadriga.store.database.database import execute, execute_in
from quadriga.store.query.sql.search import NARROW_ROWS, Budget, IdRange, Plan, Planner, Search
from quadriga.store.records.ids import time_ms

SLICES = 40
ROWS = 1000
"""Maximum inferences of a sample that are not all matches."""

EXACT_ROWS = 5000
"""Maximum matches of which all are looked at."""

EXACT_CHARACTERS = 8_000_000
"""Maximum JSON of matches of which all are looked at, if they are more than `ROWS`."""

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_ROUND_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 20, 30)),
    *(n * _MINUTE for n in (1, 2, 3, 5, 10, 15, 20, 30)),
    *(n * _HOUR for n in (1, 2, 3, 4, 6, 8, 12)),
    *(n * _DAY for n in (1, 2, 4, 7, 14, 28)),
)
"""Lengths of slices of the time that people read at once."""

_PARTS = 8  # of a slice
_MAX_MODELS = 8  # in whose indexes parts with inferences are looked for
_SLICE_ROWS = ROWS // SLICES
_ALL = Budget(rows=10_000, seconds=0.3)
"""Limits of the search for all matches."""

_LISTED_ROWS = 1_000_000
_LISTED = Budget(rows=_LISTED_ROWS, seconds=0.3)
"""Limits of the search for all matches among ids that the filter lists: a slice would read the whole list again."""

_SLICE = Budget(rows=500, seconds=0.1, first_batch_rows=200)
"""Limits of the search in one slice."""

_STARTS = (
    "WITH RECURSIVE part (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM part WHERE n < ?)"
    " SELECT n, (SELECT i.seq FROM inference AS i WHERE {} AND i.seq >= ? + n * ? ORDER BY i.seq LIMIT 1) FROM part"
)
"""Selects the first inference from the beginning of each part on."""

_CHARACTERS = "SELECT sum(length(predictions) + length(meta)) FROM inference WHERE seq IN ({})"
_SELECT = (
    "SELECT i.seq, i.model_id, i.status, i.latency_us, i.predictions, coalesce(CAST(i.meta_flat AS text), i.meta),"
    " t.annotations IS NOT NULL, t.review FROM inference AS i LEFT JOIN ground_truth AS g ON g.seq = i.seq LEFT JOIN truth AS t ON t.id = g.truth_id"
    " WHERE i.seq IN ({})"
)


class SampledRow(NamedTuple):
    """An inference of a sample."""

    seq: int
    model_id: int
    status: int
    latency_us: int
    predictions: str
    flat_meta: str
    has_truth: bool
    review: str | None


class MatchSample(NamedTuple):
    """Some matches of a filter, and how many all of them are."""

    rows: list[SampledRow]
    weights: list[float]
    """Number of matches that each row stands for."""
    times: list[float]
    """Number of matches in each of equal slices of the time."""
    first_ms: int
    """Time at which the first slice begins, in milliseconds since 1970; 0 without matches."""
    last_ms: int
    """Time at which the last slice ends."""
    matches: float
    is_exact: bool
    """Whether the rows are all matches."""
    is_exact_count: bool
    """Whether `matches` and `times` are counted, not estimated."""


def take_sample(connection: sa.Connection, planner: Planner) -> MatchSample:
    """Take a sample of the matches of a filter, which follows from what the scope admits alone."""
    plan = planner.plan
    is_narrow = plan.scans is not None and not all(scan.ordered for scan in plan.scans)
    is_listed = plan.scans is not None and any(scan.is_list for scan in plan.scans)
    limit = (_LISTED_ROWS if is_listed else NARROW_ROWS if is_narrow else EXACT_ROWS) + 1
    rows, resume_id = Search(connection, plan, descending=True).first_matches(
        limit, IdRange(), _LISTED if is_listed else _ALL
    )
    ids = [int(row[0]) for row in rows]
    if resume_id is None and len(ids) < limit:
        return _of_ids(connection, ids)
    newest = ids[0] if ids else None
    return _of_slices(connection, plan, newest=newest, seen=planner.admitted_ids)


def _of_ids(connection: sa.Connection, ids: Sequence[int]) -> MatchSample:
    """Return every match, or evenly chosen ones; `ids` are those of all, the newest first."""
    if not ids:
        return MatchSample(
            [], [], [], 0, last_ms=0, matches=0.0, is_exact=True, is_exact_count=True
        )
    limit = ROWS
    if ROWS < len(ids) <= EXACT_ROWS:
        characters = sum(row[0] or 0 for row in execute_in(connection, _CHARACTERS, ids))
        limit = EXACT_ROWS if characters <= EXACT_CHARACTERS else ROWS
    step = max(len(ids) / limit, 1.0)
    chosen = [ids[int(number * step)] for number in range(min(len(ids), limit))]
    rows = _read(connection, chosen)
    slice_ms = _slice_ms(time_ms(ids[-1]), time_ms(ids[0]))
    first_slice, last_slice = (time_ms(seq) // slice_ms for seq in (ids[-1], ids[0]))
    times = [0.0] * (last_slice - first_slice + 1)
    for seq in ids:  # by milliseconds, as a filter with the bounds of a slice finds them
        times[time_ms(seq) // slice_ms - first_slice] += 1
    return MatchSample(
        rows,
        [len(ids) / len(rows)] * len(rows),
        times,
        first_slice * slice_ms,
        last_ms=(last_slice + 1) * slice_ms - 1,
        matches=len(ids),
        is_exact=len(rows) == len(ids),
        is_exact_count=True,
    )


def _slice_ms(first_ms: int, last_ms: int) -> int:
    """Return the shortest round length of slices of which at most `SLICES` cover the time between two matches."""
    step = next(
        (step for step in _ROUND_MS if last_ms // step - first_ms // step < SLICES), _ROUND_MS[-1]
    )
    while last_ms // step - first_ms // step >= SLICES:
        step *= 2
    return step


def _of_slices(
    connection: sa.Connection, plan: Plan, *, newest: int | None, seen: tuple[int, ...] | None
) -> MatchSample:
    """Return matches of each slice of the time.

    Args:
        connection: The snapshot of the plan.
        plan: The plan of the filter.
        newest: The newest match, if it is known.
        seen: Ids of the models that may be seen; None for all.
    """
    search = Search(connection, plan, descending=False)
    rows, tested_id = search.first_matches(1, IdRange(), _ALL)
    low = int(rows[0][0]) if rows else search.resume_before(tested_id) or 0
    high = _newest(connection, seen, plan.id_range.high) if newest is None else newest
    low = min(low, high)
    part_ids = (high - low) // (SLICES * _PARTS) + 1
    weights: dict[int, float] = {}
    times: list[float] = []
    for starts in _occupied(connection, low, part_ids, seen=seen):
        ids, count = _matches_of(search, starts, part_ids)
        weights |= dict.fromkeys(ids, count / max(len(ids), 1))
        times.append(count)
    rows = _read(connection, list(weights))
    return MatchSample(
        rows,
        [weights[row.seq] for row in rows],
        times,
        time_ms(low),
        last_ms=time_ms(high),
        matches=sum(times),
        is_exact=False,
        is_exact_count=False,
    )


def _newest(connection: sa.Connection, seen: tuple[int, ...] | None, until: int) -> int:
    """Return the newest inference that may be seen, up to an id; 0 if there is none."""
    ids = [
        execute(connection, f"SELECT max(seq) FROM inference WHERE {test}", values).scalar()
        for test, values in _tests(seen)
    ]
    return min(max((int(id_) for id_ in ids if id_ is not None), default=0), until)


def _occupied(
    connection: sa.Connection, low: int, part_ids: int, *, seen: tuple[int, ...] | None
) -> list[list[int]]:
    """Return for each slice where its parts begin that have inferences, whether they match or not."""
    count = SLICES * _PARTS
    numbers = set(range(count)) if seen is not None and len(seen) > _MAX_MODELS else set()
    for test, values in () if numbers else _tests(seen):
        statement = _STARTS.format(test)
        for number, first in execute(connection, statement, (count - 1, *values, low, part_ids)):
            if first is not None and first < low + (number + 1) * part_ids:
                numbers.add(number)
    occupied: list[list[int]] = [[] for _ in range(SLICES)]
    for number in sorted(numbers):
        occupied[number // _PARTS].append(low + number * part_ids)
    return occupied


def _tests(seen: tuple[int, ...] | None) -> list[tuple[str, tuple[int, ...]]]:
    """Return conditions of SQL, with their values, one of which each inference meets that may be seen."""
    if seen is None:
        return [("1 = 1", ())]
    return [("model_id = ?", (model_id,)) for model_id in seen]


def _matches_of(search: Search, starts: list[int], part_ids: int) -> tuple[list[int], float]:
    """Return some matches of a slice, and an estimate of how many it has, given where its parts with inferences begin."""
    if not starts:
        return [], 0.0
    searched = starts[len(starts) // 2 :]
    id_range = IdRange(searched[0], searched[-1] + part_ids - 1)
    rows, tested_id = search.first_matches(_SLICE_ROWS, id_range, _SLICE)
    ids = [int(row[0]) for row in rows]
    count, last_id = len(ids), id_range.high if tested_id is None else tested_id
    if count == _SLICE_ROWS:  # the last says where the search ended, not how many there are
        count, last_id = count - 1, ids[-1]
    covered_ids = sum(min(last_id - start + 1, part_ids) for start in searched if start <= last_id)
    return ids, count * part_ids * len(starts) / covered_ids


def _read(connection: sa.Connection, ids: Sequence[int]) -> list[SampledRow]:
    return [SampledRow(*row) for row in execute_in(connection, _SELECT, ids)]
