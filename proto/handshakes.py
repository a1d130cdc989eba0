"""The TLS handshakes of a worker that are under way, in the order in which they give their places to others."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Handshakes:
    """Handshakes under way, each in a task that ends with it; used on one event loop."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[asyncio.Task[Any], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the running task."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        try:
            yield
        finally:
            self._tasks.pop(task, None)

    def end_one(self) -> bool:
        """End the handshake that has lasted longest; return whether there was one."""
        if not self._tasks:
            return False
        task, _ = self._tasks.popitem(last=False)
        task.cancel()
        return True
