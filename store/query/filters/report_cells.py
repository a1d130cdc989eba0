"""Cells of a report in a filter: `report=<id> & truth=star & predicted=cross`, joined into one leaf, then into ids.

`truth` and `predicted` say of which cells of the report beside them, in the same AND. A report lists its inferences in a file
that this package does not know: whoever opens the store says how they are found.
"""

from collections.abc import Callable, Iterable

from quadriga.store.query.filters.syntax import (
    And,
    Compare,
    Filter,
    IdList,
    Not,
    Or,
    ReportCells,
    join_operands,
)
from quadriga.store.records.errors import QueryError
from quadriga.store.records.scope import Scope

CellIds = Callable[[Scope, ReportCells], Iterable[int]]
"""Returns the inferences that some cells of a report list; a `NotFoundError` if the scope has no such report."""

_SIDES = {"truth", "predicted"}


def join_cells(tree: Filter) -> Filter:
    """Return a filter in which each report has its cells.

    Raises:
        QueryError: A label stands beside no report, or there are two reports for it.
    """
    if isinstance(tree, Or):
        return Or(tuple(map(join_cells, tree.operands)))
    if isinstance(tree, Not):
        return Not(join_cells(tree.operand))
    operands = tree.operands if isinstance(tree, And) else (tree,)
    fields = [operand.field for operand in operands if isinstance(operand, Compare)]
    if "report" not in fields and _SIDES.isdisjoint(fields):
        return And(tuple(map(join_cells, operands))) if isinstance(tree, And) else tree
    for field in ("report", *sorted(_SIDES)):
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
        join_cells(operand)
        for operand in operands
        if not (isinstance(operand, Compare) and operand.field in _SIDES | {"report"})
    ]
    return join_operands(And, [cells, *others])


def find_cells(tree: Filter, scope: Scope, cell_ids: CellIds) -> Filter:
    """Return a filter with the ids that its reports list, for who sees what a scope admits; raises as `cell_ids`."""
    if isinstance(tree, ReportCells):
        return IdList(tuple(sorted(set(cell_ids(scope, tree)))))
    if isinstance(tree, Not):
        return Not(find_cells(tree.operand, scope, cell_ids))
    if isinstance(tree, And | Or):
        return type(tree)(tuple(find_cells(operand, scope, cell_ids) for operand in tree.operands))
    return tree


def no_reports(_: Scope, cells: ReportCells) -> Iterable[int]:
    """Refuse the cells of a report where no reports are at hand."""
    raise QueryError(
        f"cannot find report {cells.report[:80]!r}: reports are with the server's data"
    )


def _labels(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)
