"""URLs that answer an image for a while, to anybody: the object store's own, or signed ones of this server."""

import hashlib
import hmac
import secrets
import time
from functools import cached_property
from pathlib import Path
from urllib.parse import urlencode

from quadriga.store.blobs.interface import Blobs
from quadriga.store.disk import create_once
from quadriga.store.errors import NotFoundError, NotReadyError, QueryError

PRESIGN_S = 3600.0
PATH = "/api/blobs/"


class BlobUrls:
    """Signs URLs of blobs, good for so many seconds, and reads signed ones.

    What this server signs with stands in `key_file`, made where it is missing, readable by its
    owner alone.
    """

    def __init__(self, blobs: Blobs, key_file: Path, seconds: float = PRESIGN_S) -> None:
        self._blobs = blobs
        self._key_file = key_file
        self._seconds = seconds

    def sign(self, key: str, mime: str, server: str) -> str:
        """Return a URL of a blob, there or not, of a media type; the server is `https://host`.

        A NotReadyError where the object store cannot sign, or no key can be made.
        """
        url = self._blobs.presigned_url(key, self._seconds)
        if url is not None:
            return url
        digest, expires = key.partition(":")[2], str(int(time.time() + self._seconds))
        signature = self._signature(digest, expires, mime)
        asked = {"expires": expires, "type": mime, "signature": signature}
        return f"{server.rstrip('/')}{PATH}{digest}?{urlencode(asked)}"

    def verify(self, digest: str, expires: str, mime: str, signature: str) -> bytes:
        """Return the bytes that a URL of this server names.

        Raises:
            QueryError: It was not signed here, or its time is over.
            NotFoundError: The blob is gone.
        """
        signed = self._signature(digest, expires, mime)
        if not hmac.compare_digest(signed.encode(), signature.encode(errors="replace")):
            raise QueryError("expected a URL as this server signed it, got another signature")
        if time.time() > int(expires):
            raise QueryError(f"expected a URL that is still good, got one until {expires}")
        data = self._blobs.get(f"blake3:{digest}")
        if data is None:
            raise NotFoundError(f"expected {digest} to be a blob, got one removed since")
        return data

    def _signature(self, *signed: str) -> str:
        return hmac.new(self._secret, repr(signed).encode(), hashlib.sha256).hexdigest()

    @cached_property
    def _secret(self) -> bytes:
        try:
            return create_once(self._key_file, secrets.token_hex(32).encode(), 0o600)
        except OSError as error:
            raise NotReadyError(
                f"expected a key to sign URLs with at {self._key_file.name}, got: {error.strerror}"
            ) from error
