"""Runs the searches of HTTP routes: within the scope of the caller, in threads of their own, while the client is there."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from litestar import Request
from litestar.types import Receive

from quadriga.engine.api.access import caller_scope
from quadriga.engine.models.runners.bounded_threads import BoundedThreads, ThreadsFull
from quadriga.proto.errors import ProtocolError
from quadriga.store.database.database import Cancellation
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotReadyError, QueryTimeoutError
from quadriga.store.records.scope import Scoped

ResultT = TypeVar("ResultT")

PASSING = (NotReadyError, QueryTimeoutError, ThreadsFull)
"""Errors of a database that is away or busy."""

RETRY_INTERVAL_S = 0.5


class StoreQueries:
    """Searches of the store.

    Args:
        inferences: The store.
        threads: Threads of the searches.
    """

    def __init__(self, inferences: Scoped[InferenceReader], threads: BoundedThreads) -> None:
        self._inferences = inferences
        self._threads = threads

    async def run(
        self, request: Request[Any, Any, Any], work: Callable[[InferenceReader], ResultT]
    ) -> ResultT:
        """Run a search of what the caller may see, as that caller, once a thread is free; the request's body has been read.

        Raises:
            quadriga.engine.models.runners.bounded_threads.ThreadsFull: Too many searches wait.
            QueryCancelledError: The client left before the end.
        """
        gone = asyncio.ensure_future(wait_for_disconnect(request.receive))
        cancellation = Cancellation()
        inferences = self._inferences.within(caller_scope()).cancelled_by(cancellation)
        try:
            async with self._threads.turn(gone):
                searching = self._threads.start(work, inferences)
                ends: list[asyncio.Future[Any]] = [gone, searching]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if not searching.done():
                    await asyncio.to_thread(cancellation.cancel)
                return await searching
        finally:
            gone.cancel()

    async def run_patiently(
        self,
        request: Request[Any, Any, Any],
        work: Callable[[InferenceReader], ResultT],
        tries: int,
    ) -> ResultT:
        """Run a search as `run`, and once more after each of so many tries that the database was away or busy."""
        for _ in range(tries):
            with suppress(*PASSING):
                return await self.run(request, work)
            await asyncio.sleep(RETRY_INTERVAL_S)
        return await self.run(request, work)


def query_string(request: Request[Any, Any, Any]) -> str:
    """Return the query of a request's URL as it was sent, without `?`."""
    text: str = request.scope["query_string"].decode("latin-1")
    return text


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client of a request leaves; what is left of its body is dropped."""
    with suppress(ProtocolError):  # it does not send the body that it announced
        while (await receive())["type"] != "http.disconnect":
            pass
