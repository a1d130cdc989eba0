"""Heads of answers that are written without ASGI."""

from collections.abc import Sequence
from http import HTTPStatus

from quadriga.proto.http.asgi import REQUEST_ID_HEADER, error_body, error_request_id

_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}
_REFUSAL = (
    b"%bx-request-id: %b\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%b"
)


def encode_refusal(
    status: int, text: str, sent: Sequence[tuple[bytes, bytes]] | None, headers: bytes = b""
) -> bytes:
    """Encode an error that ends its connection before any application sees the request.

    Args:
        status: The HTTP status.
        text: The message.
        sent: Headers of the request as far as they are known, in small letters, whose `X-Request-ID` is answered; None
            where there are none, and a new one is.
        headers: Further headers of the answer, each with its end of line.
    """
    request_id = error_request_id(dict(sent or ()).get(REQUEST_ID_HEADER)).encode()
    body = error_body(text)
    return _REFUSAL % (_STATUS_LINES[status], request_id, headers, len(body), body)
