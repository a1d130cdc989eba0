"""Images as files named by their content: written once, found by their hash."""

import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from blake3 import blake3

from store.errors import JournalError, StoreError

_KEY = re.compile(r"blake3:([0-9a-f]{64})", re.ASCII)


class BlobStore:
    """Content-addressed files, two levels deep: `<hex[:2]>/<hex>`.

    A file appears whole or not at all. Only `sync` brings it to the disk for certain: after a power loss
    the last others may be missing or short, which their name then shows.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._synced_folders: set[Path] = set()
        """Whose own entries are on the disk."""

    @staticmethod
    def key(data: bytes) -> str:
        """Return the key that these bytes have, kept or not."""
        return f"blake3:{blake3(data).hexdigest()}"

    def put(self, data: bytes) -> str:
        """Keep the bytes and return their key; bytes already kept cost a hash and a stat.

        Raises:
            JournalError: They could not be written, as on a full disk.
        """
        key = self.key(data)
        path = self._path(key)
        try:
            if not path.exists():
                self._write(path, data)
        except OSError as error:
            raise JournalError(
                f"expected to keep {len(data)} bytes, got: {error.strerror}"
            ) from error
        return key

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def sync(self, keys: Iterable[str]) -> None:
        """Bring files that were put, and the entries of their folders, to the disk.

        Threads that do so at once cost the disk little more than one: file systems join their syncs.

        Raises:
            JournalError: The disk fails.
        """
        paths = [self._path(key) for key in keys]
        folders = {path.parent for path in paths}
        try:
            for path in paths:
                sync_path(path)
            for folder in folders:
                sync_path(folder)
            if not folders <= self._synced_folders:
                sync_path(self._directory)
                sync_path(self._directory.parent)
                self._synced_folders |= folders
        except OSError as error:
            raise JournalError(
                f"expected {len(paths)} images to reach the disk, got: {error.strerror}"
            ) from error

    def get(self, key: str) -> bytes | None:
        """Return the bytes of a key, `None` where there are none.

        Raises:
            StoreError: The key is malformed.
        """
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def _path(self, key: str) -> Path:
        match = _KEY.fullmatch(key)
        if match is None:
            raise StoreError(f"expected a blob key 'blake3:<64 hex digits>', got {key[:80]!r}")
        return self._directory / match[1][:2] / match[1]


def sync_path(path: Path) -> None:
    """Bring a file, or the entries of a folder, to the disk.

    Raises:
        OSError: It is not there, or the disk fails.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
