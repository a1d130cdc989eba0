"""URLs that serve an image to anybody for a limited time: signed by the object store or by this server."""

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


class BlobUrls:
    """Signs URLs of blobs and verifies signed ones.

    Args:
        blobs: The blobs.
        key_file: File of the key that this server signs with; created if missing, readable by its owner alone.
        seconds: Seconds for which a URL is valid.
    """

    def __init__(self, blobs: Blobs, key_file: Path, seconds: float = PRESIGN_S) -> None:
        self._blobs = blobs
        self._key_file = key_file
        self._seconds = seconds

    def sign(self, key: str, mime: str, blobs_url: str, *, inference_id: str = "") -> str:
        """Return a signed URL of a blob, which need not exist.

        Args:
            key: Key of the blob.
            mime: Media type that the URL answers with.
            blobs_url: URL under which this server serves blobs, with a slash at its end.
            inference_id: The inference whose input the blob is, which the URL then names.

        Raises:
            NotReadyError: The object store cannot sign, or the key cannot be created.
        """
        url = self._blobs.presigned_url(key, self._seconds)
        if url is not None:
            return url
        digest, expires = key.partition(":")[2], str(int(time.time() + self._seconds))
        named = {"inference": inference_id} if inference_id else {}
        signature = self._signature(digest, expires, mime, *named.values())
        parameters = {"expires": expires, "type": mime, **named, "signature": signature}
        return f"{blobs_url}{digest}?{urlencode(parameters)}"

    def verify(
        self, digest: str, expires: str, mime: str, signature: str, *, inference_id: str = ""
    ) -> bytes:
        """Return the blob that the parts of a signed URL name; without an inference, of one that an earlier release signed.

        Raises:
            QueryError: It was not signed here, or it has expired.
            NotFoundError: The blob was removed.
        """
        expected = self._signature(digest, expires, mime, *([inference_id] if inference_id else []))
        if not hmac.compare_digest(expected.encode(), signature.encode(errors="replace")):
            raise QueryError("the signature of the URL is not one of this server")
        if time.time() > int(expires):
            raise QueryError(f"the URL has expired: it was valid until {expires}")
        data = self._blobs.get(f"blake3:{digest}")
        if data is None:
            raise NotFoundError(f"blob not found: {digest} was removed")
        return data

    def _signature(self, *parts: str) -> str:
        return hmac.new(self._secret, repr(parts).encode(), hashlib.sha256).hexdigest()

    @cached_property
    def _secret(self) -> bytes:
        try:
            return create_once(self._key_file, secrets.token_hex(32).encode(), 0o600)
        except OSError as error:
            raise NotReadyError(
                f"cannot create the key to sign URLs with, {self._key_file.name}: {error.strerror}"
            ) from error
