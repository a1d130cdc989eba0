"""Requests that store inferences of models that are served elsewhere."""

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from .calls import Call, json_call, new_key, present
from .errors import InputError

PATH = "/api/inferences"


def log_call(model: str, version: str | None, inferences: Sequence[Mapping[str, Any]]) -> Call:
    """Make a request that stores inferences once, however often it is sent: each has a key."""
    items = [{"key": new_key(), **inference} for inference in inferences]
    body = present(model=model, version=version, inferences=items)
    return json_call("POST", PATH, body=body, is_repeatable=True)


def logged_inference(image: bytes | None, **values: Any) -> dict[str, Any]:
    """Return an inference as the server takes it.

    Args:
        image: The image file, or None.
        values: As docs/elsewhere.md has them; those that are None are left out. `time` may be a `datetime`.

    Raises:
        InputError: `time` is a datetime without time zone.
    """
    time = values.get("time")
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise InputError(f"expected a time with a time zone, got {time}")
        values["time"] = time.isoformat()
    encoded = None if image is None else base64.b64encode(image).decode()
    return present(image=encoded, **values)
