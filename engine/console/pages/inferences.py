"""The page of inferences: those that a filter finds, as a grid or a table, with their facets and times."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
from litestar import Response

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.store_queries import query_string
from quadriga.engine.console.cards import (
    INFERENCES,
    Card,
    card,
    find_meant,
    object_cards,
    told_apart,
)
from quadriga.engine.console.charts import Bar
from quadriga.engine.console.filter_line import (
    GLANCE,
    INFERENCES_PATH,
    FilterLinks,
    InferenceFilter,
    absent,
    check,
    comparison_text,
    filter_from_url,
    joined,
    meant_lines,
    only_meaning,
    same_value,
)
from quadriga.engine.console.formats import task_words
from quadriga.engine.console.frame import PageRequest, redirect
from quadriga.engine.console.pages.start import ANNOTATED, EXPORT_FORMATS
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.monitor.report.saved import ReportStore
from quadriga.store.browsing.facets import (
    LARGEST_EXACT,
    MAX_TEXT,
    MEASURED,
    MEASURES,
    Facet,
    Facets,
    FacetsRequest,
    FacetValue,
    find_facets,
    tail_bound,
)
from quadriga.store.query.filters.syntax import Scalar
from quadriga.store.query.inferences import Count, InferenceReader, Page
from quadriga.store.query.names import CLASSIFICATION
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

VALUES, BINS = 8, 16
"""Maximum values and bins of a facet."""

MAX_GROUPS = 14

MOST_TAGGED = 5000
"""Inferences that the page tags at once: each is a request of its own, so that its history says who set the tag."""

MAX_WIDER = 3
"""Fields with chosen values that are counted without their choice: each costs a search. Others have the chosen values alone."""

_FIRST_FACETS = ("model", "version", "label", "score")

_ENDS = {
    "sig.image.blur": ("sharp", "blurred"),
    "sig.image.brightness": ("dark", "bright"),
    "sig.image.contrast": ("low contrast", "high contrast"),
}
"""What the low and the high end of the numbers of an image look like."""

_LAST_FACETS = (
    "ground_truth", "ground_truth.review", "status", "latency_ms", "predictions", "task",
)  # fmt: skip


class ValueLink(msgspec.Struct, frozen=True, kw_only=True):
    """A value of a field."""

    name: str
    count: int
    link: str
    is_chosen: bool


class FacetGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A field with its values, or its histogram."""

    facet: Facet
    values: list[ValueLink]
    """Empty for a histogram."""
    is_exact: bool
    """Whether its numbers are counted, not estimated."""
    ends: list[tuple[str, str, bool]]
    """The low and the high end of what was measured on the images: name, link, and whether it is chosen; none of other fields."""


class CountedFacet(msgspec.Struct, frozen=True):
    """A facet, and whether its numbers are counted."""

    facet: Facet
    is_exact: bool


def time_links(links: FilterLinks, today: date) -> list[tuple[str, str, bool]]:
    """Return the ranges of time that one click chooses, with link, and whether it is chosen; `today` is the day in UTC."""
    yesterday = today - timedelta(days=1)
    ranges = {
        "Last hour": ["ts=ge:-1h"],
        "24 hours": ["ts=ge:-24h"],
        "Yesterday (UTC)": [f"ts=ge:{yesterday}T00:00:00Z", f"ts=lt:{today}T00:00:00Z"],
        "7 days": ["ts=ge:-7d"],
        "All": [],
    }
    return [
        (
            name,
            links.within("ts", texts),
            all(map(links.has, texts)) if texts else not links.bounds("ts"),
        )
        for name, texts in ranges.items()
    ]


def read_inferences(
    store: InferenceReader,
    filter_: InferenceFilter,
    links: FilterLinks,
    reports: Callable[[], ReportStore] | None = None,
) -> dict[str, Any]:
    """Read the content of the page: `problem` and `meant` alone for a line that is no filter.

    Args:
        store: What the caller sees of the store.
        filter_: What the URL says.
        links: Makes the links of the page.
        reports: Returns the reports that the caller may see; only a line that is no filter, or names one, asks for them.
    """
    problem = check(filter_.line)
    if problem is not None:
        meant = meant_lines(store, filter_.line, links, reports() if reports else None)
        return {"problem": problem, "meant": meant}
    where: Any = filter_.line or {}
    limit = {"table": TABLE_SIZE, "objects": INFERENCES}.get(filter_.view, GRID_SIZE)
    try:
        request = QueryRequest(where, filter_.order, limit, filter_.cursor or None)  # type: ignore[arg-type]  # one of ORDERS
        page = store.query(request)
        facets = find_facets(store, FacetsRequest(where, None, VALUES, BINS))
    except (QueryError, NotFoundError) as error:
        problem = absent(filter_.line, str(error))
        return {"problem": problem, "meant": meant_lines(store, filter_.line, links)}
    return _page(store, filter_, links, page=page, facets=facets, reports=reports)


def _page(
    store: InferenceReader,
    filter_: InferenceFilter,
    links: FilterLinks,
    *,
    page: Page,
    facets: Facets,
    reports: Callable[[], ReportStore] | None,
) -> dict[str, Any]:
    meant = find_meant(filter_.line, page.inferences, reports)
    cards = told_apart(
        [
            card(inference, metadata_values=_METADATA_VALUES, meant=meant)
            for inference in page.inferences
        ]
    )
    groups, more_groups = facet_groups(counted_facets(store, facets, links), links)
    objects, more_objects = (
        object_cards(page.inferences, meant) if filter_.view == "objects" else ([], 0)
    )
    has_images = any(item.has_image for item in cards)
    is_empty = not page.inferences and page.cursor is None and not filter_.cursor
    return {
        "problem": None,
        "count": 0 if is_empty else facets.count,
        "is_exact_count": is_empty or facets.is_exact_count,
        "cards": cards,
        "next_link": links.current(cursor=page.cursor) if page.cursor else "",
        "first_link": links.current() if filter_.cursor else "",
        "is_partial": page.partial,
        "view": filter_.view or ("grid" if has_images or not cards else "table"),
        "objects": objects,
        "answered_by": {item.of.id: item.answered_by for item in cards if item.answered_by},
        "more_objects": more_objects,
        "columns": _columns(cards),
        "times": _time_bars(facets),
        "groups": groups,
        "more_groups": more_groups + facets.more_facets,
        "hints": _hints(store, filter_, links) if is_empty else [],
        "unknown_keys": page.warnings or [],
        "meant": meant_lines(store, filter_.line, links) if is_empty and filter_.line else [],
        "example": _example(facets),
    }


def _time_bars(facets: Facets) -> list[Bar]:
    """Return the bars over time; the bounds of estimated ones, which are not round, at a twentieth of a bar or less."""
    bins = facets.time
    bounds = [bin_.start for bin_ in bins] + [bin_.end for bin_ in bins[-1:]]
    if len(bins) > 1 and not facets.is_exact_count:
        *starts_s, end_s = (datetime.fromisoformat(bound).timestamp() for bound in bounds)
        most_s = (end_s - starts_s[0]) / len(bins) / _BOUND_SHARE
        if unit_s := max((unit for unit in _BOUND_UNITS_S if unit <= most_s), default=0):
            units = [*(start // unit_s for start in starts_s), -(-end_s // unit_s)]
            bounds = [timestamp_text(int(unit * unit_s * 1000)) for unit in units]
    return [
        Bar(start, end, bin_.count)
        for start, end, bin_ in zip(bounds, bounds[1:], bins, strict=False)
    ]


def _example(facets: Facets) -> str:
    """Return a filter by the most frequent label; empty where there is none."""
    labels = next((f.values for f in facets.facets if f.field == "label"), [])
    return comparison_text("label", labels[0].value) if labels else ""


def _columns(cards: list[Card]) -> list[str]:
    """Return the metadata that most of the page's inferences have."""
    counts = Counter(key for item in cards for key, _ in item.metadata)
    return [key for key, _ in counts.most_common(_COLUMNS)]


def _hints(
    store: InferenceReader, filter_: InferenceFilter, links: FilterLinks
) -> list[tuple[str, Count, str]]:
    """Return which parts keep everything out, what there is without them, the most first, and the links that remove them."""
    texts = [part.text for part in filter_.parts]
    hints = []
    with suppress(QueryTimeoutError):  # the page says without further hints that nothing is there
        for number, text in enumerate(texts[:_HINTS]):
            rest = joined([*texts[:number], *texts[number + 1 :]])
            with suppress(QueryError, NotFoundError):
                counted = store.count(QueryRequest(rest or {}, count="capped"), GLANCE)
                if counted.count:
                    hints.append((text, counted, links.to(rest)))
    return sorted(hints, key=lambda hint: -hint[1].count)


def facet_groups(
    facets: Iterable[CountedFacet], links: FilterLinks
) -> tuple[list[FacetGroup], int]:
    """Return the facets that tell something, those of metadata in the middle, and how many more there are."""
    ordered = sorted(facets, key=lambda counted: _facet_rank(counted.facet))
    label_field = links.cell_field or _label_field(counted.facet for counted in ordered)
    groups = [group for counted in ordered if (group := _facet_group(counted, links, label_field)) is not None]  # fmt: skip
    return groups[:MAX_GROUPS], max(len(groups) - MAX_GROUPS, 0)


def _label_field(facets: Iterable[Facet]) -> str:
    """Return the field that asks for a label as the facet counts it: a classification for its best one, whatever others it stored."""
    has_classes = any(value.value == CLASSIFICATION for facet in facets if facet.field == "task" for value in facet.values)  # fmt: skip
    return "best" if has_classes else "label"


def counted_facets(
    store: InferenceReader, facets: Facets, links: FilterLinks
) -> list[CountedFacet]:
    """Return the facets of a filter; those of which it chooses values have their other values, too."""
    counted = {
        (facet.field, facet.type): CountedFacet(
            facet, facets.exact and (facet.field not in MEASURES or facets.sampled <= MEASURED)
        )
        for facet in facets.facets
    }
    for field in links.chosen_fields()[:MAX_WIDER]:
        where: Any = links.without_choice(field) or {}
        facet_field = "label" if field == "best" else field
        try:
            wider = find_facets(store, FacetsRequest(where, [facet_field], VALUES, BINS))
        except (QueryError, NotFoundError):
            continue  # the facet has the chosen values alone
        except QueryTimeoutError:
            break  # nobody waits for more of this
        for facet in wider.facets:
            own = counted.get((facet_field, facet.type))
            if facet.values:
                own_facet = None if own is None else own.facet
                merged = _with_chosen(facet, own_facet, links.chosen(field))
                is_exact = wider.exact and (own is None or own.is_exact)
                counted[facet_field, facet.type] = CountedFacet(merged, is_exact)
    label = counted.get(("label", "string"))
    if label is not None and links.cell_field:
        facet = _of_cells(store, label.facet, links)
        counted["label", "string"] = msgspec.structs.replace(label, facet=facet)
    return list(counted.values())


def _of_cells(store: InferenceReader, facet: Facet, links: FilterLinks) -> Facet:
    """Return the labels of a facet with the number of images where an evaluation missed them, or found them falsely."""
    lines = {
        value.value: links.line_with(comparison_text(links.cell_field, value.value))
        for value in facet.values
    }
    counts = {label: store.count(QueryRequest(line)).count for label, line in lines.items()}
    in_order = sorted(counts.items(), key=lambda pair: -pair[1])
    values = [FacetValue(label, count) for label, count in in_order if count]
    return msgspec.structs.replace(facet, values=values, distinct=len(values))


def _with_chosen(wider: Facet, own: Facet | None, chosen: Sequence[Scalar]) -> Facet:
    """Return a facet that is counted without the choice, with the chosen values, which are counted within it.

    A chosen value that the filter does not find has a count of 0, as far as `own`, the facet of the filter, has all values.
    """
    listed = [] if own is None else own.values
    known = {value.value: value for value in (*wider.values, *listed) if _is_in(value.value, chosen)}  # fmt: skip
    has_all = own is None or own.distinct <= len(listed)
    absent = [
        FacetValue(value, 0)
        for value in chosen
        if has_all
        and wider.field != "model"  # whose name may be given with a version
        and _is_of_type(value, wider.type)
        and not _is_in(value, known)
        and not _is_cut(value)
    ]
    others = [value for value in wider.values if not _is_in(value.value, chosen)]
    shown = [*known.values(), *absent, *others][:VALUES]
    in_order = sorted(shown, key=lambda value: (-value.count, value.value))
    return msgspec.structs.replace(wider, values=in_order, distinct=wider.distinct + len(absent))


def _is_cut(value: Scalar) -> bool:
    """Check whether a facet may have the beginning of a text alone."""
    return isinstance(value, str) and len(value) >= MAX_TEXT


def _is_in(value: Scalar, values: Iterable[Scalar]) -> bool:
    return any(same_value(value, other) for other in values)


def _is_of_type(value: Scalar, type_: str) -> bool:
    if isinstance(value, bool):
        return type_ == "boolean"
    return type_ == ("string" if isinstance(value, str) else "number")


def _facet_rank(facet: Facet) -> tuple[int, int]:
    if facet.field in _FIRST_FACETS:
        return 0, _FIRST_FACETS.index(facet.field)
    if facet.field in _LAST_FACETS:
        return 2, _LAST_FACETS.index(facet.field)
    # Those of metadata in the order of the answer; what nearly each image has differently comes after what was measured.
    most = max((value.count for value in facet.values), default=0)
    is_nearly_unique = facet.distinct > len(facet.values) > 0 and most < max(
        3, (facet.count or 0) / 100
    )
    return 1, 2 if is_nearly_unique else 1 if facet.field in _ENDS else 0


def _facet_group(counted: CountedFacet, links: FilterLinks, label_field: str) -> FacetGroup | None:
    """Return a group; None for a field that all have alike, or all have differently."""
    facet = counted.facet
    if facet.count is None or facet.type == "other":
        return None
    values = [] if facet.field == "score" else _value_links(facet, links, label_field)
    is_chosen = any(value.is_chosen for value in values)
    if values and not is_chosen:
        is_same = facet.distinct < 2 and not facet.field.startswith(("meta.", "label"))
        is_identifier = facet.distinct > len(values) and max(v.count for v in values) < 2
        if is_same or is_identifier:
            return None
    bins = facet.histogram
    if not values and (len(bins) < 2 or not bins[-1].high > bins[0].low):
        return None
    ends = _end_links(facet, links)
    return FacetGroup(facet=facet, values=values, is_exact=counted.is_exact, ends=ends)


def _end_links(facet: Facet, links: FilterLinks) -> list[tuple[str, str, bool]]:
    """Return the links to both ends of the numbers measured on images: a quarter of them each, at most."""
    ends = []
    for name, operator in zip(_ENDS.get(facet.field, ()), ("lt", "ge"), strict=False):
        bound = tail_bound(facet.histogram, is_low=operator == "lt")
        text = comparison_text(facet.field, bound or 0, operator)
        link = links.toggled(text) if links.has(text) else links.within(facet.field, [text])
        ends.append((name, link, links.has(text)))
    return ends


def _value_links(facet: Facet, links: FilterLinks, label_field: str) -> list[ValueLink]:
    is_label = facet.field == "label"
    field = label_field if is_label else facet.field
    chosen = links.chosen(field)
    shown = []
    for value in facet.values[:VALUES]:
        if _is_cut(value.value):
            continue  # as no filter finds the beginning of a text
        text = comparison_text(
            links.cell_field if is_label and links.cell_field else facet.field, value.value
        )
        is_one_of_several = is_label and (label_field != "best" or links.has(text))
        shown.append(
            ValueLink(
                name=_value_name(facet.field, value.value),
                count=value.count,
                link=links.toggled(text)
                if is_one_of_several  # as an image may have several labels
                else links.toggled_value(field, value.value),
                is_chosen=links.has(text) if is_one_of_several else _is_in(value.value, chosen),
            )
        )
    return shown


def _value_name(field: str, value: str | float | bool) -> str:  # noqa: FBT001 - as above
    if field == "ground_truth":
        return "known" if value else "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return task_words(value) if field == "task" else value
    # Whole numbers have all their digits: times in milliseconds differ in their last ones.
    is_whole = value == round(value) and abs(value) <= LARGEST_EXACT
    return str(int(value)) if is_whole or isinstance(value, int) else f"{value:.6g}"


def _bin_link(links: FilterLinks, field: str, low: float, high: float) -> str:
    """Return the link to what a bar of a histogram counts."""
    if field == "score":  # of one prediction, whatever its label
        return links.within("box", [f"box=score:ge:{low:.12g}:score:lt:{high:.12g}"])
    return links.between(field, low, high)


def inferences_page(services: Services, store: ConsoleStore) -> None:
    """Register the handler of the page of inferences."""
    frame = services.frame

    @services.page(INFERENCES_PATH)
    async def show_inferences(request: PageRequest) -> Response[bytes]:
        """Show the inferences that a filter finds."""
        filter_ = filter_from_url(query_string(request))
        links = FilterLinks(filter_, frame.link, INFERENCES_PATH)
        if not filter_.is_canonical:
            return redirect(links.current(cursor=filter_.cursor))

        def show(inferences: InferenceReader) -> Response[bytes]:
            reports = partial(store.reports.within, caller_scope())
            content = read_inferences(inferences, filter_, links, reports)
            if content["problem"] and (meant := only_meaning(filter_.line, content["meant"])):
                return redirect(meant.link)
            return frame.page(
                "inferences",
                status=content["problem"].status if content["problem"] else 200,
                page="inferences",
                title="Inferences",
                query=filter_.line,
                chips=links.chips(),
                filter_options=filter_.options,
                p=content,
                filter_example=content.get("example", ""),
                links_=links,
                to_bin=partial(_bin_link, links),
                filter_=filter_,
                export_formats=EXPORT_FORMATS,
                annotated=ANNOTATED,
                most_tagged=MOST_TAGGED,
                to_time=partial(links.between, "ts"),
                times=time_links(links, datetime.now(UTC).date()),
            )

        return await store.queries.run(request, show)
