"""A model run over a dataset through a server: each image once, whatever was stopped before.

What is done is what is stored: an image whose answer by the same version, under the same snapshot and with
the same parameters, is there already is not sent again. Then the ground truth follows, joined by id.
"""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import rich_click as click
from blake3 import blake3

from engine.commands.output import tell
from engine.commands.server_client import (
    PATIENCE_S,
    POLL_S,
    Refused,
    ServerClient,
    ServerError,
    model_path,
)
from monitor.datasets import DatasetImage
from proto.messages import MAX_NAME_BYTES
from store.blobs.interface import key_of

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
    truth: Any
    """As it is stored; None for none."""


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
        time.sleep(POLL_S)


def _is_ready(server: ServerClient, name: str, version: str) -> bool:
    try:
        server.read("GET", f"/v2/models/{model_path(name, version)}/ready")
    except Refused:
        return False
    return True


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
        prompts = [one["prompt"] for one in image.truth or () if "prompt" in one]
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
        if answer is not None and image.truth not in (None, answer.truth):
            items.append({"value": answer.inference_id, "annotations": image.truth})
    for first in range(0, len(items), AT_ONCE):
        body = {"join": "id", "source": "dataset", "items": items[first : first + AT_ONCE]}
        server.call("POST", "/api/ground-truth", body)
        tell(f"{first} of {len(items)} ground truths")
