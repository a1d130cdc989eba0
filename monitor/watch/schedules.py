"""Schedules: which window of a model is examined when, the jobs that do it, and the history of what they found.

`<directory>/<model>.schedule.json` is a `SavedSchedule`; `<model>.position.json` is its `ScheduleProgress`.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

import msgspec

from quadriga.monitor.model_files import (
    model_file_path,
    read_model_file,
    team_folder,
    teams_with_files,
    write_model_file,
)
from quadriga.monitor.spans import DAY_S, parse_span_s
from quadriga.monitor.watch.webhooks import Webhook, check_webhooks
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.query.filters.comparisons import parse_moment_us
from quadriga.store.records.disk import translate_disk_errors, write_atomically
from quadriga.store.records.errors import NotFoundError, QueryError, StoreError
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import EVERYTHING, Scope


class Schedule(Protocol):
    """What schedules of every kind have."""

    @property
    def every(self) -> str:
        """Time from the start of a window to that of the next: a fraction of a day, `1d`, or `1w` from Monday; UTC."""

    @property
    def delay(self) -> str:
        """Time from the end of a window until it is examined, so that all of it is stored by then."""

    @property
    def where(self) -> Any:
        """Filter of the inferences, in the form of a query's."""

    @property
    def webhooks(self) -> Sequence[Webhook]:
        """Receivers of alerts."""


ScheduleT = TypeVar("ScheduleT", bound=Schedule)


class SavedSchedule(msgspec.Struct, Generic[ScheduleT], frozen=True):
    """A schedule, and when it was created."""

    schedule: ScheduleT
    since_s: int
    """Time of creation, seconds since 1970; replacing the schedule does not change it."""
    models: tuple[str, ...] = ()
    """Patterns of the models that its jobs may see, as of the key that saved it; empty for all."""

    @property
    def every_s(self) -> int:
        """Time between two windows in seconds."""
        return parse_span_s(self.schedule.every)

    @property
    def first_s(self) -> int:
        """Start of the window in which the schedule was created, in seconds since 1970."""
        shift_s = MONDAY_OFFSET_S if self.every_s == WEEK_S else 0
        return (self.since_s - shift_s) // self.every_s * self.every_s + shift_s

    @property
    def delay_s(self) -> int:
        """Delay of a window's examination in seconds."""
        return parse_span_s(self.schedule.delay)


class DueWindow(NamedTuple):
    """A window to examine; both times are in seconds since 1970."""

    start_s: int
    """Its start."""
    new_start_s: int
    """Start of the new window that it is examined with: its own, or, if it is examined again, that of a later one."""


class ScheduleKind(msgspec.Struct, Generic[ScheduleT], frozen=True):
    """What one kind of schedules does."""

    name: str
    """Name in messages, and the kind of its jobs."""
    saved_type: type[SavedSchedule[ScheduleT]]
    parameters: Callable[[str, SavedSchedule[ScheduleT], DueWindow], msgspec.Struct]
    """Returns the parameters of the job on a window of a model."""
    window_key: Callable[[dict[str, Any]], Hashable]
    """Returns what tells a job from those of other windows, from its parameters; None: no schedule submitted it."""
    late_windows: Callable[[ScheduleT], int] = lambda _: 0
    """Returns how many earlier windows are examined again with a new one."""


class ScheduleStore(Generic[ScheduleT]):
    """The schedules of one kind and team in a folder; safe to use from several threads and processes.

    Methods raise a `QueryError` for an invalid model name.
    """

    def __init__(
        self, directory: Path, kind: ScheduleKind[ScheduleT], scope: Scope = EVERYTHING
    ) -> None:
        self._root = directory
        self._scope = scope
        self.directory = team_folder(directory, scope.team)
        self.kind = kind

    @property
    def team(self) -> str:
        """Team that the schedules belong to; empty for none."""
        return self._scope.team

    def within(self, scope: Scope) -> "ScheduleStore[ScheduleT]":
        """Return the schedules of the team of a scope; their jobs see no more than who saves them."""
        return ScheduleStore(self._root, self.kind, scope)

    def of_teams(self) -> "list[ScheduleStore[ScheduleT]]":
        """Return the schedules of each team that has a folder, those of no team first."""
        return [self.within(Scope(team)) for team in teams_with_files(self._root)]

    def put(self, model: str, schedule: ScheduleT, now_s: float | None = None) -> None:
        """Save a model's schedule, which was checked, replacing the one it had.

        Raises:
            JournalError: The file could not be written, as on a full disk.
        """
        since_s = int(time.time() if now_s is None else now_s)
        with suppress(NotFoundError):
            since_s = self.get(model).since_s
        with translate_disk_errors("store the schedule"):
            write_model_file(
                model_file_path(self.directory, model, SCHEDULE_SUFFIX),
                SavedSchedule(schedule, since_s, self._scope.models),
            )

    def get(self, model: str) -> SavedSchedule[ScheduleT]:
        """Return a model's schedule.

        Raises:
            NotFoundError: The model has no schedule.
        """
        saved = read_model_file(
            model_file_path(self.directory, model, SCHEDULE_SUFFIX), self.kind.saved_type
        )
        if saved is None:
            raise NotFoundError(f"{self.kind.name} schedule not found: model {model!r} has none")
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

    def mark_done(self, model: str, done_s: int) -> None:
        """Save that all windows up to `done_s` were submitted or skipped."""
        write_model_file(
            model_file_path(self.directory, model, POSITION_SUFFIX), ScheduleProgress(done_s)
        )

    def next_s(self, model: str, saved: SavedSchedule[ScheduleT]) -> int:
        """Return the start of the first window that is not done yet, in seconds since 1970."""
        length_s, next_s = saved.every_s, saved.first_s
        path = model_file_path(self.directory, model, POSITION_SUFFIX)
        progress = read_model_file(path, ScheduleProgress)
        if progress is not None:  # the end of a window, maybe of another length
            next_s = max(next_s, next_s - (next_s - progress.done_s) // length_s * length_s)
        return next_s


SCHEDULE_SUFFIX = "schedule.json"
POSITION_SUFFIX = "position.json"
WEEK_S = 7 * DAY_S
MONDAY_OFFSET_S = 4 * DAY_S
"""Seconds from 1970, which began on a Thursday, to the first Monday."""
MAX_DELAY_S = DAY_S
MAX_WEBHOOKS = 10


class ScheduleProgress(msgspec.Struct, frozen=True):
    """Progress of a schedule."""

    done_s: int
    """End of the latest window that was submitted or skipped, seconds since 1970."""


def check_schedule(schedule: Schedule, min_every: str) -> None:
    """Check the times and webhooks of a schedule.

    Args:
        schedule: The schedule.
        min_every: Shortest time between two windows, such as `5m`.

    Raises:
        QueryError: A value is invalid.
    """
    every_s = parse_span_s(schedule.every, "every")
    if every_s < parse_span_s(min_every) or (DAY_S % every_s and every_s != WEEK_S):
        raise QueryError(
            f"expected every to be a part of a day from {min_every} to 1d, or 1w, got {schedule.every!r}"
        )
    if parse_span_s(schedule.delay, "delay") > MAX_DELAY_S:
        raise QueryError(f"expected delay to be at most 1d, got {schedule.delay!r}")
    check_webhooks(schedule.webhooks)


HISTORY_SUFFIX = "jsonl"
MAX_BYTES = 32 << 20
"""Maximum size of a history file; when it is exceeded, the older half is dropped."""
EPOCH = "1970-01-01T00:00:00Z"
_TAIL_BYTES = 1 << 20


class Entry(Protocol):
    """What an entry of every history has."""

    @property
    def start(self) -> str | None:
        """Start of the window, RFC 3339; None without a limit."""

    @property
    def report(self) -> str:
        """Id of the report on the window."""


EntryT = TypeVar("EntryT", bound=Entry)


class HistoryFile(Generic[EntryT]):
    """The history of a model, `<directory>/<model>.jsonl`, oldest entries first.

    Raises:
        QueryError: The model name is invalid.
    """

    def __init__(self, directory: Path, model: str, entry_type: type[EntryT]) -> None:
        self._path = model_file_path(directory, model, HISTORY_SUFFIX)
        self._decoder = msgspec.json.Decoder(entry_type)

    def entries(self, start_us: int | None, end_us: int | None) -> Iterator[EntryT]:
        """Yield the entries whose windows start within a span of time; incomplete lines are skipped.

        Args:
            start_us: Start of the span, included, in microseconds since 1970; None: no limit.
            end_us: End of the span, excluded; None: no limit.
        """
        from_us, until_us = start_us or 0, math.inf if end_us is None else end_us
        for entry in self._read(None):
            if from_us <= parse_moment_us(entry.start or EPOCH, 0) < until_us:
                yield entry

    def latest_entries(self) -> Iterator[EntryT]:
        """Yield the entries of the last mebibyte."""
        return self._read(_TAIL_BYTES)

    def append(self, entry: EntryT) -> None:
        """Append an entry, unless one of the latest is about the same report.

        Raises:
            OSError: The file could not be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if any(past.report == entry.report for past in self.latest_entries()):
            return
        with self._path.open("ab") as file:
            size_bytes = file.tell()
            file.write((b"\n" if size_bytes else b"") + msgspec.json.encode(entry))
        if size_bytes > MAX_BYTES:
            lines = self._path.read_bytes().split(b"\n")
            write_atomically(self._path, b"\n".join(lines[len(lines) // 2 :]))

    def _read(self, last_bytes: int | None) -> Iterator[EntryT]:
        try:
            with self._path.open("rb") as file:
                if last_bytes is not None:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(size - last_bytes, 0))
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield self._decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue


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
