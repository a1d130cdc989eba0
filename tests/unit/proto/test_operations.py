"""Endpoints: paths found, verbs told apart, bodies compressed, answers streamed."""

import asyncio
import gc
import gzip
import zlib

import pytest

from quadriga.proto.access import ANYBODY
from quadriga.proto.errors import InvalidRequest, TooLarge, UnsupportedMediaType
from quadriga.proto.http.asgi import DISCONNECT_EXTENSION, MAX_CODINGS
from quadriga.proto.http.intake import Intake
from quadriga.proto.http.openapi import add_operations
from quadriga.proto.http.operations import (
    Dispatcher,
    HttpRequest,
    HttpResponse,
    Operation,
    WireOptions,
    all_operations,
    expand_path,
    mark_cloud_event,
    path_pattern,
    store_headers,
)
from quadriga.proto.messages import InferRequest, InferResponse

MODEL = "/v1/models/{name}[/versions/{version}|/labels/{label}]"


@pytest.mark.parametrize(
    ("template", "path", "groups"),
    [
        ("/v2", "/v2", {}),
        ("/v2", "/v2/x", None),
        ("/a.b", "/axb", None),
        (MODEL, "/v1/models/x", {"name": "x", "version": None, "label": None}),
        (MODEL, "/v1/models/x/versions/2", {"name": "x", "version": "2", "label": None}),
        (MODEL, "/v1/models/x/labels/new", {"name": "x", "version": None, "label": "new"}),
        (MODEL, "/v1/models/x/versions/2/labels/new", None),
        (MODEL, "/v1/models/", None),
        (MODEL, "/V1/models/x", None),
        (MODEL, "/v1/models/x:predict", None),
        (f"{MODEL}:predict", "/v1/models/a:b:predict", None),
        (f"{MODEL}:predict", "/v1/models/x/versions/2:predict", {"name": "x", "version": "2"}),
        ("/v1/{rest...}", "/v1/a/b:c", {"rest": "a/b:c"}),
        ("/v1/{rest...}", "/v1/", None),
    ],
)
def test_template_matches_only_its_paths(template, path, groups):
    match = path_pattern(template).fullmatch(path)
    if groups is None:
        assert match is None
    else:
        assert groups.items() <= match.groupdict().items()


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({}, {}),
        ({"inference_ids": ["5", "6"]}, {"quadriga-inference-ids": "5,6"}),
        ({"inference_ids": ["5" * 19] * 150}, {"quadriga-inference-ids": ",".join(["5" * 19] * 150)}),
        ({"inference_ids": ["5" * 19] * 200}, {}),
        ({"stored": False, "lag_bytes": 7}, {"quadriga-stored": "false", "quadriga-store-lag": "7"}),
        ({"headers": [("Some-Score", "0.5,,1"), ("Long", "0" * 3073)]}, {"some-score": "0.5,,1"}),
        ({"inference_ids": ["5"], "lag_bytes": 7}, {"quadriga-inference-ids": "5", "quadriga-store-lag": "7"}),
    ],
)  # fmt: skip
def test_headers_tell_the_result_of_storing(fields, headers):
    sent = store_headers(InferResponse("m", "1", "r", [], **fields))
    assert {name.decode(): value.decode() for name, value in sent} == headers


def test_a_request_that_came_as_an_event_says_so():
    request = InferRequest("m", None, "r", [], protocol="v1")
    assert mark_cloud_event(HttpRequest({}, {}), request) is request
    assert (
        mark_cloud_event(HttpRequest({}, {}, is_event=True), request).protocol == "v1-cloudevents"
    )


@pytest.mark.timeout(100)  # of what takes milliseconds
@pytest.mark.parametrize("unit", [":", "a:", "/a:", "/versions/a", ":predict", "-pred"])
@pytest.mark.parametrize("start", ["/v1/", "/v1/models/", "/v2/models/", "/api/serve/serve-model-"])
def test_longest_path_is_rejected_quickly(start, unit):
    dispatcher = Dispatcher(None, list(all_operations(None, WireOptions(server_version="0"))), 1)
    path = start + unit * (60_000 // len(unit)) + "/a"
    for method in ("GET", "POST", "PUT"):
        dispatcher.match(path, method)


def test_fixed_parts_match_in_any_case_with_ignore_case():
    path_match = path_pattern("/v1/models/{name}", ignore_case=True).fullmatch("/V1/Models/Half")
    assert path_match["name"] == "Half"


@pytest.mark.parametrize(
    ("template", "paths"),
    [
        ("/v2", ["/v2"]),
        (f"{MODEL}:a", ["/v1/models/{name}:a", "/v1/models/{name}/versions/{version}:a"]),
        ("/a[/b]/c[/d]", ["/a/c", "/a/c/d", "/a/b/c", "/a/b/c/d"]),
    ],
)
def test_optional_parts_are_expanded(template, paths):
    assert expand_path(template)[: len(paths)] == paths


class Inline:
    """A server that runs jobs where it stands."""

    async def run(self, job, **_):
        return job()


def ask(operation, method="POST", body=b"", headers=(), serving=None, **limits):
    """Give status, headers and body of the answer to one request."""
    max_bytes = limits.pop("limit_bytes", 10_000)
    operations = Dispatcher(serving or Inline(), [operation], max_bytes, **limits)
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    sent = []

    async def receive():
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    async def send(message):
        sent.append(message)

    extensions = {DISCONNECT_EXTENSION: lambda _: None}
    scope = {"type": "http", "method": method, "headers": list(headers), "extensions": extensions}
    asyncio.run(operations.respond(operations.match("/x"), scope, receive, send, caller=ANYBODY))
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(m["body"] for m in sent[1:])


ECHO = Operation(
    "POST", "/x", lambda call: HttpResponse(call.body), "Echo", need="key", compress_response=True
)


def test_unsupported_verb_is_refused_with_the_supported_ones():
    status, headers, body = ask(ECHO, "PUT")
    assert (status, headers[b"allow"]) == (405, b"POST")
    assert b"expected POST, got PUT" in body


def test_head_is_answered_as_get():
    assert (
        ask(Operation("GET", "/x", lambda _: HttpResponse(b"{}"), "Look", need="key"), "HEAD")[0]
        == 200
    )
    assert ask(ECHO, "HEAD")[0] == 405


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (b"gzip", gzip.compress(b"a" * 2000, mtime=0)),
        (b"X-GZIP", gzip.compress(b"a" * 2000, mtime=0)),
        (b"deflate", zlib.compress(b"a" * 2000)),
        (b"identity", b"a" * 2000),
    ],
)
def test_compressed_bodies_are_decompressed(encoding, packed):
    status, headers, body = ask(ECHO, body=packed, headers=[(b"content-encoding", encoding)])
    assert (status, body) == (200, b"a" * 2000)
    assert b"content-encoding" not in headers


def test_what_compressed_bodies_become_is_held_while_they_are_answered():
    intake, held = Intake(5000), []

    def look(call):
        held.append((intake.held_bytes, len(call.body)))
        return HttpResponse(b"{}")

    operation = Operation("POST", "/x", look, "Look", need="key")
    headers, limits = [(b"content-encoding", b"gzip")], {"intake": intake, "limit_bytes": 4000}
    assert ask(operation, body=gzip.compress(b"a" * 900), headers=headers, **limits)[0] == 200
    assert held == [(900, 900)]
    with intake.hold(4500):
        status, refusal, _ = ask(
            operation, body=gzip.compress(b"a" * 900), headers=headers, **limits
        )
    assert (status, refusal[b"retry-after"]) == (503, b"1")
    assert (intake.held_bytes, len(held)) == (0, 1)


@pytest.mark.parametrize(
    ("encoding", "packed", "error"),
    [
        (b"br", b"", UnsupportedMediaType),
        (b"gzip, gzip", b"", UnsupportedMediaType),
        (b"gzip", b"not gzip", InvalidRequest),
        (b"gzip", gzip.compress(b"abc", mtime=0)[:-1], InvalidRequest),
        (b"gzip", gzip.compress(b"abc", mtime=0) + b"x", InvalidRequest),
        (b"deflate", b"", InvalidRequest),
        (b"gzip", gzip.compress(b"a" * 10_001, mtime=0), TooLarge),
    ],
)
def test_damaged_and_oversized_bodies_are_refused(encoding, packed, error):
    status, _, body = ask(ECHO, body=packed, headers=[(b"content-encoding", encoding)])
    assert (status, b"expected" in body) == (error.status, True)


@pytest.mark.parametrize(
    ("media_type", "sent", "expected"),
    [
        (b"multipart/mixed; boundary=x", b"--x\r\n", 415),
        (b"Application/X-Protobuf", b"\x0a\x01m", 415),
        (b"multipart/form-data", b' {"a": 1}', 200),
        (b"application/x-www-form-urlencoded", b"a=b", 200),
        (b"image/png", b"\x89PNG", 200),
    ],
)
def test_a_content_type_that_nothing_reads_is_refused(media_type, sent, expected):
    status, headers, body = ask(ECHO, body=sent, headers=[(b"content-type", media_type)])
    assert status == expected
    assert (b"accept-encoding" in headers, body == sent) == (status == 415, status == 200)


@pytest.mark.parametrize(
    ("accepted", "undo"),
    [
        (b"gzip", gzip.decompress),
        (b"deflate, gzip;q=0.5", zlib.decompress),
        (b"gzip;q=0, deflate", zlib.decompress),
        (b"br, gzip ; q=0.1", gzip.decompress),
        (b"gzip;q=0", bytes),
        (b"br", bytes),
        (b"gzip;q=1.2.3", bytes),
        (b"gzip;q=1e3", bytes),
        (b"gzip;level=9", bytes),
        (b"x gzip", bytes),
        (b"", bytes),
        (b"a" + b" " * 60_000 + b", gzip", gzip.decompress),
        (b"gzip;q=" + b"1" * 60_000 + b"x", bytes),
        (b"a;" * 30_000, bytes),
        (b"br," * (MAX_CODINGS - 1) + b"gzip", gzip.decompress),
        (b"br," * MAX_CODINGS + b"gzip", bytes),
    ],
)
def test_responses_are_compressed_as_the_client_accepts(accepted, undo):
    _, headers, body = ask(ECHO, body=b"a" * 2000, headers=[(b"accept-encoding", accepted)])
    assert undo(body) == b"a" * 2000
    assert (b"content-encoding" in headers) == (undo is not bytes)
    assert headers[b"content-length"] == str(len(body)).encode()


def test_short_responses_are_not_compressed():
    _, headers, body = ask(ECHO, body=b"abc", headers=[(b"accept-encoding", b"gzip")])
    assert (body, b"content-encoding" in headers) == (b"abc", False)


def test_iterator_is_sent_chunk_by_chunk():
    operation = Operation(
        "POST", "/x", lambda _: HttpResponse(iter([b"a", b"b"])), "Stream", need="key"
    )
    status, headers, body = ask(operation)
    assert (status, body) == (200, b"ab")
    assert b"content-length" not in headers


def test_json_nested_too_deeply_for_its_handler_is_refused():
    def nest(_):
        raise RecursionError

    status, _, body = ask(Operation("POST", "/x", nest, "Nest", need="key"))
    assert (status, body) == (400, b'{"error":"expected JSON that is nested less deeply"}')


def test_unexpected_error_is_500_without_details():
    def fail(_):
        raise RuntimeError("a secret")

    status, _, body = ask(Operation("POST", "/x", fail, "Fail", need="key"))
    assert status == 500
    assert b"secret" not in body


class InAFuture:
    """Runs a job as the pool of threads does: its error stays in a future, with the frames that it came through."""

    def run(self, job, **_):
        future = asyncio.get_running_loop().create_future()
        try:
            future.set_result(job())
        except InvalidRequest as error:
            future.set_exception(error)
        return future


def test_a_refused_request_does_not_keep_its_body():
    class Body(bytearray):
        """Bytes that can be counted."""

    def refuse(request):
        held = Body(request.body)
        raise InvalidRequest(f"expected another body, got {len(held)} bytes")

    operation = Operation("POST", "/x", refuse, "Refuse", need="key")
    gc.collect()
    gc.disable()
    try:
        assert ask(operation, body=b"1234", serving=InAFuture())[0] == 400
        assert not [held for held in gc.get_objects() if type(held) is Body]
    finally:
        gc.enable()


def row(method, path, summary="A line", **more):
    return Operation(method, path, lambda _: HttpResponse(b""), summary, need="key", **more)


ROWS = [
    row("POST", "/a/{x}"),
    row("GET", "/a/{rest...}", ""),
    row("GET", "/B", ignore_case=True),
]


@pytest.mark.parametrize(
    ("method", "path", "verbs"),
    [
        ("POST", "/a/b", {"POST"}),
        ("GET", "/a/b", {"GET"}),
        ("HEAD", "/a/b", {"GET"}),
        ("PUT", "/a/b", {"POST"}),
        ("POST", "/a/b/c", {"GET"}),
        ("GET", "/b", {"GET"}),
        ("GET", "/c", None),
        (None, "/a/b", {"POST"}),
    ],
)
def test_first_operation_with_the_verb_is_matched(method, path, verbs):
    path_match = Dispatcher(None, ROWS, 1).match(path, method)
    assert (path_match and set(path_match[0])) == verbs


def test_operations_without_a_summary_are_not_described():
    assert set(add_operations({}, ROWS)["paths"]) == {"/a/{x}", "/B"}
