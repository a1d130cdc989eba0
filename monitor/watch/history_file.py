"""Histories of models: one line of JSON for each window that was examined, in a file beside the schedules."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from quadriga.monitor.model_files import model_file_path
from quadriga.store.query.filters.comparisons import parse_moment_us
from quadriga.store.records.disk import write_atomically

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
_WindowT = TypeVar("_WindowT", bound=msgspec.Struct)


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


def without_own_fields(entry: msgspec.Struct, type_: type[_WindowT]) -> _WindowT:
    """Return an entry as the type that it extends: without the fields that only the file has."""
    return type_(**{name: getattr(entry, name) for name in type_.__struct_fields__})
