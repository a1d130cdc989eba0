"""Selects the stored images to label next, and says why each was selected."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from quadriga.monitor.drift.parameters import SOURCE_KEYS
from quadriga.monitor.selection.candidates import (
    Pool,
    Progress,
    read_labelled,
    read_pool,
)
from quadriga.monitor.selection.choice import Choice, Criterion, choose
from quadriga.monitor.selection.diversity import Pick
from quadriga.monitor.selection.stored_embeddings import StoredEmbeddings
from quadriga.monitor.selection.uncertainty import Basis
from quadriga.store.query.columns import scan_images
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotFoundError, QueryError

MAX_SELECTED = 10_000
"""Maximum images of one selection."""

_DIGITS = 6


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
    embeddings = StoredEmbeddings(reader, labelled.ids)
    choice = choose(pool.candidates, options.count, options.by, embeddings)
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
            "space: they are selected last"
        )
    if pool.source_key is None:
        keys = ", ".join(options.source_keys)
        notes.append(f"sources: no image has {keys} in its metadata, so all count as one source")
    return notes
