"""Images in an object store: S3 and what speaks like it, Google Cloud Storage, Azure; through obstore.

Keys, regions and endpoints come from the usual environment variables, such as `AWS_ENDPOINT_URL`.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
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
from quadriga.store.errors import JournalError, NotReadyError, StoreError

CONNECT_S = 2.0
REQUEST_S = 20.0
"""What one request may take; failed ones are sent again up to `RETRIES` times, for no longer than that."""

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
_REMEMBERED = 20_000
_REMOVING = ".removing"
_REMOVAL_S = 300.0  # a removal is over, or its process dead, long before
_RENEWALS = 30
_log = logging.getLogger(__name__)


class ObjectBlobs:
    """Blobs below a URL such as `s3://bucket/folder`: one object each, at the paths of files.

    Ages are the server's `Last-Modified`. An object younger than half the grace is left as it is;
    an older one is put again, which makes it young. As a put and a removal are several requests
    each, a removal stands under a mark beside the object, one at a time, and looks at the age below
    it; who has put an old object looks for the mark, then for the object: with no mark there and
    the object there, no removal is under way that has not seen it young.
    """

    is_local = False

    def __init__(self, url: str, grace_s: float = GRACE_S) -> None:
        try:
            self._store: Any = from_url(url, client_options=_CLIENT, retry_config=_RETRY)
        except (BaseError, ValueError) as error:
            raise StoreError(
                f"expected a URL as s3://bucket/folder, got {url!r}: {_line(error)}"
            ) from error
        self.grace_s = grace_s
        self._young_until: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, data: bytes) -> str:
        """See `Blobs`; bytes known to be there cost a hash, others kept already one request."""
        key = blob_key(data)
        with self._lock:
            if time.time() < self._young_until.get(key, 0.0):
                self._young_until.move_to_end(key)
                return key
        try:
            put_at = self._keep(blob_path(key), data)
        except (BaseError, OSError) as error:
            _log.warning("an image cannot be kept: %s", _line(error))
            raise JournalError(
                f"expected the object store to keep {len(data)} bytes, got {type(error).__name__}"
            ) from error
        with self._lock:
            self._young_until[key] = put_at + self.grace_s / 2
            while len(self._young_until) > _REMEMBERED:
                self._young_until.popitem(last=False)
        return key

    def _keep(self, path: str, data: bytes) -> float:
        now = time.time()
        put_at = self._put_at(path)
        if put_at is None:
            self._write(path, data)
            return now
        if now - put_at < self.grace_s / 2:
            return put_at
        for _ in range(_RENEWALS):
            self._write(path, data)
            removal = self._put_at(path + _REMOVING)
            there = self._put_at(path)
            if there is not None and (removal is None or there - removal > _REMOVAL_S):
                return now
            time.sleep(0.1)
        raise TimeoutError(f"expected the removal of {path} to end, got none")

    def _write(self, path: str, data: bytes, **mode: Any) -> None:
        kind: Any = {"Content-Type": "application/octet-stream"}  # nothing that a browser runs
        obstore.put(self._store, path, data, attributes=kind, use_multipart=False, **mode)

    def _put_at(self, path: str) -> float | None:
        try:
            return obstore.head(self._store, path)["last_modified"].timestamp()
        except FileNotFoundError:
            return None

    def sync(self, keys: Iterable[str]) -> None:
        """See `Blobs`: the object store has done so when it answers a put."""

    def get(self, key: str) -> bytes | None:
        """See `Blobs`."""
        path = blob_path(key)
        with _asked("for the bytes of a blob"):
            try:
                return verify_content(key, bytes(obstore.get(self._store, path).bytes()))
            except FileNotFoundError:
                return None

    def delete(self, key: str, as_of: float | None = None) -> bool:
        """See `Blobs`; costs four requests."""
        path = blob_path(key)
        mark = path + _REMOVING
        before = (time.time() if as_of is None else as_of) - self.grace_s
        with _asked("to remove a blob"):
            try:
                self._write(mark, b"", mode="create")
            except AlreadyExistsError:  # somebody else is about it
                return False
            put_at = self._put_at(path)
            is_old = put_at is not None and put_at < before
            if is_old:
                self._remove(path)
            self._remove(mark)
        return is_old

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            obstore.delete(self._store, path)

    def entries(self) -> Iterator[BlobEntry]:
        """See `Blobs`."""
        now = time.time()
        with _asked("for a list of its blobs"):
            for chunk in obstore.list(self._store, chunk_size=1000):
                for found in chunk:
                    path, put_at = found["path"], found["last_modified"].timestamp()
                    key = key_from_path(path)
                    if key is not None:
                        yield BlobEntry(key, found["size"], put_at)
                    elif path.endswith(_REMOVING) and now - put_at > _REMOVAL_S:
                        self._remove(path)

    def presigned_url(self, key: str, seconds: float) -> str:
        """See `Blobs`; the credentials must be such that can sign."""
        path = blob_path(key)
        with _asked("to sign a URL"):
            url: str = obstore.sign(self._store, "GET", path, timedelta(seconds=seconds))
            return url


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


@contextmanager
def _asked(what: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        _log.warning("the object store was asked %s: %s", what, _line(error))
        raise NotReadyError(
            f"expected the object store to answer when asked {what}, got {type(error).__name__}"
        ) from error
