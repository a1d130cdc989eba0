"""Responses on their way out: what goes at once, and that nothing is lost or out of order.

Each case runs on both event loops, and with TLS, over a real connection.
"""

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from quadriga.engine.http import http_protocol
from quadriga.engine.http.http_protocol import with_limits
from quadriga.proto.http.asgi import (
    ANSWER_EXTENSION,
    BODY_EXTENSION,
    DISCONNECT_EXTENSION,
    send_body,
)
from quadriga.proto.http.intake import Intake
from tests.certificates import Authority

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
CHUNK = bytes(range(256)) * 256
TIMEOUT_S = 30


class Connection(NamedTuple):
    """Both ends of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, head: bytes, body: bytes = b"") -> None:
        self.writer.write(head.replace(b"\n", b"\r\n") + b"\r\n\r\n" + body)

    async def read_answer(self) -> tuple[bytes, bytes]:
        """Read one answer with a Content-Length."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return head, await self.reader.readexactly(length)


class Surroundings(NamedTuple):
    """Event loop, and contexts of TLS, of a case."""

    loop: str
    server: ssl.SSLContext | None
    client: ssl.SSLContext | None

    def run(self, app: Any, case: Any, intake: Intake | None = None) -> Any:
        """Run a case on a connection to a server of an application."""

        async def connected() -> Any:
            async with connect(app, self, intake or Intake()) as connection:
                return await case(connection)

        with asyncio.Runner(loop_factory=LOOPS[self.loop]) as runner:
            return runner.run(asyncio.wait_for(connected(), TIMEOUT_S))


@asynccontextmanager
async def connect(app, surroundings, intake):
    """Serve an application, and connect to it."""
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    protocol_class = with_limits(10, intake)
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol_class(config=config, server_state=state, app_state={}),
        "127.0.0.1",
        0,
        ssl=surroundings.server,
    )
    reader, writer = await asyncio.open_connection(
        *server.sockets[0].getsockname(), ssl=surroundings.client, limit=2**20
    )
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        server.close()
    await until(lambda: not state.connections and not state.tasks)  # all ends before its loop
    writer.transport.abort()  # where the client reads nothing, `close` would wait for it
    await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("authority"))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(authority.sign("server"))
    return server, ssl.create_default_context(cafile=authority.certificate)


@pytest.fixture(params=[(loop, tls) for loop in LOOPS for tls in (False, True)], ids=str)
def surroundings(request, contexts):
    loop, tls = request.param
    return Surroundings(loop, *(contexts if tls else (None, None)))


async def until(condition):
    while not condition():  # noqa: ASYNC110 - what is waited for sets no event
        await asyncio.sleep(0.01)


async def receive_body(receive):
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            return body


async def echo(scope, receive, send):
    """Answer the path and the length of the body; later for a path that says so."""
    body = await receive_body(receive)
    if scope["path"] == "/late":
        await asyncio.sleep(0.05)
    await send_body(send, 200, b"%b %d" % (scope["path"].encode(), len(body)))


@pytest.mark.parametrize("status", [200, 204, 304])
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_answers_without_a_body_are_sent(surroundings, method, status):
    async def answer(_, __, send):
        await send_body(send, status, b"")

    async def case(connection):
        for _ in range(2):
            connection.send(method + b" / HTTP/1.1\nHost: a")
            head = await connection.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 %d" % status)

    surroundings.run(answer, case)


def test_parts_of_a_stream_flow_at_once(surroundings):
    read = asyncio.Queue()  # what the client has read

    async def stream(_, __, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(3):
            await read.get()
            body = b"part %d" % number
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await read.get()
        await send({"type": "http.response.body", "body": b""})

    async def case(connection):
        connection.send(b"GET / HTTP/1.1\nHost: a")
        await connection.reader.readuntil(b"\r\n\r\n")
        for number in range(3):
            read.put_nowait(number)
            assert await connection.reader.readuntil(b"part %d\r\n" % number)
        read.put_nowait(3)
        assert await connection.reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"

    surroundings.run(stream, case)


def test_parts_of_a_stream_in_one_turn_keep_their_order(surroundings):
    parts = [b"%d," % number * number for number in range(1, 50)]

    async def stream(_, __, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def case(connection):
        connection.send(b"GET / HTTP/1.1\nHost: a\nConnection: close")
        _, _, chunks = (await connection.reader.read()).partition(b"\r\n\r\n")
        return chunks

    expected = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    assert surroundings.run(stream, case) == expected + b"0\r\n\r\n"


def test_requests_behind_each_other_are_answered_in_order(surroundings):
    async def case(connection):
        requests = b""
        for number in range(6):
            path = b"/late" if number % 2 else b"/%d" % number
            requests += b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab" % path
        connection.writer.write(requests)
        return [(await connection.read_answer())[1] for _ in range(6)]

    answers = surroundings.run(echo, case)
    assert answers == [b"/0 2", b"/late 2", b"/2 2", b"/late 2", b"/4 2", b"/late 2"]


def test_a_refusal_comes_behind_the_answer_before_it(surroundings):
    async def case(connection):
        connection.writer.write(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
        head, body = await connection.read_answer()
        connection.writer.write(b"no HTTP\r\n\r\n")
        return head, body, await connection.reader.read()

    head, body, refusal = surroundings.run(echo, case)
    assert head.startswith(b"HTTP/1.1 200")
    assert body == b"/a 0"
    assert refusal.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "request_head",
    [b"GET / HTTP/1.0\nHost: a", b"GET / HTTP/1.0", b"GET / HTTP/1.1\nHost: a\nConnection: close"],
)
@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_nothing_is_lost_where_the_connection_closes(surroundings, request_head, size):
    content = (CHUNK * (size // len(CHUNK) + 1))[:size]

    async def answer(_, __, send):
        await send_body(send, 200, content)

    async def case(connection):
        connection.send(request_head)
        return await connection.reader.read()

    head, _, body = surroundings.run(answer, case).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == content


def test_headers_are_sent_where_the_application_fails_behind_them(surroundings):
    async def fail(_, __, send):
        headers = [(b"content-length", b"10")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        raise ValueError("a fault of the test")

    async def case(connection):
        connection.send(b"GET / HTTP/1.1\nHost: a")
        return await connection.reader.read()

    answer = surroundings.run(fail, case)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n")


def test_a_client_that_reads_nothing_holds_the_application(surroundings):
    sent = 0

    async def stream(_, __, send):
        nonlocal sent
        length = len(CHUNK) * 1000
        headers = [(b"content-length", b"%d" % length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number in range(1000):
            more_body = number < 999
            await send({"type": "http.response.body", "body": CHUNK, "more_body": more_body})
            sent += 1

    async def case(connection):
        connection.writer.transport.pause_reading()
        connection.send(b"GET / HTTP/1.1\nHost: a")
        before = -1
        while sent != before or not sent:  # until the buffers of both systems are full
            before = sent
            await asyncio.sleep(0.2)
        held = sent
        connection.writer.transport.resume_reading()
        _, body = await connection.read_answer()
        return held, body

    held, body = surroundings.run(stream, case)
    assert held < 900  # 64 MB of which the systems hold some 10
    assert body == CHUNK * 1000


@pytest.mark.parametrize("leaves", [True, False])
def test_who_answers_is_told_that_the_client_has_left(surroundings, leaves):
    calls = []

    async def wait(scope, receive, send):
        await receive_body(receive)
        left = asyncio.Event()

        def leave():
            calls.append(scope["path"])
            left.set()

        call_on_disconnect = scope["extensions"][DISCONNECT_EXTENSION]
        call_on_disconnect(leave)
        if leaves:
            await left.wait()
        call_on_disconnect(None)
        await send_body(send, 200, b"{}")

    async def case(connection):
        connection.send(b"POST /x HTTP/1.1\nHost: a\nContent-Length: 100000", b"a" * 100_000)
        if leaves:
            await asyncio.sleep(0.1)
            assert not calls
        else:
            assert (await connection.read_answer())[1] == b"{}"
        connection.writer.close()
        await until(lambda: calls or not leaves)

    surroundings.run(wait, case)
    assert calls == (["/x"] if leaves else [])


def test_who_asks_too_late_is_told_at_once(surroundings):
    calls = []
    finished = asyncio.Event()

    async def wait(scope, _, __):
        await asyncio.sleep(0.3)
        scope["extensions"][DISCONNECT_EXTENSION](lambda: calls.append("left"))
        finished.set()

    async def case(connection):
        connection.send(b"GET / HTTP/1.1\nHost: a")
        await asyncio.sleep(0.1)
        connection.writer.close()
        await finished.wait()

    surroundings.run(wait, case)
    assert calls == ["left"]


@pytest.mark.parametrize("size", [0, 1, 1000, 1_300_000])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_whole_body_is_taken_without_waiting(surroundings, size, parts):
    content = (CHUNK * 20)[:size]
    seen = []

    async def take(scope, receive, send):
        take_body = scope["extensions"][BODY_EXTENSION]
        body = take_body()
        if body is None:
            body = await receive_body(receive)
        else:
            seen.append("taken")
        left = asyncio.ensure_future(receive())
        await asyncio.sleep(0.02)
        seen.append(left.done())  # what follows the body is the end of the connection
        await send_body(send, 200, body)
        seen.append((await left)["type"])

    async def case(connection):
        for _ in range(2):
            seen.clear()
            head = b"POST / HTTP/1.1\nHost: a\nContent-Length: %d" % size
            if parts == 2:
                connection.send(head)
                await connection.writer.drain()
                await asyncio.sleep(0.05)
                connection.writer.write(content)
            else:
                connection.send(head, content)
            assert (await connection.read_answer())[1] == content
            await until(lambda: "http.disconnect" in seen)
            assert seen[-2:] == [False, "http.disconnect"]
            if parts == 1 and size < 10_000:
                assert seen[0] == "taken"

    surroundings.run(take, case)


@pytest.mark.parametrize(
    ("asked", "header", "size", "is_taken"),
    [
        (b"", (b"x-a", b"b"), 3, True),
        (b"", (b"x-a", b"b"), 1_300_000, True),
        (b"\nConnection: close", (b"x-a", b"b"), 3, False),
        (b"", (b"connection", b"close"), 3, False),
        (b"", (b"x-a", b"b\r\nx-c: d"), 3, False),
        (b"", (b"x-a", b"b\n"), 3, False),
        (b"", (b"x-a", b"b\r"), 3, False),
        (b"", (b"x-a", b"b\0"), 3, False),
    ],
)
def test_a_whole_answer_is_written_unless_the_server_has_to_do_more(
    surroundings, asked, header, size, is_taken
):
    content = (CHUNK * 20)[:size]
    taken = []

    async def answer(scope, receive, send):
        headers = [header, (b"content-length", b"%d" % size)]
        taken.append(scope["extensions"][ANSWER_EXTENSION](200, headers, content))
        if not taken[-1]:
            await send_body(send, 200, content)
        else:
            assert not scope["extensions"][ANSWER_EXTENSION](200, headers, content)
            assert (await receive())["type"] == "http.disconnect"

    async def case(connection):
        for _ in range(2 if is_taken else 1):
            connection.send(b"GET / HTTP/1.1\nHost: a" + asked)
            head, body = await connection.read_answer()
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert (b"\r\nx-a: b\r\n" in head) == is_taken
            assert body == content

    surroundings.run(answer, case)
    assert set(taken) == {is_taken}


def test_a_client_that_waits_to_be_told_to_go_on_is_told(surroundings):
    async def take(scope, receive, send):
        assert scope["extensions"][BODY_EXTENSION]() is None
        await send_body(send, 200, await receive_body(receive))

    async def case(connection):
        connection.send(b"POST / HTTP/1.1\nHost: a\nContent-Length: 3\nExpect: 100-continue")
        assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        connection.writer.write(b"abc")
        return await connection.read_answer()

    assert surroundings.run(take, case)[1] == b"abc"


@pytest.mark.parametrize(
    "head", [b"G", b"GET / HTTP/1.1\r\nHost: a", b"GET / HTTP/1.1\r\nHost: a\r\n\r\nG"]
)
def test_headers_that_do_not_end_have_a_time(monkeypatch, surroundings, head):
    monkeypatch.setattr(http_protocol, "HEADER_TIMEOUT_S", 1.5)

    async def case(connection):
        connection.writer.write(head)
        if head.endswith(b"\r\n\r\nG"):
            await connection.read_answer()
            connection.writer.write(b"ET")
        begun_s = asyncio.get_running_loop().time()
        answer = await connection.reader.read()
        return answer, asyncio.get_running_loop().time() - begun_s

    answer, elapsed_s = surroundings.run(echo, case)
    assert answer.startswith(b"HTTP/1.1 408")
    assert elapsed_s < 10
