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
    DEFAULT_BASELINE,
    MAX_SLICE_KEYS,
    DriftParameters,
    parse_span_s,
    resolve_times,
)
from quadriga.monitor.model_files import model_file_path, read_model_file, write_model_file
from quadriga.store.errors import NotFoundError, QueryError, StoreError, translate_disk_errors
from quadriga.store.jobs import Jobs
from quadriga.store.query.request import decode_body
from quadriga.store.records import timestamp_text

SCHEDULE_SUFFIX = "schedule.json"
POSITION_SUFFIX = "position.json"

WEEK_S = 7 * DAY_S
MONDAY_OFFSET_S = 4 * DAY_S
"""1970 began on a Thursday."""
MIN_EVERY_S = 300
"""Of a window: of 1,440 a day each would take 20 s and 2 GB, to see p-values as small as they ask for."""

MAX_DELAY_S = DAY_S
MAX_WEBHOOKS = 10
POLL_INTERVAL_S = 1.0
MAX_MISSED = 24
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
    baseline: str = DEFAULT_BASELINE
    where: Any = None
    signals: list[str] = []
    ignore: list[str] = []
    by: Annotated[list[str], msgspec.Meta(max_length=MAX_SLICE_KEYS)] = []
    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    webhooks: Annotated[list[Webhook], msgspec.Meta(max_length=MAX_WEBHOOKS)] = []
    delay: str = "1m"
    """How long after its end a window is compared, when all of it is stored."""

    @property
    def every_s(self) -> int:
        """How long a window is."""
        return parse_span_s(self.every)

    @property
    def delay_s(self) -> int:
        """How long after its end a window is compared."""
        return parse_span_s(self.delay)

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


class SavedSchedule(msgspec.Struct, frozen=True):
    """A schedule, and since when it is there."""

    schedule: Schedule
    since_s: int
    """Seconds since 1970. That it is replaced does not change it."""


class ScheduleProgress(msgspec.Struct, frozen=True):
    """How far a schedule is."""

    done_s: int
    """Where the last window ends that was submitted or skipped, in seconds since 1970."""


class ScheduleStore:
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
        since_s = int(time.time() if now_s is None else now_s)
        with suppress(NotFoundError):
            since_s = self.get(model).since_s
        with translate_disk_errors("store the schedule"):
            self.directory.mkdir(parents=True, exist_ok=True)
            write_model_file(
                model_file_path(self.directory, model, SCHEDULE_SUFFIX),
                SavedSchedule(schedule, since_s),
            )

    def get(self, model: str) -> SavedSchedule:
        """Return a model's schedule.

        Raises:
            NotFoundError: It has none.
        """
        saved = read_model_file(
            model_file_path(self.directory, model, SCHEDULE_SUFFIX), SavedSchedule
        )
        if saved is None:
            raise NotFoundError(f"expected a drift schedule of {model!r}, got none")
        return saved

    def remove(self, model: str) -> None:
        """End a model's schedule; its history stays.

        Raises:
            NotFoundError: It has none.
            JournalError: That could not be noted.
        """
        self.get(model)
        with translate_disk_errors("end the schedule"):
            model_file_path(self.directory, model, SCHEDULE_SUFFIX).unlink(missing_ok=True)

    def models(self) -> list[str]:
        """Return the names of models that have one."""
        paths = self.directory.glob(f"*.{SCHEDULE_SUFFIX}")
        return sorted(unquote(path.name.removesuffix(f".{SCHEDULE_SUFFIX}")) for path in paths)

    def done_until_s(self, model: str) -> int | None:
        """Return where the last window ends that was submitted or skipped, in seconds since 1970."""
        progress = read_model_file(
            model_file_path(self.directory, model, POSITION_SUFFIX), ScheduleProgress
        )
        return None if progress is None else progress.done_s

    def mark_done(self, model: str, done_s: int) -> None:
        """Note that all windows until then were submitted or skipped."""
        write_model_file(
            model_file_path(self.directory, model, POSITION_SUFFIX), ScheduleProgress(done_s)
        )

    def next_s(self, model: str, saved: SavedSchedule) -> int:
        """Return where the first window starts that is not done yet, in seconds since 1970."""
        length_s = saved.schedule.every_s
        shift_s = MONDAY_OFFSET_S if length_s == WEEK_S else 0
        first = (saved.since_s - shift_s) // length_s
        done_s = self.done_until_s(model)
        if done_s is not None:
            first = max(first, -((shift_s - done_s) // length_s))
        return first * length_s + shift_s


def decode_schedule(model: str, body: bytes) -> Schedule:
    """Read a schedule from JSON.

    Raises:
        QueryError: It is none, or names a filter that means nothing.
    """
    schedule = decode_body(body, Schedule)
    every_s = parse_span_s(schedule.every, "every")
    if every_s < MIN_EVERY_S or (DAY_S % every_s and every_s != WEEK_S):
        raise QueryError(
            f"expected every to be a part of a day from 5m to 1d, or 1w, got {schedule.every!r}"
        )
    if parse_span_s(schedule.delay, "delay") > MAX_DELAY_S:
        raise QueryError(f"expected delay to be at most 1d, got {schedule.delay!r}")
    urls = [hook.url for hook in schedule.webhooks]
    for position, url in enumerate(urls):
        _check_url(url, f"webhooks[{position}].url")
    if len(set(urls)) < len(urls):
        raise QueryError("expected each URL of webhooks once, got one twice")
    resolve_times(schedule.parameters(model, 0), 0)
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

    def __init__(self, schedules: ScheduleStore, jobs: Jobs) -> None:
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

    def _submit_due(self, model: str, saved: SavedSchedule, now_s: float) -> None:
        length_s = saved.schedule.every_s
        start_s = self._schedules.next_s(model, saved)
        due_count = int(now_s - saved.schedule.delay_s - start_s) // length_s
        if due_count > MAX_MISSED:
            skipped_count = due_count - MAX_MISSED
            texts = [
                timestamp_text(window_start_s * 1000)
                for window_start_s in (start_s, start_s + skipped_count * length_s)
            ]
            _log.warning(
                "drift of %s: %d windows from %s to %s are skipped", model, skipped_count, *texts
            )
            start_s += skipped_count * length_s
        for window_start_s in range(
            start_s, start_s + min(due_count, MAX_MISSED) * length_s, length_s
        ):
            self._submit(model, saved, window_start_s)

    def _submit(self, model: str, saved: SavedSchedule, start_s: int) -> None:
        parameters = saved.schedule.parameters(model, start_s)
        if self._submitted is None:
            scheduled = [job.parameters for job in self._jobs.all() if job.kind == "drift"]
            self._submitted = {
                (parameters_["model"], parameters_.get("from"))
                for parameters_ in scheduled
                if parameters_.get("schedule")
            }
        if (model, parameters.start) not in self._submitted:
            self._jobs.submit("drift", parameters)
        self._schedules.mark_done(model, start_s + saved.schedule.every_s)


def run_scheduler(schedules: ScheduleStore, jobs: Jobs, stop: threading.Event) -> None:
    """Submit what is due, as it comes, until `stop` is set."""
    scheduler = Scheduler(schedules, jobs)
    while not stop.is_set():
        scheduler.step()
        stop.wait(POLL_INTERVAL_S)
