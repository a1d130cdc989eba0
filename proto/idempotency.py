"""The header `Idempotency-Key`, over gRPC metadata of that name: a request that is sent again under its key is stored once.

A key counts for one caller, and for one request: with another body, path or model it is refused. The answer of a repeated
request is computed again, so that nobody gets the answer of another caller.

Source: IETF, draft-ietf-httpapi-idempotency-key-header; a reused key answers 409 here, as every wrong request has 400 and
its like, and never 422.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from blake3 import blake3

from quadriga.proto.access import Caller
from quadriga.proto.errors import InvalidRequest
from quadriga.quoting import quoted

HEADER = b"idempotency-key"
_METADATA_NAME = HEADER.decode()
MAX_KEY_BYTES = 255
DIGEST_BYTES = 16

_KEY = re.compile(rb"[!-~]{1,%d}" % MAX_KEY_BYTES)
_HEADERS_OF_BODY = (
    b"content-type",
    b"content-encoding",
    b"inference-header-content-length",
    b"chariot-inference-parameters",
)


class RequestPart(msgspec.Struct, frozen=True):
    """What is stored together of a request with a key."""

    prefix: bytes
    fingerprint: bytes

    def name(self, position: int) -> bytes:
        """Return the name of the inference at a position: 16 bytes, the same on every server."""
        return blake3(self.prefix + position.to_bytes(4, "big")).digest(DIGEST_BYTES)


class RepeatableRequest(msgspec.Struct):
    """A request with a key, while it is answered once.

    A request may be stored in several parts, as when crops of its image go to a second model; they have the same numbers
    each time.
    """

    name: bytes
    """Digest of the caller and the key."""
    fingerprint: bytes
    """Digest of what was sent."""
    parts: int = 0
    """Parts that are stored."""

    def next_part(self) -> RequestPart:
        """Return the next part that is stored."""
        self.parts += 1
        return RequestPart(self.name + self.parts.to_bytes(4, "big"), self.fingerprint)


def repeatable(
    key: bytes,
    caller: Caller,
    *,
    path: tuple[str, Mapping[str, Any]],
    headers: Mapping[bytes, bytes],
    body: bytes,
    query: bytes = b"",
) -> RepeatableRequest:
    """Return the claim of a request with a key.

    Args:
        key: Value of the header.
        caller: Sender of the request.
        path: Path of the operation, and the parameters in it.
        headers: Headers of the request, by names in lower case.
        body: Body as it was sent.
        query: Query of the URL.

    Raises:
        InvalidRequest: The key is empty, too long, or has other characters than visible ASCII.
    """
    if not _KEY.fullmatch(key):
        raise InvalidRequest(
            f"expected Idempotency-Key to be 1 to {MAX_KEY_BYTES} visible ASCII characters, got "
            f"{quoted(key.decode('latin-1'), 60)}"
        )
    owner = [caller.team, caller.key_id or caller.name]
    name = _digest(*(part.encode() for part in owner), key)
    template, parameters = path
    values = [f"{part}={value}" for part, value in sorted(parameters.items())]
    texts = [text.encode(errors="surrogatepass") for text in (template, *values)]
    described = [headers.get(header, b"") for header in _HEADERS_OF_BODY]
    if described[0].startswith(b"multipart/"):  # a form that is written again has another boundary
        described[0], _, boundary = described[0].partition(b"boundary=")
        body = body.replace(boundary.partition(b";")[0].strip(b'" '), b"")
    # last and only if there is one: keys of 0.2.0 have no query
    sent = [*texts, *described, body, *([query] if query else ())]
    return RepeatableRequest(name, _digest(*sent))


def key_of_call(metadata: Iterable[tuple[str, str | bytes]] | None) -> bytes | None:
    """Return the key in the metadata of a gRPC call; None if there is none."""
    for name, value in metadata or ():
        if name == _METADATA_NAME:
            return value.encode() if isinstance(value, str) else value
    return None


def repeatable_message(key: bytes, caller: Caller, request: Any) -> RepeatableRequest:
    """Return the claim of a request over gRPC with a key; see `repeatable`.

    A client that writes its message again may write the same parameters in another order, so they are ordered first.
    """
    body = request.SerializeToString(deterministic=True)
    return repeatable(key, caller, path=("ModelInfer", {}), headers={}, body=body)


def _digest(*parts: bytes) -> bytes:
    digest = blake3()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest(DIGEST_BYTES)
