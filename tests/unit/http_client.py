"""Routes as their clients see them, without a server."""

import json
from collections.abc import Sequence
from typing import Any

from litestar import Litestar, Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.testing import TestClient

from quadriga.proto.errors import InvalidRequest
from quadriga.store.errors import StoreError


def client_of(handlers: Sequence[HTTPRouteHandler]) -> TestClient[Litestar]:
    """A client of these routes; what they refuse is answered as JSON."""
    refused = {StoreError: _answer_error, InvalidRequest: _answer_error}
    return TestClient(Litestar(handlers, exception_handlers=refused))


def call(client: TestClient[Litestar], method: str, path: str, body: Any = b"") -> tuple[int, Any]:
    """Send JSON, or bytes as they are, below `/api`; gives status and JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.request(method, f"/api/{path}", content=content)
    return response.status_code, response.json()


def _answer_error(_: Request[Any, Any, Any], error: Any) -> Response[dict[str, str]]:
    return Response({"error": str(error)}, status_code=error.status)
