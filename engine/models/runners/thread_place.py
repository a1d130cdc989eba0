"""The place that a request holds among those that run, which it gives up while it waits for others of its model."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext


class _Current(threading.local):
    give_up: Callable[[], AbstractContextManager[None]] | None = None


_current = _Current()


def set_current_place(give_up: Callable[[], AbstractContextManager[None]] | None) -> None:
    """Set how this thread gives up its place and takes it back; None outside of a request."""
    _current.give_up = give_up


def without_place() -> AbstractContextManager[None]:
    """Let another request run in place of this thread's while the block waits; nothing outside of a request."""
    return nullcontext() if _current.give_up is None else _current.give_up()
