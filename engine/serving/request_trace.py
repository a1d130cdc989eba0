"""The accounting of one request to a model: its times, the model's counters, and the record of a failure."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from quadriga.engine.measures.stopwatch import Event, stages_ms
from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import RunError
from quadriga.engine.serving.recording import (
    ImageResult,
    Recorder,
    RequestSummary,
    replayed_id,
)
from quadriga.proto.deadline import current_deadline
from quadriga.proto.errors import (
    InternalError,
    KeyReused,
    ModelFailed,
    Overloaded,
    ProtocolError,
    translate_recursion_error,
)
from quadriga.proto.messages import InferRequest
from quadriga.proto.request_facts import ModelRun, RequestFacts
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
    whose client left, as a stream that is closed before its end, is neither counted nor recorded.

    Args:
        model: The model that answers.
        request: The request.
        protocol: Name of the request's protocol, as it is stored.
        queue_ns: Nanoseconds that the request waited for a thread.
        recorder: Records failures; None where the model's inferences are not stored.
        failed_results: Returns what can be stored of the request without predictions.
        team: Team of the caller; empty for none.
    """

    def __init__(
        self,
        model: Model,
        request: InferRequest,
        *,
        protocol: str,
        queue_ns: int,
        recorder: Recorder | None,
        failed_results: Callable[[], Sequence[ImageResult]],
        team: str,
    ) -> None:
        self._model = model
        self._request_id = request.id
        self._replay_of = replayed_id(request)
        self._protocol = protocol
        self._queue_ns = queue_ns
        self.recorder = recorder
        self._failed_results = failed_results
        self._team = team
        deadline = current_deadline()
        self._facts = None if deadline is None else deadline.facts
        self.images = 0
        """Number of images or rows, once the request is counted as answered."""
        self.inference_ids: Sequence[str] = ()
        """Ids of the inferences that are stored."""
        self._events: list[Event] = []
        self._is_running = False
        self._started_s = time.perf_counter()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        self.stop()
        if self._facts is not None:
            self._note_run(self._facts)
        if not isinstance(error, Exception):
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
            self._events.extend(self._model.stopwatch.stop())

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
        stages = stages_ms(self._queue_ns, self._events)
        return RequestSummary(
            self._model,
            self._request_id,
            self._protocol,
            latency_ms=latency_ms,
            stages_ms=stages,
            error=error,
            team=self._team,
            trace=None if self._facts is None else self._facts.trace,
            replay_of=self._replay_of,
        )

    def timing_headers(self, behind_ms: float = 0.0) -> list[tuple[str, str]]:
        """Return the times of the stages so far as a header, if the request asks for it.

        Args:
            behind_ms: Milliseconds that models behind this one took; 0 if there is none.

        Source: W3C, Server Timing.
        """
        deadline = current_deadline()
        if deadline is None or not deadline.wants_timing:
            return []
        stages = stages_ms(self._queue_ns, self._events)
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

    def _start(self) -> None:
        self._model.run_mark.begin(self._request_id)
        self._model.stopwatch.start()
        self._is_running = True

    def _note_run(self, facts: RequestFacts) -> None:
        """Note what the model did; that of a model behind another one is replaced by what both did."""
        elapsed_s = time.perf_counter() - self._started_s
        facts.run = ModelRun(
            self._model.name,
            self._model.version,
            begun_ns=int(self._started_s * 1e9),
            stages_ms=stages_ms(self._queue_ns, self._events),
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
