"""What a server keeps of the results of its models: whether they are stored, what admits them, and their scores."""

from collections.abc import Callable, Collection
from functools import partial

from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.loop_runs import leave_loop
from quadriga.engine.serving.journal_capacity import ADMITTED, Admission
from quadriga.engine.serving.recording import ImageResult, Recorder, RequestSummary, StoreResult
from quadriga.engine.serving.semantic_score import SemanticScores
from quadriga.proto.access import current_caller
from quadriga.proto.messages import InferRequest

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
        if recorder.capacity.is_behind():
            leave_loop()  # it may wait for room
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
