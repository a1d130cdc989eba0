"""Filters as one line of text: `model=ships & (meta.camera=in:north,east | label=car:ge:0.8) & !meta.fog=true`.

    either     = both ("|" both)*
    both       = one ("&" one)*
    one        = "!" one | "(" either ")" | "()" all | "(|)" none | field "=" operand
    operand    = [operator ":"] value ("," value)*
    label      = [("in" | "ne") ":"] name ("," name)* (":" [property ":"] operator ":" number)*
    box        = property ":" operator ":" number (":" property ":" operator ":" number)*
    geo        = latitude "," longitude "," distance | ("box" | "polygon") ":" numbers

A value is a number or a boolean where it reads as one and the field can be one, else a string. In double
quotes, with JSON's escapes, it is a string whatever it reads as, and may hold any character; so may a field.
"""

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from quadriga.store.errors import QueryError
from quadriga.store.query.comparisons import MAX_DEPTH, ComparisonParser
from quadriga.store.query.syntax import (
    BOUNDS,
    OPERATORS,
    PROPERTIES,
    And,
    Filter,
    Not,
    Or,
    join_operands,
    kind_of,
)
from quadriga.store.records import json_text

URL_OPTIONS = ("order", "limit", "cursor", "count", "consistency")
"""Parameters of a URL that are no comparisons."""

MAX_CHARACTERS = 65_536
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_SPACE = re.compile(r"\s*")
_FIELD = re.compile(rf'(?:{_QUOTED}|[^"&|()=!<>]+)')
_OPERAND = re.compile(rf'(?:{_QUOTED}|[^"&|()<>])*')
_PIECE = {mark: re.compile(rf'(?:{_QUOTED}|[^"{mark}])*') for mark in ":,"}
_OPERATORS = OPERATORS["value"]
_OPERATOR = re.compile(rf"\s*({'|'.join(_OPERATORS)})\s*:", re.ASCII)
_OTHER_NAME = re.compile(r"\s*(?:gte|lte|neq)\s*:", re.ASCII)
"""What operators are called elsewhere; as values they stand in quotes."""
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)


def parse(text: str, comparisons: ComparisonParser) -> Filter:
    """Read a filter, whose comparisons count as the outer one's; empty text matches everything.

    Raises:
        QueryError: It is no filter; the message says where and what was expected.
    """
    return _Parser(text, comparisons).whole()


def split_url(query: str) -> tuple[list[str], dict[str, str]]:
    """Return the filters of a URL's query as text, all of which must hold, and its `OPTIONS`.

    Raises:
        QueryError: A parameter is none, or there twice.
    """
    try:
        given = parse_qsl(query, keep_blank_values=True, max_num_fields=250, errors="strict")
    except ValueError as error:
        raise QueryError(f"expected at most 250 parameters in UTF-8, got: {error}") from error
    parts: list[str] = []
    options: dict[str, str] = {}
    for name, value in given:
        if name not in URL_OPTIONS:
            parts.append(_parameter(name, value))
        elif name in options:
            raise QueryError(f"expected {name} once, got it twice")
        else:
            options[name] = value
    return parts, options


def _parameter(name: str, value: str) -> str:
    if name == "q":
        return value
    if not _OPERAND.fullmatch(value):
        raise QueryError(
            f"expected {name[:80]} to have an operator as in ge:5, or quotes around & | ( ) < > and "
            f"quotes, got {value[:80]!r}"
        )
    field = name.lstrip("!")
    if not field.startswith('"') and ("<" in field or ">" in field):
        raise QueryError(f"expected a comparison such as meta.altitude=ge:100, got {name[:80]!r}")
    quoted = field if field.startswith('"') else json_text(field)
    return f"{'!' * (len(name) - len(field))}{quoted}={value}"


class _Parser:
    def __init__(self, text: str, comparisons: ComparisonParser) -> None:
        if len(text) > MAX_CHARACTERS:
            raise QueryError(
                f"expected a filter of at most {MAX_CHARACTERS} characters, got {len(text)}"
            )
        self._text, self._at = text, 0
        self._comparisons = comparisons

    def whole(self) -> Filter:
        tree = self._either(1) if self._text.strip() else And(())
        self._past(_SPACE)
        if self._at < len(self._text):
            raise self._expected(
                "& or | and another comparison, an operator as in ge:5, or quotes around the value"
            )
        return tree

    def _either(self, depth: int) -> Filter:
        either = [[self._one(depth)]]
        while True:
            if self._take("&"):
                either[-1].append(self._one(depth))
            elif self._take("|"):
                either.append([self._one(depth)])
            else:
                return join_operands(Or, [join_operands(And, both) for both in either])

    def _one(self, depth: int) -> Filter:
        if depth > MAX_DEPTH:
            raise QueryError(f"expected the filter to be at most {MAX_DEPTH} deep, got more")
        if self._take("!"):
            return Not(self._one(depth + 1))
        if not self._take("("):
            return self._comparison()
        if self._take(")"):
            return And(())
        tree = Or(()) if self._take("|") else self._either(depth + 1)
        if not self._take(")"):
            raise self._expected("a closing parenthesis")
        return tree

    def _comparison(self) -> Filter:
        found = self._past(_FIELD)
        if not found:
            raise self._expected("a comparison such as meta.camera=north")
        if not self._take("="):
            raise self._expected(f"= after {found.strip()[:80]!r}, as in meta.altitude=ge:100,")
        field, text = _plain(found), self._past(_OPERAND)
        if self._text.startswith('"', self._at):
            raise self._expected("a closing quote")
        return join_operands(And, self._comparisons.read(field, _operand(field, text), field[:80]))

    def _take(self, mark: str) -> bool:
        self._past(_SPACE)
        is_there = self._text.startswith(mark, self._at)
        self._at += is_there
        return is_there

    def _past(self, pattern: re.Pattern[str]) -> str:
        """Go behind what a pattern matches here, and return it; nothing where it does not."""
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found[0] if found else ""

    def _expected(self, what: str) -> QueryError:
        got = self._text[self._at : self._at + 40]
        return QueryError(
            f"expected {what} at character {self._at + 1} of the filter, "
            f"got {repr(got) if got else 'its end'}"
        )


def _operand(field: str, text: str) -> Any:
    """Return the operand as the JSON form has it."""
    if field in {"label", "box"}:
        return _prediction(field, text)
    found = _OPERATOR.match(text)
    if field == "geo" and (found is None or found[1] != "exists"):
        return _shape(text)
    if found is None and _OTHER_NAME.match(text):
        raise QueryError(
            f"expected {field[:80]} to have one of {', '.join(_OPERATORS)}, or quotes around the "
            f"value, got {text[:80]!r}"
        )
    if found is None:
        return _typed(field, text)
    operator, rest = found[1], text[found.end() :]
    if operator == "in":
        return {
            "in": [_typed(field, piece) for piece in _pieces(rest, ",")] if rest.strip() else []
        }
    if operator == "contains":
        return {"contains": _plain(rest)}
    return {operator: _scalar(rest) if operator == "exists" else _typed(field, rest)}


def _prediction(field: str, text: str) -> Any:
    pieces = list(_pieces(text, ":"))
    operator = pieces.pop(0).strip() if pieces[0].strip() in {"eq", "ne", "in"} else "eq"
    found: dict[str, Any] = {}
    if field == "label":
        names = pieces.pop(0) if pieces else ""
        name: Any = {"in": [_plain(one) for one in _pieces(names, ",")] if names.strip() else []}
        if operator != "in":
            name = _plain(names)
        if not pieces:
            return {"ne": name} if operator == "ne" else name
        found["name"] = name
    if operator == "ne":
        raise QueryError(f"expected nothing after the name of {field}=ne, got {text[:80]!r}")
    while pieces:
        property_ = "score"
        if pieces[0].strip() in (*PROPERTIES, "n"):
            property_ = pieces.pop(0).strip()
        if len(pieces) < 2 or pieces[0].strip() not in BOUNDS:
            raise QueryError(
                f"expected {field} to go on with one of {', '.join((*PROPERTIES, 'n'))}, one of "
                f"{', '.join(BOUNDS)} and a number, with : between as in score:ge:0.5, got "
                f"{':'.join(pieces)[:80]!r}"
            )
        bound = pieces.pop(0).strip()
        bounds = found.setdefault(property_, {})
        if bound in bounds:
            raise QueryError(f"expected {field} to have {property_}:{bound} once, got it twice")
        bounds[bound] = _scalar(pieces.pop(0))
    return found


def _shape(text: str) -> Any:
    kind, _, rest = text.rpartition(":")
    numbers = [_scalar(piece) for piece in _pieces(rest, ",")]
    if kind.strip() == "polygon" and len(numbers) % 2 == 0:
        return {"polygon": [numbers[at : at + 2] for at in range(0, len(numbers), 2)]}
    if kind.strip() == "box":
        return {"box": numbers}
    if not kind and len(numbers) == 3:
        return {"near": numbers[:2], "within": numbers[2]}
    return text


def _pieces(text: str, mark: str) -> Iterable[str]:
    """Split text at a mark that stands outside of quotes."""
    at = 0
    while True:
        found = _PIECE[mark].match(text, at)
        assert found is not None  # it matches nothing, too
        yield found[0]
        at = found.end() + 1
        if found.end() == len(text):
            return


def _typed(field: str, text: str) -> Any:
    return _scalar(text) if kind_of(field) in {"value", "number"} else _plain(text)


def _scalar(text: str) -> Any:
    """Return the number, boolean or string that a value reads as."""
    text = text.strip()
    if text in {"true", "false"} or (_NUMBER.fullmatch(text) and len(text) < 400):
        try:
            return msgspec.json.decode(text)
        except msgspec.MsgspecError as error:
            raise QueryError(f"expected a number of 64 bits, got {text[:80]}") from error
    return _plain(text)


def _plain(text: str) -> str:
    """Return a string without its quotes."""
    text = text.strip()
    if not text.startswith('"'):
        if '"' in text:
            raise QueryError(f"expected quotes around all of a value, got {text[:80]!r}")
        return text
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise QueryError(
            f"expected text in double quotes with JSON's escapes, got {text[:80]!r}"
        ) from error
