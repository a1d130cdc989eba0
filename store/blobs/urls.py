"""Temporary public URLs of images: presigned by the object store, or signed by this server."""

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
    """Signs URLs of blobs that are valid for `seconds`, and verifies them.

    The secret of this server is in `key_file`, readable only by its owner, and created if missing.
    """

    def __init__(self, blobs: Blobs, key_file: Path, seconds: float = PRESIGN_S) -> None:
        self._blobs = blobs
        self._key_file = key_file
        self._seconds = seconds

    def sign(self, key: str, mime: str, server: str) -> str:
        """Return a URL of a blob, whether it exists or not; the server is `https://host`.

        Raises:
            NotReadyError: The object store cannot sign, or no secret can be created.
        """
        url = self._blobs.presigned_url(key, self._seconds)
        if url is not None:
            return url
        digest, expires = key.partition(":")[2], str(int(time.time() + self._seconds))
        signature = self._signature(digest, expires, mime)
        parameters = {"expires": expires, "type": mime, "signature": signature}
        return f"{server.rstrip('/')}{PATH}{digest}?{urlencode(parameters)}"

    def verify(self, digest: str, expires: str, mime: str, signature: str) -> bytes:
        """Return the bytes of the blob that a signed URL of this server names.

        Raises:
            QueryError: The signature is wrong, or the URL has expired.
            NotFoundError: The blob was removed.
        """
        signed = self._signature(digest, expires, mime)
        if not hmac.compare_digest(signed.encode(), signature.encode(errors="replace")):
            raise QueryError("the signature of the URL is not one of this server")
        if time.time() > int(expires):
            raise QueryError(f"the URL expired at {expires}, in seconds since 1970")
        data = self._blobs.get(f"blake3:{digest}")
        if data is None:
            raise NotFoundError(f"blob not found: {digest} was removed")
        return data

    def _signature(self, *signed: str) -> str:
        return hmac.new(self._secret, repr(signed).encode(), hashlib.sha256).hexdigest()

    @cached_property
    def _secret(self) -> bytes:
        try:
            return create_once(self._key_file, secrets.token_hex(32).encode(), 0o600)
        except OSError as error:
            raise NotReadyError(
                f"cannot create the secret that signs URLs, {self._key_file.name}: {error.strerror}"
            ) from error
