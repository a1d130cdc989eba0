"""Bodies of requests as the OpenAPI document describes them: by the Structs that they are read as."""

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody

_MOMENT = "RFC 3339, now, or as -24h"
_SAID = {"where": "A filter, as JSON or in the compact form", "from": _MOMENT, "to": _MOMENT}


def body_of(kind: type[msgspec.Struct], *hidden: str, **said: str) -> type[Operation]:
    """Return the operation whose body is such a Struct as JSON, read from its bytes.

    Args:
        kind: The Struct.
        hidden: Fields that no request may have.
        said: What is said of fields, by their names.
    """
    schema = schema_of(kind, *hidden, **said)

    @dataclass
    class WithBody(Operation):
        def __post_init__(self) -> None:
            content = {"application/json": OpenAPIMediaType(schema=schema)}
            self.request_body = RequestBody(content=content, required=True)

    return WithBody


def schema_of(kind: type[msgspec.Struct], *hidden: str, **said: str) -> Any:
    """Return the schema of a Struct in one piece; arguments as of `body_of`."""
    _, parts = msgspec.json.schema_components([kind], ref_template="{name}")
    whole = parts[kind.__name__]
    whole["properties"] = {
        name: of for name, of in whole["properties"].items() if name not in hidden
    }
    whole["required"] = [name for name in whole["required"] if name not in hidden]
    return _inlined(whole, parts, _SAID | said)


def _inlined(schema: Any, parts: dict[str, Any], said: dict[str, str]) -> Any:
    """Return a schema with what it refers to in its place, without what goes without saying."""
    if isinstance(schema, list):
        return [_inlined(one, parts, said) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"]], parts, said)
    passed = {"title", "description"}
    made = {
        key: _inlined(value, parts, said)
        for key, value in schema.items()
        if key not in passed and value not in (None, [], {})
    }
    match made.get("anyOf"):
        case [{"type": one, **rest}, {"type": "null"}]:
            del made["anyOf"]
            made |= rest | {"type": [one, "null"]}
    for name, of in schema.get("properties", {}).items():
        made["properties"][name] = _inlined(of, parts, said)
        if name in said:
            made["properties"][name]["description"] = said[name]
    return made
