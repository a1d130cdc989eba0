"""An application with a console, and requests to it as browsers send them."""

import asyncio
from typing import Any, NamedTuple
from urllib.parse import unquote

from quadriga.engine.app import Application


class Answer(NamedTuple):
    """Answer of a page."""

    status: int
    headers: dict[str, str]
    cookies: list[str]
    text: str


def open_page(
    application: Application,
    path: str,
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: bytes = b"",
) -> Answer:
    """Send a request of a browser for a page of this server."""
    messages: list[Any] = []
    bodies = [{"type": "http.request", "body": body, "more_body": False}]
    sent = {
        "host": "localhost",
        "accept": "text/html,*/*",
        "sec-fetch-site": "same-origin",
        "content-length": str(len(body)),
        **(headers or {}),
    }
    path, _, query = path.partition("?")
    scope: Any = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
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
    pairs = [(name.decode(), value.decode()) for name, value in messages[0]["headers"]]
    content = b"".join(m.get("body", b"") for m in messages if m["type"] == "http.response.body")
    return Answer(
        messages[0]["status"],
        dict(pairs),
        [value for name, value in pairs if name == "set-cookie"],
        content.decode(),
    )
