"""The time limit of one request, which counts from its arrival, and the end of its work before that.

A thread finds the deadline of the request that it answers by `current_deadline`, so that loops and runs of a model need
not hand it on. What runs outside of a request has none.
"""

import math
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar

from quadriga.proto.errors import DeadlineExceeded, InvalidRequest, ProtocolError
from quadriga.proto.request_facts import RequestFacts
from quadriga.quoting import quoted

SERVER_LIMIT = "the setting request_timeout_s; send less in a request, or raise the setting"
HEADER = b"request-timeout"
TIMING_HEADER = b"quadriga-timing"
"""Header with which a request asks for the times of its stages: `true`."""
HEADER_LIMIT = "the request's header Request-Timeout"
PARAMETER_LIMIT = "the request's parameter timeout, in microseconds"
CALL_LIMIT = "the deadline of the gRPC call"


_stopping = threading.Lock()
"""Held for a moment by whoever stops a request: its own thread and the watching one find the same end of its time."""

_current: ContextVar["Deadline | None"] = ContextVar("deadline", default=None)


class Deadline:
    """Time limit of one request from now on; safe to use from several threads.

    Args:
        timeout_s: Seconds that the request has.
        limit: Where these come from, for the error.
    """

    __slots__ = (
        "_abandon",
        "_arrived_s",
        "_interrupt",
        "_limit",
        "_timeout_s",
        "error",
        "expires_s",
        "facts",
        "wants_timing",
    )

    def __init__(self, timeout_s: float = math.inf, limit: str = SERVER_LIMIT) -> None:
        self._arrived_s = time.monotonic()
        self.wants_timing = False
        """Whether the answer has the times of its stages."""
        self.facts: RequestFacts | None = None
        """What is known of the request, for whoever does its work; None if nobody takes note of it."""
        self._timeout_s = timeout_s
        self.expires_s = self._arrived_s + timeout_s
        """Moment at which the request has no time left, in seconds of `time.monotonic`."""
        self._limit = limit
        self._abandon: Callable[[], object] | None = None
        self._interrupt: Callable[[], object] | None = None
        self.error: ProtocolError | None = None
        """Why the request was stopped; None while it goes on."""

    def shorten(self, timeout_s: float, limit: str) -> None:
        """Set a limit that also counts from the arrival, unless the present one is shorter."""
        if timeout_s < self._timeout_s:
            self._timeout_s, self._limit = timeout_s, limit
            self.expires_s = self._arrived_s + timeout_s

    def remaining_s(self) -> float:
        """Return the seconds that are left; negative if there are none."""
        return self.expires_s - time.monotonic()

    def exceeded(self) -> DeadlineExceeded:
        """Return the error of a request that takes longer than its limit."""
        return DeadlineExceeded(
            f"expected an answer within {self._timeout_s:g} s, got none: the limit is {self._limit}"
        )

    def stop(self, error: ProtocolError) -> None:
        """End the work for the request: only the first error counts."""
        with _stopping:
            if self.error is not None:
                return
            self.error = error  # before the callbacks are read: who sets one later finds the error
        for callback in (self._abandon, self._interrupt):
            if callback is not None:
                callback()

    def check(self) -> None:
        """Raise the error with which the request was stopped, or `DeadlineExceeded` if its time is over."""
        if self.error is None and time.monotonic() >= self.expires_s:
            self.stop(self.exceeded())
        if self.error is not None:
            raise self.error

    def on_stop(self, abandon: Callable[[], object] | None) -> None:
        """Call a function, in any thread, once the request is stopped; None to call none."""
        self._abandon = abandon

    def interrupt_by(self, interrupt: Callable[[], object]) -> None:
        """Call a function, in any thread, if the request is stopped during the run that begins now; checks first."""
        self._interrupt = interrupt
        self.check()


def current_deadline() -> Deadline | None:
    """Return the deadline of the request that this thread answers; None outside of a request."""
    return _current.get()


def set_current_deadline(deadline: Deadline | None) -> None:
    """Set the deadline for what this thread does from now on."""
    _current.set(deadline)


def check_deadline() -> None:
    """Raise if the request that this thread answers was stopped or has no time left; see `Deadline.check`."""
    deadline = _current.get()
    if deadline is not None:
        deadline.check()


def read_timeout_header(value: bytes) -> float:
    """Read the header `Request-Timeout`: seconds, such as `2` or `0.5`.

    Raises:
        InvalidRequest: It is no number above 0.
    """
    try:
        timeout_s = float(value)
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s < math.inf:
        raise InvalidRequest(
            f"expected Request-Timeout to be seconds above 0, got {quoted(value.decode('latin-1'), 40)}"
        )
    return timeout_s


def read_timeout_parameter(value: object) -> float | None:
    """Read Triton's parameter `timeout`, in microseconds; return seconds, or None for 0, which sets no limit.

    Raises:
        InvalidRequest: It is no whole number from 0.

    Source: Triton Inference Server, protocol extension "schedule policy".
    """
    if type(value) is not int or value < 0:
        raise InvalidRequest(
            f"expected parameters.timeout to be a whole number of microseconds from 0, got {quoted(value, 40)}"
        )
    return value / 1e6 if value else None


def limit_by_parameter(value: object, watch: Callable[[Deadline], object]) -> None:
    """Shorten the time of the request that this thread answers by its parameter `timeout`, and check what is left.

    Args:
        value: Value of the parameter; None where the request has none.
        watch: Called with the deadline if it was shortened.

    Raises:
        InvalidRequest: The value is no whole number from 0.
        DeadlineExceeded: No time is left.
    """
    deadline = _current.get()
    if deadline is None:
        return
    timeout_s = None if value is None else read_timeout_parameter(value)
    if timeout_s is not None:
        deadline.shorten(timeout_s, PARAMETER_LIMIT)
        watch(deadline)
    deadline.check()
