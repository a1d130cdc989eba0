"""JSON of requests, parsed as a type or refused with the reason."""

import codecs
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import pybase64

from quadriga.proto.errors import InvalidRequest, TooLarge
from quadriga.quoting import quoted

Read = TypeVar("Read")

MAX_AMOUNT = 8_000_000
"""Maximum numbers in JSON; a text counts as three of them, and a list or an object as eight."""

_LIST_AMOUNT = 8
"""What a list or an object counts: in Python it takes ten times the memory of a number, and as much more time."""


def amount(text: bytes | str) -> int:
    """Return about how much there is in JSON, in numbers; see `MAX_AMOUNT`. Text of a few bytes for each is not counted."""
    if len(text) <= MAX_AMOUNT // _LIST_AMOUNT:
        return 0
    if isinstance(text, str):
        text = text.encode(errors="replace")
    lists = text.count(b"[") + text.count(b"{")
    return text.count(b",") + text.count(b'"') + _LIST_AMOUNT * lists


def check_amount(text: bytes | str) -> None:
    """Refuse JSON that would take seconds and gigabytes to parse, in which nothing else runs.

    Raises:
        TooLarge: It has more than `MAX_AMOUNT`.
    """
    if (count := amount(text)) > MAX_AMOUNT:
        raise TooLarge(
            f"expected at most {MAX_AMOUNT} numbers in JSON (a text counts as 3, a list as {_LIST_AMOUNT}), got about "
            f"{count}: send tensors as binary data"
        )


def without_mark(text: Any) -> Any:
    """Return JSON without a byte order mark, which PowerShell and Excel write. Source: RFC 8259, section 8.1."""
    if isinstance(text, str):
        return text.removeprefix("\ufeff")
    return text.removeprefix(codecs.BOM_UTF8) if isinstance(text, bytes) else text


def parse_json(text: bytes | str, subject: str, type_: type[Read], location: str = "") -> Read:
    """Parse JSON as a type of JSON objects; any JSON if `type_` is `object`.

    The message of an InvalidRequest begins with `location` and names the `subject` that should be JSON.

    Raises:
        InvalidRequest: It is not.
        TooLarge: As `check_amount`.
    """
    check_amount(text)
    try:
        return msgspec.json.decode(without_mark(text), type=type_)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"{location}expected {subject} to be a JSON object: {error}"
        ) from error
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequest(f"{location}expected {subject} in JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest(f"{location}expected {subject} in JSON, nested less deeply") from error


def parse_object(text: bytes | str, subject: str) -> dict[str, Any]:
    """Parse a JSON object; raises as `parse_json`."""
    return parse_json(text, subject, dict[str, Any])


def take_parameters(holder: Mapping[str, Any], location: str = "") -> dict[str, Any]:
    """Return the member `parameters` of an object in a request; an error's message begins with `location`."""
    parameters = holder.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest(
            f"{location}expected parameters to be an object, got {quoted(parameters, 60)}"
        )
    return parameters or {}


def is_base64(value: Any) -> bool:
    """Check whether a value is `{"b64": "<text>"}`, the form of bytes."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def base64_bytes(value: Mapping[str, str]) -> bytes:
    """Decode `{"b64": "<text>"}`."""
    try:
        return decode_base64(value["b64"])
    except ValueError as error:
        raise InvalidRequest(f"Unable to base64 decode: {error}") from error


def decode_base64(text: str) -> bytes:
    """Decode base64, which may have line breaks or be a data URL; raises ValueError.

    Source: RFC 2397, the "data" URL scheme.
    """
    if text.startswith("data:"):
        _, _, text = text.partition(",")
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError:  # a space within a line is a "+" that a form has lost
        lines = [line.strip() for line in text.splitlines()]
        if lines == [text]:
            raise
        return pybase64.b64decode("".join(lines), validate=True)
