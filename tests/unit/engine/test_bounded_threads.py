"""Work of one kind is bounded: what runs, what waits, and how long; what is refused says when to come again."""

import asyncio
import threading

import pytest

from quadriga.engine.models.runners.bounded_threads import BoundedThreads, ThreadsFull
from quadriga.store.records.errors import QueryCancelledError
from tests.background import until


@pytest.fixture
def hold():
    event = threading.Event()
    yield event
    event.set()


async def test_results_and_errors_come_back() -> None:
    threads = BoundedThreads("queries", 1, 0, 1.0)
    assert await threads.run(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)
    assert await threads.run(lambda: 43) == 43  # the thread was given back


async def test_what_is_beyond_the_limits_is_refused_at_once_and_the_rest_is_done(hold) -> None:
    threads = BoundedThreads("queries", 2, 3, 30.0)
    running = [asyncio.ensure_future(threads.run(hold.wait)) for _ in range(20)]
    await asyncio.to_thread(until, lambda: sum(task.done() for task in running) == 15)
    assert (threads.waiting, threads.refused) == (3, 15)
    hold.set()
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert ends[:5] == [True] * 5
    assert all(isinstance(end, ThreadsFull) for end in ends[5:])
    assert str(ends[5]) == "expected at most 3 waiting queries, got one more"
    assert (threads.waiting, await threads.run(lambda: 1)) == (0, 1)


async def test_waiting_ends_in_time(hold) -> None:
    threads = BoundedThreads("queries", 1, 3, 0.05)
    first = asyncio.ensure_future(threads.run(hold.wait))
    await asyncio.sleep(0)
    with pytest.raises(ThreadsFull, match=r"one of 1 threads .* within 0\.05 s, got none"):
        await threads.run(lambda: 1)
    hold.set()
    assert await first
    assert await threads.run(lambda: 1) == 1  # the wait that was given up took no turn


async def test_retry_after_grows_with_the_queue_and_with_how_long_the_work_takes(hold) -> None:
    threads = BoundedThreads("queries", 2, 9, 30.0)
    assert threads._full("").retry_after_s == 1
    threads._mean_s = 4.0
    waiting = [asyncio.ensure_future(threads.run(hold.wait)) for _ in range(11)]
    await asyncio.to_thread(until, lambda: threads.waiting == 9)
    assert threads._full("").retry_after_s == 20  # ten of 4 s each, in two threads
    threads._mean_s = 400.0
    assert threads._full("").retry_after_s == 60
    hold.set()
    await asyncio.gather(*waiting)


async def test_a_client_that_leaves_no_longer_waits(hold) -> None:
    threads = BoundedThreads("queries", 1, 1, 30.0)
    first = asyncio.ensure_future(threads.run(hold.wait))
    await asyncio.sleep(0)
    gone = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        async with threads.turn(gone):
            raise AssertionError

    second = asyncio.ensure_future(wait())
    await asyncio.to_thread(until, lambda: threads.waiting)
    gone.set_result(None)
    with pytest.raises(QueryCancelledError):
        await second
    assert threads.waiting == 0
    hold.set()
    await first
    assert await threads.run(lambda: 1) == 1
