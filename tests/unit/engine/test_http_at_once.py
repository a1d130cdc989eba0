"""Requests that are answered without a task: what the client reads, in which order, and what still gets a task.

Each case runs over a real connection.
"""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from quadriga.engine.http import http_protocol
from quadriga.engine.http.answers import encode_head
from quadriga.engine.http.http_protocol import with_limits
from quadriga.proto.http.asgi import BODY_EXTENSION, read_body, send_body, whole_answer
from quadriga.proto.http.intake import Intake

TIMEOUT_S = 30
KEEP_ALIVE_S = 1
PLAIN = "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"


def request(path, body=b"", head=PLAIN):
    return head.format(path=path, length=len(body)).encode() + body


def at_once(scope, body):
    """Answer `/once` with its body, refuse `/refused`, and leave the rest."""
    if scope["path"] == "/refused":
        return whole_answer(503, b"later", [(b"retry-after", b"1")])
    if scope["path"] == "/closes":
        return whole_answer(200, b"last", [(b"connection", b"close")])
    if scope["path"] == "/once" and body is not None:
        return whole_answer(200, b"at once " + body)
    return None


async def in_a_task(scope, receive, send):
    take_body = scope["extensions"][BODY_EXTENSION]
    body = take_body()
    if body is None:
        body = await read_body(scope, receive, 1 << 30)
    await asyncio.sleep(0.01)
    await send_body(send, 200, b"in a task " + body)


@asynccontextmanager
async def connection_to(application):
    config = uvicorn.Config(
        application, lifespan="off", log_config=None, timeout_keep_alive=KEEP_ALIVE_S
    )
    config.load()
    protocol, state = with_limits(10, Intake(), at_once), ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()
    while state.connections or state.tasks:  # noqa: ASYNC110 - they set no event
        await asyncio.sleep(0.005)


async def read_answer(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


def run(case, application=in_a_task):
    async def connected():
        async with connection_to(application) as (reader, writer):
            return await case(reader, writer)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(connected(), TIMEOUT_S))


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/once", b"x", (200, b"at once x")),
        ("/once", b"", (200, b"at once ")),
        ("/other", b"x", (200, b"in a task x")),
        ("/refused", b"x", (503, b"later")),
    ],
)
def test_what_needs_no_task_is_answered_without_one(path, body, expected):
    async def case(reader, writer):
        answers = []
        for _ in range(3):
            writer.write(request(path, body))
            answers.append(await read_answer(reader))
        return answers

    assert run(case) == [expected] * 3


@pytest.mark.parametrize(
    "paths", [["/once"] * 3, ["/other", "/once"] * 2, ["/refused", "/once", "/other"]]
)
def test_answers_to_requests_that_come_together_keep_their_order(paths):
    async def case(reader, writer):
        writer.write(b"".join(request(path, b"%d" % n) for n, path in enumerate(paths)))
        return [await read_answer(reader) for _ in paths]

    for number, (path, (status, body)) in enumerate(zip(paths, run(case), strict=True)):
        if status == 503:
            assert path == "/refused"
        else:
            assert body in (b"at once %d" % number, b"in a task %d" % number)


def test_a_body_that_comes_late_gets_a_task():
    async def case(reader, writer):
        head, body = request("/once", b"xyz")[:-3], b"xyz"
        writer.write(head + body[:1])
        await asyncio.sleep(0.05)
        writer.write(body[1:])
        return await read_answer(reader)

    assert run(case) == (200, b"in a task xyz")


def test_a_refusal_waits_for_no_body_and_keeps_the_connection():
    async def case(reader, writer):
        body = bytes(300_000)
        text = request("/refused", body)
        writer.write(text[:1000])
        assert await read_answer(reader) == (503, b"later")
        writer.write(text[1000:] + request("/once", b"next"))
        return await read_answer(reader)

    assert run(case) == (200, b"at once next")


def test_a_client_that_waits_to_send_its_body_is_asked_for_it():
    async def case(reader, writer):
        head = (
            "POST {path} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"
        )
        writer.write(request("/once", head=head))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(b"x")
        return await read_answer(reader)

    assert run(case) == (200, b"in a task x")


@pytest.mark.parametrize(
    "text",
    [
        request("/closes", b"x"),
        request("/once", b"x", PLAIN.replace("Host: a", "Host: a\r\nConnection: close")),
        request("/once", b"x", PLAIN.replace("HTTP/1.1", "HTTP/1.0")),
    ],
)
def test_the_connection_ends_with_an_answer_that_says_so(text):
    async def case(reader, writer):
        writer.write(text)
        return await reader.read()

    answer = run(case).lower()
    assert answer.startswith(b"http/1.1 200 ok\r\n")
    assert answer.count(b"\r\nconnection: close\r\n") == 1


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: x", b"a\nb", b"a\x00"])
def test_a_header_is_one_line(value):
    with pytest.raises(ValueError, match="in one line"):
        encode_head(200, [(b"x-request-id", value)], keep_alive=True)


@pytest.mark.parametrize("path", ["/once", "/other"])
def test_a_connection_without_requests_is_closed_after_a_while(path, monkeypatch):
    monkeypatch.setattr(http_protocol, "MIN_LOOK_S", 0.01)

    async def case(reader, writer):
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < 3 * KEEP_ALIVE_S:  # requests keep it open
            sent_s = time.monotonic()
            writer.write(request(path, b"x"))
            await read_answer(reader)
            await asyncio.sleep(KEEP_ALIVE_S / 20)
        assert await reader.read() == b""
        return time.monotonic() - sent_s

    assert KEEP_ALIVE_S <= run(case) < TIMEOUT_S / 2


def test_a_connection_whose_next_headers_have_begun_is_not_closed_as_idle(monkeypatch):
    monkeypatch.setattr(http_protocol, "MIN_LOOK_S", 0.01)

    async def case(reader, writer):
        writer.write(request("/once", b"x"))
        await read_answer(reader)
        text = request("/once", b"y")
        writer.write(text[:20])
        await asyncio.sleep(2 * KEEP_ALIVE_S)
        writer.write(text[20:])
        return await read_answer(reader)

    assert run(case) == (200, b"at once y")
