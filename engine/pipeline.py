"""One request from admission to response: read this first.

    admit → answer (decode, preprocess, run, postprocess) → score → record → decorate

Images are answered in `quadriga.engine.image_inference`, rows of features in `quadriga.engine.row_inference`, tensors
in `quadriga.engine.tensor_inference`. It is plain code in one thread per request (a stream may take another thread
for each step); only `run`, which hands a request to `quadriga.engine.request_queue`, is async.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from quadriga.engine.explanation import explain_images, read_explain_options
from quadriga.engine.health import ServerHealth
from quadriga.engine.image_graph import ImageGraph
from quadriga.engine.image_inference import (
    ImageBudgets,
    ImageModel,
    failed_image_results,
    infer_images,
    stream_image,
    wants_raw_tensors,
)
from quadriga.engine.journal_capacity import ADMITTED, Admission
from quadriga.engine.model import Model
from quadriga.engine.model_control import ModelControl
from quadriga.engine.output_decoration import (
    decorate_outputs,
    score_headers,
    select_outputs,
    truncation_headers,
)
from quadriga.engine.recording import ImageResult, Recorder, RequestSummary, StoreResult
from quadriga.engine.repository import ModelRepository
from quadriga.engine.request_queue import RequestQueue
from quadriga.engine.request_trace import RequestTrace, to_protocol_error
from quadriga.engine.row_explanation import explain_rows, read_rows_to_explain
from quadriga.engine.row_inference import infer_rows, row_classifier
from quadriga.engine.semantic_score import SemanticScores
from quadriga.engine.session import RunError
from quadriga.engine.settings import Settings
from quadriga.engine.tensor_inference import count_rows, failed_tensor_results, infer_tensors
from quadriga.proto.access import admit_model, current_caller
from quadriga.proto.chariot import protocol_of_images
from quadriga.proto.deadline import (
    PARAMETER_LIMIT,
    Deadline,
    check_deadline,
    current_deadline,
    read_timeout_parameter,
)
from quadriga.proto.errors import Forbidden, InvalidRequest, NotFound, Unsupported
from quadriga.proto.messages import (
    InferChunk,
    InferRequest,
    InferResponse,
    ModelInfo,
    ModelStatistics,
    ModelStatus,
)
from quadriga.store.model_names import find_model_name, unknown_model_text
from quadriga.tasks.budget import Budget
from quadriga.tasks.predictions import OutputError

Result = TypeVar("Result")

_NOT_STORED = StoreResult()


class Pipeline:
    """Answers requests; satisfies `quadriga.proto.messages.Serving`.

    Without a recorder nothing is stored, without scores there are none, and without a control models are loaded
    in this process alone. The queue holds the requests of `run`; by default it is made from the settings.
    """

    def __init__(
        self,
        repository: ModelRepository,
        recorder: Recorder | None,
        settings: Settings,
        control: ModelControl | None = None,
        scores: SemanticScores | None = None,
        *,
        queue: RequestQueue | None = None,
    ) -> None:
        self._repository = repository
        self._queue = queue or request_queue(settings)
        control = control or ModelControl(repository, queues=self._queue.statistics)
        self._control = control
        self.queue_statistics = control.queue_statistics
        self.health = ServerHealth(repository, recorder, settings)
        """Readiness of the server; the end of the server and its processes are noted in it."""
        self.unready_reason = self.health.unready_reason
        self.health_report = self.health.report
        self._recorder = recorder
        self._scores = scores
        self._settings = settings

    def run(
        self,
        task: Callable[[], Result],
        *,
        model: str | None = None,
        deadline: Deadline | None = None,
        connection: Hashable = None,
        is_begun: bool = False,
    ) -> Awaitable[Result]:
        """Run a task in the pool of threads, called on the event loop; see `quadriga.proto.messages.Serving.run`."""
        names = self._repository.names()
        if model not in names:  # the search of other forms sorts all names
            model = None if model is None else find_model_name(model, names)
        return self._queue.run(
            task,
            model=model or "",
            deadline=deadline,
            connection=connection,
            is_begun=is_begun,
        )

    def model_info(self, name: str, version: str | None) -> ModelInfo:
        """Describe a model that is ready; this and what follows as `quadriga.proto.messages.Serving` has it."""
        self._check_known_model(name)
        return self._repository.info(name, version)

    def model_statuses(self) -> list[ModelStatus]:
        """Return the state of every version of every model that the caller may use."""
        caller = current_caller()
        return [status for status in self._repository.statuses() if caller.may_use(status.name)]

    def model_unready_reason(self, name: str, version: str | None) -> str | None:
        """Return why requests to a model are refused; None if they are answered."""
        self._check_known_model(name)
        return self.health.model_unready_reason(name, version)

    def load_model(
        self, name: str, config: Mapping[str, Any] | None, files: Mapping[str, bytes]
    ) -> None:
        """Load a model, or load it again."""
        self._check_model(name)
        try:
            self._control.load(name, config, files)
        except NotFound:
            self._check_known_model(name)
            raise

    def unload_model(self, name: str) -> None:
        """Unload all versions of a model."""
        self._check_known_model(name)
        self._control.unload(name)

    def statistics(self, name: str | None, version: str | None) -> Sequence[ModelStatistics]:
        """Return the statistics of the models that the caller may use; they are of all teams."""
        if name is not None:
            self._check_model(name)
        caller = current_caller()
        if caller.team:
            raise Forbidden("expected a key without a team, as statistics are of all teams")
        every = self._control.statistics(name, version)
        return [statistics for statistics in every if caller.may_use(statistics.name)]

    def _check_model(self, name: str) -> None:
        """Raise `Forbidden` if the caller's key is for other models."""
        caller = current_caller()
        if caller.models:
            folder_name = find_model_name(name, self._repository.names()) or name
            admit_model(caller, name, folder_name)

    def _check_known_model(self, name: str) -> None:
        """Raise as `_check_model`, and `NotFound`, which names no other models, if the caller's key is for none such."""
        self._check_model(name)
        caller, names = current_caller(), self._repository.names()
        if caller.models and find_model_name(name, names) is None:
            raise NotFound(unknown_model_text(name, [*filter(caller.may_use, names)]))

    def _admitted_model(self, name: str, version: str | None) -> Model:
        """Return a model that is ready, and that the caller may use; raises as `ModelRepository.get`."""
        self._check_known_model(name)
        return self._repository.get(name, version)

    def _apply_timeout(self, request: InferRequest) -> None:
        """Shorten the time of the request that this thread answers, if the request says so, and check it."""
        deadline = current_deadline()
        if deadline is None:
            return
        if (value := request.parameters.get("timeout")) is not None:
            timeout_s = read_timeout_parameter(value)
            if timeout_s is not None:
                deadline.shorten(timeout_s, PARAMETER_LIMIT)
                self._queue.watch(deadline)
        deadline.check()

    def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request, in the caller's thread.

        Raises:
            quadriga.proto.errors.ProtocolError: With the text for the client.
        """
        self._apply_timeout(request)
        model = self._admitted_model(request.model, request.version)
        images = self._image_model(model, request)
        classifier = row_classifier(model, request)
        is_tensors = images is None and classifier is None
        with self._trace(model, images, request) as trace:
            admission = self._admit(model, request)
            if images is not None:
                outputs, results = infer_images(images, request)
            elif classifier is not None:
                outputs, results = infer_rows(
                    model, classifier, request, max_rows=self._settings.max_images
                )
            else:
                outputs, results = infer_tensors(model, request)
            trace.stop()
            results = self._score(model, results)
            check_deadline()  # what nobody waits for is not stored
            stored = self._record(trace.summary(), results, admission)
            trace.count_success(count_rows(model, request) if is_tensors else len(results))
        decorated = decorate_outputs(
            outputs,
            results,
            stored,
            per_image=not is_tensors,
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
            headers=[
                *score_headers(results, self._settings.semantic_score_header),
                *truncation_headers(results),
                *trace.timing_headers(),
            ],
        )

    def stream(self, request: InferRequest) -> Iterator[InferChunk]:
        """Answer one prompt about one image piece by piece; each step in its caller's thread.

        Abandoned streams are not recorded.

        Raises:
            quadriga.proto.errors.ProtocolError: With the text for the client.
        """
        self._apply_timeout(request)
        model = self._admitted_model(request.model, request.version)
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
                    check_deadline()
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
        """Answer a request, and explain a prediction of each image or row; only the response is recorded.

        Raises:
            quadriga.proto.errors.ProtocolError: With the text for the client.
        """
        model = self._admitted_model(request.model, request.version)
        images = self._image_model(model, request)
        explain: Callable[[], list[Any]]
        if (classifier := row_classifier(model, request)) is not None:
            rows = read_rows_to_explain(
                model, classifier, request, max_rows=self._settings.max_images
            )
            explain = partial(explain_rows, model, classifier, rows)
        else:
            options = read_explain_options(model.recognition.task, request)
            if images is None:
                raise Unsupported("expected images or rows to explain, got tensors")
            explain = partial(explain_images, images, request, options)
        response = self.infer(request)
        try:
            return response, explain()
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
            budgets=ImageBudgets(
                Budget(self._settings.max_request_pixels, "pixels"),
                Budget(self._settings.max_tiles, "tiles"),
                Budget(self._settings.max_tokens, "new tokens"),
            ),
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
            queue_ns=self._queue.waited.take(),
            recorder=self._recorder_of(model),
            failed_results=failed_results,
            team=current_caller().team,
        )

    def _recorder_of(self, model: Model) -> Recorder | None:
        """Return the recorder of a model's inferences; None where they are not stored."""
        return self._recorder if model.recognition.written.store.enabled else None

    def _admit(self, model: Model, request: InferRequest) -> Admission:
        """Check, before the model runs, that the journal has room for the request."""
        recorder = self._recorder_of(model)
        if recorder is None or _opts_out(request):
            return ADMITTED
        quota = current_caller().quota
        if quota is not None:
            quota.check_storing()
        return recorder.capacity.admit(model.recognition.written.store.journal_full)

    def _score(self, model: Model, results: list[ImageResult]) -> list[ImageResult]:
        return (
            results
            if self._scores is None
            else self._scores.score(model, results, current_caller().team)
        )

    def _record(
        self, summary: RequestSummary, results: list[ImageResult], admission: Admission
    ) -> StoreResult:
        recorder = self._recorder_of(summary.model)
        if recorder is None:
            return _NOT_STORED
        return recorder.record(summary, results, shed=admission.shed)

    def close(self) -> None:
        """Stop what still runs, then close the journal."""
        self._queue.close()
        if self._scores is not None:
            self._scores.close()
        if self._recorder is not None:
            self._recorder.close()


def request_queue(settings: Settings) -> RequestQueue:
    """Make the queue of a worker, as the settings say."""
    return RequestQueue(settings.thread_count, settings.max_queue, settings.max_wait_s)


def _opts_out(request: InferRequest) -> bool:
    """Check whether a request asks to store none of its inferences."""
    default = request.parameters.get("store") is not False
    return all(tensor.parameters.get("store", default) is False for tensor in request.inputs)
