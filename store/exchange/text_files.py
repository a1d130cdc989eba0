"""Text of people's files, as UTF-8 whichever Unicode encoding it was written in, and JSON lines.

Source: JSON lines (https://jsonlines.org); RFC 8259, section 8.1, on byte order marks.
"""

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from functools import cache
from io import BytesIO
from json import detect_encoding
from typing import Any, BinaryIO

import msgspec

from quadriga.store.records.errors import JSON_ERRORS, QueryError

_decoder = cache(msgspec.json.Decoder)


def to_utf8(text: bytes, name: str) -> bytes:
    """Return text in UTF-8 without a byte order mark, from UTF-8, UTF-16 or UTF-32.

    Raises:
        QueryError: The text begins as UTF-16 or UTF-32, and does not go on so; the message begins with the file's name.
    """
    encoding = detect_encoding(text[:4])
    if encoding.startswith("utf-8"):
        return text.removeprefix(BOM_UTF8)
    try:
        return text.decode(encoding).encode()
    except UnicodeError as error:
        raise QueryError(f"{name}: expected text in UTF-8, got: {error}") from error


def utf8_lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the lines of a file in UTF-8; one in UTF-16 or UTF-32 is read whole. Errors as of `to_utf8`."""
    first = file.readline()
    if not detect_encoding(first[:4]).startswith("utf-8"):
        yield from BytesIO(to_utf8(first + file.read(), name))
    elif first:
        yield first.removeprefix(BOM_UTF8)
        yield from file


def json_lines(lines: Iterable[bytes], name: str, type_: Any) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line that is not empty.

    Raises:
        QueryError: A line is not JSON of the type; the message begins with the file's name and the line's number.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            advice = "; write one JSON object in each line"
            yield number, decode_json(type_, line, f"{name}:{number}", advice)


def decode_json(type_: Any, text: bytes, location: str, advice: str = "") -> Any:
    """Decode JSON as a type, in any encoding of `to_utf8`.

    Raises:
        QueryError: It is none; the message begins with `location`, and ends with `advice` if the text is not JSON.
    """
    try:
        return _decoder(type_).decode(text)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        description = message.replace("Object missing required field ", "expected a field ")
        description = f"{description[:1].lower()}{description[1:]}"
        raise QueryError(f"{location}{path.rstrip('`')}: {description}") from error
    except JSON_ERRORS as error:
        if (other := to_utf8(bytes(text), location)) != text:
            return decode_json(type_, other, location, advice)
        advice = advice if type(error) is msgspec.DecodeError else ""
        raise QueryError(f"{location}: expected JSON, got: {error}{advice}") from error


def decode_as(type_: Any, text: bytes, expected: str) -> Any:
    """Decode JSON in UTF-8 as a type; the message of a `QueryError` says what was expected, and the decoder's reason."""
    try:
        return _decoder(type_).decode(text)
    except JSON_ERRORS as error:
        raise QueryError(f"{expected}, got: {error}") from error
