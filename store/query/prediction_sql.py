"""Comparisons with predictions as SQL.

The index `pred` has a row for each label of an image: its best and worst score, -inf where a prediction
has none, and how many there are. What that cannot tell is read from the predictions themselves. Within a
band of best scores its ids are in order, so that the newest of some bands are had without the others.
"""

import math

from quadriga.store.database import placeholders
from quadriga.store.query.catalog import Catalog
from quadriga.store.query.dialects import SqlDialect
from quadriga.store.query.sql import FALSE, MAX_MERGED_SCANS, SYMBOLS, TRUE, Predicate, Scan, Sql
from quadriga.store.query.syntax import BoundOperator, PredictionCondition
from quadriga.store.schema import SCORE_BANDS, score_band

_IS_BOUND = {
    "eq": float.__eq__, "gt": float.__gt__, "ge": float.__ge__,
    "lt": float.__lt__, "le": float.__le__,
}  # fmt: skip


def compile_prediction(leaf: PredictionCondition, catalog: Catalog, words: SqlDialect) -> Predicate:
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
        return Predicate(_counted(leaf, words))
    is_label = Sql(
        f"+d.label IN ({placeholders(labels)})", labels
    )  # the plus leaves the index by `seq`
    best, worst = _sieve(scores, "+")
    possible = Sql.join(" AND ", (is_label, *best, *worst))
    scans, few, is_apart = *_scans(labels, scores), len(labels) == 1
    if len(scores) == len(leaf.bounds) and not leaf.count:
        test, is_index_enough = _by_scores(leaf, scores, possible, words)
        return Predicate(test, scans, is_index_enough, is_disjoint=is_apart, fewer_scans=few)
    if not leaf.bounds:  # so many of the label, however they score
        enough = f"SELECT sum(d.n) FROM pred AS d WHERE d.seq = i.seq AND {is_label.text}"
        test = _counts(Sql(f"coalesce(({enough}), 0)", labels), leaf.count)
        return Predicate(test, scans, is_disjoint=is_apart, fewer_scans=few)
    test = Sql.join(" AND ", (_of_row(possible), _counted(leaf, words))).wrap("({})")
    return Predicate(test, scans, is_disjoint=is_apart, fewer_scans=few)


def _scans(
    labels: tuple[int, ...], scores: tuple[tuple[BoundOperator, float], ...]
) -> tuple[tuple[Scan, ...], tuple[Scan, ...]]:
    """Return each band of each label, unless they are many, and each label alone."""
    best, worst = _sieve(scores)
    lowest = score_band(max((bound for _, (bound,) in best), default=-math.inf))

    def scan(label: int, sign: str, at: int) -> Scan:
        in_band = Sql(f"d.label = ? AND d.band {sign} ?", (label, at))
        partly = best if at == lowest else ()  # others are above the bound
        condition = Sql.join(" AND ", (in_band, *partly, *worst))
        return Scan("pred AS d", condition, ordered=sign == "=")

    few = tuple(scan(label, ">=", lowest) for label in labels)
    bands = range(lowest, len(SCORE_BANDS) + 1)
    if len(labels) * len(bands) > MAX_MERGED_SCANS:
        return few, few
    return tuple(scan(label, "=", at) for label in labels for at in bands), few


def _sieve(
    scores: tuple[tuple[BoundOperator, float], ...], plus: str = ""
) -> tuple[list[Sql], list[Sql]]:
    """Return what the best and the worst score must be for a prediction within the bounds to exist."""
    lower = [(op if op == "gt" else "ge", v) for op, v in scores if op in {"gt", "ge", "eq"}]
    upper = [(op if op == "lt" else "le", v) for op, v in scores if op in {"lt", "le", "eq"}]
    if upper and not lower:
        lower = [("gt", -math.inf)]  # some prediction has a score at all
    return (
        [Sql(f"{plus}d.score {SYMBOLS[operator]} ?", (bound,)) for operator, bound in lower],
        [Sql(f"d.worst {SYMBOLS[operator]} ?", (bound,)) for operator, bound in upper],
    )


def _by_scores(
    leaf: PredictionCondition,
    scores: tuple[tuple[BoundOperator, float], ...],
    possible: Sql,
    words: SqlDialect,
) -> tuple[Sql, bool]:
    """Return the test, and whether the index tells all: it does for bounds on one side."""
    if all(operator in {"gt", "ge"} for operator, _ in scores):
        return _of_row(possible), True
    best, worst = Sql.bounded("d.score", scores), Sql.bounded("d.worst", scores)
    counted = _counted(leaf, words)
    text = (
        f"{possible.text} AND CASE WHEN {best.text} THEN 1 = 1"
        f" WHEN d.worst > ? AND {worst.text} THEN 1 = 1 ELSE {counted.text} END"
    )
    values = (*possible.values, *best.values, -math.inf, *worst.values, *counted.values)
    return _of_row(Sql(text, values)), False


def _of_row(condition: Sql) -> Sql:
    # The limit keeps PostgreSQL from making a join of it.
    return condition.wrap(
        "EXISTS (SELECT 1 FROM pred AS d WHERE d.seq = i.seq AND {} LIMIT 1 OFFSET 0)"
    )


def _counted(leaf: PredictionCondition, words: SqlDialect) -> Sql:
    """Return the test on the predictions themselves."""
    tests = [Sql.bounded(_property(name, words), [(op, bound)]) for name, op, bound in leaf.bounds]
    if leaf.labels is not None:
        label = words.prediction_text.format("label")
        tests.insert(0, Sql(f"{label} IN ({placeholders(leaf.labels)})", leaf.labels))
    text, values = Sql.join(" AND ", tests or [TRUE.sql])
    found = f"FROM {words.predictions} WHERE {text}"
    if not leaf.count:
        return Sql(f"EXISTS (SELECT 1 {found})", values)
    return _counts(Sql(f"(SELECT count(*) {found})", values), leaf.count)


def _counts(expression: Sql, bounds: tuple[tuple[BoundOperator, float], ...]) -> Sql:
    parts = [
        Sql(f"{expression.text} {SYMBOLS[operator]} ?", (*expression.values, bound))
        for operator, bound in bounds
    ]
    return Sql.join(" AND ", parts).wrap("({})")


def _property(name: str, words: SqlDialect) -> str:
    """Return a length in pixels of the image: of a box, an oriented box, or the box around contours."""
    if name == "score":
        return words.prediction_number.format(name)
    if name == "area":
        return f"{_property('width', words)} * {_property('height', words)}"
    is_size = name in {"width", "height"}
    axis, side = ("x", "width") if name in {"width", "cx"} else ("y", "height")
    oriented = words.prediction_number.format(side[0] if is_size else name)
    form = "{1} - {0}" if is_size else "({0} + {1}) / 2.0"
    box = form.format(*(words.prediction_number.format(f"{axis}{end}") for end in ("min", "max")))
    contours = form.format(*(words.contour_extreme.format(axis, end) for end in ("min", "max")))
    return f"coalesce({box}, {oriented} * i.input_{side}, {contours})"
