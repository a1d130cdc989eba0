"""Images kept by their content: written once, found by their hash, as files here or in an object store."""

import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from quadriga.store.blobs.interface import (
    GRACE_S,
    BlobEntry,
    Blobs,
    blob_key,
    blob_path,
    key_from_path,
    verify_content,
)
from quadriga.store.disk import sync_path, write_atomically
from quadriga.store.errors import JournalError, StoreError

SCHEMES = ("s3", "gs", "az")
_ASIDE = ".removed"


def open_blobs(place: str | Path, grace_s: float = GRACE_S) -> Blobs:
    """Open a folder, or what a URL of s3, gs or az names; asks no server yet.

    A StoreError where the URL is none of these, or the extra for them is not installed.
    """
    scheme, separator, _ = str(place).partition("://")
    if not separator:
        return FileBlobs(Path(place), grace_s)
    if scheme not in SCHEMES:
        raise StoreError(f"expected blobs in a folder, s3://, gs:// or az://, got {str(place)!r}")
    try:
        from quadriga.store.blobs.objects import ObjectBlobs  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        raise StoreError(
            f"expected obstore to be installed for {scheme}://, got none: pip install 'quadriga[s3]'"
        ) from error
    return ObjectBlobs(str(place), grace_s)


class FileBlobs:
    """Blobs in a folder, see `Blobs`: one file each, two levels deep.

    A file appears whole or not at all. Only `sync` brings it to the disk for certain: after a power loss
    the last others may be missing or damaged, which is noticed when they are read.
    """

    is_local = True

    def __init__(self, directory: Path, grace_s: float = GRACE_S) -> None:
        self._directory = directory
        self._synced_folders: set[Path] = set()  # whose own entries are on the disk
        self.grace_s = grace_s

    def put(self, data: bytes) -> str:
        """See `Blobs`; bytes already kept cost a hash, a stat and a touch."""
        key = blob_key(data)
        path = self._path(key)
        try:
            if not _renew(path, len(data)):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, data, 0o600)
        except OSError as error:
            raise JournalError(
                f"expected to keep {len(data)} bytes, got: {error.strerror}"
            ) from error
        return key

    def sync(self, keys: Iterable[str]) -> None:
        """See `Blobs`.

        Threads that do so at once cost the disk little more than one: file systems join their syncs.
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
        """See `Blobs`."""
        try:
            return verify_content(key, self._path(key).read_bytes())
        except FileNotFoundError:
            return None

    def delete(self, key: str, as_of: float | None = None) -> bool:
        """See `Blobs`.

        The file is moved aside before its age is looked at for good: a put from then on finds none and
        writes it anew, and one that renewed it a moment before is seen, and it is put back. Each removal
        moves to a name of its own, or it might remove what another one moved there.
        """
        path = self._path(key)
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_ASIDE}")
        before = (time.time() if as_of is None else as_of) - self.grace_s
        try:
            if path.stat().st_mtime >= before:
                return False
            path.rename(aside)
            if aside.stat().st_mtime < before:
                aside.unlink()
                return True
            os.utime(aside)  # or it might replace one that was put since by one a little older
            aside.replace(path)
        except FileNotFoundError:  # somebody else removed it
            pass
        return False

    def entries(self) -> Iterator[BlobEntry]:
        """See `Blobs`; no more than one folder's files are listed at once."""
        now = time.time()
        for folder in sorted(self._directory.glob("??/")):
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        continue
                    key = key_from_path(f"{folder.name}/{entry.name}")
                    if key is not None:
                        yield BlobEntry(key, status.st_size, status.st_mtime)
                    elif entry.name.startswith(".") and now - status.st_ctime > self.grace_s:
                        _clear(Path(entry.path))

    def presigned_url(self, key: str, seconds: float) -> None:
        """See `Blobs`: `quadriga.store.blobs.urls` signs URLs of this server."""

    def _path(self, key: str) -> Path:
        return self._directory / blob_path(key)


def _renew(path: Path, size: int) -> bool:
    """Make a file young; tells whether it is there afterwards.

    The look comes second: a file may be removed between being found and being touched.
    """
    try:
        os.utime(path)
        return path.stat().st_size == size  # or power was lost before it was all on disk
    except FileNotFoundError:
        return False


def _clear(left: Path) -> None:
    """Remove what a put left behind that died; undo a removal that did, unless there was a put since."""
    with suppress(FileNotFoundError):
        if left.name.endswith(_ASIDE):
            with suppress(FileExistsError):
                os.link(left, left.with_name(left.name.split(".")[1]))
        left.unlink()
