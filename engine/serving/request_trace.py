"""The accounting of one request to a model: its times, the model's counters, and the record of a failure."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from quadriga.engine.measures.stopwatch import Event, begin_events, stages_ms, take_events
from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import RunError
from quadriga.engine.serving.recording import (
    ImageResult,
    Recorder,
    RequestSummary,
    replayed_id,
)
from quadriga.proto.errors import (
    InternalError,
    KeyReused,
    ModelFailed,
    Overloaded,
    ProtocolError,
    translate_recursion_error,
)
from quadriga.proto.messages import InferRequest
from quadriga.proto.request import (
    LeavesLoop,
    ModelRun,
    RequestContext,
    current_request,
    set_current_request,
)
from quadriga.store.errors import JournalError, KeyReusedError
from quadriga.store.redaction import without_folders
from quadriga.tasks.predictions import OutputError

Step = TypeVar("Step")

MAX_ERROR_CHARACTERS = 2000
"""Maximum length of the stored reason for a failure."""

_INTERNAL_ERRORS = (JournalError, KeyReusedError, RunError, OutputError)
"""Errors of the packages below that protocols know by other names."""


class RequestTrace:
    """Times a request, counts it, and records it if the model fails; for use in a `with` statement.

    An exception of the block is counted as a failure and leaves it as an error of the protocols. A request
    whose client left, as a stream that is closed before its end, or which a thread answers anew, is neither counted nor
    recorded.

    Args:
        model: The model that answers.
        request: The request.
        protocol: Name of the request's protocol, as it is stored.
        recorder: Records failures; None where the model's inferences are not stored.
        failed_results: Returns what can be stored of the request without predictions.
    """

    def __init__(
        self,
        model: Model,
        request: InferRequest,
        *,
        protocol: str,
        recorder: Recorder | None,
        failed_results: Callable[[], Sequence[ImageResult]],
    ) -> None:
        self._model = model
        self._request_id = request.id
        self._replay_of = replayed_id(request)
        self._protocol = protocol
        self.recorder = recorder
        self._failed_results = failed_results
        self._sent = current_request()
        self._context = self._sent or RequestContext()
        self._queue_ns, self._context.queue_ns = self._context.queue_ns, 0
        self.images = 0
        """Number of images or rows, once the request is counted as answered."""
        self.inference_ids: Sequence[str] = ()
        """Ids of the inferences that are stored."""
        self._events: list[Event] = []
        self._stages_ms: dict[str, float] | None = None
        self._is_running = False
        self._started_s = time.perf_counter()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        self.stop()
        if self._sent is None:
            set_current_request(None)
        else:
            self._note_run(self._sent)
        if not isinstance(error, Exception) or isinstance(error, LeavesLoop):
            return
        self._model.counters.count_failure(self._queue_ns, self._events, self._protocol)
        self._record_failure(error)
        if isinstance(error, _INTERNAL_ERRORS):
            raise to_protocol_error(self._model.name, error) from error

    def stop(self) -> None:
        """Stop the time of the model's stages: its outputs are read."""
        if self._is_running:
            self._is_running = False
            self._model.run_mark.end()
            self._events.extend(take_events(self._context))
            self._stages_ms = None

    def timed_steps(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Yield the steps of a stream, and time only them: each may run in another thread."""
        self.stop()
        while True:
            self._start()
            try:
                step = next(steps, None)
            finally:
                self.stop()
            if step is None:
                return
            yield step

    def summary(self, error: str = "") -> RequestSummary:
        """Collect the request-level fields to store."""
        latency_ms = round((time.perf_counter() - self._started_s) * 1000, 3)
        return RequestSummary(
            self._model,
            self._request_id,
            self._protocol,
            latency_ms=latency_ms,
            stages_ms=self._stages(),
            error=error,
            team=self._context.caller.team,
            trace=self._context.trace,
            replay_of=self._replay_of,
        )

    def timing_headers(self, behind_ms: float = 0.0) -> list[tuple[str, str]]:
        """Return the times of the stages so far as a header, if the request asks for it.

        Args:
            behind_ms: Milliseconds that models behind this one took; 0 if there is none.

        Source: W3C, Server Timing.
        """
        if not self._context.wants_timing:
            return []
        stages = dict(self._stages())
        total_ms = stages["queue"] + (time.perf_counter() - self._started_s) * 1000
        if behind_ms:
            stages["behind"] = behind_ms
        stages["store"] = total_ms - sum(stages.values())
        stages["total"] = total_ms
        text = ", ".join(f"{name};dur={value:.3f}" for name, value in stages.items())
        return [("Server-Timing", text)]

    def count_success(self, images: int) -> None:
        """Count the request as answered, with its number of images or rows."""
        self.images = images
        self._model.counters.count_success(images, self._queue_ns, self._events, self._protocol)

    def _stages(self) -> dict[str, float]:
        if self._stages_ms is None:
            self._stages_ms = stages_ms(self._queue_ns, self._events)
        return self._stages_ms

    def _start(self) -> None:
        if self._sent is None:  # nobody has sent it, as where a request is tried
            set_current_request(self._context)
        self._model.run_mark.begin(self._request_id)
        begin_events(self._context)
        self._is_running = True

    def _note_run(self, request: RequestContext) -> None:
        """Note what the model did; that of a model behind another one is replaced by what both did."""
        elapsed_s = time.perf_counter() - self._started_s
        request.run = ModelRun(
            self._model.name,
            self._model.version,
            begun_ns=int(self._started_s * 1e9),
            stages_ms=self._stages(),
            duration_ms=elapsed_s * 1000,
            inferences=self.images,
            inference_ids=self.inference_ids,
        )

    def _record_failure(self, error: Exception) -> None:
        """Record a request that the model failed to answer; a client's mistakes are not recorded."""
        fault = to_protocol_error(self._model.name, error)
        is_known = isinstance(fault, ProtocolError)
        if self.recorder is None or (is_known and not isinstance(fault, InternalError)):
            return
        text = without_folders(str(fault) if is_known else f"{type(fault).__name__}: {fault}")
        text = text[:MAX_ERROR_CHARACTERS] or type(fault).__name__
        with suppress(ProtocolError, JournalError):
            self.recorder.record(self.summary(text), self._failed_results())


def to_protocol_error(model_name: str, error: Exception) -> Exception:
    """Map internal errors to protocol errors; return others unchanged."""
    if isinstance(error, JournalError):
        return Overloaded(str(error))
    if isinstance(error, KeyReusedError):
        return KeyReused(str(error))
    if isinstance(error, RunError | OutputError):
        return ModelFailed(f"model {model_name!r} failed: {without_folders(str(error))}")
    return translate_recursion_error(error)
