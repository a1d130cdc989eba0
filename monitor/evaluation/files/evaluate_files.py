"""Evaluation of files: JSON lines, each an `EvaluatedImage` in the wire's JSON, Parquet, and COCO's files.

Lines are read in shards, so that only the state and one shard are in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from quadriga.monitor.evaluation.evaluators import build_state, find_unreadable, load_evaluator
from quadriga.monitor.evaluation.files.coco import coco_images, coco_state
from quadriga.monitor.evaluation.reporting import (
    DEFAULT_OPTIONS,
    EvaluationOptions,
    evaluate_state,
    with_image_items,
)
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    EvaluationState,
    merge_states,
    nonzero_counts,
)
from quadriga.monitor.report.schema import Report, Window
from quadriga.store.exchange.text_files import json_lines, utf8_lines
from quadriga.store.records.errors import PYARROW_MISSING
from quadriga.store.records.records import parse_time
from quadriga.tasks import full_name

SHARD_SIZE = 1000
"""Number of images that are read at once."""

MapShards = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]
OnLinesRead = Callable[[int], None]
"""Called after every shard with the number of lines read so far."""


class _Input(msgspec.Struct, frozen=True):
    hash: str | None = None
    width: int | None = None
    height: int | None = None


class _Line(msgspec.Struct, frozen=True):
    """An `EvaluatedImage`, or an inference as `quadriga export` writes it."""

    id: str | int
    predictions: msgspec.Raw = msgspec.Raw(b"[]")
    ground_truth: msgspec.Raw = msgspec.Raw(b"null")
    width: int | None = None
    height: int | None = None
    metadata: dict[str, Any] | None = None
    created_at: str | None = None
    image: str | None = None
    input: _Input = _Input()
    status: int = 200


class _Numbered(NamedTuple):
    """An image, its line number, and whether the model failed."""

    line: int
    image: EvaluatedImage
    failed: bool


_Times = tuple[str, ...]
"""First and last time of creation; empty if no image has a time."""


def evaluate_records(
    file: BinaryIO,
    task: str,
    *,
    name: str,
    by: Sequence[str] = (),
    options: EvaluationOptions = DEFAULT_OPTIONS,
    on_lines_read: OnLinesRead = lambda _: None,
) -> Report:
    """Evaluate a file of records.

    Args:
        file: JSON lines; read twice, the second time for the worst images.
        task: Task of all records; see `load_evaluator`.
        name: Name of the file, for messages.
        by: Keys to slice by; see `quadriga.monitor.evaluation.state.slice_values`.
        options: See `EvaluationOptions`.
        on_lines_read: See `OnLinesRead`.

    Raises:
        EvaluationError: A line is not a record, or not of this task; the message begins with the file's name and
            the line's number. Or the task's metrics do not have a chosen threshold.
    """
    load_evaluator(task, options.metrics)
    lines = utf8_lines(file, name)
    state, times = _read(task, by, name, lines=lines, on_lines_read=on_lines_read)

    def reread(_: set[str]) -> Iterator[EvaluatedImage]:
        file.seek(0)
        return (line.image for line in _lines(utf8_lines(file, name), name))

    return _report(task, state, times, options=options, reread=reread, records=name)


def evaluate_parquet(
    path: Path,
    task: str,
    *,
    by: Sequence[str] = (),
    options: EvaluationOptions = DEFAULT_OPTIONS,
    map_shards: MapShards = map,
    on_lines_read: OnLinesRead = lambda _: None,
) -> Report:
    """Evaluate a Parquet file, as `quadriga export` writes it.

    Args:
        path: Path of the file, the same for every process that reads it.
        task: Task of all inferences; see `load_evaluator`.
        by: Keys to slice by; see `quadriga.monitor.evaluation.state.slice_values`.
        options: See `EvaluationOptions`.
        map_shards: Reads the row groups, one after the other or on many machines; like the built-in `map`.
        on_lines_read: See `OnLinesRead`.

    Raises:
        EvaluationError: The file is not a Parquet file of inferences of this task.
    """
    if find_spec("pyarrow") is None:
        raise EvaluationError(PYARROW_MISSING)
    from quadriga.store.exchange.arrow_tables import count_row_groups, read_parquet  # noqa: PLC0415 - it is an extra

    states, rows = [build_state(load_evaluator(task, options.metrics), [], by)], 0
    times: _Times = ()

    def reread(_: set[str]) -> Iterator[EvaluatedImage]:
        lines = (line for line, _ in read_parquet(path, images=False))
        return (numbered.image for numbered in _lines(lines, path.name))

    for state, span in map_shards(
        partial(_row_group, path, task, tuple(by)), range(count_row_groups(path))
    ):
        states.append(state)
        times = _span((*times, *span))
        rows += len(states[-1].ids)
        on_lines_read(rows)
    return _report(
        task, merge_states(states), times, options=options, reread=reread, records=path.name
    )


def _row_group(
    path: Path, task: str, by: Sequence[str], group: int
) -> tuple[EvaluationState, _Times]:
    from quadriga.store.exchange.arrow_tables import read_parquet  # noqa: PLC0415 - it is an extra

    lines = (line for line, _ in read_parquet(path, group, images=False))
    return _read(task, by, f"{path.name}[{group}]", lines)


def _report(
    task: str,
    state: EvaluationState,
    times: _Times,
    options: EvaluationOptions,
    reread: Callable[[set[str]], Iterable[EvaluatedImage]],
    **names: str,
) -> Report:
    """Build the report, with the names of the files; the worst images are read again, by their ids."""
    report = evaluate_state(
        load_evaluator(task, options.metrics),
        state,
        task=full_name(task),
        window=Window(times[0], times[-1]) if times else Window(),
        options=options,
    )
    if shown_ids := {item.inference_id for item in report.worst}:
        report = with_image_items(report, reread(shown_ids))
    file_names = {key: name.encode(errors="replace").decode() for key, name in names.items()}
    return msgspec.structs.replace(report, parameters=report.parameters | file_names)


def _span(times: Sequence[str | None]) -> _Times:
    """Return the first and the last of times in UTC, which have milliseconds or not."""
    in_order = sorted(filter(None, times), key=lambda time: time.rstrip("Z"))
    return (in_order[0], in_order[-1]) if in_order else ()


def _read(
    task: str,
    by: Sequence[str],
    name: str,
    lines: Iterable[bytes],
    on_lines_read: OnLinesRead = lambda _: None,
) -> tuple[EvaluationState, _Times]:
    """Read lines into a state, shard by shard."""
    evaluation = load_evaluator(task)
    states, failed = [build_state(evaluation, [], by)], 0
    ids: set[str] = set()
    times: _Times = ()
    lines_left = _lines(lines, name)
    while shard := list(islice(lines_left, SHARD_SIZE)):
        for line in shard:
            if line.image.id in ids:
                raise EvaluationError(
                    f"{name}:{line.line}: expected each id once, got {line.image.id!r:.80} again"
                )
            ids.add(line.image.id)
        answered = [line for line in shard if not line.failed]
        failed += len(shard) - len(answered)
        images = [line.image for line in answered]
        try:
            states.append(build_state(evaluation, images, by))
        except EvaluationError:
            for index, error in find_unreadable(evaluation, images, by).items():
                raise EvaluationError(f"{name}:{answered[index].line}: {error}") from error
            raise
        times = _span((*times, *(image.created_at for image in images)))
        on_lines_read(len(ids))
    state = merge_states(states)
    return state._replace(excluded=state.excluded | nonzero_counts(failed=failed)), times


def _lines(lines: Iterable[bytes], name: str) -> Iterator[_Numbered]:
    for number, line in json_lines(lines, name, _Line):
        image = EvaluatedImage(
            id=str(line.id),
            predictions=line.predictions,
            ground_truth=line.ground_truth,
            width=line.input.width if line.width is None else line.width,
            height=line.input.height if line.height is None else line.height,
            metadata=line.metadata or {},
            created_at=_utc_text(line.created_at, f"{name}:{number}"),
            image=line.input.hash if line.image is None else line.image,
        )
        yield _Numbered(number, image, line.status != 200)


def _utc_text(text: str | None, location: str) -> str | None:
    """Return a time as RFC 3339 in UTC; its digits tell hour, day and month."""
    if text is None:
        return None
    try:
        time = parse_time(text)
    except ValueError as error:
        expected = "expected created_at to be a time such as 2026-01-31T12:00:00Z"
        raise EvaluationError(f"{location}: {expected}, got {text!r:.80}") from error
    digits = time.isoformat(timespec="milliseconds" if time.microsecond else "seconds")
    return digits.replace("+00:00", "Z")


def evaluate_coco(
    truth: Path,
    predictions: Path,
    task: str | None = None,
    *,
    by: Sequence[str] = (),
    options: EvaluationOptions = DEFAULT_OPTIONS,
) -> Report:
    """Evaluate COCO's files; see `coco_state`.

    Raises:
        EvaluationError: A file is not in COCO's format, or the files do not belong together.
        OSError: A file cannot be read.
    """
    task, state = coco_state(truth, predictions, by, task)
    reread = partial(coco_images, truth, predictions, task)
    names = {"truth": truth.name, "predictions": predictions.name}
    return _report(task, merge_states([state]), (), options=options, reread=reread, **names)
