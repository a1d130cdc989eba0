"""Bulk inference: a job that runs a model over a folder or a zip, by requests to the server as any other client's.

What became of each image stands in `progress.jsonl` of the job's folder, and the inferences carry the job's id. So a
job that is begun again asks for no image twice: neither for those that it noted, nor for those that were on their way.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from ssl import SSLContext
from typing import Any
from urllib.parse import quote

import msgspec

from quadriga.client import Client
from quadriga.client.errors import ClientError, NotFound, ServerBusy, ServerRefused, Unreachable
from quadriga.engine.jobs.bulk_source import BulkParameters, BulkSource
from quadriga.proto.access import TEAM_HEADER
from quadriga.proto.messages import MAX_NAME_BYTES
from quadriga.store.jobs.runner import JobRun
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import NotReadyError, QueryError, QueryTimeoutError, StoreError

THREADS = 4
"""Number of images that are asked for at once, which leaves room for other clients."""

BATCH_IMAGES = 32
MAX_ATTEMPTS = 3
"""Requests for an image that end without an answer before it counts as failed."""

PATIENCE_S = 600.0
"""Maximum time that a job waits for a server that is not ready."""

IN_FLIGHT_S = 10.0
"""Time after which a request of a runner that died is no longer expected to be stored."""

RESULT = "images.jsonl"
_PROGRESS = "progress.jsonl"
_RETRY_S = 1.0
_MAX_FAILURES_LOGGED = 20
_RESPONSE_TIMEOUT_S = 300.0
_NO_ANSWER = (Unreachable, ServerBusy)


class ImageOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of an image, as a line of the result."""

    path: str
    inference_id: str | None = None
    """Id of the inference; None if it was not stored, or failed."""
    error: str | None = None
    """Why there is no answer."""
    sent: bool = False
    """Whether the image is on its way: its outcome follows, unless the runner died."""


def run_bulk_inference(
    run: JobRun,
    *,
    url: str,
    folder: str,
    max_bytes: int,
    key: str = "",
    tls: Callable[[], SSLContext] | None = None,
) -> str:
    """Run a model over the images of a job, and return the name of the result.

    Args:
        run: The job.
        url: URL of the server.
        folder: Folder that the operator allows.
        max_bytes: Maximum size of an image.
        key: Key to send with the requests; empty for none.
        tls: Returns the context of a new connection; None without TLS.

    Raises:
        StoreError: There is no such source or model, no image was answered, or the server is away for too long.
    """
    parameters = msgspec.convert(run.job.parameters, BulkParameters)
    run.report_progress(0, None, "listing images")
    source = BulkSource(folder, parameters.source, max_bytes)
    server = client_of_team(url, key, tls, run.job.team)
    try:
        outcomes = _BulkRun(run, parameters, source, server).run()
    finally:
        server.close()
        source.close()
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    unstored = sum(outcome.inference_id is None for outcome in outcomes) - len(failed)
    run.log(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} images answered, {len(failed)} failed"
        + (f"; {unstored} answers are not stored" if unstored else "")
    )
    for outcome in failed[:_MAX_FAILURES_LOGGED]:
        run.log(f"{outcome.path!r:.300}: {outcome.error}")
    if len(failed) == len(outcomes):
        raise QueryError(
            f"none of {len(outcomes)} images was answered: {failed[0].path!r:.200}: {failed[0].error}"
        )
    lines = msgspec.json.Encoder().encode_lines(outcomes)
    write_atomically(run.directory / RESULT, lines)
    return RESULT


def client_of_team(url: str, key: str, tls: Callable[[], SSLContext] | None, team: str) -> Client:
    """Return the client of a job that works for a team; it sends each request once. Arguments are as of `run_bulk_inference`."""
    return Client(
        url,
        key,
        timeout=_RESPONSE_TIMEOUT_S,
        retries=0,
        total_timeout=_RESPONSE_TIMEOUT_S,
        headers={TEAM_HEADER.decode(): quote(team)} if team else None,
        tls=tls,
    )


ImageToAsk = tuple[bytes, str, dict[str, Any]]
"""An image, the name of the input, and the parameters of the request."""


class ImageRequests:
    """Requests of a job to a model of the server, a few at once; an image without an answer is asked for again, alone.

    Args:
        server: The server.
        model: Name of the model, or `name@version`.
        prepare: Returns an image by its path; raises OSError where there is none.
        report: Reports the progress of the job, which may end here.
        stored: Returns the outcomes of those images whose answers are stored, though no response came.
    """

    def __init__(
        self,
        server: Client,
        model: str,
        prepare: Callable[[str], ImageToAsk],
        report: Callable[[], None],
        stored: Callable[[Sequence[str]], list[ImageOutcome]] = lambda _: [],
    ) -> None:
        self._server = server
        self._model = model
        self._prepare = prepare
        self._report = report
        self._stored = stored

    def ask_all(self, pool: Executor, paths: Sequence[str]) -> Iterator[list[ImageOutcome]]:
        """Ask for images; yield the outcomes, those of images that were asked for again at last.

        Raises:
            StoreError: There is no such model, or the server is away for too long.
        """
        outcomes = [*pool.map(self._try, paths)]
        yield [outcome for outcome in outcomes if outcome is not None]
        for path, outcome in zip(paths, outcomes, strict=True):
            if outcome is None:
                yield [self._retry(path)]

    def _try(self, path: str) -> ImageOutcome | None:
        """Ask for an image; return None if the server did not answer, or is busy."""
        try:
            return self._ask(path)
        except _NO_ANSWER:
            return None

    def _ask(self, path: str) -> ImageOutcome:
        try:
            image, name, parameters = self._prepare(path)
        except OSError as error:
            return ImageOutcome(path, error=error.strerror or str(error))
        try:
            result = self._server.infer(self._model, image, parameters=parameters, input_name=name)
        except NotFound as error:
            raise StoreError(_text(error)) from error
        except _NO_ANSWER:
            raise
        except ClientError as error:
            return ImageOutcome(path, error=_text(error))
        return ImageOutcome(path, result.id)

    def _retry(self, path: str) -> ImageOutcome:
        """Ask for an image again, alone: it may be the one that ends the server's worker."""
        attempts, deadline_s = 1, time.monotonic() + PATIENCE_S
        while attempts < MAX_ATTEMPTS:
            self._wait_until_ready()
            if stored := self._stored([path]):
                return stored[0]
            try:
                return self._ask(path)
            except ServerBusy as error:
                if time.monotonic() > deadline_s:
                    raise StoreError(
                        f"the server is busy for more than {PATIENCE_S:.0f} s: {_text(error)}"
                    ) from error
            except Unreachable:
                attempts += 1
        return ImageOutcome(path, error=f"the server did not answer {MAX_ATTEMPTS} times")

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            self._report()
            time.sleep(_RETRY_S)
            try:
                self._server.models.ready(self._model)
            except ClientError as error:
                if time.monotonic() > deadline_s:
                    raise StoreError(
                        f"the server is not ready after {PATIENCE_S:.0f} s: {_text(error)}"
                    ) from error
            else:
                return


class _BulkRun:
    """One run of a job, from what earlier runs noted to the outcomes of all images."""

    def __init__(
        self, run: JobRun, parameters: BulkParameters, source: BulkSource, server: Client
    ) -> None:
        self._run = run
        self._parameters = parameters
        self._source = source
        model = model_text(parameters.model, parameters.version)
        self._requests = ImageRequests(server, model, self._prepare, self._report, self._stored)
        self._outcomes: dict[str, ImageOutcome] = {}
        self._done = 0

    def run(self) -> list[ImageOutcome]:
        """Ask for all images that have no outcome yet; return all outcomes in the order of the paths."""
        paths = self._source.paths
        earlier = {outcome.path: outcome for outcome in _read_progress(self._run.directory)}
        known = [earlier[path] for path in paths if path in earlier]
        write_atomically(self._run.directory / _PROGRESS, b"")
        self._note(known)
        self._find_in_flight([path for path in self._outcomes if self._outcomes[path].sent])
        pending = [path for path in paths if path not in self._outcomes]
        with ThreadPoolExecutor(THREADS) as pool:
            for start in range(0, len(pending), BATCH_IMAGES):
                batch = pending[start : start + BATCH_IMAGES]
                self._report()
                self._note([ImageOutcome(path, sent=True) for path in batch])
                for outcomes in self._requests.ask_all(pool, batch):
                    self._note(outcomes)
        self._report()
        return [self._outcomes[path] for path in paths]

    def _report(self) -> None:
        self._run.report_progress(self._done, len(self._source.paths))

    def _note(self, outcomes: Sequence[ImageOutcome]) -> None:
        self._outcomes |= {outcome.path: outcome for outcome in outcomes}
        self._done += sum(not outcome.sent for outcome in outcomes)
        with (self._run.directory / _PROGRESS).open("ab") as file:
            file.write(msgspec.json.Encoder().encode_lines(outcomes))

    def _find_in_flight(self, paths: Sequence[str]) -> None:
        """Note the outcomes of images that were on their way when an earlier runner ended, as they are stored."""
        deadline_s = time.monotonic() + IN_FLIGHT_S
        missing = set(paths)
        while missing:
            self._report()
            outcomes = self._stored(sorted(missing))
            self._note(outcomes)
            missing -= {outcome.path for outcome in outcomes}
            if not missing or time.monotonic() > deadline_s:
                break
            time.sleep(_RETRY_S)
        for path in missing:
            del self._outcomes[path]

    def _stored(self, paths: Sequence[str]) -> list[ImageOutcome]:
        """Return the outcomes of images whose inferences by this job are stored."""
        outcomes = []
        where = {"meta.job_id": self._run.job.id, "meta.path": {"in": list(paths)}}
        with suppress(NotReadyError, QueryTimeoutError):
            self._run.inferences.wait_for_journal()
            for page in self._run.inferences.pages(QueryRequest(where=where, limit=1000)):
                for record in page.inferences:
                    path = msgspec.json.decode(record.metadata)["path"]
                    error = None if record.status == 200 else "the model failed"
                    id_ = record.id if error is None else None
                    outcomes.append(ImageOutcome(path, id_, error))
        return outcomes

    def _prepare(self, path: str) -> ImageToAsk:
        parameters, own = self._parameters, {"job_id": self._run.job.id, "path": path}
        name = path.encode(errors="replace")[-MAX_NAME_BYTES // 2 :].decode(errors="ignore")
        text = json.dumps(parameters.metadata | own)
        request = {**parameters.parameters, "metadata": text}
        return self._source.read(path), name, request


def model_text(name: str, version: str | None) -> str:
    """Return a model as the client takes it."""
    return name if version is None else f"{name}@{version}"


def _text(error: ClientError) -> str:
    """Return what the server said with its status, or what happened."""
    return f"{error.text} ({error.status})" if isinstance(error, ServerRefused) else str(error)


def _read_progress(directory: Path) -> Iterator[ImageOutcome]:
    """Yield what earlier runs noted; a line that was cut off is passed over."""
    with suppress(FileNotFoundError), (directory / _PROGRESS).open("rb") as file:
        for line in file:
            with suppress(msgspec.MsgspecError):
                yield msgspec.json.decode(line, type=ImageOutcome)
