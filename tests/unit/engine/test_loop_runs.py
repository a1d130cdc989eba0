"""Requests on the event loop: those of a model that has been cheap run there, and all others in a thread."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager, suppress

import pytest

from quadriga.engine.serving import request_queue
from quadriga.engine.serving.request_queue import (
    DEAR_S,
    MAX_GROWTH,
    SAMPLES,
    SLOW_S,
    LoopCost,
    RequestQueue,
)
from quadriga.proto.errors import DeadlineExceeded, InvalidRequest
from quadriga.proto.request import Deadline

LONG_WAIT_S = 30.0
BYTES = 100


def dear():
    end_s = time.thread_time() + 2 * DEAR_S
    while time.thread_time() < end_s:
        pass
    return threading.current_thread()


def refused():
    raise InvalidRequest("no")


@asynccontextmanager
async def queue_of(task=threading.current_thread, body_bytes=BYTES):
    """Make a queue whose model `a` has run a task as often as its median is taken of."""
    queue = RequestQueue(2, 256, LONG_WAIT_S)
    try:
        for _ in range(SAMPLES):
            with suppress(InvalidRequest):
                await queue.run(task, model="a", body_bytes=body_bytes)
        yield queue
    finally:
        queue.close()


@pytest.mark.parametrize(
    ("warm_up", "options", "is_on_loop"),
    [
        pytest.param(threading.current_thread, {}, True, id="cheap"),
        pytest.param(
            threading.current_thread, {"body_bytes": MAX_GROWTH * BYTES}, True, id="largest"
        ),
        pytest.param(
            threading.current_thread, {"body_bytes": MAX_GROWTH * BYTES + 1}, False, id="larger"
        ),
        pytest.param(threading.current_thread, {"body_bytes": None}, False, id="not light"),
        pytest.param(threading.current_thread, {"model": "b"}, False, id="another model"),
        pytest.param(dear, {}, False, id="dear"),
        pytest.param(refused, {}, False, id="refusals are no measure"),
    ],
)
async def test_what_is_known_to_be_cheap_runs_on_the_loop(warm_up, options, is_on_loop):
    async with queue_of(warm_up) as queue:
        thread = await queue.run(
            threading.current_thread, **{"model": "a", "body_bytes": BYTES, **options}
        )
        assert (thread is threading.current_thread()) == is_on_loop


async def test_larger_requests_come_to_the_loop_once_they_were_measured():
    async with queue_of() as queue:
        larger = {"model": "a", "body_bytes": 10 * BYTES}
        threads = [await queue.run(threading.current_thread, **larger) for _ in range(SAMPLES + 1)]
        main = threading.current_thread()
        assert main not in threads[:SAMPLES]
        assert threads[SAMPLES] is main
        assert await queue.run(threading.current_thread, model="a", body_bytes=BYTES) is main


async def test_what_was_never_light_is_no_measure():
    async with queue_of(body_bytes=None) as queue:
        thread = await queue.run(threading.current_thread, model="a", body_bytes=BYTES)
        assert thread is not threading.current_thread()


async def test_a_load_of_many_connections_comes_to_the_loop():
    queue = RequestQueue(2, 256, LONG_WAIT_S)
    main = threading.current_thread()

    async def ask(connection):
        threads = [
            await queue.run(
                threading.current_thread, model="a", connection=connection, body_bytes=1
            )
            for _ in range(10 * SAMPLES)
        ]
        return threads[-1]

    try:
        assert await asyncio.gather(*map(ask, range(8))) == [main] * 8
    finally:
        queue.close()


async def test_a_request_without_time_does_not_begin_on_the_loop():
    async with queue_of() as queue:
        deadline = Deadline(0)
        with pytest.raises(DeadlineExceeded):
            await queue.run(
                threading.current_thread, model="a", deadline=deadline, body_bytes=BYTES
            )


async def test_an_error_on_the_loop_belongs_to_its_request():
    async with queue_of() as queue:
        with pytest.raises(InvalidRequest):
            await queue.run(refused, model="a", body_bytes=BYTES)
        thread = await queue.run(threading.current_thread, model="a", body_bytes=BYTES)
        assert thread is threading.current_thread()


@pytest.mark.parametrize(
    ("elapsed_s", "stays"),
    [
        ([0.0001] * 100, True),
        ([0.0001] * 50 + [0.15] + [0.0001] * 50, True),  # it waited for the processor
        ([DEAR_S * 1.1] * 100, False),
        ([0.0001, 0.3], False),
        ([0.0001] * 50 + [SLOW_S * 2] * 50, False),
    ],
)
def test_a_model_leaves_the_loop_when_it_gets_dear(elapsed_s, stays):
    cost = LoopCost()
    for _ in range(SAMPLES):
        cost.note_thread(0.0001, BYTES)
    assert cost.is_cheap
    for one_s in elapsed_s:
        cost.note_loop(one_s)
    assert cost.is_cheap == stays


def test_a_model_that_left_the_loop_stays_away_for_longer_each_time(monkeypatch):
    cost, now_s, pauses_s = LoopCost(), [100.0], []
    monkeypatch.setattr(request_queue.time, "monotonic", lambda: now_s[0])
    for _ in range(4):
        left_s = now_s[0]
        cost.leave()
        while not cost.is_cheap:
            now_s[0] += 0.5
            for _ in range(SAMPLES):
                if cost.wants_sample(BYTES):
                    cost.note_thread(0.0001, BYTES)
        pauses_s.append(now_s[0] - left_s)
    assert pauses_s == [1, 2, 4, 8]
