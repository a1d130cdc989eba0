"""Lists on the wire as tables: a row for each prediction or truth of some images."""

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np

from quadriga.monitor.evaluation.arrays import index_within_groups
from quadriga.monitor.evaluation.evaluators import decode_json
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationError, LabelNumbers, Table
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

ItemKind = Literal["predictions", "ground_truth"]


class ItemTable(NamedTuple):
    """The predictions or truths of some images."""

    rows: list[Any]
    """(N,) as they were decoded."""
    table: Table
    """`image`, `label`, and `number`: the position in the list of the image."""
    where: Callable[[int], str]
    """Names a row, for messages."""

    def numbers(self, *names: str) -> Float64Array:
        """Return fields of all rows (N, F); None is NaN."""
        columns = [
            np.fromiter(map(attrgetter(name), self.rows), np.float64, len(self.rows))
            for name in names
        ]
        return np.stack(columns, axis=1)

    def check(
        self, is_valid: BoolArray, expected: str, actual: Callable[[int], str] = lambda _: "none"
    ) -> None:
        """See that all rows are good (N,)."""
        for row in np.flatnonzero(~is_valid).tolist():
            raise EvaluationError(f"{self.where(row)}: expected {expected}, got {actual(row)}")

    def take(self, rows: Int64Array) -> "ItemTable":
        """Return some of the rows."""
        return ItemTable(
            [self.rows[row] for row in rows.tolist()],
            {key: column[rows] for key, column in self.table.items()},
            lambda row: self.where(rows[row]),
        )


def read_items(type_: Any, image: EvaluatedImage, kind: ItemKind) -> Any:
    """Decode what an image has."""
    return decode_json(type_, getattr(image, kind), f"image {image.id!r}: {kind}")


def tabulate(
    images: Sequence[EvaluatedImage],
    kind: ItemKind,
    lists: Sequence[list[Any]],
    labels: LabelNumbers,
    without: Collection[str] = (),
) -> ItemTable:
    """Put lists of what has a label together, those of one kind of some images, and number the labels.

    Rows whose label is one of `without` are passed over.
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
    """Read lists of what has a label, as `listed`."""
    return tabulate(images, kind, [read_items(type_, image, kind) for image in images], labels)


def predictions_table(
    predictions: ItemTable, area: Float64Array | Int64Array, **shape: Float64Array
) -> Table:
    """Return the table of predicted objects, rows with a `score`, of such areas (N,) in square pixels."""
    score = np.array([prediction.score for prediction in predictions.rows], np.float64)
    return {**predictions.table, "score": score, "area": area.astype(np.float64), **shape}


def annotations_table(
    annotations: ItemTable, area: Float64Array | Int64Array, **shape: Float64Array
) -> Table:
    """Return the table of rows as `Truth`, objects whose shapes have such areas (N,) in square pixels."""
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
