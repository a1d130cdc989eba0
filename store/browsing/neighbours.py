"""The inferences before and after one, among the matches of a filter."""

from typing import Any

import msgspec

from quadriga.store.inferences import InferenceReader
from quadriga.store.query.plan import IdRange
from quadriga.store.query.request import Order, QueryRequest, request_from_url
from quadriga.store.query.search import find_first

URL_OPTIONS = ("order",)


class NeighboursRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of the neighbours of an inference."""

    where: Any = None
    """A filter, as of a query."""
    order: Order = "-ts"
    """Order of the query."""


class Neighbours(msgspec.Struct, frozen=True):
    """Neighbours of an inference among the matches of a filter, which it need not match itself."""

    previous: str | None
    """Id of the match that comes before it in the order of the query, or None."""
    next: str | None
    """Id of the match that comes after it, or None."""
    partial: bool = False
    """Whether the time limit was reached on a side that is None: there may be one yet."""


def neighbours_from_url(query: str) -> NeighboursRequest:
    """Parse the query of a URL, or raise a `QueryError`."""
    return request_from_url(query, NeighboursRequest, URL_OPTIONS)


def find_neighbours(
    inferences: InferenceReader, inference_id: str, request: NeighboursRequest
) -> Neighbours:
    """Find the neighbours of an inference.

    Raises:
        NotFoundError: There is no such inference, or the filter compares with a model that is not known.
        QueryError: The id is malformed, or the filter is invalid.
    """
    tree = inferences.read_filter(QueryRequest(where=request.where))
    seq = int(inferences.get(inference_id).id)
    ids: list[str | None] = []
    is_partial = False
    with inferences.snapshot() as connection:
        planner = inferences.planner(connection, tree)
        for is_older in (True, False):
            rows, resume_id = find_first(
                connection,
                planner,
                descending=is_older,
                limit=1,
                id_range=IdRange(high=seq - 1) if is_older else IdRange(low=seq + 1),
                budget=inferences.budget,
            )
            ids.append(str(rows[0][0]) if rows else None)
            is_partial |= not rows and resume_id is not None
    older, newer = ids
    if request.order == "-ts":
        return Neighbours(newer, older, is_partial)
    return Neighbours(older, newer, is_partial)
