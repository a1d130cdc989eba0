"""The scheduler: submits a job for each window of a schedule, once the window has ended."""

import logging
import threading
import time
from collections.abc import Hashable
from typing import Generic

import msgspec

from quadriga.monitor.watch.schedules import (
    DueWindow,
    SavedSchedule,
    ScheduleStore,
    ScheduleT,
)
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.records.errors import NotFoundError, StoreError
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scope

POLL_INTERVAL_S = 1.0
MAX_MISSED = 24
"""Maximum number of missed windows that are caught up; earlier ones are skipped."""
_log = logging.getLogger(__name__)


class Scheduler(Generic[ScheduleT]):
    """Submits the jobs of schedules that are due.

    Each new window is submitted once: the progress is saved after the job is, and a process that starts looks for
    jobs whose progress was not saved. Before the new windows, so many earlier ones as the kind says are submitted again.
    """

    def __init__(self, schedules: ScheduleStore[ScheduleT], jobs: Jobs) -> None:
        self._schedules = schedules
        self._jobs = jobs
        self._name = schedules.kind.name
        self._submitted: set[Hashable] | None = None
        """Keys of the windows whose jobs existed when this process started; None: not looked up yet."""
        self._failing: dict[str, str] = {}

    def step(self, now_s: float | None = None) -> None:
        """Submit the windows that ended before `now_s`, seconds since 1970; failures are retried at the next step."""
        now_s = time.time() if now_s is None else now_s
        for model in self._schedules.models():
            try:
                self._submit_due(model, self._schedules.get(model), now_s)
                self._failing.pop(model, None)
            except NotFoundError:  # removed since, or damaged
                continue
            except (OSError, StoreError) as error:  # as on a full disk
                if self._failing.get(model) != str(error):
                    _log.warning("the %s schedule of %s waits: %s", self._name, model, error)
                self._failing[model] = str(error)

    def _submit_due(self, model: str, saved: SavedSchedule[ScheduleT], now_s: float) -> None:
        length_s = saved.every_s
        start_s = self._schedules.next_s(model, saved)
        due_count = int(now_s - saved.delay_s - start_s) // length_s
        if due_count > MAX_MISSED:
            skipped_count = due_count - MAX_MISSED
            texts = [
                timestamp_text(window_start_s * 1000)
                for window_start_s in (start_s, start_s + skipped_count * length_s)
            ]
            _log.warning(
                "%s of %s: %d windows from %s to %s are skipped",
                self._name,
                model,
                skipped_count,
                *texts,
            )
            start_s += skipped_count * length_s
        due = range(start_s, start_s + min(due_count, MAX_MISSED) * length_s, length_s)
        if due:
            late_s = self._schedules.kind.late_windows(saved.schedule) * length_s
            for late_start_s in range(max(start_s - late_s, saved.first_s), start_s, length_s):
                self._submit(model, saved, DueWindow(late_start_s, start_s))
        for window_start_s in due:
            self._submit(model, saved, DueWindow(window_start_s, window_start_s))
            self._schedules.mark_done(model, window_start_s + length_s)

    def _submit(self, model: str, saved: SavedSchedule[ScheduleT], window: DueWindow) -> None:
        kind = self._schedules.kind
        parameters = msgspec.to_builtins(kind.parameters(model, saved, window))
        if self._submitted is None:
            self._submitted = {
                kind.window_key(job.parameters)
                for job in self._jobs.all()
                if job.kind == kind.name and job.team == self._schedules.team
            }
        if kind.window_key(parameters) not in self._submitted:
            scope = Scope(self._schedules.team, saved.models)
            self._jobs.within(scope).submit(kind.name, parameters)


def run_scheduler(schedules: ScheduleStore[ScheduleT], jobs: Jobs, stop: threading.Event) -> None:
    """Submit jobs as they become due, each within the scope of who saved the schedule, until `stop` is set."""
    schedulers: dict[str, Scheduler[ScheduleT]] = {}
    while not stop.is_set():
        for of_team in schedules.of_teams():
            schedulers.setdefault(of_team.team, Scheduler(of_team, jobs)).step()
        stop.wait(POLL_INTERVAL_S)
