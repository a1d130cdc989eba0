"""Requests to an application without sockets."""

import asyncio
from typing import Any, NamedTuple
from urllib.parse import unquote

from quadriga.engine.assembly.app import Application


class Response(NamedTuple):
    """An answer as the application sends it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def send_request(
    application: Application, method: str, path: str, headers: dict[str, str], *, body: bytes
) -> Response:
    """Send a request to this machine; the headers beside its host and the length of its body are given."""
    messages: list[Any] = []
    bodies = [{"type": "http.request", "body": body, "more_body": False}]
    every = {"host": "localhost", "content-length": str(len(body)), **headers}
    path, _, query = path.partition("?")
    scope: Any = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in every.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
        "state": {},
        "extensions": {},
    }

    async def receive() -> Any:
        if bodies:
            return bodies.pop()
        return await asyncio.Future()  # the client stays

    async def send(message: Any) -> None:
        messages.append(message)

    async def run() -> None:
        await asyncio.create_task(application.asgi(scope, receive, send))  # a context of its own

    asyncio.run(run())
    sent = [(name.decode(), value.decode()) for name, value in messages[0]["headers"]]
    content = b"".join(m.get("body", b"") for m in messages if m["type"] == "http.response.body")
    return Response(messages[0]["status"], sent, content)
