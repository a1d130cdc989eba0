"""Halves of logged pairs: a request and its response that come as two events wait here for each other.

Files of a folder that all workers of a server share, and several servers may, if they name the same. A half is written
before it is acknowledged. A key, a team and all together have so many bytes and files and no more, so a flood of halves
neither fills the disk nor keeps away those of others.

```
FOLDER/<team>/<digest>.request    a half
FOLDER/<team>/<digest>.response   the other
FOLDER/<team>/done/<digest>       ids of a pair that is stored, so that a half that comes again is known
FOLDER/<team>/<two digits>.lock   lock of the pairs whose digests begin with them
```
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from quadriga.store.records.disk import lock, sync_path, translate_disk_errors, write_atomically
from quadriga.store.records.errors import JournalError

HalfKind = Literal["request", "response"]

MAX_BYTES = 1 << 30
"""Maximum bytes of the halves of a team that wait."""

MAX_FILES = 100_000
"""Maximum halves of a team that wait."""

PARTS = 4
"""A key may have this part of what a team may have, of which all together may have this multiple."""

DONE_S = 900.0
"""Seconds for which a stored pair is known here; the inference's own key knows it longer."""

_COUNTED_S = 1.0
_DONE = "done"
"""Folder of the marks: a busy sender makes many, and they must not take the room of halves, or be counted with them."""

_NO_TEAM = ".none"
_KINDS: tuple[HalfKind, HalfKind] = ("request", "response")


class Pair(NamedTuple):
    """A pair of events, by the folder of its team and the digest of what both say."""

    team: str
    digest: str
    """64 hexadecimal digits."""


class WaitingHalf(NamedTuple):
    """A half that waits."""

    pair: Pair
    kind: HalfKind
    age_s: float


class EventHalves:
    """The halves that wait; safe to use from several threads and processes.

    Args:
        directory: Folder of the halves.
        max_bytes: Maximum bytes of the halves of a team.
        is_synced: Whether a half survives a loss of power.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int = MAX_BYTES,
        max_files: int = MAX_FILES,
        is_synced: bool = False,
    ) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._is_synced = is_synced
        self._room_lock = threading.Lock()
        self._counted_until_s = 0.0
        self._bytes: Counter[str] = Counter()
        self._files: Counter[str] = Counter()
        """Bytes and number of the files by whose they are, as `_owners` names them."""
        self._key_ids: dict[str, str] = {}
        """Keys that sent the halves that wait, by file name, as far as this process has taken them."""

    @contextmanager
    def alone(self, pair: Pair) -> Iterator[None]:
        """Keep everybody else from a pair for the context; raises a JournalError if that cannot be."""
        folder = self._folder(pair.team)
        with translate_disk_errors("keep an event"):
            folder.mkdir(parents=True, exist_ok=True)
            with lock(folder / f"{pair.digest[:2]}.lock"):
                yield

    def put(self, pair: Pair, kind: HalfKind, data: bytes, key_id: str = "") -> None:
        """Keep a half, unless it is there already: then the first stays.

        Raises:
            JournalError: The key, the team or all together have as many as they may, or the disk is full.
        """
        path = self._path(pair, kind)
        if path.exists():
            return
        with self._room_lock:
            self._check_room(pair.team, path.name, len(data), key_id)
        with translate_disk_errors("keep an event"):
            write_atomically(path, data, 0o600, is_synced=self._is_synced)
            if self._is_synced:
                sync_path(path.parent)

    def get(self, pair: Pair, kind: HalfKind) -> bytes | None:
        """Return a half; None where it is not there."""
        with suppress(FileNotFoundError):
            return self._path(pair, kind).read_bytes()
        return None

    def remove(self, pair: Pair, kind: HalfKind) -> None:
        """Remove a half that cannot be read."""
        with translate_disk_errors("remove an event"):
            self._path(pair, kind).unlink(missing_ok=True)

    def done(self, pair: Pair) -> bytes | None:
        """Return what is known of a pair that is stored; None for one that is not."""
        with suppress(FileNotFoundError):
            return self._mark_path(pair).read_bytes()
        return None

    def finish(self, pair: Pair, mark: bytes) -> None:
        """Remove the halves of a pair that is stored, and note what is known of it."""
        path = self._mark_path(pair)
        with translate_disk_errors("keep an event"):
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, mark, 0o600)
            for half in map(partial(self._path, pair), _KINDS):
                with suppress(FileNotFoundError):
                    size_bytes = half.stat().st_size
                    half.unlink()
                    with self._room_lock:
                        self._add(pair.team, half.name, -size_bytes, -1)

    def waiting(self, min_age_s: float) -> Iterator[WaitingHalf]:
        """Yield the halves that wait longer than a time, and remove old marks."""
        now_s = time.time()
        for team, entry in self._entries():
            with suppress(OSError):
                age_s = now_s - entry.stat().st_mtime
                digest, _, kind = entry.name.partition(".")
                if age_s >= min_age_s:
                    pair = Pair(team, digest)
                    yield WaitingHalf(pair, "request" if kind == "request" else "response", age_s)
        self._remove_marks(now_s - DONE_S)

    def counts(self) -> tuple[int, int]:
        """Return the number and the bytes of the halves that wait, of all teams."""
        number = size_bytes = 0
        for _, entry in self._entries():
            with suppress(OSError):
                size_bytes += entry.stat().st_size
                number += 1
        return number, size_bytes

    def _entries(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield the team and the entry of each half."""
        with suppress(FileNotFoundError), os.scandir(self._directory) as teams:
            for folder in teams:
                team = "" if folder.name == _NO_TEAM else folder.name
                with suppress(OSError), os.scandir(folder.path) as entries:
                    for entry in entries:
                        if entry.name.endswith(tuple(f".{kind}" for kind in _KINDS)):
                            yield team, entry

    def _remove_marks(self, before_s: float) -> None:
        """Remove the marks that were made before a time, in seconds since 1970."""
        for folder in self._directory.glob(f"*/{_DONE}"):
            with suppress(OSError), os.scandir(folder) as marks:
                for mark in marks:
                    with suppress(OSError):
                        if mark.stat().st_mtime < before_s:
                            Path(mark.path).unlink()

    def _check_room(self, team: str, name: str, size_bytes: int, key_id: str) -> None:
        if time.monotonic() >= self._counted_until_s:
            self._count()
        if key_id:
            self._key_ids[name] = key_id
        for owner in self._owners(team, name):
            part = {"key": 1 / PARTS, "all": PARTS}.get(owner.partition(" ")[0], 1)
            max_bytes, max_files = int(part * self._max_bytes), int(part * self._max_files)
            used_bytes, files = self._bytes[owner] + size_bytes, self._files[owner] + 1
            if used_bytes > max_bytes or files > max_files:
                raise JournalError(
                    f"expected at most {max_bytes} bytes and {max_files} halves of events that wait for each "
                    f"other ({owner.strip()}), got {used_bytes} bytes and {files}"
                )
        self._add(team, name, size_bytes)

    def _count(self) -> None:
        self._counted_until_s = time.monotonic() + _COUNTED_S
        self._bytes.clear()
        self._files.clear()
        names = set()
        for team, entry in self._entries():
            with suppress(FileNotFoundError):
                self._add(team, entry.name, entry.stat().st_size)
                names.add(entry.name)
        self._key_ids = {name: key for name, key in self._key_ids.items() if name in names}

    def _owners(self, team: str, name: str) -> list[str]:
        key_id = self._key_ids.get(name)
        return ["all", f"team {team}", *([f"key {key_id}"] if key_id else [])]

    def _add(self, team: str, name: str, size_bytes: int, files: int = 1) -> None:
        for owner in self._owners(team, name):
            self._bytes[owner] += size_bytes
            self._files[owner] += files

    def _folder(self, team: str) -> Path:
        return self._directory / (team or _NO_TEAM)

    def _path(self, pair: Pair, kind: str) -> Path:
        return self._folder(pair.team) / f"{pair.digest}.{kind}"

    def _mark_path(self, pair: Pair) -> Path:
        return self._folder(pair.team) / _DONE / pair.digest
