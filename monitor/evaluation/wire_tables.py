"""Lists on the wire as tables: a row for each prediction or truth of some images."""

from collections.abc import Collection, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from monitor.evaluation.arrays import Doubles, Flags, Integers, nth
from monitor.evaluation.evaluators import decode
from monitor.evaluation.state import EvaluatedImage, EvaluationError, Labels, Table

Kind = Literal["predictions", "ground_truth"]


class Listed(NamedTuple):
    """The predictions or truths of some images."""

    images: Sequence[EvaluatedImage]
    kind: Kind
    rows: list[Any]
    """(N,) as they were decoded."""
    table: Table
    """`image`, `label`, and `number`: the position in the list of the image."""

    def numbers(self, name: str) -> Doubles:
        """Return a field of all rows (N,); None is NaN."""
        return np.fromiter(map(attrgetter(name), self.rows), np.float64, len(self.rows))

    def check(self, good: Flags, expected: str, got: str = "none") -> None:
        """See that all rows are good (N,).

        Raises:
            EvaluationError: One is not; the message names it.
        """
        bad = np.flatnonzero(~good)
        if bad.size:
            image, number = (self.table[name][bad[0]] for name in ("image", "number"))
            place = f"image {self.images[image].id!r}: {self.kind}[{number}]"
            raise EvaluationError(f"{place}: expected {expected}, got {got}")

    def of(self, which: Integers) -> "Listed":
        """Return some of the rows."""
        rows = [self.rows[at] for at in which.tolist()]
        return self._replace(
            rows=rows, table={key: column[which] for key, column in self.table.items()}
        )


def read(decoder: msgspec.json.Decoder[Any], image: EvaluatedImage, kind: Kind) -> Any:
    """Decode what an image has.

    Raises:
        EvaluationError: It is something else.
    """
    return decode(decoder, getattr(image, kind), f"image {image.id!r}: {kind}")


def read_lists(
    images: Sequence[EvaluatedImage],
    kind: Kind,
    decoder: msgspec.json.Decoder[Any],
    labels: Labels,
    without: Collection[str] = (),
) -> Listed:
    """Read lists of what has a label.

    Args:
        images: Some.
        kind: Which of their lists.
        decoder: Of a list.
        labels: Numbers their labels.
        without: Labels whose rows are passed over.

    Raises:
        EvaluationError: They are something else.
    """
    lists = [read(decoder, image, kind) for image in images]
    counts = np.array([len(one) for one in lists], np.int64)
    image = np.repeat(np.arange(len(lists)), counts)
    found = Listed(
        images, kind, [*chain.from_iterable(lists)], {"image": image, "number": nth(counts)}
    )
    texts = [one.label for one in found.rows]
    if without:
        kept = [at for at, text in enumerate(texts) if text not in without]
        found, texts = found.of(np.array(kept, np.int64)), [texts[at] for at in kept]
    for text in dict.fromkeys(texts):
        labels[text]
    label = np.fromiter(map(labels.numbers.__getitem__, texts), np.int64, len(texts))
    return found._replace(table={**found.table, "label": label})


def predictions_table(rows: Sequence[Any], table: Table, area: Doubles | Integers) -> Table:
    """Return the table of predicted objects.

    Args:
        rows: (N,) with a `score` each.
        table: What is known of them.
        area: (N,) square pixels.
    """
    score = np.array([one.score for one in rows], np.float64)
    return {**table, "score": score, "area": area.astype(np.float64)}


def truths_table(rows: Sequence[Any], table: Table, area: Doubles | Integers) -> Table:
    """Return the table of objects that are there.

    Args:
        rows: (N,) with an `area` each, None where it is that of its shape, `crowd` and `difficult`.
        table: What is known of them.
        area: (N,) of their shapes, square pixels.
    """
    given = np.array([one.area for one in rows], np.float64)  # None is NaN
    return {
        **table,
        "area": np.where(np.isnan(given), area, given),
        "crowd": np.array([one.crowd for one in rows], bool),
        "difficult": np.array([one.difficult for one in rows], bool),
    }
