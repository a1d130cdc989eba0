"""Images kept by their content: written once, found by their hash, as files or in an object store.

What keeps a blob that a record needs from being removed is its age. A put renews it, a removal spares what
was put within the grace, and a record is journaled within half of that after its put; who removes looks
in `store.blob_references` first whether a row or the journal needs it.
"""

import logging
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from blake3 import blake3

from store.errors import JournalError, StoreError

GRACE_S = 3600.0
"""No blob is removed so soon after its last put."""

SCHEMES = ("s3", "gs", "az")
_PREFIX = "blake3:"
_DIGITS = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ASIDE = ".removed"
_log = logging.getLogger(__name__)


class BlobEntry(NamedTuple):
    """A blob in a list of them."""

    key: str
    size: int
    """Bytes."""
    put_at: float
    """Seconds since 1970: the last put."""


class Blobs(Protocol):
    """Where images are kept; safe to use from several threads and processes."""

    grace_s: float
    """No blob is removed so soon after its last put; the same for all who share the place."""

    is_near: bool
    """Whether a removal takes microseconds, not a row of requests."""

    @staticmethod
    def key(data: bytes) -> str:
        """Return the key that these bytes have, kept or not."""

    def put(self, data: bytes) -> str:
        """Keep the bytes and return their key; bytes already kept are made young again, not written.

        Raises:
            JournalError: They could not be kept, as on a full disk.
        """

    def sync(self, keys: Iterable[str]) -> None:
        """Make blobs that were put survive a loss of power.

        Raises:
            OSError: The disk fails.
        """

    def get(self, key: str) -> bytes | None:
        """Return the bytes of a key, `None` where there are none, or others than its hash says.

        Raises:
            StoreError: The key is malformed.
            NotReadyError: The object store does not answer.
        """

    def exists(self, key: str) -> bool:
        """Tell whether there is a blob, without a look at its bytes; raises as `get`."""

    def delete(self, key: str, as_of: float | None = None) -> bool:
        """Remove a blob whose last put is older than the grace; tells whether it did.

        Younger ones stay: somebody may be about to journal a record of them. A put at the same time
        wins: after both, the blob is there.

        Args:
            key: Of the blob.
            as_of: The moment that ages count from, in seconds since 1970; now by default.

        Raises:
            StoreError: The key is malformed.
            NotReadyError: The object store does not answer.
        """

    def listed(self) -> Iterator[BlobEntry]:
        """Yield every blob, in no order; clears away what crashes left. Raises as `get`."""

    def presigned(self, key: str, seconds: float) -> str | None:
        """Return a URL that answers the blob for so long; `None` where the place has no server."""


def open_blobs(place: str | Path, grace_s: float = GRACE_S) -> Blobs:
    """Open a folder, or what a URL of s3, gs or az names; asks no server yet.

    Raises:
        StoreError: The URL is none of these, or the extra for them is not installed.
    """
    scheme, separator, _ = str(place).partition("://")
    if not separator:
        return BlobStore(Path(place), grace_s)
    if scheme not in SCHEMES:
        raise StoreError(f"expected blobs in a folder, s3://, gs:// or az://, got {str(place)!r}")
    try:
        from store.object_blobs import ObjectBlobs  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        raise StoreError(
            f"expected obstore to be installed for {scheme}://, got none: pip install 'quadriga[s3]'"
        ) from error
    return ObjectBlobs(str(place), grace_s)


def key_of(data: bytes) -> str:
    """Return the key of some bytes: `blake3:<64 hex digits>`."""
    return f"{_PREFIX}{blake3(data).hexdigest()}"


def path_of(key: str) -> str:
    """Return where a blob stands: `<the first two hex digits>/<all>`.

    Raises:
        StoreError: The key is malformed.
    """
    digits = key.removeprefix(_PREFIX)
    if not key.startswith(_PREFIX) or _DIGITS.fullmatch(digits) is None:
        raise StoreError(f"expected a blob key 'blake3:<64 hex digits>', got {key[:80]!r}")
    return f"{digits[:2]}/{digits}"


def key_at(path: str) -> str | None:
    """Return the key of what stands at a path, `None` where that is no blob."""
    folder, _, digits = path.rpartition("/")
    return f"{_PREFIX}{digits}" if _DIGITS.fullmatch(digits) and folder == digits[:2] else None


def checked(key: str, data: bytes) -> bytes | None:
    """Return the bytes if they are those of the key."""
    if key_of(data) == key:
        return data
    _log.error("the blob %s is damaged: its %d bytes have another hash", key, len(data))
    return None


class BlobStore:
    """Blobs in a folder, see `Blobs`: one file each, two levels deep.

    A file appears whole or not at all. Only `sync` brings it to the disk for certain: after a power loss
    the last others may be missing or damaged, which is noticed when they are read.
    """

    is_near = True

    def __init__(self, directory: Path, grace_s: float = GRACE_S) -> None:
        self._directory = directory
        self.grace_s = grace_s

    @staticmethod
    def key(data: bytes) -> str:
        """See `Blobs`."""
        return key_of(data)

    def put(self, data: bytes) -> str:
        """See `Blobs`; bytes already kept cost a hash, a stat and a touch."""
        key = self.key(data)
        path = self._path(key)
        try:
            if not self._renew(path, len(data)):
                self._write(path, data)
        except OSError as error:
            raise JournalError(
                f"expected to keep {len(data)} bytes, got: {error.strerror}"
            ) from error
        return key

    @staticmethod
    def _renew(path: Path, size: int) -> bool:
        try:
            if path.stat().st_size == size:  # or power was lost before it was all on disk
                os.utime(path)
                return True
        except FileNotFoundError:
            pass
        return False

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

        Raises:
            OSError: The disk fails.
        """
        paths = [self._path(key) for key in keys]
        for path in paths:
            sync_path(path)
        for folder in {path.parent for path in paths}:
            sync_path(folder)
        if paths:
            sync_path(self._directory)

    def get(self, key: str) -> bytes | None:
        """See `Blobs`."""
        try:
            return checked(key, self._path(key).read_bytes())
        except FileNotFoundError:
            return None

    def exists(self, key: str) -> bool:
        """See `Blobs`."""
        return self._path(key).exists()

    def delete(self, key: str, as_of: float | None = None) -> bool:
        """See `Blobs`.

        The file is moved aside before its age is looked at for good: a put from then on finds none and
        writes it anew, and one that renewed it a moment before is seen, and it is put back.
        """
        path = self._path(key)
        aside = path.with_name(f".{path.name}{_ASIDE}")
        before = (time.time() if as_of is None else as_of) - self.grace_s
        try:
            if path.stat().st_mtime >= before:
                return False
            path.rename(aside)
            if aside.stat().st_mtime < before:
                aside.unlink()
                return True
            _put_back(aside)
        except FileNotFoundError:  # somebody else removed it, or put it back
            pass
        return False

    def listed(self) -> Iterator[BlobEntry]:
        """See `Blobs`; no more than one folder's files are listed at once."""
        now = time.time()
        for folder in self._folders():
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        continue
                    key = key_at(f"{folder.name}/{entry.name}")
                    if key is not None:
                        yield BlobEntry(key, status.st_size, status.st_mtime)
                    elif entry.name.endswith(_ASIDE):
                        _put_back(Path(entry.path))
                    elif entry.name.startswith(".") and now - status.st_mtime > self.grace_s:
                        Path(entry.path).unlink(missing_ok=True)

    def presigned(self, key: str, seconds: float) -> None:
        """See `Blobs`: `store.blob_urls` signs URLs of this server."""

    def _folders(self) -> list[Path]:
        try:
            found = sorted(self._directory.iterdir())
        except FileNotFoundError:
            return []
        return [path for path in found if len(path.name) == 2 and path.is_dir()]

    def _path(self, key: str) -> Path:
        return self._directory / path_of(key)


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


def _put_back(aside: Path) -> None:
    """Undo a removal; what was put again since stays as it is."""
    name = aside.name.removeprefix(".").removesuffix(_ASIDE)
    with suppress(FileNotFoundError):
        with suppress(FileExistsError):
            os.link(aside, aside.with_name(name))
        aside.unlink()
