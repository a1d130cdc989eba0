"""One inference as a client sends it: its fields, and their check."""

import datetime as dt
import math
import re
import time
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quadriga.engine.external.descriptions import ModelDescription
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import check_name
from quadriga.quoting import quoted
from quadriga.store.clock import MAX_LEAD_MS
from quadriga.store.ids import EPOCH_MS
from quadriga.store.replays import is_replay

MAX_ITEMS = 1000
"""Maximum inferences of a request."""

MAX_MODEL_CHARACTERS = 128
MAX_KEY_CHARACTERS = 256
MAX_VERSION_CHARACTERS = 128
MAX_ERROR_CHARACTERS = 4096
MAX_AHEAD_MS = 86_400_000
"""How far ahead of the server's clock a time may be: until then the sender's clock is wrong, beyond that its time means nothing."""

_MODEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]| (?=[A-Za-z0-9._-]))*", re.ASCII)
_Size = Annotated[int, Meta(ge=1, le=1_000_000)]


class LoggedItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An inference that was made elsewhere, as a client sends it."""

    model: str = ""
    """Name of the model."""
    version: str | int = ""
    task: str | None = None
    """Task, such as `detection`; None is that of the description, or of the predictions."""
    key: str = ""
    """Text by which the sender knows the inference: the same key again stores nothing. Empty for none."""
    request_id: str = ""
    time: str | float | None = None
    """When it was made: RFC 3339 with a time zone, or seconds since 1970; None for now."""
    latency_ms: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    image: str | None = None
    """The image file, base64-encoded."""
    width: _Size | None = None
    """Width of an image that is not sent, pixels."""
    height: _Size | None = None
    predictions: list[Any] | None = None
    """Predictions in the form of this server's responses."""
    request: dict[str, Any] | None = None
    """Body of the request to the other server, V2 or V1."""
    response: dict[str, Any] | None = None
    """Body of its response."""
    description: ModelDescription | None = None
    """What the output tensors mean."""
    metadata: Any = None
    status: Annotated[int, Meta(ge=100, le=599)] = 200
    """HTTP status of the response: 400 and above is a failed inference."""
    error: str = ""
    """Why it failed."""


class ItemTime(msgspec.Struct, frozen=True):
    """When an inference was made."""

    ms: int | None
    """Milliseconds since 1970; None for now."""
    sent: str = ""
    """The time as it was sent, if it lies ahead of the server's clock and is replaced by now."""


def check_model_name(name: str) -> None:
    """Check the name of a model that is served elsewhere.

    Raises:
        InvalidRequest: It could not be a part of a path, or has another meaning here.
    """
    if not name:
        raise InvalidRequest("model is required: the name of the model that made the inference")
    if len(name) > MAX_MODEL_CHARACTERS or _MODEL.fullmatch(name) is None or is_replay(name):
        raise InvalidRequest(
            f"expected model to be at most {MAX_MODEL_CHARACTERS} letters, digits, single spaces, '.', '_' and '-', which "
            f"begins with a letter or a digit, got {quoted(name, 100)}"
        )


def check_texts(item: LoggedItem) -> None:
    """Check the lengths of the texts of an inference.

    Raises:
        InvalidRequest: One is too long.
    """
    check_name("request_id", item.request_id)
    limits = (("key", MAX_KEY_CHARACTERS), ("error", MAX_ERROR_CHARACTERS))
    for name, limit in limits:
        if len(text := getattr(item, name)) > limit:
            raise InvalidRequest(f"expected {name} of at most {limit} characters, got {len(text)}")
    if len(version := str(item.version)) > MAX_VERSION_CHARACTERS or "\0" in version:
        raise InvalidRequest(
            f"expected version to be a text of at most {MAX_VERSION_CHARACTERS} characters, got {quoted(version, 60)}"
        )
    if (item.width is None) != (item.height is None):
        raise InvalidRequest("expected both width and height, or none of them, got one")


def read_time(value: str | float | None, now_ms: int | None = None) -> ItemTime:
    """Read the time of an inference, which a sender's clock gave.

    Up to a minute ahead of this server it is taken as it is; up to a day ahead it counts as now.

    Raises:
        InvalidRequest: It is no time, or before 2025, or more than a day ahead.
    """
    if value is None:
        return ItemTime(None)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    time_ms = _milliseconds(value)
    if time_ms < EPOCH_MS:
        raise InvalidRequest(f"expected time to be from 2025 on, got {quoted(value, 60)}")
    if time_ms > now_ms + MAX_AHEAD_MS:
        raise InvalidRequest(
            f"expected time to be at most a day ahead of this server's clock, got {quoted(value, 60)}"
        )
    if time_ms > now_ms + MAX_LEAD_MS:
        return ItemTime(None, str(value))
    return ItemTime(time_ms)


def _milliseconds(value: str | float) -> int:
    if isinstance(value, int | float):
        if math.isfinite(value) and abs(value) < 1e12:
            return int(value * 1000)
    else:
        try:
            moment = dt.datetime.fromisoformat(value)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return int(
                (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(milliseconds=1)
            )
    raise InvalidRequest(
        f"expected time in RFC 3339 with a time zone, or seconds since 1970, got {quoted(value, 60)}"
    )


def convert_item(value: Mapping[str, Any]) -> LoggedItem:
    """Convert decoded JSON.

    Raises:
        InvalidRequest: A key or a value is wrong; the message names it.
    """
    try:
        return msgspec.convert(value, LoggedItem)
    except msgspec.ValidationError as error:
        text = str(error).replace("`$.", "`").replace("`", "'")
        raise InvalidRequest(text) from error
