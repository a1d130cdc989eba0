"""Evaluation of files: JSON lines, each an `EvaluatedImage` in the wire's own JSON, Parquet, and COCO's files.

Lines are read in shards, so that what is held at once is the state and one shard.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from monitor.evaluation.coco import state_of_coco
from monitor.evaluation.coco_wire import images_of_coco
from monitor.evaluation.evaluators import decode, evaluator, state_of, unreadable
from monitor.evaluation.reporting import USUAL, Asked, evaluate, with_pictures
from monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    State,
    from_bytes,
    merge,
    to_bytes,
)
from monitor.report import Report, Window
from store.errors import NO_PYARROW, QueryError
from tasks import full_name

SHARD = 1000
"""Images that are read at once."""

Each = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]
Tell = Callable[[int], None]
"""Is told after every shard how many lines are read."""


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
    """An image, and the line it stands in."""

    line: int
    image: EvaluatedImage
    failed: bool
    """Whether the model failed."""


_LINE = msgspec.json.Decoder(_Line)


def evaluate_records(
    file: BinaryIO,
    task: str,
    *,
    name: str,
    by: Sequence[str] = (),
    asked: Asked = USUAL,
    tell: Tell = lambda _: None,
) -> Report:
    """Evaluate a file of records.

    Args:
        file: JSON lines; read twice, the second time for the worst images.
        task: Theirs; see `evaluator`.
        name: Of the file, for messages.
        by: What to slice by; see `monitor.evaluation.slicing`.
        asked: What to compute.
        tell: See `Tell`.

    Raises:
        EvaluationError: A line is none, or not of this task; the message begins with the file's name and
            the line's number.
    """
    read = _Read(task, by, name)
    for shard in _shards(_lines(file, name)):
        read.add(shard)
        tell(len(read.ids))

    def again(ids: set[str]) -> Iterator[EvaluatedImage]:
        file.seek(0)
        return _among(_lines(file, name), ids)

    return _with_files(_report(task, read.state(), read.times, asked, again), records=name)


def evaluate_parquet(
    path: Path,
    task: str,
    *,
    by: Sequence[str] = (),
    asked: Asked = USUAL,
    each: Each = map,
    tell: Tell = lambda _: None,
) -> Report:
    """Evaluate a Parquet file, as `quadriga export` writes it.

    Args:
        path: Of the file; every process that reads it finds it there.
        task: Of all of its inferences; see `evaluator`.
        by: What to slice by; see `monitor.evaluation.slicing`.
        asked: What to compute.
        each: Reads its row groups, one after the other or on many machines; as the built-in `map`.
        tell: See `Tell`.

    Raises:
        EvaluationError: It is no Parquet file of inferences of this task.
    """
    if find_spec("pyarrow") is None:
        raise EvaluationError(NO_PYARROW)
    from store.exchange.parquet import read_parquet, row_groups  # noqa: PLC0415 - it is an extra

    evaluation = evaluator(task)
    states, rows = [state_of(evaluation, [], by)], 0
    times: tuple[str, ...] = ()
    try:
        for data, span in each(partial(_row_group, path, task, tuple(by)), range(row_groups(path))):
            states.append(from_bytes(data))
            times = _span((*times, *span))
            rows += len(states[-1].ids)
            tell(rows)

        def again(ids: set[str]) -> Iterator[EvaluatedImage]:
            lines = (line for line, _ in read_parquet(path, images=False))
            return _among(_lines(lines, path.name), ids)

        return _with_files(_report(task, merge(states), times, asked, again), records=path.name)
    except QueryError as error:
        raise EvaluationError(str(error)) from error


def _row_group(
    path: Path, task: str, by: Sequence[str], group: int
) -> tuple[bytes, tuple[str, ...]]:
    """Turn a part of a Parquet file into a state; also gives the first and the last time."""
    from store.exchange.parquet import read_parquet  # noqa: PLC0415 - it is an extra

    read = _Read(task, by, f"{path.name}[{group}]")
    lines = (line for line, _ in read_parquet(path, group, images=False))
    for shard in _shards(_lines(lines, read.name)):
        read.add(shard)
    return to_bytes(read.state()), read.times


def _report(
    task: str,
    state: State,
    times: tuple[str, ...],
    asked: Asked,
    pictured: Callable[[set[str]], Iterable[EvaluatedImage]],
) -> Report:
    """Write the report; the worst images are read again, by their ids."""
    report = evaluate(
        evaluator(task),
        state,
        task=full_name(task),
        window=Window(times[0], times[-1]) if times else Window(),
        asked=asked,
    )
    shown = {one.inference_id for one in report.worst}
    return with_pictures(report, [*pictured(shown)] if shown else [])


def _among(lines: Iterable[_Numbered], ids: set[str]) -> Iterator[EvaluatedImage]:
    return (one.image for one in lines if one.image.id in ids)


def _with_files(report: Report, **names: str) -> Report:
    """Say what was read; a name may be no UTF-8."""
    told = {what: name.encode(errors="replace").decode() for what, name in names.items()}
    return msgspec.structs.replace(report, parameters=report.parameters | told)


def _span(times: Sequence[str]) -> tuple[str, ...]:
    """Return the first and the last of some times; nothing of none."""
    return (min(times), max(times)) if times else ()


class _Read:
    """What was read so far."""

    def __init__(self, task: str, by: Sequence[str], name: str) -> None:
        self.name = name
        self.ids: set[str] = set()
        self.times: tuple[str, ...] = ()
        self._of = evaluator(task), by
        self._states = [self._state([])]
        self._failed = 0

    def add(self, shard: Sequence[_Numbered]) -> None:
        """Turn a shard into a state.

        Raises:
            EvaluationError: It is not of this task, or has an image again.
        """
        for one in shard:
            if one.image.id in self.ids:
                raise EvaluationError(
                    f"{self.name}:{one.line}: expected each id once, got {one.image.id!r:.80} again"
                )
            self.ids.add(one.image.id)
        answered = [one for one in shard if not one.failed]
        self._failed += len(shard) - len(answered)
        images = [one.image for one in answered]
        try:
            self._states.append(self._state(images))
        except EvaluationError:
            evaluation, by = self._of
            for at, error in unreadable(evaluation, images, by).items():
                raise EvaluationError(f"{self.name}:{answered[at].line}: {error}") from error
            raise
        self.times = _span(
            (*self.times, *(one.created_at for one in images if one.created_at is not None))
        )

    def state(self) -> State:
        """Return the whole."""
        state = merge(self._states)
        failed = {"failed": self._failed} if self._failed else {}
        return state._replace(excluded=state.excluded | failed)

    def _state(self, images: Sequence[EvaluatedImage]) -> State:
        evaluation, by = self._of
        return state_of(evaluation, images, by)


def _lines(lines: Iterable[bytes], name: str) -> Iterator[_Numbered]:
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        line: _Line = decode(_LINE, msgspec.Raw(text), f"{name}:{number}")
        yield _Numbered(number, _image(line), line.status != 200)


def _image(line: _Line) -> EvaluatedImage:
    return EvaluatedImage(
        str(line.id),
        line.predictions,
        line.ground_truth,
        line.input.width if line.width is None else line.width,
        line.input.height if line.height is None else line.height,
        line.metadata or {},
        line.created_at,
        line.input.hash if line.image is None else line.image,
    )


def _shards(lines: Iterator[_Numbered]) -> Iterator[list[_Numbered]]:
    while shard := list(islice(lines, SHARD)):
        yield shard


def evaluate_coco(
    truth: Path,
    predictions: Path,
    task: str | None = None,
    *,
    by: Sequence[str] = (),
    asked: Asked = USUAL,
) -> Report:
    """Evaluate COCO's files; see `state_of_coco`.

    Raises:
        EvaluationError: A file is none of COCO's, or they do not belong together.
        OSError: A file cannot be read.
    """
    task, state = state_of_coco(truth, predictions, by, task)
    again = partial(images_of_coco, truth, predictions, task)
    report = _report(task, merge([state]), (), asked, again)
    return _with_files(report, truth=truth.name, predictions=predictions.name)
