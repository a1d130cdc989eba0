"""Reads which stored images may be labelled next, and what speaks for each; in memory is a bounded number of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import numpy as np

from quadriga.monitor.drift.signal_reading import read_sources
from quadriga.monitor.selection.choice import SelectionCandidates
from quadriga.monitor.selection.uncertainty import Basis, uncertainty_of
from quadriga.store.database.rows import is_number
from quadriga.store.query.columns import ImageColumns, ScoredColumns, scan_images, scan_scores
from quadriga.store.query.inferences import InferenceReader
from quadriga.tasks.arrays import Int64Array, UInt64Array

MAX_CANDIDATES = 200_000
"""Maximum images that are compared. Of more, those are drawn whose hash with the seed is lowest, always the same ones."""

MAX_LABELLED_READ = 20_000
"""Maximum labelled images whose embeddings are looked for, drawn likewise."""

HAS_TRUTH, FAILED, NO_IMAGE = "with ground truth", "failed", "without a stored image"
LABELLED_ELSEWHERE, SAME_IMAGE = "on an image that is labelled", "on an image that is there already"

_FIRST_FAILED_STATUS = 400
_CHUNK = 5000

Progress = Callable[[int], None]
"""Is told how many inferences were looked at."""


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
