"""Cancelling the queries of a client that left, from another thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quadriga.store.records.errors import QueryCancelledError


class Cancellation:
    """Ends the queries that run under it, now or later; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupts: list[Callable[[], object]] = []
        self.is_cancelled = False

    def cancel(self) -> None:
        """End the running queries, and refuse later ones; it may wait for the database."""
        with self._lock:  # so that no interrupted connection goes on to somebody else meanwhile
            self.is_cancelled = True
            for interrupt in self._interrupts:
                interrupt()

    @contextmanager
    def interrupting(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """Call `interrupt` if the queries are cancelled before the end of this context.

        Raises:
            QueryCancelledError: They are cancelled already.
        """
        with self._lock:
            if self.is_cancelled:
                raise QueryCancelledError
            self._interrupts.append(interrupt)
        try:
            yield
        finally:
            with self._lock:
                self._interrupts.remove(interrupt)
