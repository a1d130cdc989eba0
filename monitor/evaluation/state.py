"""What a shard of images becomes before anything is counted: tables of numbers, which merge exactly.

Each row belongs to an image. States are put together end to end and then into one order, by the ids of
the images; so however the images were dealt out, the same state comes out, bit for bit.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.monitor.array_packing import pack, unpack
from quadriga.monitor.evaluation.arrays import concat_tables
from quadriga.tasks.arrays import Int64Array
from quadriga.tasks.shapes import MAX_COORDINATE

Column = npt.NDArray[Any]
"""(N,) or (N, D): numbers, or texts as NumPy's `StringDType`."""

Table = dict[str, Column]
"""Columns of equal length. `image` is the position of the image; columns whose name ends in `label` are
positions of labels, -1 for none. Rows of an image are in the order of its predictions or truths."""


BoundedNumber = Annotated[float, msgspec.Meta(ge=-MAX_COORDINATE, le=MAX_COORDINATE)]
"""A score or a coordinate: so small that areas and products of them are numbers, too."""

BoundedMagnitude = Annotated[float, msgspec.Meta(ge=0, le=MAX_COORDINATE)]
"""A length or an area."""


class TrueObject(msgspec.Struct, kw_only=True):
    """What is told of any object that is there, beside its shape."""

    label: str
    crowd: bool = False
    difficult: bool = False
    area: BoundedMagnitude | None = None
    """Square pixels; None: that of the shape."""


class EvaluationError(ValueError):
    """What is to be evaluated is not what the task expects; the message names the place."""


class EvaluatedImage(msgspec.Struct, frozen=True):
    """One image: what a model answered, and what is true; also a line of a file of records."""

    id: str
    predictions: msgspec.Raw = msgspec.Raw(b"[]")
    """JSON in the form of the wire."""
    ground_truth: msgspec.Raw = msgspec.Raw(b"null")
    """JSON in the form of predictions without scores; `null` where the truth is not known."""
    width: int | None = None
    height: int | None = None
    metadata: dict[str, Any] = {}
    created_at: str | None = None
    """RFC 3339, UTC."""
    image: str | None = None
    """Hash or place of the image: what tells that two models answered the same one. None: its id."""


def nonzero_counts(**counts: int) -> dict[str, int]:
    """Return how many are left out by reason, without the reasons of none."""
    return {reason: count for reason, count in counts.items() if count}


class EvaluationState(NamedTuple):
    """Some images, with what is true of them and what a model answered."""

    ids: list[str]
    """Of the inferences (I,)."""
    images: list[str]
    """(I,) see `EvaluatedImage.image`."""
    sizes: Int64Array
    """(I, 2) width and height, 0 where unknown."""
    slices: dict[str, list[str | None]]
    """(I,) values by what is sliced by."""
    labels: list[str]
    tables: dict[str, Table]
    excluded: dict[str, int]
    """Images that are left out, by reason."""


class LabelNumbers(dict[str, int]):
    """Numbers labels as they come."""

    def __missing__(self, label: str) -> int:
        self[label] = number = len(self)
        return number


def merge_states(states: Iterable[EvaluationState]) -> EvaluationState:
    """Put states of one task together, one at least; images by their ids, numbers by value, labels by text.

    Raises:
        EvaluationError: Two of them hold the same inference.
    """
    states = list(states)
    labels = sorted({label for state in states for label in state.labels})
    new_numbers = {label: number for number, label in enumerate(labels)}
    table_sets: list[dict[str, Table]] = [{} for _ in states]
    excluded: Counter[str] = Counter()
    ids: list[str] = []
    for state, tables in zip(states, table_sets, strict=True):
        numbers = np.array([new_numbers[label] for label in state.labels] + [-1], np.int64)
        for name, table in state.tables.items():
            renumbered = {
                key: numbers[column] if key.endswith("label") else column
                for key, column in table.items()
            }
            tables[name] = renumbered | {"image": len(ids) + table["image"]}
        excluded.update(state.excluded)
        ids += state.ids
    order = sorted(range(len(ids)), key=lambda index: (len(ids[index]), ids[index]))
    for previous, current in pairwise(order):
        if ids[previous] == ids[current]:
            raise EvaluationError(f"expected each image once, got {ids[previous]!r:.80} twice")
    keys = dict.fromkeys(name for state in states for name in state.slices)
    merged = EvaluationState(
        ids,
        [previous for state in states for previous in state.images],
        np.concatenate([state.sizes for state in states]),
        {name: [previous for state in states for previous in state.slices[name]] for name in keys},
        labels,
        concat_tables(table_sets),
        dict(sorted(excluded.items())),
    )
    return select_images(merged, order)


def select_images(state: EvaluationState, positions: Sequence[int]) -> EvaluationState:
    """Return the part of a state that holds these images, in this order, rows by image; labels stay."""
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
        [state.ids[position] for position in positions],
        [state.images[position] for position in positions],
        state.sizes[selected],
        {
            name: [values[position] for position in positions]
            for name, values in state.slices.items()
        },
        state.labels,
        tables,
        state.excluded,
    )


def encode_state(state: EvaluationState) -> bytes:
    """Encode a state as MessagePack of names and of the arrays' own bytes."""
    return pack(state)


def decode_state(data: bytes) -> EvaluationState:
    """Decode a state, as `encode_state` encoded it, bit for bit; its arrays cannot be written to.

    Raises:
        EvaluationError: The bytes are no state.
    """
    try:
        state: EvaluationState = unpack(data, EvaluationState)
    except ValueError as error:
        raise EvaluationError(f"expected a saved state, got: {error}") from error
    return state
