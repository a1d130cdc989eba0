"""Inferences as cards: the whole image with its outlines, what was found, and when."""

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from quadriga.monitor.report.outlines import (
    DrawnItem,
    decode_items,
    item_outline,
    item_texts,
    points_of,
)
from quadriga.quoting import one_line
from quadriga.store.query.filters.syntax import And, BoundOperator, Filter, Or, PredictionCondition
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import StoredInference
from quadriga.tasks import SHORT_NAMES

MAX_OUTLINES = 80
"""Outlines on a small image; what has more shows those of the best scores."""

_MAX_WORDS = 4

RATIOS = (40, 50, 56, 67, 75, 80, 100, 125, 133, 150, 178, 200, 240, 300)
"""Classes of the style sheet for the width of an image, in percent of its height."""


class Mark(msgspec.Struct, frozen=True):
    """An outline over an image."""

    kind: str
    """`truth`, `pred`, or `false` for a prediction that the model beside it has not."""
    path: str
    """SVG path in pixels of the image."""
    name: str


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One inference in a grid or a table."""

    of: StoredInference
    has_failed: bool
    words: str
    """What was found."""
    score: float | None
    """The lowest score, of what the page is about."""
    scores: int
    """Number of scores of which it is the lowest."""
    has_image: bool
    ratio: int
    """Class of the image's width to its height."""
    marks: list[Mark]
    extra_marks: int
    """Outlines that are left out."""
    has_truth: bool
    metadata: list[tuple[str, str]]
    """The first values of the metadata, with their keys."""
    answered_by: str = ""
    """Model, version or file that answered, where the list has several; see `told_apart`."""


def card(
    inference: StoredInference,
    *,
    metadata_values: int = 3,
    outlines: int = MAX_OUTLINES,
    only_here: Collection[int] = (),
    is_meant: Callable[[DrawnItem], bool] = lambda _: False,
    least_score: float = 0.0,
) -> Card:
    """Return the card of an inference.

    Args:
        inference: The inference.
        metadata_values: Maximum values of the metadata.
        outlines: Maximum outlines.
        only_here: Positions of predictions that the model beside it has not.
        is_meant: Whether a prediction is one that the page is about: its words come first, and the score is that of these.
        least_score: Score from which predictions are drawn; those without one are, too.
    """
    detections = items_of(inference.predictions)
    meant = [item for item in detections if is_meant(item)]
    truth = None if inference.ground_truth is None else items_of(inference.ground_truth)
    source = inference.input
    width, height = source.width or 0, source.height or 0
    is_image = source.kept and bool(width and height)
    marks: list[Mark] = []
    total = 0
    if is_image:
        alone = [item for number, item in enumerate(detections) if number in only_here]
        shared = [
            item
            for number, item in enumerate(detections)
            if number not in only_here and (item.score is None or item.score >= least_score)
        ]
        for kind, items in (
            ("truth", truth or []),
            ("false", _best_first(alone)),
            ("pred", _best_first(shared)),
        ):
            total += sum(item.has_shape for item in items)
            marks += _marks(kind, items[: outlines - len(marks)], (width, height))
    scores = [item.score for item in meant or detections if item.score is not None]
    return Card(
        of=inference,
        has_failed=inference.status >= 400,
        words="tensors"
        if has_tensors(inference)
        else _words(detections, {item.label for item in meant}),
        score=min(scores, default=None),
        scores=len(scores),
        has_image=is_image,
        ratio=nearest_ratio(width, height),
        marks=marks,
        extra_marks=max(total - len(marks), 0),
        has_truth=truth is not None,
        metadata=_first_values(inference.metadata, metadata_values),
    )


def told_apart(cards: list[Card]) -> list[Card]:
    """Return the cards of a list, each saying which model answered; nothing is said where one file answered all.

    Of one model its version is said, and of one version the first digits of the file's hash.
    """
    files = {item.of.model for item in cards}
    if len(files) < 2:
        return cards
    has_models = len({model.name for model in files}) > 1
    files_of = Counter((model.name, model.version) for model in files)
    answered_by = {}
    for model in files:
        version = one_line(model.version, 20)
        parts = [one_line(model.name, 40)] if has_models else []
        if len(files_of) > 1:
            parts.append(version if has_models else f"version {version}")
        if files_of[model.name, model.version] > 1:
            parts.append(f"file {model.sha256[:8]}")
        answered_by[model] = " ".join(parts)
    return [msgspec.structs.replace(item, answered_by=answered_by[item.of.model]) for item in cards]


def items_of(items: object) -> list[DrawnItem]:
    """Return predictions or annotations; none of what is no list of them, as of models of tensors."""
    with suppress(msgspec.MsgspecError, UnicodeError):
        return decode_items(items)
    return []


def _best_first(items: list[DrawnItem]) -> list[DrawnItem]:
    return sorted(items, key=lambda item: -(item.score or 0))


def names_of(inference: StoredInference, positions: Iterable[int]) -> list[str]:
    """Return the predictions at these positions in words, with their scores."""
    items = items_of(inference.predictions)
    chosen = [items[position] for position in positions if position < len(items)]
    return [
        text
        for item in _best_first(chosen)
        for text in (
            [one_line(item.label, 24) + ("" if item.score is None else f" {item.score:.2f}")]
            if item.has_shape
            else item_texts([item])
        )
    ]


def _marks(kind: str, items: Iterable[DrawnItem], size_wh: tuple[int, int]) -> list[Mark]:
    marks = []
    for item in items:
        outline = item_outline(kind, item, size_wh) if item.has_shape else None
        if outline is not None:
            marks.append(Mark(kind, outline.path, outline.name))
    return marks


def _words(items: list[DrawnItem], first: Collection[str] = ()) -> str:
    """Return what was found: labels with their numbers, some of them first, or the texts of what has no place."""
    counts = Counter(item.label for item in items if item.has_shape)
    if not counts:
        return " · ".join(item_texts(items)[:1])
    in_order = sorted(counts.most_common(), key=lambda pair: pair[0] not in first)
    shown = [
        one_line(label, 24) if n == 1 else f"{one_line(label, 24)} \N{MULTIPLICATION SIGN}{n}"
        for label, n in in_order[:_MAX_WORDS]
    ]
    extra = len(counts) - _MAX_WORDS
    return " · ".join(shown + ([f"{extra} more"] if extra > 0 else []))


def nearest_ratio(width: float, height: float) -> int:
    """Return the class of the style sheet that is nearest to a width by a height."""
    percent = 100 * width / height if width and height else 100
    return min(RATIOS, key=lambda ratio: max(ratio / percent, percent / ratio))


def decoded(tree: Any) -> Any:
    """Return what a record has as JSON; an empty object where it is none."""
    with suppress(msgspec.MsgspecError, UnicodeError):
        return msgspec.json.decode(tree) if isinstance(tree, msgspec.Raw) else tree
    return {}


def _first_values(metadata: object, count: int) -> list[tuple[str, str]]:
    """Return the first plain values of the metadata as texts, with their keys."""
    metadata = decoded(metadata)
    if not isinstance(metadata, dict):
        return []
    plain = [
        (
            one_line(str(key), 40),
            one_line(value if isinstance(value, str) else msgspec.json.encode(value).decode(), 60),
        )
        for key, value in metadata.items()
        if isinstance(value, str | int | float | bool)
    ]
    return plain[:count]


_MAX_SHAPE = 60


class _StoredTensor(msgspec.Struct, frozen=True):
    name: str = ""
    datatype: str = ""
    shape: list[int] = []


def has_tensors(inference: StoredInference) -> bool:
    """Check whether an inference was answered by tensors."""
    return inference.task == SHORT_NAMES["tensor"] and inference.status < 400


def tensor_texts(predictions: Any) -> list[str]:
    """Return each tensor of stored predictions as its name, type and shape, such as `probabilities FP32 [1, 4]`."""
    try:
        tensors = msgspec.convert(decoded(predictions), list[_StoredTensor])
    except msgspec.ValidationError:
        return ["tensors"]  # in a form of another server
    return [_tensor_text(tensor) for tensor in tensors]


def _tensor_text(tensor: _StoredTensor) -> str:
    shape = one_line(str(tensor.shape), _MAX_SHAPE) if tensor.shape else ""
    words = [one_line(tensor.name, 60) if tensor.name else "", tensor.datatype, shape]
    return " ".join(filter(None, words)) or "tensors"


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

    of: StoredInference
    name: str
    """Label and score."""
    view_box: str
    """Part of the image that is shown, as an SVG has it, in pixels of the image."""
    ratio: int
    """Class of the crop's width to its height."""
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
        _holds(item.score, name, bound)
        for property_, name, bound in condition.bounds
        if property_ == "score"
    )


def _holds(score: float | None, name: BoundOperator, bound: float) -> bool:
    return score is not None and bool(getattr(operator, name)(score, bound))


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
        of=inference,
        name=item.name,
        view_box=f"{low[0]:.1f} {low[1]:.1f} {width:.1f} {height:.1f}",
        ratio=nearest_ratio(float(width), float(height)),
        copy_px=512 if share > _SMALL_SHARE else 1024,
        path=outline.path,
    )
