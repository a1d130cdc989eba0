"""The live page: the newest inferences that a filter finds, and how the last minute went; a script puts new ones on top."""

import time
from contextlib import suppress
from typing import Any

from litestar import Response

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.store_queries import query_string
from quadriga.engine.api.stored.tail import TAIL_PATH
from quadriga.engine.console.cards import card
from quadriga.engine.console.filter_line import (
    FilterLinks,
    absent,
    check,
    filter_from_url,
    meant_lines,
    only_meaning,
)
from quadriga.engine.console.frame import PageRequest, redirect
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.monitor.report.saved import ReportStore
from quadriga.store.browsing.arrivals import settled
from quadriga.store.maintenance.aggregates import AggregateRequest, aggregate
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.store.records.records import timestamp_text

LIVE_PATH = "/console/live"
NEWEST = 50
"""Inferences of the page."""

_MINUTE_MS = 60_000


def read_live(
    store: InferenceReader,
    line: str,
    links: FilterLinks,
    now_ms: int,
    reports: ReportStore | None = None,
) -> dict[str, Any]:
    """Read the content of the page.

    Args:
        store: What the caller sees of the store.
        line: The filter.
        links: Makes the links of the page.
        now_ms: Milliseconds since 1970.
        reports: The reports that the caller may see, for what evaluations find.
    """
    problem = check(line)
    if problem is not None:
        return {"problem": problem, "meant": meant_lines(store, line, links, reports)}
    # Before the newest are read: the script knows which it has already.
    after = settled(store, now_ms)
    try:
        newest = store.query(QueryRequest(line or {}, limit=NEWEST)).inferences
    except (QueryError, NotFoundError) as error:
        problem = absent(line, str(error))
        return {"problem": problem, "meant": meant_lines(store, line, links)}
    minute = None
    with suppress(QueryError):
        minute = _last_minute(store, line, now_ms)
    return {
        "problem": None,
        "cards": [card(inference) for inference in newest],
        "after": str(after),
        "minute": minute,
    }


def _last_minute(store: InferenceReader, line: str, now_ms: int) -> dict[str, Any]:
    """Return how inferences went since the beginning of the minute before this one, and so for one to two minutes."""
    since_ms = now_ms // _MINUTE_MS * _MINUTE_MS - _MINUTE_MS  # rollups count whole minutes
    since = timestamp_text(since_ms)
    where: list[Any] = [{"ts": {"ge": since}}, *([line] if line else [])]
    request = AggregateRequest({"and": where}, [], ["count", "error_rate", "latency_p95"])
    (group,) = aggregate(store, request).groups
    per_minute = group["count"] * _MINUTE_MS / (now_ms - since_ms)
    return {**group, "since": since, "per_minute": per_minute}


def live_page(services: Services, store: ConsoleStore) -> None:
    """Register the handler."""
    frame, queries = services.frame, store.queries

    @services.page(LIVE_PATH)
    async def show_live(request: PageRequest) -> Response[bytes]:
        """Show the newest inferences that a filter finds."""
        filter_ = filter_from_url(query_string(request))
        links = FilterLinks(filter_, frame.link, LIVE_PATH)
        if not filter_.is_canonical:
            return redirect(links.to(filter_.line))

        def show(inferences: InferenceReader) -> Response[bytes]:
            reports, now_ms = store.reports.within(caller_scope()), time.time_ns() // 1_000_000
            content = read_live(inferences, filter_.line, links, now_ms, reports)
            if content["problem"] and (meant := only_meaning(filter_.line, content["meant"])):
                return redirect(meant.link)
            return frame.page(
                "live",
                status=content["problem"].status if content["problem"] else 200,
                page="live",
                title="Live",
                query=filter_.line,
                chips=links.chips(),
                filter_path=LIVE_PATH,
                p=content,
                reload=links.to(filter_.line),
                tail_path=frame.base + TAIL_PATH,
                newest=NEWEST,
            )

        return await queries.run(request, show)
