"""One request through the house: read this first.

    room → parameters and metadata checked → images decoded → preprocess → session → predict → score → journal → answer

Images are `quadriga.engine.image_inference`'s, tensors `quadriga.engine.tensor_inference`'s. It is plain code in one
thread per request (a stream may take another for each step); only `run`, which hands it over, is async.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from quadriga.engine.explanation import explain_images, wishes
from quadriga.engine.image_graph import ImageGraph
from quadriga.engine.image_inference import (
    ImageModel,
    failed_images,
    infer_images,
    stream_image,
    wants_tensors,
)
from quadriga.engine.model import Model
from quadriga.engine.model_control import ModelControl
from quadriga.engine.readiness import Board
from quadriga.engine.recording import Answered, Handled, Kept, Recorder
from quadriga.engine.repository import ModelRepository
from quadriga.engine.room import ADMITTED, Admission
from quadriga.engine.semantic_score import SemanticScores
from quadriga.engine.session import RunError
from quadriga.engine.settings import Settings
from quadriga.engine.stopwatch import Event, stages_ms
from quadriga.engine.tensor_inference import failed_tensors, infer_tensors, rows
from quadriga.proto.errors import (
    InternalError,
    InvalidRequest,
    Overloaded,
    ProtocolError,
    Unsupported,
    as_answered,
)
from quadriga.proto.messages import InferPiece, InferRequest, InferResponse, Tensor
from quadriga.store.errors import JournalError
from quadriga.tasks.predictions import OutputError

Result = TypeVar("Result")

MAX_ERROR_CHARACTERS = 2000
"""Of why a model failed, as it is stored."""

_NOTHING = Kept()
_BELOW = (JournalError, RunError, OutputError)
"""Errors of the packages below that the wire knows by other names."""


class _Waited(threading.local):
    """How long the job of this thread waited for it."""

    ns = 0


class Pipeline:
    """Answers requests; satisfies `quadriga.proto.messages.Serving`.

    Without a recorder nothing is kept, without scores there are none, without a control models are loaded
    in this process alone.
    """

    def __init__(
        self,
        repository: ModelRepository,
        recorder: Recorder | None,
        settings: Settings,
        control: ModelControl | None = None,
        scores: SemanticScores | None = None,
    ) -> None:
        self._repository = repository
        control = control or ModelControl(repository)
        self.model_info, self.model_statuses = repository.info, repository.statuses
        self.load_model, self.unload_model = control.load, control.unload
        self.statistics = control.statistics
        self._waited = _Waited()
        self._recorder = recorder
        self._scores = scores
        self._pool = ThreadPoolExecutor(settings.thread_count, thread_name_prefix="request")
        self._settings = settings
        self._queued = 0
        self.draining = False
        self.board: Board | None = None
        """Where the other workers say whether they are ready."""

    def run(self, job: Callable[[], Result]) -> Awaitable[Result]:
        """Run a job in the pool of threads; called on the event loop.

        Raises:
            Overloaded: As many requests run and wait as may.
        """
        if self._queued >= (most := self._settings.max_queue):
            raise Overloaded(f"expected fewer than {most} requests at once, got one more")
        self._queued += 1
        queued_ns = time.perf_counter_ns()

        def begin() -> Result:
            self._waited.ns = time.perf_counter_ns() - queued_ns
            return job()

        future = asyncio.get_running_loop().run_in_executor(self._pool, begin)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: object) -> None:
        self._queued -= 1

    def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request, in the caller's thread.

        Raises:
            quadriga.proto.errors.ProtocolError: With the text for the client.
        """
        started = time.perf_counter()
        model = self._repository.get(request.model, request.version)
        queue_ns, self._waited.ns = self._waited.ns, 0
        model.stopwatch.start()
        images = None
        try:
            admission = self._admit(model, request)
            images = self._image_model(model, request)
            if images is None:
                outputs, answered = infer_tensors(model, request)
            else:
                outputs, answered = infer_images(images, request)
            events = model.stopwatch.stop()
            answered = self._scored(model, answered)
            handled = _handled(model, request, started, queue_ns, events)
            kept = self._record(handled, answered, admission)
        except Exception as error:
            events = model.stopwatch.stop()
            model.counters.failed(queue_ns, events)
            handled = _handled(model, request, started, queue_ns, events)
            self._record_failure(handled, request, images, error)
            if isinstance(error, _BELOW):
                raise _translated(model, error) from error
            raise
        count = rows(model, request) if images is None else len(answered)
        model.counters.succeeded(count, queue_ns, events)
        told = list(self._told(outputs, answered, kept, per_image=images is not None))
        headers: Sequence[tuple[str, str]] = ()
        if self._scores is not None and images is not None:
            headers = self._scores.headers(answered)
        chosen = _selected(told, request)
        ids = [each for each in kept.ids if each]
        lag_bytes = admission.lag_bytes
        return InferResponse(
            model.name, model.version, request.id, chosen, ids, kept.stored, lag_bytes, headers
        )

    def stream(self, request: InferRequest) -> Iterator[InferPiece]:
        """Answer one prompt about one image piece by piece; each step in its caller's thread.

        What is not read to its end is not recorded.

        Raises:
            quadriga.proto.errors.ProtocolError: With the text for the client.
        """
        started = time.perf_counter()
        model = self._repository.get(request.model, request.version)
        images = self._image_model(model, request)
        if images is None:
            raise InvalidRequest(
                f"expected a model of images to answer as a stream, got {model.recognition.task}"
            )
        queue_ns, self._waited.ns = self._waited.ns, 0
        events: list[Event] = [(0, time.perf_counter_ns(), -1)]
        try:
            admission = self._admit(model, request)
            for text, answered in _timed(model, stream_image(images, request), events):
                kept = _NOTHING
                if answered is not None:  # the last piece, after which a client may not ask again
                    handled = _handled(model, request, started, queue_ns, events)
                    kept = self._record(handled, self._scored(model, [answered]), admission)
                    model.counters.succeeded(1, queue_ns, events)
                ids = [each for each in kept.ids if each]
                yield InferPiece(model.name, model.version, request.id, text, ids, kept.stored)
        except Exception as error:
            model.counters.failed(queue_ns, events)
            handled = _handled(model, request, started, queue_ns, events)
            self._record_failure(handled, request, images, error)
            if isinstance(error, _BELOW):
                raise _translated(model, error) from error
            raise

    def _told(
        self,
        outputs: Sequence[Tensor],
        answered: Sequence[Answered],
        kept: Kept,
        *,
        per_image: bool,
    ) -> Iterator[Tensor]:
        """Add to each output its images' ids, or that there was no room for them, and their scores."""
        start = 0
        for tensor in outputs:
            more: dict[str, Any] = {} if kept.stored else {"stored": False}
            if per_image:
                end = start + len(tensor.data)
                ids = ",".join(filter(None, kept.ids[start:end]))
                more |= {"inference_id": ids} if ids else {}
                if self._scores is not None:
                    more |= self._scores.parameters(answered[start:end])
                start = end
            parameters = {**tensor.parameters, **more}
            yield msgspec.structs.replace(tensor, parameters=parameters) if more else tensor

    def _scored(self, model: Model, answered: list[Answered]) -> list[Answered]:
        return answered if self._scores is None else self._scores.score(model, answered)

    def _recorder_of(self, model: Model) -> Recorder | None:
        """Give what keeps a model's inferences; None where they are not kept."""
        return self._recorder if model.recognition.written.store.enabled else None

    def _admit(self, model: Model, request: InferRequest) -> Admission:
        """See that what a request asks to be kept can be, before the model is run."""
        recorder = self._recorder_of(model)
        if recorder is None or _declines(request):
            return ADMITTED
        return recorder.room.admit(model.recognition.written.store.journal_full)

    def _record(self, handled: Handled, answered: Sequence[Answered], admission: Admission) -> Kept:
        recorder = self._recorder_of(handled.model)
        if recorder is None:
            return _NOTHING
        return recorder.record(handled, answered, shed=admission.shed)

    def _record_failure(
        self, handled: Handled, request: InferRequest, images: ImageModel | None, error: Exception
    ) -> None:
        """Keep what the model failed to answer; what a client did wrong is not kept."""
        recorder, fault = self._recorder_of(handled.model), _translated(handled.model, error)
        told = isinstance(fault, ProtocolError)
        if recorder is None or (told and not isinstance(fault, InternalError)):
            return
        text = str(fault) if told else f"{type(fault).__name__}: {fault}"
        text = text[:MAX_ERROR_CHARACTERS] or type(fault).__name__
        with suppress(ProtocolError, JournalError):
            failed = failed_tensors(request) if images is None else failed_images(images, request)
            recorder.record(msgspec.structs.replace(handled, error=text), failed)

    def explain(self, request: InferRequest) -> tuple[InferResponse, list[Any]]:
        """Answer a request, and say what of each image decided; the answer alone is recorded.

        Raises:
            quadriga.proto.errors.ProtocolError: With the text for the client.
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
            raise _translated(model, error) from error

    def _image_model(self, model: Model, request: InferRequest) -> ImageModel | None:
        """Give what answers a request's images; None where it brings tensors of the graph."""
        if model.images is None or model.spec is None:
            return None
        if isinstance(model.images, ImageGraph) and wants_tensors(request):
            return None
        limits = self._settings.max_pixels, self._settings.max_images
        found = ImageModel(model.images, model.spec, *limits)
        recorder = self._recorder_of(model)
        if recorder is None:
            return found
        return msgspec.structs.replace(found, choose=partial(recorder.choose, model))

    def unready_reason(self) -> str | None:
        """Say why the server is not ready, or None when it is."""
        if self.draining:
            return "the server is shutting down"
        statuses = [s for s in self._repository.statuses() if s.state != "UNLOADED"]
        loading = [f"{s.name} {s.version}" for s in statuses if s.state == "LOADING"]
        if loading:
            return f"expected every model to be loaded, still loading: {', '.join(loading)}"
        failed = [f"{s.name} {s.version} ({s.reason})" for s in statuses if s.state == "FAILED"]
        if failed and (self._settings.strict_readiness or len(failed) == len(statuses)):
            return f"expected every model to load, failed: {'; '.join(failed)}"
        return None if self.board is None else self.board.unready_reason()

    def close(self) -> None:
        """Finish what runs, then close the journal."""
        self._pool.shutdown(wait=True)
        if self._scores is not None:
            self._scores.close()
        if self._recorder is not None:
            self._recorder.close()


def _handled(
    model: Model, request: InferRequest, started_s: float, queue_ns: int, events: list[Event]
) -> Handled:
    """Say what is kept of a request beside its images."""
    protocol = request.protocol
    if protocol == "v2" and model.images is not None and not wants_tensors(request):
        protocol = "chariot-v2-kserve"  # which of the two, the model's task says
    latency_ms = round((time.perf_counter() - started_s) * 1000, 3)
    return Handled(model, request.id, protocol, latency_ms, stages_ms(queue_ns, events))


def _translated(model: Model, error: Exception) -> Exception:
    """Give what the wire calls an error; the error itself where it knows that."""
    if isinstance(error, JournalError):
        return Overloaded(str(error))
    if isinstance(error, RunError | OutputError):
        return InternalError(f"model {model.name!r} failed: {error}")
    return as_answered(error)


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


def _declines(request: InferRequest) -> bool:
    """Tell whether a request wants nothing of it kept."""
    by_default = request.parameters.get("store") is False
    return all(tensor.parameters.get("store", not by_default) is False for tensor in request.inputs)
