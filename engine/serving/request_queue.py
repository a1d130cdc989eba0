"""Which request runs next: each model has a queue of its own, and models take the threads in turns.

A model runs at most `threads` requests at once. One that runs none finds a thread also if other models hold all of
them (`SPARE_THREADS`), so a slow or endless model fills its own queue only; what runs for long leaves the processor to
requests of other models. Within the queue of a model, connections
take turns. A request is refused where its expected wait is too long, and is stopped once its deadline passes or its
client leaves.
"""

import asyncio
import logging
import math
import os
import queue
import statistics
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from quadriga.proto.errors import ClientLeft, DeadlineExceeded, ModelNotReady, WaitTooLong
from quadriga.proto.request import (
    Deadline,
    QueueStatistics,
    RequestContext,
    current_request,
    set_current_request,
)

MEAN_WEIGHT = 0.1
"""Weight of the last request in the mean time that requests of a model take."""

MAX_BODY_BYTES = 64 * 1024
"""Largest body of a request that the event loop answers itself, as handing it to a thread would cost more than it does."""

MAX_GROWTH = 4
"""Size of such a request beside those that were measured, at most: the same tensors as JSON have three times the bytes."""

CHEAP_S, DEAR_S = 0.0006, 0.0018
"""Processor time below which the median of `SAMPLES` requests brings a model to the loop, and mean time above which it
leaves it. A thread for a request costs 0.2 ms, and 0.4 ms beside seven others: two changes of the thread that runs Python are
the most of it."""

SAMPLES = 15

SLOW_S = 0.02
"""Mean time above which a model leaves the loop, though it uses little of it, as where the disk does not keep up; one
request that waited for the processor does not count for much."""

MAX_COUNTED_S = 0.003
"""Time of one request that counts for the mean: one search for garbage, or a wait for the processor, says little."""

MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 300.0
"""Time for which a model that left the loop stays away from it: twice as long each time, unless it had stayed for long."""


class Ticket:
    """One task that waits or runs, and the future with its result."""

    def __init__(
        self,
        task: Callable[[], Any],
        future: "asyncio.Future[Any]",
        lane: "ModelLane",
        connection: Hashable,
        request: RequestContext,
    ) -> None:
        assert request.deadline is not None, "what waits has a deadline"
        self.request = request
        self.task = task
        self.future = future
        self.lane = lane
        self.connection = connection
        self.deadline = request.deadline
        self.queued_ns = time.perf_counter_ns()
        self.is_begun = False
        """Whether it continues a request that was admitted."""
        self.body_bytes: int | None = None
        """Size of the request, where the loop could answer it."""
        self.is_running = False
        self.holds_place = False
        """Whether it counts among the running requests of all models."""
        self.is_slowed = False
        """Whether its thread has a lower priority, which it cannot raise again."""
        self.begun_s = 0.0
        self.thread_id = 0

    def resolve(self, result: Any, error: BaseException | None) -> None:
        """Give the result to the event loop, unless it has one."""
        self.deadline.on_stop(None)  # ends a cycle of references that would hold the request
        try:
            self.future.get_loop().call_soon_threadsafe(_resolve, self.future, result, error)
        except RuntimeError:  # the loop is closed: nobody waits
            return


class LoopCost:
    """What the requests to one model cost, and whether the loop answers them; used with the lock of the queue held."""

    def __init__(self) -> None:
        self.is_cheap = False
        """Whether the loop answers what may be answered there."""
        self._samples: list[tuple[float, int]] = []
        self._cheap_bytes = 0
        self._mean_s = self._mean_elapsed_s = 0.0
        self._pause_s = MIN_PAUSE_S
        self._back_s = self._since_s = 0.0

    def wants_sample(self, body_bytes: int) -> bool:
        """Check whether the processor time of a request in a thread is to be taken, which takes 1 us."""
        return not self.is_cheap_at(body_bytes) and time.monotonic() >= self._back_s

    def is_cheap_at(self, body_bytes: int) -> bool:
        """Check whether the loop answers a request of a size: one of more bytes than were measured may take longer."""
        return self.is_cheap and body_bytes <= self._cheap_bytes

    def note_thread(self, cpu_s: float, body_bytes: int) -> None:
        """Note a request that a thread answered, with its size."""
        samples = self._samples
        samples.append((cpu_s, body_bytes))
        if len(samples) < SAMPLES:
            return
        now_s = time.monotonic()
        if statistics.median(cpu_s for cpu_s, _ in samples) < CHEAP_S:
            self.is_cheap, self._since_s = True, now_s
            self._mean_s = self._mean_elapsed_s = CHEAP_S
            self._cheap_bytes = MAX_GROWTH * statistics.median_high(size for _, size in samples)
        else:
            self._back_s = now_s + MIN_PAUSE_S
        samples.clear()

    def note_loop(self, elapsed_s: float) -> None:
        """Note a request that the loop answered."""
        self._mean_elapsed_s += MEAN_WEIGHT * (elapsed_s - self._mean_elapsed_s)
        elapsed_s = min(elapsed_s, MAX_COUNTED_S)
        self._mean_s += MEAN_WEIGHT * (elapsed_s - self._mean_s)
        if self._mean_s > DEAR_S or self._mean_elapsed_s > SLOW_S:
            self.leave()

    def leave(self) -> None:
        """Let threads answer for some time."""
        now_s = time.monotonic()
        stayed_s = now_s - self._since_s
        self._pause_s = (
            MIN_PAUSE_S if stayed_s > 10 * self._pause_s else min(2 * self._pause_s, MAX_PAUSE_S)
        )
        self._back_s = now_s + self._pause_s
        self.is_cheap = False


class ModelLane:
    """The requests to one model; used with the lock of the queue held."""

    def __init__(self, model: str, max_running: int) -> None:
        self.model = model
        self.max_running = max_running
        self.running = 0
        self.parked = 0
        """Requests in a thread that wait for others, and run no more than those that wait for a thread."""
        self.waiting = 0
        self.mean_s = 0.0
        self.cost = LoopCost()
        """What requests cost, and whether the event loop answers them."""
        self.progress_s = 0.0
        """Moment at which a request last began or ended."""
        self.refused: Counter[str] = Counter()
        self.stopped: Counter[str] = Counter()
        self._by_connection: dict[Hashable, deque[Ticket]] = {}
        """Waiting tickets; connections in the order of their turns."""
        self._connections_with: list[int] = []
        """Number of connections that have more waiting tickets than the position says; no number is 0."""

    def add(self, ticket: Ticket) -> None:
        """Let a ticket wait."""
        tickets = self._by_connection.setdefault(ticket.connection, deque())
        if len(tickets) == len(self._connections_with):
            self._connections_with.append(0)
        self._connections_with[len(tickets)] += 1
        tickets.append(ticket)
        self.waiting += 1

    def take(self) -> Ticket:
        """Take the next ticket: connections take turns."""
        connection = next(iter(self._by_connection))
        tickets = self._by_connection.pop(connection)
        ticket = tickets.popleft()
        if tickets:
            self._by_connection[connection] = tickets
        self._forget(len(tickets))
        return ticket

    def remove(self, ticket: Ticket) -> None:
        """Take a ticket that waits out of its turn."""
        tickets = self._by_connection[ticket.connection]
        tickets.remove(ticket)
        if not tickets:
            del self._by_connection[ticket.connection]
        self._forget(len(tickets))

    def _forget(self, left: int) -> None:
        """Count one ticket less, of a connection that has so many left."""
        self.waiting -= 1
        self._connections_with[left] -= 1
        if not self._connections_with[left]:  # those that have more are none, too
            self._connections_with.pop()

    def begin(self, now_s: float) -> None:
        """Note that a request begins."""
        self.running += 1
        self.progress_s = now_s

    def end(self, now_s: float, elapsed_s: float) -> None:
        """Note that a request has ended, and how long it took."""
        self.running -= 1
        self.note(now_s, elapsed_s)

    def note(self, now_s: float, elapsed_s: float) -> None:
        """Note how long a request took that has ended now."""
        self.progress_s = now_s
        if self.mean_s:
            self.mean_s += MEAN_WEIGHT * (elapsed_s - self.mean_s)
        else:
            self.mean_s = elapsed_s

    def expected_wait_s(self, connection: Hashable, now_s: float) -> float:
        """Estimate how long a new request of a connection waits where all threads are busy."""
        rate = max(self.running + self.parked, 1) / self.mean_s if self.mean_s else math.inf
        own = len(self._by_connection.get(connection, ()))
        # Requests of other connections that are later in their turns come after.
        ahead = sum(self._connections_with[: own + 1])
        wait_s = ahead / rate
        if not self.running and not self.parked:
            return wait_s
        stalled_s = now_s - self.progress_s
        return max(wait_s, stalled_s) if stalled_s > self.mean_s else wait_s

    def statistics(self, now_s: float, *, may_begin: bool) -> QueueStatistics:
        """Return what waits and runs, and was refused and stopped; `may_begin` says whether a request would not wait."""
        return QueueStatistics(
            self.model,
            waiting=self.waiting,
            running=self.running + self.parked,
            refused=dict(self.refused),
            stopped=dict(self.stopped),
            expected_wait_s=0.0 if may_begin else round(self.expected_wait_s(None, now_s), 3),
        )

    def newest_of_longest(self, connection: Hashable) -> Ticket | None:
        """Return the last ticket of the connection with the most, if it has more than this one would have."""
        own = len(self._by_connection.get(connection, ()))
        if len(self._connections_with) <= own + 1:  # at an overload, by far the most frequent
            return None
        ticket = max(self._by_connection.values(), key=len)[-1]
        return None if ticket.is_begun else ticket


def _resolve(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


SPARE_THREADS = 8
"""Maximum threads beyond `threads`, each for a model that runs no other request."""

UNKNOWN_MODEL_THREADS = 2
"""Maximum requests that name no known model to run at once."""

MAX_RETRY_AFTER_S = 60
"""Maximum seconds that a refused client is told to wait."""

LONG_RUN_S = 1.0
"""Seconds after which a running request leaves the processor to requests of other models."""
LONG_RUN_NICE = 10
"""Priority of the thread of such a request: about a tenth of the processor time that another thread gets."""

CLOSE_TIMEOUT_S = 5.0
"""Seconds that stopped requests have to end before the process does."""

LOG_INTERVAL_S = 1.0
"""Minimum seconds between two lines of the log about requests that were not answered."""

QUEUE_FULL, WAIT_TOO_LONG = "queue_full", "wait_too_long"
"""Reasons to refuse a request."""
DEADLINE, CLIENT_LEFT = "deadline", "client_left"
"""Reasons to stop a request."""

_log = logging.getLogger("quadriga.requests")


class RequestQueue:
    """Runs tasks in threads, in the order above; `run` is called on an event loop, the rest in any thread.

    Args:
        threads: Maximum requests of one model to run at once, and of all models but for `SPARE_THREADS`.
        max_waiting: Maximum requests of one model that wait.
        max_wait_s: Maximum expected wait of a request.
    """

    def __init__(self, threads: int, max_waiting: int, max_wait_s: float) -> None:
        self._threads_limit = threads
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._lock = threading.Lock()
        """Lock of everything below."""
        self._changed = threading.Condition(self._lock)
        """Tells the watching thread about an earlier deadline."""
        self._lanes: dict[str, ModelLane] = {"": ModelLane("", UNKNOWN_MODEL_THREADS)}
        self._turns: deque[ModelLane] = deque()
        """Lanes with waiting requests, in the order of their turns."""
        self._running = 0
        """Running requests to models."""
        self._begun: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        """Tickets whose turn has come; there is a thread for each."""
        self._busy = 0
        self._workers: list[threading.Thread] = []
        self._tickets: dict[Ticket, None] = {}
        """Tickets that wait or run."""
        self._watcher: threading.Thread | None = None
        self._wake_s = math.inf
        self._slow_s = 0.0
        """Moment from which long runs are searched again."""
        self._log_s = 0.0
        self._unlogged: Counter[tuple[str, str]] = Counter()
        self._is_closed = False

    def run(
        self,
        task: Callable[[], Any],
        *,
        model: str = "",
        deadline: Deadline | None = None,
        connection: Hashable = None,
        is_begun: bool = False,
        body_bytes: int | None = None,
    ) -> "asyncio.Future[Any]":
        """Run a task; see `quadriga.proto.messages.Serving.run`.

        Args:
            task: A function that blocks.
            model: Name of a known model as its folder has it; empty for none.
            deadline: Ends the wait, and the task where it checks it.
            connection: Key of the connection.
            is_begun: Whether the task continues a request: it is not refused, and ends by its own checks.
            body_bytes: Size of a request whose work follows from it, which the event loop answers where that costs less than
                a thread; None for any other.
        """
        request = current_request() or RequestContext()
        deadline = request.deadline = deadline or Deadline()
        if not is_begun:
            deadline.check()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with self._lock:
            lane = self._lane(model)
            runs_now = body_bytes is not None and lane.cost.is_cheap_at(body_bytes)
        if runs_now and not self._is_closed:
            self._run_now(task, future, lane, request)
            return future
        with self._lock:
            evicted = None
            if not is_begun and not self._may_begin(lane):
                evicted = self._make_place(lane, connection, deadline)
            ticket = Ticket(task, future, lane, connection, request)
            ticket.is_begun = is_begun
            ticket.body_bytes = body_bytes
            deadline.on_stop(partial(self._abandon, ticket))
            self._tickets[ticket] = None
            if not lane.waiting and self._may_begin(lane):
                self._begin(ticket)
            else:
                if not lane.waiting:
                    self._turns.append(lane)
                lane.add(ticket)
            self._watch_until(deadline.expires_s)
            self._slow_long_runs(lane)
        if evicted is not None:
            evicted.resolve(None, self._too_many(lane))
        future.add_done_callback(partial(_stop_cancelled, deadline))
        return future

    def _run_now(
        self,
        task: Callable[[], Any],
        future: "asyncio.Future[Any]",
        lane: ModelLane,
        request: RequestContext,
    ) -> None:
        """Run a task on the event loop; an error belongs to whoever waits for the result."""
        before = current_request()
        set_current_request(request)
        begun_s = time.monotonic()
        try:
            future.set_result(task())
        except Exception as error:  # noqa: BLE001 - as above
            future.set_exception(error)
        finally:
            set_current_request(before)
        elapsed_s = time.monotonic() - begun_s
        with self._lock:
            lane.note(begun_s + elapsed_s, elapsed_s)
            lane.cost.note_loop(elapsed_s)

    def watch(self, deadline: Deadline) -> None:
        """Take note that the deadline of a running request was shortened."""
        self.watch_until(deadline.expires_s)

    def watch_until(self, moment_s: float) -> None:
        """Have the watching thread wake at a moment, or before."""
        with self._lock:
            self._watch_until(moment_s)

    def statistics(self) -> list[QueueStatistics]:
        """Return which requests wait, run, were refused and were stopped, by model."""
        now_s = time.monotonic()
        with self._lock:
            return [
                lane.statistics(now_s, may_begin=self._may_begin(lane))
                for lane in self._lanes.values()
            ]

    def close(self) -> None:
        """Stop what waits and runs, and end the threads."""
        with self._lock:
            self._is_closed = True
            tickets = list(self._tickets)
            self._changed.notify()
            workers = self._workers
        for ticket in tickets:
            ticket.deadline.stop(ModelNotReady("the server is shutting down"))
        for _ in workers:
            self._begun.put(None)
        end_s = time.monotonic() + CLOSE_TIMEOUT_S
        for worker in workers:
            worker.join(max(end_s - time.monotonic(), 0))

    def _lane(self, model: str) -> ModelLane:
        lane = self._lanes.get(model)
        if lane is None:
            lane = self._lanes[model] = ModelLane(model, self._threads_limit)
        return lane

    def _may_begin(self, lane: ModelLane) -> bool:
        """Check whether a further request of a lane may run now."""
        if lane.running >= lane.max_running:
            return False
        if not lane.model or self._running < self._threads_limit:
            return True
        return lane.running == 0 and self._running < self._threads_limit + SPARE_THREADS

    def _make_place(
        self, lane: ModelLane, connection: Hashable, deadline: Deadline
    ) -> Ticket | None:
        """Check that a request may wait; return the ticket that gives way to it, if it takes one.

        Raises:
            WaitTooLong: It may not.
        """
        self._check_wait(lane, connection, deadline)
        if lane.waiting < self._max_waiting:
            return None
        ticket = lane.newest_of_longest(connection)
        self._count(lane, QUEUE_FULL, lane.refused)
        if ticket is None:
            raise self._too_many(lane)
        self._remove_waiting(ticket)
        return ticket

    def _check_wait(self, lane: ModelLane, connection: Hashable, deadline: Deadline) -> None:
        """Raise `WaitTooLong` if a further request of a lane would wait for longer than it may."""
        now_s = time.monotonic()
        wait_s = lane.expected_wait_s(connection, now_s)
        if wait_s > min(self._max_wait_s, deadline.expires_s - now_s):
            self._count(lane, WAIT_TOO_LONG, lane.refused)
            limit = f"max_wait_s is {self._max_wait_s:g}"
            if deadline.expires_s - now_s < self._max_wait_s:
                limit = f"the request has {deadline.expires_s - now_s:.3g} s left"
            raise WaitTooLong(
                f"expected a thread in time, got a queue of about {wait_s:.3g} s, and {limit}: try again later",
                _retry_after_s(wait_s),
            )

    def _too_many(self, lane: ModelLane) -> WaitTooLong:
        wait_s = lane.expected_wait_s(None, time.monotonic())
        return WaitTooLong(
            f"expected fewer than {self._max_waiting} waiting requests of a model, got one more: try again later, "
            "or raise max_queue",
            _retry_after_s(wait_s),
        )

    def _remove_waiting(self, ticket: Ticket) -> None:
        lane = ticket.lane
        lane.remove(ticket)
        if not lane.waiting:
            self._turns.remove(lane)
        self._tickets.pop(ticket, None)

    def _begin(self, ticket: Ticket) -> None:
        """Hand a ticket to a thread."""
        ticket.is_running = True
        ticket.begun_s = time.monotonic()
        ticket.lane.begin(ticket.begun_s)
        ticket.holds_place = bool(ticket.lane.model)
        self._running += ticket.holds_place
        self._busy += 1
        if self._busy > len(self._workers):
            name = f"request-{len(self._workers)}"
            worker = threading.Thread(target=self._work, name=name, daemon=True)
            self._workers.append(worker)
            worker.start()
        self._begun.put(ticket)

    def _begin_waiting(self) -> None:
        """Begin what may begin now, models in turns; nothing once the queue is closed."""
        if self._is_closed:
            return
        while (lane := next(filter(self._may_begin, self._turns), None)) is not None:
            self._turns.remove(lane)
            ticket = lane.take()
            if lane.waiting:
                self._turns.append(lane)
            self._begin(ticket)

    def _work(self) -> None:
        """Run tickets, in a thread of the pool."""
        is_slowed = False
        while not is_slowed and (ticket := self._begun.get()) is not None:
            is_slowed = self._perform(ticket)
            del ticket  # the request is not held until the next one

    def _perform(self, ticket: Ticket) -> bool:
        """Run a ticket; return whether its thread has to end with it."""
        ticket.thread_id = threading.get_native_id()
        request, result, error = ticket.request, None, None
        request.queue_ns = time.perf_counter_ns() - ticket.queued_ns
        begun_s = time.monotonic()
        size = ticket.body_bytes
        is_sampled = size is not None and ticket.lane.cost.wants_sample(size)
        begun_cpu_s = time.thread_time() if is_sampled else 0.0
        request.deadline = ticket.deadline
        request.give_up_place = partial(self._park, ticket)
        set_current_request(request)
        try:
            if not ticket.is_begun:
                ticket.deadline.check()
            result = ticket.task()
        except BaseException as raised:  # noqa: BLE001 - it belongs to whoever waits for the result
            error = raised
        set_current_request(None)
        request.give_up_place = None
        now_s = time.monotonic()
        cost_s = time.thread_time() - begun_cpu_s if is_sampled and error is None else DEAR_S
        with self._lock:
            self._tickets.pop(ticket, None)
            if is_sampled and size is not None:
                ticket.lane.cost.note_thread(cost_s, size)
            self._busy -= 1
            self._running -= ticket.holds_place
            ticket.lane.end(now_s, now_s - begun_s)
            if ticket.is_slowed:
                self._workers.remove(threading.current_thread())
            self._begin_waiting()
        is_slowed = ticket.is_slowed
        ticket.resolve(result, error)
        # The tracebacks of the error and of its causes hold this frame, which is not to hold what holds the error.
        del ticket, request, result, error
        return is_slowed

    @contextmanager
    def _park(self, ticket: Ticket) -> Iterator[None]:
        """Let other requests run while this one waits for them.

        Afterwards it counts for its model again, which then begins none, but no more for all models: those that a run
        of one model lets go on at once keep no other model from running.
        """
        lane = ticket.lane
        with self._lock:
            lane.running -= 1
            lane.parked += 1
            self._running -= ticket.holds_place
            ticket.holds_place = False
            self._begin_waiting()
        try:
            yield
        finally:
            with self._lock:
                lane.parked -= 1
                lane.running += 1

    def _slow_long_runs(self, lane: ModelLane) -> None:
        """Lower the priority of threads that run a request of another model for long, as a request arrived.

        Only Linux has priorities of threads.
        """
        now_s = time.monotonic()
        if now_s < self._slow_s or sys.platform != "linux":
            return
        self._slow_s = now_s + LONG_RUN_S / 4
        for ticket in self._tickets:
            is_long = ticket.is_running and now_s - ticket.begun_s > LONG_RUN_S
            if is_long and ticket.lane is not lane and ticket.thread_id and not ticket.is_slowed:
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, ticket.thread_id, LONG_RUN_NICE)
                    ticket.is_slowed = True

    def _abandon(self, ticket: Ticket) -> None:
        """Answer a request that was stopped, and take it from its queue; what runs ends by itself."""
        error = ticket.deadline.error
        with self._lock:
            if ticket not in self._tickets:
                return
            if isinstance(error, DeadlineExceeded):
                self._count(ticket.lane, DEADLINE, ticket.lane.stopped)
            elif isinstance(error, ClientLeft):
                self._count(ticket.lane, CLIENT_LEFT, ticket.lane.stopped)
            if ticket.is_begun:
                return
            if not ticket.is_running:
                self._remove_waiting(ticket)
        ticket.resolve(None, error)

    def _count(self, lane: ModelLane, reason: str, counts: Counter[str]) -> None:
        counts[reason] += 1
        self._unlogged[lane.model, reason] += 1
        self._watch_until(self._log_s)

    def _watch_until(self, moment_s: float) -> None:
        """Have the watching thread wake at a moment, or before; called with the lock held."""
        if moment_s >= self._wake_s or self._is_closed:
            return
        self._wake_s = moment_s
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="deadlines", daemon=True)
            self._watcher.start()
        self._changed.notify()

    def _watch(self) -> None:
        """Stop requests whose time is over, and log what was not answered; in a thread of its own."""
        while True:
            with self._changed:
                while not self._is_closed and (wait_s := self._wake_s - time.monotonic()) > 0:
                    self._changed.wait(None if wait_s == math.inf else wait_s)
                if self._is_closed:
                    return
                now_s = time.monotonic()
                going_on = [ticket.deadline for ticket in self._tickets]
                going_on = [deadline for deadline in going_on if deadline.error is None]
                expired = [deadline for deadline in going_on if deadline.expires_s <= now_s]
                later = [deadline.expires_s for deadline in going_on if deadline.expires_s > now_s]
                self._wake_s = min(later, default=math.inf)
                unlogged = self._take_unlogged(now_s)
            if unlogged:
                _log.warning("requests not answered: %s", unlogged)
            for deadline in expired:
                deadline.stop(deadline.exceeded())

    def _take_unlogged(self, now_s: float) -> str:
        """Return the numbers of requests not answered since the last line of the log; empty if it is not time yet."""
        if not self._unlogged:
            return ""
        if now_s < self._log_s:
            self._wake_s = min(self._wake_s, self._log_s)
            return ""
        counts, self._unlogged = self._unlogged, Counter()
        self._log_s = now_s + LOG_INTERVAL_S
        return ", ".join(
            f"{count} of {model or 'no known model'} ({reason})"
            for (model, reason), count in sorted(counts.items())
        )


def _retry_after_s(wait_s: float) -> int:
    return max(1, math.ceil(min(wait_s, MAX_RETRY_AFTER_S)))


def _stop_cancelled(deadline: Deadline, future: "asyncio.Future[Any]") -> None:
    """Stop the work of a request whose handler was cancelled, as gRPC does when a client leaves."""
    if future.cancelled():
        deadline.stop(ClientLeft("the client left"))
