"""Runs the searches of HTTP routes: in threads of their own, each only as long as its client is there."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from litestar import Request
from litestar.types import Receive

from quadriga.engine.bounded_threads import BoundedThreads
from quadriga.proto.errors import ProtocolError
from quadriga.store.cancellation import Cancellation
from quadriga.store.inferences import InferenceReader

ResultT = TypeVar("ResultT")


class StoreQueries:
    """Searches of the store.

    Args:
        inferences: The store.
        threads: Threads of the searches.
    """

    def __init__(self, inferences: InferenceReader, threads: BoundedThreads) -> None:
        self._inferences = inferences
        self._threads = threads

    async def run(
        self, request: Request[Any, Any, Any], work: Callable[[InferenceReader], ResultT]
    ) -> ResultT:
        """Run a search once a thread is free; the request's body has been read.

        Raises:
            quadriga.engine.bounded_threads.ThreadsFull: Too many searches wait.
            QueryCancelledError: The client left before the end.
        """
        gone = asyncio.ensure_future(_disconnected(request.receive))
        cancellation = Cancellation()
        inferences = self._inferences.cancelled_by(cancellation)
        try:
            async with self._threads.turn(gone):
                searching = self._threads.start(partial(work, inferences))
                ends: list[asyncio.Future[Any]] = [gone, searching]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if not searching.done():
                    await asyncio.to_thread(cancellation.cancel)
                return await searching
        finally:
            gone.cancel()


async def _disconnected(receive: Receive) -> None:
    with suppress(ProtocolError):  # it does not send the body that it announced
        while (await receive())["type"] != "http.disconnect":
            pass
