"""Heads of answers that are written without ASGI."""

import re
from collections.abc import Iterable
from http import HTTPStatus

_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}
_NO_TEXT = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Bytes that end a header, or are none of its text."""


def encode_head(status: int, headers: Iterable[tuple[bytes, bytes]], *, keep_alive: bool) -> bytes:
    """Encode status line and headers.

    Raises:
        ValueError: A header has an end of line in it, or another character that it may not have.
    """
    lines = []
    for name, value in headers:
        line = b"%b: %b" % (name, value)
        if _NO_TEXT.search(line):
            raise ValueError(f"expected a header in one line of text, got {line!r:.200}")
        lines.append(line)
    if not keep_alive and b"connection: close" not in lines:
        lines.append(b"connection: close")
    return b"%b%b\r\n\r\n" % (_STATUS_LINES[status], b"\r\n".join(lines))


def closes(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Check whether an answer ends its connection."""
    return any(name == b"connection" and value == b"close" for name, value in headers)
