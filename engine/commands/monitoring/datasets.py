"""Run a model over a dataset through a server, each image once, and evaluate it there as a job.

An image is not sent again if its prediction by the same version, under the same snapshot and with the same
parameters, is stored already. Then the ground truth follows, joined by id.
"""

import json
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import SimpleNamespace
from typing import IO, Any, NamedTuple

import msgspec
import rich_click as click
from blake3 import blake3

from quadriga.client import Client
from quadriga.client.batches import Batch, BatchProgress, FailedInference, run_in_order
from quadriga.client.errors import InputError, ServerBusy
from quadriga.client.results import Result
from quadriga.client.transport.calls import json_call
from quadriga.client.versions import split_version
from quadriga.engine.commands.monitoring.reports import RenderPage, wait_for_report
from quadriga.engine.commands.options import connect, parse_object
from quadriga.engine.commands.output import error_text, print_progress
from quadriga.engine.config.extras import dataset_formats
from quadriga.monitor.evaluation.files.datasets import DatasetImage, read_dataset
from quadriga.monitor.evaluation.metric_settings import MetricSettings
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationError
from quadriga.monitor.report.schema import Report
from quadriga.proto.messages import MAX_NAME_BYTES
from quadriga.store.blobs.interface import blob_key

STATEMENTS_PER_REQUEST = 500
"""Statements of ground truth in one request."""

_MAX_FAILURES_SHOWN = 10
_BUSY_RETRIES = 16
"""Repetitions of a request to a busy server, which last about a minute."""

_LOADING_TIMEOUT_S = 60.0
_LOOK_INTERVAL_S = 0.2
_STOP_TIMEOUT_S = 30.0
_MAX_LOG_BYTES = 2000
_NO_TLS = ("--tls-certificate=", "--tls-key=", "--tls-client-ca=")
"""Flags of a server of a command's own, which only this machine reaches, whatever quadriga.toml says."""


class NotServed(OSError):
    """A server of a command's own does not start, or does not load the model."""


class DatasetRun(NamedTuple):
    """A model, and the dataset snapshot that it runs over."""

    model: str
    version: str
    task: str
    snapshot: str
    parameters: dict[str, Any]
    """Parameters of each request."""

    @property
    def snapshot_filter(self) -> dict[str, Any]:
        """Return the part of the filter that holds for any model."""
        text = self._parameters_text
        parameters = {"meta.dataset_parameters": {"eq": text} if text else {"exists": False}}
        return {"and": [{"meta.dataset_snapshot_id": {"eq": self.snapshot}}, parameters]}

    @property
    def _parameters_text(self) -> str:
        return json.dumps(self.parameters, sort_keys=True) if self.parameters else ""

    def metadata(self, image: DatasetImage) -> dict[str, Any]:
        """Return the metadata to store with a prediction."""
        added = {
            "dataset_snapshot_id": self.snapshot,
            "dataset_snapshot_split": image.split,
            "dataset_path": image.path,
            "dataset_parameters": self._parameters_text,
        }
        return image.metadata | {key: value for key, value in added.items() if value}


def resolve_model(client: Client, name: str, version: str | None) -> tuple[str, str, str]:
    """Return a model's name, the version that serves requests, and its task.

    Raises:
        NotServed: The model does not load.
        quadriga.client.ClientError: It is not found, or the server does not respond.
    """
    _wait_until_loaded(client, name)
    info = client.models.metadata(name, version)
    if version is None:
        index = client.models.index(ready=True)
        ready = (entry["version"] for entry in index if entry["name"] == info["name"])
        version = next(ready, info["versions"][0])
    return info["name"], version, info["properties"]["task"]


def _wait_until_loaded(client: Client, name: str) -> None:
    deadline_s = time.monotonic() + _LOADING_TIMEOUT_S
    while True:
        index = client.models.index()
        versions = [entry for entry in index if entry["name"] == name]  # none of an alias
        states = {entry["state"] for entry in versions}
        if not versions or "READY" in states:
            return
        if "LOADING" not in states or time.monotonic() > deadline_s:
            reasons = "; ".join(
                f"{entry['state']}: {entry.get('reason', '')}" for entry in versions
            )
            raise NotServed(f"expected {name} to be loaded, got {reasons}")
        print_progress(f"waiting for {name}")
        time.sleep(_LOOK_INTERVAL_S)


def snapshot_hash(images: Sequence[DatasetImage], threads: int) -> str:
    """Return a hash of the names and bytes of images, independent of their order."""

    def line(image: DatasetImage) -> str:
        try:
            return f"{image.path}\0{blob_key(image.read())}\n"
        except OSError:
            return f"{image.path}\0\n"

    with ThreadPoolExecutor(threads) as pool:
        lines = sorted(pool.map(line, images))
    return f"blake3:{blake3(''.join(lines).encode()).hexdigest()}"


def run_model(
    client: Client, run: DatasetRun, images: Sequence[DatasetImage], threads: int
) -> None:
    """Run a model over images concurrently, send their ground truth, and print which failed.

    Raises:
        quadriga.client.ClientError: The server is away; stored predictions remain, and running requests are finished.
    """
    predictions = _stored_predictions(client, run)
    pending = [image for image in images if image.path not in predictions]
    already_stored = len(images) - len(pending)
    failed: dict[str, str] = {}
    with connect(client.url, retries=_BUSY_RETRIES) as patient:
        batch = Batch(pending, run.metadata, path_key=None)
        silent = BatchProgress(is_shown=False, total=None)
        results = run_in_order(batch, partial(_infer_image, patient, run), threads, silent)
        for image, result in zip(pending, results, strict=True):
            if isinstance(result, FailedInference):
                if isinstance(result.error, ServerBusy):  # no other image needs to be tried
                    raise result.error
                failed[image.path] = error_text(result.error)
            elif result.id is None:
                failed[image.path] = (
                    "the server did not store the inference: does it run with store off?"
                )
            else:
                predictions[image.path] = result.id, None
            print_progress(
                f"{run.model}: {len(predictions)} of {len(images)} images, {len(failed)} failed"
            )
    _add_ground_truth(client, images, predictions)
    print_progress("")
    summary = f"{run.model} {run.version}: {len(pending) - len(failed)} images sent"
    summary += f", {already_stored} stored before" if already_stored else ""
    click.echo(summary + (f", {len(failed)} failed" if failed else ""), err=True)
    for path, reason in sorted(failed.items())[:_MAX_FAILURES_SHOWN]:
        click.echo(f"  {path}: {reason}", err=True)
    if len(failed) > _MAX_FAILURES_SHOWN:
        click.echo(f"  and {len(failed) - _MAX_FAILURES_SHOWN} more", err=True)


def _stored_predictions(client: Client, run: DatasetRun) -> dict[str, tuple[str, Any]]:
    """Return the ids of the inferences that are stored already with their ground truth, by the paths of their images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first run finds no inference with these metadata
        where = {"model": run.model, "version": run.version, "and": [run.snapshot_filter]}
        inferences = list(client.query(where, consistency="journal"))
    return {
        inference.metadata.get("dataset_path", ""): (inference.id, inference.ground_truth)
        for inference in inferences
        if inference.raw["status"] == HTTPStatus.OK
    }


def _infer_image(
    client: Client, run: DatasetRun, image: DatasetImage, metadata: dict[str, Any]
) -> Result:
    """Send an image of a dataset.

    Raises:
        quadriga.client.ClientError: It cannot be read, or the server does not answer or refuses.
    """
    parameters = run.parameters
    if run.task == "IMAGE_TEXT_TO_TEXT" and "prompts" not in parameters:
        prompts = [row["prompt"] for row in image.annotations or () if "prompt" in row]
        parameters = {**parameters, "prompts": prompts} if prompts else parameters
    name = image.path.encode()[-MAX_NAME_BYTES // 2 :].decode(errors="ignore")
    try:
        data = image.read()
    except OSError as error:
        raise InputError(f"cannot read the image: {error}") from error
    return client.infer(
        run.model, data, metadata, version=run.version, parameters=parameters, input_name=name
    )


def _add_ground_truth(
    client: Client, images: Sequence[DatasetImage], predictions: dict[str, tuple[str, Any]]
) -> None:
    """Send the ground truth of the predictions, where it is not stored yet."""
    items = []
    for image in images:
        id_, stored = predictions.get(image.path, (None, None))
        if id_ is not None and image.annotations not in (None, stored):
            items.append({"value": id_, "annotations": image.annotations})
    for start in range(0, len(items), STATEMENTS_PER_REQUEST):
        body = {
            "join": "id",
            "source": "dataset",
            "items": items[start : start + STATEMENTS_PER_REQUEST],
        }
        answer = client.send(json_call("POST", "/api/ground-truth", body=body, is_repeatable=True))
        for refusal in answer["refused"][:_MAX_FAILURES_SHOWN]:
            click.echo(f"  ground truth refused: {refusal['reason']}", err=True)
        print_progress(f"{start} of {len(items)} ground truths")


def evaluate_dataset(
    options: SimpleNamespace, request: dict[str, Any]
) -> tuple[Report, RenderPage]:
    """Evaluate a model over a dataset; return the report and the function that renders its page.

    Args:
        options: Options of the command.
        request: Parameters of the evaluation, as for stored inferences.

    Raises:
        EvaluationError: The dataset cannot be read, or does not fit the model's task.
        quadriga.client.ClientError: The server does not respond, or refuses; stored predictions remain.
    """
    request_parameters = parse_object(options.parameters, "--parameters")
    with _open_server(options) as (client, model):
        names = [split_version(text) for text in (model, *options.compare)]
        models = [resolve_model(client, name, version) for name, version in names]
        task = models[0][2]
        images, has_splits = _read_images(options, task)
        if count := sum(image.is_background for image in images):
            click.echo(f"images without a file of labels, as background: {count}", err=True)
        _check_annotations(images, task, options.metrics)
        snapshot = options.snapshot or snapshot_hash(images, options.threads)
        parameters = _with_all_scores(request_parameters, task)
        runs = [DatasetRun(*model, snapshot=snapshot, parameters=parameters) for model in models]
        for run in runs:
            run_model(client, run, images, options.threads)
        job = _submit_evaluation(client, request, runs, options.split if has_splits else None)
        return wait_for_report(client, job)


def _with_all_scores(parameters: dict[str, Any], task: str) -> dict[str, Any]:
    """Ask a classifier for the scores of all labels, which some metrics need, unless the parameters say otherwise."""
    if task != "IMAGE_CLASSIFICATION" or parameters.keys() & {"action", "top_k"}:
        return parameters
    return {**parameters, "action": "predict_proba"}


def _read_images(options: SimpleNamespace, task: str) -> tuple[list[DatasetImage], bool]:
    """Return the images of the requested split, and whether the dataset itself names splits."""
    images = read_dataset(options.dataset, task, dataset_formats())
    split = options.split
    splits = {image.split for image in images} - {None}
    if split is None:
        return images, bool(splits)
    if not splits:
        return [image._replace(split=split) for image in images], False
    selected = [image for image in images if image.split == split]
    if not selected:
        expected = ", ".join(sorted(map(str, splits)))
        raise EvaluationError(f"expected one of the splits {expected}, got {split}")
    return selected, True


def _check_annotations(images: Sequence[DatasetImage], task: str, settings: MetricSettings) -> None:
    """Check that the annotations and the chosen thresholds fit the model's task, before any image is sent."""
    from quadriga.monitor.evaluation.evaluators import build_state, load_evaluator

    annotated = [
        EvaluatedImage(
            image.path,
            ground_truth=msgspec.Raw(json.dumps(image.annotations).encode()),
            width=1,
            height=1,
        )
        for image in images
    ]
    build_state(load_evaluator(task, settings), annotated, ())


def _submit_evaluation(
    client: Client, parameters: dict[str, Any], runs: Sequence[DatasetRun], split: str | None
) -> Any:
    """Have the server evaluate the predictions of the runs; return the job."""
    conditions = [runs[0].snapshot_filter, parameters["where"]]
    if split is not None:
        conditions.append({"meta.dataset_snapshot_split": {"eq": split}})
    filters = [condition for condition in conditions if condition is not None]
    filter_ = filters[0] if len(filters) == 1 else {"and": filters}
    compare = [
        {"model": run.model, "version": run.version, "where": run.snapshot_filter}
        for run in runs[1:]
    ]
    chosen = {"version": runs[0].version, "where": filter_, "compare": compare}
    return client.evaluate(runs[0].model, wait=False, **parameters | chosen)


@contextmanager
def _open_server(options: SimpleNamespace) -> Iterator[tuple[Client, str]]:
    """Yield a server and the name of the model there; start an own server if the model is a folder."""
    model, path = options.model, Path(options.model)
    is_model = path.suffix == ".onnx" or (path.is_dir() and any(path.rglob("*.onnx")))
    if options.server is None and not is_model and len(path.parts) > 1:
        raise EvaluationError(
            f"model folder not found: {model} (give a model folder, or a model's name)"
        )
    if options.server is not None or not is_model:
        if options.data is not None:
            raise click.UsageError("--data can only be used with a model folder")
        options.is_kept = True
        yield connect(options.server), model
        return
    with (
        TemporaryDirectory() as data,
        TemporaryFile() as log,
        own_server(path, options.data or data, log) as (url, _),
    ):
        options.is_kept = options.data is not None
        client = connect(url)
        names = client.models.names()
        if len(names) != 1:
            raise EvaluationError(f"expected a folder of one model, got {', '.join(names)}")
        yield client, names[0]


@contextmanager
def own_server(
    models: Path, data: Path | str, log: IO[bytes]
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve models on a free port while the block lasts; yields the URL and the process.

    Raises:
        NotServed: The server does not start; the message has the end of its log.
    """
    command = [
        sys.executable,
        "-P",  # a quadriga.py in the current folder is not ours
        "-m",
        "quadriga.engine.cli",
        "serve",
        str(models),
        "--data",
        str(data),
    ]
    with subprocess.Popen(  # noqa: S603 - our own program
        [*command, "--port", "0", "--grpc-port", "-1", *_NO_TLS],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,  # Ctrl-C ends who started it, which then ends the server
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if "http" not in line:
                process.wait(_STOP_TIMEOUT_S)
                log.seek(0)
                reason = log.read()[-_MAX_LOG_BYTES:].decode(errors="replace").strip()
                raise NotServed(f"cannot serve {models}: {reason}")
            yield line.split()[-1], process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
