"""A line of the audit log, and the names of its files: `<day>-<process>.jsonl`, days and times in UTC.

Lines are ASCII: JSON escapes everything else, line ends and control characters among it. So no text of a client begins
a line, and a terminal that shows a file shows nothing but its characters.
"""

import json
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

MAX_LINE_BYTES = 4096
SUFFIX = ".jsonl"

_FILE = re.compile(r"(\d{4}-\d\d-\d\d)-[a-z0-9-]{1,64}\.jsonl")
_LIMITS = {
    "action": 400,
    "name": 400,
    "target": 500,
    "address": 100,
    "request_id": 200,
    "host": 100,
}
"""Maximum bytes of a text, as it stands in the line; all together stay below `MAX_LINE_BYTES`."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line."""

    time: str
    """Time in UTC at which the line was written, as `2027-03-01T12:00:00.000000Z`."""
    action: str
    """Verb and path of a request, `RPC` and the name of a call, or the words of a command."""
    status: int | str
    """HTTP status, name of a gRPC code, or `done`; `no answer` if a request ended without one."""
    key_id: str = ""
    """Id of the key; empty without one."""
    name: str = ""
    """Name of the key, `anybody` where no key is needed, `nobody` without a valid one, or the user of a command."""
    address: str = ""
    """Address from which a request came."""
    target: str = ""
    """Id or name of what was changed, where the action does not have it."""
    number: int | None = None
    """Inferences or lines that a request changed."""
    request_id: str = ""
    """Id of the request, as its answer has it."""
    host: str = ""
    """Name of the machine or container that wrote the line; empty in older lines."""
    times: int = 1
    """Refusals or mistakes that this line stands for."""
    since: str = ""
    """Time of the first of several."""


def timestamp(seconds: float) -> str:
    """Return a time of the Unix clock as entries have it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def encode_entry(entry: AuditEntry) -> bytes:
    """Return the line of an entry, with its end; texts that are too long are cut."""
    fields = msgspec.to_builtins(entry)
    for name, limit in _LIMITS.items():
        if name in fields:
            fields[name] = _cut(fields[name], limit)
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def decode_entry(line: bytes) -> AuditEntry | None:
    """Return the entry of a line; None for a damaged line."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(line, type=AuditEntry)
    return None


def _cut(text: str, limit: int) -> str:
    """Return the beginning of a text that takes at most so many bytes in JSON, and that can be read again."""
    text = text[:limit].encode(errors="replace").decode()
    while (size := len(json.dumps(text)) - 2) > limit:
        text = text[: len(text) * limit // size]
    return text


def file_name(day: str, process: str, copy: int) -> str:
    """Return the name of a file; `copy` is above 1 where another process writes the first."""
    return f"{day}-{process}{f'-{copy}' if copy > 1 else ''}{SUFFIX}"


def files_by_day(folder: Path) -> dict[str, list[str]]:
    """Return the names of the files of each day, the newest day first; none if there is no folder."""
    days: dict[str, list[str]] = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
            if match := _FILE.fullmatch(path.name):
                days.setdefault(match[1], []).append(path.name)
    return {day: sorted(days[day]) for day in sorted(days, reverse=True)}


def remove_old(folder: Path, today: str, days: int) -> None:
    """Remove the files of days that ended more than so many days ago."""
    with suppress(OverflowError, ValueError):
        oldest = (datetime.fromisoformat(today) - timedelta(days=days)).strftime("%Y-%m-%d")
        for day, names in files_by_day(folder).items():
            if day >= oldest:
                continue
            for name in names:
                with suppress(OSError):  # another process was faster, or the next day will do
                    (folder / name).unlink()
