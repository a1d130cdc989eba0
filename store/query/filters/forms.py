"""Filters as JSON and as one line of text, which becomes the same tree.

JSON: `{"meta.altitude": {"ge": 100, "lt": 300}, "not": {"label": "circle"}}`. Several fields in one object, and several
operators on one field, must all hold; a bare value means `eq`. A string in place of an object is the line of text. An object
may have Chariot's filters, see `quadriga.store.query.filters.chariot_form`.

Text: `model=ships & (meta.camera=in:north,east | label=car:ge:0.8) & !meta.fog=true`.

    either     = both ("|" both)*
    both       = one ("&" one)*
    one        = "!" one | "(" either ")" | "()" all | "(|)" none | field "=" operand
    operand    = [operator ":"] value ("," value)*
    best       = [("in" | "ne") ":"] name ("," name)*
    label      = [("in" | "ne") ":"] name ("," name)* (":" [property ":"] operator ":" number)*
    box        = property ":" operator ":" number (":" property ":" operator ":" number)*
    geo        = latitude "," longitude "," distance | ("box" | "polygon") ":" numbers

A value is a number or a boolean where it reads as one and the field can be one, else a string. In double
quotes, with JSON's escapes, it is a string whatever it reads as, and may hold any character; so may a field.
"""

import re
from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from quadriga.store.query.filters import chariot_form
from quadriga.store.query.filters.comparisons import (
    MAX_DEPTH,
    ComparisonParser,
    check_text,
    unexpected_value,
)
from quadriga.store.query.filters.syntax import (
    BOUNDS,
    OPERATORS,
    PROPERTIES,
    And,
    Compare,
    Filter,
    Not,
    Or,
    ReportCells,
    join_operands,
    kind_of,
)
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import json_text

URL_OPTIONS = ("order", "limit", "cursor", "count", "consistency")
"""Parameters of a URL that are not comparisons."""

MAX_CHARACTERS = 65_536
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_SPACE = re.compile(r"\s*")
_FIELD = re.compile(rf'(?:{_QUOTED}|[^"&|()=!<>]+)')
_OPERAND = re.compile(rf'(?:{_QUOTED}|[^"&|()<>])*')
_PIECE = {mark: re.compile(rf'(?:{_QUOTED}|[^"{mark}])*') for mark in ":,"}
_OPERATORS = OPERATORS["value"]
_OPERATOR = re.compile(rf"\s*({'|'.join(_OPERATORS)})\s*:", re.ASCII)
_OTHER_NAME = re.compile(r"\s*(?:gte|lte|neq)\s*:", re.ASCII)
"""Names of operators in other query languages; as values they must be quoted."""
_CELL_LABELS = {"truth", "predicted"}
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)


def parse(where: Any, now_us: int) -> Filter:
    """Parse decoded JSON; `None` and `{}` match everything, `now_us` as for `ComparisonParser`.

    Raises:
        QueryError: The filter is invalid; the message names the place, as `where.and[1].meta.altitude`.
    """
    tree = _tree({} if where is None else where, "where", 1, ComparisonParser(now_us))
    return _join_cells(tree)


def _tree(node: Any, path: str, depth: int, parser: ComparisonParser) -> Filter:
    if isinstance(node, str):
        return parse_text(node, parser)
    if not isinstance(node, dict):
        raise unexpected_value(path, "an object", node)
    if depth > MAX_DEPTH:
        raise QueryError(f"expected the filter to be at most {MAX_DEPTH} deep, got more at {path}")
    parser.count_object()
    operands = chariot_form.parse(node, parser) if node.keys() & set(chariot_form.NAMES) else []
    for key, value in node.items():
        if key in chariot_form.NAMES:
            continue
        check_text(key, "the name of a field")
        node_path = f"{path}.{key[:80]}"
        if key in {"and", "or"}:
            if not isinstance(value, list):
                raise unexpected_value(node_path, "a list of filters", value)
            children = [
                _tree(child, f"{node_path}[{index}]", depth + 1, parser)
                for index, child in enumerate(value)
            ]
            operands.append(join_operands(And if key == "and" else Or, children))
        elif key == "not":
            operands.append(Not(_tree(value, node_path, depth + 1, parser)))
        else:
            operands += parser.read(key, value, node_path)
    return join_operands(And, operands)


def parse_text(text: str, comparisons: ComparisonParser) -> Filter:
    """Read a filter, whose comparisons count as the outer one's; empty text matches everything.

    Raises:
        QueryError: It is no filter; the message says where and what was expected.
    """
    return _Parser(text, comparisons).parse_all()


def _join_cells(tree: Filter) -> Filter:
    """Return a filter in which each report has its cells.

    Raises:
        QueryError: A label stands beside no report, or there are two reports for it.
    """
    if isinstance(tree, Or):
        return Or(tuple(map(_join_cells, tree.operands)))
    if isinstance(tree, Not):
        return Not(_join_cells(tree.operand))
    operands = tree.operands if isinstance(tree, And) else (tree,)
    fields = [operand.field for operand in operands if isinstance(operand, Compare)]
    if "report" not in fields and _CELL_LABELS.isdisjoint(fields):
        return And(tuple(map(_join_cells, operands))) if isinstance(tree, And) else tree
    for field in ("report", *sorted(_CELL_LABELS)):
        if fields.count(field) > (1 if fields.count("report") == 1 else 0):
            raise QueryError(
                f"expected truth and predicted once each beside one report, as in report=ID & truth=star, got {field} "
                f"{fields.count(field)} times beside {fields.count('report')} reports"
            )
    values = {operand.field: operand.value for operand in operands if isinstance(operand, Compare)}
    cells = ReportCells(
        str(values["report"]),
        truth=_labels(values.get("truth")),
        predicted=_labels(values.get("predicted")),
    )
    others = [
        _join_cells(operand)
        for operand in operands
        if not (isinstance(operand, Compare) and operand.field in _CELL_LABELS | {"report"})
    ]
    return join_operands(And, [cells, *others])


def _labels(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


def split_url(query: str, names: Collection[str] = URL_OPTIONS) -> tuple[list[str], dict[str, str]]:
    """Return the filters of a URL's query as text, all of which must hold, and its options, which have these names.

    Raises:
        QueryError: A parameter is none, or there twice.
    """
    try:
        parameters = parse_qsl(query, keep_blank_values=True, max_num_fields=250, errors="strict")
    except ValueError as error:
        raise QueryError(f"expected at most 250 parameters in UTF-8, got: {error}") from error
    filters: list[str] = []
    options: dict[str, str] = {}
    for name, value in parameters:
        if name not in names:
            filters.append(_parameter(name, value))
        elif name in options:
            raise QueryError(f"expected {name} once, got it twice")
        else:
            options[name] = value
    return filters, options


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
    def __init__(self, text: str, parser: ComparisonParser) -> None:
        if len(text) > MAX_CHARACTERS:
            raise QueryError(
                f"expected a filter of at most {MAX_CHARACTERS} characters, got {len(text)}"
            )
        self._text, self._position = text, 0
        self._parser = parser

    def parse_all(self) -> Filter:
        tree = self._either(1) if self._text.strip() else And(())
        self._consume(_SPACE)
        if self._position < len(self._text):
            raise self._expected(
                "& or | and another comparison, an operator as in ge:5, or quotes around the value"
            )
        return tree

    def _either(self, depth: int) -> Filter:
        either = [[self._unit(depth)]]
        while True:
            if self._take("&"):
                either[-1].append(self._unit(depth))
            elif self._take("|"):
                either.append([self._unit(depth)])
            else:
                return join_operands(Or, [join_operands(And, both) for both in either])

    def _unit(self, depth: int) -> Filter:
        if depth > MAX_DEPTH:
            raise QueryError(f"expected the filter to be at most {MAX_DEPTH} deep, got more")
        if self._take("!"):
            return Not(self._unit(depth + 1))
        if not self._take("("):
            return self._comparison()
        if self._take(")"):
            return And(())
        tree = Or(()) if self._take("|") else self._either(depth + 1)
        if not self._take(")"):
            raise self._expected("a closing parenthesis")
        return tree

    def _comparison(self) -> Filter:
        field_text = self._consume(_FIELD)
        if not field_text:
            raise self._expected("a comparison such as meta.camera=north")
        if not self._take("="):
            raise self._expected(
                f"= after {field_text.strip()[:80]!r}, as in meta.altitude=ge:100,"
            )
        field, text = _plain(field_text), self._consume(_OPERAND)
        if self._text.startswith('"', self._position):
            raise self._expected("a closing quote")
        return join_operands(And, self._parser.read(field, _operand(field, text), field[:80]))

    def _take(self, mark: str) -> bool:
        self._consume(_SPACE)
        is_present = self._text.startswith(mark, self._position)
        self._position += is_present
        return is_present

    def _consume(self, pattern: re.Pattern[str]) -> str:
        """Consume and return what a pattern matches at the current position; an empty string if nothing."""
        match = pattern.match(self._text, self._position)
        self._position = match.end() if match else self._position
        return match[0] if match else ""

    def _expected(self, expectation: str) -> QueryError:
        got = self._text[self._position : self._position + 40]
        return QueryError(
            f"expected {expectation} at character {self._position + 1} of the filter, "
            f"got {repr(got) if got else 'its end'}"
        )


def _operand(field: str, text: str) -> Any:
    """Return the operand in the JSON form."""
    if field in {"label", "best", "box"}:
        return _prediction(field, text)
    match = _OPERATOR.match(text)
    if field == "geo" and (match is None or match[1] != "exists"):
        return _shape(text)
    if match is None and _OTHER_NAME.match(text):
        raise QueryError(
            f"expected {field[:80]} to have one of {', '.join(_OPERATORS)}, or quotes around the "
            f"value, got {text[:80]!r}"
        )
    if match is None:
        return _typed(field, text)
    operator, remaining = match[1], text[match.end() :]
    if operator == "in":
        return {
            "in": [_typed(field, piece) for piece in _pieces(remaining, ",")]
            if remaining.strip()
            else []
        }
    if operator == "contains":
        return {"contains": _plain(remaining)}
    return {operator: _scalar(remaining) if operator == "exists" else _typed(field, remaining)}


def _prediction(field: str, text: str) -> Any:
    pieces = list(_pieces(text, ":"))
    operator = pieces.pop(0).strip() if pieces[0].strip() in {"eq", "ne", "in"} else "eq"
    condition: dict[str, Any] = {}
    if field != "box":
        names = pieces.pop(0) if pieces else ""
        name: Any = {
            "in": [_plain(piece) for piece in _pieces(names, ",")] if names.strip() else []
        }
        if operator != "in":
            name = _plain(names)
        if not pieces and operator == "ne":
            return {"ne": name}
        if not pieces:
            return name
        condition["name"] = name
    if operator == "ne" or field == "best":
        end = "=ne" if operator == "ne" else ""
        raise QueryError(f"expected nothing after the name of {field}{end}, got {text[:80]!r}")
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
        bounds = condition.setdefault(property_, {})
        if bound in bounds:
            raise QueryError(f"expected {field} to have {property_}:{bound} once, got it twice")
        bounds[bound] = _scalar(pieces.pop(0))
    return condition


def _shape(text: str) -> Any:
    kind, _, number_text = text.rpartition(":")
    numbers = [_scalar(piece) for piece in _pieces(number_text, ",")]
    if kind.strip() == "polygon" and len(numbers) % 2 == 0:
        return {"polygon": [numbers[at : at + 2] for at in range(0, len(numbers), 2)]}
    if kind.strip() == "box":
        return {"box": numbers}
    if not kind and len(numbers) == 3:
        return {"near": numbers[:2], "within": numbers[2]}
    return text


def _pieces(text: str, mark: str) -> Iterable[str]:
    """Split text at a separator outside of quotes."""
    start = 0
    while True:
        match = _PIECE[mark].match(text, start)
        assert match is not None  # the pattern matches the empty string, too
        yield match[0]
        start = match.end() + 1
        if match.end() == len(text):
            return


def _typed(field: str, text: str) -> Any:
    return _scalar(text) if kind_of(field) in {"value", "number"} else _plain(text)


def _scalar(text: str) -> Any:
    """Return the number, boolean or string that a value stands for."""
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
