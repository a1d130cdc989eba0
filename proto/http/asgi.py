"""HTTP over raw ASGI as far as the hot routes need it: bodies, responses, errors, compression.

Source: RFC 9110, sections 8.4.1 and 12.5.3: gzip, and deflate, which is zlib.
"""

import logging
import zlib
from collections.abc import Callable, Iterable
from http import HTTPStatus

import msgspec
from litestar.types import Receive, Scope, Send

from quadriga.proto.errors import (
    InvalidRequest,
    LimitReached,
    MethodNotAllowed,
    ProtocolError,
    TooLarge,
    UnsupportedMediaType,
    translate_recursion_error,
)
from quadriga.proto.request import REQUEST_ID_HEADER, error_request_id, log_fields
from quadriga.quoting import quoted

_log = logging.getLogger("quadriga.http")

Headers = Iterable[tuple[bytes, bytes]]

_GZIP, _ZLIB = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS
_WINDOWS = {b"gzip": _GZIP, b"x-gzip": _GZIP, b"deflate": _ZLIB}

MIN_BYTES = 1024
"""Minimum body to compress, in bytes: shorter ones fit a packet as they are."""

_STEP_BYTES = 1024 * 1024
"""Bytes that are decompressed at a time."""

_LEVEL = 1
"""Fastest level of zlib: clients that accept compression by default would pay for each further level."""

MAX_CODINGS = 32
"""Maximum codings of an `Accept-Encoding` that are read: browsers and libraries send at most six."""


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """Read a request's complete body, whatever its Content-Type.

    Raises:
        TooLarge: The declared or the actual size exceeds the limit.
        InvalidRequest: The client disconnected before the end.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit_bytes:
            raise TooLarge(f"expected a body of at most {limit_bytes} bytes, got {int(value)}")
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest(f"expected the whole body, got {size} bytes before the end")
        if message["type"] != "http.request":
            continue
        chunk = message["body"]
        size += len(chunk)
        if size > limit_bytes:
            raise TooLarge(f"expected a body of at most {limit_bytes} bytes, got more")
        chunks.append(chunk)
        if not message["more_body"]:
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


DISCONNECT_EXTENSION = "quadriga.disconnect"
"""Extension of a scope: sets the function that is called if the client leaves before its answer, or None."""

BODY_EXTENSION = "quadriga.body"
"""Extension of a scope: returns the body if all of it has arrived and none was received, else None."""

ANSWER_EXTENSION = "quadriga.answer"
"""Extension of a scope: writes a complete answer of status, headers with its length, and body; returns whether it could,
as it cannot where the answer has to wait or to end the connection. One call costs 0.03 ms less than two messages."""

ABORT_EXTENSION = "quadriga.abort"
"""Extension of a scope: closes the connection at once, whatever its client has not read yet."""


CALLER_EXTENSION = "quadriga.caller"
"""Extension of a scope: there if the request came with a key, token or session that counts."""


class WholeAnswer(msgspec.Struct, frozen=True):
    """A complete response."""

    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]]
    """All headers, with the type and length of the body."""


def whole_answer(
    status: int, body: bytes, headers: Headers = (), media_type: bytes = b"application/json"
) -> WholeAnswer:
    """Make a complete response."""
    length = (b"content-length", b"%d" % len(body))
    return WholeAnswer(status, body, [(b"content-type", media_type), length, *headers])


async def send_body(
    send: Send,
    status: int,
    body: bytes,
    headers: Headers = (),
    media_type: bytes = b"application/json",
) -> None:
    """Send a complete response."""
    await send_answer(send, whole_answer(status, body, headers, media_type))


async def send_answer(send: Send, answer: WholeAnswer) -> None:
    """Send a complete response."""
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": list(answer.headers),
        }
    )
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


def error_body(message: str, *, is_journaled: bool = False) -> bytes:
    """Encode an error message as the JSON body that all errors share; `journaled` says that the change will be applied."""
    return msgspec.json.encode({"error": message} | ({"journaled": True} if is_journaled else {}))


def log_fault(error: Exception, request_id: str) -> bool:
    """Log an error of which the client does not get all; return whether it gets nothing of it.

    Errors other than `ProtocolError` count if they have a `status`, as those of the store do; anything else, and the
    status 500, is a fault of the server, which is not described to the client. Of the others the client does not get
    the `detail`.
    """
    status = getattr(error, "status", None)
    if status is None or (status == 500 and not isinstance(error, ProtocolError)):
        text = "request %s failed by a fault of the server"
        _log.error(text, request_id, exc_info=error, extra={"fields": log_fields(request_id)})
        return True
    text = str(error)
    if detail := getattr(error, "detail", ""):
        text = f"{text} ({detail})"
    if detail or status == 500:
        extra = {"fields": log_fields(request_id)}
        _log.warning("request %s was answered %d: %s", request_id, status, text, extra=extra)
    return False


def error_response(
    error: Exception, request_id: str = ""
) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    """Return status, body and headers of the response to an exception, and log it as `log_fault` does.

    Args:
        error: Any exception.
        request_id: The id under which it is logged, which the client gets in `X-Request-ID`; empty for a new one.
    """
    error = translate_recursion_error(error)
    request_id = request_id or error_request_id(None)
    headers = [(REQUEST_ID_HEADER, request_id.encode())]
    if log_fault(error, request_id):
        phrase = HTTPStatus.INTERNAL_SERVER_ERROR
        return phrase, error_body(f"{phrase.phrase}: the server's log has the reason"), headers
    status: int = getattr(error, "status", 500)
    is_journaled = getattr(error, "is_journaled", False)
    if is_journaled:  # not to be sent again
        headers.append((b"quadriga-stored", b"journal"))
    elif status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        headers.append((b"retry-after", b"%d" % getattr(error, "retry_after_s", 1)))
    if isinstance(error, LimitReached):
        headers += error.headers
    if getattr(error, "closes", False):
        headers.append((b"connection", b"close"))
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, UnsupportedMediaType):
        headers.append((b"accept-encoding", b"gzip, deflate"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    return status, error_body(str(error), is_journaled=is_journaled), headers


def _hold_any(_: int) -> None:
    pass


def decompress(
    body: bytes, encoding: bytes, limit_bytes: int, hold: Callable[[int], None] = _hold_any
) -> bytes:
    """Decompress a body with the given `Content-Encoding`; raises as `read_body`.

    Args:
        body: Body as it was received.
        encoding: Value of the header.
        limit_bytes: Maximum bytes of the result.
        hold: Is told of bytes before they are taken; negative, of those that were not needed. It may raise.
    """
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return body
    if name not in _WINDOWS:
        raise UnsupportedMediaType(
            f"expected Content-Encoding to be gzip, deflate or identity, got {quoted(encoding, 40)}"
        )
    decoder = zlib.decompressobj(_WINDOWS[name])
    parts: list[bytes] = []
    size = 0
    is_read = True
    for begin in range(0, len(body), _STEP_BYTES):
        piece, is_full = body[begin : begin + _STEP_BYTES], False
        while (piece or is_full) and not decoder.eof:
            step_bytes = min(_STEP_BYTES, limit_bytes + 1 - size)
            hold(step_bytes)
            try:
                part = decoder.decompress(piece, step_bytes)
            except zlib.error as error:
                raise InvalidRequest(f"expected a body in {name.decode()}, got: {error}") from error
            hold(len(part) - step_bytes)
            parts.append(part)
            size += len(part)
            if size > limit_bytes:
                text = f"expected a body of at most {limit_bytes} bytes decompressed, got more"
                raise TooLarge(text)
            piece, is_full = decoder.unconsumed_tail, len(part) == step_bytes
        if decoder.eof:
            is_read = begin + _STEP_BYTES >= len(body) and not decoder.unused_data
            break
    if not decoder.eof or not is_read:
        problem = "bytes behind its end" if decoder.eof else "one without its end"
        raise InvalidRequest(f"expected a whole body in {name.decode()}, got {problem}")
    return b"".join(parts)


def compress(body: bytes, accept_encoding: bytes) -> tuple[bytes, Headers]:
    """Compress a body as `Accept-Encoding` allows; return it with the headers that say so."""
    if len(body) < MIN_BYTES:
        return body, ()
    quality = coding_qualities(accept_encoding)
    encoding = max((b"gzip", b"deflate"), key=lambda name: quality.get(name, 0.0))
    if quality.get(encoding, 0.0) <= 0:
        return body, ()
    encoder = zlib.compressobj(_LEVEL, wbits=_WINDOWS[encoding])
    compressed = encoder.compress(body) + encoder.flush()
    return compressed, [(b"content-encoding", encoding), (b"vary", b"accept-encoding")]


def coding_qualities(accept_encoding: bytes) -> dict[bytes, float]:
    """Read the first `MAX_CODINGS` codings of an `Accept-Encoding` with their weights; malformed ones are left out.

    It is split at commas and read once, as a client could make a regular expression try each division of many spaces.
    """
    qualities = {}
    for element in accept_encoding.split(b",", MAX_CODINGS)[:MAX_CODINGS]:
        name, semicolon, parameter = element.partition(b";")
        key, _, weight = parameter.partition(b"=")
        if not semicolon:
            weight = b"1"
        elif key.strip().lower() != b"q":
            continue
        if _is_decimal(weight := weight.strip()):
            qualities[name.strip().lower()] = float(weight)
    return qualities


def _is_decimal(text: bytes) -> bool:
    """Whether a text is digits with at most one point behind the first, unlike the other forms that `float` reads."""
    digits, _, fraction = text.partition(b".")
    return digits.isdigit() and (not fraction or fraction.isdigit())
