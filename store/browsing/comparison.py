"""Two models, or two versions of one, over the images that both answered: how often and where they differ, and how fast both are.

A replay is compared with the inferences that it is a replay of. Without one, inferences on the same image are a pair.
"""

import heapq
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec

from quadriga.store.browsing.disagreements import (
    Disagreement,
    DisagreementsRequest,
    counted_predictions,
    differences,
    matching_models,
    on_same_images,
    same_models,
)
from quadriga.store.database.database import execute, placeholders
from quadriga.store.database.rows import decode_label_scores, is_number
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.query.sql.catalog import split_version
from quadriga.store.records.records import (
    REPLAY_SUFFIX,
    SHADOW_SUFFIX,
    StoredInference,
    is_replay,
    live_name,
)

MAX_PAIRS = 5000
"""Maximum pairs of one request: the newest."""

MAX_S = 3.0
"""Seconds after which is answered what was compared so far."""

MAX_LABELS = 100
PairedBy = Literal["replay", "shadow", "image"]
_BATCH = 200
_MAX_COUNTED = 100_000  # by an index: some 5 ms
_Z = 1.959964  # of an interval of 95 %


class ComparisonRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to compare two models."""

    a: Annotated[str, msgspec.Meta(min_length=1)]
    """The first model, as `name` or `name@version`."""
    b: Annotated[str, msgspec.Meta(min_length=1)]
    """The model that it is compared with, which may have been replayed on its images."""
    where: Any = None
    """A filter of the inferences, as of a query."""
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    """Score from which predictions count; those without a score count, too."""
    iou: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    """Overlap from which two boxes of one label are the same."""
    limit: Annotated[int, msgspec.Meta(ge=0, le=200)] = 20
    """Maximum number of disagreements that are listed."""
    consistency: Literal["journal"] | None = None
    """`journal` waits until everything acknowledged so far is compared."""


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


class _Side:
    """Adds up what one of the two says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: set[str] = set()
        self.failed = 0
        self.latencies: list[float] = []
        self.scores: list[float] = []
        self.labels: Counter[str] = Counter()

    def add(self, inference: StoredInference, score: float) -> None:
        """Add an inference of a pair that both have answered."""
        self.latencies.append(inference.latency_ms)
        for prediction in decode_label_scores(inference.predictions) or ():
            value = prediction.score
            if is_number(value):
                self.scores.append(float(value))
        self.labels.update(
            label
            for label, _ in (p.name for p in counted_predictions(inference, score) or ())
            if isinstance(label, str)
        )

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
        raise same_models(request.a, request.b)
    if request.consistency == "journal":
        inferences.wait_for_journal()
    for name in (live_a, live_b):
        inferences.check_where({"model": name})
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
    pairs: Iterable[tuple[StoredInference, StoredInference]],
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
    comparison, is_partial = _Comparison(request, names), False
    for number, (a, b) in enumerate(pairs):
        if number >= max_pairs or time.monotonic() > deadline_s:
            is_partial = True
            break
        comparison.add(a, b)
    is_partial = is_partial or time.monotonic() > deadline_s
    return comparison.result(paired_by, is_partial=is_partial)


class _Comparison:
    """Adds up pairs of inferences on the same images."""

    def __init__(self, request: ComparisonRequest, names: tuple[str, str]) -> None:
        self._request = request
        self._a, self._b = _Side(_name(names[0])), _Side(_name(names[1]))
        self._seen = self._compared = self._different = 0
        self._largest: list[tuple[float, int, Disagreement]] = []
        """A heap of the largest disagreements, each with its size and the negative number of its pair."""

    def add(self, a: StoredInference, b: StoredInference) -> None:
        """Add a pair."""
        self._seen += 1
        for side, inference in ((self._a, a), (self._b, b)):
            side.versions.add(inference.model.version)
            side.failed += inference.status != 200
        if a.status != 200 or b.status != 200:
            return
        request = self._request
        self._a.add(a, request.score)
        self._b.add(b, request.score)
        self._compared += 1
        only_a, only_b = differences(a, b, score=request.score, iou=request.iou)
        if not (only_a or only_b):
            return
        self._different += 1
        if request.limit:
            size = _scores_at(a, only_a) + _scores_at(b, only_b)
            heapq.heappush(self._largest, (size, -self._seen, Disagreement(a, b, only_a, only_b)))
            if len(self._largest) > request.limit:
                heapq.heappop(self._largest)

    def result(self, paired_by: PairedBy, *, is_partial: bool) -> ModelComparison:
        """Return what the two say on the images of all pairs."""
        a, b = self._a.labels, self._b.labels
        labels = [LabelDifference(label, a[label], b[label]) for label in a.keys() | b.keys()]
        labels.sort(
            key=lambda count: (-abs(count.a - count.b), -max(count.a, count.b), count.label)
        )
        largest = sorted(self._largest, key=lambda entry: entry[:2], reverse=True)
        return ModelComparison(
            a=self._a.compared(),
            b=self._b.compared(),
            paired_by=paired_by,
            pairs=self._compared,
            different=self._different,
            share=self._different / self._compared if self._compared else None,
            share_ci95=_interval(self._different, self._compared),
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
        live_ids = [id_ for id_ in ids if id_.isdecimal() and len(id_) < 20]
        if not live_ids:
            continue
        query = QueryRequest({"id": {"in": live_ids}}, limit=len(live_ids))
        by_id = {inference.id: inference for inference in inferences.query(query).inferences}
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
    ids_b, ids_a = (
        matching_models(inferences, DisagreementsRequest(*names))
        for names in ((live_a, live_b), (live_b, live_a))
    )
    is_swapped = not request.where and _has_fewer(inferences, ids_b, ids_a)
    searched, other_ids = (live_b, ids_a) if is_swapped else (live_a, ids_b)
    seen: set[str] = set()
    conditions = [{"model": searched}, {"input.hash": {"exists": True}}]
    where = {"and": [*conditions, *([request.where] if request.where else [])]}
    for page in inferences.pages(QueryRequest(where, limit=_BATCH)):
        if time.monotonic() > deadline_s:
            return
        others = on_same_images(inferences, page.inferences, other_ids)
        for inference in page.inferences:
            image = inference.input.hash or ""
            if image in others and image not in seen:
                seen.add(image)  # a pair for each image
                yield (others[image], inference) if is_swapped else (inference, others[image])


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


def _scores_at(inference: StoredInference, positions: list[int]) -> float:
    """Return the sum of the scores of some predictions, 1 for those without one."""
    predictions = list(decode_label_scores(inference.predictions) or ())
    scores = [predictions[position].score for position in positions if position < len(predictions)]
    return sum(float(score) if is_number(score) else 1.0 for score in scores)


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
