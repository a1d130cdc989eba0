"""A model over a dataset, through a server: each image once, then evaluated there as a job.

What is done is what is stored: an image whose answer by the same version, under the same snapshot and with
the same parameters, is there already is not sent again. Then the ground truth follows, joined by id.
"""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import rich_click as click
from blake3 import blake3

from quadriga.engine.commands.options import DEFAULT_SERVER, name_and_version
from quadriga.engine.commands.output import Page, tell
from quadriga.engine.commands.server_client import (
    PATIENCE_S,
    POLL_S,
    Refused,
    ServerClient,
    ServerError,
    model_path,
    own_server,
    reported,
)
from quadriga.monitor.evaluation.files.datasets import DatasetImage, read_dataset
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationError
from quadriga.monitor.report.schema import Report
from quadriga.proto.messages import MAX_NAME_BYTES
from quadriga.store.blobs.interface import blob_key

AT_ONCE = 500
"""Statements of ground truth in one request."""

_NAMED = 10
_LOST = {404, 429, 503}
"""Answers after which no other image needs to be tried."""


class Job(NamedTuple):
    """What is run over what."""

    model: str
    version: str
    task: str
    snapshot: str
    parameters: dict[str, Any]
    """Of each request."""
    threads: int

    @property
    def where(self) -> dict[str, Any]:
        """Return the filter that finds the answers."""
        own = {"model": {"eq": self.model}}, {"version": {"eq": self.version}}
        return {"and": [*own, self.of_snapshot]}

    @property
    def of_snapshot(self) -> dict[str, Any]:
        """Return the part of the filter that holds for any model."""
        given = self._given
        asked = {"meta.dataset_parameters": {"eq": given} if given else {"exists": False}}
        return {"and": [{"meta.dataset_snapshot_id": {"eq": self.snapshot}}, asked]}

    @property
    def _given(self) -> str:
        return json.dumps(self.parameters, sort_keys=True) if self.parameters else ""

    def metadata(self, image: DatasetImage) -> dict[str, Any]:
        """Return what is stored with an answer."""
        own = {
            "dataset_snapshot_id": self.snapshot,
            "dataset_snapshot_split": image.split,
            "dataset_path": image.path,
            "dataset_parameters": self._given,
        }
        return image.metadata | {key: value for key, value in own.items() if value}


class _Answer(NamedTuple):
    """One that is stored."""

    inference_id: str
    annotations: Any
    """As it is stored; None for none."""


def model_of(server: ServerClient, name: str, version: str | None) -> tuple[str, str, str]:
    """Return the name, the version that answers, and the task of a model.

    Raises:
        ServerError: It is not there, or does not load.
    """
    _wait_until_loaded(server, name)
    info = server.call("GET", f"/v2/models/{model_path(name, version)}")
    if version is None:
        index = server.call("POST", "/v2/repository/index", {"ready": True})
        ready = (one["version"] for one in index if one["name"] == info["name"])
        version = next(ready, info["versions"][0])
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
        time.sleep(POLL_S)


def snapshot_of(images: Sequence[DatasetImage], threads: int) -> str:
    """Return a hash of the names and the bytes of images; it does not depend on their order."""

    def line(image: DatasetImage) -> str:
        try:
            return f"{image.path}\0{blob_key(image.read())}\n"
        except OSError:
            return f"{image.path}\0\n"

    with ThreadPoolExecutor(threads) as pool:
        lines = sorted(pool.map(line, images))
    return f"blake3:{blake3(''.join(lines).encode()).hexdigest()}"


def run(server: ServerClient, job: Job, images: Sequence[DatasetImage]) -> None:
    """Run a model over images, some at once, state what is true of them, and say which failed.

    Raises:
        ServerError: The server is away; what was done is kept, and what is under way is finished.
    """
    answers = dict(_stored(server, job))
    left = [image for image in images if image.path not in answers]
    before = len(images) - len(left)
    failed: dict[str, str] = {}
    pool = ThreadPoolExecutor(job.threads)
    try:
        answered = pool.map(partial(_infer, server, job), left)
        for image, answer in zip(left, answered, strict=True):
            if isinstance(answer, str):
                failed[image.path] = answer
            else:
                answers[image.path] = answer
            tell(f"{job.model}: {len(answers)} of {len(images)} images, {len(failed)} failed")
    finally:
        pool.shutdown(cancel_futures=True)
        server.close()
    _state_truths(server, images, answers)
    tell("")
    said = f"{job.model} {job.version}: {len(left) - len(failed)} images sent"
    said += f", {before} before" if before else ""
    click.echo(said + (f", {len(failed)} failed" if failed else ""), err=True)
    for path, why in sorted(failed.items())[:_NAMED]:
        click.echo(f"  {path}: {why}", err=True)
    if len(failed) > _NAMED:
        click.echo(f"  and {len(failed) - _NAMED} more", err=True)


def _stored(server: ServerClient, job: Job) -> Iterator[tuple[str, _Answer]]:
    """Return the answers that are stored already, by path."""
    body: dict[str, Any] = {"where": job.where, "limit": 1000, "consistency": "journal"}
    while True:
        page = server.call("POST", "/api/inferences/query", body)
        for record in page["inferences"]:
            if record["status"] == 200:
                path = record["metadata"].get("dataset_path", "")
                yield path, _Answer(record["id"], record["ground_truth"])
        if page["cursor"] is None:
            return
        body["cursor"] = page["cursor"]


def _infer(server: ServerClient, job: Job, image: DatasetImage) -> _Answer | str:
    """Send an image; return the answer, or why there is none."""
    parameters = {**job.parameters, "metadata": json.dumps(job.metadata(image))}
    if job.task == "IMAGE_TEXT_TO_TEXT" and "prompts" not in parameters:
        prompts = [one["prompt"] for one in image.annotations or () if "prompt" in one]
        parameters |= {"prompts": prompts} if prompts else {}
    name = image.path.encode()[-MAX_NAME_BYTES // 2 :].decode(errors="ignore")
    try:
        data = image.read()
    except OSError as error:
        return f"expected the image, got: {error}"
    try:
        answer = server.infer(model_path(job.model, job.version), data, name, parameters)
    except Refused as error:
        if error.status in _LOST:
            raise
        return str(error)
    inference_id = answer["outputs"][0]["parameters"].get("inference_id")
    return _Answer(inference_id, None) if inference_id else "expected it to be stored, got no id"


def _state_truths(
    server: ServerClient, images: Sequence[DatasetImage], answers: dict[str, _Answer]
) -> None:
    """State what is true of the answers, where that is not stored yet."""
    items = []
    for image in images:
        answer = answers.get(image.path)
        if answer is not None and image.annotations not in (None, answer.annotations):
            items.append({"value": answer.inference_id, "annotations": image.annotations})
    for first in range(0, len(items), AT_ONCE):
        body = {"join": "id", "source": "dataset", "items": items[first : first + AT_ONCE]}
        server.call("POST", "/api/ground-truth", body)
        tell(f"{first} of {len(items)} ground truths")


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
    from quadriga.monitor.evaluation.evaluators import build_state, load_evaluator

    truths = [
        EvaluatedImage(
            image.path,
            ground_truth=msgspec.Raw(json.dumps(image.annotations).encode()),
            width=1,
            height=1,
        )
        for image in images
    ]
    build_state(load_evaluator(task), truths, ())


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
