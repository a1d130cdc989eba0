"""Reads stored inferences for an evaluation: what counts is chosen once, then read in parts, in any order.

A model's answers are chosen by a filter. Another model is read where it answered the same images, whenever
that was: the newest of its answers to each, against the truth that the first model's newest answer has.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from quadriga.monitor.evaluation.evaluators import evaluator, state_of, unreadable
from quadriga.monitor.evaluation.parameters import EvaluationParameters, OtherModel
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    State,
    counted,
    to_bytes,
)
from quadriga.store.database import run_in
from quadriga.store.errors import NotReadyError, QueryTimeoutError
from quadriga.store.inferences import Inferences
from quadriga.store.query.request import QueryRequest
from quadriga.store.records import ModelReference, StoredInference

SHARD = 1000
"""Images that are read at once; a query names no more."""


_Item = TypeVar("_Item")


class Part(msgspec.Struct, frozen=True):
    """Some of the inferences that were chosen."""

    ids: Sequence[int]
    """Oldest first."""
    slices: dict[str, list[int]]
    """Those of them that a filter finds, by the filter's name."""


class Selection(msgspec.Struct, frozen=True):
    """What is evaluated, of one moment."""

    task: str
    newest: int
    """The largest id that was there."""
    parts: list[Part]
    """Oldest first, one at least."""


class Shard(msgspec.Struct, frozen=True):
    """What was read."""

    state: bytes
    """See `quadriga.monitor.evaluation.state.to_bytes`."""
    models: list[ModelReference]
    """That answered."""
    unreadable: str = ""
    """What is wrong with the first image that was left out as unreadable."""


def select(inferences: Inferences, parameters: EvaluationParameters) -> Selection:
    """Choose what is to be read.

    Raises:
        EvaluationError: There is nothing.
        StoreError: The database does not answer.
    """
    now_us = time.time_ns() // 1000
    with suppress(NotReadyError, QueryTimeoutError):  # the writer is behind: what is there counts
        inferences.wait_for_journal()
    newest = inferences.latest_seq()
    where = _all(
        _of_model(parameters.model, parameters.version),
        parameters.where,
        {"id": {"le": str(newest)}},
    )
    ids = [one for some in inferences.ids(where, now_us) for one in some]
    if not ids:
        version = "" if parameters.version is None else f", version {parameters.version!r:.80},"
        raise EvaluationError(
            f"expected inferences of {parameters.model!r:.80}{version} that pass the filter, got none"
        )
    inside = {
        name: {one for some in inferences.ids(_all(where, by), now_us) for one in some}
        for name, by in parameters.slices.items()
    }
    parts = [
        Part(some, {name: [one for one in some if one in of] for name, of in inside.items()})
        for some in _shards(ids)
    ]
    return Selection(inferences.get(str(ids[0])).task, newest, parts)


def same_images(state: State) -> list[dict[str, int]]:
    """Deal out, once at least, the hashes of a merged state's images with the inference whose truth each has."""
    truths = {
        image: int(one)
        for image, one in zip(state.images, state.ids, strict=True)
        if image != one  # of answers to the same image, the last is the newest
    }
    return [dict(some) for some in _shards([*truths.items()]) or [[]]]


def read_part(
    parameters: EvaluationParameters, task: str, inferences: Inferences, part: Part
) -> Shard:
    """Read a part of a selection; what was deleted since, or cannot be read, is left out and counted."""
    records = read(inferences, part.ids)
    answered = _answered(records, task)
    images = [image_of(record, record.ground_truth, parameters.by) for record in answered]
    state, wrong = _state_of(task, images, parameters.by)
    slices = dict(state.slices)
    for name, inside in part.slices.items():
        found = {str(one) for one in inside}
        slices[name] = ["true" if one in found else "false" for one in state.ids]
    excluded = state.excluded | counted(
        failed=len(records) - len(answered), deleted=len(part.ids) - len(records)
    )
    return _shard(state._replace(slices=slices, excluded=excluded), answered, wrong)


def read_other(
    other: OtherModel, task: str, newest_id: int, inferences: Inferences, same: dict[str, int]
) -> Shard:
    """Read what another model answered to some images, as of `same_images`, of each the newest up to an id."""
    where = _all(
        {"input.hash": {"in": list(same)}},
        _of_model(other.model, other.version),
        other.where,
        {"id": {"le": str(newest_id)}},
    )
    newest: dict[str, StoredInference] = {}
    found = failed = 0
    for page in inferences.pages(QueryRequest(where=where, order="ts", limit=SHARD)):
        answered = _answered(page.inferences, task)
        newest |= {record.input.hash or "": record for record in answered}
        found += len(answered)
        failed += len(page.inferences) - len(answered)
    truths = _truths(inferences, same.values())
    images = [image_of(record, truths.get(same[image]), ()) for image, record in newest.items()]
    state, wrong = _state_of(task, images, ())
    excluded = state.excluded | counted(failed=failed, duplicate=found - len(newest))
    return _shard(state._replace(excluded=excluded), list(newest.values()), wrong)


def read(inferences: Inferences, ids: Sequence[int]) -> list[StoredInference]:
    """Return those inferences that are still there, oldest first."""
    found = []
    for some in _shards(ids):
        where = {"id": {"in": [str(one) for one in some]}}
        found += inferences.query(QueryRequest(where=where, order="ts", limit=SHARD)).inferences
    return found


def _shards(items: Sequence[_Item]) -> list[Sequence[_Item]]:
    return [items[first : first + SHARD] for first in range(0, len(items), SHARD)]


def image_of(record: StoredInference, truth: Any, by: Sequence[str] = ()) -> EvaluatedImage:
    """Return an inference, with a truth in JSON if any, as what is evaluated; with metadata if sliced `by` it."""
    has_keys = any(one.startswith("meta.") for one in by)
    return EvaluatedImage(
        record.id,
        record.predictions,
        msgspec.Raw(b"null") if truth is None else truth,
        record.input.width,
        record.input.height,
        msgspec.json.decode(record.metadata) if has_keys else {},
        record.created_at,
        record.input.hash,
    )


def _answered(records: Sequence[StoredInference], task: str) -> list[StoredInference]:
    """Leave out where the model failed, and see that all is of one task."""
    other = next((record.task for record in records if record.task != task), None)
    if other is not None:
        raise EvaluationError(
            f"expected inferences of one task, got {task} and {other}; narrow the filter, for example "
            f'by {{"task": "{task}"}}'
        )
    return [record for record in records if record.status == 200]


def _state_of(task: str, images: Sequence[EvaluatedImage], by: Sequence[str]) -> tuple[State, str]:
    """Turn images into a state, and say what is wrong with the first of those that are not of this task.

    Anyone may state anything to be true: what one image has does not stop the evaluation of the others.
    """
    evaluation = evaluator(task)
    with suppress(EvaluationError):
        return state_of(evaluation, images, by), ""
    wrong = unreadable(evaluation, images, by)
    readable = [image for at, image in enumerate(images) if at not in wrong]
    state = state_of(evaluation, readable, by)
    excluded = state.excluded | counted(unreadable=len(wrong))
    return state._replace(excluded=excluded), str(next(iter(wrong.values()), ""))


def _truths(inferences: Inferences, ids: Iterable[int]) -> dict[int, msgspec.Raw]:
    """Return what is true of inferences, by their ids."""
    statement = (
        "SELECT g.seq, t.annotations FROM ground_truth AS g JOIN truth AS t ON t.id = g.truth_id"
        " WHERE g.seq IN ({})"
    )
    with inferences.snapshot() as connection:
        rows = run_in(connection, statement, list(ids))
    return {int(seq): msgspec.Raw(annotations.encode()) for seq, annotations in rows}


def _shard(state: State, answered: Sequence[StoredInference], unreadable: str) -> Shard:
    models = list(dict.fromkeys(record.model for record in answered))
    return Shard(to_bytes(state), models, unreadable)


def _of_model(name: str, version: str | None) -> dict[str, Any]:
    named: dict[str, Any] = {"model": {"eq": name}}
    return named if version is None else named | {"version": {"eq": version}}


def _all(*filters: Any) -> dict[str, Any]:
    return {"and": [one for one in filters if one is not None]}
