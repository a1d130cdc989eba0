"""Halves of logged pairs: a request and its response that come as two events wait here for each other.

Files of a folder that all workers of a server share, and several servers may, if they name the same. A half is written
before it is acknowledged. A folder of a team takes so many bytes and files and no more, so a flood of halves neither
fills the disk nor keeps away those of other teams.

```
FOLDER/<team>/<digest>.request    a half
FOLDER/<team>/<digest>.response   the other
FOLDER/<team>/done/<digest>       ids of a pair that is stored, so that a half that comes again is known
FOLDER/<team>/<two digits>.lock   lock of the pairs whose digests begin with them
```
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from quadriga.store.disk import folder_entries, lock, sync_path, write_atomically
from quadriga.store.errors import JournalError, translate_disk_errors

HalfKind = Literal["request", "response"]

MAX_BYTES = 1 << 30
"""Maximum bytes of the halves of a team that wait."""

MAX_FILES = 100_000
"""Maximum halves of a team that wait."""

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
        self._sizes: dict[str, tuple[float, int, int]] = {}
        """Time until which they count, in seconds, bytes and number of the files of each team."""

    @contextmanager
    def alone(self, pair: Pair) -> Iterator[None]:
        """Keep everybody else from a pair for the context; raises a JournalError if that cannot be."""
        folder = self._folder(pair.team)
        with translate_disk_errors("keep an event"):
            folder.mkdir(parents=True, exist_ok=True)
            with lock(folder / f"{pair.digest[:2]}.lock"):
                yield

    def put(self, pair: Pair, kind: HalfKind, data: bytes) -> None:
        """Keep a half, unless it is there already: then the first stays.

        Raises:
            JournalError: The team's folder is full, or the disk is.
        """
        path = self._path(pair, kind)
        if path.exists():
            return
        self._check_room(pair.team, len(data))
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
                    self._give_back(pair.team, size_bytes)

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

    def _check_room(self, team: str, size_bytes: int) -> None:
        until_s, used_bytes, files = self._sizes.get(team, (0.0, 0, 0))
        now_s = time.monotonic()
        if now_s >= until_s:
            used_bytes = files = 0
            for entry in folder_entries(self._folder(team)):
                with suppress(FileNotFoundError):
                    if not entry.name.endswith((".lock", _DONE)):
                        used_bytes += entry.stat().st_size
                        files += 1
            until_s = now_s + _COUNTED_S
        if used_bytes + size_bytes > self._max_bytes or files >= self._max_files:
            self._sizes[team] = until_s, used_bytes, files
            raise JournalError(
                f"expected at most {self._max_bytes} bytes and {self._max_files} halves of events that wait for each "
                f"other, got {used_bytes + size_bytes} bytes and {files + 1}"
            )
        self._sizes[team] = until_s, used_bytes + size_bytes, files + 1

    def _give_back(self, team: str, size_bytes: int) -> None:
        """Count a half that is removed no longer, until the folder is counted again."""
        until_s, used_bytes, files = self._sizes.get(team, (0.0, 0, 0))
        self._sizes[team] = until_s, max(used_bytes - size_bytes, 0), max(files - 1, 0)

    def _folder(self, team: str) -> Path:
        return self._directory / (team or _NO_TEAM)

    def _path(self, pair: Pair, kind: str) -> Path:
        return self._folder(pair.team) / f"{pair.digest}.{kind}"

    def _mark_path(self, pair: Pair) -> Path:
        return self._folder(pair.team) / _DONE / pair.digest
