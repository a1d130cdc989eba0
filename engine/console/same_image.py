"""Other inferences of the image of one: which models answered the same bytes, and where its truth is stated."""

from contextlib import suppress
from typing import Any

import msgspec

from quadriga.engine.console.inference_filter import FilterLinks
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import NotFoundError, QueryError, QueryTimeoutError
from quadriga.store.records.records import REJECTED, StoredInference

SHOWN = 4
"""Maximum other inferences that are named."""


class OtherAnswer(msgspec.Struct, frozen=True):
    """Another inference of the same image."""

    id: str
    model: str
    version: str
    created_at: str
    link: str


class SameImage(msgspec.Struct, frozen=True):
    """The other inferences of an image, the newest first."""

    answers: list[OtherAnswer] = []
    has_more: bool = False
    """Whether there are further ones."""
    truth: OtherAnswer | None = None
    """The newest one of the same task with truth, where this one has none."""


def find_same_image(
    store: InferenceReader, inference: StoredInference, links: FilterLinks
) -> SameImage:
    """Return the other inferences of the same bytes; truth that was rejected counts as none."""
    source = inference.input.hash
    if not source:
        return SameImage()
    of_image = {"input.hash": source}
    newest = _newest(store, of_image, SHOWN + 2)  # this one may be among them
    others = [other for other in newest if other.id != inference.id]
    with_truth: list[StoredInference] = []
    if others and inference.ground_truth is None:
        has_truth = {"ground_truth": {"exists": True}, "task": inference.task}
        is_rejected = {"ground_truth.review": REJECTED}
        with_truth = _newest(store, {"and": [of_image, has_truth, {"not": is_rejected}]}, 1)
    return SameImage(
        [_answer(other, links) for other in others[:SHOWN]],
        has_more=len(others) > SHOWN,
        truth=_answer(with_truth[0], links) if with_truth else None,
    )


def _newest(store: InferenceReader, where: Any, limit: int) -> list[StoredInference]:
    with suppress(QueryError, QueryTimeoutError, NotFoundError):
        return store.query(QueryRequest(where, limit=limit)).inferences
    return []


def _answer(other: StoredInference, links: FilterLinks) -> OtherAnswer:
    return OtherAnswer(
        other.id,
        other.model.name,
        other.model.version,
        other.created_at,
        links.inference(other.id),
    )
