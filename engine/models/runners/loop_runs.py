"""Requests that the event loop answers itself, as handing them to a thread would cost more than they do.

Only what cannot take long is answered there: small requests with tensors, to a graph on the processor whose work follows
from the shapes of its inputs, at a model that has been cheap so far. What takes long all the same leaves the loop, and a thread
answers it from the beginning; nothing has been stored by then.
"""

import statistics
import threading
import time

from quadriga.proto.deadline import Deadline, LeavesLoop

MAX_BODY_BYTES = 64 * 1024
"""Largest body of a request that the loop answers."""

CHEAP_S, DEAR_S = 0.0006, 0.0012
"""Processor time below which the median of `SAMPLES` requests brings a model to the loop, and mean time above which it
leaves it. A thread for a request costs 0.18 ms, of which two changes of the thread that runs Python are the most."""

SAMPLES = 15

SLOW_S = 0.02
"""Mean time above which a model leaves the loop, though it uses little of it, as where the disk does not keep up; one
request that waited for the processor does not count for much."""

MAX_RUN_S = 0.05
"""Time after which a request itself leaves the loop, between two operators of its graph, once it is seen to compute."""

MIN_WATCH_S = 0.005
"""Processor time that a request takes between two looks, if it computes and does not wait for the processor."""

MAX_COUNTED_S = 0.003
"""Time of one request that counts for the mean: one search for garbage, or a wait for the processor, says little."""

MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 300.0
"""Time for which a model that left the loop stays away from it: twice as long each time, unless it had stayed for long."""

MEAN_WEIGHT = 0.1
"""Weight of the last request in the mean time of those on the loop."""


class LoopCost:
    """What the requests to one model cost, and whether the loop answers them; used with the lock of the queue held."""

    __slots__ = (
        "_back_s",
        "_mean_elapsed_s",
        "_mean_s",
        "_pause_s",
        "_samples_s",
        "_since_s",
        "is_cheap",
    )

    def __init__(self) -> None:
        self.is_cheap = False
        """Whether the loop answers what may be answered there."""
        self._samples_s: list[float] = []
        self._mean_s = self._mean_elapsed_s = 0.0
        self._pause_s = MIN_PAUSE_S
        self._back_s = self._since_s = 0.0

    def wants_sample(self) -> bool:
        """Check whether the processor time of a request in a thread is to be taken, which takes 1 us."""
        return not self.is_cheap and time.monotonic() >= self._back_s

    def note_thread(self, cpu_s: float) -> None:
        """Note a request that a thread answered."""
        samples_s = self._samples_s
        samples_s.append(cpu_s)
        if len(samples_s) < SAMPLES:
            return
        now_s = time.monotonic()
        if statistics.median(samples_s) < CHEAP_S:
            self.is_cheap, self._since_s = True, now_s
            self._mean_s = self._mean_elapsed_s = CHEAP_S
        else:
            self._back_s = now_s + MIN_PAUSE_S
        samples_s.clear()

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


class LoopRun:
    """One request that the loop answers now."""

    __slots__ = ("_first_cpu_s", "_late_s", "_thread", "begun_s", "deadline", "may_leave")

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.begun_s = time.monotonic()
        self.may_leave = True
        """Whether it can still be answered by a thread: nothing of it is stored."""
        self._thread = threading.get_ident()
        self._first_cpu_s = -1.0
        self._late_s = self.begun_s + MAX_RUN_S

    @property
    def ends_s(self) -> float:
        """Moment of `time.monotonic` at which it is to be stopped, or looked at."""
        expires_s = self.deadline.expires_s
        return min(expires_s, self._late_s) if self.may_leave else expires_s

    def stop(self, now_s: float) -> None:
        """Stop it if its time is over, or if it is late and has the processor; in any thread."""
        if now_s >= self.deadline.expires_s:
            self.deadline.stop(self.deadline.exceeded())
        elif self.may_leave and now_s >= self._late_s:
            cpu_s = time.clock_gettime(time.pthread_getcpuclockid(self._thread))
            if self._first_cpu_s < 0:
                self._first_cpu_s = cpu_s
            elif cpu_s - self._first_cpu_s >= MIN_WATCH_S:
                self.deadline.stop(LeavesLoop("the request takes long"))
            self._late_s = now_s + 2 * MIN_WATCH_S


class _Current(threading.local):
    run: LoopRun | None = None
    is_light = False


_current = _Current()


def begin_loop_run(run: LoopRun | None) -> None:
    """Set the request that this thread, the loop's, answers; None for none."""
    _current.run = run


def note_light() -> None:
    """Note that the request of this thread is one that the loop may answer."""
    _current.is_light = True


def take_light() -> bool:
    """Return whether the request of this thread was noted as light, and forget it."""
    is_light, _current.is_light = _current.is_light, False
    return is_light


def leave_loop() -> None:
    """Let a thread answer the request from its beginning, if the loop does now: what follows may take long.

    Raises:
        LeavesLoop: The loop answers the request.
    """
    run = _current.run
    if run is not None and run.may_leave:
        raise LeavesLoop("the request may take long")


def stay_on_loop() -> None:
    """Note that the request cannot be answered anew any more, as something of it is stored."""
    if _current.run is not None:
        _current.run.may_leave = False
