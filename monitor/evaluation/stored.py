"""Evaluation of stored inferences, in shards that are saved: an evaluation that was ended resumes where it was."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quadriga.monitor.evaluation.evaluators import load_evaluator
from quadriga.monitor.evaluation.parameters import EvaluationParameters, OtherModel
from quadriga.monitor.evaluation.reporting import (
    EvaluationOptions,
    evaluate_state,
    with_image_items,
)
from quadriga.monitor.evaluation.state import (
    EvaluationError,
    EvaluationState,
    decode_state,
    merge_states,
)
from quadriga.monitor.evaluation.stored_images import (
    SHARD_SIZE,
    EvaluationSelection,
    EvaluationShard,
    evaluated_image,
    read_other_model,
    read_shard,
    select_inferences,
    shared_images,
)
from quadriga.monitor.executors import LocalExecutor, OnProgress, ShardExecutor
from quadriga.monitor.report.cells import Cell, cells_of
from quadriga.monitor.report.schema import Report, ReportedModel, Window, provenance, reported_model
from quadriga.store.query.columns import read_inferences
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import ModelReference, timestamp_text

_MAX_NAMES = 5  # of tasks or models that a warning names
_Item = TypeVar("_Item")
_Saved = TypeVar("_Saved", EvaluationSelection, EvaluationShard)


def evaluate_stored(
    reader: InferenceReader,
    parameters: EvaluationParameters,
    on_progress: OnProgress = lambda *_: None,
    shards_directory: Path | None = None,
    executor: ShardExecutor | None = None,
    *,
    on_cells: Callable[[list[Cell]], None] = lambda _: None,
) -> Report:
    """Evaluate stored inferences.

    Args:
        reader: The store.
        parameters: What to evaluate; checked.
        on_progress: See `OnProgress`.
        shards_directory: Where to save finished shards, so that the same evaluation, started again, resumes.
        executor: Reads the shards; None: this process.
        on_cells: Called with the inferences of each cell of the confusion matrix, if there is one.

    Raises:
        EvaluationError: No inference matches, they are not of one task, or its metrics do not have a chosen threshold.
        StoreError: The database does not answer.
    """
    started = time.monotonic()
    on_progress(0, None)
    cache = _ShardCache(shards_directory)
    selection = cache.get("selection", EvaluationSelection)
    if selection is None:
        selection = select_inferences(reader, parameters)
        cache.put("selection", selection)
    executor = executor or LocalExecutor(reader)
    shards = _ShardReader(
        selection, len(parameters.compare), cache, executor=executor, on_progress=on_progress
    )
    task = selection.task
    evaluator = load_evaluator(task, parameters.metrics)
    own_shards = shards.read("whole", partial(read_shard, parameters, task), selection.parts)
    unreadable = next((shard.unreadable for shard in own_shards if shard.unreadable), "")
    model, state = _merged(own_shards, parameters)
    if unreadable and not state.ids:
        raise EvaluationError(unreadable)
    other_models, pooled = [], _pooled_warnings(own_shards)
    for index, other_model in enumerate(parameters.compare):
        read_other = partial(read_other_model, other_model, task, selection.newest)
        other_shards = shards.read(f"other-{index:02d}", read_other, shared_images(state))
        other_models.append(_merged(other_shards, other_model))
        pooled += _pooled_warnings(other_shards, f"{other_model.model}: ")
    report = evaluate_state(
        evaluator,
        state,
        task=task,
        model=model,
        window=_window(selection, parameters.where),
        options=EvaluationOptions(parameters.resamples, parameters.seed, parameters.metrics),
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


class _ShardCache:
    """Finished shards, each in a file, where there is a directory for them."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        if directory is not None:
            directory.mkdir(exist_ok=True)

    def get(self, name: str, type_: type[_Saved]) -> _Saved | None:
        """Return what is saved under a name."""
        if self._directory is not None:
            path = self._directory / f"{name}.msgpack"
            # The file may be damaged if power was lost while it was written.
            with suppress(FileNotFoundError, msgspec.MsgspecError):
                return msgspec.msgpack.decode(path.read_bytes(), type=type_)
        return None

    def put(self, name: str, value: EvaluationSelection | EvaluationShard) -> None:
        """Save a selection or a shard under a name."""
        if self._directory is not None:
            write_atomically(self._directory / f"{name}.msgpack", msgspec.msgpack.encode(value))


class _ShardReader:
    """Reads shard by shard, and saves those that are finished."""

    def __init__(
        self,
        selection: EvaluationSelection,
        other_models: int,
        cache: _ShardCache,
        executor: ShardExecutor,
        on_progress: OnProgress,
    ) -> None:
        self._cache, self._executor, self._on_progress = cache, executor, on_progress
        self._images = sum(len(shard.ids) for shard in selection.parts)
        self.total = self._images * (1 + other_models)
        self._finished = 0

    def read(
        self,
        name: str,
        read: Callable[[InferenceReader, _Item], EvaluationShard],
        items: Sequence[_Item],
    ) -> list[EvaluationShard]:
        """Read the shards that are not saved yet, and report progress."""
        names = [f"{name}-{index:06d}" for index in range(len(items))]
        shards = {
            shard_name: shard
            for shard_name in names
            if (shard := self._cache.get(shard_name, EvaluationShard)) is not None
        }
        missing = [index for index, shard_name in enumerate(names) if shard_name not in shards]
        new_shards = self._executor.map(read, [items[index] for index in missing])
        for index, shard in zip(missing, new_shards, strict=True):
            shards[names[index]] = shard
            self._cache.put(names[index], shard)
            images = min(len(shards) * SHARD_SIZE, self._images)
            self._on_progress(self._finished + images, self.total)
        self._finished += self._images
        return [shards[shard_name] for shard_name in names]


def _merged(
    shards: Sequence[EvaluationShard], parameters: EvaluationParameters | OtherModel
) -> tuple[ReportedModel, EvaluationState]:
    """Merge the states of shards; the model is named by all of its versions that answered."""
    models = [model for shard in shards for model in shard.models]
    state = merge_states(decode_state(shard.state) for shard in shards)
    model = reported_model(parameters.model, parameters.version, models)
    return msgspec.structs.replace(model, is_pooled=len(_counts_by_model(shards)) > 1), state


def _counts_by_model(shards: Sequence[EvaluationShard]) -> Counter[ModelReference]:
    """Return how many of the images that count each version and file of a model answered."""
    counts: Counter[ModelReference] = Counter()
    for shard in shards:
        counts.update(dict(zip(shard.models, shard.model_counts, strict=False)))
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
