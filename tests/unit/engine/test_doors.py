"""Each door of the server with the key of each role: made from the tables of operations, routes and RPCs themselves."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from litestar import get

from quadriga.engine.api.access import check_needs
from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.proto.access import ROLES, Need, Role
from quadriga.proto.grpc.messages import POOL, REPOSITORY_SERVICE, SERVICE
from quadriga.proto.grpc.service import HEALTH_SERVICE, NEEDS, REFLECTION_SERVICE
from quadriga.proto.http.operations import WireOptions, all_operations, expand_path
from quadriga.proto.request import is_audited
from quadriga.store.audit.entries import AuditEntry
from quadriga.store.audit.reading import read_page
from quadriga.store.database.database import migrate
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.asgi_request import send_request
from tests.unit.engine.console_harness import keyed_server

Door = tuple[str, str, Need]
BAD_KEYS = {"none": "", "wrong": "quadriga-0123456789ab.abc", "no key": "hello"}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[tuple[Application, dict[str, str]]]:
    """Yield a server that has loaded no model, and a key of each role."""
    data = tmp_path_factory.mktemp("doors") / "data"
    settings = Settings(
        models=str(SAMPLE_MODELS),
        data=str(data),
        model_control=False,
        extras={
            "sign_on": {
                "issuer": "https://login.invalid",
                "client_id": "quadriga",
                "roles": "groups:ops=operate",
            }
        },
    )
    migrate(settings.database_url)
    with keyed_server(settings) as keyed:
        yield keyed


def doors(application: Application) -> list[Door]:
    """Return verb, path and need of every operation and every route."""
    operations = all_operations(application.pipeline, WireOptions(server_version=""))
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


def marked_routes(application: Application) -> set[tuple[str, str]]:
    """Return verb and path of the routes that declare `audited`."""
    routes: Any = application.asgi._routes
    return {
        (method, filled(route.path))
        for route in routes.routes
        for handler in route.route_handlers
        for method in handler.http_methods
        if "audited" in handler.opt
    }


def audit_lines(application: Application) -> list[AuditEntry]:
    """Return what stands in the audit log, the newest first, with what is summed so far."""
    assert application._audit_log is not None
    application._audit_log.write_sums(ended_only=False)
    return read_page(Path(application._settings.data) / "audit", limit=1000).entries


def filled(path: str) -> str:
    """Put a text for each parameter of a path."""
    return re.sub(r"\{[^}]*\}", "x", path)


def ask(application: Application, method: str, path: str, key: str) -> tuple[int, Any]:
    """Send a request with a body of `{}`; return status and body."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    response = send_request(application, method, path, headers, body=b"{}")
    return response.status, response.body


def test_the_doors_are_all_there(server):
    listed = {(method, path) for method, path, _ in doors(server[0])}
    assert {("POST", "/v2/models/x/infer"), ("POST", "/v1/models/x:predict")} <= listed
    assert {("POST", "/api/inferences/delete"), ("GET", "/metrics")} <= listed
    assert {("GET", "/schema/openapi.json"), ("GET", "/console/callback")} <= listed
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


NOT_AUDITED = {
    "/api/inferences/query", "/api/inferences/count", "/api/inferences/aggregate",
    "/api/inferences/facets", "/api/inferences/label-queue", "/api/inferences/disagreements", "/api/inferences/comparison",
    "/v2/repository/index", "/v2/repositories/x/index", "/console/logout", "/console/login",
}  # fmt: skip
"""Paths of POST besides inference that change nothing and take away no more than a page; log-in and log-out write lines of their own."""

AUDITED_READS = {
    "/api/inferences.arrow",
    "/api/inferences.parquet",
    "/api/jobs/x/result",
    "/api/audit",
    "/console/audit",
    "/console/keys",
}
"""Paths of GET that take away much, or show what administrators alone see."""


def test_every_door_is_audited_or_known_to_change_nothing(server):
    application, _ = server
    marked = marked_routes(application)
    for method, path, need in doors(application):
        if is_audited(need, method, is_marked=(method, path) in marked):
            assert method != "GET" or path in AUDITED_READS, path
        elif method not in ("GET", "OPTIONS") and path not in NOT_AUDITED:
            of_models = path.startswith(
                ("/v1/", "/v2/", "/models/", "/api/models/", "/label-studio/")
            )
            assert need in {"infer", "key"}, (method, path, need)
            known = path in ("/", "/api/cloudevents") or "infer" in path or "predict" in path
            assert of_models or known, (method, path)
    tables = {"GET /api/inferences.arrow", "GET /api/inferences.parquet"}
    jobs = {"POST /api/exports", "GET /api/jobs/x/result", "POST /api/inferences/bulk"}
    jobs |= {"POST /console/inferences/export"}
    assert tables | jobs == {
        f"{method} {path}" for method, path in marked if method not in ("HEAD", "OPTIONS")
    }


def test_what_is_audited_is_in_the_log_with_its_key_whatever_the_answer(server):
    application, keys = server
    marked = marked_routes(application)
    key_id = keys["admin"].partition(".")[0].removeprefix("quadriga-")
    for method, path, need in doors(application):
        lines = len(audit_lines(application))
        status, _ = ask(application, method, path, keys["admin"])
        new_lines = audit_lines(application)[: -lines or None]
        if is_audited(need, method, is_marked=(method, path) in marked) or status in (401, 403):
            assert len(new_lines) == 1, (method, path, new_lines)
            (line,) = new_lines
            assert (line.action, line.status) == (f"{method} {path}", status)
            assert (line.key_id, line.name, line.address) == (key_id, "admin", "127.0.0.1")
            assert len(line.request_id) == 36
        else:
            assert not new_lines, (method, path, new_lines)


def test_every_refusal_is_in_the_log_and_equal_ones_are_summed(server):
    application, keys = server
    audit_lines(application)
    before = sum(line.times for line in audit_lines(application))
    refused = 0
    for method, path, _ in doors(application):
        for key in ("", keys["infer"]):
            refused += ask(application, method, path, key)[0] in (401, 403)
    lines = audit_lines(application)
    assert refused > 150
    assert sum(line.times for line in lines) - before >= refused
    assert len([line for line in lines if line.status == 401]) <= 4
    assert not any(key.partition(".")[2] in repr(lines) for key in keys.values())


def test_nothing_is_changed_while_the_log_cannot_be_written(server, caplog):
    application, keys = server
    assert application._audit_log is not None
    folder = Path(application._settings.data) / "audit"
    folder.mkdir(exist_ok=True)  # as no line may have been written yet
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("in the way")
    try:
        ask(application, "POST", "/api/inferences/delete", keys["admin"])  # the first is lost
        for method, path in (
            ("POST", "/api/inferences/delete"),
            ("POST", "/v2/repository/models/x/load"),
            ("POST", "/api/exports"),
            ("GET", "/api/jobs/x/result"),
        ):
            status, body = ask(application, method, path, keys["admin"])
            assert status == 503, (path, body)
            assert b"the audit log cannot be written" in body
            assert str(folder).encode() not in body
        assert ask(application, "POST", "/api/inferences/delete", "")[0] == 401
        assert ask(application, "GET", "/api/jobs", keys["admin"])[0] == 200
        assert ask(application, "POST", "/v2/models/x/infer", keys["admin"])[0] not in (503, 401)
        assert (
            b"quadriga_audit_failing 1.0" in ask(application, "GET", "/metrics", keys["admin"])[1]
        )
    finally:
        folder.unlink()
        folder.with_name("elsewhere").rename(folder)
    assert ask(application, "POST", "/api/inferences/delete", keys["admin"])[0] == 400
    assert "resumed" in {line.status for line in audit_lines(application)}
    assert caplog.text.count("cannot write the audit log") == 1


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
