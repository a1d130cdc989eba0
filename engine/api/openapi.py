"""The OpenAPI document: bodies, queries and responses of routes, and the protocols' endpoints beside them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import MediaType, Request
from litestar.openapi import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import (
    OpenAPIMediaType,
    Operation,
    Parameter,
    Reference,
    RequestBody,
    Schema,
)
from litestar.openapi.spec.enums import OpenAPIType

from quadriga.proto.http.openapi import Error, add_keys, add_operations
from quadriga.proto.http.operations import Operation as Endpoint
from quadriga.proto.http.operations import expand_path
from quadriga.store.query.filters.chariot_form import ChariotFilter


def error_response(description: str) -> ResponseSpec:
    """Return the documentation of an error response."""
    return ResponseSpec(Error, False, description)


TOO_LARGE = error_response("The body is larger than the server takes")
NOT_STORED = error_response(
    "It could not be stored, for example because the disk is full or too many jobs wait"
)
NOT_READY = error_response(
    "The store is not ready, did not respond in time, or has too many requests waiting"
)
UNKNOWN_MODEL = error_response("No such model is served or has stored inferences")
UNREADABLE_QUERY = error_response("The id or the query cannot be understood")
FIND_ERRORS = {400: UNREADABLE_QUERY, 404: UNKNOWN_MODEL, 503: NOT_READY}
"""Errors of routes whose URL has a query."""
QUERY_ERRORS = {400: UNREADABLE_QUERY, 404: UNKNOWN_MODEL, 413: TOO_LARGE, 503: NOT_READY}
"""Errors of routes whose body is a query."""
BULK_CHANGE_ERRORS = {
    400: error_response("The id or the change cannot be understood"),
    413: TOO_LARGE,
    503: error_response("The store cannot keep the change, or has not applied it yet"),
}
CHANGE_ERRORS = BULK_CHANGE_ERRORS | {404: error_response("No such inference")}


def body_errors(unreadable: ResponseSpec) -> dict[int, ResponseSpec]:
    """Return the errors of a route that stores what its body describes; `unreadable` is of a body that cannot be understood."""
    return {400: unreadable, 404: UNKNOWN_MODEL, 413: TOO_LARGE, 503: NOT_STORED}


_MOMENT = "RFC 3339, now, or relative such as -24h"
_DESCRIPTIONS = {
    "where": "A filter, as JSON or in the compact form",
    "from": _MOMENT,
    "to": _MOMENT,
    "metadata_filter": "Chariot's filters",
    "gps_box": "Chariot's GPSBox",
    "time_range": "Chariot's TimeRange",
    "webhook": "URL that is called when the job has ended, as alerts are sent; needs the right to monitor",
}
"""Descriptions of the fields that many bodies share."""


def json_body(struct: type[msgspec.Struct], *hidden: str, **descriptions: str) -> type[Operation]:
    """Return the operation whose body is JSON of a Struct, for a handler that takes the raw bytes.

    Args:
        struct: The Struct.
        hidden: Fields that a request must not have.
        descriptions: Descriptions of fields, by name.
    """
    schema = body_schema(struct, *hidden, **descriptions)
    content = {"application/json": OpenAPIMediaType(schema=schema)}
    return _operation(request_body=RequestBody(content=content, required=True))


def _operation(**described: Any) -> type[Operation]:
    """Return the operation with what the signature of its function does not describe."""

    @dataclass
    class Described(Operation):
        def __post_init__(self) -> None:
            vars(self).update(described)

    return Described


def body_schema(struct: type[msgspec.Struct], *hidden: str, **descriptions: str) -> Any:
    """Return the JSON schema of a Struct, without references; arguments as of `json_body`.

    If it has a filter in `where`, a request may have Chariot's filters beside it.
    """
    types = [struct, ChariotFilter]
    _, components = msgspec.json.schema_components(types, ref_template="{name}")
    schema = components[struct.__name__]
    properties = schema["properties"]
    if "where" in properties:
        properties |= components[ChariotFilter.__name__]["properties"]
    schema["properties"] = {
        name: property_ for name, property_ in properties.items() if name not in hidden
    }
    schema["required"] = [name for name in schema["required"] if name not in hidden]
    return _inlined(schema, components, _DESCRIPTIONS | descriptions)


def _inlined(schema: Any, components: dict[str, Any], descriptions: dict[str, str]) -> Any:
    """Return a schema with its references replaced by their targets, without titles and empty values."""
    if isinstance(schema, list):
        return [_inlined(item, components, descriptions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(components[schema["$ref"]], components, descriptions)
    dropped = {"title", "description"}
    result = {
        key: _inlined(value, components, descriptions)
        for key, value in schema.items()
        if key not in dropped and value not in (None, [], {})
    }
    match result.get("anyOf"):
        case [{"type": type_, **keywords}, {"type": "null"}]:
            del result["anyOf"]
            result |= keywords | {"type": [type_, "null"]}
    for name, property_ in schema.get("properties", {}).items():
        result["properties"][name] = _inlined(property_, components, descriptions)
        if name in descriptions:
            result["properties"][name]["description"] = descriptions[name]
    return result


def url_query(
    struct: type[msgspec.Struct],
    names: Iterable[str] | None = None,
    *,
    path: str | None = None,
    **descriptions: str,
) -> type[Operation]:
    """Return the operation whose query is a Struct, with `q` for its filter; any other name is a field with its comparison.

    Args:
        struct: The Struct.
        names: Fields that are in the query before `q`; None for `q` and all others.
        path: Name of a parameter of the path.
        descriptions: Descriptions of fields, by name.
    """
    properties = body_schema(struct, **descriptions)["properties"]
    where = {"q": properties["where"]}
    if names is None:
        others = (name for name in struct.__struct_fields__ if name != "where")
        schemas = where | {name: properties[name] for name in others}
    else:
        schemas = {name: properties[name] for name in names} | where
    text = Schema(type=OpenAPIType.STRING)
    parameters: list[Parameter | Reference] = [
        *([] if path is None else [Parameter(path, param_in="path", required=True, schema=text)]),
        *(Parameter(name, param_in="query", schema=schema) for name, schema in schemas.items()),
    ]
    return _operation(parameters=parameters)


BLOBS_PATH = "/api/blobs/"
"""Path of signed URLs; the hash of the image follows."""


class OpenApiDocument(JsonRenderPlugin):
    """Renders the document at `/openapi.json`.

    Args:
        operations: Endpoints of the protocols.
    """

    def __init__(self, operations: Sequence[Endpoint]) -> None:
        super().__init__(path="/openapi.json", media_type=MediaType.JSON)
        self._operations = operations
        self._open_paths = {
            path
            for operation in operations
            if operation.need == "nothing"
            for path in expand_path(operation.path)
        } | {BLOBS_PATH + "{digest}"}

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Write the document."""
        document = add_operations(openapi_schema, self._operations)
        return super().render(request, add_keys(document, self._open_paths))
