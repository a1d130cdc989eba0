"""Slices of the images: by a metadata key or by time."""

from collections.abc import Sequence
from functools import lru_cache

from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationError
from quadriga.monitor.report.schema import TIME_SLICES
from quadriga.quoting import quoted
from quadriga.store.query.filters.comparisons import ComparisonParser
from quadriga.store.query.filters.forms import parse_text
from quadriga.store.query.filters.syntax import Compare
from quadriga.store.records.errors import MetadataError, QueryError
from quadriga.store.records.metadata import Scalar, flatten
from quadriga.store.records.records import json_text


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
