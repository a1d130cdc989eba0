"""Requests on the event loop: the cheap ones run there, and what is not cheap, or takes long, runs in a thread."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager, suppress

import pytest

from quadriga.engine.models.runners import loop_runs
from quadriga.engine.models.runners.loop_runs import (
    DEAR_S,
    MAX_BODY_BYTES,
    SAMPLES,
    SLOW_S,
    LoopCost,
    leave_loop,
    note_light,
    stay_on_loop,
)
from quadriga.engine.serving.request_queue import RequestQueue
from quadriga.proto.deadline import Deadline, check_deadline
from quadriga.proto.errors import DeadlineExceeded, InvalidRequest, ProtocolError

LONG_WAIT_S = 30.0


def light():
    note_light()
    return threading.current_thread()


def dear():
    end_s = time.thread_time() + 2 * DEAR_S
    while time.thread_time() < end_s:
        pass
    return light()


def refused():
    note_light()
    raise InvalidRequest("no")


@asynccontextmanager
async def queue_of(task=light):
    """Make a queue whose model `a` has run a task as often as its median is taken of."""
    queue = RequestQueue(2, 256, LONG_WAIT_S)
    try:
        for _ in range(SAMPLES):
            with suppress(InvalidRequest):
                await queue.run(task, model="a", body_bytes=1)
        yield queue
    finally:
        queue.close()


@pytest.mark.parametrize(
    ("warm_up", "options", "is_on_loop"),
    [
        pytest.param(light, {"body_bytes": 1}, True, id="cheap"),
        pytest.param(light, {"body_bytes": MAX_BODY_BYTES}, True, id="largest"),
        pytest.param(light, {"body_bytes": MAX_BODY_BYTES + 1}, False, id="large"),
        pytest.param(light, {}, False, id="of unknown size"),
        pytest.param(light, {"body_bytes": 1, "model": "b"}, False, id="another model"),
        pytest.param(threading.current_thread, {"body_bytes": 1}, False, id="not light"),
        pytest.param(dear, {"body_bytes": 1}, False, id="dear"),
        pytest.param(refused, {"body_bytes": 1}, False, id="refusals are no measure"),
    ],
)
async def test_what_is_known_to_be_cheap_runs_on_the_loop(warm_up, options, is_on_loop):
    async with queue_of(warm_up) as queue:
        thread = await queue.run(light, **{"model": "a", **options})
        assert (thread is threading.current_thread()) == is_on_loop


async def test_a_load_of_many_connections_comes_to_the_loop():
    queue = RequestQueue(2, 256, LONG_WAIT_S)
    main = threading.current_thread()

    async def ask(connection):
        threads = [
            await queue.run(light, model="a", connection=connection, body_bytes=1)
            for _ in range(10 * SAMPLES)
        ]
        return threads[-1]

    try:
        assert await asyncio.gather(*map(ask, range(8))) == [main] * 8
    finally:
        queue.close()


async def test_a_request_that_may_take_long_is_answered_by_a_thread_from_its_beginning():
    async with queue_of() as queue:
        threads = []

        def task():
            threads.append(threading.current_thread())
            leave_loop()
            return len(threads)

        assert await queue.run(task, model="a", body_bytes=1) == 2
        assert threads[0] is threading.current_thread() is not threads[1]
        assert await queue.run(light, model="a", body_bytes=1) is not threading.current_thread()


async def test_who_answers_errors_of_a_request_does_not_see_that_it_leaves_the_loop():
    """Streams over gRPC answer errors themselves."""
    async with queue_of() as queue:

        def task():
            try:
                leave_loop()
            except ProtocolError:
                return None
            return threading.current_thread()

        assert await queue.run(task, model="a", body_bytes=1) not in (
            None,
            threading.current_thread(),
        )


async def test_a_request_that_takes_long_leaves_the_loop():
    async with queue_of() as queue:
        threads = []

        def task():
            threads.append(threading.current_thread())
            end_s = time.monotonic() + LONG_WAIT_S
            while len(threads) == 1 and time.monotonic() < end_s:
                check_deadline()
            return "answered"

        assert await queue.run(task, model="a", deadline=Deadline(60), body_bytes=1) == "answered"
        assert len(threads) == 2


async def test_what_has_stored_something_is_not_done_again():
    async with queue_of() as queue:
        runs = []

        def task():
            runs.append(threading.current_thread())
            stay_on_loop()
            leave_loop()
            end_s = time.monotonic() + 2 * loop_runs.MAX_RUN_S
            while time.monotonic() < end_s:
                check_deadline()
            return "stored once"

        assert (
            await queue.run(task, model="a", deadline=Deadline(60), body_bytes=1) == "stored once"
        )
        assert runs == [threading.current_thread()]


async def test_a_request_on_the_loop_ends_with_its_time():
    async with queue_of() as queue:

        def task():
            stay_on_loop()
            end_s = time.monotonic() + LONG_WAIT_S
            while time.monotonic() < end_s:
                check_deadline()

        with pytest.raises(DeadlineExceeded):
            await queue.run(task, model="a", deadline=Deadline(0.1), body_bytes=1)


async def test_an_error_on_the_loop_belongs_to_its_request():
    async with queue_of() as queue:
        with pytest.raises(InvalidRequest):
            await queue.run(refused, model="a", body_bytes=1)
        assert await queue.run(light, model="a", body_bytes=1) is threading.current_thread()


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
        cost.note_thread(0.0001)
    assert cost.is_cheap
    for one_s in elapsed_s:
        cost.note_loop(one_s)
    assert cost.is_cheap == stays


def test_a_model_that_left_the_loop_stays_away_for_longer_each_time(monkeypatch):
    cost, now_s, pauses_s = LoopCost(), [100.0], []
    monkeypatch.setattr(loop_runs.time, "monotonic", lambda: now_s[0])
    for _ in range(4):
        left_s = now_s[0]
        cost.leave()
        while not cost.is_cheap:
            now_s[0] += 0.5
            for _ in range(SAMPLES):
                if cost.wants_sample():
                    cost.note_thread(0.0001)
        pauses_s.append(now_s[0] - left_s)
    assert pauses_s == [1, 2, 4, 8]
