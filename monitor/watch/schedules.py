"""Schedules of drift reports: which window of a model is compared when, and who is told.

`<directory>/<model>.schedule.json` is one, as it was asked for; `<model>.position.json` how far it is.
"""

import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import msgspec

from monitor.drift.parameters import DEFAULT, MOST_BY, DriftParameters, check
from store.errors import JournalError, NotFoundError, QueryError
from store.query.json_form import parse
from store.query.request import decode_body
from store.records import timestamp_text

SCHEDULE = "schedule.json"
POSITION = "position.json"

DAY_S = 86_400
WEEK_S = 7 * DAY_S
MONDAY_S = 4 * DAY_S
"""1970 began on a Thursday."""
LEAST_S = 300
"""Of a window: of 1,440 a day each would take 20 s and 2 GB, to see p-values as small as they ask for."""

MOST_DELAY_S = DAY_S
MOST_WEBHOOKS = 10
MOST_NAME_BYTES = 200
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": DAY_S, "w": WEEK_S}
_SPAN = re.compile(r"(\d{1,6})([smhdw])", re.ASCII)
_Kept = TypeVar("_Kept", bound=msgspec.Struct)


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
    """The schedules of a folder; safe to use from several threads and processes."""

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
        kept = KeptSchedule(schedule, since)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write(path_of(self.directory, model, SCHEDULE), kept)
        except OSError as error:
            raise JournalError(f"expected to keep the schedule, got: {error.strerror}") from error

    def get(self, model: str) -> KeptSchedule:
        """Return a model's schedule.

        Raises:
            NotFoundError: It has none.
            QueryError: That cannot be the name of a model.
        """
        found = read(path_of(self.directory, model, SCHEDULE), KeptSchedule)
        if found is None:
            raise NotFoundError(f"expected a drift schedule of {model!r}, got none")
        return found

    def remove(self, model: str) -> None:
        """End a model's schedule; its history stays.

        Raises:
            NotFoundError: It has none.
            QueryError: That cannot be the name of a model.
            JournalError: That could not be noted.
        """
        self.get(model)
        try:
            path_of(self.directory, model, SCHEDULE).unlink(missing_ok=True)
        except OSError as error:
            raise JournalError(f"expected to end the schedule, got: {error.strerror}") from error

    def models(self) -> list[str]:
        """Return the names of models that have one."""
        names = [path.name.removesuffix(f".{SCHEDULE}") for path in self._paths()]
        return sorted(map(unquote, names))

    def position(self, model: str) -> int | None:
        """Return where the last window ends that was submitted or skipped, in seconds since 1970."""
        found = read(path_of(self.directory, model, POSITION), Position)
        return None if found is None else found.done_s

    def reached(self, model: str, done_s: int) -> None:
        """Note that all windows until then were submitted or skipped."""
        write(path_of(self.directory, model, POSITION), Position(done_s))

    def next_s(self, model: str, kept: KeptSchedule) -> int:
        """Return where the first window starts that is not done yet, in seconds since 1970."""
        length = kept.schedule.every_s
        shift = MONDAY_S if length == WEEK_S else 0
        first = (kept.since_s - shift) // length
        done = self.position(model)
        if done is not None:
            first = max(first, -((shift - done) // length))
        return first * length + shift

    def _paths(self) -> list[Path]:
        return list(self.directory.glob(f"*.{SCHEDULE}"))


_decoder = msgspec.json.Decoder(Schedule)


def decode_schedule(model: str, body: bytes) -> Schedule:
    """Read a schedule from JSON.

    Raises:
        QueryError: It is none, or names a filter that means nothing.
    """
    schedule = decode_body(body, _decoder)
    _check_every(span_s(schedule.every, "every"), schedule.every)
    if span_s(schedule.delay, "delay") > MOST_DELAY_S:
        raise QueryError(f"expected delay to be at most 1d, got {schedule.delay!r}")
    urls = [hook.url for hook in schedule.webhooks]
    for at, url in enumerate(urls):
        _check_url(url, f"webhooks[{at}].url")
    if len(set(urls)) < len(urls):
        raise QueryError("expected each URL of webhooks once, got one twice")
    parse(schedule.where, 0)
    check(schedule.parameters(model, 0))
    return schedule


def span_s(text: str, name: str = "") -> int:
    """Return the seconds of a span such as `15m`.

    Raises:
        QueryError: The text is none.
    """
    found = _SPAN.fullmatch(text)
    if found is None:
        raise QueryError(
            f"expected {name} to be a number and one of s, m, h, d, w, got {text[:80]!r}"
        )
    return int(found[1]) * _UNITS_S[found[2]]


def _check_every(seconds: int, text: str) -> None:
    if seconds < LEAST_S or (DAY_S % seconds and seconds != WEEK_S):
        raise QueryError(
            f"expected every to be a part of a day from 5m to 1d, or 1w, got {text[:80]!r}"
        )


def _check_url(text: str, name: str) -> None:
    try:
        url = urlsplit(text)
        is_plain = text.isascii() and text.isprintable() and " " not in text
        _ = url.port  # raises where it is none
    except ValueError:
        is_plain = False
    if not is_plain or url.scheme not in {"http", "https"} or not url.hostname or "@" in url.netloc:
        raise QueryError(f"expected {name} to be http or https with a host and no user")


def path_of(directory: Path, model: str, suffix: str) -> Path:
    """Return the file of a model.

    Raises:
        QueryError: That cannot be the name of a model.
    """
    name = quote(model, safe="")
    if not 0 < len(name) <= MOST_NAME_BYTES:
        raise QueryError(
            f"expected the name of a model to have 1 to {MOST_NAME_BYTES} bytes, got {len(name)}"
        )
    return directory / f"{name}.{suffix}"


def read(path: Path, kind: type[_Kept]) -> _Kept | None:
    """Return what a file keeps; None where it is not there, or damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write(path: Path, kept: Any) -> None:
    """Put a file in place at once, readable by its owner alone, as it may hold secrets."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with os.fdopen(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(kept))
    hidden.replace(path)
