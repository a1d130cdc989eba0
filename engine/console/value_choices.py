"""Parts of a filter line that choose values of a field, `meta.camera=north` or `meta.camera=in:north,east`, as facets change them."""

from collections.abc import Iterable, Sequence

from quadriga.engine.console.filter_line import comparison_text
from quadriga.store.browsing.facets import FIELDS
from quadriga.store.query.filters.syntax import Compare, Not, PredictionCondition, Scalar
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import StoreError

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
