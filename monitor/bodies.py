"""Bodies of requests as the OpenAPI document describes them: by the Structs that they are read as."""

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody

from store.routes import Error

TOO_LARGE = ResponseSpec(Error, False, "The body is larger than the server takes")
UNKEPT = ResponseSpec(Error, False, "That could not be kept, as on a full disk")

_MOMENT = "RFC 3339, now, or as -24h"
_SAID = {"where": "A filter, as JSON or in the compact form", "from": _MOMENT, "to": _MOMENT}


def body_of(kind: type[msgspec.Struct], *hidden: str, **said: str) -> type[Operation]:
    """Return the operation whose body is such a Struct as JSON, read from its bytes.

    Args:
        kind: The Struct.
        hidden: Fields that no request may have.
        said: What is said of fields, by their names.
    """
    _, parts = msgspec.json.schema_components([kind], ref_template="{name}")
    schema: Any = _inlined(parts[kind.__name__], parts, _SAID | said)
    for name in hidden:
        del schema["properties"][name]

    @dataclass
    class WithBody(Operation):
        def __post_init__(self) -> None:
            content = {"application/json": OpenAPIMediaType(schema=schema)}
            self.request_body = RequestBody(content=content, required=True)

    return WithBody


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
    if made.get("anyOf", [None])[-1] == {"type": "null"}:
        one = made.pop("anyOf")[0]
        made |= one | {"type": [one["type"], "null"]}
    for name, of in schema.get("properties", {}).items():
        made["properties"][name] = _inlined(of, parts, said)
        if name in said:
            made["properties"][name]["description"] = said[name]
    return made
