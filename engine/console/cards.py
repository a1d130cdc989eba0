"""Inferences as cards: the whole image with its outlines, what was found, and when."""

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from quadriga.engine.console.filter_line import Evaluation
from quadriga.monitor.evaluation.stored import CellItems, items_in_cells
from quadriga.monitor.report.outlines import (
    DrawnItem,
    decode_items,
    item_outline,
    item_texts,
    points_of,
)
from quadriga.monitor.report.saved import ReportStore
from quadriga.quoting import one_line
from quadriga.store.query.filters.syntax import (
    And,
    BoundOperator,
    Filter,
    Leaf,
    Not,
    Or,
    PredictionCondition,
    ReportCells,
)
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import QueryError, StoreError
from quadriga.store.records.records import StoredInference
from quadriga.tasks import SHORT_NAMES

MAX_OUTLINES = 80
"""Outlines on a small image; what has more shows those of the best scores."""

_MAX_WORDS = 4
_OF_TRUTH, _USUAL = ("truth", "missed"), ("truth", "pred")
_KINDS = (*_OF_TRUTH, "false", "matched", "pred")
"""Kinds of marks; where there are too many, the first are drawn."""

RATIOS = (40, 50, 56, 67, 75, 80, 100, 125, 133, 150, 178, 200, 240, 300)
"""Classes of the style sheet for the width of an image, in percent of its height."""


class Mark(msgspec.Struct, frozen=True):
    """An outline over an image."""

    kind: str
    """`truth` or `pred`; of what the page is about `missed` for an annotation, `matched` or `false` for a prediction."""
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


class Meant(msgspec.Struct, frozen=True):
    """Objects that a page is about: of these cells of an evaluation, and by label and score of one of these conditions."""

    conditions: Sequence[PredictionCondition] = ()
    """All objects without any."""
    cells: Mapping[str, CellItems] | None = None
    """Items by the ids of inferences; None for all."""
    least_score: float = 0.0
    """Score from which other predictions are shown; those without one are, too."""

    def items(self, inference: StoredInference) -> list[tuple[str, DrawnItem]]:
        """Return the annotations and the predictions to show, each with the kind of its mark."""
        missed, wrong, right = (self.cells or {}).get(inference.id, CellItems())
        truths = enumerate(items_of(inference.ground_truth))
        return [
            *(("missed" if number in missed else "truth", item) for number, item in truths),
            *(
                ("false" if number in wrong else "matched" if number in right else "pred", item)
                for number, item in enumerate(items_of(inference.predictions))
                if number in wrong
                or not item.has_shape
                or (item.score is None or item.score >= self.least_score)
            ),
        ]

    def has(self, kind: str, item: DrawnItem) -> bool:
        """Check whether an item that `items` returned is one of these objects."""
        is_in_cells = kind == "pred" if self.cells is None else kind not in _USUAL
        return (
            item.has_shape
            and is_in_cells
            and (
                not self.conditions or any(_meets(item, condition) for condition in self.conditions)
            )
        )


_ALL = Meant()


def card(
    inference: StoredInference,
    *,
    metadata_values: int = 3,
    outlines: int = MAX_OUTLINES,
    meant: Meant = _ALL,
) -> Card:
    """Return the card of an inference.

    Args:
        inference: The inference.
        metadata_values: Maximum values of the metadata.
        outlines: Maximum outlines.
        meant: Objects that the page is about: their words come first, and the score is that of these.
    """
    items = meant.items(inference)
    detections = [item for kind, item in items if kind not in _OF_TRUTH]
    meant_items = [item for kind, item in items if kind not in _OF_TRUTH and meant.has(kind, item)]
    source = inference.input
    width, height = source.width or 0, source.height or 0
    is_image = source.kept and bool(width and height)
    marks: list[Mark] = []
    total = 0
    for kind in _KINDS if is_image else ():
        of_kind = _best_first(item for other, item in items if other == kind)
        total += sum(item.has_shape for item in of_kind)
        marks += _marks(kind, of_kind[: outlines - len(marks)], (width, height))
    marks.sort(key=lambda mark: mark.kind not in _USUAL)  # what the page is about lies on top
    scores = [item.score for item in meant_items or detections if item.score is not None]
    return Card(
        of=inference,
        has_failed=inference.status >= 400,
        words="tensors"
        if has_tensors(inference)
        else _words(detections, {item.label for item in meant_items}),
        score=min(scores, default=None),
        scores=len(scores),
        has_image=is_image,
        ratio=nearest_ratio(width, height),
        marks=marks,
        extra_marks=max(total - len(marks), 0),
        has_truth=inference.ground_truth is not None,
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


def _best_first(items: Iterable[DrawnItem]) -> list[DrawnItem]:
    return sorted(items, key=lambda item: -(item.score or 0))


def names_of(inference: StoredInference, positions: Iterable[int]) -> list[str]:
    """Return the predictions at these positions in words, with their scores."""
    items = items_of(inference.predictions)
    chosen = [items[position] for position in positions if position < len(items)]
    return [item.name if item.has_shape else item.text for item in _best_first(chosen)]


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
    """One object."""

    of: StoredInference
    kind: str
    """The kind of its `Mark`."""
    name: str
    """Label and score."""
    view_box: str
    """Part of the image that is shown, as an SVG has it, in pixels of the image."""
    ratio: int
    """Class of the crop's width to its height."""
    copy_px: int
    """Longer side of the copy of the image that it is cut from."""
    path: str


def object_cards(
    inferences: Iterable[StoredInference], meant: Meant
) -> tuple[list[ObjectCard], int]:
    """Return the objects that a page is about, and how many more there are."""
    cards: list[ObjectCard] = []
    total = 0
    for inference in inferences:
        source = inference.input
        size_wh = source.width or 0, source.height or 0
        if not source.kept or not all(size_wh):
            continue
        items = [(kind, item) for kind, item in meant.items(inference) if meant.has(kind, item)]
        total += len(items)
        for kind, item in sorted(items, key=lambda pair: -(pair[1].score or 0)):
            if len(cards) == MAX_OBJECTS:
                break
            shown = _card(inference, kind, item, size_wh)
            if shown is None:
                total -= 1
            else:
                cards.append(shown)
    return cards, max(total - len(cards), 0)


def find_meant(
    line: str,
    inferences: Sequence[StoredInference] = (),
    reports: Callable[[], ReportStore] | None = None,
) -> Meant:
    """Return the objects that a filter is about.

    Conditions of predictions, such as `label=ship:ge:0.9`, are about the objects that meet one of them by label and score; cells
    of an evaluation about what it counts there, and about nothing below its score. Any other filter is about all.

    Args:
        line: The filter.
        inferences: What it found, to look for the objects of cells.
        reports: Returns the reports that the caller may see; None to do without cells.
    """
    leaves: list[Leaf] = []
    with suppress(QueryError):
        leaves = list(_positive(QueryRequest(line or {}).parse_filter()))
    conditions = [leaf for leaf in leaves if isinstance(leaf, PredictionCondition)]
    cells = [leaf for leaf in leaves if isinstance(leaf, ReportCells)]
    with suppress(StoreError):  # the report is damaged, or of a task without objects
        if cells and reports is not None:
            confusion = reports().decode(cells[0].report, Evaluation).confusion
            of_report = [cell for cell in cells if cell.report == cells[0].report]
            items = items_in_cells(inferences, confusion, of_report) or None
            return Meant(conditions, items, confusion.parameters.get("score") or 0.0)
    return Meant(conditions)


def _positive(filter_: Filter) -> Iterator[Leaf]:
    """Yield the conditions that inferences may meet to be found."""
    if isinstance(filter_, And | Or):
        for operand in filter_.operands:
            yield from _positive(operand)
    elif not isinstance(filter_, Not):
        yield filter_


def meant_labels(line: str) -> list[str]:
    """Return the labels that a filter asks for."""
    labels = (condition.labels or () for condition in find_meant(line).conditions)
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
    inference: StoredInference, kind: str, item: DrawnItem, size_wh: tuple[int, int]
) -> ObjectCard | None:
    """Return the card of an object; None if it has no place in the image."""
    outline = item_outline(kind, item, size_wh)
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
        kind=kind,
        name=item.name,
        view_box=f"{low[0]:.1f} {low[1]:.1f} {width:.1f} {height:.1f}",
        ratio=nearest_ratio(float(width), float(height)),
        copy_px=512 if share > _SMALL_SHARE else 1024,
        path=outline.path,
    )
