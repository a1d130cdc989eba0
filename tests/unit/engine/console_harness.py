"""An application with a console, and requests to it as browsers send them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, get_args

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.proto.access import Role
from quadriga.store.database.database import writer_engine
from quadriga.store.keys.access_keys import create_key
from tests.unit.engine.asgi_request import send_request


class Answer(NamedTuple):
    """Answer of a page."""

    status: int
    headers: dict[str, str]
    cookies: list[str]
    text: str


@contextmanager
def keyed_server(
    settings: Settings, **further: dict[str, Any]
) -> Iterator[tuple[Application, dict[str, str]]]:
    """Yield a server on a store that is there, and its keys: one of each role, and further ones by name."""
    with writer_engine(settings.database_url) as engine:
        keys = {role: create_key(engine, name=role, roles=[role])[1] for role in get_args(Role)}
        for name, fields in further.items():
            keys[name] = create_key(engine, name=name, **fields)[1]
    server = Application(settings)
    assert server._keys is not None
    server._keys.refresh()
    yield server, keys
    server.close()


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
