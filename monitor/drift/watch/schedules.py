"""Schedules of drift reports: which window of a model is compared when, and who is alerted.

`<directory>/<model>.schedule.json` is a `SavedSchedule`; `<model>.position.json` is its `ScheduleProgress`. The
process that runs jobs submits the reports that are due.
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
"""Seconds from 1970, which began on a Thursday, to the first Monday."""
MIN_EVERY_S = 300
"""Minimum length of a window: with 1,440 windows a day, each report would take 20 s and 2 GB, as its share of alpha
needs so many permutations."""

MAX_DELAY_S = DAY_S
MAX_WEBHOOKS = 10
POLL_INTERVAL_S = 1.0
MAX_MISSED = 24
"""Maximum number of missed windows that are caught up; earlier ones are skipped."""
_log = logging.getLogger(__name__)


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An HTTP endpoint that receives alerts."""

    url: Annotated[str, msgspec.Meta(max_length=2000)]
    secret: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)] | None = None
    """Key that deliveries are signed with; None: they are not signed. No response contains it."""


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule of drift reports; fields without docstring are those of `DriftParameters`."""

    every: str
    """Length of a window: a fraction of a day such as `15m` or `6h`, `1d`, or `1w` from Monday; UTC."""
    baseline: str = DEFAULT_BASELINE
    where: Any = None
    signals: list[str] = []
    ignore: list[str] = []
    by: Annotated[list[str], msgspec.Meta(max_length=MAX_SLICE_KEYS)] = []
    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    webhooks: Annotated[list[Webhook], msgspec.Meta(max_length=MAX_WEBHOOKS)] = []
    delay: str = "1m"
    """Time from the end of a window to its comparison, so that all of it is stored by then."""

    @property
    def every_s(self) -> int:
        """Length of a window in seconds."""
        return parse_span_s(self.every)

    @property
    def delay_s(self) -> int:
        """Delay of the comparison in seconds."""
        return parse_span_s(self.delay)

    def parameters(self, model: str, start_s: int) -> DriftParameters:
        """Return the parameters of the report on the window that starts at `start_s`, seconds since 1970."""
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
    """A schedule, and when it was created."""

    schedule: Schedule
    since_s: int
    """Time of creation, seconds since 1970; replacing the schedule does not change it."""


class ScheduleProgress(msgspec.Struct, frozen=True):
    """Progress of a schedule."""

    done_s: int
    """End of the latest window that was submitted or skipped, seconds since 1970."""


class ScheduleStore:
    """The schedules in a folder; safe to use from several threads and processes.

    Methods raise a `QueryError` for an invalid model name.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def put(self, model: str, body: bytes, now_s: float | None = None) -> None:
        """Save a model's schedule, replacing the one it had.

        Raises:
            QueryError: The body is not a valid schedule.
            JournalError: The file could not be written, as on a full disk.
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
            NotFoundError: The model has no schedule.
        """
        saved = read_model_file(
            model_file_path(self.directory, model, SCHEDULE_SUFFIX), SavedSchedule
        )
        if saved is None:
            raise NotFoundError(f"drift schedule not found: model {model!r} has none")
        return saved

    def remove(self, model: str) -> None:
        """Remove a model's schedule; its history stays.

        Raises:
            NotFoundError: The model has no schedule.
            JournalError: The file could not be removed.
        """
        self.get(model)
        with translate_disk_errors("end the schedule"):
            model_file_path(self.directory, model, SCHEDULE_SUFFIX).unlink(missing_ok=True)

    def models(self) -> list[str]:
        """Return the names of the models that have a schedule."""
        paths = self.directory.glob(f"*.{SCHEDULE_SUFFIX}")
        return sorted(unquote(path.name.removesuffix(f".{SCHEDULE_SUFFIX}")) for path in paths)

    def done_until_s(self, model: str) -> int | None:
        """Return the end of the latest window that was submitted or skipped, in seconds since 1970; None if none was."""
        progress = read_model_file(
            model_file_path(self.directory, model, POSITION_SUFFIX), ScheduleProgress
        )
        return None if progress is None else progress.done_s

    def mark_done(self, model: str, done_s: int) -> None:
        """Save that all windows up to `done_s` were submitted or skipped."""
        write_model_file(
            model_file_path(self.directory, model, POSITION_SUFFIX), ScheduleProgress(done_s)
        )

    def next_s(self, model: str, saved: SavedSchedule) -> int:
        """Return the start of the first window that is not done yet, in seconds since 1970."""
        length_s = saved.schedule.every_s
        shift_s = MONDAY_OFFSET_S if length_s == WEEK_S else 0
        first = (saved.since_s - shift_s) // length_s
        done_s = self.done_until_s(model)
        if done_s is not None:
            first = max(first, -((shift_s - done_s) // length_s))
        return first * length_s + shift_s


def decode_schedule(model: str, body: bytes) -> Schedule:
    """Decode a schedule from JSON.

    Raises:
        QueryError: The body cannot be decoded, or a value in it is invalid.
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
        raise QueryError("webhooks lists a URL twice")
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
    """Submits the reports that are due.

    Each window is submitted once: the progress is saved after the job is, and a process that starts looks for
    jobs whose progress was not saved.
    """

    def __init__(self, schedules: ScheduleStore, jobs: Jobs) -> None:
        self._schedules = schedules
        self._jobs = jobs
        self._submitted: set[tuple[str, str | None]] | None = None
        """Model and start of the windows whose jobs existed when this process started; None: not looked up yet."""
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
                (submitted["model"], submitted.get("from"))
                for submitted in scheduled
                if submitted.get("schedule")
            }
        if (model, parameters.start) not in self._submitted:
            self._jobs.submit("drift", parameters)
        self._schedules.mark_done(model, start_s + saved.schedule.every_s)


def run_scheduler(schedules: ScheduleStore, jobs: Jobs, stop: threading.Event) -> None:
    """Submit reports as they become due, until `stop` is set."""
    scheduler = Scheduler(schedules, jobs)
    while not stop.is_set():
        scheduler.step()
        stop.wait(POLL_INTERVAL_S)
