"""The endpoints of the protocols as an OpenAPI document."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from proto.operations import Operation, plain_paths

_REFERENCE = "#/components/schemas/{name}"


class Error(msgspec.Struct):
    """The one shape of every error."""

    error: str


def add_operations(document: dict[str, Any], operations: Iterable[Operation]) -> dict[str, Any]:
    """Add operations to a document that describes other paths.

    Args:
        document: An OpenAPI 3.1 document; it is not changed.
        operations: Of the protocols.
    """
    paths: dict[str, Any] = dict(document.get("paths", {}))
    operations = [operation for operation in operations if operation.summary]
    types: dict[Any, None] = {Error: None}
    for operation in operations:
        types.update(dict.fromkeys(filter(None, (operation.request_type, operation.answer_type))))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(types, schemas, strict=True))
    for operation in operations:
        for path in plain_paths(operation.path):
            item = paths.setdefault(path, {})
            item.setdefault(operation.method.lower(), _described(operation, path, by_type))
    known = document.get("components", {})
    merged = {**known, "schemas": {**known.get("schemas", {}), **components}}
    return {**document, "paths": paths, "components": merged}


def _described(operation: Operation, path: str, schemas: dict[Any, Any]) -> dict[str, Any]:
    answer = schemas.get(operation.answer_type, {})
    error = {"application/json": {"schema": schemas[Error]}}
    found: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": re.sub(r"\W+", "_", f"{operation.method.lower()}{path}").strip("_"),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"\{(\w+)\}", path)
        ],
        "responses": {
            "200": {
                "description": "Done",
                "content": {operation.answer_media_type: {"schema": answer}},
            },
            "4XX": {"description": "The request cannot be answered", "content": error},
            "503": {"description": "Not ready, or too many requests", "content": error},
        },
    }
    if operation.method == "POST":
        kind = "application/json" if operation.request_type else "application/octet-stream"
        schema = schemas.get(operation.request_type, {})
        found["requestBody"] = {"content": {kind: {"schema": schema}}}
    return found
