"""An application with a console, and requests to it as browsers send them."""

from typing import NamedTuple

from quadriga.engine.app import Application
from tests.unit.engine.asgi_request import send_request


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
    sent = {"accept": "text/html,*/*", "sec-fetch-site": "same-origin", **(headers or {})}
    response = send_request(application, method, path, sent, body=body)
    return Answer(
        response.status,
        dict(response.headers),
        [value for name, value in response.headers if name == "set-cookie"],
        response.body.decode(),
    )
