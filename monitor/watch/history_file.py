"""Histories of models: one line of JSON for each window that was examined, in a file beside the schedules."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from quadriga.monitor.model_files import model_file_path
from quadriga.store.disk import write_atomically

HISTORY_SUFFIX = "jsonl"
MAX_BYTES = 32 << 20
"""Maximum size of a history file; when it is exceeded, the older half is dropped."""
_TAIL_BYTES = 1 << 20


class Entry(Protocol):
    """What an entry of every history has."""

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

    def entries(self) -> Iterator[EntryT]:
        """Yield all entries; incomplete lines are skipped."""
        return self._read(None)

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
