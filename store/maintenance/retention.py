"""Removes what is kept long enough: by the rules of models, and inputs beyond a size in all.

Runs in the writer's process between batches, in steps so small that they stall nothing. What is removed
stays counted in the rollups, which say what was served; only `kept_bytes` follows.
"""

import logging
import math
import time
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from quadriga.store import rollups
from quadriga.store.blobs.interface import Blobs
from quadriga.store.blobs.unreferenced import remove_unreferenced
from quadriga.store.changes.applying import delete_inferences
from quadriga.store.database import execute, execute_in
from quadriga.store.errors import StoreError
from quadriga.store.ids import smallest_id_at
from quadriga.store.partitions import Month, drop_month, list_months
from quadriga.store.rollups import MINUTE_MS
from quadriga.store.rows import NameIds

STEP_ROWS = 250  # of one transaction
MAX_TIME_SHARE = 0.2  # of the writer's time, while there is something to remove
CHECK_INTERVAL_S = 10.0  # how often it is looked whether there is something
_DAY_MS = 86_400_000
_log = logging.getLogger(__name__)


class RetentionLimit(NamedTuple):
    """From when on a model's inputs and inferences are kept: minutes since 1970, 0 for ever."""

    model_id: int
    inputs: int
    inferences: int


class RetentionCleaner:
    """Removes step by step what is kept no longer.

    Inputs may take `max_input_bytes` in all, the oldest go first; 0 is no limit. An input that came
    twice counts twice, so that what is on disk is less.
    """

    def __init__(self, blobs: Blobs, journal_directory: Path, max_input_bytes: int = 0) -> None:
        self._blobs = blobs
        self._journal_directory = journal_directory
        self._max_input_bytes = max_input_bytes
        self._surplus = 0
        self._reached = (0, 0, 0)  # model, minute and id up to which inputs are removed
        self._due = 0.0

    def step(self, engine: sa.Engine, names: NameIds, freed: set[str]) -> None:
        """Remove a little, if it is time; to be called when no journaled record waits.

        The names, the writer's, are to be made anew if this raises. The keys of blobs that may be needed no
        more since changes were applied are emptied.
        """
        if freed:
            self._remove_blobs(engine, freed)
            freed.clear()
        began = time.monotonic()
        if began < self._due:
            return
        self._due = began + CHECK_INTERVAL_S  # also where it fails
        more = self.run_step(engine, names, time.time_ns() // 1_000_000)
        ended = time.monotonic()
        self._due = ended + (
            (ended - began) * (1 / MAX_TIME_SHARE - 1) if more else CHECK_INTERVAL_S
        )

    def run_step(self, engine: sa.Engine, names: NameIds, now_ms: int) -> bool:
        """Do one step, as `step`, at a moment in milliseconds since 1970; tells whether there may be more."""
        freed: set[str] = set()
        with engine.begin() as connection:
            limits = limits_of(connection, now_ms)
        if not limits and not self._max_input_bytes:
            return False
        with names.transaction(engine, exclusive=True) as connection:
            more = self._remove_old_inputs(connection, limits, freed)
            if not more and not (more := _drop_month(connection, limits)):
                more = _remove_inferences(connection, names, limits, freed)
            more = more or self._remove_surplus(connection, freed)
        if freed:
            self._remove_blobs(engine, freed)
        return more

    def _remove_blobs(self, engine: sa.Engine, freed: set[str]) -> None:
        """Remove bytes that nothing needs any more."""
        try:
            with engine.begin() as connection:
                remove_unreferenced(connection, self._blobs, freed, self._journal_directory)
        except (OSError, StoreError) as error:
            _log.warning("inputs that nothing needs are left to the sweep: %s", error)

    def _remove_old_inputs(
        self, connection: sa.Connection, limits: list[RetentionLimit], freed: set[str]
    ) -> bool:
        first = (
            "SELECT min(minute) FROM rollup WHERE model_id = ? AND kept_bytes > 0 AND minute < ?"
        )
        for limit in limits:
            oldest = execute(connection, first, (limit.model_id, limit.inputs)).scalar()
            if oldest is not None:
                self._remove_inputs(connection, limit.model_id, oldest, freed)
                return True
        return False

    def _remove_surplus(self, connection: sa.Connection, freed: set[str]) -> bool:
        if not self._max_input_bytes:
            return False
        if self._surplus <= 0:
            kept = "SELECT coalesce(sum(kept_bytes), 0) FROM rollup WHERE kept_bytes > 0"
            self._surplus = int(execute(connection, kept).scalar_one()) - self._max_input_bytes
        if self._surplus <= 0:
            return False
        first = "SELECT min(minute) FROM rollup WHERE model_id = k.id AND kept_bytes > 0"
        oldest = execute(connection, f"SELECT k.id, ({first}) FROM model AS k")
        minute, model_id = min((minute, id_) for id_, minute in oldest if minute is not None)
        self._surplus -= self._remove_inputs(connection, model_id, minute, freed, self._surplus)
        return True

    def _remove_inputs(
        self,
        connection: sa.Connection,
        model_id: int,
        minute: int,
        freed: set[str],
        enough: float = math.inf,
    ) -> int:
        """Mark inputs of a minute, oldest first, as kept no longer, and return their bytes."""
        first, after = (smallest_id_at(at * MINUTE_MS) for at in (minute, minute + 1))
        begun = self._reached[:2] == (model_id, minute)
        kept = (
            "SELECT seq, input_hash, input_bytes FROM inference WHERE model_id = ?"
            " AND seq > ? AND seq < ? AND input_kept = 1 ORDER BY seq LIMIT ?"
        )
        behind = self._reached[2] if begun else first - 1
        rows = execute(connection, kept, (model_id, behind, after, STEP_ROWS))
        gone, total = [], 0
        for seq, digest, size in rows:
            gone.append((seq, model_id, size))
            total += rollups.kept_size(True, size)
            freed |= {digest} - {None}
            if total >= enough:
                break
        self._reached = (model_id, minute, gone[-1][0]) if gone else (0, 0, 0)
        if gone:
            mark = "UPDATE inference SET input_kept = 0 WHERE seq IN ({})"
            execute_in(connection, mark, [row[0] for row in gone])
            rollups.drop_input_sizes(connection, gone)
        elif not begun:  # seen from its start: whatever is counted there, is not there
            nothing = "UPDATE rollup SET kept_bytes = 0 WHERE model_id = ? AND minute = ?"
            execute(connection, nothing, (model_id, minute))
        return total


def limits_of(connection: sa.Connection, now_ms: int) -> list[RetentionLimit]:
    """Return how far back models with a rule are kept, at a moment in milliseconds since 1970."""
    ruled = execute(
        connection,
        "SELECT k.id, r.inputs_days, r.inferences_days"
        " FROM retention AS r JOIN model AS k ON k.name = r.model"
        " WHERE r.inputs_days IS NOT NULL OR r.inferences_days IS NOT NULL ORDER BY k.id",
    )
    found = []
    for model_id, inputs_days, inferences_days in ruled:
        inferences = _minute_before(now_ms, inferences_days)
        inputs = max(_minute_before(now_ms, inputs_days), inferences)
        found.append(RetentionLimit(model_id, inputs, inferences))
    return found


def _minute_before(now_ms: int, days: float | None) -> int:
    """Return the minute, since 1970, before which nothing is kept; 0 where all is."""
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
    """Drop a partition all of whose rows are past their model's rule."""
    ends = {limit.model_id: smallest_id_at(limit.inferences * MINUTE_MS) for limit in limits}
    for month in list_months(connection):
        if month.stop_id <= max(ends.values(), default=0) and _is_past(connection, month, ends):
            return drop_month(connection, month)
    return False


def _is_past(connection: sa.Connection, month: Month, ends: dict[int, int]) -> bool:
    there = "SELECT 1 FROM inference WHERE model_id = ? AND seq >= ? AND seq < ? LIMIT 1"
    kept = (
        "SELECT 1 FROM rollup WHERE model_id = ? AND kept_bytes > 0"
        " AND minute >= ? AND minute < ? LIMIT 1"
    )
    minutes = (rollups.minute_of(month.start_id), rollups.minute_of(month.stop_id))
    for model_id in execute(connection, "SELECT id FROM model").scalars().all():
        if execute(connection, kept, (model_id, *minutes)).first():
            return False
        is_kept = ends.get(model_id, 0) < month.stop_id
        if (
            is_kept
            and execute(connection, there, (model_id, month.start_id, month.stop_id)).first()
        ):
            return False
    return True
