"""The OpenAPI document of the whole server: the routes, and the protocols' endpoints beside them."""

from collections.abc import Sequence
from typing import Any

from litestar import MediaType, Request
from litestar.openapi.plugins import JsonRenderPlugin

from quadriga.engine.api.inferences import BLOBS_PATH
from quadriga.proto.http.openapi import add_keys, add_operations
from quadriga.proto.http.operations import Operation, expand_path


class OpenApiDocument(JsonRenderPlugin):
    """Renders the document at `/openapi.json`.

    Args:
        operations: Endpoints of the protocols.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
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
