"""The page of inferences: those that a filter finds, as a grid or a table, with their facets and times."""

from collections import Counter
from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import Any

import msgspec

from quadriga.engine.console.cards import Card, card, told_apart
from quadriga.engine.console.charts import Timeline, timeline
from quadriga.engine.console.facet_links import (
    BINS,
    VALUES,
    FacetGroup,
    counted_facets,
    facet_groups,
)
from quadriga.engine.console.filter_line import comparison_text, joined
from quadriga.engine.console.filter_problems import Problem, absent
from quadriga.engine.console.inference_filter import FilterLinks, InferenceFilter
from quadriga.engine.console.object_cards import (
    INFERENCES,
    ObjectCard,
    is_meant,
    meant_conditions,
    object_cards,
)
from quadriga.engine.console.search_words import MeantLine, explained, meant_lines
from quadriga.monitor.report.saved import ReportStore
from quadriga.store.browsing.facets import Facets, FacetsRequest, find_facets
from quadriga.store.query.inferences import InferenceReader, Page
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import NotFoundError, QueryError, QueryTimeoutError
from quadriga.store.records.records import timestamp_text

GRID_SIZE, TABLE_SIZE = 48, 100
"""Inferences on a page."""

_COLUMNS = 4
_METADATA_VALUES = 12
_HINTS = 6
_BOUND_UNITS_S = (1, 10, 60, 600, 3600)
_BOUND_SHARE = 20


class Hint(msgspec.Struct, frozen=True):
    """A part of a filter that finds nothing, and what there is without it."""

    text: str
    count: int
    is_exact: bool
    link: str


class InferencesPage(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the page."""

    problem: Problem | None = None
    """Why the filter is none; of the rest the page has only `meant` then."""
    meant: list[MeantLine] = []
    """Other filters that may have been meant, where this one is none or finds nothing."""
    example: str = ""
    """A filter that finds something of the same; empty where that is not known."""
    count: int | None = None
    """Number of matches; None where that is not known."""
    is_exact_count: bool = True
    cards: list[Card] = []
    next_link: str = ""
    first_link: str = ""
    """Link to the first page, on all later ones."""
    is_partial: bool = False
    """Whether the search took too long to fill the page."""
    view: str = "grid"
    objects: list[ObjectCard] = []
    """Predicted objects, in the view of them."""
    answered_by: dict[str, str] = {}
    """Model or version that answered, by the id of the inference, where the page has several."""
    more_objects: int = 0
    columns: list[str] = []
    """Metadata that the table shows."""
    times: Timeline = msgspec.field(default_factory=lambda: timeline([]))
    groups: list[FacetGroup] = []
    more_groups: int = 0
    is_sampled: bool = False
    """Whether facets are estimates."""
    unknown_keys: list[str] = []
    """Sentences about keys of the filter that nothing has, where it finds nothing."""
    hints: list[Hint] = []


class TimeLink(msgspec.Struct, frozen=True):
    """A range of time that one click chooses."""

    name: str
    """Name of its text."""
    link: str
    is_chosen: bool


def time_links(links: FilterLinks, today: date) -> list[TimeLink]:
    """Return the ranges of time to choose from; `today` is the day in UTC."""
    yesterday = today - timedelta(days=1)
    ranges = {
        "times_hour": ["ts=ge:-1h"],
        "times_day": ["ts=ge:-24h"],
        "times_yesterday": [f"ts=ge:{yesterday}T00:00:00Z", f"ts=lt:{today}T00:00:00Z"],
        "times_week": ["ts=ge:-7d"],
        "times_all": [],
    }
    return [
        TimeLink(
            name,
            links.within("ts", texts),
            all(links.has(text) for text in texts) if texts else not links.bounds("ts"),
        )
        for name, texts in ranges.items()
    ]


def read_inferences(
    store: InferenceReader,
    filter_: InferenceFilter,
    links: FilterLinks,
    reports: ReportStore | None = None,
) -> InferencesPage:
    """Read the content of the page.

    Args:
        store: What the caller sees of the store.
        filter_: What the URL says.
        links: Makes the links of the page.
        reports: The reports that the caller may see.
    """
    problem = explained(store, filter_.line)
    if problem is not None:
        meant = meant_lines(store, filter_.line, links, reports)
        return InferencesPage(problem=problem, meant=meant)
    where: Any = filter_.line or {}
    limit = {"table": TABLE_SIZE, "objects": INFERENCES}.get(filter_.view, GRID_SIZE)
    try:
        request = QueryRequest(where, filter_.order, limit, filter_.cursor or None)  # type: ignore[arg-type]  # one of ORDERS
        page = store.query(request)
        facets = find_facets(store, FacetsRequest(where, None, VALUES, BINS))
    except (QueryError, NotFoundError) as error:
        return InferencesPage(
            problem=absent(filter_.line, str(error)),
            meant=meant_lines(store, filter_.line, links),
        )
    return _page(store, filter_, links, page=page, facets=facets)


def _page(
    store: InferenceReader,
    filter_: InferenceFilter,
    links: FilterLinks,
    *,
    page: Page,
    facets: Facets,
) -> InferencesPage:
    conditions = meant_conditions(filter_.line)
    cards = told_apart(
        [
            card(
                inference,
                metadata_values=_METADATA_VALUES,
                is_meant=lambda item: bool(conditions) and is_meant(item, conditions),
            )
            for inference in page.inferences
        ]
    )
    groups, more_groups = facet_groups(counted_facets(store, facets, links), links)
    is_of_objects = filter_.view == "objects"
    objects, more_objects = (
        object_cards(page.inferences, filter_.line) if is_of_objects else ([], 0)
    )
    has_images = any(item.has_image for item in cards)
    is_empty = not page.inferences and page.cursor is None and not filter_.cursor
    return InferencesPage(
        count=0 if is_empty else facets.count,
        is_exact_count=is_empty or facets.is_exact_count,
        cards=cards,
        next_link=links.current(cursor=page.cursor) if page.cursor else "",
        first_link=links.current() if filter_.cursor else "",
        is_partial=page.partial,
        view=filter_.view or ("grid" if has_images or not cards else "table"),
        objects=objects,
        answered_by={item.id: item.answered_by for item in cards if item.answered_by},
        more_objects=more_objects,
        columns=_columns(cards),
        times=timeline(_time_slices(facets)),
        groups=groups,
        more_groups=more_groups + facets.more_facets,
        is_sampled=not all(group.is_exact for group in groups),
        hints=_hints(store, filter_, links) if is_empty else [],
        unknown_keys=page.warnings or [],
        meant=meant_lines(store, filter_.line, links) if is_empty and filter_.line else [],
        example=_example(facets),
    )


def _time_slices(facets: Facets) -> list[tuple[str, str, int, int]]:
    """Return the bars over time; the bounds of estimated ones, which are not round, at a twentieth of a bar or less."""
    bins = facets.time
    if facets.is_exact_count or len(bins) < 2:
        return [(bin_.start, bin_.end, bin_.count, 0) for bin_ in bins]
    bounds = [datetime.fromisoformat(bin_.start) for bin_ in bins]
    end = datetime.fromisoformat(bins[-1].end)
    unit_s = max((unit for unit in _BOUND_UNITS_S if unit <= (end - bounds[0]).total_seconds() / len(bins) / _BOUND_SHARE), default=0)  # fmt: skip
    if not unit_s:
        return [(bin_.start, bin_.end, bin_.count, 0) for bin_ in bins]
    seconds = [*(at.timestamp() // unit_s for at in bounds), -(-end.timestamp() // unit_s)]
    texts = [timestamp_text(int(second * unit_s * 1000)) for second in seconds]
    return [
        (start, stop, bin_.count, 0)
        for start, stop, bin_ in zip(texts, texts[1:], bins, strict=False)
    ]


def _example(facets: Facets) -> str:
    """Return a filter by the most frequent label; empty where there is none."""
    labels = next((f.values for f in facets.facets if f.field == "label"), [])
    return comparison_text("label", labels[0].value) if labels else ""


def _columns(cards: list[Card]) -> list[str]:
    """Return the metadata that most of the page's inferences have."""
    counts = Counter(key for item in cards for key, _ in item.metadata)
    return [key for key, _ in counts.most_common(_COLUMNS)]


def _hints(store: InferenceReader, filter_: InferenceFilter, links: FilterLinks) -> list[Hint]:
    """Return which parts keep everything out: those without which there is something, the most first."""
    texts = [part.text for part in filter_.parts]
    hints = []
    with suppress(QueryTimeoutError):  # the page says without further hints that nothing is there
        for number, text in enumerate(texts[:_HINTS]):
            rest = joined([*texts[:number], *texts[number + 1 :]])
            with suppress(QueryError, NotFoundError):
                counted = store.count(QueryRequest(rest or {}))
                if counted.count:
                    hints.append(Hint(text, counted.count, counted.is_exact, links.to(rest)))
    return sorted(hints, key=lambda hint: -hint.count)
