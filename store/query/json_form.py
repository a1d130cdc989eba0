"""Filters as JSON: `{"meta.altitude": {"ge": 100, "lt": 300}, "not": {"label": "circle"}}`.

Several fields in one object, and several operators on one field, must all hold; a bare value means `eq`.
A string in place of an object is the compact form.
"""

from typing import Any

from quadriga.store.errors import QueryError
from quadriga.store.query import compact_form
from quadriga.store.query.comparisons import MAX_DEPTH, ComparisonParser
from quadriga.store.query.filter_errors import check_text, unexpected_value
from quadriga.store.query.syntax import And, Filter, Not, Or, join_operands


def parse(where: Any, now_us: int) -> Filter:
    """Read decoded JSON; `None` and `{}` match everything, `now_us` as of `Comparisons`.

    Raises:
        QueryError: It is no filter; the message names the place, as `where.and[1].meta.altitude`.
    """
    return _tree({} if where is None else where, "where", 1, ComparisonParser(now_us))


def _tree(node: Any, path: str, depth: int, comparisons: ComparisonParser) -> Filter:
    if isinstance(node, str):
        return compact_form.parse(node, comparisons)
    if not isinstance(node, dict):
        raise unexpected_value(path, "an object", node)
    if depth > MAX_DEPTH:
        raise QueryError(f"expected the filter to be at most {MAX_DEPTH} deep, got more at {path}")
    comparisons.count_object()
    parts: list[Filter] = []
    for key, value in node.items():
        check_text(key, "the name of a field")
        here = f"{path}.{key[:80]}"
        if key in {"and", "or"}:
            if not isinstance(value, list):
                raise unexpected_value(here, "a list of filters", value)
            inner = [
                _tree(part, f"{here}[{at}]", depth + 1, comparisons)
                for at, part in enumerate(value)
            ]
            parts.append(join_operands(And if key == "and" else Or, inner))
        elif key == "not":
            parts.append(Not(_tree(value, here, depth + 1, comparisons)))
        else:
            parts += comparisons.read(key, value, here)
    return join_operands(And, parts)
