"""Counting of matches, and pages that begin at an offset."""

import msgspec

from quadriga.store.query.request import QueryRequest, range_after
from quadriga.store.query.sql.plan import IdRange
from quadriga.store.query.sql.search import Budget, Search
from quadriga.store.records.errors import QueryTimeoutError

COUNT_CAP = 10_001
"""Limit of a capped count; a count that reaches it means: more than 10,000."""


class Count(msgspec.Struct, frozen=True):
    """Number of matches."""

    count: int
    is_exact: bool
    """`False` if there may be more."""
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Why nothing may be found, left out where something is; see `quadriga.store.query.names.unknown_key_warnings`."""


def skip_matches(
    search: Search, request: QueryRequest, id_range: IdRange, budget: Budget
) -> IdRange:
    """Return the ids behind the matches that an offset skips.

    Raises:
        QueryTimeoutError: The budget ended before that.
    """
    rows, resume_id = search.first_matches(request.offset, id_range, budget)
    if len(rows) == request.offset:
        return range_after(rows[-1][0], request.order)
    if resume_id is not None:
        raise late_offset(request.offset)
    return IdRange(1, 0)


def late_offset(offset: int) -> QueryTimeoutError:
    """Return the error of a page that was not full in time: the next offset would leave out the rest of it."""
    return QueryTimeoutError(
        f"cannot read a whole page at offset {offset} in time: narrow the filter, or send the cursor that the page "
        "before answered"
    )


def count_matches(search: Search, budget: Budget, *, is_capped: bool) -> Count:
    """Count up to the cap, and beyond it if required."""
    rows, resume_id = search.first_matches(COUNT_CAP, IdRange(), budget)
    if resume_id is None and len(rows) < COUNT_CAP:
        return Count(len(rows), is_exact=True)
    if is_capped:
        return Count(len(rows), is_exact=False)
    return Count(search.count(), is_exact=True)
