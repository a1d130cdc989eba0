"""What one stored inference is: data only, in the form that the journal keeps and the API answers.

One record per image. A request with several images gives several records with one `request_id`.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec


class ModelReference(msgspec.Struct, frozen=True):
    """The model that answered."""

    name: str
    version: str
    sha256: str
    """Of the model's main file, in hexadecimal digits."""


class InputReference(msgspec.Struct, frozen=True):
    """The image that was asked about; `None` fields where the input was no image."""

    name: str
    """The input's name in the request."""
    hash: str | None = None
    """`blake3:<hex>` of the bytes as received; the key of the blob if it was kept."""
    width: int | None = None
    """Pixels, after the EXIF orientation is applied."""
    height: int | None = None
    mime: str | None = None
    kept: bool = False
    """Whether the bytes were kept as a blob."""


class InferenceRecord(msgspec.Struct, frozen=True):
    """One inference, as journaled."""

    seq: int
    """63-bit time-ordered id (`store.ids`); a decimal string on the wire."""
    request_id: str
    image_no: int
    """Position of the image within its request, from 0."""
    model: ModelReference
    task: str
    """Chariot's task type, such as `OBJECT_DETECTION`."""
    action: str
    latency_ms: float
    input: InputReference
    predictions: Any
    """A list of predictions as they went over the wire, or anything that encodes as such."""
    metadata: dict[str, Any]
    """Plain nested JSON; see `store.metadata` for the rules of keys and values."""


class JournaledRecord(msgspec.Struct, frozen=True):
    """An `InferenceRecord` read back, its JSON left as it was written."""

    seq: int
    request_id: str
    image_no: int
    model: ModelReference
    task: str
    action: str
    latency_ms: float
    input: InputReference
    predictions: msgspec.Raw
    metadata: msgspec.Raw


class StoredInference(msgspec.Struct, frozen=True):
    """One inference as the API answers it."""

    id: str
    request_id: str
    image_no: int
    model: ModelReference
    task: str
    action: str
    created_at: str
    """RFC 3339, UTC, milliseconds."""
    latency_ms: float
    input: InputReference
    predictions: Any
    """`msgspec.Raw` in fact, as `metadata`: JSON that passes through unread."""
    metadata: Any
    ground_truth: Any = None


def timestamp_text(milliseconds: int) -> str:
    """Format milliseconds since the epoch as RFC 3339 in UTC, as `2026-01-31T12:00:00.000Z`."""
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"
