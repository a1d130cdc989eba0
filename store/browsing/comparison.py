"""Two models, or two versions of one, over the images that both answered: how often and where they differ, and how fast both are.

A shadow is compared with the live inferences that it is linked to. Without a shadow, inferences on the same image are a pair.
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
from quadriga.store.inferences import InferenceReader
from quadriga.store.query.catalog import split_version
from quadriga.store.query.request import QueryRequest
from quadriga.store.records import StoredInference
from quadriga.store.rows import decode_label_scores, is_number
from quadriga.store.shadows import is_shadow, live_name, shadow_name

MAX_PAIRS = 5000
"""Maximum pairs of one request: the newest."""

MAX_S = 3.0
"""Seconds after which is answered what was compared so far."""

MAX_LABELS = 100
_BATCH = 200
_Z = 1.959964  # of an interval of 95 %


class ComparisonRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to compare two models."""

    a: Annotated[str, msgspec.Meta(min_length=1)]
    """The first model, as `name` or `name@version`."""
    b: Annotated[str, msgspec.Meta(min_length=1)]
    """The model that it is compared with, which may have answered as its shadow."""
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
    """Name under which its inferences are stored, that of the shadow for a shadow."""
    version: str | None
    """Version; null if several answered."""
    failed: int
    """Number of inferences that it failed to answer."""
    latency_ms: Quantiles | None
    """Times of its answers; those of a shadow include waiting for a processor, as it has a low priority."""
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
    paired_by: Literal["shadow", "image"]
    """Whether pairs are of a shadow and its live inference, or of inferences on the same image."""
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
        inferences.names.check_filter(QueryRequest({"model": name}).parse_filter())
    deadline_s = time.monotonic() + MAX_S
    ways: list[tuple[Literal["shadow", "image"], Any, tuple[str, str]]] = [
        ("shadow", _linked(inferences, live_a, live_b, request.where), (live_a, _shadow(live_b))),
        (
            "shadow",
            ((b, a) for a, b in _linked(inferences, live_b, live_a, request.where)),
            (_shadow(live_a), live_b),
        ),
        ("image", _same_images(inferences, request, live_a, live_b), (live_a, live_b)),
    ]
    for paired_by, pairs, names in ways:
        first = next(pairs, None)
        if first is not None or paired_by == "image":
            comparison = _Comparison(request, names)
            is_partial = first is not None and comparison.add_all(chain([first], pairs), deadline_s)
            return comparison.result(paired_by, is_partial=is_partial)
    raise AssertionError("the last way answers in any case")


class _Comparison:
    """Adds up pairs of inferences on the same images."""

    def __init__(self, request: ComparisonRequest, names: tuple[str, str]) -> None:
        self._request = request
        self._a, self._b = _Side(_name(names[0])), _Side(_name(names[1]))
        self._seen = self._compared = self._different = 0
        self._largest: list[tuple[float, int, Disagreement]] = []
        """A heap of the largest disagreements, each with its size and the negative number of its pair."""

    def add_all(
        self, pairs: Iterable[tuple[StoredInference, StoredInference]], deadline_s: float
    ) -> bool:
        """Add pairs; return whether a limit left out the last ones."""
        for a, b in pairs:
            if self._seen >= MAX_PAIRS or time.monotonic() > deadline_s:
                return True
            self._add(a, b)
        return False

    def _add(self, a: StoredInference, b: StoredInference) -> None:
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

    def result(self, paired_by: Literal["shadow", "image"], *, is_partial: bool) -> ModelComparison:
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
    inferences: InferenceReader, live: str, shadowed: str, where: Any
) -> Iterator[tuple[StoredInference, StoredInference]]:
    """Yield the inferences of a model with those that a shadow made of the same requests, the newest first."""
    condition = {"and": [{"model": _shadow(shadowed)}, *([where] if where else [])]}
    if _name(_shadow(shadowed)) not in _stored(inferences):
        return
    name, version = split_version(live)
    for page in inferences.pages(QueryRequest(condition, limit=_BATCH)):
        ids = {shadow.request_id for shadow in page.inferences}
        live_ids = [id_ for id_ in ids if id_.isdecimal() and len(id_) < 20]
        if not live_ids:
            continue
        query = QueryRequest({"id": {"in": live_ids}}, limit=len(live_ids))
        by_id = {inference.id: inference for inference in inferences.query(query).inferences}
        for shadow in page.inferences:
            inference = by_id.get(shadow.request_id)
            if inference is not None and _is_of(inference, name, version):
                yield inference, shadow


def _same_images(
    inferences: InferenceReader, request: ComparisonRequest, live_a: str, live_b: str
) -> Iterator[tuple[StoredInference, StoredInference]]:
    """Yield the inferences of the first model with the newest ones of the second on the same images, the newest first."""
    model_ids = matching_models(inferences, DisagreementsRequest(live_a, live_b))
    seen: set[str] = set()
    conditions = [{"model": live_a}, {"input.hash": {"exists": True}}]
    where = {"and": [*conditions, *([request.where] if request.where else [])]}
    for page in inferences.pages(QueryRequest(where, limit=_BATCH)):
        others = on_same_images(inferences, page.inferences, model_ids)
        for inference in page.inferences:
            image = inference.input.hash or ""
            if image in others and image not in seen:
                seen.add(image)  # a pair for each image
                yield inference, others[image]


def _stored(inferences: InferenceReader) -> set[str]:
    """Return the names of stored models, in lower case as filters compare them."""
    return {name.lower() for name in inferences.stored_names()}


def _live(text: str) -> str:
    """Return what a client calls a version, with the name of its model even if it names the shadow."""
    name, version = split_version(text)
    return f"{live_name(name)}:{version}" if version else live_name(name)


def _shadow(live: str) -> str:
    name, version = split_version(live)
    return f"{shadow_name(name)}:{version}" if version else shadow_name(name)


def _name(text: str) -> str:
    return split_version(text)[0]


def _is_of(inference: StoredInference, name: str, version: str) -> bool:
    model = inference.model
    if is_shadow(model.name) or version not in ("", model.version):
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
