"""OpenAPI document of the protocols' endpoints."""

import re
from collections.abc import Container, Iterable
from typing import Any

import msgspec

from quadriga.proto.http.operations import Operation, expand_path

_REFERENCE = "#/components/schemas/{name}"


class Error(msgspec.Struct):
    """Body of every error."""

    error: str


def add_operations(document: dict[str, Any], operations: Iterable[Operation]) -> dict[str, Any]:
    """Return an OpenAPI 3.1 document of other paths with operations added; the given one is not changed."""
    paths: dict[str, Any] = dict(document.get("paths", {}))
    operations = [operation for operation in operations if operation.summary]
    types: dict[Any, None] = {Error: None}
    for operation in operations:
        types.update(dict.fromkeys(filter(None, (operation.request_type, operation.response_type))))
    schemas, schema_components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(types, schemas, strict=True))
    for operation in operations:
        for path in expand_path(operation.path):
            item = paths.setdefault(path, {})
            item.setdefault(operation.method.lower(), _described(operation, path, by_type))
    components = document.get("components", {})
    merged = {**components, "schemas": {**components.get("schemas", {}), **schema_components}}
    return {**document, "paths": paths, "components": merged}


_REFUSALS = {
    "401": "The request needs a key, and has no valid one",
    "403": "The key has not this right, or the request comes from the page of another origin",
    "429": "The key has used up one of its limits, for Retry-After seconds",
}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def add_keys(document: dict[str, Any], open_paths: Container[str]) -> dict[str, Any]:
    """Return a document in which every operation names the keys that it accepts, and how it refuses a request.

    Args:
        document: The whole document, which is not changed.
        open_paths: Paths that need no key.
    """
    error = {"application/json": {"schema": {"$ref": _REFERENCE.format(name="Error")}}}
    refusals = {
        status: {"description": text, "content": error} for status, text in _REFUSALS.items()
    }
    paths = {}
    for path, item in document["paths"].items():
        security: list[dict[str, list[str]]] = [{name: []} for name in _KEYS]
        refused = refusals
        if path in open_paths:
            security, refused = [], {"403": refusals["403"]}
        paths[path] = {
            verb: operation | {"security": security, "responses": operation["responses"] | refused}
            for verb, operation in item.items()
        }
    components = {**document["components"], "securitySchemes": _KEYS}
    return {**document, "paths": paths, "components": components}


_ERRORS = {
    "400": "The request is invalid, or the server or model asked about is not ready",
    "404": "No such model or version",
    "413": "The body is larger than the server takes",
    "501": "A part of the protocol that the server does not offer",
    "503": "The model or the server is not ready, or too many requests wait",
}
"""Descriptions of the statuses of errors."""

_OF_BODIES = ("413", "501")
"""Statuses of operations that take a body."""

_OCTETS = "application/octet-stream"
_JSON_BYTES: dict[str, Any] = {
    "description": "Length of the JSON where the bytes of tensors follow it; 0 for none but bytes",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
}
_IMAGE_PARAMETERS: list[dict[str, Any]] = [
    {
        "name": "chariot-inference-parameters",
        "in": "header",
        "description": "Parameters of an image that is the body, as a JSON object",
        "required": False,
        "schema": {"type": "string"},
    },
    {
        "name": "parameters",
        "in": "query",
        "description": "Parameters of an image that is the body, such as score_threshold=0.8",
        "required": False,
        "explode": True,
        "schema": {"type": "object", "additionalProperties": True},
    },
]
_IMAGE_BODIES: dict[str, Any] = {
    "image/*": {},
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {"image": {"type": "string", "format": "binary"}},
            "required": ["image"],
        }
    },
}


def _described(operation: Operation, path: str, schemas: dict[Any, Any]) -> dict[str, Any]:
    content = {"schema": schemas.get(operation.response_type, {})}
    response_content: dict[str, Any] = {operation.response_media_type: content}
    success: dict[str, Any] = {"description": "Done", "content": response_content}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    if operation.allows_binary:
        name = "Inference-Header-Content-Length"
        response_content[_OCTETS] = {}
        success["headers"] = {name: _JSON_BYTES}
        parameters.append({"name": name, "in": "header", **_JSON_BYTES})
    if operation.allows_image:
        parameters += _IMAGE_PARAMETERS
    error = {"application/json": {"schema": schemas[Error]}}
    description: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": re.sub(r"\W+", "_", f"{operation.method.lower()}{path}").strip("_"),
        "parameters": parameters,
        "responses": {
            "200": success,
            **{
                status: {"description": text, "content": error}
                for status, text in _ERRORS.items()
                if operation.method == "POST" or status not in _OF_BODIES
            },
        },
    }
    if operation.method == "POST":
        description["requestBody"] = _body(operation, schemas)
    return description


def _body(operation: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    """Describe the body, which is read as JSON whatever its Content-Type, unless that is described, too."""
    if operation.request_type is None:
        return {"content": {_OCTETS: {}}}
    content: dict[str, Any] = {"application/json": {"schema": schemas[operation.request_type]}}
    if operation.allows_binary:
        content[_OCTETS] = {}  # may be empty: the bytes of a tensor without elements
    if operation.allows_image:
        content |= _IMAGE_BODIES
    return {"required": not operation.allows_binary, "content": content}
