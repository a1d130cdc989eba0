"""The client for scripts and notebooks; `AsyncClient` has the same with `await`."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from ssl import SSLContext
from typing import Any, Literal, Self, overload

from .batches import (
    Batch,
    BatchProgress,
    FailedInference,
    Metadata,
    check_concurrency,
    run_in_order,
)
from .class_labels import ClassLabels
from .errors import BadAnswer, InputError, Unauthenticated
from .images import Image, image_bytes, source_name
from .inference import (
    INPUT_NAME,
    image_tensor,
    infer_call,
    logged_inference,
    number_tensors,
    read_result,
)
from .queries import Query, StoredInference
from .reports import Report
from .resources.jobs import Job, Jobs, Reports
from .resources.models import Models, Schedules, Traffic
from .resources.server import Server
from .resources.stored import Inferences, Truth, Views, Where
from .results import Result
from .transport.calls import Read, check_answer, json_call, present, read_call, read_json
from .transport.configuration import (
    DEFAULT_URL,
    KEY_FILE_VARIABLE,
    KEY_VARIABLE,
    Certificate,
    chosen_key,
    tls_contexts,
)
from .transport.connections import Call, Connections, Response
from .transport.retries import send_repeatedly
from .versions import Version, model_body, split_version

MAX_ANSWER_BYTES = 256 << 20
"""Maximum bytes of an answer that is held in memory."""

LABELS_TIMEOUT_S = 5.0
"""Maximum wait for the labels of a model."""

USER_AGENT = "quadriga-client"


class Client:
    """A server at a URL; safe to use from several threads, and in a forked process.

    Args:
        url: `http://…` or `https://…`, maybe with a path.
        key: API key; None for that of `QUADRIGA_API_KEY` or of the file `QUADRIGA_API_KEY_FILE`, "" for none.
        timeout: Seconds that one try of a request has, to its last byte.
        retries: Maximum repetitions of a request, of which only safe ones are repeated.
        total_timeout: Seconds that a call has with all its repetitions and pauses.
        ca: File of the authorities that are trusted; None for `QUADRIGA_CA_FILE`, or those of the system.
        certificate: File of the client's certificate and key, or one file for each; None for
            `QUADRIGA_CLIENT_CERTIFICATE_FILE`, or none.
        headers: Further headers of every request.
        tls: Returns the context of a new connection with https, in the place of `ca` and `certificate`.
        allow_urls: Whether `infer` fetches images from URLs; see `image_bytes`.
        max_answer_bytes: Maximum bytes of an answer that is held in memory.

    Methods raise a `ClientError`.

    Raises:
        InputError: An argument or a variable of the environment cannot be used.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        key: str | None = None,
        *,
        timeout: float = 60.0,
        retries: int = 5,
        total_timeout: float = 120.0,
        ca: str | os.PathLike[str] | None = None,
        certificate: Certificate | None = None,
        headers: Mapping[str, str] | None = None,
        tls: Callable[[], SSLContext] | None = None,
        allow_urls: bool = False,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        if not all(0 < seconds <= threading.TIMEOUT_MAX for seconds in (timeout, total_timeout)):
            raise InputError(f"expected seconds above 0, got {timeout} and {total_timeout}")
        if url.startswith("grpc"):
            raise InputError(
                f"expected http:// or https://, got {url!r}: this client has no gRPC, as image files travel as they are"
            )
        if tls is None and url.startswith("https://"):
            tls = tls_contexts(ca, certificate)
        self._headers = {"User-Agent": USER_AGENT, **(headers or {})}
        if secret := chosen_key(key):
            self._headers["Authorization"] = f"Bearer {secret}"
        self._connections = Connections(url, tls, self._headers, max_answer_bytes)
        self._retries, self._total_s = retries, total_timeout
        self._timeout_s = timeout
        self._image_bytes = partial(image_bytes, allow_urls=allow_urls, timeout_s=timeout)
        self.models = Models(self)
        """Models of the server, and their settings."""
        self.traffic = Traffic(self)
        """Shares of the versions of a model."""
        self.schedules = Schedules(self)
        """What the server evaluates and compares again and again."""
        self._labels = ClassLabels(self._read_model)
        self.inferences = Inferences(self, self._stored)
        """Stored inferences."""
        self.truth = Truth(self, self._stored)
        """Ground truth."""
        self.views = Views(self)
        """Saved filters."""
        self.jobs = Jobs(self)
        """Jobs under way."""
        self.reports = Reports(self)
        """Reports of evaluations and comparisons."""
        self.server = Server(self)
        """The server itself."""

    @property
    def url(self) -> str:
        """URL of the server."""
        return self._connections.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the open connections; a further call opens new ones."""
        self._connections.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def infer(
        self,
        model: str,
        image: Image,
        metadata: Mapping[str, Any] | None = None,
        *,
        version: Version | None = None,
        parameters: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        idempotency_key: str | None = None,
        input_name: str = INPUT_NAME,
    ) -> Result:
        """Run a model on an image, and return its predictions.

        Args:
            model: Name of the model, or `name@version`.
            image: Path, bytes, binary file, Pillow image, uint8 array (height, width, 3) in RGB, or a URL if the client
                allows it. OpenCV's arrays are BGR: `array[..., ::-1]`.
            metadata: JSON object that is stored with the inference.
            version: Version of the model; None for the one that the server chooses.
            parameters: Parameters of the model's task and of the store, such as `score_threshold` or `store`.
            request_id: Id of the request, as it is stored; None for a random one.
            idempotency_key: Key under which the request is stored once, however often it is sent; None for a random one,
                with which the repetitions of this call are safe.
            input_name: Name of the image, as it is stored.

        Raises:
            InputError: The image or the metadata cannot be sent.
            ServerRefused: The server answered with an error.
            Unreachable: There is no answer.
            Conflict: The key was used with another request.
        """
        data = self._image_bytes(image)
        tensor = image_tensor(len(data), input_name, metadata, parameters)
        body = present(inputs=[tensor], id=request_id)
        call = infer_call(model, version, body, "parameters", image=data, key=idempotency_key)
        read = partial(read_result, image=data, source=source_name(image), labels=self._labels)
        result: Result = self.send(call, read)
        return result

    def infer_many(
        self,
        model: str,
        images: Any,
        metadata: Metadata = None,
        *,
        version: Version | None = None,
        parameters: Mapping[str, Any] | None = None,
        concurrency: int = 8,
        progress: bool | None = None,
        path_key: str | None = "path",
    ) -> Iterator[Result | FailedInference]:
        """Run a model on many images; yield results in their order, and a `FailedInference` in the place of one that failed.

        No more than `2 * concurrency` images are in memory. An error that all images would have, such as an unknown model
        or a server that is gone, is raised.

        Args:
            model: Name of the model, or `name@version`.
            images: Folder, whose images are taken by name, pattern such as `photos/**/*.jpg`, or an iterable of what `infer`
                takes.
            metadata: Metadata of each inference: a dict for all, a list with one for each image, or a function that returns
                one for an image.
            version: As for `infer`.
            parameters: As for `infer`.
            concurrency: Requests at a time, 1 to 256.
            progress: Whether stderr shows how far it is; None for yes on a terminal.
            path_key: Key of the metadata that gets the name of the image's file, relative to the folder, so that ground truth
                can be joined on `meta.path`; None for none. What the metadata have under it stays.

        Raises:
            InputError: There are no such images, or the list of metadata is of another length. An error
                of the iterable or of the function comes after the results of the images before it.
        """
        check_concurrency(concurrency)
        batch = Batch(images, metadata, path_key)
        infer = partial(self.infer, model, version=version, parameters=parameters)
        return run_in_order(batch, infer, concurrency, BatchProgress(progress, batch.total))

    def infer_tensors(
        self,
        model: str,
        inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        version: Version | None = None,
        parameters: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> dict[str, Any]:
        """Run a model that takes tensors, and return the answer of V2 (Open Inference Protocol) as JSON.

        Args:
            model: Name of the model.
            inputs: Arrays of numbers by input, or the list of V2.
            version: As for `infer`.
            parameters: Parameters of the request.
            request_id: As for `infer`.
        """
        rows = number_tensors(inputs) if isinstance(inputs, Mapping) else list(inputs)
        body = present(inputs=rows, parameters=dict(parameters or {}) or None, id=request_id)
        answer: dict[str, Any] = self.send(infer_call(model, version, body, "tensors"))
        return answer

    def log(
        self,
        /,
        model: str,
        image: Image | None = None,
        predictions: Sequence[Mapping[str, Any]] | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        version: Version | None = None,
        key: str | None = None,
        **values: Any,
    ) -> list[str]:
        """Store an inference of a model that is served elsewhere, and return its ids.

        Args:
            model: Name of the model.
            image: As for `infer`, or None.
            predictions: What the model answered, in the form of the server's responses; None for an inference that failed,
                or with `response`.
            metadata: JSON object that is stored with the inference.
            version: Version of the model.
            key: What you know the inference by: under one key it is stored once, however often it is sent. None for a
                random one, with which the repetitions of this call are safe.
            values: `task`, `time` (a `datetime` with a time zone, or text), `latency_ms`, `request_id`, `status`, `error`,
                `request`, `response`, `width`, `height` and others, as docs/elsewhere.md has them.

        Raises:
            InputError: The image or a value cannot be sent.
            ServerRefused: The server answered with an error.
        """
        own = present(image=image, predictions=predictions, metadata=metadata, key=key, **values)
        return list(self.log_many(model, [own], version=version)["inferences"][0]["ids"])

    def log_many(
        self, model: str, inferences: Sequence[Mapping[str, Any]], *, version: Version | None = None
    ) -> dict[str, Any]:
        """Store up to 1,000 inferences of a model that is served elsewhere; return which were stored and which refused.

        Args:
            model: Name of the model.
            inferences: Each as docs/elsewhere.md has it; `image` may be what `infer` takes, and a `key` is added where
                there is none.
            version: Version of the model.
        """
        items = [logged_inference(inference, self._image_bytes) for inference in inferences]
        name, version = split_version(model, version)
        body = present(model=name, version=version, inferences=items)
        call = json_call("POST", "/api/inferences", body=body, is_repeatable=True)
        answer: dict[str, Any] = self.send(call)
        return answer

    def query(
        self,
        where: Where = None,
        *,
        order: str = "-ts",
        limit: int | None = None,
        page_size: int = 1000,
        consistency: str | None = None,
    ) -> Query:
        """Find stored inferences; nothing is sent before the result is read.

        Args:
            where: Filter, as one line of text (`"label=circle:ge:0.8 & meta.camera=north"`) or as JSON; None for all.
            order: `-ts`, newest first, or `ts`.
            limit: Maximum inferences; None for all.
            page_size: Inferences of a page, 1 to 1,000.
            consistency: `journal` waits for all inferences that were acknowledged before.

        Raises:
            InputError: `limit` or `page_size` is out of its range.
        """
        if not 1 <= page_size <= 1000 or (limit is not None and limit < 0):
            raise InputError(
                f"expected page_size of 1 to 1000 and a limit from 0, got {page_size} and {limit}"
            )
        body = present(where=where, order=order, limit=page_size, consistency=consistency)
        return Query(
            body,
            limit,
            read_page=lambda page: self.send(
                json_call("POST", "/api/inferences/query", body=page, is_repeatable=True)
            ),
            make=self._stored,
            count=lambda: self.inferences.count(where, consistency=consistency),
        )

    @overload
    def evaluate(self, /, model: str, *, wait: Literal[True] = True, progress: bool | None = None, **parameters: Any) -> Report: ...  # fmt: skip

    @overload
    def evaluate(self, /, model: str, *, wait: bool, progress: bool | None = None, **parameters: Any) -> dict[str, Any]: ...  # fmt: skip

    def evaluate(self, /, model: str, *, wait: bool = True, progress: bool | None = None, **parameters: Any) -> dict[str, Any]:  # fmt: skip
        """Evaluate a model on what is stored with ground truth; return the report, or the job without `wait`.

        Args:
            model: Name of the model, or `name@version`.
            wait: Whether to wait for the report.
            progress: Whether stderr shows how far it is; None for yes on a terminal.
            parameters: As docs/evaluation.md has them; each of `compare` may be `name` or `name@version`.
        """
        body = model_body(model, parameters)
        return self._report("/api/evaluations", body, wait=wait, progress=progress)

    @overload
    def drift(self, /, model: str, *, wait: Literal[True] = True, progress: bool | None = None, **parameters: Any) -> Report: ...  # fmt: skip

    @overload
    def drift(self, /, model: str, *, wait: bool, progress: bool | None = None, **parameters: Any) -> dict[str, Any]: ...  # fmt: skip

    def drift(self, /, model: str, *, wait: bool = True, progress: bool | None = None, **parameters: Any) -> dict[str, Any]:  # fmt: skip
        """Compare what is stored with a baseline; return the report, or the job without `wait`.

        Args:
            model: Name of the model.
            wait: Whether to wait for the report.
            progress: Whether stderr shows how far it is; None for yes on a terminal.
            parameters: As docs/drift.md has them; `from_` stands for `from`.
        """
        body = model_body(model, parameters)
        return self._report("/api/drift", body, wait=wait, progress=progress)

    def send(self, call: Call, read: Read = read_json) -> Any:
        """Send a request, again if that is safe, and return what `read` makes of the answer."""
        answer = send_repeatedly(
            call,
            partial(self._send_once, call),
            self._knows_keys,
            retries=self._retries,
            total_s=self._total_s,
        )
        return read(answer)

    def open_stream(self, call: Call, *, by_line: bool = True) -> Iterator[bytes]:
        """Send a request once, and yield the lines of its answer, or parts of up to 1 MiB."""
        return self._connections.stream(call, self._timeout_s, self._check, by_line=by_line)

    def _send_once(self, call: Call, end_s: float) -> Response:
        deadline_s = min(end_s, time.monotonic() + self._timeout_s)
        answer = self._connections.exchange(call, deadline_s)
        self._check(answer)
        return answer

    def _check(self, answer: Response) -> None:
        try:
            check_answer(answer, self.url)
        except Unauthenticated as error:
            if "Authorization" not in self._headers:
                error.add_note(f"no key was sent: set key=, {KEY_VARIABLE} or {KEY_FILE_VARIABLE}")
            raise

    def _stored(self, raw: Mapping[str, Any]) -> StoredInference:
        return StoredInference(raw, self.inferences.image, self._labels)

    def _read_model(self, name: str) -> Any:
        """Read a model for its labels, in one short try: pictures do without them."""
        call = read_call("/api/models/{}", name)
        return read_json(self._send_once(call, time.monotonic() + LABELS_TIMEOUT_S))

    def _knows_keys(self, end_s: float) -> bool:
        """Check whether the server stores requests with one idempotency key once."""
        extensions = read_json(self._send_once(read_call("/v2"), end_s))
        try:
            return "idempotency_key" in extensions["extensions"]
        except (TypeError, KeyError) as error:
            raise BadAnswer("expected the server's metadata at /v2, got something else") from error

    def _report(self, path: str, body: Any, *, wait: bool, progress: bool | None) -> dict[str, Any]:
        job = Job(self.send(json_call("POST", path, body=body)))
        if not wait:
            return job
        return self.reports.get(self.jobs.wait(job, progress=progress)["id"])
