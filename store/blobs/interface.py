"""What a blob is, and what every place for blobs promises.

What keeps a blob that a record needs from being removed is its age. A put renews it, a removal spares what
was put within the grace, and a record is journaled within half of that after its put; who removes looks
in `quadriga.store.blobs.unreferenced` first whether a row or the journal needs it.
"""

import logging
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from blake3 import blake3

from quadriga.store.errors import StoreError

GRACE_S = 3600.0  # no blob is removed so soon after its last put
_PREFIX = "blake3:"
_DIGITS = re.compile(r"[0-9a-f]{64}", re.ASCII)
_log = logging.getLogger(__name__)


class BlobEntry(NamedTuple):
    """A blob in a list of them."""

    key: str
    size: int  # bytes
    put_at: float  # seconds since 1970: the last put


class Blobs(Protocol):
    """Where images are kept; safe to use from several threads and processes.

    What takes a key raises a `StoreError` where it is malformed. Where the place fails, `put` and
    `sync` raise a `JournalError`, all else a `NotReadyError`.
    """

    grace_s: float
    """No blob is removed so soon after its last put; the same for all who share the place."""

    is_local: bool
    """Whether a removal takes microseconds, not a row of requests."""

    def put(self, data: bytes) -> str:
        """Keep the bytes and return their key; bytes already kept are made young again, not written."""

    def sync(self, keys: Iterable[str]) -> None:
        """Make blobs that were put survive a loss of power."""

    def get(self, key: str) -> bytes | None:
        """Return the bytes of a key, `None` where there are none, or others than its hash says."""

    def delete(self, key: str, as_of: float | None = None) -> bool:
        """Remove a blob whose last put is older than the grace; tells whether it did.

        Younger ones stay: somebody may be about to journal a record of them. A put at the same time
        wins: after both, the blob is there. Ages count from `as_of`, in seconds since 1970; from
        now by default.
        """

    def entries(self) -> Iterator[BlobEntry]:
        """Yield every blob, in no order; clears away what crashes left."""

    def presigned_url(self, key: str, seconds: float) -> str | None:
        """Return a URL that answers the blob for so long; `None` where the place has no server."""


def blob_key(data: bytes) -> str:
    """Return the key of some bytes: `blake3:<64 hex digits>`."""
    return f"{_PREFIX}{blake3(data).hexdigest()}"


def blob_path(key: str) -> str:
    """Return where a blob stands, `<the first two hex digits>/<all>`; a StoreError if it is none."""
    digits = key.removeprefix(_PREFIX)
    if not key.startswith(_PREFIX) or _DIGITS.fullmatch(digits) is None:
        raise StoreError(f"expected a blob key 'blake3:<64 hex digits>', got {key[:80]!r}")
    return f"{digits[:2]}/{digits}"


def key_from_path(path: str) -> str | None:
    """Return the key of what stands at a path, `None` where that is no blob."""
    folder, _, digits = path.rpartition("/")
    return f"{_PREFIX}{digits}" if _DIGITS.fullmatch(digits) and folder == digits[:2] else None


def verify_content(key: str, data: bytes) -> bytes | None:
    """Return the bytes if they are those of the key."""
    if blob_key(data) == key:
        return data
    _log.error("the blob %s is damaged: its %d bytes have another hash", key, len(data))
    return None
