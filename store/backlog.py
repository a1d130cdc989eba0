"""Durability `memory`: writes that wait in memory for a thread of their own, bounded in bytes."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from store.errors import JournalError

RETRY_S = 0.2

_log = logging.getLogger(__name__)


class Backlog:
    """Does jobs in their order, one after the other; safe to use from several threads.

    A job that raises a JournalError is tried again until it succeeds, or until the end. The jobs
    that wait are at most of `limit_bytes`; one larger than that is taken if no other waits.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[Callable[[], object], int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.lost = 0  # jobs given up

    def put(self, job: Callable[[], object], size_bytes: int) -> None:
        """Take a job, to be done later; a `JournalError` where as many bytes wait as may."""
        with self._changed:
            if self._waiting and self._bytes + size_bytes > self._limit_bytes:
                raise JournalError(
                    f"expected at most {self._limit_bytes} bytes to wait for the journal, got "
                    f"{self._bytes} and {size_bytes} more"
                )
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="backlog", daemon=True)
                self._thread.start()
            self._waiting.append((job, size_bytes))
            self._bytes += size_bytes
            self._changed.notify()

    def close(self) -> None:
        """Do the jobs that wait, each tried once more at most, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        failing = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                job, size_bytes = self._waiting[0]
            try:
                job()
                failing = False
            except JournalError as error:
                if not failing:
                    _log.warning("what is kept in memory waits for the journal: %s", error)
                failing = True
                with self._changed:
                    if not self._closing:
                        self._changed.wait(RETRY_S)
                        continue
                self._give_up(error)
            except Exception as error:  # noqa: BLE001 - whatever a job does, it may not stop the others
                self._give_up(error)
            with self._changed:
                self._waiting.popleft()
                self._bytes -= size_bytes

    def _give_up(self, error: Exception) -> None:
        self.lost += 1
        _log.error("an inference kept in memory is lost: %s: %s", type(error).__name__, error)
