"""Images on which two models, or two versions of one, answer differently."""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from quadriga.store.database.database import execute_in, placeholders
from quadriga.store.database.rows import is_number
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import (
    Order,
    QueryRequest,
    cursor_range,
    encode_cursor,
    query_digest,
)
from quadriga.store.query.sql.catalog import Catalog
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import StoredInference
from quadriga.tasks.predictions import Xyxy, shape_of_json

MAX_COMPARED = 5000
"""Maximum inferences that one request compares."""

MAX_S = 1.0
"""Seconds after which a page is answered as far as it is filled."""

_BATCH = 200
_SAME_IMAGES = "SELECT input_hash, max(seq) FROM inference WHERE +model_id IN ({}) AND input_hash IN ({{}}) GROUP BY input_hash"
"""Selects the newest inference on each image; the plus keeps the index of models out, which would read all of a model."""


class DisagreementsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of the images on which two models answer differently."""

    a: Annotated[str, msgspec.Meta(min_length=1)]
    """The model whose inferences are searched, as `name` or `name@version`."""
    b: Annotated[str, msgspec.Meta(min_length=1)]
    """The model that it is compared with."""
    where: Any = None
    """A filter of the inferences of `a`, as of a query."""
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    """Score from which predictions count; those without a score count, too."""
    iou: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    """Overlap from which two boxes of one label are the same."""
    order: Order = "-ts"
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    cursor: str | None = None
    consistency: Literal["journal"] | None = None
    """`journal` waits until everything acknowledged so far is compared."""


class Disagreement(msgspec.Struct, frozen=True):
    """Two different answers on one image."""

    a: StoredInference
    b: StoredInference
    """The newest inference of the other model on the same bytes."""
    only_a: list[int]
    """Positions of the predictions of `a` that `b` has not."""
    only_b: list[int]


class Disagreements(msgspec.Struct, frozen=True):
    """Page of images on which two models answer differently."""

    disagreements: list[Disagreement]
    compared: int
    """Inferences of `a` on this page that `b` has the image of."""
    alone: int
    """Inferences of `a` on this page that `b` has not the image of."""
    cursor: str | None
    """Cursor of the next page, or None if this is the last."""
    partial: bool
    """Whether a limit was reached before the page was full."""


class CountedPrediction(NamedTuple):
    """A prediction that counts, by its position in the list."""

    position: int
    name: tuple[Any, Any]
    """Label and answer."""
    box: Xyxy | None
    """The upright box around it, in pixels; None if it has no place."""


_decoder = msgspec.json.Decoder(list[dict[str, Any]])


def find_disagreements(inferences: InferenceReader, request: DisagreementsRequest) -> Disagreements:
    """Find the inferences of a model on whose images another one answered differently.

    Raises:
        QueryError: A model, the filter or the cursor is invalid.
        NotFoundError: One of the models is not known.
        NotReadyError: There is no database yet, or the journal was not committed in time.
    """
    if request.consistency == "journal":
        inferences.wait_for_journal()
    model_ids = matching_models(inferences, request)
    query, digest = _first_query(request)
    disagreements: list[Disagreement] = []
    compared = alone = 0
    deadline_s = time.monotonic() + MAX_S
    while True:
        page = inferences.query(query)
        counterparts = on_same_images(inferences, page.inferences, model_ids)
        for inference in page.inferences:
            counterpart = counterparts.get(inference.input.hash or "")
            if counterpart is None:
                alone += 1
                continue
            compared += 1
            only_a, only_b = differences(
                inference, counterpart, score=request.score, iou=request.iou
            )
            if not (only_a or only_b):
                continue
            disagreements.append(Disagreement(inference, counterpart, only_a, only_b))
            if len(disagreements) == request.limit:
                is_last = page.cursor is None and inference is page.inferences[-1]
                cursor = None if is_last else encode_cursor(int(inference.id), digest)
                return Disagreements(disagreements, compared, alone, cursor=cursor, partial=False)
        query = msgspec.structs.replace(query, cursor=page.cursor)
        if page.cursor is None:
            return Disagreements(disagreements, compared, alone, cursor=None, partial=False)
        if compared + alone >= MAX_COMPARED or page.partial or time.monotonic() > deadline_s:
            cursor = encode_cursor(_position(query, query_digest(query)), digest)
            return Disagreements(disagreements, compared, alone, cursor=cursor, partial=True)


def _first_query(request: DisagreementsRequest) -> tuple[QueryRequest, str]:
    """Return the query of the first inferences to compare, and the digest of the cursors of a request."""
    identity = [request.a, request.b, request.where, request.score, request.iou]
    pages = QueryRequest(identity, order=request.order, cursor=request.cursor)
    digest = query_digest(pages)
    where = {"and": [{"model": request.a}, {"input.hash": {"exists": True}}, request.where or {}]}
    query = QueryRequest(where, order=request.order, limit=_BATCH)
    if request.cursor is not None:
        query = _continued(query, _position(pages, digest))
    return query, digest


def differences(
    a: StoredInference, b: StoredInference, *, score: float, iou: float
) -> tuple[list[int], list[int]]:
    """Return the positions of the predictions of each side that the other has not.

    Of a classification the best prediction counts, of other tasks those from a score on. Two are the same if their labels,
    or their answers, are; boxes must overlap, too, of oriented boxes and contours the upright boxes around them.
    """
    size_wh = a.input.width or 1, a.input.height or 1
    counted_a, counted_b = (counted_predictions(inference, score, size_wh) for inference in (a, b))
    if counted_a is None or counted_b is None:  # no predictions, such as tensors
        return [], []
    remaining = {prediction.position: prediction for prediction in counted_b}
    only_a = []
    for prediction in counted_a:
        overlaps = {
            position: _overlap(prediction.box, counterpart.box)
            for position, counterpart in remaining.items()
            if counterpart.name == prediction.name
        }
        best = max(overlaps, key=lambda position: overlaps[position], default=None)
        if best is None or overlaps[best] < iou:
            only_a.append(prediction.position)
        else:
            del remaining[best]
    return sorted(only_a), sorted(remaining)


def counted_predictions(
    inference: StoredInference, min_score: float, size_wh: tuple[int, int] = (1, 1)
) -> list[CountedPrediction] | None:
    """Return the predictions that count, by falling score, in an image of a size; None if there are no predictions."""
    try:
        predictions = list(enumerate(_decoder.decode(inference.predictions)))
    except msgspec.ValidationError:
        return None
    predictions.sort(key=lambda item: -_score(item[1]))
    if inference.task == "IMAGE_CLASSIFICATION":
        predictions = predictions[:1]
    else:
        predictions = [item for item in predictions if _score(item[1]) >= min_score]
    return [
        CountedPrediction(
            position,
            name=(prediction.get("label"), prediction.get("answer")),
            box=shape_of_json(prediction).upright_box(*size_wh),
        )
        for position, prediction in predictions
    ]


def _score(prediction: dict[str, Any]) -> float:
    score = prediction.get("score")
    return float(score) if is_number(score) else 1.0


def _overlap(first: Xyxy | None, second: Xyxy | None) -> float:
    """Return the intersection over union of two boxes; 1 if one of them has none."""
    if first is None or second is None:
        return 1.0
    (xmin, ymin, xmax, ymax), (other_xmin, other_ymin, other_xmax, other_ymax) = first, second
    width = min(xmax, other_xmax) - max(xmin, other_xmin)
    height = min(ymax, other_ymax) - max(ymin, other_ymin)
    intersection = max(width, 0.0) * max(height, 0.0)
    areas = (xmax - xmin) * (ymax - ymin) + (other_xmax - other_xmin) * (other_ymax - other_ymin)
    union = areas - intersection
    if union <= 0:  # of points and lines, which are the same in one place alone
        return float(first == second)
    return float(intersection / union)


def matching_models(inferences: InferenceReader, request: DisagreementsRequest) -> tuple[int, ...]:
    """Return the ids of the second model, after both are looked up."""
    for name in (request.a, request.b):
        inferences.check_where({"model": name})
    with inferences.snapshot() as connection:
        catalog = Catalog(connection, inferences.scope)
        ids, other_ids = (catalog.model_ids("model", [name]) for name in (request.a, request.b))
    if set(ids) & set(other_ids):
        raise same_models(request.a, request.b)
    return other_ids


def same_models(a: str, b: str) -> QueryError:
    """Return the error of a comparison of a model with itself."""
    return QueryError(
        f"expected a and b to be two models, or two versions as name@version, got {a[:80]!r} and {b[:80]!r}"
    )


def on_same_images(
    inferences: InferenceReader, page: Sequence[StoredInference], model_ids: tuple[int, ...]
) -> dict[str, StoredInference]:
    """Return the newest inference of some models on each image of a page, by its hash."""
    hashes = list({inference.input.hash: None for inference in page if inference.input.hash})
    if not hashes or not model_ids:
        return {}
    statement = _SAME_IMAGES.format(placeholders(model_ids))
    with inferences.snapshot() as connection:
        rows = execute_in(connection, statement, hashes, model_ids)
    where = {"id": {"in": [str(seq) for _, seq in rows]}}
    answers = (
        inferences.query(QueryRequest(where, limit=max(len(rows), 1))).inferences if rows else []
    )
    return {str(answer.input.hash): answer for answer in answers}


def _position(query: QueryRequest, digest: str) -> int:
    """Return the id that the cursor of a query follows."""
    id_range = cursor_range(query, digest)
    return id_range.high + 1 if query.order == "-ts" else id_range.low - 1


def _continued(query: QueryRequest, seq: int) -> QueryRequest:
    return msgspec.structs.replace(query, cursor=encode_cursor(seq, query_digest(query)))
