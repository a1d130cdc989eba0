"""Images on which two models, or two versions of one, answer differently."""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from quadriga.store.database import execute_in, placeholders
from quadriga.store.errors import QueryError
from quadriga.store.inferences import InferenceReader
from quadriga.store.query.catalog import Catalog
from quadriga.store.query.request import (
    Order,
    QueryRequest,
    cursor_range,
    decode_body,
    encode_cursor,
    query_digest,
)
from quadriga.store.records import StoredInference
from quadriga.store.rows import is_number
from quadriga.tasks.predictions import Point

MAX_COMPARED = 5000
"""Maximum inferences that one request compares."""

MAX_S = 1.0
"""Seconds after which a page is answered as far as it is filled."""

_BATCH = 200
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_SAME_IMAGES = "SELECT input_hash, max(seq) FROM inference WHERE +model_id IN ({}) AND input_hash IN ({{}}) GROUP BY input_hash"
"""Selects the newest inference on each image; the plus keeps the index of models out, which would read all of a model."""


class DisagreementsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of the images on which two models answer differently."""

    a: Annotated[str, msgspec.Meta(min_length=1)]
    """The model whose inferences are searched, as `name` or `name:version`."""
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


class _Prediction(msgspec.Struct, frozen=True):
    label: Any = None
    answer: Any = None
    score: Any = None
    xmin: Any = None
    ymin: Any = None
    xmax: Any = None
    ymax: Any = None
    cx: Any = None
    cy: Any = None
    w: Any = None
    h: Any = None
    r: Any = None
    contour: Any = None


_Box = tuple[float, float, float, float]
_decoder = msgspec.json.Decoder(list[_Prediction])


def decode_disagreements(body: bytes) -> DisagreementsRequest:
    """Decode the body of a request, as `decode_body`."""
    return decode_body(body, DisagreementsRequest)


def find_disagreements(inferences: InferenceReader, request: DisagreementsRequest) -> Disagreements:
    """Find the inferences of a model on whose images another one answered differently.

    Raises:
        QueryError: A model, the filter or the cursor is invalid.
        NotFoundError: One of the models is not known.
    """
    model_ids = matching_models(inferences, request)
    identity = [request.a, request.b, request.where, request.score, request.iou]
    pages = QueryRequest(identity, order=request.order, cursor=request.cursor)
    digest = query_digest(pages)
    where = {"and": [{"model": request.a}, {"input.hash": {"exists": True}}, request.where or {}]}
    query = QueryRequest(where, order=request.order, limit=_BATCH)
    if request.cursor is not None:
        query = _continued(query, _position(pages, digest))
    disagreements: list[Disagreement] = []
    compared = alone = 0
    deadline_s = time.monotonic() + MAX_S
    while True:
        page = inferences.query(query)
        counterparts = on_same_images(inferences, page.inferences, model_ids)
        for inference in page.inferences:
            counterpart = counterparts.get(inference.input.hash or "")
            compared, alone = compared + (counterpart is not None), alone + (counterpart is None)
            sides = counterpart and differences(
                inference, counterpart, score=request.score, iou=request.iou
            )
            if counterpart and sides and any(sides):
                disagreements.append(Disagreement(inference, counterpart, *sides))
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


def differences(
    a: StoredInference, b: StoredInference, *, score: float, iou: float
) -> tuple[list[int], list[int]]:
    """Return the positions of the predictions of each side that the other has not.

    Of a classification the best prediction counts, of other tasks those from a score on. Two are the same if their labels,
    or their answers, are; boxes must overlap, too, of oriented boxes and contours the upright boxes around them.
    """
    size_wh = a.input.width or 1, a.input.height or 1
    sides = [counted_predictions(inference, score) for inference in (a, b)]
    if sides[0] is None or sides[1] is None:  # no predictions, such as tensors
        return [], []
    remaining = dict(sides[1])
    only_a = []
    for position, prediction in sides[0]:
        overlaps = {
            other_position: _overlap(_box(prediction, size_wh), _box(counterpart, size_wh))
            for other_position, counterpart in remaining.items()
            if _name(counterpart) == _name(prediction)
        }
        best = max(overlaps, key=lambda place: overlaps[place], default=None)
        if best is None or overlaps[best] < iou:
            only_a.append(position)
        else:
            del remaining[best]
    return sorted(only_a), sorted(remaining)


def counted_predictions(
    inference: StoredInference, score: float
) -> list[tuple[int, _Prediction]] | None:
    """Return the predictions that count, with their positions, by falling score; None if there are no predictions."""
    try:
        predictions = list(enumerate(_decoder.decode(inference.predictions)))
    except msgspec.ValidationError:
        return None
    predictions.sort(key=lambda item: -_score(item[1]))
    if inference.task == "IMAGE_CLASSIFICATION":
        return predictions[:1]
    return [item for item in predictions if _score(item[1]) >= score]


def _score(prediction: _Prediction) -> float:
    return float(prediction.score) if is_number(prediction.score) else 1.0


def _name(prediction: _Prediction) -> tuple[Any, Any]:
    return prediction.label, prediction.answer


def _box(prediction: _Prediction, size_wh: tuple[int, int]) -> _Box | None:
    """Return the upright box around a prediction, in pixels; None if it has no place."""
    box = tuple(getattr(prediction, name) for name in _CORNERS)
    if all(is_number(value) for value in box):
        return box
    oriented = prediction.cx, prediction.cy, prediction.w, prediction.h, prediction.r
    if all(is_number(value) for value in oriented):
        cx, cy, w, h, r = oriented
        centre, sides = (cx * size_wh[0], cy * size_wh[1]), (w * size_wh[0], h * size_wh[1])
        cosine, sine = abs(math.cos(r)), abs(math.sin(r))
        reach = (
            (sides[0] * cosine + sides[1] * sine) / 2,
            (sides[0] * sine + sides[1] * cosine) / 2,
        )
        return (
            centre[0] - reach[0],
            centre[1] - reach[1],
            centre[0] + reach[0],
            centre[1] + reach[1],
        )
    with suppress(msgspec.ValidationError):
        rings = msgspec.convert(prediction.contour, list[list[Point]])
        points = [point for ring in rings for point in ring]
        if points:
            xs, ys = [point.x for point in points], [point.y for point in points]
            return min(xs), min(ys), max(xs), max(ys)
    return None


def _overlap(first: _Box | None, second: _Box | None) -> float:
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
        inferences.names.check_filter(QueryRequest({"model": name}).parse_filter())
    with inferences.snapshot() as connection:
        catalog = Catalog(connection, inferences.scope)
        ids, other_ids = (catalog.model_ids("model", [name]) for name in (request.a, request.b))
    if set(ids) & set(other_ids):
        raise QueryError(
            f"expected a and b to be two models, or two versions as name:version, got {request.a[:80]!r} and "
            f"{request.b[:80]!r}"
        )
    return other_ids


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
