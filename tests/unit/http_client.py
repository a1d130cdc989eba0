"""Routes as their clients see them, without a server."""

import json
from collections.abc import Sequence
from typing import Any

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.testing import TestClient

from quadriga.engine.api.errors import EXCEPTION_HANDLERS


def client_of(handlers: Sequence[HTTPRouteHandler]) -> TestClient[Litestar]:
    """A client of these routes, whose errors are answered as a server answers them."""
    return TestClient(Litestar(handlers, exception_handlers=EXCEPTION_HANDLERS))


def call(client: TestClient[Litestar], method: str, path: str, body: Any = b"") -> tuple[int, Any]:
    """Send JSON, or bytes as they are, below `/api`; gives status and JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.request(method, f"/api/{path}", content=content)
    return response.status_code, response.json()
