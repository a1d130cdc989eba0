"""The data folder of a server: locked against other servers, private, and made again if somebody removes it."""

import fcntl
import logging
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from quadriga.engine.config.settings import SettingsError

LOCK_FILE = "server.lock"

_OWN = re.compile(
    r"admin\.key|archives|audit|baselines|blobs|clickhouse\.json|clock\.json|dead|dead\.jsonl|drift|erasures|evaluation|import\.lock|jobs|journal|keys\.json"
    r"|journal\.offsets|model-cache|rebuild\.progress|renumbered\.jsonl|run|served-models\.json|server\.lock|session\.key|sizes|store\.db.*|store\.json|traffic\.json|url\.key"
    r"|worker-numbers\.json|writer\.lock|\..+-[0-9a-f]{16}"
)
"""Names of what servers and commands make in a data folder."""

_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_log = logging.getLogger("quadriga.supervisor")


def make_private(folder: Path) -> int:
    """Take the permissions of other users off a data folder, such as one that was copied, or made by hand.

    The folder itself stays as it is if it holds more than the data of a server. A file that belongs to another user
    stays, too.

    Returns:
        Number of files and folders that were changed.
    """
    entries = list(folder.iterdir())
    own = [entry for entry in entries if _OWN.fullmatch(entry.name)]
    if len(own) == len(entries):
        own.append(folder)
    changed = 0
    for path in own:
        with suppress(FileNotFoundError, PermissionError):
            status = path.lstat()
            if not stat.S_ISLNK(status.st_mode) and status.st_mode & _OTHERS:
                path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
                changed += 1
    return changed


class DataFolder:
    """The lock of a data folder, held until `close`.

    Args:
        path: The folder, made if it is missing.

    Raises:
        SettingsError: Another server uses the folder, or it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_failing = False
        try:
            self._descriptor = self._lock()
            changed = make_private(path)
        except OSError as error:
            raise SettingsError(f"cannot use the data folder {path}: {error.strerror}") from error
        if changed:
            _log.warning(
                "%d files and folders of the data folder %s could be read by others: now they belong to this user alone",
                changed, path,
            )  # fmt: skip

    def check(self) -> None:
        """See that the locked file is still in place; if not, make the folder again and lock it.

        Raises:
            SettingsError: Another server uses the folder meanwhile.
        """
        try:
            status = (self._path / LOCK_FILE).stat()
            in_place = os.fstat(self._descriptor).st_ino == status.st_ino
        except OSError:
            in_place = False
        if in_place:
            return
        try:
            descriptor = self._lock()
        except OSError as error:
            if not self._is_failing:
                _log.error("cannot make the data folder again: %s", error.strerror)
            self._is_failing = True
            return
        os.close(self._descriptor)
        self._descriptor, self._is_failing = descriptor, False
        _log.error(
            "the data folder %s was removed or emptied while the server runs, and is made again: what was in it is lost",
            self._path,
        )

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

    def _lock(self) -> int:
        self._path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise SettingsError(
                f"the data folder {self._path} is in use by another server: choose another one with --data"
            ) from error
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
