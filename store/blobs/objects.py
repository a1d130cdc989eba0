"""Blobs in an object store through obstore: S3 and compatible servers, Google Cloud Storage, Azure.

Keys, regions and endpoints come from the usual environment variables, such as `AWS_ENDPOINT_URL`.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from quadriga.store.blobs.interface import (
    GRACE_S,
    BlobEntry,
    blob_key,
    blob_path,
    key_from_path,
    verify_content,
)
from quadriga.store.records.errors import JournalError, NotReadyError, StoreError
from quadriga.store.records.redaction import redact, without_secrets

CONNECT_S = 2.0
REQUEST_S = 20.0
"""Timeout of one request; failed requests are retried up to `RETRIES` times within the same time."""

RETRIES = 2
_CLIENT: Any = {
    "allow_http": True,  # only where the endpoint's own URL says so
    "connect_timeout": timedelta(seconds=CONNECT_S),
    "timeout": timedelta(seconds=REQUEST_S),
}
_RETRY: Any = {
    "max_retries": RETRIES,
    "retry_timeout": timedelta(seconds=REQUEST_S),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=1),
        "base": 2,
    },
}
_MAX_CACHED_KEYS = 20_000
_REMOVING = ".removing"
_REMOVAL_S = 300.0  # a removal is over, or its process dead, long before
_RENEWALS = 30
_ERASED_AT_ONCE = 8
_log = logging.getLogger(__name__)


def connect(url: str) -> Any:
    """Return the object store at a URL, without contacting it yet.

    Raises:
        StoreError: The URL is none of an object store.
    """
    try:
        return from_url(url, client_options=_CLIENT, retry_config=_RETRY)
    except (BaseError, ValueError) as error:
        raise StoreError(
            f"expected a URL such as s3://bucket/folder, got {without_secrets(url)!r}: "
            f"{redact(_line(error), [url])}"
        ) from None


class ObjectBlobs:
    """Blobs below a URL such as `s3://bucket/folder`: one object each, at the same paths as files.

    The age of an object is the server's `Last-Modified`. Objects younger than half the grace period are
    left unchanged; older ones are put again, which makes them young. A put and a removal take several
    requests each, so a removal first creates a marker object beside the blob, one at a time, and reads
    the age under it. After a put of an old object, `put` looks for the marker and then for the object: if
    there is no marker but the object exists, every removal under way has seen it young.
    """

    is_local = False

    def __init__(self, url: str, grace_s: float = GRACE_S) -> None:
        self._store = connect(url)
        self.grace_s = grace_s
        self._young_until: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, data: bytes) -> str:
        """See `Blobs`; a recently stored blob costs a hash, any other stored blob one request."""
        key = blob_key(data)
        with self._lock:
            if time.time() < self._young_until.get(key, 0.0):
                self._young_until.move_to_end(key)
                return key
        try:
            put_at = self._put_young(blob_path(key), data)
        except (BaseError, OSError) as error:
            _log.warning("an image cannot be stored: %s", _line(error))
            raise JournalError(
                f"cannot store {len(data)} bytes in the object store: {type(error).__name__}"
            ) from error
        with self._lock:
            self._young_until[key] = put_at + self.grace_s / 2
            while len(self._young_until) > _MAX_CACHED_KEYS:
                self._young_until.popitem(last=False)
        return key

    def check_writable(self, size_bytes: int) -> None:
        """See `Blobs`; an object store has room, so the object is empty, and `entries` removes it."""
        try:
            self._write("check" + _REMOVING, b"")
        except (BaseError, OSError) as error:
            raise JournalError(
                f"cannot store {size_bytes} bytes in the object store: {type(error).__name__}"
            ) from error

    def _put_young(self, path: str, data: bytes) -> float:
        now_s = time.time()
        put_at = self._put_at(path)
        if put_at is None:
            self._write(path, data)
            return now_s
        if now_s - put_at < self.grace_s / 2:
            return put_at
        for _ in range(_RENEWALS):
            self._write(path, data)
            removal_at = self._put_at(path + _REMOVING)
            stored_at = self._put_at(path)
            if stored_at is not None and (
                removal_at is None or stored_at - removal_at > _REMOVAL_S
            ):
                return now_s
            time.sleep(0.1)
        raise TimeoutError(f"cannot store {path}: its removal does not end")

    def _write(self, path: str, data: bytes, **mode: Any) -> None:
        # Nothing that a browser runs.
        attributes: Any = {"Content-Type": "application/octet-stream"}
        obstore.put(self._store, path, data, attributes=attributes, use_multipart=False, **mode)

    def _put_at(self, path: str) -> float | None:
        try:
            return obstore.head(self._store, path)["last_modified"].timestamp()
        except FileNotFoundError:
            return None

    def sync(self, keys: Iterable[str]) -> None:
        """See `Blobs`; nothing to do: the object store has synced a blob when it answers the put."""

    def get(self, key: str) -> bytes | None:
        """See `Blobs`."""
        path = blob_path(key)
        with _translate_errors("read a blob"):
            try:
                return verify_content(key, bytes(obstore.get(self._store, path).bytes()))
            except FileNotFoundError:
                return None

    def delete(self, key: str, as_of: float | None = None) -> bool:
        """See `Blobs`; costs four requests."""
        path = blob_path(key)
        mark = path + _REMOVING
        expires_before = (time.time() if as_of is None else as_of) - self.grace_s
        with _translate_errors("remove a blob"):
            try:
                self._write(mark, b"", mode="create")
            except AlreadyExistsError:  # another process is removing it
                return False
            put_at = self._put_at(path)
            is_old = put_at is not None and put_at < expires_before
            if is_old:
                self._remove(path)
            self._remove(mark)
        return is_old

    def erase(self, keys: Sequence[str], put_before: float) -> list[str]:
        """See `Blobs`; costs five requests for each, some blobs at once."""
        with ThreadPoolExecutor(_ERASED_AT_ONCE) as pool:
            are_gone = pool.map(lambda key: self._erase(key, put_before), keys)
            return [key for key, is_gone in zip(keys, are_gone, strict=True) if not is_gone]

    def _erase(self, key: str, put_before: float) -> bool:
        self.delete(key, put_before + self.grace_s)
        with _translate_errors("look for a blob"):
            return self._put_at(blob_path(key)) is None

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            obstore.delete(self._store, path)

    def thumbnail(self, key: str, width: int) -> None:
        """See `Blobs`: none is kept, as no server could tell the others to remove their copies."""

    def put_thumbnail(self, key: str, width: int, data: bytes) -> None:
        """See `Blobs`."""

    def entries(self) -> Iterator[BlobEntry]:
        """See `Blobs`."""
        now_s = time.time()
        with _translate_errors("list its blobs"):
            for chunk in obstore.list(self._store, chunk_size=1000):
                for item in chunk:
                    path, put_at = item["path"], item["last_modified"].timestamp()
                    key = key_from_path(path)
                    if key is not None:
                        yield BlobEntry(key, item["size"], put_at)
                    elif path.endswith(_REMOVING) and now_s - put_at > _REMOVAL_S:
                        self._remove(path)

    def presigned_url(self, key: str, seconds: float) -> str:
        """See `Blobs`; requires credentials that can sign."""
        path = blob_path(key)
        with _translate_errors("sign a URL"):
            url: str = obstore.sign(self._store, "GET", path, timedelta(seconds=seconds))
            return url


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


@contextmanager
def _translate_errors(action: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        _log.warning("the object store cannot %s: %s", action, _line(error))
        raise NotReadyError(f"the object store cannot {action}: {type(error).__name__}") from error
