"""Objects of a page of inferences as crops: each prediction that a filter is about, cut out of its image by the browser."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
import numpy as np

from quadriga.engine.console.cards import items_of, nearest_ratio
from quadriga.monitor.report.outlines import DrawnItem, item_outline, points_of
from quadriga.store.query.filters.syntax import And, BoundOperator, Filter, Or, PredictionCondition
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import StoredInference

INFERENCES = 24
"""Inferences of a page of objects."""

MAX_OBJECTS = 240
"""Objects of a page; of an image with very many those of the best scores come first."""

_MARGIN = 0.15
"""What is shown around an object, as a share of its longer side."""

_LEAST_PX = 12
_SMALL_SHARE = 0.12
"""Objects below this share of their image are cut out of a larger copy of it."""


class ObjectCard(msgspec.Struct, frozen=True, kw_only=True):
    """One predicted object."""

    inference_id: str
    name: str
    """Label and score."""
    created_at: str
    view_box: str
    """Part of the image that is shown, as an SVG has it, in pixels of the image."""
    ratio: int
    """Class of the crop's width to its height."""
    width: int
    height: int
    """Size of the image."""
    copy_px: int
    """Longer side of the copy of the image that it is cut from."""
    path: str


def object_cards(inferences: Iterable[StoredInference], line: str) -> tuple[list[ObjectCard], int]:
    """Return the predicted objects that a filter is about, and how many more there are.

    A filter with conditions of predictions, such as `label=ship:ge:0.9`, is about the objects that meet one of them by
    label and score; any other one about all.
    """
    conditions = meant_conditions(line)
    cards: list[ObjectCard] = []
    total = 0
    for inference in inferences:
        source = inference.input
        size_wh = source.width or 0, source.height or 0
        if not source.kept or not all(size_wh):
            continue
        items = [item for item in items_of(inference.predictions) if is_meant(item, conditions)]
        total += len(items)
        for item in sorted(items, key=lambda item: -(item.score or 0)):
            if len(cards) == MAX_OBJECTS:
                break
            shown = _card(inference, item, size_wh)
            if shown is None:
                total -= 1
            else:
                cards.append(shown)
    return cards, max(total - len(cards), 0)


def meant_conditions(line: str) -> list[PredictionCondition]:
    """Return the conditions of predictions that inferences may meet to be found."""
    with suppress(QueryError):
        return list(_positive(QueryRequest(line or {}).parse_filter()))
    return []


def _positive(filter_: Filter) -> Iterator[PredictionCondition]:
    if isinstance(filter_, And | Or):
        for operand in filter_.operands:
            yield from _positive(operand)
    elif isinstance(filter_, PredictionCondition):
        yield filter_


def is_meant(item: DrawnItem, conditions: list[PredictionCondition]) -> bool:
    """Check whether an object is one that a filter is about: it meets a condition, if there are any."""
    return item.has_shape and (
        not conditions or any(_meets(item, condition) for condition in conditions)
    )


def meant_labels(line: str) -> list[str]:
    """Return the labels that a filter asks for."""
    labels = (condition.labels or () for condition in meant_conditions(line))
    return list(dict.fromkeys(label for group in labels for label in group))


def _meets(item: DrawnItem, condition: PredictionCondition) -> bool:
    """Check the label and the score of an object; other bounds, as of its size, are those of the search."""
    if condition.labels is not None and item.label not in condition.labels:
        return False
    return all(
        _holds(item.score, operator, bound)
        for name, operator, bound in condition.bounds
        if name == "score"
    )


def _holds(score: float | None, operator: BoundOperator, bound: float) -> bool:
    if score is None:
        return False
    return {
        "eq": score == bound,
        "gt": score > bound,
        "ge": score >= bound,
        "lt": score < bound,
        "le": score <= bound,
    }[operator]


def _card(
    inference: StoredInference, item: DrawnItem, size_wh: tuple[int, int]
) -> ObjectCard | None:
    """Return the card of an object; None if it has no place in the image."""
    outline = item_outline("pred", item, size_wh)
    points = points_of(item, size_wh)
    if outline is None or not points.size:
        return None
    low, high = points.min(axis=0), points.max(axis=0)
    margin = max(float((high - low).max()) * _MARGIN, _LEAST_PX / 2)
    low, high = np.maximum(low - margin, 0), np.minimum(high + margin, size_wh)
    width, height = high - low
    if not (width > 0 and height > 0):  # it lies outside of the image
        return None
    share = max(width / size_wh[0], height / size_wh[1])
    return ObjectCard(
        inference_id=inference.id,
        name=item.name,
        created_at=inference.created_at,
        view_box=f"{low[0]:.1f} {low[1]:.1f} {width:.1f} {height:.1f}",
        ratio=nearest_ratio(float(width), float(height)),
        width=size_wh[0],
        height=size_wh[1],
        copy_px=512 if share > _SMALL_SHARE else 1024,
        path=outline.path,
    )
