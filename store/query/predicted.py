"""Comparisons with predictions as SQL.

The index `pred` has a row for each label of an image: its best and worst score, -inf where a prediction
has none, and how many there are. What that cannot tell is read from the predictions themselves. Within a
band of best scores its ids are in order, so that the newest of some bands are had without the others.
"""

import math

from store.database import marks
from store.query.catalog import Catalog
from store.query.sql import FALSE, MAX_MERGED, SYMBOLS, TRUE, Scan, Sql, Test
from store.query.syntax import Bound, Predicted
from store.query.words import Words
from store.schema import BANDS, band

_IS_BOUND = {
    "eq": float.__eq__, "gt": float.__gt__, "ge": float.__ge__,
    "lt": float.__lt__, "le": float.__le__,
}  # fmt: skip


def compile_predicted(leaf: Predicted, catalog: Catalog, words: Words) -> Test:
    """Translate what some prediction has, or so many have."""
    labels = None
    if leaf.labels is not None:
        labels = catalog.label_ids(leaf.labels)
    can_be_none = all(_IS_BOUND[operator](0.0, bound) for operator, bound in leaf.count)
    needs_one = not leaf.count or not can_be_none
    if labels == ():
        return FALSE if needs_one else TRUE
    scores = tuple((operator, bound) for name, operator, bound in leaf.bounds if name == "score")
    if labels is None or not needs_one:
        return Test(_counted(leaf, words))
    best, worst = _sieve(scores, "+")
    is_label = f"+d.label IN ({marks(labels)})"  # the plus leaves the index by `seq` alone
    possible = Sql.joined("", (Sql(is_label, labels), best, worst))
    scans, few, is_apart = *_scans(labels, scores), len(labels) == 1
    if len(scores) == len(leaf.bounds) and not leaf.count:
        test, is_index_enough = _by_scores(leaf, scores, possible, words)
        return Test(test, scans, is_index_enough, apart=is_apart, few=few)
    if not leaf.bounds:  # so many of the label, however they score
        enough = Sql(
            f"coalesce((SELECT sum(d.n) FROM pred AS d WHERE d.seq = i.seq AND {is_label}), 0)",
            labels,
        )
        return Test(_bounded(enough, leaf.count), scans, apart=is_apart, few=few)
    counted = _counted(leaf, words)
    text = f"({_of_row(possible.text)} AND {counted.text})"
    return Test(Sql(text, (*possible.values, *counted.values)), scans, apart=is_apart, few=few)


def _scans(
    labels: tuple[int, ...], scores: tuple[tuple[Bound, float], ...]
) -> tuple[tuple[Scan, ...], tuple[Scan, ...]]:
    """Return each band of each label, unless they are many, and each label alone."""
    best, worst = _sieve(scores)
    lowest = band(max(best.values, default=-math.inf))
    text = f"d.label = ? AND d.band >= ?{best.text}{worst.text}"
    bound = (lowest, *best.values, *worst.values)
    few = tuple(Scan("pred AS d", Sql(text, (label, *bound)), ordered=False) for label in labels)
    if len(labels) * (len(BANDS) + 1 - lowest) > MAX_MERGED:
        return few, few
    scans = []
    for label in labels:
        for at in range(lowest, len(BANDS) + 1):
            partly = best if at == lowest else Sql("")  # others are above the bound
            text = f"d.label = ? AND d.band = ?{partly.text}{worst.text}"
            values = (label, at, *partly.values, *worst.values)
            scans.append(Scan("pred AS d", Sql(text, values), ordered=True))
    return tuple(scans), few


def _sieve(scores: tuple[tuple[Bound, float], ...], plus: str = "") -> tuple[Sql, Sql]:
    """Return what the best and the worst score must be for a prediction within the bounds to exist."""
    lower = [(op if op == "gt" else "ge", v) for op, v in scores if op in {"gt", "ge", "eq"}]
    upper = [(op if op == "lt" else "le", v) for op, v in scores if op in {"lt", "le", "eq"}]
    if upper and not lower:
        lower = [("gt", -math.inf)]  # some prediction has a score at all
    best = "".join(f" AND {plus}d.score {SYMBOLS[operator]} ?" for operator, _ in lower)
    worst = "".join(f" AND d.worst {SYMBOLS[operator]} ?" for operator, _ in upper)
    return (
        Sql(best, tuple(bound for _, bound in lower)),
        Sql(worst, tuple(bound for _, bound in upper)),
    )


def _by_scores(
    leaf: Predicted, scores: tuple[tuple[Bound, float], ...], possible: Sql, words: Words
) -> tuple[Sql, bool]:
    """Return the test, and whether the index tells all: it does for bounds on one side."""
    if all(operator in {"gt", "ge"} for operator, _ in scores):
        return Sql(_of_row(possible.text), possible.values), True
    best = " AND ".join(f"d.score {SYMBOLS[operator]} ?" for operator, _ in scores)
    worst = " AND ".join(f"d.worst {SYMBOLS[operator]} ?" for operator, _ in scores)
    values = tuple(bound for _, bound in scores)
    counted = _counted(leaf, words)
    text = (
        f"{possible.text} AND CASE WHEN {best} THEN 1 = 1"
        f" WHEN d.worst > ? AND {worst} THEN 1 = 1 ELSE {counted.text} END"
    )
    bound = (*possible.values, *values, -math.inf, *values, *counted.values)
    return Sql(_of_row(text), bound), False


def _of_row(condition: str) -> str:
    # The limit keeps PostgreSQL from making a join of it.
    return f"EXISTS (SELECT 1 FROM pred AS d WHERE d.seq = i.seq AND {condition} LIMIT 1 OFFSET 0)"


def _counted(leaf: Predicted, words: Words) -> Sql:
    """Return the test on the predictions themselves."""
    tests: list[str] = []
    values: list[str | float] = []
    if leaf.labels is not None:
        tests.append(f"{words.text_of.format('label')} IN ({marks(leaf.labels)})")
        values += leaf.labels
    for name, operator, bound in leaf.bounds:
        tests.append(f"{_property(name, words)} {SYMBOLS[operator]} ?")
        values.append(bound)
    source = f"FROM {words.predictions} WHERE {' AND '.join(tests) or '1 = 1'}"
    if not leaf.count:
        return Sql(f"EXISTS (SELECT 1 {source})", tuple(values))
    return _bounded(Sql(f"(SELECT count(*) {source})", tuple(values)), leaf.count)


def _bounded(expression: Sql, bounds: tuple[tuple[Bound, float], ...]) -> Sql:
    text = " AND ".join(f"{expression.text} {SYMBOLS[operator]} ?" for operator, _ in bounds)
    return Sql(f"({text})", tuple(v for _, bound in bounds for v in (*expression.values, bound)))


def _property(name: str, words: Words) -> str:
    """Return a length in pixels of the image: of a box, an oriented box, or the box around contours."""
    if name == "score":
        return words.number_of.format(name)
    if name == "area":
        return f"{_property('width', words)} * {_property('height', words)}"
    is_size = name in {"width", "height"}
    axis, side = ("x", "width") if name in {"width", "cx"} else ("y", "height")
    oriented = words.number_of.format(side[0] if is_size else name)
    form = "{1} - {0}" if is_size else "({0} + {1}) / 2.0"
    box = form.format(*(words.number_of.format(f"{axis}{end}") for end in ("min", "max")))
    contours = form.format(*(words.end_of_contour.format(axis, end) for end in ("min", "max")))
    return f"coalesce({box}, {oriented} * i.input_{side}, {contours})"
