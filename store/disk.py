"""Files that appear whole or not at all, that are made once, that are locked or synced."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def write_atomically(
    path: Path, data: bytes, mode: int = 0o666, *, is_synced: bool = False
) -> None:
    """Write a file, which others see whole or as it was; so it is left where the disk is full.

    With `is_synced`, it also survives a loss of power whole or as it was.
    """
    with _hidden(path, data, mode) as hidden:
        if is_synced:
            sync_path(hidden)
        hidden.replace(path)


def create_once(path: Path, data: bytes, mode: int = 0o644) -> bytes:
    """Return what a file holds: what the first one wrote, of all who make it at once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all, and the first one stays.
        with _hidden(path, data, mode) as hidden, suppress(FileExistsError):
            os.link(hidden, path)
    return path.read_bytes()


@contextmanager
def _hidden(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Give a written file of our own beside another, and remove it, unless it was moved."""
    hidden = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(hidden, flags, mode), "wb") as file:
            file.write(data)
        yield hidden
    finally:
        hidden.unlink(missing_ok=True)


def try_lock(path: Path) -> IO[str] | None:
    """Open a file to append to, locked until it is closed; None where another process has locked it."""
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def sync_path(path: Path) -> None:
    """Bring a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
