"""The waiting requests of one model: connections take turns, and the wait of a further request is estimated."""

import asyncio
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import msgspec

from quadriga.engine.models.runners.loop_runs import LoopCost
from quadriga.proto.deadline import Deadline
from quadriga.proto.messages import QueueStatistics

MEAN_WEIGHT = 0.1
"""Weight of the last request in the mean time that requests of a model take."""


class WaitedTime(threading.local):
    """Nanoseconds that this thread's task waited in the queue."""

    ns = 0

    def take(self) -> int:
        """Return the time, and forget it: a task that makes two requests waited once."""
        waited_ns, self.ns = self.ns, 0
        return waited_ns


class Ticket:
    """One task that waits or runs, and the future with its result."""

    __slots__ = (
        "begun_s",
        "connection",
        "deadline",
        "future",
        "holds_place",
        "is_begun",
        "is_running",
        "is_slowed",
        "lane",
        "queued_ns",
        "task",
        "thread_id",
    )

    def __init__(
        self,
        task: Callable[[], Any],
        future: "asyncio.Future[Any]",
        lane: "ModelLane",
        connection: Hashable,
        deadline: Deadline,
    ) -> None:
        self.task = task
        self.future = future
        self.lane = lane
        self.connection = connection
        self.deadline = deadline
        self.queued_ns = time.perf_counter_ns()
        self.is_begun = False
        """Whether it continues a request that was admitted."""
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
