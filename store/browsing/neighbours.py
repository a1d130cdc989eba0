"""The inferences before and after one, among the matches of a filter."""

from functools import partial
from typing import Any

import msgspec

from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import Order, QueryRequest
from quadriga.store.query.sql.search import Budget, IdRange, find_first

_SHORT = Budget(rows=10_000, seconds=0.1)
"""Limits of the search for more than the nearest neighbour."""


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


class Surroundings(msgspec.Struct, frozen=True):
    """Some neighbours of an inference on each side of it, the nearest first."""

    before: list[str]
    """Ids of the matches that come before it in the order of the query."""
    after: list[str]
    """Ids of those that come after it."""
    partial: bool
    """Whether the time limit was reached on a side that is empty: there may be some yet."""


def find_neighbours(
    inferences: InferenceReader, inference_id: str, request: NeighboursRequest
) -> Neighbours:
    """Find the neighbours of an inference.

    Raises:
        NotFoundError: There is no such inference, or the filter compares with a model that is not known.
        QueryError: The id is malformed, or the filter is invalid.
    """
    nearest = find_surroundings(inferences, inference_id, request, 1)
    previous, next_ = (side[0] if side else None for side in (nearest.before, nearest.after))
    return Neighbours(previous, next_, nearest.partial)


def find_surroundings(
    inferences: InferenceReader, inference_id: str, request: NeighboursRequest, count: int
) -> Surroundings:
    """Find up to `count` neighbours on each side of an inference; errors as for `find_neighbours`.

    More than the nearest are looked for a short time only, so that the answer takes hardly longer than for one.
    """
    tree = inferences.read_filter(QueryRequest(where=request.where))
    seq = int(inferences.get(inference_id).id)
    sides: list[list[str]] = []
    is_partial = False
    with inferences.snapshot() as connection:
        planner = inferences.planner(connection, tree)
        for is_older in (True, False):
            search = partial(find_first, connection, planner, descending=is_older)
            id_range = IdRange().after(seq, descending=is_older)
            budget = inferences.budget if count == 1 else _SHORT
            rows, resume_id = search(limit=count, id_range=id_range, budget=budget)
            if not rows and resume_id is not None and count > 1:
                id_range = id_range.after(resume_id, descending=is_older)
                rows, resume_id = search(limit=1, id_range=id_range, budget=inferences.budget)
            sides.append([str(row[0]) for row in rows])
            is_partial |= not rows and resume_id is not None
    older, newer = sides
    if request.order == "-ts":
        return Surroundings(newer, older, is_partial)
    return Surroundings(older, newer, is_partial)
