"""Bytes of request bodies over all connections, and the time that a body has."""

import asyncio
import gzip
import time

import pytest

from quadriga.proto.errors import IntakeFull, TooSlow
from quadriga.proto.http.asgi import decompress, error_response, read_body
from quadriga.proto.http.intake import Intake


def scope_of(length=None):
    return {"headers": [] if length is None else [(b"content-length", b"%d" % length)]}


def sender(*chunks, ends=True):
    """Return a `receive` that has the chunks at once, and then nothing more."""
    waiting = [
        {"type": "http.request", "body": chunk, "more_body": not ends or number + 1 < len(chunks)}
        for number, chunk in enumerate(chunks)
    ]

    async def receive():
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    return receive


async def read(intake, *chunks, length=None, ends=True):
    scope = scope_of(length)
    with intake.receiving(scope, sender(*chunks, ends=ends)) as receive:
        return await read_body(scope, receive, 1000), intake.held_bytes


def test_a_body_counts_until_its_response():
    intake = Intake(100)
    assert asyncio.run(read(intake, b"a" * 60, b"b" * 40, length=100)) == (
        b"a" * 60 + b"b" * 40,
        100,
    )
    assert intake.held_bytes == 0


@pytest.mark.parametrize(
    ("chunks", "length", "held"),
    [((b"a" * 60,), 60, 60), ((b"a" * 30, b"a" * 30), None, 60), ((b"",), 101, 0)],
)
def test_bodies_share_their_room(chunks, length, held):
    intake = Intake(100)
    with intake.hold(held), pytest.raises(IntakeFull) as caught:
        asyncio.run(read(intake, *chunks, length=length))
    assert (intake.held_bytes, intake.counters()["bodies_refused_total"]) == (0, 1)
    status, body, headers = error_response(caught.value, "a-1")
    expected = {b"x-request-id": b"a-1", b"retry-after": b"1", b"connection": b"close"}
    assert (status, dict(headers)) == (503, expected)
    assert b"at most 100 bytes" in body


def test_what_a_body_only_announces_is_not_held():
    intake = Intake(100)

    async def announce():
        with intake.receiving(scope_of(90), sender()) as receive:
            waiting = asyncio.ensure_future(receive())
            await asyncio.sleep(0)
            result = await read(intake, b"a" * 90, length=90)
            waiting.cancel()
            return result

    assert asyncio.run(announce()) == (b"a" * 90, 90)


def test_an_error_lets_the_bytes_go():
    intake = Intake(100, body_timeout_s=0.01)
    with pytest.raises(TooSlow):
        asyncio.run(read(intake, b"a" * 60, ends=False))
    assert (intake.held_bytes, intake.counters()["bodies_late_total"]) == (0, 1)


@pytest.mark.parametrize(
    ("bytes_per_s", "pauses_s", "size"),
    [
        (1000, [0.2] * 6, 2800),  # 0.2 s for 400 bytes: it goes on for longer than body_timeout_s
        (100_000, [0.2] * 6, 1200),  # too slow: nothing is left after 0.5 s
        (1, [2.0], 400),  # what came before is no credit for standing still
        (1, [0.0, 0.0, 2.0], 1200),
    ],
)
def test_a_body_takes_any_time_as_long_as_it_goes_on(bytes_per_s, pauses_s, size):
    intake = Intake(10_000, body_timeout_s=0.5, bytes_per_s=bytes_per_s)
    began_s = time.monotonic()

    async def slow():
        receive = sender(*[b"a" * 400] * (len(pauses_s) + 1))
        pauses = iter([0.0, *pauses_s])

        async def pausing():
            await asyncio.sleep(next(pauses, 0.0))
            return await receive()

        with intake.receiving(scope_of(), pausing) as counted:
            return await read_body(scope_of(), counted, 10_000)

    if size == 400 * (len(pauses_s) + 1):
        assert len(asyncio.run(slow())) == size
    else:
        with pytest.raises(TooSlow, match=f"got {size} bytes"):
            asyncio.run(slow())
        assert time.monotonic() - began_s < 1.5
    assert intake.held_bytes == 0


def test_what_follows_a_body_has_any_time():
    """A stream waits there for the client to leave."""
    intake = Intake(100, body_timeout_s=0.01)

    async def stream():
        with intake.receiving(scope_of(), sender(b"a")) as receive:
            await receive()
            await asyncio.wait_for(receive(), 0.1)

    with pytest.raises(TimeoutError):
        asyncio.run(stream())
    assert intake.late_bodies == 0


def test_a_body_counts_with_what_it_becomes_and_is_refused_before_it_is_that():
    intake, steps = Intake(10 * 2**20), []
    packed = gzip.compress(b"a" * 40 * 2**20)

    def unpack(body):
        with intake.expanding() as hold:

            def noted(size):
                hold(size)
                steps.append(intake.held_bytes)

            return decompress(body, b"gzip", 2**30, hold=noted), intake.held_bytes

    with pytest.raises(IntakeFull):
        unpack(packed)
    assert max(steps) == 10 * 2**20
    assert (intake.held_bytes, intake.refused_bodies) == (0, 1)
    body, held = unpack(gzip.compress(b"a" * 5_000_000))
    assert (len(body), held) == (5_000_000, 5_000_000)
    assert intake.held_bytes == 0
