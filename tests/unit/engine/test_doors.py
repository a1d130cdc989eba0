"""Each door of the server with the key of each role: made from the tables of operations, routes and RPCs themselves."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from litestar import get

from quadriga.engine.api.access import check_needs
from quadriga.engine.app import Application
from quadriga.engine.settings import Settings
from quadriga.proto import table
from quadriga.proto.access import ROLES, Need, Role
from quadriga.proto.grpc_access import HEALTH_SERVICE, NEEDS, REFLECTION_SERVICE
from quadriga.proto.grpc_messages import POOL, REPOSITORY_SERVICE, SERVICE
from quadriga.proto.operations import WireOptions, expand_path
from quadriga.store.access_keys import create_key
from quadriga.store.database import migrate, writer_engine
from tests.server_process import SAMPLE_MODELS

Door = tuple[str, str, Need]
BAD_KEYS = {"none": "", "wrong": "quadriga-0123456789ab.abc", "no key": "hello"}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[tuple[Application, dict[str, str]]]:
    """Yield a server that has loaded no model, and a key of each role."""
    data = tmp_path_factory.mktemp("doors") / "data"
    settings = Settings(models=str(SAMPLE_MODELS), data=str(data), model_control=False)
    migrate(settings.database_url)
    with writer_engine(settings.database_url) as engine:
        keys = {role: create_key(engine, name=role, roles=[role])[1] for role in get_args(Role)}
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    yield application, keys
    application.close()


def doors(application: Application) -> list[Door]:
    """Return verb, path and need of every operation and every route."""
    operations = table.all_operations(application.pipeline, WireOptions(server_version=""))
    listed: list[Door] = [
        (operation.method, filled(path), operation.need)
        for operation in operations
        for path in expand_path(operation.path)
    ]
    routes: Any = application.asgi._routes
    for route in routes.routes:
        for handler in route.route_handlers:
            listed += [
                (method, filled(route.path), handler.opt["need"])
                for method in sorted(handler.http_methods)
                if method != "OPTIONS"
            ]
    return listed


def filled(path: str) -> str:
    """Put a text for each parameter of a path."""
    return re.sub(r"\{[^}]*\}", "x", path)


def ask(application: Application, method: str, path: str, key: str) -> tuple[int, Any]:
    """Send a request with a body of `{}`; return status and body."""
    messages: list[Any] = []
    bodies = [{"type": "http.request", "body": b"{}", "more_body": False}]
    headers = [(b"host", b"localhost"), (b"content-length", b"2")]
    headers += [(b"authorization", f"Bearer {key}".encode())] if key else []
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
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

    asyncio.run(application.asgi(scope, receive, send))
    body = b"".join(m.get("body", b"") for m in messages if m["type"] == "http.response.body")
    return messages[0]["status"], body


def test_the_doors_are_all_there(server):
    listed = {(method, path) for method, path, _ in doors(server[0])}
    assert {("POST", "/v2/models/x/infer"), ("POST", "/v1/models/x:predict")} <= listed
    assert {("POST", "/api/inferences/delete"), ("GET", "/metrics")} <= listed
    assert ("GET", "/schema/openapi.json") in listed
    assert len(listed) > 100


@pytest.mark.parametrize("bad", BAD_KEYS)
def test_without_a_key_only_open_doors_open(server, bad):
    application, _ = server
    for method, path, need in doors(application):
        status, body = ask(application, method, path, BAD_KEYS[bad])
        if need == "nothing":
            assert status not in (401, 403), (method, path)
        else:
            assert status == 401, (method, path, status)
            assert "key" in json.loads(body)["error"]


@pytest.mark.parametrize("role", get_args(Role))
def test_a_role_opens_what_its_rights_say(server, role):
    application, keys = server
    for method, path, need in doors(application):
        if role == "admin" and method != "GET":
            continue  # below: each of these changes something
        opens = need in ("nothing", "key") or need in ROLES[role]
        if opens and method != "GET":
            continue
        status, body = ask(application, method, path, keys[role])
        assert (status == 403) is not opens, (method, path, need, status)
        assert status != 401
        if not opens:
            assert f"got one for {', '.join(r for r in ROLES if r in ROLES[role])}" in str(body)


def test_what_changes_something_needs_more_than_to_read(server):
    for method, path, need in doors(server[0]):
        if method in ("PUT", "DELETE"):
            assert need in ("annotate", "monitor", "operate", "admin"), (method, path)
        if path.endswith(("/load", "/unload", "/delete")) and "{repository}" not in path:
            assert need in ("operate", "key"), (method, path)


def test_a_door_that_declares_nothing_is_not_added():
    @get("/new")
    async def forgotten() -> None: ...

    @get("/other", need="reed")
    async def mistyped() -> None: ...

    for handler in (forgotten, mistyped):
        with pytest.raises(ValueError, match=r"to declare a need"):
            check_needs([handler])


def test_every_rpc_declares_what_it_needs():
    services = [POOL.FindServiceByName(name) for name in (SERVICE, REPOSITORY_SERVICE)]
    services += [
        health_pb2.DESCRIPTOR.services_by_name["Health"],
        reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
    ]
    assert {service.full_name for service in services} == {
        SERVICE, REPOSITORY_SERVICE, HEALTH_SERVICE, REFLECTION_SERVICE,
    }  # fmt: skip
    methods = {f"/{s.full_name}/{method}" for s in services for method in s.methods_by_name}
    assert methods == set(NEEDS)
