"""Blobs stored as files in a local folder, and the choice between that and an object store."""

import os
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
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
from quadriga.store.blobs.thumbnails import ThumbnailFiles
from quadriga.store.records.disk import (
    check_writable,
    folder_entries,
    sync_path,
    translate_disk_errors,
    write_atomically,
)
from quadriga.store.records.errors import JournalError, StoreError

SCHEMES = ("s3", "gs", "az")
_ASIDE = ".removed"
_DIGITS = 64  # of the name of a file
_THUMBNAILS = "thumbnails"  # folder within that of the images


def open_blobs(location: str | Path, grace_s: float = GRACE_S) -> Blobs:
    """Open the blobs in a folder or at a URL of s3, gs or az, without contacting a server yet.

    Raises:
        StoreError: The URL has another scheme, or the optional dependency is not installed.
    """
    scheme, separator, _ = str(location).partition("://")
    if not separator:
        return FileBlobs(Path(location), grace_s)
    if scheme not in SCHEMES:
        raise StoreError(
            f"expected blobs in a folder, s3://, gs:// or az://, got {str(location)!r}"
        )
    try:
        from quadriga.store.blobs.objects import ObjectBlobs  # noqa: PLC0415 - optional dependency
    except ModuleNotFoundError as error:
        raise StoreError(f"{scheme}:// requires obstore: pip install 'quadriga[s3]'") from error
    return ObjectBlobs(str(location), grace_s)


class FileBlobs:
    """Blobs in a folder, see `Blobs`: one file each, two levels deep.

    Files are written atomically. Only `sync` guarantees that they are on the disk: after a power loss
    other recent files may be missing or damaged, which is detected when they are read.
    """

    is_local = True

    def __init__(self, directory: Path, grace_s: float = GRACE_S) -> None:
        self._directory = directory
        self._synced_folders: set[Path] = set()  # folders whose entries are on the disk
        self.grace_s = grace_s
        self._thumbnails = ThumbnailFiles(directory / _THUMBNAILS, self._has)

    def put(self, data: bytes) -> str:
        """See `Blobs`; bytes that are stored already cost a hash, a stat and a touch."""
        key = blob_key(data)
        path = self._path(key)
        try:
            if not _renew(path, len(data)):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, data, 0o600)
        except OSError as error:
            raise JournalError(f"cannot store {len(data)} bytes: {error.strerror}") from error
        return key

    def check_writable(self, size_bytes: int) -> None:
        """See `Blobs`."""
        with translate_disk_errors(f"store {size_bytes} bytes"):
            check_writable(self._directory, size_bytes)

    def sync(self, keys: Iterable[str]) -> None:
        """See `Blobs`.

        Simultaneous syncs cost little more than one, because file systems join them.
        """
        paths = [self._path(key) for key in keys]
        folders = {path.parent for path in paths}
        with translate_disk_errors(f"sync {len(paths)} images to the disk"):
            for path in (*paths, *folders):
                sync_path(path)
            if not folders <= self._synced_folders:
                sync_path(self._directory)
                sync_path(self._directory.parent)
                self._synced_folders |= folders

    def get(self, key: str) -> bytes | None:
        """See `Blobs`."""
        try:
            return verify_content(key, self._path(key).read_bytes())
        except FileNotFoundError:
            return None

    def delete(self, key: str, as_of: float | None = None) -> bool:
        """See `Blobs`.

        The file is renamed before the final check of its age: later puts do not find it and write it
        again, and a put that renewed it just before is noticed and the file is restored. Each removal
        uses a random name, otherwise it could remove a file that another removal has renamed.
        """
        path = self._path(key)
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_ASIDE}")
        expires_before = (time.time() if as_of is None else as_of) - self.grace_s
        try:
            if path.stat().st_mtime >= expires_before:
                return False
            path.rename(aside)
            if aside.stat().st_mtime < expires_before:
                self._thumbnails.remove(path.name)
                aside.unlink()
                return True
            os.utime(aside)  # or it could replace a file that was put since by an older one
            aside.replace(path)
        except FileNotFoundError:  # removed by another process
            pass
        return False

    def erase(self, keys: Sequence[str], put_before: float) -> list[str]:
        """See `Blobs`; each of their folders is listed once."""
        by_folder: dict[Path, dict[str, str]] = {}
        for key in keys:
            path = self._path(key)
            by_folder.setdefault(path.parent, {})[path.name] = key
            self.delete(key, put_before + self.grace_s)
        remaining = []
        for folder, names in by_folder.items():
            present = {
                _erase_leftover(entry, names, put_before) for entry in folder_entries(folder)
            }
            remaining += [key for name, key in names.items() if name in present]
            self._thumbnails.erase(folder.name, names.keys() - present)
        return remaining

    def thumbnail(self, key: str, width: int) -> bytes | None:
        """See `Blobs`."""
        return self._thumbnails.get(self._path(key).name, width)

    def put_thumbnail(self, key: str, width: int, data: bytes) -> None:
        """See `Blobs`."""
        self._thumbnails.put(self._path(key).name, width, data)

    def entries(self) -> Iterator[BlobEntry]:
        """See `Blobs`; only one folder is listed at a time."""
        now_s = time.time()
        for folder in sorted(self._directory.glob("??/")):
            for entry in folder_entries(folder):
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue
                key = key_from_path(f"{folder.name}/{entry.name}")
                if key is not None:
                    yield BlobEntry(key, status.st_size, status.st_mtime)
                elif entry.name.startswith(".") and now_s - status.st_ctime > self.grace_s:
                    _clear(Path(entry.path))
            self._thumbnails.sweep(folder.name)

    def presigned_url(self, key: str, seconds: float) -> None:
        """See `Blobs`: `quadriga.store.blobs.urls` signs URLs of this server."""

    def _path(self, key: str) -> Path:
        return self._directory / blob_path(key)

    def _has(self, digits: str) -> bool:
        return (self._directory / digits[:2] / digits).exists()


def _renew(path: Path, size_bytes: int) -> bool:
    """Renew the age of a file; return whether it exists afterwards.

    The check comes second, because a file may be removed between a check and the touch.
    """
    try:
        os.utime(path)
        return path.stat().st_size == size_bytes  # shorter after a power loss during the write
    except FileNotFoundError:
        return False


def _clear(leftover: Path) -> None:
    """Remove the leftover of a crashed put; undo a crashed removal unless the blob was put since."""
    with suppress(FileNotFoundError):
        if leftover.name.endswith(_ASIDE):
            with suppress(FileExistsError):
                os.link(leftover, leftover.with_name(leftover.name.split(".")[1]))
        leftover.unlink()


def _erase_leftover(
    entry: os.DirEntry[str], names: Collection[str], put_before: float
) -> str | None:
    """Remove a file if it is an old leftover of one of some blobs; return the name of the blob that it is, if it stays."""
    is_leftover = entry.name.startswith(".")
    name = entry.name[1 : 1 + _DIGITS] if is_leftover else entry.name
    if name not in names:
        return None
    if is_leftover:
        try:
            if entry.stat().st_mtime < put_before:
                Path(entry.path).unlink()
                return None
        except FileNotFoundError:  # removed or renamed meanwhile
            return None
    return name
