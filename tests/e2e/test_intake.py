"""Clients that hold what others need: bytes, connections and time, each within its limit."""

import json
import re
import socket
import time
from contextlib import ExitStack

import pytest

from tests.server_process import SAMPLE_MODELS, ServerProcess

PATH = b"/v2/models/shapes-detector/infer"
BODY = b'{"inputs": []}' + b" " * 99_986
FLAGS = ("--max-body-bytes", "100000", "--max-inflight-bytes", "250000", "--no-store")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    flags = (*FLAGS, "--max-connections", "24")
    with ServerProcess(tmp_path_factory.mktemp("intake") / "data", SAMPLE_MODELS, *flags) as server:
        yield server


def connect(server):
    host, port = server.host.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def head(*headers, length=None):
    lines = [b"POST " + PATH + b" HTTP/1.1", b"Host: localhost", *headers]
    if length is not None:
        lines.append(b"Content-Length: %d" % length)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def answer(connection):
    """Read a whole response: status, headers, body."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = connection.recv(65536)
        assert chunk, received
        received += chunk
    top, _, body = received.partition(b"\r\n\r\n")
    lines = top.lower().split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines[1:])
    while len(body) < int(headers[b"content-length"]):
        body += connection.recv(65536)
    return int(lines[0].split()[1]), headers, json.loads(body)


def metric(server, name):
    text = server.request("GET", "/metrics")[2].decode()
    return float(re.search(rf"^quadriga_{name} (\S+)$", text, re.MULTILINE)[1])


def send_until_answered(connection, first, piece, most_bytes):
    """Send a piece again and again; gives the bytes sent until the server answers or closes."""
    connection.sendall(first)
    sent = 0
    connection.setblocking(False)
    try:
        while sent < most_bytes:
            try:
                connection.recv(1, socket.MSG_PEEK)
                break
            except BlockingIOError:
                pass
            try:
                sent += connection.send(piece)
            except BlockingIOError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                break
    finally:
        connection.settimeout(20)
    return sent


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_share_their_bytes(server, chunked):
    refused = metric(server, "bodies_refused_total")
    with ExitStack() as stack:
        holders = [stack.enter_context(connect(server)) for _ in range(2)]
        for holder in holders:
            holder.sendall(head(length=len(BODY)) + BODY[:99_000])
        server.wait_until(lambda: metric(server, "body_bytes") == 198_000)
        late = stack.enter_context(connect(server))
        if chunked:
            late.sendall(
                head(b"Transfer-Encoding: chunked") + b"%x\r\n" % len(BODY) + BODY[:60_000]
            )
        else:
            late.sendall(head(length=len(BODY)))
        status, headers, body = answer(late)
        assert (status, headers[b"retry-after"], headers[b"connection"]) == (503, b"1", b"close")
        assert "at most 250000 bytes" in body["error"]
        assert metric(server, "bodies_refused_total") == refused + 1
        for holder in holders:
            holder.sendall(BODY[99_000:])
            assert answer(holder)[0] == 400  # no inputs
        assert metric(server, "body_bytes") == 0
        holders[0].sendall(head(length=len(BODY)) + BODY)
        assert answer(holders[0])[0] == 400


def test_bodies_of_other_routes_count_too(server):
    with connect(server) as holder:
        request = head(length=len(BODY)).replace(PATH, b"/v2/repository/index")
        holder.sendall(request + BODY[:99_000])
        server.wait_until(lambda: metric(server, "body_bytes") == 99_000)
    server.wait_until(lambda: metric(server, "body_bytes") == 0)


@pytest.mark.parametrize(
    ("first", "piece"),
    [
        (b"0\r\n", b"X-Trailer: " + b"a" * 1000 + b"\r\n"),
        (b"0\r\nX-Trailer: ", b"a" * 1000),
        (b"", b"1;" + b"e" * 1000 + b"\r\na\r\n"),
        (b"1;", b"e" * 1000),
    ],
    ids=["trailers", "one trailer", "extensions", "one extension"],
)
def test_trailers_and_the_framing_of_chunks_are_counted(server, first, piece):
    with connect(server) as connection:
        start = head(b"Transfer-Encoding: chunked") + first
        sent = send_until_answered(connection, start, piece, 20_000_000)
        status, _, body = answer(connection)
    assert (status, "trailers" in body["error"]) == (431, True)
    assert sent < 8_000_000  # the limit, and what the kernel holds of both ends


def test_chunks_of_one_byte_and_short_trailers_are_accepted(server):
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY[:20_000])
    trailer = b"0\r\nContent-Encoding: br\r\nHost: b\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(head(b"Transfer-Encoding: chunked") + chunks + trailer)
        status, _, body = answer(connection)
        assert (status, "inputs" in body["error"]) == (400, True)
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(connection)[0] == 200


LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def is_open(connection):
    """Whether the server has neither answered nor closed a connection."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        connection.settimeout(20)
    return False


def test_connections_with_requests_have_a_number(server):
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(server)) for _ in range(24)]
        for connection in connections:
            connection.sendall(head(b"Expect: 100-continue", length=len(BODY)))
        for connection in connections:  # each is accepted once it is answered
            assert connection.recv(100).startswith(b"HTTP/1.1 100")
        status, headers, body = answer(stack.enter_context(connect(server)))
        assert (status, headers[b"retry-after"]) == (503, b"1")
        assert "at most 24 connections" in body["error"]
    server.wait_until(lambda: server.request("GET", "/v2/health/live")[0] == 200)
    assert metric(server, "connections_refused_total") >= 1


@pytest.mark.parametrize(
    "spoken", [b"", LIVE[:20], LIVE, LIVE + LIVE[:20]], ids=["nothing", "half", "one", "one, half"]
)
def test_idle_connections_give_their_places_to_new_ones(server, spoken):
    displaced = metric(server, "connections_displaced_total")
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(24)]
        for connection in idle:
            connection.sendall(spoken)
            if spoken.startswith(LIVE):
                assert answer(connection)[0] == 200
        for _ in range(10):
            late = stack.enter_context(connect(server))
            late.sendall(LIVE)
            assert answer(late)[0] == 200
        assert [is_open(connection) for connection in idle] == [False] * 10 + [True] * 14
        assert metric(server, "connections_displaced_total") >= displaced + 10


@pytest.mark.parametrize("length", [99_000, 200_000], ids=["not found", "too large"])
def test_bodies_that_are_not_read_hold_no_places(server, length):
    with ExitStack() as stack:
        for _ in range(24):
            connection = stack.enter_context(connect(server))
            connection.sendall(head(length=length).replace(PATH, b"/nothing") + b"{")
            assert answer(connection)[0] in (404, 413)
        for _ in range(30):
            late = stack.enter_context(connect(server))
            late.sendall(LIVE)
            assert answer(late)[0] == 200


def test_the_connection_that_had_the_last_request_stays(server):
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(24)]
        for connection in [*idle, *idle[:12]]:  # the first twelve are used once more
            connection.sendall(LIVE)
            assert answer(connection)[0] == 200
        for _ in range(12):
            late = stack.enter_context(connect(server))
            late.sendall(LIVE)
            assert answer(late)[0] == 200
        assert [is_open(connection) for connection in idle] == [True] * 12 + [False] * 12


def test_connections_without_a_key_give_way_first(tmp_path):
    server = ServerProcess(tmp_path / "data", SAMPLE_MODELS, *FLAGS, "--max-connections", "8")
    key = "quadriga-tests." + "a" * 43
    server.environment["QUADRIGA_ADMIN_KEY"] = key
    with server, ExitStack() as stack:
        with_key = LIVE.replace(b"\r\n\r\n", f"\r\nX-API-Key: {key}\r\n\r\n".encode())
        with_wrong_key = with_key.replace(b"aaa", b"bbb")
        idle = [stack.enter_context(connect(server)) for _ in range(8)]
        requests = [with_key] * 3 + [LIVE] * 3 + [with_wrong_key] * 2
        for connection, request in zip(idle, requests, strict=True):
            connection.sendall(request)
            assert answer(connection)[0] == 200
        for count, expected in ((5, [True] * 3 + [False] * 5), (4, [False] * 8)):
            for _ in range(count):
                late = stack.enter_context(connect(server))
                late.sendall(with_key)
                assert answer(late)[0] == 200
            if count == 5:
                assert [is_open(connection) for connection in idle] == expected
        assert [is_open(connection) for connection in idle[:3]] == [False] * 3


def test_the_head_of_a_later_request_has_a_time_too(tmp_path):
    quick = {"engine.http.http_protocol": {"HEADER_TIMEOUT_S": 0.5}}
    with (
        ServerProcess(tmp_path / "data", SAMPLE_MODELS, *FLAGS, constants=quick) as server,
        connect(server) as connection,
    ):
        connection.sendall(LIVE)
        assert answer(connection)[0] == 200
        connection.sendall(LIVE[:20])
        assert answer(connection)[0] == 408


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_fault(tmp_path):
    with ServerProcess(tmp_path / "data", SAMPLE_MODELS) as server:
        for path in (b"/api/inferences/query", b"/api/inferences/delete", PATH):
            with connect(server) as connection:
                connection.sendall(head(length=len(BODY)).replace(PATH, path) + BODY[:1000])
                server.wait_until(lambda: metric(server, "body_bytes") == 1000)
            server.wait_until(lambda: metric(server, "body_bytes") == 0)
        log = server.log.read_text()
    assert "Traceback" not in log
    assert "fault" not in log


def test_bytes_that_are_no_http_make_a_line_a_second(server):
    before, began_s = server.log.read_text().count("Invalid HTTP request"), time.monotonic()
    for _ in range(100):
        with connect(server) as connection:
            connection.sendall(b"no HTTP\r\n\r\n")
            assert answer(connection)[0] == 400
    lines = server.log.read_text().count("Invalid HTTP request") - before
    assert 1 <= lines <= 2 + time.monotonic() - began_s


def test_bodies_have_a_time(tmp_path):
    flags = (*FLAGS, "--body-timeout-s", "0.5")
    quick = {"proto.http.intake": {"BYTES_PER_S": 100_000}}
    with ServerProcess(tmp_path / "data", SAMPLE_MODELS, *flags, constants=quick) as server:
        with connect(server) as connection:
            connection.sendall(head(length=len(BODY)) + BODY[:50_000])
            status, headers, body = answer(connection)
        assert (status, headers[b"connection"]) == (408, b"close")
        assert "whole body within 0.5 s" in body["error"]
        assert metric(server, "bodies_late_total") == 1
        assert metric(server, "body_bytes") == 0
