"""Submits a drift job for each window of a schedule that has ended; runs in the process of the jobs."""

import logging
import threading
import time

import msgspec

from monitor.watch.schedules import KeptSchedule, Schedules
from store.errors import NotFoundError, StoreError
from store.jobs import Jobs
from store.records import timestamp_text

POLL_S = 1.0
MOST_MISSED = 24
"""Windows that are caught up; earlier ones are skipped."""

_log = logging.getLogger(__name__)


class Scheduler:
    """Submits what is due.

    Each window is submitted once: its end is kept after its job, and a process that starts looks for the job
    whose end was not kept.
    """

    def __init__(self, schedules: Schedules, jobs: Jobs) -> None:
        self._schedules = schedules
        self._jobs = jobs
        self._submitted: set[tuple[str, str | None]] | None = None
        """Model and start of windows whose jobs were there when this process began."""
        self._failing: dict[str, str] = {}

    def step(self, now_s: float | None = None) -> None:
        """Submit what has ended by now, in seconds since 1970; what cannot be is tried again at the next step."""
        now_s = time.time() if now_s is None else now_s
        for model in self._schedules.models():
            try:
                self._submit_due(model, self._schedules.get(model), now_s)
                self._failing.pop(model, None)
            except NotFoundError:  # removed since, or damaged
                continue
            except (OSError, StoreError) as error:  # as on a full disk
                if self._failing.get(model) != str(error):
                    _log.warning("the drift schedule of %s waits: %s", model, error)
                self._failing[model] = str(error)

    def _submit_due(self, model: str, kept: KeptSchedule, now_s: float) -> None:
        length = kept.schedule.every_s
        start = self._schedules.next_s(model, kept)
        due = int(now_s - kept.schedule.delay_s - start) // length
        if due > MOST_MISSED:
            skipped = due - MOST_MISSED
            texts = [timestamp_text(at * 1000) for at in (start, start + skipped * length)]
            _log.warning(
                "drift of %s: %d windows from %s to %s are skipped", model, skipped, *texts
            )
            start += skipped * length
        for at in range(start, start + min(due, MOST_MISSED) * length, length):
            self._submit(model, kept, at)

    def _submit(self, model: str, kept: KeptSchedule, start_s: int) -> None:
        parameters = kept.schedule.parameters(model, start_s)
        if (model, parameters.start) not in self._known():
            self._jobs.submit("drift", msgspec.to_builtins(parameters))
        self._schedules.reached(model, start_s + kept.schedule.every_s)

    def _known(self) -> set[tuple[str, str | None]]:
        if self._submitted is None:
            scheduled = [job.parameters for job in self._jobs.all() if job.kind == "drift"]
            self._submitted = {
                (one["model"], one.get("from")) for one in scheduled if one.get("schedule")
            }
        return self._submitted


def keep_scheduled(schedules: Schedules, jobs: Jobs, stop: threading.Event) -> None:
    """Submit what is due, as it comes, until `stop` is set."""
    scheduler = Scheduler(schedules, jobs)
    while not stop.is_set():
        scheduler.step()
        stop.wait(POLL_S)
