"""SQL of comparisons with predictions.

The index `pred` has a row for each label of an image: its best and worst score, -inf for a prediction
without score, and the number of predictions. Whatever that cannot decide is tested on the predictions
themselves. Within a band of best scores the ids are in order, so the newest of several bands can be read
without reading all of them.
"""

import math
from functools import partial

from quadriga.store.database.database import placeholders
from quadriga.store.database.schema import SCORE_BANDS, score_band
from quadriga.store.query.filters.syntax import BoundOperator, PredictionCondition
from quadriga.store.query.sql.catalog import CLASSIFICATION, Catalog
from quadriga.store.query.sql.dialects import SqlDialect
from quadriga.store.query.sql.sql import (
    FALSE,
    MAX_MERGED_SCANS,
    MAX_MERGED_TEAM_SCANS,
    SYMBOLS,
    TRUE,
    Predicate,
    Scan,
    Sql,
    among,
)

_IS_BOUND = {
    "eq": float.__eq__, "gt": float.__gt__, "ge": float.__ge__,
    "lt": float.__lt__, "le": float.__le__,
}  # fmt: skip


def compile_prediction(
    leaf: PredictionCondition, catalog: Catalog, dialect: SqlDialect
) -> Predicate:
    """Compile the condition that some prediction, or a number of them, has the given properties."""
    labels = None
    if leaf.labels is not None:
        labels = catalog.label_ids(leaf.labels)
    can_be_none = all(_IS_BOUND[operator](0.0, bound) for operator, bound in leaf.count)
    needs_one = not leaf.count or not can_be_none
    if labels == ():
        return FALSE if needs_one else TRUE
    scores = tuple((operator, bound) for name, operator, bound in leaf.bounds if name == "score")
    if labels is None or not needs_one:
        return Predicate(_counted(leaf, dialect))
    # The plus prevents the use of the index by `seq`.
    is_label = Sql(f"+d.label IN ({placeholders(labels)})", labels)
    best, worst = _sieve(scores, "+")
    possible = Sql.join(" AND ", (is_label, *best, *worst))
    name_count = len(set(leaf.labels or ()))
    teams = -(-len(labels) // name_count)
    scans, fewer_scans = _scans(labels, scores, teams)
    predicate = partial(
        Predicate,
        scans=scans,
        is_disjoint=name_count == 1,  # an inference has the label of its team alone
        fewer_scans=fewer_scans,
        teams=teams,
    )
    if leaf.is_best:
        return predicate(_of_best(is_label, catalog))
    if len(scores) == len(leaf.bounds) and not leaf.count:
        test, is_index_enough = _by_scores(leaf, scores, possible, dialect)
        return predicate(test, is_exact=is_index_enough)
    if not leaf.bounds:  # a number of predictions with the label, whatever their scores
        total = f"SELECT sum(d.n) FROM pred AS d WHERE d.seq = i.seq AND {is_label.text}"
        test = _counts(Sql(f"coalesce(({total}), 0)", labels), leaf.count)
        return predicate(test)
    test = Sql.join(" AND ", (_of_row(possible), _counted(leaf, dialect))).wrap("({})")
    return predicate(test)


def _scans(
    labels: tuple[int, ...], scores: tuple[tuple[BoundOperator, float], ...], teams: int
) -> tuple[tuple[Scan, ...], tuple[Scan, ...]]:
    """Return a scan for each band of each label, unless there are too many, and one for each label.

    For a label that several teams have, the second is a single one.
    """
    best, worst = _sieve(scores)
    lowest = score_band(max((bound for _, (bound,) in best), default=-math.inf))

    def scan(label: tuple[int, ...], sign: str, band: int) -> Scan:
        in_band = among("d.label", label).wrap(f"{{}} AND d.band {sign} ?", band)
        best_bounds = best if band == lowest else ()  # higher bands are above the bound
        condition = Sql.join(" AND ", (in_band, *best_bounds, *worst))
        return Scan("pred AS d", condition, ordered=sign == "=")

    groups = [labels] if teams == len(labels) else [(label,) for label in labels]
    fewer_scans = tuple(scan(group, ">=", lowest) for group in groups)
    bands = range(lowest, len(SCORE_BANDS) + 1)
    count = len(labels) * len(bands)
    if count > MAX_MERGED_SCANS * teams or count > MAX_MERGED_TEAM_SCANS:
        return fewer_scans, fewer_scans
    return tuple(scan((label,), "=", band) for label in labels for band in bands), fewer_scans


def _sieve(
    scores: tuple[tuple[BoundOperator, float], ...], plus: str = ""
) -> tuple[list[Sql], list[Sql]]:
    """Return the conditions on the best and the worst score that a prediction within the bounds implies."""
    lower = [(op if op == "gt" else "ge", v) for op, v in scores if op in {"gt", "ge", "eq"}]
    upper = [(op if op == "lt" else "le", v) for op, v in scores if op in {"lt", "le", "eq"}]
    if upper and not lower:
        lower = [("gt", -math.inf)]  # requires a prediction with a score
    return (
        [Sql(f"{plus}d.score {SYMBOLS[operator]} ?", (bound,)) for operator, bound in lower],
        [Sql(f"d.worst {SYMBOLS[operator]} ?", (bound,)) for operator, bound in upper],
    )


def _by_scores(
    leaf: PredictionCondition,
    scores: tuple[tuple[BoundOperator, float], ...],
    possible: Sql,
    dialect: SqlDialect,
) -> tuple[Sql, bool]:
    """Return the condition, and whether the index suffices, which it does for lower bounds alone."""
    if all(operator in {"gt", "ge"} for operator, _ in scores):
        return _of_row(possible), True
    best, worst = Sql.bounded("d.score", scores), Sql.bounded("d.worst", scores)
    exact = _counted(leaf, dialect)
    text = (
        f"{possible.text} AND CASE WHEN {best.text} THEN 1 = 1"
        f" WHEN d.worst > ? AND {worst.text} THEN 1 = 1 ELSE {exact.text} END"
    )
    values = (*possible.values, *best.values, -math.inf, *worst.values, *exact.values)
    return _of_row(Sql(text, values)), False


def _of_best(is_label: Sql, catalog: Catalog) -> Sql:
    """Return the condition that a label is there, and of a classification none has a higher score."""
    classifications = tuple(model.id for model in catalog.models if model.task == CLASSIFICATION)
    if not classifications:
        return _of_row(is_label)
    higher = "EXISTS (SELECT 1 FROM pred AS o WHERE o.seq = d.seq AND o.score > d.score)"
    is_beaten = among("i.model_id", classifications).wrap(f"NOT ({{}} AND {higher})")
    return _of_row(Sql.join(" AND ", (is_label, is_beaten)))


def _of_row(condition: Sql) -> Sql:
    # The LIMIT prevents PostgreSQL from turning it into a join.
    return condition.wrap(
        "EXISTS (SELECT 1 FROM pred AS d WHERE d.seq = i.seq AND {} LIMIT 1 OFFSET 0)"
    )


def _counted(leaf: PredictionCondition, dialect: SqlDialect) -> Sql:
    """Return the condition on the predictions themselves."""
    tests = [
        Sql.bounded(_property(name, dialect), [(op, bound)]) for name, op, bound in leaf.bounds
    ]
    if leaf.labels is not None:
        label = dialect.prediction_text.format("label")
        tests.insert(0, Sql(f"{label} IN ({placeholders(leaf.labels)})", leaf.labels))
    text, values = Sql.join(" AND ", tests or [TRUE.sql])
    matching = f"FROM {dialect.predictions} WHERE {text}"
    if not leaf.count:
        return Sql(f"EXISTS (SELECT 1 {matching})", values)
    return _counts(Sql(f"(SELECT count(*) {matching})", values), leaf.count)


def _counts(expression: Sql, bounds: tuple[tuple[BoundOperator, float], ...]) -> Sql:
    comparisons = [
        Sql(f"{expression.text} {SYMBOLS[operator]} ?", (*expression.values, bound))
        for operator, bound in bounds
    ]
    return Sql.join(" AND ", comparisons).wrap("({})")


def _property(name: str, dialect: SqlDialect) -> str:
    """Return the expression of a property in pixels, of a box, an oriented box or the box around a contour."""
    if name == "score":
        return dialect.prediction_number.format(name)
    if name == "area":
        return f"{_property('width', dialect)} * {_property('height', dialect)}"
    is_size = name in {"width", "height"}
    axis, side = ("x", "width") if name in {"width", "cx"} else ("y", "height")
    oriented = dialect.prediction_number.format(side[0] if is_size else name)
    template = "{1} - {0}" if is_size else "({0} + {1}) / 2.0"
    box = template.format(
        *(dialect.prediction_number.format(f"{axis}{end}") for end in ("min", "max"))
    )
    contours = template.format(
        *(dialect.contour_extreme.format(axis, end) for end in ("min", "max"))
    )
    return f"coalesce({box}, {oriented} * i.input_{side}, {contours})"
