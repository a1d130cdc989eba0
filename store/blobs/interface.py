"""Interface of blob storage, and the keys of blobs: the hash of their bytes.

A blob that a record references is protected by its age. A put renews it, a removal spares blobs that were
put within the grace period, and a record is journaled within half of that after its put. Before a removal,
`quadriga.store.blobs.unreferenced` checks whether a row or the journal references the blob.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from blake3 import blake3

from quadriga.store.records.errors import StoreError

GRACE_S = 3600.0  # minimum age of a removed blob since its last put
KEY_PREFIX = "blake3:"
"""Name of the hash; with another one, stores of this one have to be read, too."""
KEY_PATTERN = rf"{KEY_PREFIX}[0-9a-f]{{64}}"
"""Regular expression of a whole key."""
_DIGITS = re.compile(r"[0-9a-f]{64}", re.ASCII)
_log = logging.getLogger(__name__)


class BlobEntry(NamedTuple):
    """Key, size and age of a stored blob."""

    key: str
    size: int  # bytes
    put_at: float  # seconds since 1970: the last put


class Blobs(Protocol):
    """Storage of images by their content; safe to use from several threads and processes.

    Methods with a key raise a `StoreError` if it is malformed. If the storage fails, `put`, `check_writable` and `sync`
    raise a `JournalError`, all other methods a `NotReadyError`.
    """

    grace_s: float
    """Minimum age of a removed blob since its last put, the same for all processes that share the storage."""

    is_local: bool
    """Whether a removal takes microseconds instead of several network requests."""

    def put(self, data: bytes) -> str:
        """Store the bytes and return their key; bytes that are stored already are made young again instead."""

    def check_writable(self, size_bytes: int) -> None:
        """Raise a `JournalError` unless a blob of that size can be stored; nothing of it stays."""

    def sync(self, keys: Iterable[str]) -> None:
        """Sync stored blobs, so that they survive a power loss."""

    def get(self, key: str) -> bytes | None:
        """Return the bytes of a key, or None if they are missing or do not match its hash."""

    def delete(self, key: str, as_of: float | None = None) -> bool:
        """Remove a blob whose last put is older than the grace period; return whether it was removed.

        Younger blobs stay, because a record of them may be about to be journaled. A simultaneous put
        wins: after both, the blob exists. Ages are relative to `as_of`, in seconds since 1970, by
        default the current time.
        """

    def erase(self, keys: Sequence[str], put_before: float) -> list[str]:
        """Remove blobs, and leftovers of their puts and removals, last put before a time; return those that are still there.

        The caller knows that nothing references them, and that no record of a put before that time is yet to be journaled.
        """

    def thumbnail(self, key: str, width: int) -> bytes | None:
        """Return the kept thumbnail of a blob in one of `quadriga.store.blobs.thumbnails.WIDTHS`, or None."""

    def put_thumbnail(self, key: str, width: int, data: bytes) -> None:
        """Keep a thumbnail for as long as its blob is there, unless there is no room for it or the storage keeps none."""

    def entries(self) -> Iterator[BlobEntry]:
        """Yield every blob, in no particular order, and remove leftovers of crashes."""

    def presigned_url(self, key: str, seconds: float) -> str | None:
        """Return a URL of the blob that is valid for `seconds`, or None if the storage has no server."""


def blob_key(data: bytes) -> str:
    """Return the key of the bytes: `blake3:<64 hex digits>`."""
    return f"{KEY_PREFIX}{blake3(data).hexdigest()}"


def blob_path(key: str) -> str:
    """Return the relative path of a blob, `<first two hex digits>/<all digits>`.

    Raises:
        StoreError: The key is malformed.
    """
    digits = key.removeprefix(KEY_PREFIX)
    if not key.startswith(KEY_PREFIX) or _DIGITS.fullmatch(digits) is None:
        raise StoreError(f"expected a blob key 'blake3:<64 hex digits>', got {key[:80]!r}")
    return f"{digits[:2]}/{digits}"


def key_from_path(path: str) -> str | None:
    """Return the key of the blob at a relative path, or None if the path is not one of a blob."""
    folder, _, digits = path.rpartition("/")
    return f"{KEY_PREFIX}{digits}" if _DIGITS.fullmatch(digits) and folder == digits[:2] else None


def verify_content(key: str, data: bytes) -> bytes | None:
    """Return the bytes if they match the hash in the key, else None."""
    if blob_key(data) == key:
        return data
    _log.error("the blob %s is damaged: its %d bytes have another hash", key, len(data))
    return None
