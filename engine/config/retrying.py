"""Retries of what a thread has to do once, such as loading models, until it works."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

FIRST_DELAY_S = 0.2
MAX_DELAY_S = 5.0
LOG_INTERVAL_S = 60.0
"""Shortest time between two log lines about the same task."""

Result = TypeVar("Result")
_log = logging.getLogger("quadriga")


def retry_until_done(
    action: str,
    task: Callable[[], Result],
    on_failure: Callable[[str], object],
    *,
    errors: type[Exception] = Exception,
    sleep: Callable[[float], object] = time.sleep,
) -> Result:
    """Do a task; if it fails, as on a full disk, do it again after delays that grow up to `MAX_DELAY_S`.

    Args:
        action: What the task does, for messages: `load the models`.
        task: What to do; it may be repeated after any failure.
        on_failure: Called after each failure with the reason, without paths, for those who ask for readiness.
        errors: What is tried again; other errors are raised.
        sleep: Waits for a number of seconds.
    """
    delay_s, log_at_s = FIRST_DELAY_S, 0.0
    while True:
        try:
            return task()
        except errors as error:
            cause = error.strerror if isinstance(error, OSError) else None
            on_failure(f"cannot {action} yet: {cause or 'the log of the server has the reason'}")
            now_s = time.monotonic()
            if now_s >= log_at_s:
                log_at_s = now_s + LOG_INTERVAL_S
                _log.error("cannot %s yet, trying again: %s", action, error, exc_info=cause is None)
        sleep(delay_s)
        delay_s = min(delay_s * 2, MAX_DELAY_S)
