"""Inferences behind each cell of a report's confusion matrix: a file beside the report, and pages of what it lists.

The report itself shows a few examples. The file has a line for each cell, with the ids of its inferences. An erasure takes
out the ids of what it erases, see `quadriga.store.maintenance.erased_files`.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from quadriga.store.jobs.jobs import ID_LISTS_FILE
from quadriga.store.query.filters.syntax import ReportCells
from quadriga.store.query.inferences import InferenceReader, Page
from quadriga.store.query.names import CellIds
from quadriga.store.query.request import (
    Order,
    QueryRequest,
    request_from_url,
)
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.store.records.scope import Scope
from quadriga.tasks.arrays import Int64Array

MAX_IDS = 500_000
"""Maximum ids of a file; cells beyond have fewer ids than inferences, and say so."""

MAX_CELL_IDS = 10_000
"""Maximum ids of a cell."""

URL_OPTIONS = ("truth", "predicted", "order", "limit", "cursor")


class PairedLabels(NamedTuple):
    """Pairs of a true and a predicted label (N,): positions of labels, -1 for no object or no prediction."""

    image: Int64Array
    truth: Int64Array
    predicted: Int64Array
    true_item: Int64Array | None = None
    """Positions in the lists of the images, -1 as above; None where each image has one label."""
    predicted_item: Int64Array | None = None


class Cell(msgspec.Struct, frozen=True):
    """Inferences of a cell of the confusion matrix."""

    truth: str | None
    """True label; None for predictions without an object."""
    predicted: str | None
    """Predicted label; None for objects without a prediction."""
    ids: list[str]
    """Ids of inferences, rising."""
    more: bool = False
    """Whether there are more than these."""


class CellRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of the inferences of cells."""

    truth: str | None = None
    """True label; empty for predictions without an object, None for any."""
    predicted: str | None = None
    """Predicted label; empty for objects without a prediction, None for any."""
    where: Any = None
    """A filter, as of a query, that must hold, too."""
    order: Order = "-ts"
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


def cell_request_from_url(query: str) -> CellRequest:
    """Parse the query of a URL, or raise a `QueryError`."""
    return request_from_url(query, CellRequest, URL_OPTIONS)


def cells_of(labels: Sequence[str], ids: Sequence[str], pairs: PairedLabels) -> list[Cell]:
    """Return the cells of pairs, given all labels and the ids of the images; the fullest may have their newest ids alone."""
    size, numbers = len(labels) + 1, np.array([int(id_) for id_ in ids], np.int64)
    cell = pairs.truth % size * size + pairs.predicted % size
    order = np.argsort(cell, kind="stable")
    runs = np.split(order, np.flatnonzero(np.diff(cell[order])) + 1) if len(order) else []
    names, room, cells = [*labels, None], MAX_IDS, []
    for rows in sorted(runs, key=len):
        cell_ids = np.unique(numbers[pairs.image[rows]])
        listed = cell_ids[len(cell_ids) - min(len(cell_ids), MAX_CELL_IDS, room) :].tolist()
        room -= len(listed)
        truth, predicted = names[pairs.truth[rows[0]]], names[pairs.predicted[rows[0]]]
        is_cut = len(listed) < len(cell_ids)
        cells.append(Cell(truth, predicted, list(map(str, listed)), more=is_cut))
    return cells


def save_cells(directory: Path, cells: Iterable[Cell]) -> None:
    """Write the cells of a report into the folder of its job."""
    lines = b"".join(msgspec.json.encode(cell) + b"\n" for cell in cells)
    write_atomically(directory / ID_LISTS_FILE, lines)


def cell_page(inferences: InferenceReader, directory: Path, request: CellRequest) -> Page:
    """Return a page of the inferences in some cells of the report in a folder that are still stored.

    Raises:
        NotFoundError: The report has no such lists.
        QueryError: The cursor or the filter is invalid.
    """
    sides = {"truth": request.truth, "predicted": request.predicted}
    chosen = {side: label for side, label in sides.items() if label is not None}
    query = QueryRequest(
        {"and": [request.where or {}, {"report": directory.name, **chosen}]},
        order=request.order,
        limit=request.limit,
        cursor=request.cursor,
        count="exact",
    )
    is_cut = any(
        cell.more
        for cell in _read(directory)
        if all((getattr(cell, side) or "") == label for side, label in chosen.items())
    )
    page = inferences.query(query)
    return replace(page, count_is_exact=bool(page.count_is_exact) and not is_cut)


def listed_ids(folder_of: Callable[[Scope, str], Path]) -> CellIds:
    """Return what finds the inferences of cells in a filter, given what returns the folder of a report; raises as `cell_page`."""

    def ids(scope: Scope, cells: ReportCells) -> set[int]:
        directory = folder_of(scope, cells.report)
        return {
            int(id_)
            for cell in _read(directory)
            if cells.has(cell.truth or "", cell.predicted or "")
            for id_ in cell.ids
        }

    return ids


def _read(directory: Path) -> list[Cell]:
    try:
        lines = (directory / ID_LISTS_FILE).read_bytes().splitlines()
    except FileNotFoundError as error:
        raise NotFoundError(
            f"inferences of report {directory.name} are not available: it has no confusion matrix, or is of an earlier "
            "release"
        ) from error
    try:
        return [msgspec.json.decode(line, type=Cell) for line in lines]
    except msgspec.MsgspecError as error:
        raise QueryError(f"the lists of report {directory.name} cannot be read: {error}") from error
