"""Schedules: which window of a model is examined when, and who is alerted.

`<directory>/<model>.schedule.json` is a `SavedSchedule`; `<model>.position.json` is its `ScheduleProgress`.
"""

import time
from collections.abc import Callable, Hashable, Sequence
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
from quadriga.store.records.errors import NotFoundError, QueryError, translate_disk_errors
from quadriga.store.records.scope import EVERYTHING, Scope

SCHEDULE_SUFFIX = "schedule.json"
POSITION_SUFFIX = "position.json"

WEEK_S = 7 * DAY_S
MONDAY_OFFSET_S = 4 * DAY_S
"""Seconds from 1970, which began on a Thursday, to the first Monday."""
MAX_DELAY_S = DAY_S
MAX_WEBHOOKS = 10


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


class ScheduleProgress(msgspec.Struct, frozen=True):
    """Progress of a schedule."""

    done_s: int
    """End of the latest window that was submitted or skipped, seconds since 1970."""


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
            self.directory.mkdir(parents=True, exist_ok=True)
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

    def next_s(self, model: str, saved: SavedSchedule[ScheduleT]) -> int:
        """Return the start of the first window that is not done yet, in seconds since 1970."""
        length_s, next_s = saved.every_s, saved.first_s
        done_s = self.done_until_s(model)
        if done_s is not None:  # the end of a window, maybe of another length
            next_s = max(next_s, next_s - (next_s - done_s) // length_s * length_s)
        return next_s


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
