"""Clients that send more requests than are answered, and clients that do not read the answers.

Each case runs on both event loops, and with TLS, over a real connection.
"""

import asyncio

import pytest

from quadriga.engine.http import http_protocol
from quadriga.engine.http.http_protocol import MAX_AHEAD, MAX_HEADER_BYTES
from quadriga.proto.http.asgi import DISCONNECT_EXTENSION, send_body
from quadriga.proto.http.intake import Intake
from tests.unit.engine import test_http_writes
from tests.unit.engine.test_http_writes import CHUNK, echo, receive_body, until

contexts, surroundings = test_http_writes.contexts, test_http_writes.surroundings

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Gate:
    """An application that answers as often as it is allowed to, and shows the connection."""

    def __init__(self, answers: int = 0) -> None:
        self._allowed = asyncio.Semaphore(answers)
        self.protocol = None

    async def __call__(self, scope, receive, send):
        self.protocol = scope["extensions"][DISCONNECT_EXTENSION].__self__
        await receive_body(receive)
        await self._allowed.acquire()
        await send_body(send, 200, b"{}")

    def allow(self, answers):
        for _ in range(answers):
            self._allowed.release()


def test_nothing_is_read_while_requests_wait(surroundings):
    async def case(connection):
        connection.writer.write(GET * 10)
        await until(lambda: gate.protocol and len(gate.protocol.pipeline) == 9)
        connection.writer.write(GET * 20)
        queued = []
        for _ in range(5):
            gate.allow(1)
            await connection.read_answer()
            await asyncio.sleep(0.05)
            queued.append(len(gate.protocol.pipeline))
        gate.allow(25)
        for _ in range(25):
            assert (await connection.read_answer())[1] == b"{}"
        return queued

    gate = Gate()
    assert surroundings.run(gate, case) == [8, 7, 6, 5, 4]


def test_a_client_that_is_too_far_ahead_gets_the_first_answers(surroundings, monkeypatch):
    """It keeps sending, which must not cost it the answers."""
    monkeypatch.setattr(http_protocol, "DISCARD_TIMEOUT_S", 0.5)

    async def case(connection):
        connection.writer.write(GET * 50_000)
        return await connection.reader.read()

    answers = surroundings.run(echo, case).split(b"HTTP/1.1 ")[1:]
    assert len(answers) == 1 + MAX_AHEAD
    assert all(answer.endswith(b"/ 0") for answer in answers)
    assert [b"connection: close" in answer for answer in answers] == [False] * MAX_AHEAD + [True]


@pytest.mark.parametrize(
    "behind",
    [
        b"GET / HTTP/1.1\r\nA: " + b"a" * 20 * MAX_HEADER_BYTES,
        b"no HTTP\r\n\r\n",
        GET[:16] + b"\r\n",
    ],
    ids=["endless headers", "no HTTP", "no host"],
)
def test_what_is_wrong_behind_a_request_ends_the_connection_behind_its_answer(
    surroundings, monkeypatch, behind
):
    monkeypatch.setattr(http_protocol, "DISCARD_TIMEOUT_S", 0.5)

    async def case(connection):
        connection.writer.write(GET + behind)
        await until(lambda: gate.protocol is not None)
        await asyncio.sleep(0.2)
        gate.allow(1)
        return await connection.reader.read()

    gate = Gate()
    (answer,) = surroundings.run(gate, case).split(b"HTTP/1.1 ")[1:]
    assert answer.startswith(b"200")
    assert b"connection: close" in answer


BODY = CHUNK * 400
"""More than the systems hold."""


@pytest.mark.parametrize("headers", [b"", b"\nConnection: close"], ids=["kept", "closed"])
@pytest.mark.parametrize("reads", [False, True])
def test_answers_that_are_not_read_have_a_time(surroundings, headers, reads):
    """A client that reads slowly gets the whole answer."""
    protocols = []

    async def answer(scope, _, send):
        protocols.append(scope["extensions"][DISCONNECT_EXTENSION].__self__)
        await send_body(send, 200, BODY)

    async def case(connection):
        connection.send(b"GET / HTTP/1.1\nHost: a" + headers)
        if not reads:
            connection.writer.transport.pause_reading()
            await until(lambda: protocols and protocols[0] not in protocols[0].connections)
            return b""
        await connection.reader.readuntil(b"\r\n\r\n")
        body = b""
        while len(body) < len(BODY):
            body += await connection.reader.readexactly(len(CHUNK) * 4)
            await asyncio.sleep(0.01)
        return body

    intake = Intake(body_timeout_s=0.4, bytes_per_s=1_000_000)
    assert surroundings.run(answer, case, intake) == (BODY if reads else b"")


@pytest.mark.parametrize("size", [30_000, 6_000_000])
def test_a_connection_that_gives_its_place_has_a_time_to_be_read(surroundings, size):
    """Its last answer is smaller than what a transport holds before it asks to wait, or larger."""
    protocols = []

    async def answer(scope, _, send):
        protocols.append(scope["extensions"][DISCONNECT_EXTENSION].__self__)
        await send_body(send, 200, b"a" * size)

    async def case(connection):
        connection.writer.transport.pause_reading()
        connection.send(b"GET / HTTP/1.1\nHost: a")
        await until(lambda: protocols)
        await asyncio.sleep(0.2)
        protocols[0].close()
        await until(lambda: protocols[0] not in protocols[0].connections)

    surroundings.run(answer, case, Intake(body_timeout_s=0.4))
