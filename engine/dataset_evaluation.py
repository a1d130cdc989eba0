"""A model evaluated over a dataset: run over it through a server, then evaluated there, as a job."""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import rich_click as click
from blake3 import blake3

from engine.bulk_inference import Job, Ran, run
from engine.evaluation_options import Options, evaluation_parameters, name_and_version
from engine.own_server import own_server
from engine.report_output import Page, tell
from engine.server_client import PATIENCE_S, Refused, ServerClient, ServerError, model_path
from engine.server_reports import JobFailed, done, fetched
from monitor.datasets import DatasetImage, read_dataset
from monitor.evaluation.evaluators import evaluator, state_of
from monitor.evaluation.state import EvaluatedImage, EvaluationError
from monitor.report import Report
from store.blobs.interface import key_of

DEFAULT_SERVER = "http://127.0.0.1:8080"
_POLL_S = 0.2
_NAMED = 10


def evaluate_dataset(options: Options) -> tuple[Report, Page]:
    """Evaluate a model over a dataset; returns the report and what answers its page.

    Raises:
        EvaluationError: The dataset is none, or not of the model's task.
        ServerError: The server does not answer, or refuses; what was done is kept.
    """
    parameters = _parameters(options)
    with _server(options) as (server, model):
        names = [name_and_version(one) for one in (model, *options.compare)]
        found = [model_of(server, *one) for one in names]
        images, has_splits = _images(options, found[0][2])
        _check_truths(images, found[0][2])
        snapshot = options.snapshot or snapshot_of(images, options.threads)
        jobs = [Job(*one, snapshot, parameters, options.threads) for one in found]
        for job in jobs:
            say(job, run(server, job, images, tell))
        report_id = _evaluate(server, options, jobs, options.split if has_splits else None)
        return fetched(server, report_id)


def _parameters(options: Options) -> dict[str, Any]:
    try:
        given = json.loads(options.parameters)
    except json.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        raise click.BadParameter(
            f"expected a JSON object, got {options.parameters}", param_hint="--parameters"
        )
    return given


def model_of(server: ServerClient, name: str, version: str | None) -> tuple[str, str, str]:
    """Return the name, the version that answers, and the task of a model.

    Raises:
        ServerError: It is not there, or does not load.
    """
    _wait_until_loaded(server, name)
    info = server.call("GET", f"/v2/models/{model_path(name, version)}")
    if version is None:
        versions = info["versions"]
        version = next((one for one in versions if _is_ready(server, name, one)), versions[0])
    return info["name"], version, info["properties"]["task"]


def _wait_until_loaded(server: ServerClient, name: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        index = server.call("POST", "/v2/repository/index", {})
        versions = [one for one in index if one["name"] == name]  # none of an alias
        states = {one["state"] for one in versions}
        if not versions or "READY" in states:
            return
        if "LOADING" not in states or time.monotonic() > until:
            why = "; ".join(f"{one['state']}: {one.get('reason', '')}" for one in versions)
            raise ServerError(f"expected {name} to be loaded, got {why}")
        tell(f"waiting for {name}")
        time.sleep(_POLL_S)


def _is_ready(server: ServerClient, name: str, version: str) -> bool:
    try:
        server.read("GET", f"/v2/models/{model_path(name, version)}/ready")
    except Refused:
        return False
    return True


def _images(options: Options, task: str) -> tuple[list[DatasetImage], bool]:
    """Return the images of the split that was asked for, and whether the dataset itself names splits."""
    images = read_dataset(options.dataset or Path(), task)
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


def snapshot_of(images: Sequence[DatasetImage], threads: int) -> str:
    """Return a hash of the names and the bytes of images; it does not depend on their order."""

    def line(image: DatasetImage) -> str:
        try:
            return f"{image.path}\0{key_of(image.read())}\n"
        except OSError:
            return f"{image.path}\0\n"

    with ThreadPoolExecutor(threads) as pool:
        lines = sorted(pool.map(line, images))
    return f"blake3:{blake3(''.join(lines).encode()).hexdigest()}"


def say(job: Job, ran: Ran) -> None:
    """Say what became of the images, and which failed."""
    tell("")
    before = f", {ran.stored_before} before" if ran.stored_before else ""
    failed = f", {len(ran.failed)} failed" if ran.failed else ""
    click.echo(f"{job.model} {job.version}: {ran.sent} images sent{before}{failed}", err=True)
    for path, why in sorted(ran.failed.items())[:_NAMED]:
        click.echo(f"  {path}: {why}", err=True)
    if len(ran.failed) > _NAMED:
        click.echo(f"  and {len(ran.failed) - _NAMED} more", err=True)


def _evaluate(
    server: ServerClient, options: Options, jobs: Sequence[Job], split: str | None
) -> str:
    """Have the server evaluate, and return the id of the report."""
    asked = evaluation_parameters(options)
    narrowed = [jobs[0].of_snapshot, asked["where"]]
    if split is not None:
        narrowed.append({"meta.dataset_snapshot_split": {"eq": split}})
    kept = [one for one in narrowed if one is not None]
    where = kept[0] if len(kept) == 1 else {"and": kept}
    asked |= {"model": jobs[0].model, "version": jobs[0].version, "where": where}
    asked["compare"] = [
        {"model": one.model, "version": one.version, "where": one.of_snapshot} for one in jobs[1:]
    ]
    job = server.call("POST", "/api/evaluations", asked)

    def show(read: int, total: int | None) -> None:
        tell(f"read {read} of {total or '?'} answers" + ", computing" * (read == total))

    try:
        return done(server, job, show)
    except JobFailed as error:
        raise EvaluationError(str(error)) from error


@contextmanager
def _server(options: Options) -> Iterator[tuple[ServerClient, str]]:
    """Give a server and the name of the model there: one of its own where the model is a folder."""
    model = options.model or ""
    place = Path(model)
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
    with TemporaryDirectory() as made, own_server(place, options.data or made) as url:
        server = ServerClient(url)
        names = server.call("GET", "/v2/models")["models"]
        if len(names) != 1:
            raise EvaluationError(f"expected a folder of one model, got {', '.join(names)}")
        yield server, names[0]
