"""The queue of requests: models and connections take turns, waits are bounded, and stopped requests end."""

import asyncio
import gc
import logging
import os
import random
import sys
import threading
import time
import weakref
from contextlib import asynccontextmanager
from functools import partial

import pytest

from quadriga.engine.models.model_control import merge_queue_statistics
from quadriga.engine.models.runners.batched_runs import without_place
from quadriga.engine.serving import request_queue
from quadriga.engine.serving.request_queue import (
    LONG_RUN_NICE,
    SPARE_THREADS,
    ModelLane,
    RequestQueue,
    Ticket,
)
from quadriga.proto.errors import ClientLeft, DeadlineExceeded, ModelNotReady, WaitTooLong
from quadriga.proto.request import (
    Deadline,
    QueueStatistics,
    RequestContext,
    check_deadline,
    current_deadline,
)

LONG_S = 30.0


class Gate:
    """Tasks that run until they are let go, or their request is stopped."""

    def __init__(self):
        self.opened = threading.Event()
        self.begun = []
        self.ended = []

    def task(self, name):
        def wait():
            self.begun.append(name)
            end_s = time.monotonic() + LONG_S
            try:
                while not self.opened.wait(0.005) and time.monotonic() < end_s:
                    check_deadline()
            finally:
                self.ended.append(name)
            return name

        return wait


@asynccontextmanager
async def queue_of(threads=2, max_waiting=256, max_wait_s=LONG_S):
    queue, gate = RequestQueue(threads, max_waiting, max_wait_s), Gate()
    try:
        yield queue, gate
    finally:
        gate.opened.set()
        queue.close()


async def until(condition):
    end_s = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.005)


def numbers(queue, model):
    (entry,) = [entry for entry in queue.statistics() if entry.model == model]
    return entry


async def test_results_and_errors_reach_the_caller():
    async with queue_of() as (queue, _):
        assert await queue.run(lambda: 1, model="a") == 1
        with pytest.raises(KeyError):
            await queue.run(partial({}.__getitem__, "x"), model="a")
        assert await queue.run(current_deadline, model="a", deadline=(d := Deadline(9))) is d
        assert current_deadline() is None


async def test_a_slow_model_leaves_threads_and_places_to_the_others():
    async with queue_of(threads=2, max_waiting=3) as (queue, gate):
        slow = [queue.run(gate.task(f"slow {n}"), model="slow") for n in range(5)]
        with pytest.raises(WaitTooLong, match="fewer than 3 waiting requests of a model"):
            queue.run(gate.task("too many"), model="slow")
        others = [f"model {n}" for n in range(SPARE_THREADS)]
        answers = [queue.run(partial(str, name), model=name) for name in others]
        assert await asyncio.wait_for(asyncio.gather(*answers), LONG_S) == others
        assert sorted(gate.begun) == ["slow 0", "slow 1"]
        entry = numbers(queue, "slow")
        assert (entry.running, entry.waiting, entry.refused) == (2, 3, {"queue_full": 1})
        gate.opened.set()
        await asyncio.gather(*slow)
        assert sorted(gate.begun) == [f"slow {n}" for n in range(5)]


async def test_a_model_that_runs_nothing_finds_a_thread_though_all_models_are_slow():
    async with queue_of(threads=1) as (queue, gate):
        count = 1 + SPARE_THREADS
        futures = [queue.run(gate.task(n), model=f"model {n}") for n in range(count + 1)]
        await until(lambda: len(gate.begun) == count)
        assert numbers(queue, f"model {count}").waiting == 1  # no thread is left for this one
        gate.opened.set()
        assert await asyncio.gather(*futures) == list(range(count + 1))


async def test_a_request_that_waits_for_others_leaves_its_place_to_them_and_to_other_models():
    async with queue_of(threads=1) as (queue, gate):
        inner = Gate()

        def parked(name):
            def wait():
                with without_place():
                    gate.task(name)()
                return inner.task(name)()

            return wait

        names = [f"a{n}" for n in range(3)]
        futures = [queue.run(parked(name), model="a") for name in names]
        await until(lambda: len(gate.begun) == 3)  # though there is one thread
        assert numbers(queue, "a").running == 3
        assert await asyncio.wait_for(queue.run(partial(str, "b"), model="b"), LONG_S) == "b"
        gate.opened.set()
        await until(lambda: len(inner.begun) == 3)
        # They all go on at once: nothing further of their model begins, but other models do.
        later = queue.run(inner.task("later"), model="a")
        assert numbers(queue, "a").waiting == 1
        held = Gate()
        holder = queue.run(held.task("b"), model="b")
        await until(lambda: held.begun)
        assert await asyncio.wait_for(queue.run(partial(str, "c"), model="c"), LONG_S) == "c"
        held.opened.set()
        inner.opened.set()
        assert await asyncio.gather(*futures, later, holder) == [*names, "later", "b"]
        assert numbers(queue, "a").running == 0
        assert queue._running == 0


async def test_the_expected_wait_counts_those_that_wait_for_others_as_running():
    lane = ModelLane("a", 1)
    lane.mean_s = 1.0
    lane.begin(time.monotonic())
    lane.add(Ticket(str, None, lane, 1, RequestContext(deadline=Deadline())))
    alone_s = lane.expected_wait_s(2, time.monotonic())
    lane.parked = 3
    assert alone_s == pytest.approx(4 * lane.expected_wait_s(2, time.monotonic()))


async def test_models_take_threads_in_turns():
    async with queue_of(threads=1) as (queue, gate):
        holders = [queue.run(gate.task(n), model=f"holder {n}") for n in range(SPARE_THREADS)]
        released = Gate()
        last = queue.run(released.task("last"), model="last")
        order = []
        futures = [
            queue.run(partial(order.append, f"{model}{n}"), model=model)
            for model in ("b", "a")
            for n in range(3)
        ]
        released.opened.set()  # one thread for both models
        await asyncio.gather(last, *futures)
        assert order == ["b0", "a0", "b1", "a1", "b2", "a2"]
        gate.opened.set()
        await asyncio.gather(*holders)


async def test_connections_to_a_model_take_turns():
    async with queue_of(threads=1, max_waiting=8) as (queue, gate):
        first = queue.run(gate.task("first"), model="a")
        await until(lambda: gate.begun)
        order = []
        greedy = [
            queue.run(partial(order.append, f"greedy {n}"), model="a", connection="greedy")
            for n in range(8)
        ]
        modest = queue.run(partial(order.append, "modest"), model="a", connection="modest")
        with pytest.raises(WaitTooLong):  # the last of the greedy ones gave way
            await greedy.pop()
        with pytest.raises(WaitTooLong):
            queue.run(partial(order.append, "more"), model="a", connection="greedy")
        gate.opened.set()
        await asyncio.gather(first, modest, *greedy)
        assert order.index("modest") == 1
        assert numbers(queue, "a").refused == {"queue_full": 2}


async def test_a_request_that_would_wait_too_long_is_refused_with_the_time_to_come_back():
    async with queue_of(threads=1, max_wait_s=2) as (queue, gate):
        lane = queue._lane("a")
        lane.mean_s = 0.9
        futures = [queue.run(gate.task(n), model="a") for n in range(4)]  # one runs, three wait
        with pytest.raises(WaitTooLong, match=r"about 2\.7 s, and max_wait_s is 2") as refused:
            queue.run(gate.task("late"), model="a")
        assert refused.value.retry_after_s == 3
        assert await queue.run(lambda: "other", model="b") == "other"
        gate.opened.set()
        await asyncio.gather(*futures)
        assert numbers(queue, "a").refused == {"wait_too_long": 1}


async def test_a_request_with_less_time_than_it_would_wait_is_refused_at_once():
    async with queue_of(threads=1) as (queue, gate):
        queue._lane("a").mean_s = 5
        futures = [queue.run(gate.task(n), model="a") for n in range(3)]
        with pytest.raises(WaitTooLong, match="the request has"):
            queue.run(gate.task("hasty"), model="a", deadline=Deadline(3))
        gate.opened.set()
        await asyncio.gather(*futures)


def test_the_expected_wait_follows_measured_times_and_stalls():
    lane = ModelLane("a", 2)
    assert lane.expected_wait_s(None, 100) == 0
    lane.begin(100)
    lane.begin(100)
    assert lane.expected_wait_s(None, 130) == 30  # nothing has ended for 30 s
    lane.end(130, 1.0)
    lane.begin(130)
    assert lane.mean_s == 1.0
    for number in range(8):
        lane.add(Ticket(None, None, lane, number % 3 // 2, RequestContext(deadline=Deadline())))
    assert lane.expected_wait_s(0, 130.5) == 4
    assert lane.expected_wait_s("new", 130.5) == 1  # behind the next one of each connection
    lane.end(131, 2.0)
    assert lane.mean_s == pytest.approx(1.1)


def test_what_is_counted_of_the_waiting_is_what_their_definition_says():
    """The wait of a request, and the connection that gives way to it, after any order of arrivals and ends."""
    chance = random.Random(3)
    lane = ModelLane("a", 1)
    lane.begin(0.0)
    lane.end(1.0, 1.0)  # a request takes a second
    waiting: dict[int, list[Ticket]] = {}
    for _ in range(3000):
        if chance.random() < 0.52:
            connection = int(chance.paretovariate(0.8)) % 40
            ticket = Ticket(
                lambda: None, None, lane, connection, RequestContext(deadline=Deadline())
            )
            lane.add(ticket)
            waiting.setdefault(connection, []).append(ticket)
        elif lane.waiting:
            if chance.random() < 0.5:
                ticket = lane.take()
            else:
                ticket = chance.choice([t for tickets in waiting.values() for t in tickets])
                lane.remove(ticket)
            waiting[ticket.connection].remove(ticket)
        lengths = [len(tickets) for tickets in waiting.values()]
        assert lane.waiting == sum(lengths)
        for connection in (0, 1, chance.randrange(40), "new"):
            own = len(waiting.get(connection, ()))
            assert lane.expected_wait_s(connection, 2.0) == sum(min(n, own + 1) for n in lengths)
            victim = lane.newest_of_longest(connection)
            if max(lengths, default=0) <= own + 1:
                assert victim is None
            else:
                assert len(waiting[victim.connection]) == max(lengths)
                assert victim is waiting[victim.connection][-1]


async def test_a_request_whose_time_is_over_in_the_queue_is_never_begun():
    async with queue_of(threads=1) as (queue, gate):
        running = queue.run(gate.task("runs"), model="a")
        await until(lambda: gate.begun)
        with pytest.raises(DeadlineExceeded, match="within 1 s"):
            await asyncio.wait_for(
                queue.run(gate.task("late"), model="a", deadline=Deadline(1.0)), LONG_S
            )
        entry = numbers(queue, "a")
        assert (entry.waiting, entry.stopped) == (0, {"deadline": 1})
        gate.opened.set()
        await running
        assert gate.begun == ["runs"]
        with pytest.raises(DeadlineExceeded):
            queue.run(gate.task("dead"), model="a", deadline=Deadline(0))


async def test_a_running_request_is_answered_when_its_time_is_over_and_ends_at_its_next_check():
    async with queue_of(threads=1) as (queue, gate):
        deadline = Deadline(LONG_S)
        future = queue.run(gate.task("long"), model="a", deadline=deadline)
        await until(lambda: gate.begun)
        deadline.stop(deadline.exceeded())
        with pytest.raises(DeadlineExceeded):
            await asyncio.wait_for(future, LONG_S)
        await until(lambda: gate.ended)
        await until(lambda: numbers(queue, "a").running == 0)
        assert await queue.run(lambda: "works", model="a") == "works"
        assert numbers(queue, "a").stopped == {"deadline": 1}


async def test_a_deadline_that_is_shortened_while_its_request_runs_counts():
    async with queue_of(threads=1) as (queue, gate):
        deadline = Deadline(LONG_S)
        future = queue.run(gate.task("long"), model="a", deadline=deadline)
        await until(lambda: gate.begun)
        deadline.shorten(0.05, "a test")
        queue.watch(deadline)
        with pytest.raises(DeadlineExceeded, match="the limit is a test"):
            await asyncio.wait_for(future, LONG_S)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_handler_that_is_cancelled_ends_its_request(waits):
    async with queue_of(threads=1) as (queue, gate):
        first = queue.run(gate.task("first"), model="a")
        await until(lambda: gate.begun)
        future = queue.run(gate.task("second"), model="a") if waits else first
        future.cancel()
        await until(lambda: numbers(queue, "a").stopped == {"client_left": 1})
        if waits:
            assert (numbers(queue, "a").waiting, numbers(queue, "a").running) == (0, 1)
        else:
            await until(lambda: gate.ended == ["first"])
        gate.opened.set()
        if waits:
            await first
            assert gate.begun == ["first"]


async def test_a_step_of_a_stream_is_neither_refused_nor_answered_early():
    async with queue_of(threads=1, max_waiting=1) as (queue, gate):
        first = queue.run(gate.task("first"), model="a")
        waiting = queue.run(gate.task("second"), model="a")
        deadline = Deadline(LONG_S)
        step = queue.run(lambda: "step", model="a", deadline=deadline, is_begun=True)
        deadline.stop(ClientLeft("gone"))
        await asyncio.sleep(0.05)
        assert not step.done()
        gate.opened.set()
        assert await step == "step"  # it ends by checks of its own
        await asyncio.gather(first, waiting)


async def test_requests_without_a_known_model_have_threads_of_their_own():
    async with queue_of(threads=1) as (queue, gate):
        unknown = [queue.run(gate.task(n)) for n in range(5)]
        await until(lambda: len(gate.begun) == 2)
        assert await queue.run(lambda: "served", model="a") == "served"
        gate.opened.set()
        await asyncio.gather(*unknown)


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads")
async def test_what_runs_for_long_leaves_the_processor_to_other_models(monkeypatch):
    monkeypatch.setattr(request_queue, "LONG_RUN_S", 0.05)

    def priority():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async with queue_of(threads=2) as (queue, gate):
        normal = await queue.run(priority, model="quick")

        def run_long():
            gate.task("long")()
            return priority()

        long = queue.run(run_long, model="long")
        await until(lambda: gate.begun)
        await asyncio.sleep(0.1)
        assert await queue.run(priority, model="long") == normal  # its own model does not slow it
        await asyncio.sleep(0.1)
        assert await queue.run(priority, model="quick") == normal
        gate.opened.set()
        assert await long == max(normal, LONG_RUN_NICE)
        later = [queue.run(priority, model=model) for model in ("long", "long", "quick", "quick")]
        assert set(await asyncio.gather(*later)) == {normal}  # the slow thread has ended


async def test_refused_requests_are_logged_once_a_second_with_their_number(caplog):
    caplog.set_level(logging.WARNING, "quadriga.requests")
    async with queue_of(threads=1, max_waiting=1) as (queue, gate):
        futures = [queue.run(gate.task(n), model="a") for n in range(2)]
        for _ in range(50):
            with pytest.raises(WaitTooLong):
                queue.run(gate.task("more"), model="a")

        def logged():
            return sum(int(r.getMessage().split(": ")[1].split()[0]) for r in caplog.records)

        await until(lambda: logged() == 50)
        assert len(caplog.records) <= 3
        assert "of a (queue_full)" in caplog.records[0].getMessage()
        gate.opened.set()
        await asyncio.gather(*futures)


async def test_closing_stops_what_runs_and_waits():
    queue, gate = RequestQueue(1, 8, LONG_S), Gate()
    futures = [queue.run(gate.task(n), model="a") for n in range(3)]
    await until(lambda: gate.begun)
    queue.close()
    errors = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(error) for error in errors] == [ModelNotReady] * 3
    assert gate.ended == [0]


async def test_no_request_is_lost_under_many_at_once():
    async with queue_of(threads=3, max_waiting=10_000) as (queue, _):
        futures = [
            queue.run(partial(int, n), model=f"model {n % 7}", connection=n % 5)
            for n in range(2000)
        ]
        for n in range(0, 2000, 9):
            futures[n].cancel()
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [r for n, r in enumerate(results) if n % 9] == [n for n in range(2000) if n % 9]
        await until(lambda: all(entry.running == 0 for entry in queue.statistics()))
        assert all(entry.waiting == 0 for entry in queue.statistics())
        assert not queue._tickets
        assert not queue._turns


async def test_a_request_is_freed_with_its_answer_without_the_garbage_collector():
    class Body:
        """What a request holds."""

    async with queue_of(threads=1) as (queue, _):
        bodies = [Body() for _ in range(2)]
        freed = [weakref.ref(body) for body in bodies]
        gc.disable()
        try:
            for body in bodies:
                await queue.run(partial(str, body), model="a", deadline=Deadline(LONG_S))
            del body
            bodies.clear()
            await until(lambda: not any(reference() for reference in freed))
        finally:
            gc.enable()


async def test_a_request_is_freed_with_its_error_and_the_cause_of_that_error():
    class Body:
        """What a request holds."""

    def refuse(body):
        try:
            raise KeyError(type(body).__name__)
        except KeyError as error:
            raise ValueError("expected another body") from error

    async def ask(queue, body):
        try:
            await queue.run(partial(refuse, body), model="a", deadline=Deadline(LONG_S))
        except ValueError as error:
            error.__traceback__ = None  # as the edge does

    async with queue_of(threads=1) as (queue, _):
        freed = []
        gc.disable()
        try:
            for _ in range(2):
                body = Body()
                freed.append(weakref.ref(body))
                await ask(queue, body)
                del body
            await until(lambda: not any(reference() for reference in freed))
        finally:
            gc.enable()


def test_statistics_of_workers_are_added_up():
    first = [
        QueueStatistics("a", 1, 2, {"queue_full": 1}, {"deadline": 1}),
        QueueStatistics("b", 5),
    ]
    second = [QueueStatistics("a", 3, 1, {"queue_full": 2, "wait_too_long": 4})]
    assert merge_queue_statistics([first, second]) == [
        QueueStatistics("a", 4, 3, {"queue_full": 3, "wait_too_long": 4}, {"deadline": 1}),
        QueueStatistics("b", 5),
    ]
