"""Mutes: alarms of a model that alert nobody until a time, in a file beside its schedule, apart for each team.

`<directory>/<model>.mute.json` is a `Mute`.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from quadriga.monitor.model_files import (
    model_file_path,
    read_model_file,
    team_folder,
    write_model_file,
)
from quadriga.monitor.spans import DAY_S, moment_us
from quadriga.store.exchange.text_files import decode_as
from quadriga.store.query.filters.comparisons import check_text
from quadriga.store.records.disk import translate_disk_errors
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import EVERYTHING, Scope

MUTE_SUFFIX = "mute.json"
MAX_DAYS = 90
"""Maximum length of a mute: what is forgotten ends within a season."""
MAX_SIGNALS = 200
MAX_NAME_CHARACTERS = 300
MAX_NOTE_CHARACTERS = 1000

_SignalName = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARACTERS)]


class MuteBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to mute, and until when."""

    until: str
    """End of the mute: RFC 3339, within 90 days."""
    signals: Annotated[list[_SignalName], msgspec.Meta(max_length=MAX_SIGNALS)] = []
    """Names of the signals; empty: all."""
    note: Annotated[str, msgspec.Meta(max_length=MAX_NOTE_CHARACTERS)] = ""
    """Reason, for the colleagues."""


class Mute(msgspec.Struct, frozen=True):
    """The mute of a model."""

    model: str
    until: str
    """End of the mute, RFC 3339, UTC; also the other time."""
    signals: list[str]
    """Names of the signals; empty for all."""
    note: str
    by: str
    """Name of the key or person that muted it."""
    at: str

    def covers(self, signals: Iterable[str]) -> bool:
        """Check whether all of these signals are muted."""
        return not self.signals or set(signals) <= set(self.signals)


class MuteStore:
    """The mutes of the models of a team; safe to use from several threads and processes.

    Methods raise a `QueryError` for an invalid model name.

    Args:
        directory: Folder of the drift schedules of all teams.
        scope: Whose mutes they are.
    """

    def __init__(self, directory: Path, scope: Scope = EVERYTHING) -> None:
        self._root = directory
        self._directory = team_folder(directory, scope.team)

    def within(self, scope: Scope) -> "MuteStore":
        """Return the mutes of the team of a scope."""
        return MuteStore(self._root, scope)

    def put(self, model: str, body: MuteBody, by: str, now_s: float | None = None) -> Mute:
        """Mute a model from now on, replacing the mute that it has.

        Args:
            model: Name of the model.
            body: The mute, from `decode_mute`.
            by: Name of who mutes it.
            now_s: Seconds since 1970; None: now.

        Raises:
            QueryError: It would end in the past, or too late.
            JournalError: The file could not be written, as on a full disk.
        """
        now_us = int((time.time() if now_s is None else now_s) * 1_000_000)
        until_us = moment_us(body.until, now_us, "until")
        if until_us is None or not now_us < until_us <= now_us + MAX_DAYS * DAY_S * 1_000_000:
            raise QueryError(
                f"expected until to be a time within the next {MAX_DAYS} days, got {body.until[:80]!r}"
            )
        mute = Mute(
            model=model,
            until=timestamp_text(until_us // 1000),
            signals=sorted(set(body.signals)),
            note=body.note.strip(),
            by=by,
            at=timestamp_text(now_us // 1000),
        )
        path = model_file_path(self._directory, model, MUTE_SUFFIX)
        with translate_disk_errors("store the mute"):
            write_model_file(path, mute)
        return mute

    def get(self, model: str, now_s: float | None = None) -> Mute:
        """Return the mute of a model at a time, in seconds since 1970; None: now.

        Raises:
            NotFoundError: The model is not muted, or no longer.
        """
        mute = active_mute(self._directory, model, now_s)
        if mute is None:
            raise NotFoundError(f"mute not found: drift of the model {model!r} is not muted")
        return mute

    def remove(self, model: str, now_s: float | None = None) -> Mute:
        """End the mute of a model now, and return it; arguments and errors as of `get`.

        Raises:
            NotFoundError: The model is not muted.
            JournalError: The file could not be removed.
        """
        mute = self.get(model, now_s)
        with translate_disk_errors("end the mute"):
            model_file_path(self._directory, model, MUTE_SUFFIX).unlink(missing_ok=True)
        return mute

    def active(self, model: str, now_s: float | None = None) -> Mute | None:
        """Return the mute of a model at a time; None if it is not muted."""
        return active_mute(self._directory, model, now_s)


def active_mute(directory: Path, model: str, now_s: float | None = None) -> Mute | None:
    """Return the mute of a model; None without one, and after its end.

    Args:
        directory: Folder of the drift schedules of the model's team.
        model: Name of the model.
        now_s: Seconds since 1970; None: now.
    """
    mute = read_model_file(model_file_path(directory, model, MUTE_SUFFIX), Mute)
    if mute is None:
        return None
    now_us = int((time.time() if now_s is None else now_s) * 1_000_000)
    until_us = moment_us(mute.until, now_us, "until") or 0
    return mute if now_us < until_us else None


def decode_mute(body: bytes) -> MuteBody:
    """Decode a mute from JSON.

    Raises:
        QueryError: The body is no mute.
    """
    expected = "expected the body to be a JSON object with until, signals and note"
    mute: MuteBody = decode_as(MuteBody, body, expected)
    for text in (mute.note, *mute.signals):
        check_text(text, "a text of the mute")
    return mute
