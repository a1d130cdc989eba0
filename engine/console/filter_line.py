"""The filter line: one text, which is the URL, cut into the comparisons that must all hold, as chips.

Facets change the parts that choose values of a field, `meta.camera=north` or `meta.camera=in:north,east`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from quadriga.store.browsing.facets import FIELDS
from quadriga.store.query.filters.syntax import Compare, Not, PredictionCondition, Scalar
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import StoreError
from quadriga.store.records.records import json_text

_PLAIN = re.compile(r"[A-Za-z_][\w./@+-]*(?: [\w./@+-]+)*")
"""Texts that need no quotes; all others get them."""

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"?')

_READ_AS_MORE = ("true", "false", "eq", "ne", "in")
"""Texts that the line reads as booleans, or of labels as operators."""


class FilterPart(msgspec.Struct, frozen=True):
    """A comparison of the line, or several in parentheses."""

    text: str
    start: int
    """Position of the text in the line."""


def parts(line: str) -> list[FilterPart]:
    """Cut a line at each `&` outside of quotes and parentheses; one with such a `|` is a single part."""
    spans, start, depth, position = [], 0, 0, 0
    while position < len(line):
        mark = line[position]
        if mark == '"' and (match := _QUOTED.match(line, position)):
            position = match.end()
            continue
        depth += (mark == "(") - (mark == ")")
        if depth == 0 and mark == "|":
            return _stripped(line, [(0, len(line))])
        if depth == 0 and mark == "&":
            spans.append((start, position))
            start = position + 1
        position += 1
    return _stripped(line, [*spans, (start, len(line))])


def joined(texts: Iterable[str]) -> str:
    """Return the line of parts that must all hold."""
    return " & ".join(texts)


def as_part(text: str) -> str:
    """Return a text as a part of a line: in parentheses if it has alternatives."""
    cut = parts(text)
    is_alternative = len(cut) == 1 and _has_alternatives(text)
    return f"({text.strip()})" if is_alternative else joined(part.text for part in cut)


def comparison_text(field: str, value: str | float | bool, operator: str = "") -> str:  # noqa: FBT001 - a value of metadata
    """Return the comparison of a field with a value, quoted where it would be read as something else."""
    name = field if _is_plain_field(field) else json_text(field)
    prefix = f"{operator}:" if operator else ""
    if field == "ts":
        return f"ts={prefix}{value}"
    return f"{name}={prefix}{_value_text(value)}"


def number_text(value: float) -> str:
    """Return the shortest text of a number that is read as this number again: a time in milliseconds has 13 digits."""
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value).removesuffix(".0")


def field_and_rest(text: str) -> tuple[str, str]:
    """Return a part in two: its field with the `=`, and the rest; all is rest where it is no comparison."""
    match = re.match(r'(!?(?:"(?:[^"\\]|\\.)*"|[^"&|()=!<>]+)=)(.*)', text, re.DOTALL)
    return (match[1], match[2]) if match else ("", text)


def _stripped(line: str, spans: Sequence[tuple[int, int]]) -> list[FilterPart]:
    cut = []
    for start, end in spans:
        text = line[start:end]
        if text.strip():
            cut.append(FilterPart(text.strip(), start + len(text) - len(text.lstrip())))
    return cut


def _has_alternatives(text: str) -> bool:
    depth = 0
    for mark in _QUOTED.sub("", text):
        depth += (mark == "(") - (mark == ")")
        if depth == 0 and mark == "|":
            return True
    return False


def _is_plain_field(field: str) -> bool:
    return re.fullmatch(r"[\w.-]+", field) is not None


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number_text(value)
    is_plain = _PLAIN.fullmatch(value) is not None and value not in _READ_AS_MORE
    return value if is_plain else json_text(value)


PRESENCE = "ground_truth"
"""The field whose facet says whether it is there."""


def same_value(a: Scalar, b: Scalar) -> bool:
    """Check whether two values are the same, and of one type, as 1 and true are not."""
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def choice_text(field: str, values: Sequence[Scalar]) -> str:
    """Return the comparison of a field with one or several values, one of which it must have."""
    if field == PRESENCE:
        return comparison_text(field, values[0], "exists")
    if len(values) == 1:
        return comparison_text(field, values[0])
    opening = comparison_text(field, "x", "in").removesuffix("x")
    texts = (comparison_text(field, value, "in").removeprefix(opening) for value in values)
    return opening + ",".join(texts)


def choices(texts: Iterable[str]) -> dict[str, tuple[str, tuple[Scalar, ...]]]:
    """Return the parts that choose values of a field, with these values, by the field; none for one that has two of them."""
    chosen: dict[str, tuple[str, tuple[Scalar, ...]]] = {}
    repeated = set()
    for text in texts:
        choice = _choice(text)
        if choice is not None:
            field, values = choice
            repeated |= {field} & chosen.keys()
            chosen[field] = text, values
    return {field: choice for field, choice in chosen.items() if field not in repeated}


def _choice(text: str) -> tuple[str, tuple[Scalar, ...]] | None:
    """Return the field and the values of a part that chooses some; None for any other."""
    try:
        tree = QueryRequest(where=text).parse_filter()
    except StoreError:
        return None
    if isinstance(tree, PredictionCondition) and tree.is_best and tree.labels is not None:
        return "best", tree.labels
    compare = tree.operand if isinstance(tree, Not) else tree
    if not isinstance(compare, Compare):
        return None
    if compare.field == PRESENCE:
        return PRESENCE, (compare is tree,)
    is_facet = compare.field.startswith("meta.") or compare.field in FIELDS
    if compare is not tree or not is_facet or compare.operator not in ("eq", "in"):
        return None
    values = compare.value
    return compare.field, values if isinstance(values, tuple) else (values,)
