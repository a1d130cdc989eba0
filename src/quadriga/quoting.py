"""Texts of clients in messages, pages and reports: shortened, on one line, and with the names that may be meant."""

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

MAX_MODEL_NAME = 300
"""Characters beyond which a text names no model: a model has the name of a folder, of 255 bytes at most."""

MAX_HINTS = 5
"""Maximum mistyped names of one request for which a near one is sought."""

_COMPARED = 50
"""Names that are compared letter by letter: those nearest by their length and by which letters they have."""

_MAX_CHARACTERS = 100
_NEAR = 0.6
"""Likeness from which a name is near, 0 to 1; `rum` and `run` are as 0.67."""

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")


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


def one_line(text: str | None, max_letters: int = 40) -> str:
    """Return a user's text on one line; the middle of long texts is cut out."""
    if text is None:
        return "(none)"
    text = " ".join(printable(text).split()) or "(empty)"
    return text if len(text) <= max_letters else f"{text[: max_letters - 8]}…{text[-7:]}"


def printable(text: str) -> str:
    """Replace characters that neither HTML nor XML may contain."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def listed(names: Sequence[str], limit: int) -> str:
    """Return the first of some names with commas between them, and how many more there are."""
    hidden = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {hidden:,} more" if hidden > 0 else "")


def near_names(text: str, names: Iterable[str], count: int) -> list[str]:
    """Return up to `count` names that are spelled nearly as a text, in any case of letters, the nearest first.

    It takes a bounded time: `difflib` alone takes half a second for 10,000 names of 30 characters, and minutes for
    labels that are sentences.
    """
    sought = text[:_MAX_CHARACTERS].lower()
    letters = set(sought)
    by_spelling = {name[:_MAX_CHARACTERS].lower(): name for name in names}

    def difference(spelling: str) -> int:
        return len(letters.symmetric_difference(spelling)) + abs(len(spelling) - len(sought))

    compared = heapq.nsmallest(_COMPARED, by_spelling, key=difference)
    return [by_spelling[spelling] for spelling in get_close_matches(sought, compared, count, _NEAR)]
