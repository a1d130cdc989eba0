"""The data folder of a server: locked against other servers, and made again if somebody removes it."""

import fcntl
import logging
import os
from pathlib import Path

from quadriga.engine.config.settings import SettingsError

LOCK_FILE = "server.lock"

_log = logging.getLogger("quadriga.supervisor")


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
        except OSError as error:
            raise SettingsError(f"cannot use the data folder {path}: {error.strerror}") from error

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
