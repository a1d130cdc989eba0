"""Images as tables: lists of the wire become an evaluation state, a shard of images; states merge exactly.

Each row belongs to an image. Merging concatenates states and sorts them by the ids of the images; so however
the images were divided into shards, the same state results, bit for bit.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.monitor.evaluation.arrays import concat_tables, index_within_groups
from quadriga.monitor.report.schema import TIME_SLICES
from quadriga.quoting import listed, quoted
from quadriga.store.exchange.text_files import decode_json
from quadriga.store.query.filters.comparisons import ComparisonParser
from quadriga.store.query.filters.forms import parse_text
from quadriga.store.query.filters.syntax import Compare
from quadriga.store.records.errors import MetadataError, QueryError
from quadriga.store.records.metadata import Scalar, flatten
from quadriga.store.records.records import json_text
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array
from quadriga.tasks.predictions import MAX_COORDINATE

Column = npt.NDArray[Any]
"""Array (N,) or (N, D) of numbers, or of texts as NumPy's `StringDType`."""

Table = dict[str, Column]
"""Columns of equal length. `image` is the position of the image; columns whose name ends in `label` are
positions of labels, -1 for none. Rows of an image are in the order of its predictions or annotations."""


BoundedNumber = Annotated[float, msgspec.Meta(ge=-MAX_COORDINATE, le=MAX_COORDINATE)]
"""A score or a coordinate, bounded so that areas and products stay finite."""

BoundedMagnitude = Annotated[float, msgspec.Meta(ge=0, le=MAX_COORDINATE)]
"""A length or an area."""


class TrueObject(msgspec.Struct, kw_only=True):
    """Fields common to all ground-truth objects."""

    label: str
    crowd: bool = False
    difficult: bool = False
    area: BoundedMagnitude | None = None
    """Area in square pixels; None for the area of the shape."""


EvaluationError = QueryError
"""Input of an evaluation that does not fit the task; the message names the location."""


class NoInferencesError(EvaluationError):
    """Nothing was stored that could be evaluated."""


class EvaluatedImage(msgspec.Struct, frozen=True):
    """An image with its predictions and its ground truth; also a line of a file of records."""

    id: str
    predictions: msgspec.Raw = msgspec.Raw(b"[]")
    """Predictions as JSON in the form of the wire."""
    ground_truth: msgspec.Raw = msgspec.Raw(b"null")
    """Annotations as JSON, in the form of predictions without scores; `null` if there is no ground truth."""
    width: int | None = None
    height: int | None = None
    metadata: dict[str, Any] = {}
    created_at: str | None = None
    """RFC 3339, UTC."""
    image: str | None = None
    """Hash or path of the image, by which images of two models are matched; None for the id."""


def slice_values(images: Sequence[EvaluatedImage], by: str) -> list[str | None]:
    """Return the value that each image is sliced by; None where it has none.

    `by` is `meta.<path>` of the metadata, whose values are as in a filter, or `hour`, `day` or `month` of the time in UTC.

    Raises:
        EvaluationError: `by` is none of these, or the metadata of an image cannot be searched.
    """
    if by in TIME_SLICES:
        characters = TIME_SLICES[by]
        return [
            None if image.created_at is None else image.created_at[characters] for image in images
        ]
    path = by.removeprefix("meta.")
    if path == by or not path:
        raise EvaluationError(
            f"expected meta.<path>, {', '.join(TIME_SLICES)} to slice by, got {quoted(by, 80)}"
        )
    return [_value(image, path) for image in images]


def _value(image: EvaluatedImage, path: str) -> str | None:
    try:
        value = flatten(image.metadata).get(path)
    except MetadataError as error:
        raise EvaluationError(f"image {image.id!r}: {error}") from error
    return None if value is None else _operand(value)


@lru_cache(1 << 12, typed=True)
def _operand(value: Scalar) -> str:
    """Return the text that `meta.<path>=` finds exactly this value with: 1.0 as 1, text that reads as another value in quotes."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 63:
        return str(int(value))
    if not isinstance(value, str):
        return json_text(value)
    try:
        is_plain = parse_text(f"meta.x={value}", ComparisonParser(0)) == Compare(
            "meta.x", "eq", value
        )
    except QueryError:
        is_plain = False
    return value if value and is_plain else json_text(value)


def nonzero_counts(**counts: int) -> dict[str, int]:
    """Drop counts of zero."""
    return {reason: count for reason, count in counts.items() if count}


class EvaluationState(NamedTuple):
    """Predictions and ground truth of any number of images."""

    ids: list[str]
    """Ids of the inferences (I,)."""
    images: list[str]
    """Image keys (I,); see `EvaluatedImage.image`."""
    sizes: Int64Array
    """Width and height (I, 2), 0 if unknown."""
    slices: dict[str, list[str | None]]
    """Values (I,) to slice by, by the key that is sliced by."""
    labels: list[str]
    tables: dict[str, Table]
    excluded: dict[str, int]
    """Number of excluded images, by reason."""


MAX_NAMED = 5
"""Maximum number of images that a warning names."""


class LabelNumbers(dict[str, int]):
    """Position of each label, in the order of first use."""

    def __missing__(self, label: str) -> int:
        self[label] = number = len(self)
        return number


ItemKind = Literal["predictions", "ground_truth"]


class ItemTable(NamedTuple):
    """Decoded predictions or annotations of a batch of images, with their table."""

    rows: list[Any]
    """Decoded items (N,)."""
    table: Table
    """Columns `image`, `label`, and `number`: the position in the list of the image."""
    locate: Callable[[int], str]
    """Names the row at a position, for messages."""

    def numbers(self, *names: str) -> Float64Array:
        """Return fields of all rows as float64 (N, F); None becomes NaN."""
        columns = [
            np.fromiter(map(attrgetter(name), self.rows), np.float64, len(self.rows))
            for name in names
        ]
        return np.stack(columns, axis=1)

    def check(
        self, is_valid: BoolArray, expected: str, actual: Callable[[int], str] = lambda _: "none"
    ) -> None:
        """Raise an `EvaluationError` that names the first invalid row; `is_valid` is (N,)."""
        for row in np.flatnonzero(~is_valid).tolist():
            raise EvaluationError(f"{self.locate(row)}: expected {expected}, got {actual(row)}")

    def take(self, rows: Int64Array) -> "ItemTable":
        """Return the rows at these positions."""
        return ItemTable(
            [self.rows[row] for row in rows.tolist()],
            {key: column[rows] for key, column in self.table.items()},
            lambda row: self.locate(rows[row]),
        )


def read_items(type_: Any, image: EvaluatedImage, kind: ItemKind) -> Any:
    """Decode the predictions or the annotations of an image."""
    return decode_json(type_, getattr(image, kind), f"image {image.id!r}: {kind}")


def tabulate(
    images: Sequence[EvaluatedImage],
    kind: ItemKind,
    lists: Sequence[list[Any]],
    labels: LabelNumbers,
    without: Collection[str] = (),
) -> ItemTable:
    """Build a table from the lists of a batch of images, whose items have a label, and number the labels.

    Items whose label is one of `without` are skipped.
    """
    counts = np.array([len(item) for item in lists], np.int64)
    image, number = np.repeat(np.arange(len(lists)), counts), index_within_groups(counts)
    rows = [*chain.from_iterable(lists)]
    if without:
        is_kept = np.array([item.label not in without for item in rows], bool)
        rows = [item for item in rows if item.label not in without]
        image, number = image[is_kept], number[is_kept]
    label = np.fromiter((labels[item.label] for item in rows), np.int64, len(rows))
    return ItemTable(
        rows,
        {"image": image, "number": number, "label": label},
        lambda row: f"image {images[image[row]].id!r}: {kind}[{number[row]}]",
    )


def read_item_table(
    images: Sequence[EvaluatedImage], kind: ItemKind, type_: Any, labels: LabelNumbers
) -> ItemTable:
    """Decode lists of labelled items, and build a table as `tabulate`."""
    return tabulate(images, kind, [read_items(type_, image, kind) for image in images], labels)


def predictions_table(
    predictions: ItemTable, area: Float64Array | Int64Array, **shape: Float64Array
) -> Table:
    """Return the table of predicted objects, with scores; `area` is (N,), square pixels."""
    score = np.array([prediction.score for prediction in predictions.rows], np.float64)
    return {**predictions.table, "score": score, "area": area.astype(np.float64), **shape}


def annotations_table(
    annotations: ItemTable, area: Float64Array | Int64Array, **shape: Float64Array
) -> Table:
    """Return the table of `TrueObject` items; `area` is that of their shapes, (N,), square pixels."""
    areas = np.array(
        [annotation.area for annotation in annotations.rows], np.float64
    )  # None is NaN
    return {
        **annotations.table,
        "area": np.where(np.isnan(areas), area, areas),
        "crowd": np.array([annotation.crowd for annotation in annotations.rows], bool),
        "difficult": np.array([annotation.difficult for annotation in annotations.rows], bool),
        **shape,
    }


def merge_states(states: Iterable[EvaluationState]) -> EvaluationState:
    """Merge states of one task, at least one; images are sorted by id, numeric ids by value, and labels by text.

    Raises:
        EvaluationError: Two states hold the same inference.
    """
    states = list(states)
    labels = sorted({label for state in states for label in state.labels})
    table_sets: list[dict[str, Table]] = []
    excluded: Counter[str] = Counter()
    ids: list[str] = []
    for state in states:
        table_sets.append(_renumbered(state, labels, first_image=len(ids)))
        excluded.update(state.excluded)
        ids += state.ids
    order = sorted(range(len(ids)), key=lambda index: (len(ids[index]), ids[index]))
    for previous, current in pairwise(order):
        if ids[previous] == ids[current]:
            raise EvaluationError(f"expected each image once, got {ids[previous]!r:.80} twice")
    keys = dict.fromkeys(key for state in states for key in state.slices)
    merged = EvaluationState(
        ids=ids,
        images=[image for state in states for image in state.images],
        sizes=np.concatenate([state.sizes for state in states]),
        slices={key: [value for state in states for value in state.slices[key]] for key in keys},
        labels=labels,
        tables=concat_tables(table_sets),
        excluded=dict(sorted(excluded.items())),
    )
    return select_images(merged, order)


def _renumbered(state: EvaluationState, labels: list[str], *, first_image: int) -> dict[str, Table]:
    """Return the tables of a state with the numbers that its labels and images have in a merged state."""
    new_numbers = {label: number for number, label in enumerate(labels)}
    numbers = np.array([new_numbers[label] for label in state.labels] + [-1], np.int64)
    tables = {}
    for name, table in state.tables.items():
        renumbered = {
            key: numbers[column] if key.endswith("label") else column
            for key, column in table.items()
        }
        tables[name] = renumbered | {"image": first_image + table["image"]}
    return tables


def select_images(state: EvaluationState, positions: Sequence[int]) -> EvaluationState:
    """Return the state of the images at these positions, in this order, with rows by image; labels stay."""
    selected = np.array(positions, np.int64)
    new_position = np.full(len(state.ids), -1)
    new_position[selected] = np.arange(len(selected))
    tables = {}
    for name, table in state.tables.items():
        image = new_position[table["image"]]
        rows = np.argsort(image, kind="stable")[np.count_nonzero(image < 0) :]
        chosen = {key: column[rows] for key, column in table.items()}
        tables[name] = chosen | {"image": image[rows]}
    return EvaluationState(
        ids=[state.ids[position] for position in positions],
        images=[state.images[position] for position in positions],
        sizes=state.sizes[selected],
        slices={
            name: [values[position] for position in positions]
            for name, values in state.slices.items()
        },
        labels=state.labels,
        tables=tables,
        excluded=state.excluded,
    )


def with_one_label(state: EvaluationState) -> tuple[EvaluationState, str]:
    """Return the state of the images that have one true label, and a text that names the others, which are excluded."""
    counts = np.bincount(state.tables["truths"]["image"], minlength=len(state.ids))
    odd = {
        reason: [f"{state.ids[position]:.40}" for position in np.flatnonzero(is_odd)]
        for reason, is_odd in (("several_labels", counts > 1), ("no_label", counts == 0))
    }
    excluded = nonzero_counts(**{reason: len(ids) for reason, ids in odd.items()})
    single = select_images(state, np.flatnonzero(counts == 1).tolist())
    texts = [
        f"{len(ids):,} of {len(counts):,} images with {reason.replace('_', ' ')} ({listed(ids, MAX_NAMED)})"
        for reason, ids in odd.items()
        if ids
    ]
    return single._replace(excluded=state.excluded | excluded), ", ".join(texts)
