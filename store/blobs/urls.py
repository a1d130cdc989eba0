"""URLs that serve an image to anybody for a limited time: signed by the object store or by this server."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from urllib.parse import urlencode

from quadriga.store.blobs.interface import KEY_PREFIX, Blobs
from quadriga.store.records.disk import create_once
from quadriga.store.records.errors import NotFoundError, NotReadyError, QueryError

PRESIGN_S = 3600.0


class BlobUrls:
    """Signs URLs of blobs and verifies signed ones.

    Args:
        blobs: The blobs.
        key_file: File of the key that this server signs with; created if missing, readable by its owner alone.
        seconds: Seconds for which a URL is valid.
        shared_secret: Text that servers behind one address have in common, from which the key is derived instead, so that
            each serves the URLs of the others; those that the key of the file signed stay valid. Empty for none.
    """

    def __init__(
        self, blobs: Blobs, key_file: Path, seconds: float = PRESIGN_S, *, shared_secret: str = ""
    ) -> None:
        self._blobs = blobs
        self._key_file = key_file
        self._seconds = seconds
        self._shared_key = (
            hmac.digest(shared_secret.encode(), b"quadriga signed URLs", hashlib.sha256)
            if shared_secret
            else b""
        )

    def sign(self, key: str, mime: str, blobs_url: str, *, inference_id: str) -> str:
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
        key_bytes = self._shared_key or self._own_key
        parameters = {"expires": expires, "type": mime, "inference": inference_id}
        parameters["signature"] = _signature(key_bytes, digest, *parameters.values())
        return f"{blobs_url}{digest}?{urlencode(parameters)}"

    def verify(
        self, digest: str, expires: str, mime: str, signature: str, *, inference_id: str
    ) -> bytes:
        """Return the blob that the parts of a signed URL name.

        Raises:
            QueryError: It was not signed here, or it has expired.
            NotFoundError: The blob was removed.
        """
        signed = (digest, expires, mime, inference_id)
        presented = signature.encode(errors="replace")
        if not any(
            hmac.compare_digest(_signature(key, *signed).encode(), presented)
            for key in self._accepted_keys()
        ):
            raise QueryError("the signature of the URL is not one of this server")
        if time.time() > int(expires):
            raise QueryError(f"the URL has expired: it was valid until {expires}")
        data = self._blobs.get(KEY_PREFIX + digest)
        if data is None:
            raise NotFoundError(f"blob not found: {digest} was removed")
        return data

    def _accepted_keys(self) -> Iterator[bytes]:
        if self._shared_key:
            yield self._shared_key
        if not self._shared_key or self._key_file.exists():
            yield self._own_key

    @cached_property
    def _own_key(self) -> bytes:
        try:
            return create_once(self._key_file, secrets.token_hex(32).encode(), 0o600)
        except OSError as error:
            raise NotReadyError(
                f"cannot create the key to sign URLs with, {self._key_file.name}: {error.strerror}"
            ) from error


def _signature(key: bytes, *parts: str) -> str:
    return hmac.new(key, repr(parts).encode(), hashlib.sha256).hexdigest()
