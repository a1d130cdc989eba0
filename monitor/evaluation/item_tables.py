"""Lists of the wire as tables: a row for each prediction or annotation of a batch of images."""

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np

from quadriga.monitor.evaluation.arrays import index_within_groups
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationError, LabelNumbers, Table
from quadriga.store.exchange.text_files import decode_json
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

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
