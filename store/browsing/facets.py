"""Facets: which fields the matches of a filter have, their frequent values and how numbers are spread."""

import math
import struct
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
import sqlalchemy as sa

from quadriga.store.browsing.sample import MatchSample, SampledRow, take_sample
from quadriga.store.database.database import execute, execute_in
from quadriga.store.database.rows import (
    LabelScore,
    ModelRow,
    decode_label_scores,
    is_number,
    models_by_id,
)
from quadriga.store.database.schema import KeyType
from quadriga.store.query.filters.syntax import SIGNAL_FIELDS
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.names import CLASSIFICATION
from quadriga.store.query.request import QueryRequest
from quadriga.store.records import metadata
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scope

MAX_FIELDS = 200
"""Maximum fields of an answer."""

FIELDS = (
    "model", "version", "task", "label", "score", "predictions", "latency_ms", "status", "ground_truth",
    "ground_truth.review",
)  # fmt: skip
"""Fields beside `meta.<path>`."""

_NUMBERS = (float, int)  # of what was decoded, not of classes below them
_OF_PREDICTIONS = frozenset(("label", "score", "predictions"))

MEASURES = ("sig.image.blur", "sig.image.brightness", "sig.image.contrast")
"""Numbers measured on the image that facets have, as histograms."""

MEASURED = 500
"""Maximum images whose measures are read; of more matches their facets are estimates."""

MAX_TEXT = 256
"""Characters of a value; of a longer text the beginning is counted."""
_MAX_NAMES = 64  # names of fields in a request
_LEAST_STEP = 1e-11
"""Width of a bin, as a share of the largest number, from which on its bounds differ in twelve digits."""


FacetType = Literal["string", "number", "boolean", "other"]
_TYPES: dict[int, FacetType] = {
    KeyType.NUM: "number", KeyType.STR: "string", KeyType.BOOL: "boolean", KeyType.OTHER: "other",
}  # fmt: skip


LARGEST_EXACT = 1 << 53
"""Largest whole number up to which a float has all."""


_PICTURES = "SELECT seq, picture FROM signal WHERE seq IN ({})"
_PICTURE = struct.Struct(f"<{len(SIGNAL_FIELDS)}f")
"""Numbers of an image as they are stored; those of other releases had another length."""


class FacetsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of the facets of a filter."""

    where: Any = None
    """A filter, as of a query."""
    fields: list[str] | str | None = None
    """Fields to answer, as a list or with commas between them; all by default."""
    values: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    """Maximum values of a field."""
    bins: Annotated[int, msgspec.Meta(ge=2, le=100)] = 20
    """Maximum bins of a histogram of numbers."""


class FacetValue(msgspec.Struct, frozen=True):
    """A value of a field."""

    value: str | bool | float
    count: int
    """Matches that have it; predictions for `score`."""


class HistogramBin(msgspec.Struct, frozen=True, rename={"low": "from", "high": "to"}):
    """Numbers from a bound up to another, which belongs to the next bin."""

    low: float
    high: float
    count: int


class TimeBin(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """Slice of the time."""

    start: str
    end: str
    count: int


class Facet(msgspec.Struct, frozen=True):
    """A field of the matches, with values of one type."""

    field: str
    type: FacetType
    count: int | None
    """Matches that have it, predictions for `score`; None if the sample has none, though others of the store have it."""
    distinct: int
    """Different values in the sample."""
    values: list[FacetValue]
    """The most frequent values; of numbers only if they are so few that these are all."""
    histogram: list[HistogramBin]
    """How numbers are spread."""


class Facets(msgspec.Struct, frozen=True):
    """Facets of a filter."""

    count: int
    """Number of matches."""
    is_exact_count: bool
    """`False` if `count` and `time` are estimates."""
    exact: bool
    """`False` if `facets` are estimates from a sample."""
    sampled: int
    """Matches that were looked at."""
    time: list[TimeBin]
    """Matches by time, from the oldest to the newest."""
    facets: list[Facet]
    """Fields, those that most matches have first."""
    more_facets: int
    """Number of fields beyond these."""


def find_facets(inferences: InferenceReader, request: FacetsRequest) -> Facets:
    """Return the facets of a filter.

    Raises:
        QueryError: The filter or a field is invalid.
        NotFoundError: The filter compares with a model that is not known.
    """
    tree = inferences.read_filter(QueryRequest(where=request.where))
    fields = _fields(request.fields)
    with inferences.snapshot() as connection:
        sample = take_sample(connection, inferences.planner(connection, tree))
        models = models_by_id(connection, {row.model_id for row in sample.rows})
        stored_keys = [] if sample.is_exact else _known_keys(connection, inferences.scope)
        measures = [name for name in MEASURES if not fields or name in fields]
        step = -(-len(sample.rows) // MEASURED) or 1
        measured = [row.seq for row in sample.rows[::step]] if measures else []
        pictures = dict(execute_in(connection, _PICTURES, measured))
    tallies = _Tallies(fields)
    by_weight: defaultdict[float, list[SampledRow]] = defaultdict(list)
    for row, weight in zip(sample.rows, sample.weights, strict=True):
        by_weight[weight].append(row)
    for weight, rows in by_weight.items():
        tallies.add(rows, models, weight)
        numbers = (pictures.get(row.seq) or b"" for row in rows)
        tallies.add_measures(numbers, measures, weight * step)
    unsampled = [
        Facet(field, type_, None, distinct=0, values=[], histogram=[])
        for field, type_ in stored_keys
        if (field, type_) not in tallies.by_field and (not fields or field in fields)
    ]
    return Facets(
        count=round(sample.matches),
        is_exact_count=sample.is_exact_count,
        exact=sample.is_exact,
        sampled=len(sample.rows),
        time=_time_bins(sample),
        facets=[*tallies.facets(request), *unsampled][:MAX_FIELDS],
        more_facets=max(len(tallies.by_field) + len(unsampled) - MAX_FIELDS, 0),
    )


class _Tally:
    """Weights of the values of one field."""

    def __init__(self) -> None:
        self.count = 0.0
        self.weights: defaultdict[Any, float] = defaultdict(float)


class _Tallies:
    """Weights of the values of all fields, by the name of the field and the type of its values."""

    def __init__(self, fields: frozenset[str]) -> None:
        self._fields = fields
        self._has_metadata = not fields or any(field.startswith("meta.") for field in fields)
        self._has_predictions = not fields or not fields.isdisjoint(_OF_PREDICTIONS)
        self.by_field: dict[tuple[str, FacetType], _Tally] = {}

    def add(
        self, rows: Sequence[SampledRow], models: Mapping[int, ModelRow], weight: float
    ) -> None:
        """Add inferences, each of which stands for as many as the weight says."""
        of_rows = [models[row.model_id] for row in rows]
        values: defaultdict[str, list[Any]] = defaultdict(list)
        values["model"] = [model.name for model in of_rows]
        values["version"] = [model.version for model in of_rows]
        values["task"] = [model.task for model in of_rows]
        values["status"] = [row.status for row in rows]
        values["latency_ms"] = [row.latency_us / 1000 for row in rows]
        values["ground_truth"] = [bool(row.has_truth) for row in rows]
        values["ground_truth.review"] = [row.review for row in rows if row.has_truth and row.review]
        labelled = 0
        for row, model in zip(rows, of_rows, strict=True):
            predictions = None
            if self._has_predictions:
                predictions = decode_label_scores(msgspec.Raw(row.predictions.encode()))
            if predictions is not None:
                labels = _labels(model.task, predictions)
                labelled += bool(labels)
                values["label"] += labels
                values["score"] += [
                    prediction.score
                    for prediction in predictions
                    if type(prediction.score) in _NUMBERS
                ]
                values["predictions"].append(len(predictions))
            if self._has_metadata:
                for path, value in metadata.decode(row.flat_meta).items():
                    values[f"meta.{path}"].append(value)
        for field, of_field in values.items():
            self._add(field, of_field, weight)
        if label := self.by_field.get(("label", "string")):
            label.count += labelled * weight

    def add_measures(self, pictures: Iterable[bytes], names: Iterable[str], weight: float) -> None:
        """Add some numbers of images, which are stored in the order of `SIGNAL_FIELDS`."""
        rows = [_PICTURE.unpack(picture) for picture in pictures if len(picture) == _PICTURE.size]
        for name in names:
            place = SIGNAL_FIELDS.index(name)
            self._add(name, [numbers[place] for numbers in rows], weight)

    def facets(self, request: FacetsRequest) -> list[Facet]:
        """Return the first fields, those that most have first, those of the engine before others."""
        rank = {field: number for number, field in enumerate(FIELDS)}
        ordered = sorted(
            self.by_field.items(),
            key=lambda item: (rank.get(item[0][0], len(rank)), -round(item[1].count), item[0]),
        )
        return [
            _facet(*key, tally, values=request.values, bins=request.bins)
            for key, tally in ordered[:MAX_FIELDS]
        ]

    def _add(self, field: str, values: Sequence[Any], weight: float) -> None:
        """Add values of inferences; of labels, of which an inference may have several, it counts none."""
        if self._fields and field not in self._fields:
            return
        by_type: dict[FacetType, Counter[Any]] = {}
        for kind in {*map(type, values)}:
            of_kind = [value for value in values if type(value) is kind]
            type_, counted = _typed(kind, of_kind)
            by_type.setdefault(type_, Counter()).update(counted)
        for type_, counts in by_type.items():
            tally = self.by_field.setdefault((field, type_), _Tally())
            tally.count += 0 if field == "label" else counts.total() * weight
            for value, number in counts.items():
                tally.weights[value] += number * weight


def _labels(task: str, predictions: Sequence[LabelScore]) -> set[str]:
    """Return the labels of an inference: of a classification that of the highest score, whatever others it stored."""
    named = [prediction for prediction in predictions if isinstance(prediction.label, str)]
    if task == CLASSIFICATION and named:
        scores = [item.score if is_number(item.score) else -math.inf for item in named]
        best = max(scores)
        return {item.label for item, score in zip(named, scores, strict=True) if score == best}
    return {item.label for item in named}


def _typed(kind: type, values: list[Any]) -> tuple[FacetType, list[Any]]:
    """Return the type of values of one class, and the values as they are counted."""
    if kind is str:
        return "string", [value[:MAX_TEXT] for value in values]
    if kind is float:
        return "number", values
    if kind is int:
        # Large ones keep their digits: a filter by the nearest float finds other inferences, or none.
        return "number", [value if abs(value) > LARGEST_EXACT else float(value) for value in values]
    return ("boolean", values) if kind is bool else ("other", [None] * len(values))


def _facet(field: str, type_: FacetType, tally: _Tally, *, values: int, bins: int) -> Facet:
    shown: list[FacetValue] = []
    is_listed = type_ == "number" and len(tally.weights) <= values and field not in MEASURES
    if type_ in ("string", "boolean") or is_listed:
        ordered = sorted(tally.weights.items(), key=lambda item: (-item[1], item[0]))
        shown = [FacetValue(value, round(weight)) for value, weight in ordered[:values]]
    return Facet(
        field,
        type_,
        round(tally.count),
        distinct=0 if type_ == "other" else len(tally.weights),
        values=shown,
        histogram=histogram(tally.weights.items(), bins) if type_ == "number" else [],
    )


def histogram(weights: Iterable[tuple[float, float]], bins: int) -> list[HistogramBin]:
    """Return at most so many bins, two or more, of equal, round width for numbers with their weights; empty ones are left out."""
    weights = list(weights)
    low, high = min(number for number, _ in weights), max(number for number, _ in weights)
    step = _round_step((high - low) / bins)
    while step and math.isfinite(step) and _position(high, step) - _position(low, step) >= bins:
        wider = _round_step(step * 1.01)
        step = wider if wider > step else 2 * step  # among the smallest floats none is wider
    # Where bounds cannot be told apart or are no finite numbers, there is one bin for all.
    largest = max(abs(low), abs(high))
    is_usable = step and math.isfinite(largest + 2 * step) and step >= _LEAST_STEP * largest
    if not is_usable or low + step == low or high + step == high:
        return [HistogramBin(low, high, round(sum(weight for _, weight in weights)))]
    bounds = [_bound(n, step) for n in range(_position(low, step), _position(high, step) + 2)]
    counts: defaultdict[int, float] = defaultdict(float)
    for number, weight in weights:
        counts[bisect_right(bounds, number)] += weight
    return [
        HistogramBin(bounds[position - 1], bounds[position], round(count))
        for position, count in sorted(counts.items())
    ]


TAIL = 0.25
"""Share of numbers, at most, that an end of them has."""


def tail_bound(bins: Sequence[HistogramBin], *, is_low: bool) -> float | None:
    """Return where the low or the high end of some numbers begins: a quarter of them at most, but at least a bin; None without bins."""
    most, count, bound = TAIL * sum(bin_.count for bin_ in bins), 0, None
    for bin_ in bins if is_low else reversed(bins):
        count += bin_.count
        if bound is not None and count > most:
            break
        bound = bin_.high if is_low else bin_.low
    return bound


def _round_step(width: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not less than a width; 0 for none."""
    if not width or not math.isfinite(width):
        return width
    power = 10.0 ** math.floor(math.log10(width))
    return next((power * factor for factor in (1, 2, 5) if power * factor >= width), power * 10)


def _position(number: float, step: float) -> int:
    """Return the position of a number's bin: a quotient next to a bound may be that of the bin beside it."""
    position = math.floor(number / step)
    return position + (number >= _bound(position + 1, step)) - (number < _bound(position, step))


@lru_cache(maxsize=4096)
def _bound(position: int, step: float) -> float:
    """Return where a bin begins, without the digits that come of binary fractions."""
    return float(f"{position * step:.12g}")


def _time_bins(sample: MatchSample) -> list[TimeBin]:
    count = len(sample.times)
    span_ms = sample.last_ms + 1 - sample.first_ms
    bounds = [
        sample.first_ms + -(-number * span_ms // max(count, 1)) for number in range(count + 1)
    ]
    return [
        TimeBin(timestamp_text(bounds[number]), timestamp_text(bounds[number + 1]), round(n))
        for number, n in enumerate(sample.times)
    ]


def _known_keys(connection: sa.Connection, scope: Scope) -> list[tuple[str, FacetType]]:
    """Return the metadata keys of a team, or of all; none for a scope of some models, whose keys nothing tells apart."""
    if scope.models:
        return []
    of_team, values = (" AND team = ?", (scope.team,)) if scope.team else ("", ())
    statement = f"SELECT DISTINCT path, type FROM meta_key WHERE path <> ''{of_team} ORDER BY path, type LIMIT ?"
    rows = execute(connection, statement, (*values, 10 * MAX_FIELDS))
    return [(f"meta.{path}", _TYPES[type_]) for path, type_ in rows if type_ in _TYPES]


def _fields(requested: list[str] | str | None) -> frozenset[str]:
    """Return the fields that a request names; none means all."""
    names = requested.split(",") if isinstance(requested, str) else requested or []
    if len(names) > _MAX_NAMES:
        raise QueryError(f"expected at most {_MAX_NAMES} fields, got {len(names)}")
    for position, name in enumerate(names):
        if name not in (*FIELDS, *MEASURES) and not (
            name.startswith("meta.") and len(name) > len("meta.")
        ):
            raise QueryError(
                f"expected fields[{position}] to be one of {', '.join((*FIELDS, *MEASURES))} and meta.<key>, got {name[:80]!r}"
            )
    return frozenset(names)
