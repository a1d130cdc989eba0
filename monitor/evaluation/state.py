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
from quadriga.monitor.evaluation.arrays import end_to_end
from quadriga.tasks.arrays import Int64Array
from quadriga.tasks.shapes import MAX_COORDINATE

Column = npt.NDArray[Any]
"""(N,) or (N, D): numbers, or texts as NumPy's `StringDType`."""

Table = dict[str, Column]
"""Columns of equal length. `image` is the position of the image; columns whose name ends in `label` are
positions of labels, -1 for none. Rows of an image are in the order of its predictions or truths."""


Number = Annotated[float, msgspec.Meta(ge=-MAX_COORDINATE, le=MAX_COORDINATE)]
"""A score or a coordinate: so small that areas and products of them are numbers, too."""

Magnitude = Annotated[float, msgspec.Meta(ge=0, le=MAX_COORDINATE)]
"""A length or an area."""


class Truth(msgspec.Struct, kw_only=True):
    """What is told of any object that is there, beside its shape."""

    label: str
    crowd: bool = False
    difficult: bool = False
    area: Magnitude | None = None
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


def counted(**left_out: int) -> dict[str, int]:
    """Return how many are left out by reason, without the reasons of none."""
    return {reason: count for reason, count in left_out.items() if count}


class State(NamedTuple):
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


class Labels(dict[str, int]):
    """Numbers labels as they come."""

    def __missing__(self, label: str) -> int:
        self[label] = number = len(self)
        return number


def merge(states: Iterable[State]) -> State:
    """Put states of one task together, one at least; images by their ids, numbers by value, labels by text.

    Raises:
        EvaluationError: Two of them hold the same inference.
    """
    states = list(states)
    labels = sorted({label for state in states for label in state.labels})
    rank = {label: number for number, label in enumerate(labels)}
    parts: list[dict[str, Table]] = [{} for _ in states]
    excluded: Counter[str] = Counter()
    ids: list[str] = []
    for state, part in zip(states, parts, strict=True):
        numbers = np.array([rank[label] for label in state.labels] + [-1], np.int64)
        for name, table in state.tables.items():
            moved = {
                key: numbers[column] if key.endswith("label") else column
                for key, column in table.items()
            }
            part[name] = moved | {"image": len(ids) + table["image"]}
        excluded.update(state.excluded)
        ids += state.ids
    order = sorted(range(len(ids)), key=lambda at: (len(ids[at]), ids[at]))
    for one, other in pairwise(order):
        if ids[one] == ids[other]:
            raise EvaluationError(f"expected each image once, got {ids[one]!r:.80} twice")
    by = dict.fromkeys(name for state in states for name in state.slices)
    whole = State(
        ids,
        [one for state in states for one in state.images],
        np.concatenate([state.sizes for state in states]),
        {name: [one for state in states for one in state.slices[name]] for name in by},
        labels,
        end_to_end(parts),
        dict(sorted(excluded.items())),
    )
    return select(whole, order)


def select(state: State, positions: Sequence[int]) -> State:
    """Return the part of a state that holds these images, in this order, rows by image; labels stay."""
    at = np.array(positions, np.int64)
    place = np.full(len(state.ids), -1)
    place[at] = np.arange(len(at))
    tables = {}
    for name, table in state.tables.items():
        image = place[table["image"]]
        rows = np.argsort(image, kind="stable")[np.count_nonzero(image < 0) :]
        chosen = {key: column[rows] for key, column in table.items()}
        tables[name] = chosen | {"image": image[rows]}
    return State(
        [state.ids[one] for one in positions],
        [state.images[one] for one in positions],
        state.sizes[at],
        {name: [values[one] for one in positions] for name, values in state.slices.items()},
        state.labels,
        tables,
        state.excluded,
    )


def encode_state(state: State) -> bytes:
    """Encode a state as MessagePack of names and of the arrays' own bytes."""
    return pack(state)


def decode_state(data: bytes) -> State:
    """Decode a state, as `encode_state` encoded it, bit for bit; its arrays cannot be written to.

    Raises:
        EvaluationError: The bytes are no state.
    """
    try:
        state: State = unpack(data, State)
    except ValueError as error:
        raise EvaluationError(f"expected a saved state, got: {error}") from error
    return state
