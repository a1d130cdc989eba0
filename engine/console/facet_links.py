"""Facets as links: values with bars, numbers as histograms, each of which narrows the filter."""

from collections.abc import Iterable

import msgspec

from quadriga.engine.console.filter_line import comparison_text
from quadriga.engine.console.inference_filter import FilterLinks
from quadriga.store.browsing.facets import Facet
from quadriga.store.query.catalog import CLASSIFICATION

VALUES, BINS = 8, 16
"""Maximum values and bins of a facet."""

MAX_GROUPS = 14
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


def facet_groups(facets: Iterable[Facet], links: FilterLinks) -> tuple[list[FacetGroup], int]:
    """Return the facets that tell something, those of metadata in the middle, and how many more there are."""
    ordered = sorted(facets, key=_rank)
    # A classification counts for its best label, whatever others it stored, so its label is asked for as `best`.
    has_classes = any(value.value == CLASSIFICATION for facet in ordered if facet.field == "task" for value in facet.values)  # fmt: skip
    label_field = "best" if has_classes else "label"
    groups = [group for facet in ordered if (group := _group(facet, links, label_field)) is not None]  # fmt: skip
    return groups[:MAX_GROUPS], max(len(groups) - MAX_GROUPS, 0)


def _rank(facet: Facet) -> tuple[int, int]:
    if facet.field in _FIRST:
        return 0, _FIRST.index(facet.field)
    if facet.field in _LAST:
        return 2, _LAST.index(facet.field)
    return 1, 0  # in the order of the answer


def _group(facet: Facet, links: FilterLinks, label_field: str) -> FacetGroup | None:
    """Return a group; None for a field that all have alike, or all have differently."""
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
        note={"string": "text", "number": "number", "boolean": "yes or no"}[facet.type],
        values=values,
        bins=bins,
        low=bins[0].low if bins else 0,
        high=bins[-1].high if bins else 0,
        more=max(facet.distinct - len(values), 0) if values else 0,
    )


def _values(facet: Facet, links: FilterLinks, label_field: str) -> list[ValueLink]:
    top = max((value.count for value in facet.values), default=1) or 1
    shown = []
    for value in facet.values[:VALUES]:
        text = _value_text(facet.field, value.value)
        if facet.field == "label" and not links.has(text):
            text = _value_text(label_field, value.value)
        shown.append(
            ValueLink(
                name=_name(facet.field, value.value),
                count=value.count,
                bar=round(max(value.count / top * _BAR_WIDTH, 1.5), 1),
                link=links.toggled(text),
                is_chosen=links.has(text),
            )
        )
    return shown


def _value_text(field: str, value: str | float | bool) -> str:  # noqa: FBT001 - a value of metadata
    if field == "ground_truth":
        return comparison_text("ground_truth", value, "exists")
    return comparison_text(field, value)


def _name(field: str, value: str | float | bool) -> str:  # noqa: FBT001 - as above
    if field == "ground_truth":
        return "known" if value else "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:.6g}"


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
