"""One request through the house: read this first.

    parameters and metadata checked → images decoded → preprocess → session → predict → journal → answer

What happens to images stands in `engine.image_inference`, to tensors in `engine.tensor_inference`. All of
it is plain code that runs in one thread per request, from its bytes to its answer; only `run`, which hands
a request to the pool, is async; a stream may take another thread for each of its steps. Errors of the
packages below become those of the wire here, naming the input.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from engine.explanation import explain_images, wishes
from engine.image_graph import ImageGraph
from engine.image_inference import ImageModel, infer_images, stream_image, wants_tensors
from engine.model import Model
from engine.model_control import ModelControl
from engine.readiness import Board
from engine.recording import Answered, Recorder
from engine.repository import ModelRepository
from engine.session import RunError
from engine.stopwatch import Event
from engine.tensor_inference import infer_tensors, rows
from proto.errors import InternalError, InvalidRequest, Overloaded, Unsupported
from proto.messages import InferPiece, InferRequest, InferResponse, Tensor
from store.errors import JournalError
from tasks.predictions import OutputError

Result = TypeVar("Result")


class _Waited(threading.local):
    """How long the job of this thread waited for it."""

    ns = 0


class Pipeline:
    """Answers requests; satisfies `proto.messages.Serving`.

    Args:
        repository: The models.
        recorder: Keeps inferences; None to keep nothing.
        threads: Requests that run at once.
        max_queue: Requests that may run or wait; more are refused.
        max_pixels: Larger images are refused.
        max_images: Requests with more images are refused.
        strict_readiness: Whether a failed model keeps the server from being ready.
        control: Loads and unloads models; by default in this process alone.
    """

    def __init__(
        self,
        repository: ModelRepository,
        recorder: Recorder | None,
        *,
        threads: int,
        max_queue: int,
        max_pixels: int,
        max_images: int,
        strict_readiness: bool,
        control: ModelControl | None = None,
    ) -> None:
        self._repository = repository
        control = control or ModelControl(repository)
        self.model_info, self.model_statuses = repository.info, repository.statuses
        self.load_model, self.unload_model = control.load, control.unload
        self.statistics = control.statistics
        self._waited = _Waited()
        self._recorder = recorder
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="request")
        self._max_queue = max_queue
        self._queued = 0
        self._max_pixels = max_pixels
        self._max_images = max_images
        self._strict_readiness = strict_readiness
        self.draining = False
        self.board: Board | None = None
        """Where the other workers say whether they are ready."""

    def run(self, job: Callable[[], Result]) -> Awaitable[Result]:
        """Run a job in the pool of threads; called on the event loop.

        Raises:
            Overloaded: As many requests run and wait as may.
        """
        if self._queued >= self._max_queue:
            raise Overloaded(
                f"expected fewer than {self._max_queue} requests at once, got one more"
            )
        self._queued += 1
        queued_ns = time.perf_counter_ns()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, self._begin, queued_ns, job)
        future.add_done_callback(self._done)
        return future

    def _begin(self, queued_ns: int, job: Callable[[], Result]) -> Result:
        self._waited.ns = time.perf_counter_ns() - queued_ns
        return job()

    def _done(self, _: object) -> None:
        self._queued -= 1

    def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request, in the caller's thread.

        Raises:
            proto.errors.ProtocolError: With the text for the client.
        """
        started = time.perf_counter()
        model = self._repository.get(request.model, request.version)
        queue_ns, self._waited.ns = self._waited.ns, 0
        model.stopwatch.start()
        try:
            images = self._image_model(model, request)
            outputs, answered = _answered(model, images, request)
            events = model.stopwatch.stop()
            ids = self._record(model, request, started, answered)
        except Exception:
            model.counters.failed(queue_ns, model.stopwatch.stop())
            raise
        count = rows(model, request) if images is None else len(answered)
        model.counters.succeeded(count, queue_ns, events)
        if ids and images is not None:
            outputs = _with_ids(outputs, ids)
        chosen = _selected(outputs, request)
        return InferResponse(model.name, model.version, request.id, chosen, ids)

    def stream(self, request: InferRequest) -> Iterator[InferPiece]:
        """Answer one prompt about one image piece by piece; each step in its caller's thread.

        What is not read to its end is not recorded.

        Raises:
            proto.errors.ProtocolError: With the text for the client.
        """
        started = time.perf_counter()
        model = self._repository.get(request.model, request.version)
        images = self._image_model(model, request)
        if images is None:
            raise InvalidRequest(
                f"expected a model of images to answer as a stream, got {model.recognition.task}"
            )
        queue_ns, self._waited.ns = self._waited.ns, 0
        events: list[Event] = []
        try:
            for text, answered in _timed(model, stream_image(images, request), events):
                ids = []
                if answered is not None:  # the last piece, after which a client may not ask again
                    ids = self._record(model, request, started, [answered])
                    model.counters.succeeded(1, queue_ns, events)
                yield InferPiece(model.name, model.version, request.id, text, ids)
        except Exception as error:
            model.counters.failed(queue_ns, events)
            if isinstance(error, RunError | OutputError):
                raise InternalError(f"model {model.name!r} failed: {error}") from error
            raise

    def _record(
        self, model: Model, request: InferRequest, started: float, answered: Sequence[Answered]
    ) -> list[str]:
        """Keep what was answered since `started`, unless nothing is kept; give its ids.

        Raises:
            Overloaded: It could not be kept, as on a full disk.
        """
        if self._recorder is None or not model.recognition.store.enabled:
            return []
        latency_ms = round((time.perf_counter() - started) * 1000, 3)
        try:
            return self._recorder.record(model, request.id, latency_ms, answered)
        except JournalError as error:
            raise Overloaded(str(error)) from error

    def explain(self, request: InferRequest) -> tuple[InferResponse, list[Any]]:
        """Answer a request, and say what of each image decided; the answer alone is recorded.

        Raises:
            proto.errors.ProtocolError: With the text for the client.
        """
        model = self._repository.get(request.model, request.version)
        images = self._image_model(model, request)
        wanted = wishes(model.recognition.task, request)
        if images is None:
            raise Unsupported("expected images to explain, got tensors")
        response = self.infer(request)
        try:
            return response, explain_images(images, request, wanted)
        except (RunError, OutputError) as error:
            raise InternalError(f"model {model.name!r} failed: {error}") from error

    def _image_model(self, model: Model, request: InferRequest) -> ImageModel | None:
        """Give what answers a request's images; None where it brings tensors of the graph."""
        if model.images is None or model.spec is None:
            return None
        if isinstance(model.images, ImageGraph) and wants_tensors(request):
            return None
        return ImageModel(model.images, model.spec, self._max_pixels, self._max_images)

    def unready_reason(self) -> str | None:
        """Say why the server is not ready, or None when it is."""
        if self.draining:
            return "the server is shutting down"
        statuses = [s for s in self._repository.statuses() if s.state != "UNLOADED"]
        loading = [f"{s.name} {s.version}" for s in statuses if s.state == "LOADING"]
        if loading:
            return f"expected every model to be loaded, still loading: {', '.join(loading)}"
        failed = [f"{s.name} {s.version} ({s.reason})" for s in statuses if s.state == "FAILED"]
        if failed and (self._strict_readiness or len(failed) == len(statuses)):
            return f"expected every model to load, failed: {'; '.join(failed)}"
        return None if self.board is None else self.board.unready_reason()

    def close(self) -> None:
        """Finish what runs, then close the journal."""
        self._pool.shutdown(wait=True)
        if self._recorder is not None:
            self._recorder.close()


def _answered(
    model: Model, images: ImageModel | None, request: InferRequest
) -> tuple[list[Tensor], list[Answered]]:
    try:
        if images is None:
            return infer_tensors(model, request)
        return infer_images(images, request)
    except (RunError, OutputError) as error:
        raise InternalError(f"model {model.name!r} failed: {error}") from error


def _timed(model: Model, steps: Iterator[Result], events: list[Event]) -> Iterator[Result]:
    """Give what comes step by step, each perhaps in another thread, and note the runs of the graph."""
    while True:
        model.stopwatch.start()
        try:
            step = next(steps, None)
        finally:
            events.extend(model.stopwatch.stop())
        if step is None:
            return
        yield step


def _selected(outputs: Sequence[Tensor], request: InferRequest) -> Sequence[Tensor]:
    """Give the outputs that the request asks for, in its order."""
    if not request.requested_outputs:
        return outputs
    by_name: dict[str, list[Tensor]] = {}  # images may share a name
    for tensor in outputs:
        by_name.setdefault(tensor.name, []).append(tensor)
    names = dict.fromkeys(output.name for output in request.requested_outputs)
    return [tensor for name in names for tensor in by_name[name]]


def _with_ids(outputs: Sequence[Tensor], ids: Sequence[str]) -> list[Tensor]:
    """Add to each output the ids of its images' records."""
    given = iter(ids)
    return [
        msgspec.structs.replace(
            tensor,
            parameters={
                **tensor.parameters,
                "inference_id": ",".join(next(given) for _ in tensor.data),
            },
        )
        for tensor in outputs
    ]
