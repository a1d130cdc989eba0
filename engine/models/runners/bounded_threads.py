"""Threads for one kind of work: as many as are set, with bounded waiting, so that no kind holds up the others."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

from quadriga.proto.errors import Overloaded
from quadriga.store.records.errors import QueryCancelledError

MAX_RETRY_AFTER_S = 60
_RECENT_SHARE = 0.2
"""Share of the newest work in the mean duration, which `Retry-After` is computed from."""

ArgumentTs = TypeVarTuple("ArgumentTs")
ResultT = TypeVar("ResultT")


class ThreadsFull(Overloaded):
    """Too much work of one kind waits."""


class BoundedThreads:
    """Threads for one kind of work; used on one event loop.

    Args:
        kind: Plural name of the work, for messages and names of threads.
        threads: Maximum number that runs at once.
        max_waiting: Maximum number that waits for a thread.
        max_wait_s: Maximum time that each waits.
    """

    def __init__(self, kind: str, threads: int, max_waiting: int, max_wait_s: float) -> None:
        self._kind = kind
        self._threads = threads
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=kind)
        self._turns = asyncio.Semaphore(threads)
        self._mean_s = 0.0
        self.waiting = 0
        self.refused = 0

    async def run(self, work: Callable[[*ArgumentTs], ResultT], *arguments: *ArgumentTs) -> ResultT:
        """Run a function in a thread once one is free; raises as `turn`."""
        async with self.turn():
            return await self.start(work, *arguments)

    @asynccontextmanager
    async def turn(self, gone: asyncio.Future[None] | None = None) -> AsyncIterator[None]:
        """Wait for a thread, which is then held for the context.

        Args:
            gone: Done once the client has left; then the wait ends.

        Raises:
            ThreadsFull: As many wait as may, or none became free in time.
            QueryCancelledError: The client left.
        """
        if self._turns.locked():
            await self._wait(gone)
        else:
            await self._turns.acquire()
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._turns.release()
            self._mean_s += _RECENT_SHARE * (time.monotonic() - started_s - self._mean_s)

    def start(
        self, work: Callable[[*ArgumentTs], ResultT], *arguments: *ArgumentTs
    ) -> asyncio.Future[ResultT]:
        """Start a function in a thread, in the context of the caller, who holds a turn until its end."""
        run = partial(copy_context().run, work, *arguments)
        return asyncio.get_running_loop().run_in_executor(self._executor, run)

    async def _wait(self, gone: asyncio.Future[None] | None) -> None:
        if self.waiting >= self._max_waiting:
            raise self._full(
                f"expected at most {self._max_waiting} waiting {self._kind}, got one more"
            )
        self.waiting += 1
        turn = asyncio.ensure_future(self._turns.acquire())
        ends: list[asyncio.Future[Any]] = [turn] if gone is None else [turn, gone]
        try:
            await asyncio.wait(ends, timeout=self._max_wait_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._turns.release()
            raise
        finally:
            self.waiting -= 1
            is_free = turn.done()
            turn.cancel()
        if is_free:
            return
        if gone is not None and gone.done():
            raise QueryCancelledError
        raise self._full(
            f"expected one of {self._threads} threads for {self._kind} to become free within "
            f"{self._max_wait_s:g} s, got none"
        )

    def _full(self, message: str) -> ThreadsFull:
        self.refused += 1
        wait_s = (self.waiting + 1) * self._mean_s / self._threads
        return ThreadsFull(message, min(max(math.ceil(wait_s), 1), MAX_RETRY_AFTER_S))
