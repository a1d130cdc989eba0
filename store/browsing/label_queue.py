"""What to label next: inferences of a filter without ground truth, those first from which most is learned."""

import math
from hashlib import blake2b
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from quadriga.store.database.rows import decode_label_scores, is_number
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.query.sql.search import IdRange, find_first

CONSIDERED = 1000
"""Maximum inferences that are put in order: the newest matches without ground truth."""

_NOTHING_FOUND = 0.5
"""Score among which an image comes where nothing was found, as `quadriga select` weighs it: after what is less sure, so that many
empty images hide no doubtful object, and before what is more sure, as there something may have been missed."""

_FIRST_FAILED_STATUS = 400
_SELECT = (
    "SELECT i.seq, i.status, i.predictions FROM ({}) AS m CROSS JOIN inference AS i"
    " WHERE i.seq = m.seq"
)

QueueOrder = Literal["score", "margin", "random"]
Reason = Literal["score", "margin", "random", "nothing", "alone"]


class LabelQueueRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of what to label next."""

    where: Any = None
    """A filter, as of a query."""
    by: QueueOrder = "score"
    """Lowest best score first, lowest margin between the two best labels first, or at random, always in the same order."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    after: str | None = None
    """Id of an inference: those that come after it in the order are answered."""


class QueuedInference(msgspec.Struct, frozen=True):
    """An inference to label, and why it comes where it does."""

    id: str
    reason: Reason
    """What it is ordered by; `nothing` if nothing was predicted, `alone` if there is no second label to compare with."""
    value: float | None
    """The score, or the margin; None without one."""
    labels: list[str]
    """The two best labels, the best first; fewer if there are not so many."""


class LabelQueue(msgspec.Struct, frozen=True):
    """What to label next."""

    inferences: list[QueuedInference]
    considered: int
    """Number of inferences that were put in order."""
    partial: bool
    """Whether there may be more matches than were put in order."""


class _Place(NamedTuple):
    """Place of an inference in the order."""

    is_last: bool
    value: float
    seq: int


def find_label_queue(inferences: InferenceReader, request: LabelQueueRequest) -> LabelQueue:
    """Return what to label next: of the newest matches without ground truth that did not fail.

    Raises:
        QueryError: The filter or the id is invalid.
        NotFoundError: The filter compares with a model that is not known, or there is no inference of the id.
    """
    without_truth = {"and": [request.where or {}, {"ground_truth": {"exists": False}}]}
    tree = inferences.read_filter(QueryRequest(where=without_truth))
    start = None if request.after is None else _place_of(inferences, request.after, request.by)
    with inferences.snapshot() as connection:
        rows, resume_id = find_first(
            connection,
            inferences.planner(connection, tree),
            descending=True,
            limit=CONSIDERED + 1,
            id_range=IdRange(),
            budget=inferences.budget,
            select=_SELECT,
        )
    newest = sorted(rows, key=lambda row: -int(row[0]))[:CONSIDERED]
    queued = [
        _queued(int(seq), predictions, request.by)
        for seq, status, predictions in newest
        if status < _FIRST_FAILED_STATUS
    ]
    ordered = sorted(queued, key=lambda pair: pair[0])
    following = [candidate for place, candidate in ordered if start is None or place > start]
    return LabelQueue(
        inferences=following[: request.limit],
        considered=len(queued),
        partial=resume_id is not None or len(rows) > CONSIDERED,
    )


def _place_of(inferences: InferenceReader, inference_id: str, by: QueueOrder) -> _Place:
    inference = inferences.get(inference_id)
    return _queued(int(inference.id), inference.predictions, by)[0]


def _queued(seq: int, predictions: Any, by: QueueOrder) -> tuple[_Place, QueuedInference]:
    """Return an inference with its place; `predictions` is JSON."""
    best = best_scores(predictions)
    labels = [label for label, _ in best[:2]]
    scores = [score for _, score in best[:2]]
    reason: Reason = by
    value: float | None = None
    if by == "random":
        number = int.from_bytes(blake2b(str(seq).encode(), digest_size=6).digest())
        return _Place(False, float(number), seq), QueuedInference(str(seq), by, None, labels)
    place: float | None = None
    if not best:
        reason = "nothing"
        is_empty = by == "score" and decode_label_scores(predictions) == []
        place = _NOTHING_FOUND if is_empty else None
    elif by == "score":
        value = scores[0]
    elif len(best) == 1:
        reason = "alone"
    else:
        value = scores[0] - scores[1]
    place = place if value is None else value
    return _Place(place is None, place or 0.0, seq), QueuedInference(
        str(seq), reason, value, labels
    )


def best_scores(predictions: Any) -> list[tuple[str, float]]:
    """Return the best score of each label, the best first; none of what is no list of predictions."""
    best: dict[str, float] = {}
    for prediction in decode_label_scores(predictions) or []:
        if isinstance(prediction.label, str) and is_number(prediction.score):
            best[prediction.label] = max(
                float(prediction.score), best.get(prediction.label, -math.inf)
            )
    return sorted(best.items(), key=lambda pair: -pair[1])
