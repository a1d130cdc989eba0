"""Facets as links: values with bars, numbers as histograms, each of which changes the filter.

A field of which the filter chooses values is counted without this choice, so that its other values stay to be chosen.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from quadriga.engine.console.filter_line import comparison_text
from quadriga.engine.console.formats import task_words
from quadriga.engine.console.inference_filter import FilterLinks
from quadriga.engine.console.value_choices import same_value
from quadriga.store.browsing.facets import (
    LARGEST_EXACT,
    MAX_TEXT,
    Facet,
    Facets,
    FacetsRequest,
    FacetValue,
    find_facets,
)
from quadriga.store.query.filters.syntax import Scalar
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.sql.catalog import CLASSIFICATION
from quadriga.store.records.errors import NotFoundError, QueryError, QueryTimeoutError

VALUES, BINS = 8, 16
"""Maximum values and bins of a facet."""

MAX_GROUPS = 14
MAX_WIDER = 3
"""Fields with chosen values that are counted without their choice: each costs a search. Others have the chosen values alone."""

_BAR_WIDTH = 36
_HISTOGRAM_WIDTH, _HISTOGRAM_HEIGHT = 208, 32
_FIRST = ("model", "version", "label", "score")
_LAST = (
    "ground_truth", "ground_truth.review", "status", "latency_ms", "predictions", "task",
)  # fmt: skip


class ValueLink(msgspec.Struct, frozen=True, kw_only=True):
    """A value of a field."""

    name: str
    count: int
    bar: float
    link: str
    is_chosen: bool


class BinLink(msgspec.Struct, frozen=True, kw_only=True):
    """A bar of a histogram."""

    x: float
    y: float
    width: float
    height: float
    low: float
    high: float
    count: int
    link: str


class FacetGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A field with its values, or its histogram."""

    field: str
    note: str
    values: list[ValueLink]
    bins: list[BinLink]
    low: float
    high: float
    more: int
    """Further values."""
    is_exact: bool
    """Whether its numbers are counted, not estimated."""


class CountedFacet(msgspec.Struct, frozen=True):
    """A facet, and whether its numbers are counted."""

    facet: Facet
    is_exact: bool


def facet_groups(
    facets: Iterable[CountedFacet], links: FilterLinks
) -> tuple[list[FacetGroup], int]:
    """Return the facets that tell something, those of metadata in the middle, and how many more there are."""
    ordered = sorted(facets, key=lambda counted: _rank(counted.facet))
    label_field = _label_field(counted.facet for counted in ordered)
    groups = [group for counted in ordered if (group := _group(counted, links, label_field)) is not None]  # fmt: skip
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
        (facet.field, facet.type): CountedFacet(facet, facets.exact) for facet in facets.facets
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
    return list(counted.values())


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


def _rank(facet: Facet) -> tuple[int, int]:
    if facet.field in _FIRST:
        return 0, _FIRST.index(facet.field)
    if facet.field in _LAST:
        return 2, _LAST.index(facet.field)
    return 1, 0  # in the order of the answer


def _group(counted: CountedFacet, links: FilterLinks, label_field: str) -> FacetGroup | None:
    """Return a group; None for a field that all have alike, or all have differently."""
    facet = counted.facet
    if facet.count is None or facet.type == "other":
        return None
    values = [] if facet.field == "score" else _values(facet, links, label_field)
    is_chosen = any(value.is_chosen for value in values)
    if values and not is_chosen:
        is_same = facet.distinct < 2 and not facet.field.startswith(("meta.", "label"))
        is_identifier = facet.distinct > len(values) and max(v.count for v in values) < 2
        if is_same or is_identifier:
            return None
    bins = [] if values else _bins(facet, links)
    if not values and len(bins) < 2:
        return None
    return FacetGroup(
        field=facet.field,
        note="of each prediction"
        if facet.field == "score"
        else {"string": "text", "number": "number", "boolean": "yes or no"}[facet.type],
        values=values,
        bins=bins,
        low=bins[0].low if bins else 0,
        high=bins[-1].high if bins else 0,
        more=max(facet.distinct - len(values), 0) if values else 0,
        is_exact=counted.is_exact,
    )


def _values(facet: Facet, links: FilterLinks, label_field: str) -> list[ValueLink]:
    top = max((value.count for value in facet.values), default=1) or 1
    field = label_field if facet.field == "label" else facet.field
    chosen = links.chosen(field)
    shown = []
    for value in facet.values[:VALUES]:
        if _is_cut(value.value):
            continue  # as no filter finds the beginning of a text
        text = comparison_text(facet.field, value.value)
        is_one_of_several = facet.field == "label" and (field == "label" or links.has(text))
        shown.append(
            ValueLink(
                name=_name(facet.field, value.value),
                count=value.count,
                bar=round(max(value.count / top * _BAR_WIDTH, 1.5), 1),
                link=links.toggled(text)
                if is_one_of_several  # as an image may have several labels
                else links.toggled_value(field, value.value),
                is_chosen=links.has(text) if is_one_of_several else _is_in(value.value, chosen),
            )
        )
    return shown


def _name(field: str, value: str | float | bool) -> str:  # noqa: FBT001 - as above
    if field == "ground_truth":
        return "known" if value else "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return task_words(value) if field == "task" else value
    # Whole numbers have all their digits: times in milliseconds differ in their last ones.
    is_whole = value == round(value) and abs(value) <= LARGEST_EXACT
    return str(int(value)) if is_whole or isinstance(value, int) else f"{value:.6g}"


def _bins(facet: Facet, links: FilterLinks) -> list[BinLink]:
    """Return the bars of a histogram, with the empty ones between them left out."""
    if not facet.histogram:
        return []
    low, high = facet.histogram[0].low, facet.histogram[-1].high
    if not high > low:
        return []
    top = max(bin_.count for bin_ in facet.histogram) or 1
    scale = _HISTOGRAM_WIDTH / (high - low)
    bars = []
    for bin_ in facet.histogram:
        height = max(bin_.count / top * (_HISTOGRAM_HEIGHT - 2), 1.0)
        bars.append(
            BinLink(
                x=round((bin_.low - low) * scale, 2),
                y=round(_HISTOGRAM_HEIGHT - height, 2),
                width=round(max((bin_.high - bin_.low) * scale - 1, 1), 2),
                height=round(height, 2),
                low=bin_.low,
                high=bin_.high,
                count=bin_.count,
                link=_bin_link(facet.field, bin_.low, bin_.high, links),
            )
        )
    return bars


def _bin_link(field: str, low: float, high: float, links: FilterLinks) -> str:
    if field == "score":  # of one prediction, whatever its label
        return links.within("box", [f"box=score:ge:{low:.12g}:score:lt:{high:.12g}"])
    return links.between(field, low, high)
