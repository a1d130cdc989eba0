"""Retention: removes expired inferences and inputs by the rules of models, and inputs beyond a total size.

Runs in the writer's process between batches, in small steps that do not delay commits. Removed
inferences stay counted in the rollups, which count what was served; only `kept_bytes` is updated.
"""

import logging
import math
import time
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from quadriga.store.blobs.interface import Blobs
from quadriga.store.blobs.unreferenced import remove_unreferenced
from quadriga.store.changes.applying import delete_inferences
from quadriga.store.database import rollups
from quadriga.store.database.database import execute, execute_in
from quadriga.store.database.partitions import Month, drop_month, list_months
from quadriga.store.database.rollups import MINUTE_MS
from quadriga.store.database.rows import NameIds
from quadriga.store.records.errors import StoreError
from quadriga.store.records.ids import Clock, smallest_id_at
from quadriga.store.records.records import SUFFIXES

STEP_ROWS = 250  # rows of one transaction
MAX_TIME_SHARE = 0.5  # share of the time in which the writer has nothing to store, while there is something to remove
CHECK_INTERVAL_S = 10.0  # pause while there is nothing to remove
_DAY_MS = 86_400_000
_CONFIRM_MS = _DAY_MS
_log = logging.getLogger(__name__)


class RetentionLimit(NamedTuple):
    """Minutes since 1970 before which inputs and inferences of a model are removed; 0 for never."""

    model_id: int
    inputs: int
    inferences: int


class RetentionCleaner:
    """Removes expired data step by step.

    All inputs may take `max_input_bytes`, the oldest are removed first; 0 means no limit. An input that was
    sent twice counts twice, so the actual size on disk is smaller.
    """

    def __init__(self, blobs: Blobs, journal_directory: Path, max_input_bytes: int = 0) -> None:
        self._blobs = blobs
        self._journal_directory = journal_directory
        self._max_input_bytes = max_input_bytes
        # What is removed is gone: a clock that jumped ahead is followed after a day.
        self._clock = Clock(journal_directory.parent, _CONFIRM_MS)
        self._surplus = 0
        self._reached = (0, 0, 0)  # model, minute and id up to which inputs are removed
        self._due = 0.0

    def step(self, engine: sa.Engine, names: NameIds, freed: set[str]) -> None:
        """Do one step if it is due; to be called when no journaled record waits.

        If this raises, the writer's `names` must be created again. Blobs in `freed`, which lost a reference
        through changes, are removed if nothing references them, and the set is cleared.
        """
        if freed:
            self._remove_blobs(engine, freed)
            freed.clear()
        started_s = time.monotonic()
        if started_s < self._due:
            return
        self._due = started_s + CHECK_INTERVAL_S  # also if the step fails
        has_more = self.run_step(engine, names, self._clock.now_ms())
        ended_s = time.monotonic()
        self._due = ended_s + (
            (ended_s - started_s) * (1 / MAX_TIME_SHARE - 1) if has_more else CHECK_INTERVAL_S
        )

    def run_step(self, engine: sa.Engine, names: NameIds, now_ms: int) -> bool:
        """Do one step, as `step`, at a time in milliseconds since 1970; return whether there may be more to do."""
        freed: set[str] = set()
        with engine.begin() as connection:
            limits = limits_of(connection, now_ms)
        if not limits and not self._max_input_bytes:
            return False
        with names.transaction(engine, exclusive=True) as connection:
            has_more = self._remove_old_inputs(connection, limits, freed)
            if not has_more and not (has_more := _drop_month(connection, limits)):
                has_more = _remove_inferences(connection, names, limits, freed)
            has_more = has_more or self._remove_surplus(connection, freed)
        if freed:
            self._remove_blobs(engine, freed)
        return has_more

    def _remove_blobs(self, engine: sa.Engine, freed: set[str]) -> None:
        """Remove blobs that nothing references any more."""
        try:
            with engine.begin() as connection:
                remove_unreferenced(connection, self._blobs, freed, self._journal_directory)
        except (OSError, StoreError) as error:
            _log.warning("unreferenced inputs are left to the sweep: %s", error)

    def _remove_old_inputs(
        self, connection: sa.Connection, limits: list[RetentionLimit], freed: set[str]
    ) -> bool:
        statement = (
            "SELECT min(minute) FROM rollup WHERE model_id = ? AND kept_bytes > 0 AND minute < ?"
        )
        for limit in limits:
            oldest = execute(connection, statement, (limit.model_id, limit.inputs)).scalar()
            if oldest is not None:
                self._remove_inputs(connection, limit.model_id, oldest, freed=freed)
                return True
        return False

    def _remove_surplus(self, connection: sa.Connection, freed: set[str]) -> bool:
        if not self._max_input_bytes:
            return False
        if self._surplus <= 0:
            total = "SELECT coalesce(sum(kept_bytes), 0) FROM rollup WHERE kept_bytes > 0"
            self._surplus = int(execute(connection, total).scalar_one()) - self._max_input_bytes
        if self._surplus <= 0:
            return False
        oldest_minute = "SELECT min(minute) FROM rollup WHERE model_id = k.id AND kept_bytes > 0"
        oldest = execute(connection, f"SELECT k.id, ({oldest_minute}) FROM model AS k")
        minute, model_id = min((minute, id_) for id_, minute in oldest if minute is not None)
        self._surplus -= self._remove_inputs(
            connection, model_id, minute, freed=freed, enough_bytes=self._surplus
        )
        return True

    def _remove_inputs(
        self,
        connection: sa.Connection,
        model_id: int,
        minute: int,
        *,
        freed: set[str],
        enough_bytes: float = math.inf,
    ) -> int:
        """Mark inputs of a minute as removed, oldest first, and return their size in bytes."""
        start_id, stop_id = (
            smallest_id_at(minute_ * MINUTE_MS) for minute_ in (minute, minute + 1)
        )
        is_continued = self._reached[:2] == (model_id, minute)
        statement = (
            "SELECT seq, input_hash, input_bytes FROM inference WHERE model_id = ?"
            " AND seq > ? AND seq < ? AND input_kept = 1 ORDER BY seq LIMIT ?"
        )
        after_id = self._reached[2] if is_continued else start_id - 1
        rows = execute(connection, statement, (model_id, after_id, stop_id, STEP_ROWS))
        removed, total = [], 0
        for seq, digest, size in rows:
            removed.append((seq, model_id, size))
            total += rollups.kept_size(True, size)
            freed |= {digest} - {None}
            if total >= enough_bytes:
                break
        self._reached = (model_id, minute, removed[-1][0]) if removed else (0, 0, 0)
        if removed:
            mark = "UPDATE inference SET input_kept = 0 WHERE seq IN ({})"
            execute_in(connection, mark, [row[0] for row in removed])
            rollups.drop_input_sizes(connection, removed)
        elif not is_continued:  # scanned from its start, so nothing is left of what is counted
            reset = "UPDATE rollup SET kept_bytes = 0 WHERE model_id = ? AND minute = ?"
            execute(connection, reset, (model_id, minute))
        return total


def limits_of(connection: sa.Connection, now_ms: int) -> list[RetentionLimit]:
    """Return the limits of models with a rule, at a time in milliseconds since 1970."""
    rules = execute(
        connection,
        "SELECT k.id, r.inputs_days, r.inferences_days"
        " FROM retention AS r JOIN model AS k ON k.name IN (r.model, r.model || ?, r.model || ?) AND r.team IN ('', k.team)"
        " WHERE r.inputs_days IS NOT NULL OR r.inferences_days IS NOT NULL ORDER BY k.id",
        SUFFIXES,
    )
    limits: dict[int, RetentionLimit] = {}
    # Of a team's own rule and that for all, the shorter holds.
    for model_id, inputs_days, inferences_days in rules:
        other = limits.get(model_id, RetentionLimit(model_id, 0, 0))
        inferences = max(_minute_before(now_ms, inferences_days), other.inferences)
        inputs = max(_minute_before(now_ms, inputs_days), other.inputs, inferences)
        limits[model_id] = RetentionLimit(model_id, inputs, inferences)
    return [*limits.values()]


def _minute_before(now_ms: int, days: float | None) -> int:
    """Return the minute since 1970 before which everything has expired, 0 for none."""
    return 0 if days is None else max(math.floor((now_ms - days * _DAY_MS) / MINUTE_MS), 0)


def _remove_inferences(
    connection: sa.Connection, names: NameIds, limits: list[RetentionLimit], freed: set[str]
) -> bool:
    oldest = "SELECT seq FROM inference WHERE model_id = ? AND seq < ? ORDER BY seq LIMIT ?"
    for limit in limits:
        end = smallest_id_at(limit.inferences * MINUTE_MS)
        seqs = execute(connection, oldest, (limit.model_id, end, STEP_ROWS)).scalars().all()
        if seqs:
            freed |= delete_inferences(connection, names, seqs)
            return True
    return False


def _drop_month(connection: sa.Connection, limits: list[RetentionLimit]) -> bool:
    """Drop a partition whose rows have all expired."""
    ends = {limit.model_id: smallest_id_at(limit.inferences * MINUTE_MS) for limit in limits}
    for month in list_months(connection):
        if month.stop_id <= max(ends.values(), default=0) and _is_past(connection, month, ends):
            return drop_month(connection, month)
    return False


def _is_past(connection: sa.Connection, month: Month, ends: dict[int, int]) -> bool:
    any_row = "SELECT 1 FROM inference WHERE model_id = ? AND seq >= ? AND seq < ? LIMIT 1"
    any_input = (
        "SELECT 1 FROM rollup WHERE model_id = ? AND kept_bytes > 0"
        " AND minute >= ? AND minute < ? LIMIT 1"
    )
    minutes = (rollups.minute_of(month.start_id), rollups.minute_of(month.stop_id))
    for model_id in execute(connection, "SELECT id FROM model").scalars().all():
        if execute(connection, any_input, (model_id, *minutes)).first():
            return False
        may_remain = ends.get(model_id, 0) < month.stop_id
        ids = (model_id, month.start_id, month.stop_id)
        if may_remain and execute(connection, any_row, ids).first():
            return False
    return True
