"""Connections after a response that came before the end of the request."""

import asyncio
import json
import re

import pytest
import uvicorn
from uvicorn.server import ServerState

from quadriga.engine.http import http_protocol
from quadriga.engine.http.http_protocol import FramingError, check_headers, with_limits
from quadriga.proto.http.asgi import send_body
from quadriga.proto.http.intake import Intake


async def refuse(_, __, send):
    """Answer without reading the body."""
    await send_body(send, 413, b"{}")


async def connect(headers):
    """Send the headers of a request to a server of one's own; gives the reader, the writer and the server."""
    config = uvicorn.Config(refuse, lifespan="off", log_config=None)
    protocol = with_limits(10, Intake())
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"POST / HTTP/1.1\r\nHost: a\r\n" + headers + b"\r\n")
    assert (await reader.readuntil(b"\r\n\r\n{}")).startswith(b"HTTP/1.1 413")
    return reader, writer, server


async def close(writer, server):
    writer.close()
    server.close()
    await asyncio.sleep(0)


GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
REFUSED_REQUESTS = {
    "no HTTP": (b"\x16\x03\x01\r\n\r\n", 400, None),
    "two hosts": (GET + b"Host: b\r\nX-Request-ID: own-1\r\n\r\n", 400, "own-1"),
    "a header without a name": (GET + b": b\r\n\r\n", 400, None),
    "an id that is not sound": (GET + b"Host: b\r\nX-Request-ID: o wn\r\n\r\n", 400, None),
    "large headers": (GET + b"x: " + b"a" * 70_000, 431, None),
    "large headers that end": (GET + b"x: " + b"a" * 70_000 + b"\r\n\r\n", 431, None),
    "many headers": (GET + b"X-Request-ID: own-3\r\n" + b"x:\r\n" * 1000 + b"\r\n", 431, "own-3"),
    "late headers": (GET + b"X-Request-ID: own-4\r\nx:", 408, "own-4"),
    "nothing": (b"", 408, None),
    "no HTTP behind a request": (GET + b"X-Request-ID: own-5\r\n\r\n\x16\x03\r\n", 400, None),
}


@pytest.mark.parametrize(
    ("sent", "status", "expected"), REFUSED_REQUESTS.values(), ids=REFUSED_REQUESTS
)
def test_what_is_no_request_is_refused_with_an_id(monkeypatch, sent, status, expected):
    monkeypatch.setattr(http_protocol, "HEADER_TIMEOUT_S", 0.5)

    async def ask():
        config = uvicorn.Config(refuse, lifespan="off", log_config=None)
        protocol, state = with_limits(10, Intake()), ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        first, found, behind = sent.partition(b"own-5\r\n\r\n")
        writer.write(first + found)
        if found:
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(behind)
        answer = await asyncio.wait_for(reader.read(), 10)
        await close(writer, server)
        return answer

    head, _, body = asyncio.run(ask()).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert lines[0].split(" ", 2)[:2] == ["HTTP/1.1", str(status)]
    assert headers["content-length"] == str(len(body))
    assert list(json.loads(body)) == ["error"]
    if expected is not None:
        assert headers["x-request-id"] == expected
    else:
        assert re.fullmatch(r"[0-9a-z-]{8,}", headers["x-request-id"])


@pytest.mark.parametrize(
    "headers", [b"Content-Length: 100000\r\n", b"Transfer-Encoding: chunked\r\n"]
)
def test_a_body_that_nobody_reads_any_more_has_a_time(monkeypatch, headers):
    monkeypatch.setattr(http_protocol, "LINGER_TIMEOUT_S", 0.2)

    async def send_on(writer):
        while not writer.is_closing():
            writer.write(b"1\r\na\r\n" if b"chunked" in headers else b"a")
            await asyncio.sleep(0.02)

    async def trickle():
        reader, writer, server = await connect(headers)
        sending = asyncio.ensure_future(send_on(writer))
        try:
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionResetError:
            return b""
        finally:
            sending.cancel()
            await close(writer, server)

    assert asyncio.run(trickle()) == b""


def test_a_body_that_ends_in_time_keeps_its_connection(monkeypatch):
    monkeypatch.setattr(http_protocol, "LINGER_TIMEOUT_S", 0.2)

    async def finish():
        reader, writer, server = await connect(b"Content-Length: 3\r\n")
        writer.write(b"abc")
        await asyncio.sleep(0.4)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        answer = await reader.readuntil(b"{}")
        await close(writer, server)
        return answer

    assert asyncio.run(finish()).startswith(b"HTTP/1.1 413")


NAMES = [
    b"",
    b"a",
    b"Example.COM:8080",
    b"my_service:80",
    b"[::1]:8080",
    b"127.0.0.1",
    b"a%41",
    b"a:",
]
NO_NAMES = [
    b"a b",
    b"a, b",
    b"a/b",
    b"u@a",
    b"a:port",
    b"[::1",
    b"::1",
    b"a:80:80",
    b"\xe4",
    b"a%4",
]


@pytest.mark.parametrize("host", NAMES)
def test_hosts_are_taken(host):
    check_headers([(b"host", host)], "1.1")


@pytest.mark.parametrize(
    ("headers", "http_version", "message"),
    [
        ([], "1.1", "one header Host, got 0"),
        ([(b"host", b"a"), (b"host", b"a")], "1.1", "one header Host, got 2"),
        ([(b"host", b"a"), (b"host", b"a")], "1.0", "one header Host, got 2"),
        *(([(b"host", host)], "1.1", "a name or an address") for host in NO_NAMES),
        ([(b"transfer-encoding", b"chunked")], "1.0", "no Transfer-Encoding in HTTP/1.0"),
        ([(b"transfer-encoding", b"identity")], "1.0", "no Transfer-Encoding in HTTP/1.0"),
    ],
)
def test_headers_that_can_be_read_in_two_ways_are_refused(headers, http_version, message):
    with pytest.raises(FramingError, match=message):
        check_headers(headers, http_version)
