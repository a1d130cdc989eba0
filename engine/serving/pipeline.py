"""One request from admission to response: read this first.

    admit → answer (decode, preprocess, run, postprocess) → score → crops to the model behind → record → decorate

Images, rows of features and tensors are answered each in a room of its own, which `quadriga.engine.serving.model_request`
chooses. It is plain code in one thread per request (a stream may take another thread
for each step); only `run`, which hands a request to `quadriga.engine.serving.request_queue`, is async.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.model import Model
from quadriga.engine.models.model_control import ModelControl
from quadriga.engine.models.repository import ModelRepository, models_behind
from quadriga.engine.models.runners.session import RunError
from quadriga.engine.serving.crop_run import CropRun
from quadriga.engine.serving.health import ServerHealth
from quadriga.engine.serving.image_inference import stream_image
from quadriga.engine.serving.model_request import (
    NOT_STORED,
    RequestKind,
    RequestTrace,
    ResultKeeping,
    decorate_outputs,
    request_kind,
    score_headers,
    select_outputs,
    to_protocol_error,
    truncation_headers,
)
from quadriga.engine.serving.recording import Recorder, replayed_id
from quadriga.engine.serving.request_queue import MAX_BODY_BYTES, RequestQueue
from quadriga.engine.serving.semantic_score import SemanticScores
from quadriga.engine.serving.traffic import Traffic
from quadriga.proto.access import admit_model
from quadriga.proto.errors import Forbidden, InvalidRequest, NotFound
from quadriga.proto.messages import (
    InferChunk,
    InferRequest,
    InferResponse,
    ModelInfo,
    ModelStatistics,
    ModelStatus,
)
from quadriga.proto.request import (
    Deadline,
    check_deadline,
    current_caller,
    limit_by_parameter,
)
from quadriga.store.query.names import find_model_name, unknown_model_text
from quadriga.tasks.predictions import OutputError

Result = TypeVar("Result")


class Pipeline:
    """Answers requests; satisfies `quadriga.proto.messages.Serving`.

    Without a recorder nothing is stored, without scores there are none, without traffic the highest version
    answers, and without a control models are loaded in this process alone. The queue holds the requests of `run`; by
    default it is made from the settings.
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
        traffic: Traffic | None = None,
    ) -> None:
        self._repository = repository
        self._traffic = traffic or Traffic(repository)
        self._queue = queue or request_queue(settings)
        control = control or ModelControl(repository, queues=self._queue.statistics)
        self._control = control
        self.queue_statistics = control.queue_statistics
        self.health = ServerHealth(repository, recorder, settings)
        """Readiness of the server; the end of the server and its processes are noted in it."""
        self.unready_reason = self.health.unready_reason
        self.health_report = self.health.report
        self._keeping = ResultKeeping(recorder, scores)
        self._settings = settings

    def run(
        self,
        task: Callable[[], Result],
        *,
        model: str | None = None,
        deadline: Deadline | None = None,
        connection: Hashable = None,
        is_begun: bool = False,
        body_bytes: int | None = None,
    ) -> Awaitable[Result]:
        """Run a task in the pool of threads or, if it is cheap, at once; called on the event loop; see `quadriga.proto.messages.Serving.run`."""
        name = "" if model is None else self._folder_name(model)
        if body_bytes is not None and not self._is_light(name, body_bytes):
            body_bytes = None
        return self._queue.run(
            task,
            model=name,
            deadline=deadline,
            connection=connection,
            is_begun=is_begun,
            body_bytes=body_bytes,
        )

    def _is_light(self, name: str, body_bytes: int) -> bool:
        """Check whether the work for a request to a model follows from its size, and whatever it stores is appended at once.

        Where the model has been cheap so far, the event loop answers such a request: a thread would cost more.
        """
        if not name or body_bytes > MAX_BODY_BYTES:
            return False
        models = self._repository.ready_versions(name)
        return all(model.is_light and self._keeping.stores_at_once(model) for model in models)

    def _folder_name(self, model: str) -> str:
        """Return the name of a model as its folder has it; empty for an unknown one."""
        if self._repository.is_folder(model):  # the search of other forms sorts all names
            return model
        return find_model_name(model, self._repository.names()) or ""

    def model_info(self, name: str, version: str | None) -> ModelInfo:
        """Describe a model that is ready; this and what follows as `quadriga.proto.messages.Serving` has it."""
        self._check_known_model(name)
        return self._repository.info(name, version or self._traffic.main_version(name))

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
        """Load a model, or load it again; one that names a model behind it needs a key for that model, too."""
        self._check_model(name)
        then = (config or {}).get("then")
        behind = then.get("model") if isinstance(then, Mapping) else None
        if isinstance(behind, str):
            self._check_known_model(behind)
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
        caller = current_caller()
        if not caller.models:
            return
        self._check_model(name)
        names = self._repository.names()
        if find_model_name(name, names) is None:
            raise NotFound(unknown_model_text(name, [*filter(caller.may_use, names)]))

    def _admitted_model(self, request: InferRequest) -> Model:
        """Return the model that answers a request, if the caller may use it; raises as `Traffic.model_named`."""
        self._check_known_model(request.model)
        return self._traffic.model_named(request.model, request.version, request)

    def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request, in the caller's thread.

        Raises:
            quadriga.proto.errors.ProtocolError: With the text for the client.
        """
        model = self._admitted_model(request)
        limit_by_parameter(request.parameters.get("timeout"), self._queue.watch)
        behind = self._crop_run(model, request)
        kind = self._kind(model, request, behind)
        with self._trace(model, kind, request) as trace:
            admission = self._keeping.admit(model, request)
            outputs, results = kind.infer()
            trace.stop()
            results = self._keeping.score(model, results)
            stored = NOT_STORED
            summary = trace.summary() if trace.recorder is not None else None
            if behind is not None:
                results = behind.infer(results)
            check_deadline()  # what nobody waits for is not stored
            if summary is not None:
                stored = self._keeping.record(summary, results, admission)
            if behind is not None:
                outputs, stored = behind.join(outputs, results, stored)
            trace.inference_ids = [inference_id for inference_id in stored.ids if inference_id]
            trace.count_success(kind.count(results))
        decorated = decorate_outputs(
            outputs,
            results,
            stored,
            per_image=kind.has_output_per_image,
        )
        headers = trace.timing_headers(0.0 if behind is None else behind.elapsed_ms)
        if kind.has_output_per_image:
            scores = score_headers(results)
            headers = [*scores, *truncation_headers(results), *headers]
        return InferResponse(
            model=model.name,
            version=model.version,
            id=request.id,
            outputs=select_outputs(decorated, request.requested_outputs),
            inference_ids=trace.inference_ids,
            stored=stored.stored,
            lag_bytes=admission.lag_bytes,
            headers=headers,
        )

    def stream(self, request: InferRequest) -> Iterator[InferChunk]:
        """Answer one prompt about one image piece by piece; each step in its caller's thread.

        Abandoned streams are not recorded.

        Raises:
            quadriga.proto.errors.ProtocolError: With the text for the client.
        """
        model = self._admitted_model(request)
        limit_by_parameter(request.parameters.get("timeout"), self._queue.watch)
        kind = self._kind(model, request)
        if kind.images is None:
            raise InvalidRequest(
                f"expected a model of images to answer as a stream, got {model.recognition.task}"
            )
        with self._trace(model, kind, request) as trace:
            admission = self._keeping.admit(model, request)
            for text, result in trace.timed_steps(stream_image(kind.images, request)):
                stored = NOT_STORED
                if result is not None:  # the last piece, after which a client may not ask again
                    results = self._keeping.score(model, [result])
                    check_deadline()
                    stored = self._keeping.record(trace.summary(), results, admission)
                    trace.inference_ids = list(filter(None, stored.ids))
                    trace.count_success(1)
                yield InferChunk(
                    model.name,
                    model.version,
                    request.id,
                    text=text,
                    inference_ids=trace.inference_ids,
                    stored=stored.stored,
                )

    def explain(self, request: InferRequest) -> tuple[InferResponse, list[Any]]:
        """Answer a request, and explain a prediction of each image or row; only the response is recorded.

        Raises:
            quadriga.proto.errors.ProtocolError: With the text for the client.
        """
        model = self._admitted_model(request)
        explain = self._kind(model, request).prepare_explanation()
        response = self.infer(msgspec.structs.replace(request, version=model.version))
        try:
            return response, explain()
        except (RunError, OutputError) as error:
            raise to_protocol_error(model.name, error) from error

    def _crop_run(self, model: Model, request: InferRequest) -> CropRun | None:
        """Prepare the crops of a request; None where none is behind the model, and of a replay, which is one inference.

        Raises:
            quadriga.proto.errors.ModelNotReady: A model behind it cannot answer.
        """
        if model.recognition.written.then is None or replayed_id(request) is not None:
            return None

        def get(name: str, version: str | None) -> Model:
            return self._traffic.model_named(name, version, request)

        chain = models_behind(model, get)
        return CropRun(model, chain, self._keeping, settings=self._settings, request=request)

    def _kind(
        self, model: Model, request: InferRequest, behind: CropRun | None = None
    ) -> RequestKind:
        """Find out what a request brings; see `request_kind`."""
        cut = None if behind is None else behind.cut
        return request_kind(model, request, self._settings, self._keeping, cut=cut)

    def _trace(self, model: Model, kind: RequestKind, request: InferRequest) -> RequestTrace:
        """Prepare the accounting of a request."""
        return RequestTrace(
            model,
            request,
            protocol=kind.protocol,
            recorder=self._keeping.recorder_of(model),
            failed_results=kind.failed_results,
        )

    def close(self) -> None:
        """Stop what still runs, then close the journal."""
        self._queue.close()
        self._keeping.close()


def request_queue(settings: Settings) -> RequestQueue:
    """Make the queue of a worker, as the settings say."""
    return RequestQueue(settings.thread_count, settings.max_queue, settings.max_wait_s)
