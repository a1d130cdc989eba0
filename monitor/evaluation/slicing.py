"""Slices of the images: by a metadata key or by time."""

from collections.abc import Sequence

import msgspec

from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationError
from quadriga.monitor.report.schema import TIME_SLICES
from quadriga.quoting import quoted
from quadriga.store.errors import MetadataError
from quadriga.store.metadata import flatten


def slice_values(images: Sequence[EvaluatedImage], by: str) -> list[str | None]:
    """Return the value that each image is sliced by; None where it has none.

    `by` is `meta.<path>` of the metadata, or `hour`, `day` or `month` of the time in UTC.

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
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
