"""Two models, or two versions of one, over the images that both answered: how often and where they differ, and how fast both are.

A replay is compared with the inferences that it is a replay of. Without one, inferences on the same image are a pair.
"""

import heapq
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from quadriga.store.database.database import execute, execute_in, placeholders
from quadriga.store.database.rows import decode_label_scores, is_number
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.names import Catalog, split_version
from quadriga.store.query.request import (
    Order,
    QueryRequest,
    cursor_range,
    encode_cursor,
    query_digest,
)
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import (
    REPLAY_SUFFIX,
    SHADOW_SUFFIX,
    StoredInference,
    is_replay,
    live_name,
)
from quadriga.tasks.predictions import Xyxy, shape_of_json

MAX_PAIRS = 5000
"""Maximum pairs of one comparison: the newest."""

MAX_S = 3.0
"""Seconds after which is answered what was compared so far."""

MAX_COMPARED = 5000
"""Maximum inferences that one page of disagreements compares."""

MAX_PAGE_S = 1.0
"""Seconds after which a page of disagreements is answered as far as it is filled."""

MAX_LABELS = 100
PairedBy = Literal["replay", "shadow", "image"]
_Pairs = Iterable[tuple[StoredInference, StoredInference]]
_BATCH = 500
_MAX_COUNTED = 100_000  # by an index: some 5 ms
_Z = 1.959964  # of an interval of 95 %
_IMAGES = "SELECT seq, input_hash FROM inference WHERE seq IN ({})"

_SAME_IMAGES = "SELECT input_hash, max(seq) FROM inference WHERE +model_id IN ({}) AND input_hash IN ({{}}) GROUP BY input_hash"
"""Selects the newest inference on each image; the plus keeps the index of models out, which would read all of a model."""


class _TwoModels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Models and thresholds of both requests."""

    a: Annotated[str, msgspec.Meta(min_length=1)]
    """The first model, as `name` or `name@version`; the one whose inferences are searched for disagreements."""
    b: Annotated[str, msgspec.Meta(min_length=1)]
    """The model that it is compared with, which may have been replayed on its images."""
    where: Any = None
    """A filter of the inferences of `a`, as of a query."""
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    """Score from which predictions count; those without a score count, too."""
    iou: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    """Overlap from which two boxes of one label are the same."""


class ComparisonRequest(_TwoModels, frozen=True, forbid_unknown_fields=True):
    """Request to compare two models."""

    limit: Annotated[int, msgspec.Meta(ge=0, le=200)] = 20
    """Maximum number of disagreements that are listed."""
    consistency: Literal["journal"] | None = None
    """`journal` waits until everything acknowledged so far is compared."""


class DisagreementsRequest(_TwoModels, frozen=True, forbid_unknown_fields=True):
    """Request of the images on which two models answer differently."""

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


class Quantiles(msgspec.Struct, frozen=True):
    """Quantiles of some numbers."""

    p05: float
    p50: float
    p95: float


class ComparedSide(msgspec.Struct, frozen=True, kw_only=True):
    """What one of the two said on the images of all pairs."""

    model: str
    """Name under which its inferences are stored, that of replays for a replay."""
    version: str | None
    """Version; null if several answered."""
    failed: int
    """Number of inferences that it failed to answer."""
    latency_ms: Quantiles | None
    """Times of its answers; those of a replay were measured while the job ran, beside other load than the original's."""
    scores: Quantiles | None
    """Scores of all predictions; null without any."""
    predictions: int


class LabelDifference(msgspec.Struct, frozen=True):
    """How often both predict a label, over the images of all pairs."""

    label: str
    a: int
    b: int


class ModelComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What two models say on the same images."""

    a: ComparedSide
    b: ComparedSide
    paired_by: PairedBy
    """Whether pairs are of an inference and its replay (in a store of 0.2.0 its shadow), or of inferences on the same image."""
    pairs: int
    """Pairs that both answered without a failure."""
    different: int
    """Pairs of which one has a prediction that the other has not."""
    share: float | None
    """Share of the pairs that differ; null without pairs."""
    share_ci95: tuple[float, float] | None
    """Interval of the share, by Wilson's score."""
    labels: list[LabelDifference]
    """The labels of the predictions that `differences` compares, those with the largest difference first."""
    disagreements: list[Disagreement]
    """The largest disagreements first: by the sum of the scores of predictions that only one of the two has."""
    partial: bool
    """Whether there are older pairs that were not compared."""


class CountedPrediction(NamedTuple):
    """A prediction that counts, by its position in the list."""

    position: int
    name: tuple[Any, Any]
    """Label and answer."""
    score: float
    """Score; 1 without one."""
    box: Xyxy | None
    """The upright box around it, in pixels; None if it has no place."""


_decoder = msgspec.json.Decoder(list[dict[str, Any]])


class _Side:
    """Adds up what one of the two says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: set[str] = set()
        self.failed = 0
        self.latencies: list[float] = []
        self.scores: list[float] = []
        self.labels: Counter[str] = Counter()

    def add(self, inference: StoredInference, counted: Sequence[CountedPrediction]) -> None:
        """Add an inference of a pair that both have answered, and its predictions that count."""
        self.latencies.append(inference.latency_ms)
        scores = (entry.score for entry in decode_label_scores(inference.predictions) or ())
        self.scores.extend(float(score) for score in scores if is_number(score))
        labels = (prediction.name[0] for prediction in counted)
        self.labels.update(label for label in labels if isinstance(label, str))

    def compared(self) -> ComparedSide:
        return ComparedSide(
            model=self.name,
            version=next(iter(self.versions)) if len(self.versions) == 1 else None,
            failed=self.failed,
            latency_ms=_quantiles(self.latencies),
            scores=_quantiles(self.scores),
            predictions=len(self.scores),
        )


def compare(inferences: InferenceReader, request: ComparisonRequest) -> ModelComparison:
    """Compare two models on what both answered.

    Raises:
        QueryError: A model or the filter is invalid, or both are the same.
        NotFoundError: One of the models is not known.
        NotReadyError: There is no database yet, or the journal was not committed in time.
    """
    live_a, live_b = (_live(text) for text in (request.a, request.b))
    if live_a.lower() == live_b.lower():
        raise _same_models(request.a, request.b)
    if request.consistency == "journal":
        inferences.wait_for_journal()
    _check_names(inferences, live_a, live_b)
    deadline_s = time.monotonic() + MAX_S
    ways: list[tuple[PairedBy, Any, tuple[str, str]]] = []
    suffixes: tuple[tuple[PairedBy, str], ...] = (("replay", REPLAY_SUFFIX), ("shadow", SHADOW_SUFFIX))  # fmt: skip
    for kind, suffix in suffixes:
        replay_a, replay_b = _replay(live_a, suffix), _replay(live_b, suffix)
        of_a = _linked(inferences, live_a, replay_b, request.where, deadline_s)
        of_b = _linked(inferences, live_b, replay_a, request.where, deadline_s)
        ways += [
            (kind, of_a, (live_a, replay_b)),
            (kind, ((b, a) for a, b in of_b), (replay_a, live_b)),
        ]
    for paired_by, pairs, names in ways:
        first = next(pairs, None)
        if first is not None:
            return compare_pairs(chain([first], pairs), request, names, paired_by, deadline_s)
    same_images = _same_images(inferences, request, live_a, live_b, deadline_s)
    return compare_pairs(same_images, request, (live_a, live_b), "image", deadline_s)


def compare_pairs(
    pairs: _Pairs,
    request: ComparisonRequest,
    names: tuple[str, str],
    paired_by: PairedBy,
    deadline_s: float = math.inf,
    *,
    max_pairs: int = MAX_PAIRS,
) -> ModelComparison:
    """Compare the inferences of pairs, until a time of `time.monotonic`; `names` are those of both sides.

    Pairs that end after that time are taken for partial: who looks for them looks at the clock, too.
    """
    a, b = _Side(_name(names[0])), _Side(_name(names[1]))
    compared = different = 0
    is_partial = False
    largest: list[tuple[float, int, Disagreement]] = []  # a heap: size, negative number of the pair
    for number, (of_a, of_b) in enumerate(pairs):
        if number >= max_pairs or time.monotonic() > deadline_s:
            is_partial = True
            break
        for side, inference in ((a, of_a), (b, of_b)):
            side.versions.add(inference.model.version)
            side.failed += inference.status != 200
        if of_a.status != 200 or of_b.status != 200:
            continue
        counted_a, counted_b = _counted(of_a, of_b, request.score)
        a.add(of_a, counted_a)
        b.add(of_b, counted_b)
        compared += 1
        only_a, only_b = _without_counterpart(counted_a, counted_b, request.iou)
        if not (only_a or only_b):
            continue
        different += 1
        size = sum(prediction.score for prediction in (*only_a, *only_b))
        disagreement = Disagreement(of_a, of_b, _positions(only_a), _positions(only_b))
        heapq.heappush(largest, (size, -number, disagreement))
        if len(largest) > request.limit:
            heapq.heappop(largest)
    is_partial = is_partial or time.monotonic() > deadline_s
    largest.sort(key=lambda entry: entry[:2], reverse=True)
    labels = [
        LabelDifference(label, a.labels[label], b.labels[label])
        for label in a.labels.keys() | b.labels.keys()
    ]
    labels.sort(key=lambda count: (-abs(count.a - count.b), -max(count.a, count.b), count.label))
    return ModelComparison(
        a=a.compared(),
        b=b.compared(),
        paired_by=paired_by,
        pairs=compared,
        different=different,
        share=different / compared if compared else None,
        share_ci95=_interval(different, compared),
        labels=labels[:MAX_LABELS],
        disagreements=[disagreement for _, _, disagreement in largest],
        partial=is_partial,
    )


def _linked(
    inferences: InferenceReader, live: str, replayed: str, where: Any, deadline_s: float
) -> Iterator[tuple[StoredInference, StoredInference]]:
    """Yield the inferences of a model with their replays, or shadows, of a name, the newest first, until a time."""
    condition = {"and": [{"model": replayed}, *([where] if where else [])]}
    if _name(replayed).lower() not in {name.lower() for name in inferences.stored_names()}:
        return
    name, version = split_version(live)
    for page in inferences.pages(QueryRequest(condition, limit=_BATCH)):
        if time.monotonic() > deadline_s:
            return
        ids = {replay.request_id for replay in page.inferences}
        by_id = inferences.by_id(id_ for id_ in ids if id_.isdecimal() and len(id_) < 20)
        for replay in page.inferences:
            inference = by_id.get(replay.request_id)
            if inference is not None and _is_of(inference, name, version):
                yield inference, replay


def _same_images(
    inferences: InferenceReader,
    request: ComparisonRequest,
    live_a: str,
    live_b: str,
    deadline_s: float,
) -> Iterator[tuple[StoredInference, StoredInference]]:
    """Yield the newest inferences of both models on each image that both answered, until a time.

    The inferences of the model that has fewer are searched, the newest first; those of the first model if there is a filter,
    which is of its inferences.
    """
    ids_a, ids_b = _model_ids(inferences, live_a, live_b)
    is_swapped = not request.where and _has_fewer(inferences, ids_b, ids_a)
    searched, other_ids = (live_b, ids_a) if is_swapped else (live_a, ids_b)
    seen: set[str] = set()
    where = _on_images(searched, request.where)
    for ids in inferences.matching_ids(where, descending=True):
        for start in range(0, len(ids), _BATCH):
            if time.monotonic() > deadline_s:
                return
            new: dict[int, int] = {}
            shared = _shared_images(inferences, ids[start : start + _BATCH], other_ids)
            for id_, (image, other_id) in shared.items():
                if image not in seen:  # a pair for each image, of the newest
                    seen.add(image)
                    new[id_] = other_id
            for inference, other in _read_pairs(inferences, new).values():
                yield (other, inference) if is_swapped else (inference, other)


def _shared_images(
    inferences: InferenceReader, ids: Sequence[int], model_ids: tuple[int, ...]
) -> dict[int, tuple[str, int]]:
    """Return those of some inferences on whose images models have one, too, in their order: the hash, and the id of the newest."""
    if not model_ids:
        return {}
    with inferences.snapshot() as connection:
        images = dict(execute_in(connection, _IMAGES, sorted(ids)))
        statement = _SAME_IMAGES.format(placeholders(model_ids))
        others = dict(execute_in(connection, statement, [*{*images.values()}], model_ids))
    shared = {id_: (image, others.get(image)) for id_ in ids if (image := images.get(id_))}
    return {id_: (image, other) for id_, (image, other) in shared.items() if other is not None}


def _read_pairs(
    inferences: InferenceReader, pairs: dict[int, int]
) -> dict[int, tuple[StoredInference, StoredInference]]:
    """Return the inferences of pairs of ids, by the first of them, but for those that are gone."""
    by_id = inferences.by_id(str(id_) for pair in pairs.items() for id_ in pair)
    return {
        first: (by_id[str(first)], by_id[str(second)])
        for first, second in pairs.items()
        if str(first) in by_id and str(second) in by_id
    }


def find_disagreements(inferences: InferenceReader, request: DisagreementsRequest) -> Disagreements:
    """Find the inferences of a model on whose images another one answered differently.

    Raises:
        QueryError: A model, the filter or the cursor is invalid.
        NotFoundError: One of the models is not known.
        NotReadyError: There is no database yet, or the journal was not committed in time.
    """
    if request.consistency == "journal":
        inferences.wait_for_journal()
    _, model_ids = _model_ids(inferences, request.a, request.b)
    identity = [request.a, request.b, request.where, request.score, request.iou]
    pages = QueryRequest(identity, order=request.order, cursor=request.cursor)
    digest = query_digest(pages)
    disagreements: list[Disagreement] = []
    compared = alone = 0
    deadline_s = time.monotonic() + MAX_PAGE_S
    batches = inferences.id_batches(
        _on_images(request.a, request.where),
        id_range=cursor_range(pages, digest),
        descending=request.order == "-ts",
    )
    for ids, resume_id in batches:
        for start in range(0, len(ids), _BATCH):
            batch = ids[start : start + _BATCH]
            shared = _shared_images(inferences, batch, model_ids)
            pairs = _read_pairs(inferences, {id_: other for id_, (_, other) in shared.items()})
            for id_ in batch:
                if id_ not in pairs:
                    alone += 1
                    continue
                compared += 1
                only_a, only_b = differences(*pairs[id_], score=request.score, iou=request.iou)
                if not (only_a or only_b):
                    continue
                disagreements.append(Disagreement(*pairs[id_], only_a, only_b))
                if len(disagreements) == request.limit:
                    is_last = resume_id is None and id_ == ids[-1]
                    cursor = None if is_last else encode_cursor(id_, digest)
                    return Disagreements(
                        disagreements, compared, alone, cursor=cursor, partial=False
                    )
            follows = batch[-1] if batch[-1] != ids[-1] else resume_id
            is_over = compared + alone >= MAX_COMPARED or time.monotonic() > deadline_s
            if follows is not None and is_over:
                cursor = encode_cursor(follows, digest)
                return Disagreements(disagreements, compared, alone, cursor=cursor, partial=True)
        if not ids and resume_id is not None and time.monotonic() > deadline_s:
            cursor = encode_cursor(resume_id, digest)
            return Disagreements(disagreements, compared, alone, cursor=cursor, partial=True)
    return Disagreements(disagreements, compared, alone, cursor=None, partial=False)


def _on_images(model: str, where: Any) -> dict[str, Any]:
    """Return the filter of the inferences of a model that have an image."""
    return {"and": [{"model": model}, {"input.hash": {"exists": True}}, where or {}]}


def _model_ids(
    inferences: InferenceReader, a: str, b: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids of two models, after both are looked up."""
    _check_names(inferences, a, b)
    with inferences.snapshot() as connection:
        catalog = Catalog(connection, inferences.scope)
        ids, other_ids = (catalog.model_ids("model", [name]) for name in (a, b))
    if set(ids) & set(other_ids):
        raise _same_models(a, b)
    return ids, other_ids


def _check_names(inferences: InferenceReader, *names: str) -> None:
    for name in names:
        inferences.check_where({"model": name})


def _same_models(a: str, b: str) -> QueryError:
    """Return the error of a comparison of a model with itself."""
    return QueryError(
        f"expected a and b to be two models, or two versions as name@version, got {a[:80]!r} and {b[:80]!r}"
    )


def _has_fewer(inferences: InferenceReader, ids: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Check whether models have fewer inferences than others, by counting up to as many as decide."""
    if not (ids and others):
        return not ids
    statement = "SELECT count(*) FROM (SELECT 1 FROM inference WHERE model_id IN ({}) LIMIT ?) AS c"
    with inferences.snapshot() as connection:
        count, other_count = (
            execute(
                connection, statement.format(placeholders(model_ids)), (*model_ids, _MAX_COUNTED)
            ).scalar_one()
            for model_ids in (ids, others)
        )
    return int(count) < int(other_count)


def _live(text: str) -> str:
    """Return what a client calls a version, with the name of its model even if it names replays."""
    name, version = split_version(text)
    return f"{live_name(name)}:{version}" if version else live_name(name)


def _replay(live: str, suffix: str) -> str:
    name, version = split_version(live)
    return f"{name}{suffix}:{version}" if version else f"{name}{suffix}"


def _name(text: str) -> str:
    return split_version(text)[0]


def _is_of(inference: StoredInference, name: str, version: str) -> bool:
    model = inference.model
    if is_replay(model.name) or version not in ("", model.version):
        return False
    return model.name.lower() in (name.lower(), name.lower().removeprefix("m-"))


def differences(
    a: StoredInference, b: StoredInference, *, score: float, iou: float
) -> tuple[list[int], list[int]]:
    """Return the positions of the predictions of each side that the other has not.

    Of a classification the best prediction counts, of other tasks those from a score on. Two are the same if their labels,
    or their answers, are; boxes must overlap, too, of oriented boxes and contours the upright boxes around them.
    """
    only_a, only_b = _without_counterpart(*_counted(a, b, score), iou)
    return _positions(only_a), _positions(only_b)


def _positions(predictions: Iterable[CountedPrediction]) -> list[int]:
    return sorted(prediction.position for prediction in predictions)


def _without_counterpart(
    counted_a: Sequence[CountedPrediction], counted_b: Sequence[CountedPrediction], iou: float
) -> tuple[list[CountedPrediction], list[CountedPrediction]]:
    """Return the predictions of each side that the other has not."""
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
            only_a.append(prediction)
        else:
            del remaining[best]
    return only_a, [*remaining.values()]


def _counted(
    a: StoredInference, b: StoredInference, min_score: float
) -> tuple[list[CountedPrediction], list[CountedPrediction]]:
    """Return the predictions of both that count; none if one has no predictions, such as tensors."""
    size_wh = a.input.width or 1, a.input.height or 1
    try:
        return (
            _counted_predictions(a, min_score, size_wh),
            _counted_predictions(b, min_score, size_wh),
        )
    except msgspec.ValidationError:
        return [], []


def _counted_predictions(
    inference: StoredInference, min_score: float, size_wh: tuple[int, int]
) -> list[CountedPrediction]:
    """Return the predictions that count, by falling score, in an image of a size."""
    predictions = list(enumerate(_decoder.decode(inference.predictions)))
    predictions.sort(key=lambda item: -_score(item[1]))
    if inference.task == "IMAGE_CLASSIFICATION":
        predictions = predictions[:1]
    else:
        predictions = [item for item in predictions if _score(item[1]) >= min_score]
    return [
        CountedPrediction(
            position,
            name=(prediction.get("label"), prediction.get("answer")),
            score=_score(prediction),
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


def _quantiles(values: list[float]) -> Quantiles | None:
    if not values:
        return None
    ordered = sorted(values)
    at = [ordered[math.ceil(share * len(ordered)) - 1] for share in (0.05, 0.5, 0.95)]
    return Quantiles(*(round(value, 6) for value in at))


def _interval(count: int, n: int) -> tuple[float, float] | None:
    """Return Wilson's interval of a share.

    Source: Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    if not n:
        return None
    share, z2 = count / n, _Z * _Z
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(centre - half, 0.0), min(centre + half, 1.0)
