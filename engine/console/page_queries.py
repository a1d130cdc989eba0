"""Runs what pages read of the store."""

from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from quadriga.engine.api.store_queries import StoreQueries
from quadriga.engine.console.frame import PageRequest
from quadriga.store.query.inferences import InferenceReader

ResultT = TypeVar("ResultT")


async def run_in_queries(
    queries: StoreQueries, request: PageRequest, work: Callable[[InferenceReader], ResultT]
) -> ResultT:
    """Make a page in a thread for searches, as the current caller."""
    context = copy_context()
    return await queries.run(request, lambda store: context.run(work, store))
