"""One request from admission to response: read this first.

    admit → answer (decode, preprocess, run, postprocess) → score → record → decorate

Images are answered in `quadriga.engine.image_inference`, tensors in `quadriga.engine.tensor_inference`. It is plain
code in one thread per request (a stream may take another thread for each step); only `run`, which hands a request
to that thread, is async.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from quadriga.engine.explanation import explain_images, read_explain_options
from quadriga.engine.image_graph import ImageGraph
from quadriga.engine.image_inference import (
    ImageModel,
    failed_image_results,
    infer_images,
    stream_image,
    wants_raw_tensors,
)
from quadriga.engine.journal_capacity import ADMITTED, Admission
from quadriga.engine.model import Model
from quadriga.engine.model_control import ModelControl
from quadriga.engine.output_decoration import decorate_outputs, score_headers, select_outputs
from quadriga.engine.readiness import ReadinessFlags
from quadriga.engine.recording import ImageResult, Recorder, RequestSummary, StoreResult
from quadriga.engine.repository import ModelRepository
from quadriga.engine.request_trace import RequestTrace, to_protocol_error
from quadriga.engine.semantic_score import SemanticScores
from quadriga.engine.session import RunError
from quadriga.engine.settings import Settings
from quadriga.engine.tensor_inference import count_rows, failed_tensor_results, infer_tensors
from quadriga.proto.chariot import protocol_of_images
from quadriga.proto.errors import InvalidRequest, Overloaded, Unsupported
from quadriga.proto.messages import InferChunk, InferRequest, InferResponse
from quadriga.tasks.predictions import OutputError

Result = TypeVar("Result")

_NOT_STORED = StoreResult()


class _QueueTime(threading.local):
    """Nanoseconds that this thread's task waited in the queue."""

    ns = 0

    def take(self) -> int:
        """Return the time, and forget it: a task that makes two requests waited once."""
        queue_ns, self.ns = self.ns, 0
        return queue_ns


class Pipeline:
    """Answers requests; satisfies `quadriga.proto.messages.Serving`.

    Without a recorder nothing is stored, without scores there are none, and without a control models are loaded
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
        self._queue_time = _QueueTime()
        self._recorder = recorder
        self._scores = scores
        self._pool = ThreadPoolExecutor(settings.thread_count, thread_name_prefix="request")
        self._settings = settings
        self._queued = 0
        self.draining = False
        self.readiness: ReadinessFlags | None = None
        """Readiness of all workers, where there are several."""

    def run(self, task: Callable[[], Result]) -> Awaitable[Result]:
        """Run a task in the pool of threads; called on the event loop.

        Raises:
            Overloaded: The maximum number of requests runs and waits already.
        """
        if self._queued >= (max_queue := self._settings.max_queue):
            raise Overloaded(f"expected fewer than {max_queue} requests at once, got one more")
        self._queued += 1
        queued_ns = time.perf_counter_ns()

        def begin() -> Result:
            self._queue_time.ns = time.perf_counter_ns() - queued_ns
            return task()

        future = asyncio.get_running_loop().run_in_executor(self._pool, begin)
        future.add_done_callback(self._leave_queue)
        return future

    def _leave_queue(self, _: object) -> None:
        self._queued -= 1

    def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request, in the caller's thread.

        Raises:
            quadriga.proto.errors.ProtocolError: With the text for the client.
        """
        model = self._repository.get(request.model, request.version)
        images = self._image_model(model, request)
        with self._trace(model, images, request) as trace:
            admission = self._admit(model, request)
            if images is None:
                outputs, results = infer_tensors(model, request)
            else:
                outputs, results = infer_images(images, request)
            trace.stop()
            results = self._score(model, results)
            stored = self._record(trace.summary(), results, admission)
            trace.count_success(count_rows(model, request) if images is None else len(results))
        decorated = decorate_outputs(
            outputs,
            results,
            stored,
            per_image=images is not None,
            with_scores=self._settings.semantic_score_in_parameters,
        )
        return InferResponse(
            model=model.name,
            version=model.version,
            id=request.id,
            outputs=select_outputs(decorated, request.requested_outputs),
            inference_ids=[inference_id for inference_id in stored.ids if inference_id],
            stored=stored.stored,
            lag_bytes=admission.lag_bytes,
            headers=score_headers(results, self._settings.semantic_score_header),
        )

    def stream(self, request: InferRequest) -> Iterator[InferChunk]:
        """Answer one prompt about one image piece by piece; each step in its caller's thread.

        Abandoned streams are not recorded.

        Raises:
            quadriga.proto.errors.ProtocolError: With the text for the client.
        """
        model = self._repository.get(request.model, request.version)
        images = self._image_model(model, request)
        if images is None:
            raise InvalidRequest(
                f"expected a model of images to answer as a stream, got {model.recognition.task}"
            )
        with self._trace(model, images, request) as trace:
            admission = self._admit(model, request)
            for text, result in trace.timed_steps(stream_image(images, request)):
                stored = _NOT_STORED
                if result is not None:  # the last piece, after which a client may not ask again
                    results = self._score(model, [result])
                    stored = self._record(trace.summary(), results, admission)
                    trace.count_success(1)
                ids = [inference_id for inference_id in stored.ids if inference_id]
                yield InferChunk(
                    model.name,
                    model.version,
                    request.id,
                    text=text,
                    inference_ids=ids,
                    stored=stored.stored,
                )

    def explain(self, request: InferRequest) -> tuple[InferResponse, list[Any]]:
        """Answer a request, and explain a prediction of each image; only the response is recorded.

        Raises:
            quadriga.proto.errors.ProtocolError: With the text for the client.
        """
        model = self._repository.get(request.model, request.version)
        images = self._image_model(model, request)
        options = read_explain_options(model.recognition.task, request)
        if images is None:
            raise Unsupported("expected images to explain, got tensors")
        response = self.infer(request)
        try:
            return response, explain_images(images, request, options)
        except (RunError, OutputError) as error:
            raise to_protocol_error(model.name, error) from error

    def _image_model(self, model: Model, request: InferRequest) -> ImageModel | None:
        """Return what answers the request's images; None where it brings tensors for the graph."""
        if model.image_predictor is None:
            return None
        if isinstance(model.image_predictor, ImageGraph) and wants_raw_tensors(request):
            return None
        recorder = self._recorder_of(model)
        return ImageModel(
            predictor=model.image_predictor,
            max_pixels=self._settings.max_pixels,
            max_images=self._settings.max_images,
            choose_for_signals=None
            if recorder is None
            else partial(recorder.choose_for_signals, model),
        )

    def _trace(
        self, model: Model, images: ImageModel | None, request: InferRequest
    ) -> RequestTrace:
        """Prepare the accounting of a request."""
        if images is None:
            protocol, failed_results = request.protocol, partial(failed_tensor_results, request)
        else:
            protocol = protocol_of_images(request.protocol)
            failed_results = partial(failed_image_results, images, request)
        return RequestTrace(
            model,
            request,
            protocol=protocol,
            queue_ns=self._queue_time.take(),
            recorder=self._recorder_of(model),
            failed_results=failed_results,
        )

    def _recorder_of(self, model: Model) -> Recorder | None:
        """Return the recorder of a model's inferences; None where they are not stored."""
        return self._recorder if model.recognition.written.store.enabled else None

    def _admit(self, model: Model, request: InferRequest) -> Admission:
        """Check, before the model runs, that the journal has room for the request."""
        recorder = self._recorder_of(model)
        if recorder is None or _opts_out(request):
            return ADMITTED
        return recorder.capacity.admit(model.recognition.written.store.journal_full)

    def _score(self, model: Model, results: list[ImageResult]) -> list[ImageResult]:
        return results if self._scores is None else self._scores.score(model, results)

    def _record(
        self, summary: RequestSummary, results: list[ImageResult], admission: Admission
    ) -> StoreResult:
        recorder = self._recorder_of(summary.model)
        if recorder is None:
            return _NOT_STORED
        return recorder.record(summary, results, shed=admission.shed)

    def unready_reason(self) -> str | None:
        """Return why the server is not ready, or None when it is."""
        if self.draining:
            return "the server is shutting down"
        statuses = [s for s in self._repository.statuses() if s.state != "UNLOADED"]
        loading = [f"{s.name} {s.version}" for s in statuses if s.state == "LOADING"]
        if loading:
            return f"expected every model to be loaded, still loading: {', '.join(loading)}"
        failed = [f"{s.name} {s.version} ({s.reason})" for s in statuses if s.state == "FAILED"]
        if failed and (self._settings.strict_readiness or len(failed) == len(statuses)):
            return f"expected every model to load, failed: {'; '.join(failed)}"
        return None if self.readiness is None else self.readiness.unready_reason()

    def close(self) -> None:
        """Finish what runs, then close the journal."""
        self._pool.shutdown(wait=True)
        if self._scores is not None:
            self._scores.close()
        if self._recorder is not None:
            self._recorder.close()


def _opts_out(request: InferRequest) -> bool:
    """Check whether a request asks to store none of its inferences."""
    default = request.parameters.get("store") is not False
    return all(tensor.parameters.get("store", default) is False for tensor in request.inputs)
