"""Filters as JSON: `{"meta.altitude": {"ge": 100, "lt": 300}, "not": {"label": "circle"}}`.

Several fields in one object, and several operators on one field, must all hold; a bare value means `eq`.
A string in place of an object is the compact form. An object may have Chariot's filters, see
`quadriga.store.query.filters.chariot_form`.
"""

from typing import Any

from quadriga.store.query.filters import chariot_form, compact_form
from quadriga.store.query.filters.comparisons import MAX_DEPTH, ComparisonParser
from quadriga.store.query.filters.filter_errors import check_text, unexpected_value
from quadriga.store.query.filters.report_cells import join_cells
from quadriga.store.query.filters.syntax import And, Filter, Not, Or, join_operands
from quadriga.store.records.errors import QueryError


def parse(where: Any, now_us: int) -> Filter:
    """Parse decoded JSON; `None` and `{}` match everything, `now_us` as for `ComparisonParser`.

    Raises:
        QueryError: The filter is invalid; the message names the place, as `where.and[1].meta.altitude`.
    """
    tree = _tree({} if where is None else where, "where", 1, ComparisonParser(now_us))
    return join_cells(tree)


def _tree(node: Any, path: str, depth: int, parser: ComparisonParser) -> Filter:
    if isinstance(node, str):
        return compact_form.parse(node, parser)
    if not isinstance(node, dict):
        raise unexpected_value(path, "an object", node)
    if depth > MAX_DEPTH:
        raise QueryError(f"expected the filter to be at most {MAX_DEPTH} deep, got more at {path}")
    parser.count_object()
    operands = chariot_form.parse(node, parser)
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
