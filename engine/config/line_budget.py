"""A bound of lines in a second, whatever asks for them."""

import threading
import time


class LineBudget:
    """Lines that may be written in a second; safe to use from several threads.

    Args:
        per_s: Maximum lines in a second.
    """

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._lock = threading.Lock()
        self._second = 0
        self._written = self._left_out = 0

    def take(self) -> int | None:
        """Return how many lines were left out before this one; None if it has to be left out, too."""
        second = int(time.monotonic())
        with self._lock:
            if second != self._second:
                self._second, self._written = second, 0
            if self._written >= self._per_s:
                self._left_out += 1
                return None
            self._written += 1
            left_out, self._left_out = self._left_out, 0
        return left_out
