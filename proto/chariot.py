"""chariot-v2-kserve: what it adds to the V2 envelope, where the model's task says that it is spoken.

Images come base64-encoded in BYTES inputs, predictions go out as JSON in `data`, one list per image.

Source: Chariot, Inference Protocols ("Requests", "Custom Metadata") and Inference Store ("Metadata").
"""

import contextlib
import math
import re
from collections.abc import Mapping
from typing import Any

from quadriga.proto.errors import InvalidRequest
from quadriga.proto.json_text import read_json

METADATA_TYPES = ("str", "float", "int", "dict")

_GATEWAY_PREFIX = re.compile(r"/api/serve/serve-model-[^/]+-pred(?=/|$)")
_NUMBERS = {
    "int": re.compile(r"[+-]?[0-9]{1,19}"),
    "float": re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"),
}


def without_gateway_prefix(path: str) -> str:
    """Drop the prefix under which Chariot's gateway publishes a model.

    `/api/serve/serve-model-<id>-pred/v2/models/m-<id>/infer/` becomes `/v2/models/m-<id>/infer/`.
    """
    match = _GATEWAY_PREFIX.match(path)
    return path[match.end() :] or "/" if match else path


def metadata_of(parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Read the metadata that came with an input, in any of its forms, as plain nested JSON.

    The value is a JSON text or the JSON itself: a list of `{"key", "type", "value"}`, an object with
    such a list as `extended_metadata`, or a plain object. `standard_metadata` belongs to the server
    and is not read.
    """
    return read_metadata(parameters.get("metadata"), f"{where}: parameters.metadata")


def read_metadata(value: Any, where: str) -> dict[str, Any]:
    """Read metadata in any of its forms; see `metadata_of`."""
    if isinstance(value, str):
        value = read_json(value, "a text", object, f"{where}: ")
    if value is None:
        return {}
    if isinstance(value, dict) and ("extended_metadata" in value or "standard_metadata" in value):
        where, value = f"{where}.extended_metadata", value.get("extended_metadata") or []
        if isinstance(value, dict):
            value = [value]
        if not isinstance(value, list):
            raise InvalidRequest(f"{where}: expected a list of entries, got {type(value).__name__}")
    if isinstance(value, list):
        return _from_entries(value, where)
    if isinstance(value, dict):
        return value
    raise InvalidRequest(
        f"{where}: expected an object or a list of entries, got {type(value).__name__}"
    )


def _from_entries(entries: list[Any], where: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for number, entry in enumerate(entries):
        here = f"{where}[{number}]"
        if not isinstance(entry, dict) or not {"key", "type", "value"} <= entry.keys():
            raise InvalidRequest(
                f"{here}: expected an object with key, type and value, got {entry!r:.80}"
            )
        key = entry["key"]
        if not isinstance(key, str) or not key:
            raise InvalidRequest(f"{here}: expected key to be a text, got {key!r:.80}")
        if key in metadata:
            raise InvalidRequest(f"{here}: expected each key once, got {key!r} twice")
        metadata[key] = _typed(entry["type"], entry["value"], f"{here} ({key!r})")
    return metadata


def _typed(kind: Any, value: Any, where: str) -> Any:
    """Read one value as its declared type; values are texts on the wire, JSON's own are taken too."""
    if kind not in METADATA_TYPES:
        raise InvalidRequest(
            f"{where}: expected type to be one of {', '.join(METADATA_TYPES)}, got {kind!r:.40}"
        )
    parsed: Any = value
    if kind == "dict" and isinstance(value, str):
        with contextlib.suppress(InvalidRequest):
            parsed = read_json(value, "a text", object)
    elif kind in _NUMBERS and isinstance(value, str) and _NUMBERS[kind].fullmatch(value.strip()):
        parsed = int(value) if kind == "int" else float(value)
    elif kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        parsed = float(value)
    wanted = {"str": str, "float": float, "int": int, "dict": dict}[kind]
    if not isinstance(parsed, wanted) or isinstance(parsed, bool):
        raise InvalidRequest(f"{where}: expected a value that parses as {kind}, got {value!r:.80}")
    if isinstance(parsed, float) and not math.isfinite(parsed):
        raise InvalidRequest(f"{where}: expected a finite float, got {value!r:.80}")
    return parsed
