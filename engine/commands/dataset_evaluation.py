"""A model evaluated over a dataset: run over it through a server, then evaluated there, as a job."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import SimpleNamespace
from typing import Any

import msgspec
import rich_click as click

from engine.commands.bulk_inference import Job, model_of, run, snapshot_of
from engine.commands.options import DEFAULT_SERVER, name_and_version
from engine.commands.output import Page, tell
from engine.commands.server_client import ServerClient, own_server, reported
from monitor.datasets import DatasetImage, read_dataset
from monitor.evaluation.evaluators import evaluator, state_of
from monitor.evaluation.state import EvaluatedImage, EvaluationError
from monitor.report import Report


def evaluate_dataset(options: SimpleNamespace, asked: dict[str, Any]) -> tuple[Report, Page]:
    """Evaluate a model over a dataset, as `asked` of what is stored; returns report and page.

    Raises:
        EvaluationError: The dataset is none, or not of the model's task.
        ServerError: The server does not answer, or refuses; what was done is kept.
    """
    parameters = _parameters(options.parameters)
    with _server(options) as (server, model):
        names = [name_and_version(one) for one in (model, *options.compare)]
        found = [model_of(server, *one) for one in names]
        images, has_splits = _images(options, found[0][2])
        _check_truths(images, found[0][2])
        snapshot = options.snapshot or snapshot_of(images, options.threads)
        jobs = [Job(*one, snapshot, parameters, options.threads) for one in found]
        for job in jobs:
            run(server, job, images)
        job = _evaluation(server, asked, jobs, options.split if has_splits else None)
        return reported(server, job, _show)


def _parameters(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except json.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        said = f"expected a JSON object, got {text}"
        raise click.BadParameter(said, param_hint="--parameters")
    return given


def _images(options: SimpleNamespace, task: str) -> tuple[list[DatasetImage], bool]:
    """Return the images of the split that was asked for, and whether the dataset itself names splits."""
    images = read_dataset(options.dataset, task)
    wanted = options.split
    splits = {image.split for image in images} - {None}
    if wanted is None:
        return images, bool(splits)
    if not splits:
        return [image._replace(split=wanted) for image in images], False
    found = [image for image in images if image.split == wanted]
    if not found:
        known = ", ".join(sorted(map(str, splits)))
        raise EvaluationError(f"expected one of the splits {known}, got {wanted}")
    return found, True


def _check_truths(images: Sequence[DatasetImage], task: str) -> None:
    """See that what is true of the images is of the model's task, before any is sent."""
    truths = [
        EvaluatedImage(
            image.path,
            ground_truth=msgspec.Raw(json.dumps(image.truth).encode()),
            width=1,
            height=1,
        )
        for image in images
    ]
    state_of(evaluator(task), truths, ())


def _evaluation(
    server: ServerClient, asked: dict[str, Any], jobs: Sequence[Job], split: str | None
) -> Any:
    """Have the server evaluate what the jobs have answered."""
    narrowed = [jobs[0].of_snapshot, asked["where"]]
    if split is not None:
        narrowed.append({"meta.dataset_snapshot_split": {"eq": split}})
    kept = [one for one in narrowed if one is not None]
    where = kept[0] if len(kept) == 1 else {"and": kept}
    asked |= {"model": jobs[0].model, "version": jobs[0].version, "where": where}
    asked["compare"] = [
        {"model": one.model, "version": one.version, "where": one.of_snapshot} for one in jobs[1:]
    ]
    return server.call("POST", "/api/evaluations", asked)


def _show(read: int, total: int | None) -> None:
    tell(f"read {read} of {total or '?'} answers" + ", computing" * (read == total))


@contextmanager
def _server(options: SimpleNamespace) -> Iterator[tuple[ServerClient, str]]:
    """Give a server and the name of the model there: one of its own where the model is a folder."""
    model, place = options.model, Path(options.model)
    is_model = place.suffix == ".onnx" or (place.is_dir() and any(place.rglob("*.onnx")))
    if options.server is None and not is_model and len(place.parts) > 1:
        raise EvaluationError(f"expected {model} to be a model folder, or a model's name, got none")
    if options.server is not None or not is_model:
        if options.data is not None:
            raise click.UsageError(
                "expected --data with a model folder alone, got a server's model"
            )
        yield ServerClient(options.server or DEFAULT_SERVER), model
        return
    with (
        TemporaryDirectory() as made,
        TemporaryFile() as log,
        own_server(place, options.data or made, log) as (url, _),
    ):
        server = ServerClient(url)
        names = server.call("GET", "/v2/models")["models"]
        if len(names) != 1:
            raise EvaluationError(f"expected a folder of one model, got {', '.join(names)}")
        yield server, names[0]
