"""Atomic writes, one-time creation, permissions, locking and syncing of files."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from quadriga.store.records.errors import JournalError


def create_privately() -> None:
    """Let only the user of this process, and of those that it starts, read what they create from now on."""
    os.umask(0o077)


def write_atomically(
    path: Path, data: bytes, mode: int = 0o666, *, is_synced: bool = False
) -> None:
    """Write a file atomically: others see the old or the new content; on a full disk it stays unchanged.

    With `is_synced`, that also holds after a loss of power.
    """
    with _hidden(path, data, mode) as hidden:
        if is_synced:
            sync_path(hidden)
        hidden.replace(path)


def create_once(path: Path, data: bytes, mode: int = 0o644, *, makes_folder: bool = True) -> bytes:
    """Create a file unless it exists, and return its content: that of the first process to create it.

    Raises:
        FileNotFoundError: Its folder does not exist, and `makes_folder` is false.
    """
    if not path.exists():
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        # The link fails if the file exists, so the first one stays and is never seen incomplete.
        with _hidden(path, data, mode) as hidden, suppress(FileExistsError):
            os.link(hidden, path)
    return path.read_bytes()


@contextmanager
def _hidden(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Write a temporary file beside `path`, yield it, and remove it unless it was renamed."""
    hidden = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(hidden, flags, mode), "wb") as file:
            file.write(data)
        yield hidden
    finally:
        hidden.unlink(missing_ok=True)


def check_writable(folder: Path, size_bytes: int) -> None:
    """Write a file of so many bytes into a folder, which is made if it is missing, and remove it again.

    Raises:
        OSError: The folder takes no file of that size, as on a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _hidden(folder / "check", bytes(size_bytes), 0o600):
        pass


def try_lock(path: Path) -> IO[str] | None:
    """Open a file for appending, locked until it is closed; None if another process holds the lock."""
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Wait for the lock of a file, which is created where missing, and hold it for the context."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing the file ends it
        yield


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder; those that go meanwhile may be left out."""
    total = 0
    for entry in folder_entries(folder):
        with suppress(FileNotFoundError):
            if entry.is_dir(follow_symlinks=False):
                total += folder_bytes(Path(entry.path))
            else:
                total += entry.stat(follow_symlinks=False).st_size
    return total


def folder_entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder; none if it is not there."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        yield from entries


def sync_path(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def translate_disk_errors(action: str) -> Iterator[None]:
    """Translate an OSError of an action on files, such as a full disk.

    Raises:
        JournalError: The action failed; the message names it.
    """
    try:
        yield
    except OSError as error:
        raise JournalError(f"cannot {action}: {error.strerror}") from error
