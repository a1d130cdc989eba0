"""Routes as their clients see them, without a server."""

import json
from collections.abc import Sequence
from typing import Any

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.testing import TestClient

from quadriga.engine.api.errors import EXCEPTION_HANDLERS
from quadriga.engine.api.routes import options_routes
from quadriga.engine.api.store_queries import StoreQueries
from quadriga.engine.api.stored.changes import change_routes, ground_truth_routes
from quadriga.engine.api.stored.inferences import browsing_routes, inference_routes
from quadriga.engine.api.stored.thumbnails import Thumbnails
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.store.changes.service import ChangeService
from quadriga.store.query.filters.forms import parse
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.names import ModelNames
from quadriga.store.records.scope import Scope


class NoStore:
    """No store: each name is that of a model, and each report is there, whoever asks."""

    names = ModelNames(tuple)

    def within(self, _: Scope) -> "NoStore":
        return self

    def check_where(self, where: Any) -> None:
        parse(where, 0)


def client_of(handlers: Sequence[HTTPRouteHandler]) -> TestClient[Litestar]:
    """A client of these routes, whose errors are answered as a server answers them."""
    return TestClient(
        Litestar([*options_routes(handlers), *handlers], exception_handlers=EXCEPTION_HANDLERS)
    )


def store_routes(
    inferences: InferenceReader | None, changes: ChangeService | None = None, threads: int = 4
) -> list[HTTPRouteHandler]:
    """Return the routes that read and change the store, with so many threads for each kind."""
    queries, changing = (BoundedThreads(kind, threads, 64, 30.0) for kind in ("queries", "changes"))
    searches, thumbnails = StoreQueries(inferences, queries), Thumbnails(inferences, 1_000_000)
    routes = [*browsing_routes(searches), *inference_routes(inferences, searches, thumbnails)]
    if changes is not None:
        routes += [
            *change_routes(changes, changing),
            *ground_truth_routes(changes, changing, 64 << 20),
        ]
    return routes


def call(client: TestClient[Litestar], method: str, path: str, body: Any = b"") -> tuple[int, Any]:
    """Send JSON, or bytes as they are, below `/api`; gives status and JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.request(method, f"/api/{path}", content=content)
    return response.status_code, response.json()
