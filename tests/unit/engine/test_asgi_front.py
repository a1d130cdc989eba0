"""What the front answers without a task: the same as with one, and only what the long way has nothing to do with."""

import asyncio
import json
from contextlib import asynccontextmanager

import numpy as np
import pytest

from quadriga.engine.access import quotas
from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.model_counts import REQUEST, SUM
from quadriga.engine.measures.server_numbers import REQUESTS, outcomes_of
from quadriga.engine.measures.shared_counts import IN_FLIGHT
from quadriga.engine.models.runners.loop_runs import MAX_BODY_BYTES, SAMPLES
from quadriga.proto.http.asgi import BODY_EXTENSION
from quadriga.store.access_keys import create_key
from quadriga.store.database import migrate, writer_engine
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
    if application._ids is not None:
        application._ids.assign(lambda _: None)
    try:
        for _ in range(SAMPLES):
            await with_task(application, scope_of(), JSON)
        yield application
    finally:
        application.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("front")


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        (PATH, JSON, {}, 200),
        (f"{PATH}/", JSON, {}, 200),
        ("/v2/models/m-DOUBLING/versions/1/infer", JSON, {}, 200),
        (PATH, *binary(), 200),
        (PATH, *binary(rows=100), 200),
        (PATH, JSON, {"quadriga-timing": "false", "accept-encoding": "gzip"}, 200),
        ("/v1/models/doubling:predict", b'{"instances": [[1, 2, 3]]}', {}, 200),
        (PATH, b"{", {"x-request-id": "c"}, 400),
        (PATH, JSON.replace(b"FP32", b"FP16"), {"x-request-id": "c"}, 400),
        (PATH, *binary(timeout=-1), 400),
        (PATH, JSON, {"request-timeout": "-1", "x-request-id": "c"}, 400),
    ],
)
async def test_the_answer_is_the_same_as_with_a_task(folder, path, body, headers, status):
    async with warm_application(folder, insecure=True, store=False) as application:
        answer = application.asgi.answer_at_once(scope_of(path, body, **headers), body)
        assert answer is not None
        expected = await with_task(application, scope_of(path, body, **headers), body)
        assert answer.status == status == expected[0]
        assert answer.body == expected[2]
        own = {b"x-request-id"} if "x-request-id" not in headers else set()
        assert {header for header in answer.headers if header[0] not in own} == {
            header for header in expected[1] if header[0] not in own
        }


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
        at_once = application.asgi.answer_at_once(scope_of(body=body, **headers), body)
        answers = [await with_task(application, scope, body)]
        if at_once is not None:
            answers.append((at_once.status, at_once.headers, at_once.body))
        for status, sent, content in answers:
            values = [value.decode() for name, value in sent if name == b"x-request-id"]
            assert (status, values) == (200, [json.loads(content)["id"]])
            assert values == [request_id] if request_id else len(values[0]) == 36
            assert dict(sent).get(b"traceparent", b"").decode() == (traceparent or "")
        assert len({dict(sent)[b"x-request-id"] for _, sent, _ in answers}) == (
            1 if request_id else len(answers)
        )


async def test_a_request_counts_once_whichever_way_it_is_answered(folder):
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
        assert application.asgi.answer_at_once(scope_of(), JSON).status == 200
        assert application.asgi.answer_at_once(scope_of(), b"{").status == 400
        await with_task(application, scope_of(), JSON)
        await with_task(application, scope_of(), b"{")
        await with_task(application, scope_of("/no/such/path"), JSON)
        await with_task(application, scope_of("/v2/models/absent/infer"), JSON)
        assert application.asgi.answer_at_once(scope_of(cookie="a=b"), JSON) is None
        assert counted() == {
            ("v2", "success"): begun + 2,
            ("v2", "client_error"): 3,
            ("none", "client_error"): 1,
        }
        durations = {
            row.name[3:]: sum(row.cells[:SUM])
            for row in application._numbers._counts.totals()
            if row.name[:3] == (REQUEST, "doubling", "1")
        }
        assert durations["success", "v2"] == begun + 2


@pytest.mark.parametrize(
    ("scope", "body"),
    [
        pytest.param(scope_of(cookie="a=b"), JSON, id="session"),
        pytest.param(scope_of(origin="http://localhost"), JSON, id="page"),
        pytest.param(scope_of(sec_fetch_site="cross-site"), JSON, id="page of another site"),
        pytest.param(scope_of(content_encoding="gzip"), JSON, id="compressed"),
        pytest.param(scope_of(transfer_encoding="chunked"), JSON, id="chunked"),
        pytest.param(scope_of(expect="100-continue"), JSON, id="waits"),
        pytest.param(scope_of(host="evil.example"), JSON, id="another host"),
        pytest.param(scope_of("/v2/models/other/infer"), JSON, id="another model"),
        pytest.param(scope_of("/v2/repository/index"), b"{}", id="no inference"),
        pytest.param(scope_of("/api/inferences/query"), b"{}", id="a route"),
        pytest.param(scope_of(f"/{'x' * 1000}"), JSON, id="long path"),
        pytest.param(scope_of(), None, id="no body yet"),
        pytest.param(scope_of(), JSON + b" " * MAX_BODY_BYTES, id="large body"),
    ],
)
async def test_everything_else_takes_the_long_way(folder, scope, body):
    async with warm_application(folder, insecure=True, store=False) as application:
        assert application.asgi.answer_at_once(scope_of(), JSON) is not None
        assert application.asgi.answer_at_once(scope, body) is None


async def test_a_server_that_ends_answers_with_a_task(folder):
    async with warm_application(folder, insecure=True, store=False) as application:
        application.asgi.closing = True
        assert application.asgi.answer_at_once(scope_of(), JSON) is None


@pytest.mark.parametrize(
    ("limits", "is_at_once"),
    [("", True), ("requests=100/second", False)],  # whose headers the long way adds
)
async def test_a_key_is_needed_and_counts_each_request_once(tmp_path, limits, is_at_once):
    settings = Settings(data=str(tmp_path / "data"))
    migrate(settings.database_url)
    with writer_engine(settings.database_url) as engine:
        _, secret = create_key(engine, name="caller", roles=["infer"], limits=limits)
    async with warm_application(tmp_path) as application:
        application._keys.refresh()
        assert application.asgi.answer_at_once(scope_of(), JSON) is None  # the audit log has it
        assert (await with_task(application, scope_of(), JSON))[0] == 401
        allowed = {"authorization": f"Bearer {secret}"}
        for _ in range(2 * SAMPLES):
            scope = scope_of(**allowed)
            answer = application.asgi.answer_at_once(scope, JSON)
            if answer is None:
                assert (await with_task(application, scope, JSON))[0] == 200
        assert (answer is not None) == is_at_once
        ((_, _, cells),) = application._keys.key_uses()
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
        ((_, _, cells),) = application._keys.key_uses()
        assert cells[IN_FLIGHT] == 0
