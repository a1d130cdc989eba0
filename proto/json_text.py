"""JSON of requests: read as a type, or refused with what is wrong in it."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from quadriga.proto.errors import InvalidRequest

Read = TypeVar("Read")


def parse_json(text: bytes | str, what: str, kind: type[Read], where: str = "") -> Read:
    """Read JSON as a type: of an object, or as it is where `kind` is `object`.

    The message of an error begins with `where` and says `what` should have been JSON.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{where}expected {what} to be a JSON object: {error}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequest(f"{where}expected {what} in JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest(f"{where}expected {what} in JSON, nested less deeply") from error


def parse_object(text: bytes | str, what: str) -> dict[str, Any]:
    """Read a JSON object; raises as `read_json`."""
    return parse_json(text, what, dict[str, Any])


def take_parameters(holder: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Take the parameters out of an object of a request; an error's message begins with `where`."""
    found = holder.get("parameters")
    if found is not None and not isinstance(found, dict):
        raise InvalidRequest(f"{where}expected parameters to be an object, got {found!r:.60}")
    return found or {}
