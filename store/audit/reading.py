"""Reads the audit log of a data folder, newest first and page by page, each file from its end.

A cursor holds the day, and for each of its files the offset where the next page begins. Lines that are added later lie
behind it, so pages neither repeat nor skip a line.
"""

import base64
import heapq
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Annotated

import msgspec

from quadriga.quoting import quoted
from quadriga.store.audit.entries import (
    MAX_LINE_BYTES,
    AuditEntry,
    decode_entry,
    files_by_day,
    timestamp,
)
from quadriga.store.records.errors import QueryError

MAX_LIMIT = 1000
"""Maximum lines of a page."""

MAX_SCANNED = 50_000
"""Lines that are read for one page: beyond that it is shorter, and its cursor leads on."""

_RELATIVE = re.compile(r"(\d{1,6})([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class AuditPage(msgspec.Struct, frozen=True):
    """Lines of the audit log, the newest first."""

    entries: list[AuditEntry]
    cursor: str | None
    """Cursor of the next page; null behind the last."""
    damaged: int
    """Lines between these that could not be read, as a half one at the end of a process."""


class _Cursor(msgspec.Struct, frozen=True):
    day: str
    ends: dict[str, Annotated[int, msgspec.Meta(ge=0)]]


class _Line(msgspec.Struct, frozen=True):
    """A line with what was passed on the way to it."""

    time: str
    file: str
    begin: int
    damaged: int
    entry: AuditEntry | None
    """None at the beginning of the file."""


def read_page(
    folder: Path, *, since: str = "", key: str = "", limit: int = 100, cursor: str = ""
) -> AuditPage:
    """Return a page of the audit log.

    Args:
        folder: Folder of the audit log.
        since: Earliest time as `parse_since` returns it; empty for all.
        key: Id or name of the key; empty for all.
        limit: Maximum number of lines.
        cursor: Cursor of the previous page; empty for the first page.

    Raises:
        QueryError: The cursor is not of a page.
    """
    entries: list[AuditEntry] = []
    damaged = scanned = 0
    start = _decode_cursor(cursor) if cursor else None
    for position, line in _lines(folder, start, since[:10]):
        damaged += line.damaged
        if line.entry is None:
            continue
        if line.time < since:
            break
        scanned += 1
        if not key or key in (line.entry.key_id, line.entry.name):
            entries.append(line.entry)
        if len(entries) >= limit or scanned >= MAX_SCANNED:
            return AuditPage(entries, _encode_cursor(position), damaged)
    return AuditPage(entries, None, damaged)


def _lines(folder: Path, start: _Cursor | None, first_day: str) -> Iterator[tuple[_Cursor, _Line]]:
    """Yield the lines from a cursor back to a day, the newest first, each with the cursor of those before it."""
    for day, names in files_by_day(folder).items():
        if start is not None and day > start.day:
            continue
        if day < first_day:
            return
        ends = _sizes(folder, names)
        if start is not None and day == start.day:
            ends = {
                name: min(start.ends[name], size)
                for name, size in ends.items()
                if name in start.ends
            }
        position = _Cursor(day, ends)
        lines = [_read_backwards(folder / name, end) for name, end in ends.items()]
        for line in heapq.merge(*lines, key=lambda line: line.time, reverse=True):
            ends[line.file] = line.begin
            yield position, line


def parse_since(text: str, now_s: float) -> str:
    """Return the time of a text such as `24h`, `7d`, `2027-03-01` or `2027-03-01T12:00:00+01:00`; without a zone UTC.

    Raises:
        QueryError: It is no such text.
    """
    if match := _RELATIVE.fullmatch(text):
        return timestamp(max(0.0, now_s - int(match[1]) * _UNITS_S[match[2]]))
    try:
        time = datetime.fromisoformat(text)
        seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        return timestamp(max(0.0, seconds))
    except (ValueError, OverflowError) as error:
        raise QueryError(
            f"expected since to be a time such as 24h, 7d or 2027-03-01T12:00:00Z, got {quoted(text, 60)}"
        ) from error


def _sizes(folder: Path, names: list[str]) -> dict[str, int]:
    sizes = {}
    for name in names:
        with suppress(FileNotFoundError):  # removed since it was listed
            sizes[name] = (folder / name).stat().st_size
    return sizes


def _read_backwards(path: Path, end: int) -> Iterator[_Line]:
    """Yield the lines of a file before an offset, the last first, and at the end of all the beginning of the file."""
    damaged = 0
    for raw, begin in _split_backwards(path, end):
        if not raw:
            continue
        entry = None if len(raw) > MAX_LINE_BYTES else decode_entry(raw)
        if entry is None:
            damaged += 1
            continue
        yield _Line(entry.time, path.name, begin, damaged=damaged, entry=entry)
        damaged = 0
    yield _Line("", path.name, 0, damaged=damaged, entry=None)


def _split_backwards(path: Path, end: int) -> Iterator[tuple[bytes, int]]:
    """Yield each piece between two line ends before an offset with the offset where it begins, the last first.

    Of a piece that is longer than any line its end.
    """
    with (
        suppress(FileNotFoundError),
        path.open("rb") as file,
    ):  # it may be removed since it was listed
        if not end:
            return
        with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            while end >= 0:
                begin = data.rfind(b"\n", 0, end) + 1
                yield data[max(begin, end - MAX_LINE_BYTES - 1) : end], begin
                end = begin - 1


def _encode_cursor(cursor: _Cursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def _decode_cursor(text: str) -> _Cursor:
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(data, type=_Cursor)
    except (ValueError, msgspec.MsgspecError) as error:
        raise QueryError(
            f"expected the cursor of a page of the audit log, got {quoted(text, 60)}"
        ) from error
