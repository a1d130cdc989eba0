"""One request to a model: what it brings, how that is answered, and what becomes of it.

It brings images, rows of features, or tensors of the graph. What becomes of it are room in the store, times, counters, scores, its record
or that of its failure, and additions to its outputs: ids, semantic scores, and whether predictions were cut.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.model_counts import Event, begin_events, stages_ms, take_events
from quadriga.engine.models.image_graph import ImageGraph
from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import RunError
from quadriga.engine.serving.image_inference import (
    MAX_REQUEST_PIXELS,
    MAX_TILES,
    CutDetections,
    ImageModel,
    failed_image_results,
    infer_images,
)
from quadriga.engine.serving.journal_capacity import ADMITTED, Admission
from quadriga.engine.serving.recording import (
    ImageResult,
    Recorder,
    RequestSummary,
    StoreResult,
    replayed_id,
)
from quadriga.engine.serving.semantic_score import SemanticScores
from quadriga.engine.serving.tensors.explanation import (
    Explain,
    prepare_image_explanation,
    prepare_row_explanation,
    refuse_explanation,
)
from quadriga.engine.serving.tensors.row_inference import infer_rows
from quadriga.engine.serving.tensors.tensor_inference import (
    count_rows,
    failed_tensor_results,
    infer_tensors,
)
from quadriga.proto.errors import (
    InternalError,
    KeyReused,
    ModelFailed,
    Overloaded,
    ProtocolError,
    translate_recursion_error,
)
from quadriga.proto.http.chariot import protocol_of_images
from quadriga.proto.messages import InferRequest, RequestedOutput, Tensor
from quadriga.proto.request import (
    ModelRun,
    RequestContext,
    current_caller,
    current_request,
    set_current_request,
)
from quadriga.store.records.errors import JournalError, KeyReusedError
from quadriga.store.records.redaction import without_folders
from quadriga.tasks.parameters import Budget
from quadriga.tasks.predictions import OutputError, TruncatedPredictions

NOT_STORED = StoreResult()


class ResultKeeping:
    """Admits, scores and stores the results of requests; without a recorder nothing is stored, without scores there are none."""

    def __init__(self, recorder: Recorder | None, scores: SemanticScores | None) -> None:
        self._recorder = recorder
        self._scores = scores

    def recorder_of(self, model: Model) -> Recorder | None:
        """Return the recorder of a model's inferences; None where they are not stored."""
        return self._recorder if model.recognition.written.store.enabled else None

    def choose_for_signals(self, model: Model) -> Callable[[int], Collection[int]] | None:
        """Return what chooses, among so many images, those whose signals are wanted; None where there are none."""
        recorder = self.recorder_of(model)
        return None if recorder is None else partial(recorder.choose_for_signals, model)

    def admit(self, model: Model, request: InferRequest) -> Admission:
        """Check, before the model runs, that the journal has room for the request."""
        recorder = self.recorder_of(model)
        if recorder is None or _opts_out(request):
            return ADMITTED
        return recorder.capacity.admit(model.recognition.written.store.journal_full)

    def stores_at_once(self, model: Model) -> bool:
        """Check whether storing an inference of a model takes no longer than to append it to a file."""
        recorder = self.recorder_of(model)
        return recorder is None or recorder.stores_at_once(model)

    def has_scores(self, model: Model) -> bool:
        """Check whether the images of a model get semantic scores, for which they need embeddings."""
        scores = self._scores
        return scores is not None and scores.has_references(model, current_caller().team)

    def score(self, model: Model, results: list[ImageResult]) -> list[ImageResult]:
        """Add to each result its semantic score, where there is one."""
        if self._scores is None:
            return results
        return self._scores.score(model, results, current_caller().team)

    def keeps_image(self, model: Model, result: ImageResult) -> bool:
        """Check whether the image of a result may be stored."""
        storage, options = result.storage, model.recognition.written.store
        may_store = storage.store and storage.store_input and options.inputs != "none"
        return may_store and self.recorder_of(model) is not None

    def record(
        self, summary: RequestSummary, results: list[ImageResult], admission: Admission
    ) -> StoreResult:
        """Store the results of a request; see `Recorder.record`."""
        recorder = self.recorder_of(summary.model)
        if recorder is None:
            return NOT_STORED
        return recorder.record(summary, results, shed=admission.shed)

    def close(self) -> None:
        """Close the scores, then the journal."""
        if self._scores is not None:
            self._scores.close()
        if self._recorder is not None:
            self._recorder.close()


def _opts_out(request: InferRequest) -> bool:
    """Check whether a request asks to store none of its inferences."""
    default = request.parameters.get("store") is not False
    return all(tensor.parameters.get("store", default) is False for tensor in request.inputs)


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


Answer = tuple[list[Tensor], list[ImageResult]]
"""Outputs for the client; and one result for each inference, to be stored."""


class RequestKind(msgspec.Struct, frozen=True, kw_only=True):
    """What a request brings for a model, and how it is answered."""

    protocol: str
    """Name of the protocol, as it is stored."""
    infer: Callable[[], Answer]
    """Answers the request."""
    failed_results: Callable[[], list[ImageResult]]
    """Returns what can be stored if the model fails to answer."""
    prepare_explanation: Callable[[], Explain]
    """Refuses what cannot be explained before the model runs; returns what explains the rest."""
    images: ImageModel | None = None
    """The model of images that answers; None for rows of features, and for tensors."""
    tensor_rows: int | None = None
    """Number of rows of tensors for the graph, all of which are one result; None for images and rows of features."""

    @property
    def has_output_per_image(self) -> bool:
        """Whether an output has one element for each result; those of a graph belong to one result."""
        return self.tensor_rows is None

    def count(self, results: Sequence[ImageResult]) -> int:
        """Count the images or rows that were answered."""
        return len(results) if self.tensor_rows is None else self.tensor_rows


def request_kind(
    model: Model,
    request: InferRequest,
    settings: Settings,
    keeping: ResultKeeping,
    cut: CutDetections | None,
) -> RequestKind:
    """Find out what a request brings: images or rows for the model, or tensors for its graph.

    Args:
        model: The model that answers.
        request: The request.
        settings: Settings with the limits of a request.
        keeping: Knows what is stored of the model's results.
        cut: Cuts crops of images for the model behind this one; None where there is none.
    """
    predictor, classifier = model.image_predictor, model.row_classifier
    if predictor is not None and not (
        isinstance(predictor, ImageGraph) and _is_raw(request) and not _has_bytes(request)
    ):
        images = image_model(model, settings, keeping, cut)
        if replayed_id(request) is not None:  # what live images have for their signals stays theirs
            images = msgspec.structs.replace(images, choose_for_signals=None)
        return RequestKind(
            protocol=protocol_of_images(request.protocol),
            infer=partial(infer_images, images, request),
            failed_results=partial(failed_image_results, images, request),
            prepare_explanation=partial(prepare_image_explanation, images, request),
            images=images,
        )
    failed_results = partial(failed_tensor_results, request)
    if predictor is None and classifier is not None and not _is_raw(request):
        rows = model, classifier, request, settings.max_images
        return RequestKind(
            protocol=request.protocol,
            infer=partial(infer_rows, *rows),
            failed_results=failed_results,
            prepare_explanation=partial(prepare_row_explanation, *rows),
        )
    is_stored = keeping.recorder_of(model) is not None
    return RequestKind(
        protocol=request.protocol,
        infer=partial(infer_tensors, model, request, is_stored=is_stored),
        failed_results=failed_results,
        prepare_explanation=partial(refuse_explanation, model.recognition.task, request),
        tensor_rows=count_rows(model, request),
    )


def image_model(
    model: Model,
    settings: Settings,
    keeping: ResultKeeping,
    cut: CutDetections | None,
) -> ImageModel:
    """Return a model whose inputs are images with the limits of one request; arguments as of `request_kind`."""
    assert model.image_predictor is not None, "the caller has looked"
    return ImageModel(
        model.image_predictor,
        max_pixels=settings.max_pixels,
        max_images=settings.max_images,
        pixels=Budget(MAX_REQUEST_PIXELS, "pixels"),
        tiles=Budget(MAX_TILES, "tiles"),
        tokens=Budget(settings.max_tokens, "new tokens"),
        choose_for_signals=keeping.choose_for_signals(model),
        is_scored=keeping.has_scores(model),
        cut=cut,
    )


def _is_raw(request: InferRequest) -> bool:
    """Check whether a request asks for the outputs of the graph."""
    if request.parameters.get("content_type") == "raw":
        return True
    return "raw" in [tensor.parameters.get("content_type") for tensor in request.inputs]


def _has_bytes(request: InferRequest) -> bool:
    """Check for inputs that no graph of images takes: with numbers beside them, the error names the number."""
    return "BYTES" in [tensor.datatype for tensor in request.inputs]


SCORE_HEADER = "Quadriga-Semantic-Score"
TRUNCATED_HEADER = "Quadriga-Truncated"


def decorate_outputs(
    outputs: Sequence[Tensor],
    results: Sequence[ImageResult],
    stored: StoreResult,
    *,
    per_image: bool,
) -> Sequence[Tensor]:
    """Add to the parameters of each output: ids, semantic scores, and whether predictions were cut.

    Args:
        outputs: The model's outputs.
        results: Of all images, in the order of the outputs' data.
        stored: What the store made of them.
        per_image: Whether an output holds one element for each image; those of a graph belong to one inference.
    """
    if not per_image and stored.stored and not stored.ids:
        return outputs
    decorated = []
    start, stop = 0, len(results)
    for tensor in outputs:
        added: dict[str, Any] = {} if stored.stored else {"stored": False}
        if per_image:
            stop = start + len(tensor.data)
            added |= _score_parameters(results[start:stop])
            added |= _truncation_parameters(results[start:stop])
        if ids := ",".join(filter(None, stored.ids[start:stop])):
            added["inference_id"] = ids
        if per_image:
            start = stop
        if added:
            tensor = msgspec.structs.replace(  # noqa: PLW2901 - the same output, with more
                tensor, parameters={**tensor.parameters, **added}
            )
        decorated.append(tensor)
    return decorated


def select_outputs(
    outputs: Sequence[Tensor], requested: Sequence[RequestedOutput]
) -> Sequence[Tensor]:
    """Select the requested outputs, in the order of the request; all where none is named."""
    if not requested:
        return outputs
    by_name: dict[str, list[Tensor]] = {}  # images may share a name
    for tensor in outputs:
        by_name.setdefault(tensor.name, []).append(tensor)
    names = dict.fromkeys(output.name for output in requested)
    return [tensor for name in names for tensor in by_name[name]]


def score_headers(results: Sequence[ImageResult]) -> list[tuple[str, str]]:
    """Write the response header with one semantic score per image; none if no image has one."""
    scores = _join_scores(results)
    return [(SCORE_HEADER, scores)] if scores else []


def truncation_headers(results: Sequence[ImageResult]) -> list[tuple[str, str]]:
    """Write the response header that says which images have fewer predictions than the model made."""
    entries = [
        "" if truncated is None else str(truncated.total or "true")
        for truncated in map(_truncated, results)
    ]
    return [(TRUNCATED_HEADER, ",".join(entries))] if any(entries) else []


def _truncation_parameters(results: Sequence[ImageResult]) -> dict[str, Any]:
    """Return whether a limit cut the predictions of an output's images, and how many there were, where counted."""
    truncated = [_truncated(result) for result in results]
    if not any(predictions is not None for predictions in truncated):
        return {}
    totals = ["" if cut is None or cut.total is None else str(cut.total) for cut in truncated]
    if not any(totals):
        return {"truncated": True}
    total: Any = ",".join(totals) if len(totals) > 1 else int(totals[0])
    return {"truncated": True, "total_segments": total}


def _truncated(result: ImageResult) -> TruncatedPredictions | None:
    predictions = result.predictions
    return predictions if isinstance(predictions, TruncatedPredictions) else None


def _score_parameters(results: Sequence[ImageResult]) -> dict[str, Any]:
    """Return the scores of an output's images as its parameter: a number for one image, else a text."""
    scores = _join_scores(results) if results[0].storage.semantic_score else ""
    if not scores:
        return {}
    return {"semantic_score": results[0].semantic_score if len(results) == 1 else scores}


def _join_scores(results: Sequence[ImageResult]) -> str:
    """Join scores with commas, with nothing for a missing one; empty where all are missing."""
    scores = [result.semantic_score for result in results]
    if scores.count(None) == len(scores):
        return ""
    return ",".join("" if score is None else f"{score:g}" for score in scores)
