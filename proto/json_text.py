"""JSON of requests: read as a type, or refused with what is wrong in it."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from quadriga.proto.errors import InvalidRequest

Read = TypeVar("Read")


def parse_json(text: bytes | str, subject: str, type_: type[Read], location: str = "") -> Read:
    """Read JSON as a type: of an object, or as it is where `kind` is `object`.

    The message of an error begins with `where` and says `what` should have been JSON.
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
    """Read a JSON object; raises as `read_json`."""
    return parse_json(text, subject, dict[str, Any])


def take_parameters(holder: Mapping[str, Any], location: str = "") -> dict[str, Any]:
    """Take the parameters out of an object of a request; an error's message begins with `where`."""
    parameters = holder.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest(
            f"{location}expected parameters to be an object, got {parameters!r:.60}"
        )
    return parameters or {}
