"""When a request is sent again: only what is safe, with growing random pauses, before one deadline."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import ServerRefused, Unreachable
from .connections import Call

T = TypeVar("T")

FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
"""Pause before the first repetition, which doubles up to the longest."""

GATEWAY_STATUSES = {502, 503, 504}
"""Statuses of servers, or of what is in front of them, that do not answer now."""


def send_repeatedly(
    call: Call,
    send: Callable[[float], T],
    knows_keys: Callable[[float], bool],
    *,
    retries: int,
    total_s: float,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Send a request until it is answered, or may not or cannot be sent again.

    Args:
        call: The request.
        send: Sends it once, before a deadline in seconds of `time.monotonic`; raises the errors of answers.
        knows_keys: Asks the server, before a deadline, whether it stores requests with one key once.
        retries: Maximum repetitions of the request.
        total_s: Seconds that the call takes at most, with all repetitions and pauses.
        sleep: Waits so many seconds.
    """
    end_s = time.monotonic() + total_s
    attempt, may_be_stored = 0, False
    last_error: Exception | None = None
    while True:
        try:
            if not (may_be_stored and call.needs_key_support) or knows_keys(end_s):
                return send(end_s)
        except (Unreachable, ServerRefused) as error:
            last_error = error
            if isinstance(error, Unreachable):
                was_sent, may_repeat = error.was_sent, call.is_repeatable or not error.was_sent
            else:
                was_sent = error.status in GATEWAY_STATUSES
                may_repeat = error.status == 429 or (was_sent and call.is_repeatable)
            may_be_stored = may_be_stored or was_sent
            pause_s = _pause_s(attempt, error)
            is_last = attempt >= retries or time.monotonic() + pause_s >= end_s
            if is_last or not may_repeat:
                raise
            attempt += 1
            sleep(pause_s)
        else:  # it may have been stored, and would be a second time
            assert last_error is not None, "nothing was sent before"
            last_error.add_note("not sent again, as this server knows no idempotency keys")
            raise last_error


def _pause_s(attempt: int, error: Exception) -> float:
    pause_s: float = min(FIRST_PAUSE_S * 2 ** min(attempt, 10), MAX_PAUSE_S)
    pause_s *= random.uniform(0.5, 1.0)  # noqa: S311 - clients that failed together do not come back together
    wanted_s = error.retry_after_s if isinstance(error, ServerRefused) else None
    return pause_s if wanted_s is None else wanted_s + pause_s * 0.5
