"""Schedules of drift reports: which window of a model is compared when, and who is told.

`<directory>/<model>.schedule.json` is one, as it was asked for; `<model>.position.json` how far it is. The process
of the jobs submits what is due.
"""

import logging
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import msgspec

from quadriga.monitor.drift.parameters import (
    DAY_S,
    DEFAULT,
    MOST_BY,
    DriftParameters,
    absolute,
    span_s,
)
from quadriga.monitor.model_files import model_file_path, read_model_file, write_model_file
from quadriga.store.errors import NotFoundError, QueryError, StoreError, translate_disk_errors
from quadriga.store.jobs import Jobs
from quadriga.store.query.request import decode_body
from quadriga.store.records import timestamp_text

SCHEDULE = "schedule.json"
POSITION = "position.json"

WEEK_S = 7 * DAY_S
MONDAY_S = 4 * DAY_S
"""1970 began on a Thursday."""
LEAST_S = 300
"""Of a window: of 1,440 a day each would take 20 s and 2 GB, to see p-values as small as they ask for."""

MOST_DELAY_S = DAY_S
MOST_WEBHOOKS = 10
POLL_S = 1.0
MOST_MISSED = 24
"""Windows that are caught up; earlier ones are skipped."""
_log = logging.getLogger(__name__)


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is told of alarms."""

    url: Annotated[str, msgspec.Meta(max_length=2000)]
    secret: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)] | None = None
    """What deliveries are signed with; None: they are not. It is never answered."""


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is compared, and how often; the fields are those of a drift report."""

    every: str
    """How long a window is: a part of a day such as `15m` or `6h`, `1d`, or `1w` from Monday; UTC."""
    baseline: str = DEFAULT
    where: Any = None
    signals: list[str] = []
    ignore: list[str] = []
    by: Annotated[list[str], msgspec.Meta(max_length=MOST_BY)] = []
    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    webhooks: Annotated[list[Webhook], msgspec.Meta(max_length=MOST_WEBHOOKS)] = []
    delay: str = "1m"
    """How long after its end a window is compared, when all of it is stored."""

    @property
    def every_s(self) -> int:
        """How long a window is."""
        return span_s(self.every)

    @property
    def delay_s(self) -> int:
        """How long after its end a window is compared."""
        return span_s(self.delay)

    def parameters(self, model: str, start_s: int) -> DriftParameters:
        """Return what is asked of the window that starts then, in seconds since 1970."""
        return DriftParameters(
            model,
            where=self.where,
            start=timestamp_text(start_s * 1000),
            end=timestamp_text((start_s + self.every_s) * 1000),
            baseline=self.baseline,
            signals=self.signals,
            ignore=self.ignore,
            by=self.by,
            alpha=self.alpha,
            windows=max(DAY_S // self.every_s, 1),
            schedule=self.every,
        )


class KeptSchedule(msgspec.Struct, frozen=True):
    """A schedule, and since when it is there."""

    schedule: Schedule
    since_s: int
    """Seconds since 1970. That it is replaced does not change it."""


class Position(msgspec.Struct, frozen=True):
    """How far a schedule is."""

    done_s: int
    """Where the last window ends that was submitted or skipped, in seconds since 1970."""


class Schedules:
    """The schedules of a folder; safe to use from several threads and processes.

    What cannot be the name of a model is a `QueryError`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def put(self, model: str, body: bytes, now_s: float | None = None) -> None:
        """Keep a model's schedule in place of what it had.

        Raises:
            QueryError: The body is no schedule.
            JournalError: It could not be kept, as on a full disk.
        """
        schedule = decode_schedule(model, body)
        since = int(time.time() if now_s is None else now_s)
        with suppress(NotFoundError):
            since = self.get(model).since_s
        with translate_disk_errors("store the schedule"):
            self.directory.mkdir(parents=True, exist_ok=True)
            write_model_file(
                model_file_path(self.directory, model, SCHEDULE), KeptSchedule(schedule, since)
            )

    def get(self, model: str) -> KeptSchedule:
        """Return a model's schedule.

        Raises:
            NotFoundError: It has none.
        """
        found = read_model_file(model_file_path(self.directory, model, SCHEDULE), KeptSchedule)
        if found is None:
            raise NotFoundError(f"expected a drift schedule of {model!r}, got none")
        return found

    def remove(self, model: str) -> None:
        """End a model's schedule; its history stays.

        Raises:
            NotFoundError: It has none.
            JournalError: That could not be noted.
        """
        self.get(model)
        with translate_disk_errors("end the schedule"):
            model_file_path(self.directory, model, SCHEDULE).unlink(missing_ok=True)

    def models(self) -> list[str]:
        """Return the names of models that have one."""
        paths = self.directory.glob(f"*.{SCHEDULE}")
        return sorted(unquote(path.name.removesuffix(f".{SCHEDULE}")) for path in paths)

    def position(self, model: str) -> int | None:
        """Return where the last window ends that was submitted or skipped, in seconds since 1970."""
        found = read_model_file(model_file_path(self.directory, model, POSITION), Position)
        return None if found is None else found.done_s

    def reached(self, model: str, done_s: int) -> None:
        """Note that all windows until then were submitted or skipped."""
        write_model_file(model_file_path(self.directory, model, POSITION), Position(done_s))

    def next_s(self, model: str, kept: KeptSchedule) -> int:
        """Return where the first window starts that is not done yet, in seconds since 1970."""
        length = kept.schedule.every_s
        shift = MONDAY_S if length == WEEK_S else 0
        first = (kept.since_s - shift) // length
        done = self.position(model)
        if done is not None:
            first = max(first, -((shift - done) // length))
        return first * length + shift


def decode_schedule(model: str, body: bytes) -> Schedule:
    """Read a schedule from JSON.

    Raises:
        QueryError: It is none, or names a filter that means nothing.
    """
    schedule = decode_body(body, Schedule)
    every_s = span_s(schedule.every, "every")
    if every_s < LEAST_S or (DAY_S % every_s and every_s != WEEK_S):
        raise QueryError(
            f"expected every to be a part of a day from 5m to 1d, or 1w, got {schedule.every!r}"
        )
    if span_s(schedule.delay, "delay") > MOST_DELAY_S:
        raise QueryError(f"expected delay to be at most 1d, got {schedule.delay!r}")
    urls = [hook.url for hook in schedule.webhooks]
    for at, url in enumerate(urls):
        _check_url(url, f"webhooks[{at}].url")
    if len(set(urls)) < len(urls):
        raise QueryError("expected each URL of webhooks once, got one twice")
    absolute(schedule.parameters(model, 0), 0)
    return schedule


def _check_url(text: str, name: str) -> None:
    try:
        url = urlsplit(text)
        is_plain = text.isascii() and text.isprintable() and " " not in text
        _ = url.port  # raises where it is none
    except ValueError:
        is_plain = False
    if not is_plain or url.scheme not in {"http", "https"} or not url.hostname or "@" in url.netloc:
        raise QueryError(f"expected {name} to be http or https with a host and no user")


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
        if self._submitted is None:
            scheduled = [job.parameters for job in self._jobs.all() if job.kind == "drift"]
            self._submitted = {
                (one["model"], one.get("from")) for one in scheduled if one.get("schedule")
            }
        if (model, parameters.start) not in self._submitted:
            self._jobs.submit("drift", parameters)
        self._schedules.reached(model, start_s + kept.schedule.every_s)


def keep_scheduled(schedules: Schedules, jobs: Jobs, stop: threading.Event) -> None:
    """Submit what is due, as it comes, until `stop` is set."""
    scheduler = Scheduler(schedules, jobs)
    while not stop.is_set():
        scheduler.step()
        stop.wait(POLL_S)
