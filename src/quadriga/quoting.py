"""Values of requests in the texts of errors: their beginnings, as a client may send any length."""

from collections.abc import Iterator
from typing import Any

MAX_MODEL_NAME = 300
"""Characters beyond which a text names no model: a model has the name of a folder, of 255 bytes at most."""


def quoted(value: object, limit: int) -> str:
    """Return the first characters of the `repr` of a value; what is behind them costs nothing.

    Args:
        value: Text, bytes, or a value of JSON.
        limit: Maximum characters.
    """
    if isinstance(value, str | bytes):
        return repr(value[:limit])[:limit]
    text = ""
    for piece in _pieces(value, limit):
        text += piece
        if len(text) >= limit:
            break
    return text[:limit]


def _pieces(value: Any, limit: int) -> Iterator[str]:
    if isinstance(value, list):
        yield "["
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item, limit)
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _pieces(key, limit)
            yield ": "
            yield from _pieces(item, limit)
        yield "}"
    else:
        yield repr(value[:limit] if isinstance(value, str | bytes) else value)
