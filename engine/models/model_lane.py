"""The requests to one model: which wait, how long a further one would, and whether they are cheap enough for the event loop."""

import asyncio
import math
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import msgspec

from quadriga.proto.request import QueueStatistics, RequestContext

MEAN_WEIGHT = 0.1
"""Weight of the last request in the mean time that requests of a model take."""

MAX_BODY_BYTES = 64 * 1024
"""Largest body of a request that the event loop answers itself, as handing it to a thread would cost more than it does."""

MAX_GROWTH = 2
"""Size of such a request beside those that were measured, at most."""

CHEAP_S, DEAR_S = 0.0006, 0.0012
"""Processor time below which the median of `SAMPLES` requests brings a model to the loop, and mean time above which it
leaves it. A thread for a request costs 0.18 ms, of which two changes of the thread that runs Python are the most."""

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


def merge_queue_statistics(
    statistics: Iterable[Sequence[QueueStatistics]],
) -> list[QueueStatistics]:
    """Add up the statistics of several processes, by model."""
    merged: dict[str, QueueStatistics] = {}
    for process in statistics:
        for entry in process:
            total = merged.get(entry.model, QueueStatistics(entry.model))
            merged[entry.model] = msgspec.structs.replace(
                total,
                waiting=total.waiting + entry.waiting,
                running=total.running + entry.running,
                expected_wait_s=max(total.expected_wait_s, entry.expected_wait_s),
                refused=dict(Counter(total.refused) + Counter(entry.refused)),
                stopped=dict(Counter(total.stopped) + Counter(entry.stopped)),
            )
    return list(merged.values())


def _resolve(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
