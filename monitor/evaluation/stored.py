"""Evaluation of stored inferences, in shards that are kept: one that was ended goes on where it was."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quadriga.monitor.evaluation.evaluators import evaluator
from quadriga.monitor.evaluation.parameters import EvaluationParameters, OtherModel
from quadriga.monitor.evaluation.reporting import Asked, evaluate, with_pictures
from quadriga.monitor.evaluation.state import EvaluationError, State, from_bytes, merge
from quadriga.monitor.evaluation.stored_images import (
    SHARD,
    Selection,
    Shard,
    image_of,
    read,
    read_other,
    read_part,
    same_images,
    select,
)
from quadriga.monitor.executors import Here, Places, Tell
from quadriga.monitor.report.schema import Report, ReportedModel, Window, provenance
from quadriga.store.disk import write_whole
from quadriga.store.ids import milliseconds
from quadriga.store.inferences import Inferences
from quadriga.store.records import timestamp_text

_Item = TypeVar("_Item")
_Kind = TypeVar("_Kind", Selection, Shard)


def evaluate_stored(
    inferences: Inferences,
    parameters: EvaluationParameters,
    tell: Tell = lambda *_: None,
    shards_directory: Path | None = None,
    places: Places | None = None,
) -> Report:
    """Evaluate what is stored.

    Args:
        inferences: The store.
        parameters: What to evaluate; checked.
        tell: See `Tell`.
        shards_directory: Where to keep what is done, so that the same evaluation, begun again, goes on.
        places: Where shards are read; None: here.

    Raises:
        EvaluationError: There is nothing to evaluate, or it is not of one task.
        StoreError: The database does not answer.
    """
    started = time.monotonic()
    tell(0, None)
    kept = _Kept(shards_directory)
    selection = kept.get("selection", Selection)
    if selection is None:
        selection = select(inferences, parameters)
        kept.put("selection", selection)
    shards = _Shards(selection, len(parameters.compare), kept, places or Here(inferences), tell)
    task = selection.task
    answered = shards.read("whole", partial(read_part, parameters, task), selection.parts)
    unreadable = next((one.unreadable for one in answered if one.unreadable), "")
    model, state = _merged(answered, parameters)
    if unreadable and not state.ids:
        raise EvaluationError(unreadable)
    others = []
    for at, other in enumerate(parameters.compare):
        step = partial(read_other, other, task, selection.newest)
        others.append(_merged(shards.read(f"other-{at:02d}", step, same_images(state)), other))
    report = evaluate(
        evaluator(task),
        state,
        task=task,
        model=model,
        window=_window(selection, parameters.where),
        asked=Asked(parameters.resamples, parameters.seed),
        others=others,
        step=lambda: tell(shards.total, shards.total),
    )
    shown = read(inferences, sorted({int(one.inference_id) for one in report.worst}))
    return msgspec.structs.replace(
        with_pictures(report, [image_of(record, record.ground_truth) for record in shown]),
        parameters=report.parameters | _told(parameters, unreadable),
        provenance=provenance(started) | {"shards": len(selection.parts)},
    )


class _Kept:
    """What is done, each in a file, where there is a directory for them."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        if directory is not None:
            directory.mkdir(exist_ok=True)

    def get(self, name: str, kind: type[_Kind]) -> _Kind | None:
        """Return what is kept under a name."""
        if self._directory is not None:
            path = self._directory / f"{name}.msgpack"
            # Power may have been lost while it was made.
            with suppress(FileNotFoundError, msgspec.MsgspecError):
                return msgspec.msgpack.decode(path.read_bytes(), type=kind)
        return None

    def put(self, name: str, made: Selection | Shard) -> None:
        """Keep it."""
        if self._directory is not None:
            write_whole(self._directory / f"{name}.msgpack", msgspec.msgpack.encode(made))


class _Shards:
    """Reads shard by shard, and keeps what is done."""

    def __init__(
        self, selection: Selection, others: int, kept: _Kept, places: Places, tell: Tell
    ) -> None:
        self._kept, self._places, self._tell = kept, places, tell
        self._found = sum(len(part.ids) for part in selection.parts)
        self.total = self._found * (1 + others)
        self._before = 0

    def read(
        self, name: str, step: Callable[[Inferences, _Item], Shard], items: Sequence[_Item]
    ) -> list[Shard]:
        """Read what is not kept yet, and tell how far it is."""
        names = [f"{name}-{number:06d}" for number in range(len(items))]
        found = {one: shard for one in names if (shard := self._kept.get(one, Shard)) is not None}
        missing = [at for at, one in enumerate(names) if one not in found]
        made = self._places.map(step, [items[at] for at in missing])
        for at, shard in zip(missing, made, strict=True):
            found[names[at]] = shard
            self._kept.put(names[at], shard)
            self._tell(self._before + min(len(found) * SHARD, self._found), self.total)
        self._before += self._found
        return [found[one] for one in names]


def _merged(
    shards: Sequence[Shard], asked: EvaluationParameters | OtherModel
) -> tuple[ReportedModel, State]:
    """Put shards together; the model is named by all of its versions that answered."""
    models = {model for shard in shards for model in shard.models}
    versions = sorted({model.version for model in models}) or [asked.version or ""]
    digests = {model.sha256 for model in models}
    digest = digests.pop() if len(digests) == 1 else ""
    state = merge(from_bytes(shard.state) for shard in shards)
    return ReportedModel(asked.model, ", ".join(versions), digest), state


def _window(selection: Selection, where: Any) -> Window:
    ends = selection.parts[0].ids[0], selection.parts[-1].ids[-1]
    start, end = (timestamp_text(milliseconds(one)) for one in ends)
    return Window(start, end, filter=where)


def _told(parameters: EvaluationParameters, unreadable: str) -> dict[str, Any]:
    """Return of the parameters what the report says nowhere else, and the first image that cannot be read."""
    given = msgspec.to_builtins(parameters)
    told = {name: given[name] for name in ("version", "by", "slices", "compare") if given[name]}
    return told | ({"unreadable": unreadable} if unreadable else {})
