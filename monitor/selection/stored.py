"""Selects the stored images to label next, and says why each was selected."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from quadriga.monitor.drift.parameters import SOURCE_KEYS
from quadriga.monitor.drift.signal_reading import read_sources
from quadriga.monitor.selection.choice import Choice, Criterion, SelectionCandidates, choose
from quadriga.monitor.selection.diversity import Embedded, Pick, is_usable
from quadriga.store.browsing.label_queue import best_scores
from quadriga.store.database.rows import decode_label_scores, is_number
from quadriga.store.query.columns import (
    ImageColumns,
    ScoredColumns,
    scan_embeddings,
    scan_images,
    scan_scores,
)
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.tasks.arrays import Float16Array, Int64Array, UInt64Array

MAX_SELECTED = 10_000
"""Maximum images of one selection."""
_DIGITS = 6


NOTHING = 0.5
"""Uncertainty of an image in which a detector or segmenter found nothing: that of one object with a score of 0.5.

An empty scene and a missed object look alike, so such images come neither first nor last.
"""

Basis = Literal["margin", "best score", "lowest score", "nothing predicted"]


class Uncertainty(NamedTuple):
    """How unsure a model was of an image."""

    value: float
    """Degree of uncertainty, from 0, sure, to 1."""
    basis: Basis
    """What the value was taken from."""


def uncertainty_of(task: str, predictions: Any) -> Uncertainty | None:
    """Return how unsure a model was of an image; None if its predictions have no score.

    - Classification: 1 minus the margin between the two best labels, as the label queue orders by; of a single label 1
      minus its score; 1 if no label reached the threshold.
    - Objects, and answers that have scores: 1 minus the lowest score, which is nearest to the threshold.

    Args:
        task: Task of the model, such as `OBJECT_DETECTION`.
        predictions: The predictions as JSON.

    Source: Settles, "Active Learning Literature Survey" (2009), section 3.1.
    """
    scored = decode_label_scores(predictions)
    if scored is None or task == "TENSOR":
        return None
    if task == "IMAGE_CLASSIFICATION":
        best = [score for _, score in best_scores(predictions) if math.isfinite(score)]
        return _of_labels(best[:2], has_labels=bool(scored))
    if not scored and task != "IMAGE_TEXT_TO_TEXT":
        return Uncertainty(NOTHING, "nothing predicted")
    numbers = [float(item.score) for item in scored if is_number(item.score)]
    scores = [*filter(math.isfinite, numbers)]
    return Uncertainty(_unit(1 - min(scores)), "lowest score") if scores else None


def _of_labels(best: list[float], *, has_labels: bool) -> Uncertainty | None:
    """Return the uncertainty of the one or two best scores of labels, the best first."""
    if len(best) == 2:
        return Uncertainty(_unit(1 - (best[0] - best[1])), "margin")
    if best:
        return Uncertainty(_unit(1 - best[0]), "best score")
    return None if has_labels else Uncertainty(1.0, "nothing predicted")


def _unit(value: float) -> float:
    return min(max(value, 0.0), 1.0)


class SelectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to select."""

    model: str
    version: str | None = None
    where: Any = None
    """A filter, as of a query."""
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_SELECTED)]
    by: list[Criterion]
    source_keys: Sequence[str] = tuple(SOURCE_KEYS)
    """Metadata keys; the first that any candidate has is the source."""
    seed: int = 0


class Reasons(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What speaks for an image; what is not known, or was not asked for, is left out."""

    uncertainty: float | None = None
    uncertainty_from: Basis | None = None
    drift: float | None = None
    """1 minus the semantic score."""
    semantic_score: float | None = None
    distance: float | None = None
    """Distance of its embedding to the nearest image that was labelled or selected before, 0 to 2."""
    nearest: str | None = None
    """Inference of that image."""


class SelectedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image to label."""

    inference_id: str
    hash: str
    """Hash of the image's bytes."""
    rank: int
    """Place in the selection, from 1."""
    source: str | None
    """Value of the source key; None without one."""
    reasons: Reasons


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The images to label next."""

    images: list[SelectedImage]
    """The first first."""
    matches: int
    """Number of inferences of the filter."""
    left_out: dict[str, int]
    """Number of these that are no candidates, by reason."""
    candidates: int
    """Number of distinct images that were compared."""
    source_key: str | None
    labelled: int
    """Number of labelled images that the selected ones were kept apart from."""
    notes: list[str]
    """What could not be considered, in sentences."""


Progress = Callable[[int], None]
"""Is told how many inferences were looked at."""


def select(
    reader: InferenceReader, options: SelectionOptions, progress: Progress = lambda _: None
) -> Selection:
    """Select the images to label next; the same store, options and seed give the same selection.

    Raises:
        QueryError: The filter is invalid, or nothing is said to select by.
        NotFoundError: The model, or one of the filter, is not known.
    """
    if not options.by:
        raise QueryError("expected to select by uncertainty, diversity or drift, got none of them")
    model = reader.names.resolve(options.model)
    conditions: list[Any] = [{"model": {"eq": model}}]
    conditions += [] if options.version is None else [{"version": {"eq": options.version}}]
    conditions += [options.where] if options.where else []
    labelled = read_labelled(reader, model, options.seed)
    pool = read_pool(
        reader,
        {"and": conditions},
        labelled,
        source_keys=options.source_keys,
        seed=options.seed,
        progress=progress,
    )
    read_near = partial(read_embeddings, reader, labelled.ids)
    choice = choose(pool.candidates, options.count, options.by, read_near)
    hashes = _hashes(reader, pool, choice)
    return Selection(
        images=[
            _selected(pool, pick, rank, by=options.by, hash_=hashes[pick.row])
            for rank, pick in enumerate(choice.picks, start=1)
        ],
        matches=pool.matches,
        left_out=pool.left_out,
        candidates=len(pool.candidates.ids),
        source_key=pool.source_key,
        labelled=choice.labelled,
        notes=_notes(pool, choice, options),
    )


def check_found(selection: Selection) -> None:
    """Check that something was selected.

    Raises:
        NotFoundError: Nothing was; the message says why.
    """
    if not selection.images:
        reasons = f": {counted(selection.left_out)}" if selection.left_out else ""
        raise NotFoundError(f"nothing to label: {selection.matches} inferences match{reasons}")


def counted(reasons: Mapping[str, int]) -> str:
    """Return reasons with their numbers as a text."""
    return ", ".join(f"{number} {reason}" for reason, number in reasons.items())


class Pool(NamedTuple):
    """Candidates, and what became of all matches."""

    candidates: SelectionCandidates
    source_key: str | None
    """Metadata key of the sources; None if no candidate has any of the keys."""
    source_names: list[str]
    """Names of the sources by their codes; the empty text is that of images without the key."""
    bases: list[Basis | None]
    """What the uncertainty of each candidate was taken from."""
    matches: int
    left_out: dict[str, int]
    """Number of matches that are no candidates, by reason."""
    is_sampled: bool
    """Whether there are more candidates than were read."""


def _hashes(reader: InferenceReader, pool: Pool, choice: Choice) -> dict[int, str]:
    rows = {int(pool.candidates.ids[pick.row]): pick.row for pick in choice.picks}
    hashes = dict.fromkeys(rows.values(), "")
    return hashes | {rows[image.id]: image.hash or "" for image in scan_images(reader, list(rows))}


def _selected(
    pool: Pool, pick: Pick, rank: int, *, by: Sequence[Criterion], hash_: str
) -> SelectedImage:
    candidates, row = pool.candidates, pick.row
    uncertainty = _known(candidates.uncertainties[row]) if "uncertainty" in by else None
    drift = _known(candidates.drifts[row]) if "drift" in by else None
    source = pool.source_names[int(candidates.sources[row])]
    return SelectedImage(
        inference_id=str(candidates.ids[row]),
        hash=hash_,
        rank=rank,
        source=source or None,
        reasons=Reasons(
            uncertainty=uncertainty,
            uncertainty_from=None if uncertainty is None else pool.bases[row],
            drift=drift,
            semantic_score=None if drift is None else round(1 - drift, _DIGITS),
            distance=None if pick.distance is None else round(pick.distance, _DIGITS),
            nearest=None if pick.nearest_id is None else str(pick.nearest_id),
        ),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), _DIGITS)


def _notes(pool: Pool, choice: Choice, options: SelectionOptions) -> list[str]:
    """Return what could not be considered."""
    candidates, notes = pool.candidates, []
    count = len(candidates.ids)
    if not count:
        return []
    if pool.is_sampled:
        notes.append(
            f"candidates: there are more than {count} images; that many were drawn by the seed"
        )
    unknown = int(np.isnan(candidates.uncertainties).sum())
    if "uncertainty" in options.by and unknown:
        notes.append(f"uncertainty: {unknown} of {count} images have predictions without scores")
    unscored = int(np.isnan(candidates.drifts).sum())
    if "drift" in options.by and unscored:
        notes.append(
            f"drift: {unscored} of {count} images have no semantic score, which images get once the model has a baseline"
        )
    if "diversity" in options.by and not choice.embedded:
        notes.append(
            "diversity: no image has an embedding, so only distinct images and sources count"
        )
    elif choice.embedded < choice.band:
        notes.append(
            f"diversity: {choice.band - choice.embedded} of {choice.band} images have no embedding, or one of another "
            "space, or none that fits into memory: they are selected last"
        )
    if pool.source_key is None:
        keys = ", ".join(options.source_keys)
        notes.append(f"sources: no image has {keys} in its metadata, so all count as one source")
    return notes


MAX_LABELLED = 5000
"""Maximum labelled images that the chosen ones are kept apart from."""
MAX_BAND_BYTES = 512 << 20
"""Maximum size of the embeddings of a band in memory, as float32."""
_EMBEDDINGS_CHUNK = 1000


class _Kind(NamedTuple):
    """Space and size of embeddings that can be compared."""

    space: str
    size_bytes: int
    """Size of one, as float16."""


def read_embeddings(reader: InferenceReader, labelled_ids: Int64Array, ids: Int64Array) -> Embedded:
    """Return the embeddings of those inferences (N,) that have one of the space that most of them have, of two as frequent the newest.

    Of more than fit into memory, those of the first are read.

    Args:
        reader: The stored inferences.
        labelled_ids: (A,) inferences of images that have ground truth; up to `MAX_LABELLED` are read.
        ids: (N,) inferences, the best first.
    """
    kind = _frequent_kind(reader, ids)
    if kind is None:
        nothing = np.empty((0, 1), np.float16)
        return Embedded(np.empty(0, np.int64), nothing, nothing, np.empty(0, np.int64))
    rows, embeddings = _read_kind(reader, ids, kind, MAX_BAND_BYTES // (2 * kind.size_bytes))
    labelled_rows, labelled = _read_kind(reader, labelled_ids, kind, MAX_LABELLED)
    return Embedded(rows, embeddings, labelled, labelled_ids[labelled_rows])


def _frequent_kind(reader: InferenceReader, ids: Int64Array) -> _Kind | None:
    """Return the kind of embedding that most of these inferences have."""
    counts: Counter[_Kind] = Counter()
    newest: dict[_Kind, int] = {}
    for start in range(0, len(ids), _EMBEDDINGS_CHUNK):
        for row in scan_embeddings(reader, ids[start : start + _EMBEDDINGS_CHUNK].tolist()):
            if row.size_bytes % 2 == 0:
                kind = _Kind(row.space, row.size_bytes)
                counts[kind] += 1
                newest[kind] = max(newest.get(kind, 0), row.id)
    return max(counts, key=lambda kind: (counts[kind], newest[kind]), default=None)


def _read_kind(
    reader: InferenceReader, ids: Int64Array, kind: _Kind, limit: int
) -> tuple[Int64Array, Float16Array]:
    """Return rows (M,) of the first inferences, up to a limit, that have an embedding of a kind, and these (M, D)."""
    rows = [np.empty(0, np.int64)]
    blocks = [np.empty((0, kind.size_bytes // 2), np.float16)]
    count = 0
    for start in range(0, len(ids), _EMBEDDINGS_CHUNK):
        chunk = ids[start : start + _EMBEDDINGS_CHUNK].tolist()
        signals = reader.signals(chunk)
        stored = [
            (place, signal.embedding)
            for place, id_ in enumerate(chunk, start)
            if (signal := signals.get(id_)) is not None
            and signal.embedding
            and (signal.space or "", len(signal.embedding)) == kind
        ]
        joined = np.frombuffer(b"".join(embedding for _, embedding in stored), "<f2")
        block = joined.astype(np.float16).reshape(-1, kind.size_bytes // 2)
        usable = is_usable(block)
        rows.append(np.array([place for place, _ in stored], np.int64)[usable][: limit - count])
        blocks.append(block[usable][: limit - count])
        count += len(rows[-1])
        if count >= limit:
            break
    return np.concatenate(rows), np.concatenate(blocks)


MAX_CANDIDATES = 200_000
"""Maximum images that are compared. Of more, those are drawn whose hash with the seed is lowest, always the same ones."""
MAX_LABELLED_READ = 20_000
"""Maximum labelled images whose embeddings are looked for, drawn likewise."""
HAS_TRUTH, FAILED, NO_IMAGE = "with ground truth", "failed", "without a stored image"
LABELLED_ELSEWHERE, SAME_IMAGE = "on an image that is labelled", "on an image that is there already"
_FIRST_FAILED_STATUS = 400
_CHUNK = 5000


class DistinctImages:
    """Distinct images of inferences, up to a limit: those with the lowest keys; of each the newest inference.

    Args:
        limit: Maximum number.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.ids = np.empty(0, np.int64)
        self.keys = np.empty(0, np.uint64)
        self.is_sampled = False
        """Whether there were more images than the limit."""

    def add(self, ids: Int64Array, keys: UInt64Array) -> None:
        """Add inferences (N,), ascending and newer than those before, with the keys (N,) of their images."""
        all_ids = np.concatenate([ids[::-1], self.ids])
        distinct, first = np.unique(np.concatenate([keys[::-1], self.keys]), return_index=True)
        self.is_sampled |= len(distinct) > self._limit
        self.keys, self.ids = distinct[: self._limit], all_ids[first[: self._limit]]


class LabelledImages(NamedTuple):
    """Images of a model that have ground truth."""

    keys: UInt64Array
    """(N,) keys of all of them, ascending."""
    ids: Int64Array
    """(M,) inferences of some of them."""


class _Standard(msgspec.Struct):
    """What the engine stored beside the predictions."""

    semantic_score: Any = None


_standard = msgspec.json.Decoder(_Standard)


def image_keys(hashes: Sequence[str], seed: int) -> UInt64Array:
    """Return a number for each image hash (N,) that follows from it and the seed."""
    digests = (blake2b(f"{seed}:{text}".encode(), digest_size=8).digest() for text in hashes)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def read_labelled(reader: InferenceReader, model: str, seed: int) -> LabelledImages:
    """Read which images of a model, of any version, have ground truth that nobody rejected."""
    where = {"and": [{"model": {"eq": model}}, {"ground_truth": {"exists": True}}]}
    sample, keys = DistinctImages(MAX_LABELLED_READ), [np.empty(0, np.uint64)]
    for ids in reader.matching_ids(where):
        rows = [row for row in scan_images(reader, ids) if row.has_truth and row.hash]
        keys.append(image_keys([row.hash or "" for row in rows], seed))
        sample.add(np.array([row.id for row in rows], np.int64), keys[-1])
    return LabelledImages(np.unique(np.concatenate(keys)), sample.ids)


def read_pool(
    reader: InferenceReader,
    where: Any,
    labelled: LabelledImages,
    *,
    source_keys: Sequence[str],
    seed: int,
    progress: Progress,
) -> Pool:
    """Read the candidates among the matches of a filter.

    Raises:
        QueryError: The filter is invalid.
        NotFoundError: The filter compares with a model that is not known.
    """
    images, left_out, matches, eligible = DistinctImages(MAX_CANDIDATES), Counter[str](), 0, 0
    for ids in reader.matching_ids(where):
        rows = scan_images(reader, ids)
        matches += len(rows)
        reasons = [_reason(row) for row in rows]
        rows = [row for row, reason in zip(rows, reasons, strict=True) if reason is None]
        left_out.update(reason for reason in reasons if reason is not None)
        keys = image_keys([row.hash or "" for row in rows], seed)
        is_new = ~np.isin(keys, labelled.keys)
        left_out[LABELLED_ELSEWHERE] += int(np.count_nonzero(~is_new))
        eligible += int(np.count_nonzero(is_new))
        images.add(np.array([row.id for row in rows], np.int64)[is_new], keys[is_new])
        progress(matches)
    if not images.is_sampled:
        left_out[SAME_IMAGE] = eligible - len(images.ids)
    order = np.argsort(images.ids)
    candidates, bases = _read_scores(reader, images.ids[order], images.keys[order])
    source_key, source_names, sources = _read_sources(reader, candidates.ids, source_keys)
    return Pool(
        candidates._replace(sources=sources),
        source_key,
        source_names,
        bases,
        matches=matches,
        left_out=dict(+left_out),
        is_sampled=images.is_sampled,
    )


def _reason(row: ImageColumns) -> str | None:
    """Return why an inference is no candidate; None if it may be one."""
    if row.has_truth:
        return HAS_TRUTH
    if row.status >= _FIRST_FAILED_STATUS:
        return FAILED
    return None if row.is_kept else NO_IMAGE


def _read_scores(
    reader: InferenceReader, ids: Int64Array, keys: UInt64Array
) -> tuple[SelectionCandidates, list[Basis | None]]:
    """Read the candidates that are still there, all of one source, with what their uncertainties were taken from."""
    uncertainties, drifts = np.full(len(ids), np.nan), np.full(len(ids), np.nan)
    is_there = np.zeros(len(ids), np.bool_)
    bases: list[Basis | None] = []
    for start in range(0, len(ids), _CHUNK):
        rows = scan_scores(reader, ids[start : start + _CHUNK].tolist())
        places = np.searchsorted(ids, [row.id for row in rows])
        is_there[places] = True
        for place, row in zip(places.tolist(), rows, strict=True):
            uncertainty = uncertainty_of(row.task, row.predictions)
            bases.append(None if uncertainty is None else uncertainty.basis)
            uncertainties[place] = np.nan if uncertainty is None else uncertainty.value
            drifts[place] = _drift(row)
    sources = np.zeros(len(ids), np.int64)
    all_rows = SelectionCandidates(ids, keys, uncertainties, drifts=drifts, sources=sources)
    return all_rows.take(np.flatnonzero(is_there)), bases


def _read_sources(
    reader: InferenceReader, ids: Int64Array, keys: Sequence[str]
) -> tuple[str | None, list[str], Int64Array]:
    """Return the first key that any inference (N,) has, the names of the sources, and (N,) positions in these.

    The index is read a part at a time, as it also has all inferences between the candidates.
    """
    for key in keys:
        positions = {"": 0}
        sources = np.zeros(len(ids), np.int64)
        for start in range(0, len(ids), _CHUNK):
            indexed = read_sources(reader, ids[start : start + _CHUNK], [key])
            if indexed is not None:
                _, names, codes = indexed
                places = [positions.setdefault(name, len(positions)) for name in names]
                sources[start : start + _CHUNK] = np.array(places, np.int64)[codes]
        if len(positions) > 1:
            return key, [*positions], sources
    return None, [""], np.zeros(len(ids), np.int64)


def _drift(row: ScoredColumns) -> float:
    """Return how little an image resembles the model's baseline: 1 minus its semantic score; NaN without one."""
    try:
        score = _standard.decode(row.standard).semantic_score
    except msgspec.ValidationError:
        return float("nan")
    return 1 - float(score) if is_number(score) and 0 <= score <= 1 else float("nan")
