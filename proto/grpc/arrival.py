"""gRPC calls on their way: how many are answered at a time, how long one may wait for a message, and how many may.

A call begins with its headers, and its message may never come: calls that wait for one must not hold the places of others.

A call lasts until its answer has left, even a refusal: clients that have no key and read no answer would hold the places
of all others, too. So only calls of callers with a key are counted. Those of strangers are few while they wait.
"""

import math
from typing import Any

from google.protobuf.message import DecodeError

from quadriga.proto.access import current_caller
from quadriga.proto.errors import InvalidRequest, Overloaded, TooManyCalls
from quadriga.proto.http.intake import Intake

MAX_STRANGERS = 64
"""Calls of callers without a key that wait for their message at a time, and watches of theirs."""


class Arrivals:
    """Calls under way, and those that wait for a message; used on one event loop.

    Where too many wait, the one that has waited longest gives its place to the next: who sends a message sends it at
    once. Callers without a key take no places of others.

    Args:
        intake: Has the time that a message may take to arrive, and counts those that do not.
        max_calls: Calls at a time of callers with a key; of three quarters of them the message may be awaited.
    """

    def __init__(self, intake: Intake, max_calls: int) -> None:
        self._intake = intake
        self._max_calls = max_calls
        self._calls = 0
        self._max_waits = max(1, max_calls * 3 // 4)
        self._max_strangers = min(MAX_STRANGERS, self._max_waits)
        self._callers: dict[Any, None] = {}
        self._strangers: dict[Any, None] = {}

    def begin(self, context: Any) -> None:
        """Count a call until its answer has left, if its caller has a key.

        Raises:
            TooManyCalls: There are as many as may be.
        """
        if not current_caller().rights:
            return
        if self._calls >= self._max_calls:
            text = f"expected at most {self._max_calls} calls at a time, got more: the limit is the setting max_connections"
            raise TooManyCalls(text)
        self._calls += 1
        context.add_done_callback(self._count_end)

    def _count_end(self, _: Any) -> None:
        self._calls -= 1

    async def read(self, context: Any, *, is_limited: bool = True) -> Any:
        """Read the next message of a call; `grpc.aio.EOF` if there are no more.

        Args:
            context: Context of the call.
            is_limited: Whether the message has a limited time to arrive: those of a stream come when there is something
                to ask.

        Raises:
            InvalidRequest: It is no message of the RPC.
            TooSlow: It does not arrive in time.
            Overloaded: Its place is needed for another call.
        """
        has_key = bool(current_caller().rights)
        waits = self._callers if has_key else self._strangers
        maximum = self._max_waits if has_key else self._max_strangers
        if len(waits) >= maximum:
            self._intake.displaced += 1
            text = f"expected at most {maximum} calls that wait for their message, got more"
            longest = next(iter(waits))
            del waits[longest]
            longest.end_wait(Overloaded(text))
        waits[context] = None
        try:
            return await context.read(self._intake.body_timeout_s if is_limited else math.inf)
        except DecodeError as error:
            raise InvalidRequest("expected a message of the RPC, got other bytes") from error
        finally:
            waits.pop(context, None)
