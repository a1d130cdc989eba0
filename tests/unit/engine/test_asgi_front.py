"""Requests at the front: their ids and traces, how they are counted, and the places of a key."""

import asyncio
import json
from contextlib import asynccontextmanager

import numpy as np
import pytest

from quadriga.engine.access import quotas
from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.model_counts import REQUEST, SUM
from quadriga.engine.measures.shared_counts import IN_FLIGHT, REQUESTS, outcomes_of
from quadriga.engine.serving.request_queue import SAMPLES
from quadriga.proto.http.asgi import BODY_EXTENSION
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key
from tests.onnx_models import doubling

PATH = "/v2/models/doubling/infer"
TENSOR = {"name": "x", "shape": [1, 3], "datatype": "FP32"}
JSON = json.dumps({"id": "a", "inputs": [{**TENSOR, "data": [1.0, 2.0, 3.5]}]}).encode()


def binary(rows=1, **parameters):
    data = np.arange(3 * rows, dtype=np.float32).tobytes()
    tensor = {**TENSOR, "shape": [rows, 3], "parameters": {"binary_data_size": len(data)}}
    body = {"id": "b", "inputs": [tensor], "parameters": {"binary_data_output": True, **parameters}}
    text = json.dumps(body).encode()
    return text + data, {"inference-header-content-length": str(len(text))}


def scope_of(path=PATH, body=JSON, **headers):
    every = {"host": "localhost", "content-length": str(len(body)), **headers}
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "scheme": "http",
        "client": ("127.0.0.1", 1),
        "headers": [
            (name.replace("_", "-").encode(), value.encode()) for name, value in every.items()
        ],
        "extensions": {},
    }


async def with_task(application, scope, body):
    """Return status, headers and body of the long way's answer."""
    messages = []

    async def send(message):
        messages.append(message)

    scope["extensions"][BODY_EXTENSION] = lambda: body
    await application.asgi(scope, asyncio.Event().wait, send)
    return messages[0]["status"], messages[0]["headers"], messages[1]["body"]


@asynccontextmanager
async def warm_application(folder, **settings):
    """Serve a model that is known to be cheap."""
    doubling(folder / "models" / "doubling" / "model.onnx")
    paths = {"models": str(folder / "models"), "data": str(folder / "data")}
    application = Application(Settings(**paths, **settings))
    application.repository.load_all()
    if application._store is not None:
        application._store.assign_number(lambda: None)
    try:
        for _ in range(SAMPLES):
            await with_task(application, scope_of(), JSON)
        yield application
    finally:
        application.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("front")


TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("headers", "request_id", "traceparent"),
    [
        ({"x-request-id": "own-1"}, "own-1", None),
        ({"x-request-id": "a b"}, None, None),
        ({"x-request-id": "a" * 200}, None, None),
        ({"x-request-id": "a\r\nset-cookie: b"}, None, None),
        ({}, None, None),
        ({"traceparent": TRACEPARENT}, None, TRACEPARENT),
        ({"traceparent": TRACEPARENT[:-1]}, None, None),
        ({"ce-traceparent": TRACEPARENT}, None, TRACEPARENT),
    ],
)
async def test_an_answer_names_its_request_and_its_trace(folder, headers, request_id, traceparent):
    body = json.dumps({"inputs": [{**TENSOR, "data": [1.0, 2.0, 3.5]}]}).encode()
    async with warm_application(folder, insecure=True, store=False) as application:
        scope = scope_of(body=body, **headers)
        status, sent, content = await with_task(application, scope, body)
        values = [value.decode() for name, value in sent if name == b"x-request-id"]
        assert (status, values) == (200, [json.loads(content)["id"]])
        assert values == [request_id] if request_id else len(values[0]) == 36
        assert dict(sent).get(b"traceparent", b"").decode() == (traceparent or "")


async def test_a_request_counts_once(folder):
    def counted():
        rows = {row.name: row for row in application._numbers._counts.totals()}
        return {
            (protocol, outcome): count
            for protocol in ("v2", "v1", "none")
            for outcome, count in outcomes_of(rows[REQUESTS, protocol]).items()
            if count
        }

    async with warm_application(folder, insecure=True, store=False) as application:
        begun = counted()[("v2", "success")]
        await with_task(application, scope_of(), JSON)
        await with_task(application, scope_of(), b"{")
        await with_task(application, scope_of("/no/such/path"), JSON)
        await with_task(application, scope_of("/v2/models/absent/infer"), JSON)
        assert counted() == {
            ("v2", "success"): begun + 1,
            ("v2", "client_error"): 2,
            ("none", "client_error"): 1,
        }
        durations = {
            row.name[3:]: sum(row.cells[:SUM])
            for row in application._numbers._counts.totals()
            if row.name[:3] == (REQUEST, "doubling", "1")
        }
        assert durations["success", "v2"] == begun + 1


@pytest.mark.parametrize("limits", ["", "requests=100/second"])
async def test_a_key_is_needed_and_counts_each_request_once(tmp_path, limits):
    settings = Settings(data=str(tmp_path / "data"))
    migrate(settings.database_url)
    with writer_engine(settings.database_url) as engine:
        _, secret = create_key(engine, name="caller", roles=["infer"], limits=limits)
    async with warm_application(tmp_path) as application:
        application._keys.refresh()
        assert (await with_task(application, scope_of(), JSON))[0] == 401
        allowed = {"authorization": f"Bearer {secret}"}
        for _ in range(2 * SAMPLES):
            assert (await with_task(application, scope_of(**allowed), JSON))[0] == 200
        ((_, _, cells),) = application._keys.quotas.uses()
        assert cells[quotas.REQUESTS] == 2 * SAMPLES
        assert cells[IN_FLIGHT] == 0


@pytest.mark.parametrize(("rows", "second"), [(1, 200), (30_000, 429)])
async def test_who_has_a_small_answer_may_ask_again_at_once(tmp_path, rows, second):
    """The client has the answer once it is sent, which may be before the sending is over here."""
    settings = Settings(data=str(tmp_path / "data"))
    migrate(settings.database_url)
    with writer_engine(settings.database_url) as engine:
        _, secret = create_key(engine, name="caller", roles=["infer"], limits="concurrency=1")
    allowed = {"authorization": f"Bearer {secret}"}
    async with warm_application(tmp_path) as application:
        application._keys.refresh()
        body, headers = binary(rows)
        statuses = []

        async def send(message):
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            else:
                statuses.append((await with_task(application, scope_of(**allowed), JSON))[0])

        scope = scope_of(body=body, **headers, **allowed)
        scope["extensions"][BODY_EXTENSION] = lambda: body
        await application.asgi(scope, asyncio.Event().wait, send)
        assert statuses == [200, second]
        assert (await with_task(application, scope_of(**allowed), JSON))[0] == 200
        ((_, _, cells),) = application._keys.quotas.uses()
        assert cells[IN_FLIGHT] == 0
