"""Evaluation of stored inferences, and its job. Shards are saved: an evaluation that was ended resumes where it was.

Images are selected once by a filter, then read in shards, in any order. Another model is read where it answered the same
images, whenever that was: its newest prediction for each, against the ground truth of the first model's newest.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from quadriga.monitor.array_packing import pack, unpack
from quadriga.monitor.evaluation.evaluators import build_state, find_unreadable, load_evaluator
from quadriga.monitor.evaluation.metric_settings import MetricSettings
from quadriga.monitor.evaluation.parameters import EvaluationParameters, OtherModel
from quadriga.monitor.evaluation.reporting import (
    EvaluationOptions,
    evaluate_state,
    with_image_items,
)
from quadriga.monitor.evaluation.schedules import record_failure, record_window
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    EvaluationState,
    NoInferencesError,
    merge_states,
    nonzero_counts,
)
from quadriga.monitor.executors import MapShards, OnProgress
from quadriga.monitor.model_files import team_folder
from quadriga.monitor.report.cells import Cell, cells_of, save_cells
from quadriga.monitor.report.saved import save_report
from quadriga.monitor.report.schema import (
    Confusion,
    Report,
    ReportedModel,
    Window,
    provenance,
    reported_model,
)
from quadriga.quoting import quoted
from quadriga.store.jobs.runner import JobRun
from quadriga.store.query.columns import ground_truths, other_truths, read_inferences
from quadriga.store.query.filters.syntax import ReportCells
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import NotReadyError, QueryTimeoutError, StoreError
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import REJECTED, ModelReference, StoredInference, timestamp_text

_Item = TypeVar("_Item")

SHARD_SIZE = 1000
"""Number of images that are read at once; a query names no more."""


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

    state: EvaluationState
    models: list[ModelReference]
    """Models that answered."""
    model_counts: list[int]
    """Number of images of the state that each of `models` answered."""
    unreadable: str = ""
    """Error of the first image that was left out as unreadable."""
    answered: int = 0
    """Number of inferences that did not fail."""
    other_tasks: dict[str, int] = {}
    """Number of images that have only ground truth of another task, by that task."""
    other_models: dict[str, int] = {}
    """Number of images that have only ground truth of another model, by that model."""


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


class CellItems(NamedTuple):
    """Positions of what cells count of an image, in the lists of its record."""

    missed: Collection[int] = ()
    """Annotations without a prediction."""
    wrong: Collection[int] = ()
    """Predictions without an annotation of their label."""
    right: Collection[int] = ()
    """Predictions with one."""


def items_in_cells(
    records: Iterable[StoredInference], confusion: Confusion, cells: Sequence[ReportCells]
) -> dict[str, CellItems]:
    """Return what a report counts in any of some cells, by the ids of inferences, matched as the report did.

    Truth is that of today. There is nothing of a confusion matrix that does not count objects.
    """
    iou, score = (confusion.parameters.get(name) for name in ("iou", "score"))
    answered = [record for record in records if record.status == 200]
    if not answered or iou is None or score is None:
        return {}
    images = [evaluated_image(record, _accepted(record)) for record in answered]
    state = merge_states([_build_state(answered[0].task, images, ())[0]])
    evaluator = load_evaluator(answered[0].task)
    metrics = evaluator.evaluate(state, MetricSettings(iou=(iou,), score=(score,)))
    pairs = metrics.details().pairs if state.ids else None
    if pairs is None or pairs.true_item is None or pairs.predicted_item is None:
        return {}
    labels = [*state.labels, ""]
    items = {id_: (set[int](), set[int](), set[int]()) for id_ in state.ids}
    columns = (column.tolist() for column in pairs if column is not None)
    for image, true, predicted, true_item, predicted_item in zip(*columns, strict=True):
        if any(cell.has(labels[true], labels[predicted]) for cell in cells):
            missed, wrong, right = items[state.ids[image]]
            kind = missed if predicted < 0 else right if true == predicted else wrong
            kind.add(true_item if predicted < 0 else predicted_item)
    return {id_: CellItems(*kinds) for id_, kinds in items.items()}


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
    return EvaluationShard(state, [*counts], [*counts.values()], unreadable)


def _of_model(name: str, version: str | None) -> dict[str, Any]:
    model: dict[str, Any] = {"model": {"eq": name}}
    return model if version is None else model | {"version": {"eq": version}}


def _all(*filters: Any) -> dict[str, Any]:
    return {"and": [filter_ for filter_ in filters if filter_ is not None]}


_MAX_NAMES = 5  # of tasks or models that a warning names
_Saved = TypeVar("_Saved", EvaluationSelection, EvaluationShard)


def evaluate_stored(
    reader: InferenceReader,
    parameters: EvaluationParameters,
    on_progress: OnProgress = lambda *_: None,
    shards_directory: Path | None = None,
    map_shards: MapShards = None,
    *,
    on_cells: Callable[[list[Cell]], None] = lambda _: None,
) -> Report:
    """Evaluate stored inferences.

    Args:
        reader: The store.
        parameters: What to evaluate; checked.
        on_progress: See `OnProgress`.
        shards_directory: Where to save finished shards, so that the same evaluation, started again, resumes.
        map_shards: Reads the shards; see `MapShards`.
        on_cells: Called with the inferences of each cell of the confusion matrix, if there is one.

    Raises:
        EvaluationError: No inference matches, they are not of one task, or its metrics do not have a chosen threshold.
        StoreError: The database does not answer.
    """
    started = time.monotonic()
    on_progress(0, None)
    shards = _Shards(reader, shards_directory, map_shards, on_progress)
    selection = shards.saved("selection", EvaluationSelection)
    if selection is None:
        selection = select_inferences(reader, parameters)
        shards.save("selection", selection)
    images = sum(len(part.ids) for part in selection.parts)
    shards.total = images * (1 + len(parameters.compare))
    task = selection.task
    evaluator = load_evaluator(task, parameters)
    own_shards = shards.read(
        "whole", partial(read_shard, parameters, task), selection.parts, images
    )
    unreadable = next((shard.unreadable for shard in own_shards if shard.unreadable), "")
    model, state = _merged(own_shards, parameters)
    if unreadable and not state.ids:
        raise EvaluationError(unreadable)
    other_models, pooled = [], _pooled_warnings(own_shards)
    for index, other_model in enumerate(parameters.compare):
        read_other = partial(read_other_model, other_model, task, selection.newest)
        other_shards = shards.read(f"other-{index:02d}", read_other, shared_images(state), images)
        other_models.append(_merged(other_shards, other_model))
        pooled += _pooled_warnings(other_shards, f"{other_model.model}: ")
    report = evaluate_state(
        evaluator,
        state,
        task=task,
        model=model,
        window=_window(selection, parameters.where),
        options=EvaluationOptions(parameters.resamples, parameters.seed, parameters),
        other_models=other_models,
        check_cancelled=lambda: on_progress(shards.total, shards.total),
        on_pairs=lambda counted, pairs: on_cells(cells_of(counted.labels, counted.ids, pairs)),
    )
    worst = read_inferences(reader, sorted({int(item.inference_id) for item in report.worst}))
    return msgspec.structs.replace(
        with_image_items(
            report, [evaluated_image(record, record.ground_truth) for record in worst]
        ),
        parameters=report.parameters | _reported(parameters, unreadable),
        warnings=_warnings(own_shards) + pooled + report.warnings,
        provenance=provenance(started) | {"shards": len(selection.parts)},
    )


def run_evaluation(run: JobRun) -> str:
    """Evaluate stored inferences; the report has the id of the job.

    Raises:
        StoreError: No inferences match, or they are of several tasks.
    """
    parameters = msgspec.convert(run.job.parameters, EvaluationParameters)
    window = parameters.schedule
    shards = run.directory / "shards"
    if shards.is_dir():
        run.log("continuing with the shards that were read before")
    is_read = False

    def report_progress(done: int, total: int | None) -> None:
        nonlocal is_read
        if done == total and not is_read:
            is_read = True
            run.log(f"{total} inferences read; computing metrics")
        run.report_reading(done, total)

    history_directory = team_folder(run.directory.parent.parent / "evaluation", run.job.team)
    try:
        report = evaluate_stored(
            run.inferences,
            parameters,
            report_progress,
            shards_directory=shards,
            on_cells=partial(save_cells, run.directory),
        )
    except StoreError as error:
        if window is not None:
            record_failure(history_directory, run.job.id, parameters.model, window, error)
        raise StoreError(str(error)) from error
    report = msgspec.structs.replace(report, id=run.job.id)
    file_name = save_report(run, report)
    shutil.rmtree(shards)
    if window is not None:
        record_window(
            history_directory, report, parameters.model, window, traceparent=run.traceparent
        )
    run.log(f"{report.data.current.n} images evaluated")
    return file_name


class _Shards:
    """Shards of an evaluation, read one after the other; finished ones are saved where there is a directory for them."""

    def __init__(
        self,
        reader: InferenceReader,
        directory: Path | None,
        map_shards: MapShards,
        on_progress: OnProgress,
    ) -> None:
        self._reader, self._directory = reader, directory
        self._map_shards, self._on_progress = map_shards, on_progress
        self._finished = self.total = 0
        """Number of images that were read, and of all images, once for each model."""
        if directory is not None:
            directory.mkdir(exist_ok=True)

    def saved(self, name: str, type_: type[_Saved]) -> _Saved | None:
        """Return what is saved under a name."""
        if self._directory is not None:
            path = self._directory / f"{name}.msgpack"
            # The file may be damaged if power was lost while it was written, or be of another release.
            with suppress(FileNotFoundError, ValueError):
                decoded: _Saved = unpack(path.read_bytes(), type_)
                return decoded
        return None

    def save(self, name: str, value: EvaluationSelection | EvaluationShard) -> None:
        """Save a selection or a shard under a name."""
        if self._directory is not None:
            write_atomically(self._directory / f"{name}.msgpack", pack(value))

    def read(
        self,
        name: str,
        read: Callable[[InferenceReader, Any], EvaluationShard],
        items: Sequence[Any],
        images: int,
    ) -> list[EvaluationShard]:
        """Read the shards of a model that are not saved yet, of so many images at most, and report progress."""
        names = [f"{name}-{index:06d}" for index in range(len(items))]
        shards = {name: self.saved(name, EvaluationShard) for name in names}
        missing = [index for index, name in enumerate(names) if shards[name] is None]
        finished = len(items) - len(missing)
        unread = [items[index] for index in missing]
        map_shards = self._map_shards
        new_shards = (
            map_shards(read, unread) if map_shards else map(partial(read, self._reader), unread)
        )
        for count, (index, shard) in enumerate(zip(missing, new_shards, strict=True), finished + 1):
            shards[names[index]] = shard
            self.save(names[index], shard)
            self._on_progress(self._finished + min(count * SHARD_SIZE, images), self.total)
        self._finished += images
        return [shard for shard in shards.values() if shard is not None]


def _merged(
    shards: Sequence[EvaluationShard], parameters: EvaluationParameters | OtherModel
) -> tuple[ReportedModel, EvaluationState]:
    """Merge the states of shards; the model is named by all of its versions that answered."""
    models = [model for shard in shards for model in shard.models]
    state = merge_states(shard.state for shard in shards)
    model = reported_model(parameters.model, parameters.version, models)
    return msgspec.structs.replace(model, is_pooled=len(_counts_by_model(shards)) > 1), state


def _counts_by_model(shards: Sequence[EvaluationShard]) -> Counter[ModelReference]:
    """Return how many of the images that count each version and file of a model answered."""
    counts: Counter[ModelReference] = Counter()
    for shard in shards:
        counts.update(dict(zip(shard.models, shard.model_counts, strict=True)))
    return +counts


def _pooled_warnings(shards: Sequence[EvaluationShard], prefix: str = "") -> list[str]:
    """Say how many images each version answered, and each file of a version, if they are counted together."""
    files_by_version: dict[str, Counter[str]] = {}
    for model, count in sorted(_counts_by_model(shards).items(), key=lambda item: item[0].version):
        files_by_version.setdefault(model.version, Counter())[model.sha256 or "unknown"] += count
    warnings = []
    if len(files_by_version) > 1:
        listed = ", ".join(
            f"version {version:.40} ({_images(files.total())})"
            for version, files in files_by_version.items()
        )
        warnings.append(f"{prefix}{len(files_by_version)} versions are counted together: {listed}")
    for version, files in files_by_version.items():
        if len(files) > 1:
            listed = ", ".join(f"{digest:.12} ({_images(n)})" for digest, n in files.items())
            warnings.append(
                f"{prefix}{len(files)} files of version {version:.40} are counted together: {listed}; "
                "the model was replaced in place, and the filter model.sha256 tells them apart"
            )
    return warnings


def _images(count: int) -> str:
    return f"{count:,} image{'s' * (count != 1)}"


def _warnings(shards: Sequence[EvaluationShard]) -> list[str]:
    """Say how many images have ground truth that was left out, because it is of another task or model."""
    images = sum(shard.answered for shard in shards)
    warnings = []
    for kind in ("task", "model"):
        counts: Counter[str] = Counter()
        for shard in shards:
            counts.update(getattr(shard, f"other_{kind}s"))
        if counts:
            names = ", ".join(f"{name:.80}" for name, _ in counts.most_common(_MAX_NAMES))
            verb = "has" if counts.total() == 1 else "have"
            warnings.append(
                f"{counts.total():,} of {images:,} images {verb} only ground truth of another {kind} ({names}): "
                "not evaluated"
            )
    return warnings


def _window(selection: EvaluationSelection, where: Any) -> Window:
    ends = selection.parts[0].ids[0], selection.parts[-1].ids[-1]
    start, end = (timestamp_text(time_ms(id_)) for id_ in ends)
    return Window(start, end, filter=where)


def _reported(parameters: EvaluationParameters, unreadable: str) -> dict[str, Any]:
    """Return the parameters that the report has nowhere else, and the error of the first unreadable image."""
    values = msgspec.to_builtins(parameters)
    reported = {
        name: values[name] for name in ("version", "by", "slices", "compare") if values[name]
    }
    return reported | ({"unreadable": unreadable} if unreadable else {})
