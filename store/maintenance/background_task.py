"""A task in a thread of its own, beside a loop that has to go on."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class BackgroundTask(Generic[_T]):
    """Runs a function that can be run again, as the end of the process ends it.

    Args:
        work: The function.
        name: Name of the thread.
    """

    def __init__(self, work: Callable[[], _T], name: str) -> None:
        self._work = work
        self._results: list[_T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def has_ended(self, timeout_s: float) -> bool:
        """Check whether the function has ended, or ends within a time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def result(self) -> _T:
        """Return what an ended function returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            self._error = error
