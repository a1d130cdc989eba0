"""JSON of requests, parsed as a type or refused with the reason."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import pybase64

from quadriga.proto.errors import InvalidRequest
from quadriga.quoting import quoted

Read = TypeVar("Read")


def parse_json(text: bytes | str, subject: str, type_: type[Read], location: str = "") -> Read:
    """Parse JSON as a type of JSON objects; any JSON if `type_` is `object`.

    The message of an InvalidRequest begins with `location` and names the `subject` that should be JSON.
    """
    try:
        return msgspec.json.decode(text, type=type_)
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
        return pybase64.b64decode("".join(value["b64"].split()), validate=True)
    except ValueError as error:
        raise InvalidRequest(f"Unable to base64 decode: {error}") from error
