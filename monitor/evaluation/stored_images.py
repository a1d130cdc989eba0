"""Stored inferences as images of an evaluation: selected once, then read in shards, in any order.

The inferences of a model are selected by a filter. Another model is read where it answered the same images,
whenever that was: its newest prediction for each, against the ground truth of the first model's newest.
"""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from quadriga.monitor.evaluation.evaluators import build_state, find_unreadable, load_evaluator
from quadriga.monitor.evaluation.parameters import EvaluationParameters, OtherModel
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    EvaluationState,
    NoInferencesError,
    encode_state,
    nonzero_counts,
)
from quadriga.quoting import quoted
from quadriga.store.query.columns import ground_truths, other_truths, read_inferences
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import NotReadyError, QueryTimeoutError
from quadriga.store.records.records import REJECTED, ModelReference, StoredInference

SHARD_SIZE = 1000
"""Number of images that are read at once; a query names no more."""

_Item = TypeVar("_Item")


class ShardIds(msgspec.Struct, frozen=True):
    """Ids of the inferences of a shard."""

    ids: Sequence[int]
    """Ids, oldest first."""
    slices: dict[str, list[int]]
    """Ids of those that a filter finds, by the filter's name."""


class EvaluationSelection(msgspec.Struct, frozen=True):
    """The inferences to evaluate, as of one moment."""

    task: str
    newest: int
    """Largest id at that moment."""
    parts: list[ShardIds]
    """Shards, oldest first, at least one."""


class EvaluationShard(msgspec.Struct, frozen=True):
    """A shard that was read."""

    state: bytes
    """Encoded state; see `quadriga.monitor.evaluation.state.encode_state`."""
    models: list[ModelReference]
    """Models that answered."""
    unreadable: str = ""
    """Error of the first image that was left out as unreadable."""
    answered: int = 0
    """Number of inferences that did not fail."""
    other_tasks: dict[str, int] = {}
    """Number of images that have only ground truth of another task, by that task."""
    other_models: dict[str, int] = {}
    """Number of images that have only ground truth of another model, by that model."""
    model_counts: list[int] = []
    """Number of images of the state that each of `models` answered; empty in a shard of version 0.2 or earlier."""


def select_inferences(
    reader: InferenceReader, parameters: EvaluationParameters
) -> EvaluationSelection:
    """Select the inferences to evaluate.

    Raises:
        NoInferencesError: No inference matches.
        StoreError: The database does not answer.
    """
    now_us = time.time_ns() // 1000
    with suppress(NotReadyError, QueryTimeoutError):  # the writer lags: evaluate what is committed
        reader.wait_for_journal()
    newest_id = reader.latest_seq()
    where = _all(
        _of_model(parameters.model, parameters.version),
        parameters.where,
        {"id": {"le": str(newest_id)}},
    )
    ids = [id_ for page in reader.matching_ids(where, now_us) for id_ in page]
    if not ids:
        version = (
            "" if parameters.version is None else f", version {quoted(parameters.version, 80)},"
        )
        raise NoInferencesError(
            f"no inferences of {quoted(parameters.model, 80)}{version} match the filter"
        )
    slices = {
        name: {id_ for page in reader.matching_ids(_all(where, filter_), now_us) for id_ in page}
        for name, filter_ in parameters.slices.items()
    }
    shards = [
        ShardIds(
            shard_ids,
            {
                name: [id_ for id_ in shard_ids if id_ in members]
                for name, members in slices.items()
            },
        )
        for shard_ids in _shards(ids)
    ]
    return EvaluationSelection(reader.get(str(ids[0])).task, newest_id, shards)


def shared_images(state: EvaluationState) -> list[dict[str, int]]:
    """Divide the hashes of a merged state's images into shards, each with the inference that has its ground truth.

    There is one shard at least.
    """
    ids_by_image = {
        image: int(id_)
        for image, id_ in zip(state.images, state.ids, strict=True)
        if image != id_  # of predictions for the same image, the last is the newest
    }
    return [dict(items) for items in _shards([*ids_by_image.items()]) or [[]]]


def read_shard(
    parameters: EvaluationParameters, task: str, reader: InferenceReader, shard_ids: ShardIds
) -> EvaluationShard:
    """Read a shard of a selection; deleted and unreadable inferences are left out and counted."""
    records = read_inferences(reader, shard_ids.ids)
    answered = _answered(records, task)
    images = [evaluated_image(record, _accepted(record), parameters.by) for record in answered]
    state, error = _build_state(task, images, parameters.by)
    slices = dict(state.slices)
    for name, slice_ids in shard_ids.slices.items():
        members = {str(id_) for id_ in slice_ids}
        slices[name] = ["true" if id_ in members else "false" for id_ in state.ids]
    other_tasks, other_models = _count_other_truths(reader, answered)
    of_other_task, of_other_model = other_tasks.total(), other_models.total()
    rejected = sum(record.ground_truth_review == REJECTED for record in answered)
    without = of_other_task + of_other_model + rejected
    excluded = nonzero_counts(
        **state.excluded
        | {
            "no_truth": state.excluded.get("no_truth", 0) - without,
            "truth_rejected": rejected,
            "truth_of_other_task": of_other_task,
            "truth_of_other_model": of_other_model,
            "failed": len(records) - len(answered),
            "deleted": len(shard_ids.ids) - len(records),
        }
    )
    shard = _shard(state._replace(slices=slices, excluded=excluded), answered, error)
    return msgspec.structs.replace(
        shard, answered=len(answered), other_tasks=other_tasks, other_models=other_models
    )


def _accepted(record: StoredInference) -> Any:
    """Return the annotations of an inference as JSON; None if they were rejected, or if there are none."""
    return None if record.ground_truth_review == REJECTED else record.ground_truth


def _count_other_truths(
    reader: InferenceReader, answered: Sequence[StoredInference]
) -> tuple[Counter[str], Counter[str]]:
    """Count the images that have only ground truth of another task, and of another model, by that."""
    tasks: Counter[str] = Counter()
    models: Counter[str] = Counter()
    without = {int(record.id): record for record in answered if record.ground_truth is None}
    for id_, scope in other_truths(reader, without).items():
        if scope.task in ("", without[id_].task):
            models[scope.model] += 1
        else:
            tasks[scope.task] += 1
    return tasks, models


def read_other_model(
    other: OtherModel, task: str, newest_id: int, reader: InferenceReader, images: dict[str, int]
) -> EvaluationShard:
    """Read the newest prediction up to an id of another model for each of some images, as of `shared_images`."""
    where = _all(
        {"input.hash": {"in": list(images)}},
        _of_model(other.model, other.version),
        other.where,
        {"id": {"le": str(newest_id)}},
    )
    newest: dict[str, StoredInference] = {}
    succeeded = failed = 0
    for page in reader.pages(QueryRequest(where=where, order="ts", limit=SHARD_SIZE)):
        answered = _answered(page.inferences, task)
        newest |= {record.input.hash or "": record for record in answered}
        succeeded += len(answered)
        failed += len(page.inferences) - len(answered)
    annotations = ground_truths(reader, images.values())
    evaluated = [
        evaluated_image(record, annotations.get(images[image])) for image, record in newest.items()
    ]
    state, error = _build_state(task, evaluated, ())
    excluded = state.excluded | nonzero_counts(failed=failed, duplicate=succeeded - len(newest))
    return _shard(state._replace(excluded=excluded), list(newest.values()), error)


def _shards(items: Sequence[_Item]) -> list[Sequence[_Item]]:
    return [items[start : start + SHARD_SIZE] for start in range(0, len(items), SHARD_SIZE)]


def evaluated_image(
    record: StoredInference, annotations: Any, by: Sequence[str] = ()
) -> EvaluatedImage:
    """Return an inference with its annotations, JSON or None, for evaluation; with metadata if sliced by it."""
    needs_metadata = any(key.startswith("meta.") for key in by)
    return EvaluatedImage(
        id=record.id,
        predictions=record.predictions,
        ground_truth=msgspec.Raw(b"null") if annotations is None else annotations,
        width=record.input.width,
        height=record.input.height,
        metadata=msgspec.json.decode(record.metadata) if needs_metadata else {},
        created_at=record.created_at,
        image=record.input.hash,
    )


def _answered(records: Sequence[StoredInference], task: str) -> list[StoredInference]:
    """Leave out failed inferences, and check that all are of one task."""
    other_task = next((record.task for record in records if record.task != task), None)
    if other_task is not None:
        raise EvaluationError(
            f"expected inferences of one task, got {task} and {other_task}; narrow the filter, for example "
            f'by {{"task": "{task}"}}'
        )
    return [record for record in records if record.status == 200]


def _build_state(
    task: str, images: Sequence[EvaluatedImage], by: Sequence[str]
) -> tuple[EvaluationState, str]:
    """Turn images into a state; return the error of the first that is not of this task as well.

    Anyone may state any ground truth: what one image has does not stop the evaluation of the others.
    """
    evaluator = load_evaluator(task)
    with suppress(EvaluationError):
        return build_state(evaluator, images, by), ""
    errors = find_unreadable(evaluator, images, by)
    readable = [image for index, image in enumerate(images) if index not in errors]
    state = build_state(evaluator, readable, by)
    excluded = state.excluded | nonzero_counts(unreadable=len(errors))
    return state._replace(excluded=excluded), str(next(iter(errors.values()), ""))


def _shard(
    state: EvaluationState, answered: Sequence[StoredInference], unreadable: str
) -> EvaluationShard:
    evaluated = {*state.ids}
    counts = dict.fromkeys((record.model for record in answered), 0)
    for record in answered:
        counts[record.model] += record.id in evaluated
    return EvaluationShard(
        encode_state(state), [*counts], unreadable, model_counts=[*counts.values()]
    )


def _of_model(name: str, version: str | None) -> dict[str, Any]:
    model: dict[str, Any] = {"model": {"eq": name}}
    return model if version is None else model | {"version": {"eq": version}}


def _all(*filters: Any) -> dict[str, Any]:
    return {"and": [filter_ for filter_ in filters if filter_ is not None]}
