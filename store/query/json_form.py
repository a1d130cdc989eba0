"""Filters as JSON: `{"meta.altitude": {"ge": 100, "lt": 300}, "not": {"label": "circle"}}`.

Several fields in one object, and several operators on one field, must all hold; a bare value means `eq`.
A string in place of an object is the compact form.
"""

from typing import Any

from store.errors import QueryError
from store.query import compact_form
from store.query.comparisons import MAX_DEPTH, Comparisons
from store.query.syntax import And, Filter, Not, Or, joined
from store.query.wrong import check_text, counted, unexpected

MAX_OBJECTS = 1000


def parse(where: Any, now_us: int) -> Filter:
    """Read a filter; `None` and `{}` match everything.

    Args:
        where: Decoded JSON.
        now_us: What `now` means, in microseconds since the epoch.

    Raises:
        QueryError: It is no filter; the message names the place, as `where.and[1].meta.altitude`.
    """
    return _Parser(now_us).tree({} if where is None else where, "where", 1)


class _Parser:
    def __init__(self, now_us: int) -> None:
        self._comparisons = Comparisons(now_us)
        self._objects = 0

    def tree(self, node: Any, path: str, depth: int) -> Filter:
        if isinstance(node, str):
            return compact_form.parse(node, self._comparisons)
        if not isinstance(node, dict):
            raise unexpected(path, "an object", node)
        if depth > MAX_DEPTH:
            raise QueryError(
                f"expected the filter to be at most {MAX_DEPTH} deep, got more at {path}"
            )
        self._objects = counted(self._objects + 1, MAX_OBJECTS, "objects in a filter")
        parts: list[Filter] = []
        for key, value in node.items():
            check_text(key, "the name of a field")
            here = f"{path}.{key[:80]}"
            if key in {"and", "or"}:
                if not isinstance(value, list):
                    raise unexpected(here, "a list of filters", value)
                inner = [
                    self.tree(part, f"{here}[{position}]", depth + 1)
                    for position, part in enumerate(value)
                ]
                parts.append(joined(And if key == "and" else Or, inner))
            elif key == "not":
                parts.append(Not(self.tree(value, here, depth + 1)))
            else:
                parts += self._comparisons.read(key, value, here)
        return joined(And, parts)
