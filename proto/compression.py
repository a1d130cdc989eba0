"""Compressed bodies of requests and answers: gzip, and deflate, which HTTP means as zlib.

Source: RFC 9110, sections 8.4.1 and 12.5.3.
"""

import re
import zlib

from proto.errors import InvalidRequest, TooLarge
from proto.http import Headers

_GZIP, _ZLIB = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS
_WINDOWS = {b"gzip": _GZIP, b"x-gzip": _GZIP, b"deflate": _ZLIB}

MIN_BYTES = 1024
"""Shorter answers fit a packet as they are."""

_LEVEL = 1
"""The fastest: clients that ask for compression by habit would pay more with each further level."""

_CODING = re.compile(rb"\s*([\w*-]+)\s*(?:;\s*q\s*=\s*([0-9]+\.?[0-9]*)\s*)?(?:,|$)")


def decompress(body: bytes, encoding: bytes, limit_bytes: int) -> bytes:
    """Undo a request's `Content-Encoding`.

    Raises:
        InvalidRequest: The encoding is unknown, or the body damaged or incomplete.
        TooLarge: It grows past the limit.
    """
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return body
    if name not in _WINDOWS:
        raise InvalidRequest(
            f"expected Content-Encoding to be gzip, deflate or identity, got {encoding!r:.40}"
        )
    decoder = zlib.decompressobj(_WINDOWS[name])
    try:
        plain = decoder.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise InvalidRequest(f"expected a body in {name.decode()}, got: {error}") from error
    if len(plain) > limit_bytes:
        raise TooLarge(f"expected a body of at most {limit_bytes} bytes decompressed, got more")
    if not decoder.eof or decoder.unused_data:
        found = "bytes behind its end" if decoder.eof else "one without its end"
        raise InvalidRequest(f"expected a whole body in {name.decode()}, got {found}")
    return plain


def compress(body: bytes, accepted: bytes) -> tuple[bytes, Headers]:
    """Compress an answer as its client accepts it; also gives the headers that say so."""
    if len(body) < MIN_BYTES:
        return body, ()
    quality = {match[1].lower(): float(match[2] or 1) for match in _CODING.finditer(accepted)}
    wanted = max((b"gzip", b"deflate"), key=lambda name: quality.get(name, 0.0))
    if quality.get(wanted, 0.0) <= 0:
        return body, ()
    encoder = zlib.compressobj(_LEVEL, wbits=_WINDOWS[wanted])
    small = encoder.compress(body) + encoder.flush()
    return small, [(b"content-encoding", wanted), (b"vary", b"accept-encoding")]
