"""Two models, or two versions of one, over the images that both answered: how often and where they differ, and how fast both are.

A shadow is compared with the live inferences that it is linked to. Without a shadow, inferences on the same image are a pair.
"""

import heapq
import math
import time
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from quadriga.store.browsing.disagreements import (
    Disagreement,
    DisagreementsRequest,
    counted_predictions,
    differences,
    matching_models,
    on_same_images,
)
from quadriga.store.errors import QueryError
from quadriga.store.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest, decode_body
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
    """The first model, as `name` or `name:version`."""
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
            prediction.label
            for _, prediction in counted_predictions(inference, score) or ()
            if isinstance(prediction.label, str)
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


def decode_comparison(body: bytes) -> ComparisonRequest:
    """Decode the body of a request, as `decode_body`."""
    return decode_body(body, ComparisonRequest)


def compare(inferences: InferenceReader, request: ComparisonRequest) -> ModelComparison:
    """Compare two models on what both answered.

    Raises:
        QueryError: A model or the filter is invalid, or both are the same.
        NotFoundError: One of the models is not known.
    """
    live_a, live_b = (_live(text) for text in (request.a, request.b))
    if live_a.lower() == live_b.lower():
        raise QueryError(
            f"expected a and b to be two models, or two versions as name:version, got {request.a[:80]!r} and "
            f"{request.b[:80]!r}"
        )
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
            sides = _Side(_name(names[0])), _Side(_name(names[1]))
            rest = _chained(first, pairs)
            return _compare(sides, rest, request, paired_by, deadline_s)
    raise AssertionError("the last way answers in any case")


def _compare(
    sides: tuple[_Side, _Side],
    pairs: Iterator[tuple[StoredInference, StoredInference]],
    request: ComparisonRequest,
    paired_by: Literal["shadow", "image"],
    deadline_s: float,
) -> ModelComparison:
    total = compared = different = 0
    largest: list[tuple[float, int, Disagreement]] = []
    is_partial = False
    for a, b in pairs:
        if total >= MAX_PAIRS or time.monotonic() > deadline_s:
            is_partial = True
            break
        total += 1
        for side, inference in zip(sides, (a, b), strict=True):
            side.versions.add(inference.model.version)
            side.failed += inference.status != 200
        if a.status != 200 or b.status != 200:
            continue
        sides[0].add(a, request.score)
        sides[1].add(b, request.score)
        compared += 1
        only_a, only_b = differences(a, b, score=request.score, iou=request.iou)
        if not (only_a or only_b):
            continue
        different += 1
        if request.limit:
            size = _scores_at(a, only_a) + _scores_at(b, only_b)
            entry = size, -total, Disagreement(a, b, only_a, only_b)
            if len(largest) < request.limit:
                heapq.heappush(largest, entry)
            else:
                heapq.heappushpop(largest, entry)
    labels = sides[0].labels.keys() | sides[1].labels.keys()
    counts = [
        LabelDifference(label, sides[0].labels[label], sides[1].labels[label]) for label in labels
    ]
    counts.sort(key=lambda count: (-abs(count.a - count.b), -max(count.a, count.b), count.label))
    return ModelComparison(
        a=sides[0].compared(),
        b=sides[1].compared(),
        paired_by=paired_by,
        pairs=compared,
        different=different,
        share=different / compared if compared else None,
        share_ci95=_interval(different, compared),
        labels=counts[:MAX_LABELS],
        disagreements=[
            entry[2] for entry in sorted(largest, key=lambda entry: entry[:2], reverse=True)
        ],
        partial=is_partial,
    )


def _linked(
    inferences: InferenceReader, live: str, shadowed: str, where: Any
) -> Iterator[tuple[StoredInference, StoredInference]]:
    """Yield the inferences of a model with those that a shadow made of the same requests, the newest first."""
    condition = {"and": [{"model": _shadow(shadowed)}, *([where] if where else [])]}
    if _name(_shadow(shadowed)) not in _stored(inferences):
        return
    name, _, version = live.partition(":")
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


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    if first is not None:
        yield first
        yield from rest


def _stored(inferences: InferenceReader) -> set[str]:
    """Return the names of stored models, in lower case as filters compare them."""
    return {name.lower() for name in inferences.stored_names()}


def _live(text: str) -> str:
    """Return what a client calls a version, with the name of its model even if it names the shadow."""
    name, colon, version = text.partition(":")
    return f"{live_name(name)}{colon}{version}"


def _shadow(live: str) -> str:
    name, colon, version = live.partition(":")
    return f"{shadow_name(name)}{colon}{version}"


def _name(text: str) -> str:
    return text.partition(":")[0]


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
