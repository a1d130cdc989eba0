"""Why a line is no filter, in plain words, with the place where the wrong word begins."""

import re
from collections.abc import Iterator, Mapping

import msgspec

from quadriga.engine.console.filter_line import FilterPart, field_and_rest, parts
from quadriga.engine.console.texts import text
from quadriga.store.query.filters.syntax import OPERATORS, PROPERTIES, FieldKind, kind_of
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import REVIEWS

_SHOWN = 60
_POSITION = re.compile(r"at character (\d+) of the filter")
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_WORD = re.compile(rf'(?:{_QUOTED}|[^"&|()=!<>])+')
_COMPARISON = re.compile(rf'(?:{_QUOTED}|[^"&|()])+')
_OPERATOR = re.compile(r"\s*([A-Za-z]+)\s*:\s*")
_OPERATOR_ALONE = re.compile(r"\s*((?:gt|ge|lt|le|contains):)\s*")
_SIGNS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "!=": "ne", "!": "ne"}
"""Signs that other languages have, with the operators that a filter has instead."""

_OF_KINDS: Mapping[FieldKind, str] = {
    "time": "problem_time", "number": "problem_number", "id": "problem_id", "review": "problem_review",
    "presence": "problem_presence", "hash": "problem_hash", "cell": "problem_cell",
}  # fmt: skip
"""Texts of what is wrong with a value, by the kind of its field."""

_LONGEST = 80
"""Characters of a word that a message repeats."""

EXAMPLE = "meta.KEY=VALUE"
"""Comparison that messages have as an example where none of the store is known."""

OUTCOME_NAMES: Mapping[str, tuple[str, ...]] = {
    "missed": ("missed", "misses", "missing", "not found", "false negatives", "false negative"),
    "wrong": ("wrong", "errors of the model", "mistakes", "false positives", "false positive", "incorrect"),
}  # fmt: skip
"""Words for what a model got wrong, which an evaluation alone can say."""

_MAX_PIECES = 16
"""Pieces of a condition among which the wrong one is looked for; each costs a look at all before it."""


class Problem(msgspec.Struct, frozen=True):
    """Why a line is no filter."""

    message: str
    line: str
    position: int
    """Place of the caret below the line, in characters."""

    @property
    def before(self) -> str:
        """The line up to the place, cut where it is long."""
        text = self.line[: self.position]
        return text if len(text) <= _SHOWN else "\N{HORIZONTAL ELLIPSIS}" + text[1 - _SHOWN :]

    @property
    def after(self) -> str:
        """The line from the place on, cut where it is long."""
        text = self.line[self.position :]
        return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "\N{HORIZONTAL ELLIPSIS}"

    @property
    def caret(self) -> str:
        """The line below, with the caret."""
        return " " * len(self.before) + "^"


def check(line: str, example: str = EXAMPLE) -> Problem | None:
    """Return why a line is no filter; None if it is one. `example` is a comparison that messages have."""
    error = _error_of(line)
    if error is None:
        return _missing_value(line)
    match = _POSITION.search(str(error))
    if match is not None:
        message, position = _of_sign(line, min(int(match[1]) - 1, len(line)), example)
        return Problem(message or str(error), line, position)
    if (opening := _unclosed_quote(line)) is not None:
        return Problem(text("problem_quotes"), line, opening)
    for comparison in _comparisons(line):
        wrong = _error_of(comparison.text)
        if wrong is not None:
            message, offset = _of_comparison(comparison.text, example)
            return Problem(message or str(wrong), line, comparison.start + offset)
    return Problem(str(error), line, 0)


def absent(line: str, error: str) -> Problem:
    """Return the problem of a filter that names a model or a report which is not there, as the error says."""
    for comparison in _comparisons(line):
        field, rest = field_and_rest(comparison.text)
        if field and error.startswith(f"{field.removesuffix('=')} not found"):
            return Problem(error, line, comparison.start + len(comparison.text) - len(rest))
    return Problem(error, line, 0)


def _error_of(line: str) -> QueryError | None:
    try:
        QueryRequest(where=line).parse_filter()
    except QueryError as error:
        return error
    return None


def _missing_value(line: str) -> Problem | None:
    """Return a problem where an operator has no value, which the language takes for an empty text."""
    for part in parts(line):
        field, rest = field_and_rest(part.text)
        if field and (match := _OPERATOR_ALONE.fullmatch(rest)):
            message = text("missing_value", operator=match[1])
            return Problem(message, line, part.start + len(field) + match.end(1))
    return None


def _of_sign(line: str, place: int, example: str) -> tuple[str, int]:
    """Return what is wrong with the signs of a line that cannot be read beyond a place, and where that begins."""
    before, sign = line[:place], line[place : place + 1]
    words = [match for match in _WORD.finditer(before) if match.end() == place]
    word = words[-1][0].strip() if words else ""
    begin = place - len(words[-1][0].lstrip()) if words else place
    if sign != '"' and word and not before[:begin].endswith("="):
        return _without_equals(line, place, word, begin=begin, example=example)
    is_begun = before.rstrip()[-1:] in ("", "&", "|", "!", "(")
    opening = None if sign or is_begun else _unclosed(before)
    if opening is not None:
        return text("problem_not_closed"), opening
    if sign == "=" and is_begun:
        return text("problem_no_field"), place
    if sign in ("", "&", "|") and is_begun:
        return text("problem_missing", example=example), place
    named = {'"': "quotes", ")": "not_opened", "<": "value_quotes", ">": "value_quotes", "(": "value_quotes"}  # fmt: skip
    return (text(f"problem_{named[sign]}", sign=sign) if sign in named else ""), place


def _without_equals(
    line: str, place: int, word: str, *, begin: int, example: str
) -> tuple[str, int]:
    """Return what is wrong with a word that no = follows."""
    for sign in (line[place : place + 2], line[place : place + 1]):
        if sign in _SIGNS:
            instead = _written(word, line[place + len(sign) :], _SIGNS[sign])
            return text("problem_sign", sign=sign, operator=_SIGNS[sign], example=instead), place
    if any(word.lower() in names for names in OUTCOME_NAMES.values()):
        return text("problem_outcome", word=_cut(word)), begin
    return text("problem_no_comparison", word=_cut(word), example=example), begin


def _written(field: str, operand: str, operator: str) -> str:
    """Return a comparison as a filter has it: the one that was meant, or another where that would be none."""
    value = re.match(r'[^&|()=!<>"]*', operand)
    meant = f"{field}={operator}:{value[0].strip() if value else ''}"
    is_meant = len(meant) <= _LONGEST and not meant.endswith(":") and _error_of(meant) is None
    return meant if is_meant else f"latency_ms={operator}:5"


def _unclosed_quote(line: str) -> int | None:
    """Return where the last quote is opened that is not closed."""
    rest = re.sub(_QUOTED, lambda quoted: " " * len(quoted[0]), line)
    place = rest.find('"')
    return place if place >= 0 else None


def _unclosed(line: str) -> int | None:
    """Return where the last parenthesis is opened that is not closed."""
    opened: list[int] = []
    for match in re.finditer(rf"{_QUOTED}|[()]", line):
        if match[0] == "(":
            opened.append(match.start())
        elif match[0] == ")" and opened:
            opened.pop()
    return opened[-1] if opened else None


def _comparisons(line: str) -> Iterator[FilterPart]:
    """Cut a line into its comparisons, also those within parentheses and alternatives."""
    for match in _COMPARISON.finditer(line):
        begin = match.start() + len(match[0]) - len(match[0].lstrip(" \t\n!"))
        if stripped := line[begin : match.end()].strip():
            yield FilterPart(stripped, begin)


def _of_comparison(comparison: str, example: str) -> tuple[str, int]:
    """Return what is wrong with a comparison that is no filter by itself, and where in it that begins; no words if unknown."""
    head, rest = field_and_rest(comparison)
    field = head.removesuffix("=").strip().strip('"')
    value_at = len(comparison) - len(rest.lstrip())
    if field in {"label", "box"}:
        return _of_prediction(field, rest, value_at)
    if field in {"geo", "best"}:
        return text("problem_place" if field == "geo" else "problem_best", value=_cut(rest)), value_at  # fmt: skip
    kind = kind_of(field)
    if kind is None:
        name = (
            "problem_of_prediction"
            if field in PROPERTIES
            else "problem_field"
            if field
            else "problem_no_field"
        )
        return text(name, field=_cut(field), example=example), 0
    operator = _OPERATOR.match(rest)
    if operator is not None and operator[1] not in OPERATORS[kind]:
        words = {"operator": operator[1], "field": field, "allowed": ", ".join(OPERATORS[kind])}
        return text("problem_operator", **words), value_at
    name = "" if operator is None else operator[1]
    if operator is not None:
        value_at = len(head) + operator.end()
    value = comparison[value_at:]
    if name == "in":
        value, value_at = _first_wrong(head, value, value_at)
    text_name = _value_text(kind, name, value)
    if not text_name:
        return "", value_at
    words = {"value": _cut(value), "field": field, "reviews": ", ".join(REVIEWS), "sign": '"'}
    return text(text_name, **words), value_at


def _value_text(kind: FieldKind, operator: str, value: str) -> str:
    """Return the name of the text about a value that a field cannot have; empty for none."""
    if operator == "exists":
        return "problem_exists"
    if kind in _OF_KINDS:
        return _OF_KINDS[kind]
    if '"' in value and not value.startswith('"'):
        return "problem_value_quotes"
    return "problem_order" if operator and value.strip() in ("true", "false") else ""


def _first_wrong(head: str, values: str, at: int) -> tuple[str, int]:
    """Return the first value of a list that the field cannot have, and where it begins."""
    for match in re.finditer(rf'(?:{_QUOTED}|[^",])+', values):
        value = match[0].strip()
        if _error_of(head + value) is not None:
            return value, at + match.start() + len(match[0]) - len(match[0].lstrip())
    return values, at


def _of_prediction(field: str, rest: str, value_at: int) -> tuple[str, int]:
    """Return what is wrong with the conditions of a label or a box: the longest beginning that is right ends before it."""
    at = value_at
    pieces = [match.start() for match in re.finditer(rf"{_QUOTED}|:", rest) if match[0] == ":"]
    for end in pieces[:_MAX_PIECES]:
        if _error_of(f"{field}={rest[:end]}") is None:
            at = value_at - len(rest) + len(rest.lstrip()) + end + 1
    wrong = rest.strip()[at - value_at :]
    example = "box=score:ge:0.5" if field == "box" else "label=star:score:ge:0.5"
    return text("problem_condition", value=_cut(wrong), example=example), at


def _cut(word: str) -> str:
    word = word.strip()
    return word if len(word) <= _LONGEST else word[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
