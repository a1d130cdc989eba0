"""What is usual for a model's images: between which values nine in ten of the newest ones lie, of each number that drift measures."""

import msgspec
import numpy as np

from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.query.sql.search import Budget, IdRange, find_first
from quadriga.store.records.records import IMAGE_STATISTICS

NEWEST = 200
"""Maximum inferences that are looked at."""

LEAST = 20
"""Measured images from which on something is usual."""

_SELECT = "SELECT m.seq, s.picture FROM ({}) AS m LEFT JOIN signal AS s ON s.seq = m.seq"
_BUDGET = Budget(rows=1000, seconds=0.1)


class UsualMeasures(msgspec.Struct, frozen=True):
    """Spans of the numbers measured on the newest images of a model."""

    images: int
    """Number of images; less than `LEAST` without spans."""
    spans: dict[str, tuple[float, float]]
    """The 5th and the 95th percentile of each number, by its name."""


def find_usual_measures(inferences: InferenceReader, model: str) -> UsualMeasures:
    """Return what is usual for the images of a model, all of its versions.

    Raises:
        QueryTimeoutError: It takes too long to find inferences of the model.
        NotFoundError: The model is not known.
    """
    tree = inferences.read_filter(QueryRequest(where={"model": model}))
    with inferences.snapshot() as connection:
        rows, _ = find_first(
            connection,
            inferences.planner(connection, tree),
            descending=True,
            limit=NEWEST,
            id_range=IdRange(),
            budget=_BUDGET,
            select=_SELECT,
        )
    size = 4 * len(IMAGE_STATISTICS)
    pictures = [bytes(picture) for _, picture in rows if picture and len(picture) == size]
    if len(pictures) < LEAST:
        return UsualMeasures(len(pictures), {})
    numbers = np.frombuffer(b"".join(pictures), "<f4").reshape(len(pictures), -1)
    low, high = np.percentile(numbers, (5, 95), axis=0).tolist()
    spans = zip(IMAGE_STATISTICS, zip(low, high, strict=True), strict=True)
    return UsualMeasures(len(pictures), dict(spans))
