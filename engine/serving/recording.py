"""From the results of a request to its records: storage options, ids, standard metadata, and signals of images for drift.

Signals are derived and not acknowledged: they are computed and journaled in a thread of their own, and those for which there is no
time or room are counted and left out. A request pays for the choice and for putting a reference into a queue.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.engine.config.settings import Durability, Settings
from quadriga.engine.models.image_graph import Vector
from quadriga.engine.models.model import Model
from quadriga.engine.models.recognition.model_toml import StoreOptions
from quadriga.engine.serving.journal_capacity import FailedWrites, JournalCapacity, OutcomeCounters
from quadriga.monitor.image_statistics import measure_image
from quadriga.proto.access import ANYBODY
from quadriga.proto.idempotency import RequestPart
from quadriga.proto.messages import DEFAULT_STORAGE, InferRequest, StorageOptions
from quadriga.proto.request import TraceContext, current_caller, current_request
from quadriga.store.blobs.interface import Blobs, blob_key
from quadriga.store.blobs.tensor_file import MEDIA_TYPE
from quadriga.store.external.logged_keys import key_digest
from quadriga.store.journal.durability import Backlog, GroupSync, wait_until_committed
from quadriga.store.journal.journal import Journal
from quadriga.store.journal.repeat_claims import FILE, RepeatClaims
from quadriga.store.records.disk import check_writable
from quadriga.store.records.errors import JournalError, UnconfirmedError
from quadriga.store.records.ids import LARGEST_ID, IdSource
from quadriga.store.records.records import (
    IDEMPOTENCY_KEY,
    REPLAY_OF,
    ImageSignals,
    InferenceRecord,
    InputReference,
    JournaledChange,
    SignalsOfImages,
    replay_id,
    replay_name,
)
from quadriga.tasks.image import Image
from quadriga.tasks.predictions import Prediction
from quadriga.tasks.tiling import Crop

COMMIT_TIMEOUT_S = 10.0
"""Seconds that a response with the durability `database` waits for the commit."""

MAX_BACKLOG_BYTES = 64 << 20
"""Maximum bytes of inferences with the durability `memory` that wait to be written."""

_RECORD_BYTES = 1024
"""Estimated bytes of a record in memory, without its image and its predictions."""

_log = logging.getLogger(__name__)


class ResultOrigin(msgspec.Struct, frozen=True):
    """What a record about a crop says of the inference that the crop is of."""

    request_id: str
    """Id of that inference, in place of the request's id."""
    image_no: int
    """Number of the crop among those of that inference, from 0."""
    description: Mapping[str, Any]
    """Value of the key `crop` of the standard metadata."""


class CutCrops(msgspec.Struct, frozen=True, eq=False):
    """The crops of one image, and the number of those that a limit left out."""

    crops: Sequence[Crop] = ()
    left_out: int = 0


class ImageResult(msgspec.Struct, frozen=True):
    """The result of one image, or of one set of tensors."""

    input_name: str
    action: str
    predictions: Sequence[Prediction | Mapping[str, Any]] | msgspec.Raw
    """Predictions of an image, descriptions of output tensors, or either of them as JSON."""
    metadata: dict[str, Any]
    image: bytes | None = None
    """The image file as received, or the file of the tensors, if they are stored; None for other tensors."""
    width: int | None = None
    height: int | None = None
    mime: str | None = None
    storage: StorageOptions = DEFAULT_STORAGE
    embedding: Vector | None = None
    """Embedding of the image by the model, float32 (D,); None where it has none."""
    decoded_image: Image | None = None
    """The decoded image, where its signals are wanted."""
    semantic_score: float | None = None
    """Similarity to the model's baseline, in (0, 1]; None where it is not known."""
    cut_crops: CutCrops | None = None
    """Crops for the model behind this one; None where there is none."""
    origin: ResultOrigin | None = None
    """ResultOrigin of the image, if it is a crop."""


class RequestSummary(msgspec.Struct, frozen=True):
    """The request-level fields to store of a request that was answered, or failed."""

    model: Model
    request_id: str
    protocol: str
    latency_ms: float
    stages_ms: dict[str, float]
    error: str = ""
    """Reason for the model's failure; empty if it succeeded."""
    team: str = ""
    """Team of the caller, to which the inferences belong; empty for none."""
    trace: TraceContext | None = None
    """Trace that the request is part of; None for none."""
    replay_of: int | None = None
    """Id of the inference that the request replays, as `replayed_id` returns it."""


def replayed_id(request: InferRequest) -> int | None:
    """Return the id of the inference that a job of the server replays with a request of one image; None for other requests.

    The parameter has a meaning from the server's own jobs alone: a replay has the time of the inference.
    """
    caller = current_caller()
    if not (caller.is_of_jobs or caller is ANYBODY):  # without keys, nobody can tell who sends it
        return None
    for tensor in request.inputs:
        text = tensor.parameters.get(REPLAY_OF)
        if isinstance(text, str) and text.isdecimal() and len(text) < 20:
            return min(int(text), LARGEST_ID)
    return None


class StoreResult(msgspec.Struct, frozen=True):
    """Result of storing a request."""

    ids: Sequence[str] = ()
    """One id per image; an empty text for an image that is not stored."""
    stored: bool = True
    """False where the store had no room for the request."""
    repeated: bool = False
    """Whether the request was sent before, under the same idempotency key."""


MAX_QUEUE_BYTES = 64 << 20
"""Maximum bytes of pixels that wait."""

BATCH_INTERVAL_S = 0.2
BATCH_IMAGES = 64
"""Signals computed within that time, or of so many images, are journaled together."""

Embed = Callable[[str, Image], tuple[npt.NDArray[np.float32] | None, str | None]]
"""Returns the embedding (D,) of an image by the model of a name, and its space; None where there is none."""


class SignalTask(msgspec.Struct, frozen=True, eq=False):
    """A recorded image whose signals are wanted."""

    seq: int
    """Id of its record."""
    image: Image
    embedding: npt.NDArray[np.float32] | None = None
    """Embedding by its model, (D,)."""
    embedding_space: str | None = None
    other_model: str = ""
    """Name of the model that embeds the image if its own model does not."""


class SignalRecorder:
    """Computes and journals the signals of images; safe to use from several threads.

    Args:
        ids: Ids of this process.
        journal: The journal of this process.
        per_s: Average images of each model per second whose signals are wanted.
        is_behind: Tells whether the journal lags too far to take signals.
        embed: Asks another model for an embedding.
    """

    def __init__(
        self,
        ids: IdSource,
        journal: Journal,
        per_s: float,
        is_behind: Callable[[], bool] = lambda: False,
        embed: Embed = lambda *_: (None, None),
    ) -> None:
        self._ids = ids
        self._journal = journal
        self._per_s = per_s
        self._is_behind = is_behind
        self._embed = embed
        self._buckets: dict[str, tuple[float, float]] = {}
        """Tokens of each model, and when they were counted, in seconds."""
        self._waiting: SimpleQueue[SignalTask | None] = SimpleQueue()
        """Queue of images; None ends the thread."""
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._logged: set[str] = set()
        """Kinds of failures that were logged."""
        self.counts = OutcomeCounters(
            "signals",  # of recorded images, journaled
            "signals_skipped",  # beyond the rate, or beyond what one request may hold
            "signals_dropped",  # for lack of room, or as they could not be computed
        )

    def choose(self, model: str, count: int) -> Collection[int]:
        """Choose the positions of a request's images whose signals are wanted.

        Each takes a random number of tokens, one on average. Where images come faster than the rate, the gaps between
        the chosen ones are therefore random: otherwise a camera that takes its turn might never be chosen.
        """
        if not self._per_s:
            return ()
        order = range(count) if count == 1 else random.sample(range(count), count)
        chosen = []
        with self._lock:
            now_s, max_tokens = time.monotonic(), max(self._per_s, 1.0)
            tokens, counted_s = self._buckets.get(model, (max_tokens, now_s))
            tokens = min(tokens + (now_s - counted_s) * self._per_s, max_tokens)
            for position in order:
                if tokens <= 0:
                    break
                tokens -= random.expovariate(1.0)
                chosen.append(position)
            self._buckets[model] = tokens, now_s
        return chosen

    def put(self, tasks: Sequence[SignalTask], skipped: int) -> None:
        """Queue as many images as there is room for, and count those that were not chosen."""
        self.counts.add("signals_skipped", skipped)
        with self._lock:
            for task in tasks:
                size_bytes = task.image.pixels.nbytes
                if self._queued_bytes and self._queued_bytes + size_bytes > MAX_QUEUE_BYTES:
                    self.counts.add("signals_dropped")
                    continue
                self._waiting.put(task)
                self._queued_bytes += size_bytes
            if tasks and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Compute and journal the signals of the queued images, and end."""
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        signals: list[ImageSignals] = []
        due_s = 0.0
        while True:
            task = self._next(due_s if signals else None)
            if task is not None:
                due_s = due_s if signals else time.monotonic() + BATCH_INTERVAL_S
                signals.extend(self._compute(task))
            elif not signals:  # the end
                return
            if task is None or len(signals) >= BATCH_IMAGES or time.monotonic() >= due_s:
                self._append(signals)
                signals = []

    def _next(self, deadline_s: float | None) -> SignalTask | None:
        """Wait for an image; None where none came before the deadline, or at the end."""
        timeout_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0)
        try:
            task = self._waiting.get(timeout=timeout_s)
        except Empty:
            return None
        if task is None:
            self._waiting.put(None)  # it stays the end
            return None
        with self._lock:
            self._queued_bytes -= task.image.pixels.nbytes
        return task

    def _compute(self, task: SignalTask) -> list[ImageSignals]:
        """Compute the signals of an image; none where that fails."""
        embedding, embedding_space = task.embedding, task.embedding_space
        if embedding is None and task.other_model:
            try:
                embedding, embedding_space = self._embed(task.other_model, task.image)
                if embedding is None:
                    raise ValueError(f"model {task.other_model!r} has no embedding of its own")
            except Exception as error:  # noqa: BLE001 - whatever it is, it costs the embedding alone
                self._log_once(f"no embedding by {task.other_model!r}", task, error)
        try:
            numbers = measure_image(task.image.pixels, task.image.bit_depth).astype("<f4").tobytes()
        except Exception as error:  # noqa: BLE001 - as above, the signals
            self.counts.add("signals_dropped")
            self._log_once("no signals", task, error)
            return []
        if embedding is None or embedding_space is None:
            return [ImageSignals(task.seq, numbers)]
        return [ImageSignals(task.seq, numbers, embedding.astype("<f2").tobytes(), embedding_space)]

    def _log_once(self, failure: str, task: SignalTask, error: Exception) -> None:
        """Log a failure, unless one of its kind was logged before."""
        if failure not in self._logged:
            self._logged.add(failure)
            _log.error(
                "inference %d: %s: %r; further ones are not logged", task.seq, failure, error
            )

    def _append(self, signals: list[ImageSignals]) -> None:
        if not signals:
            return
        if self._is_behind():
            self.counts.add("signals_dropped", len(signals))
            return
        try:
            self._journal.append([JournaledChange(self._ids.next(), SignalsOfImages(signals))])
        except JournalError:  # the recorder reports this failure
            self.counts.add("signals_dropped", len(signals))
        else:
            self.counts.add("signals", len(signals))


class Recorder:
    """Stores inferences in a journal, and their images as blobs; safe to use from several threads.

    Ids and journal are this process's own; `embed` asks another model for an embedding.
    """

    def __init__(
        self,
        ids: IdSource,
        journal: Journal,
        blobs: Blobs,
        settings: Settings,
        engine_version: str,
        *,
        embed: Embed = lambda *_: (None, None),
    ) -> None:
        self._ids = ids
        self._journal = journal
        self._claims = RepeatClaims(journal.directory.parent / FILE)
        self._blobs = blobs
        self._settings = settings
        self._engine_version = engine_version
        self._syncing = GroupSync(journal.directory)
        self._backlog = Backlog(MAX_BACKLOG_BYTES)
        self.capacity = JournalCapacity(journal.directory, settings)
        """Decides what is admitted, and counts what became of requests."""
        self.failed_writes = FailedWrites(self._try_write)
        """Knows whether the disk takes records and images."""
        is_behind = self.capacity.is_behind
        self._signals = SignalRecorder(
            ids, journal, settings.signals_per_s, is_behind=is_behind, embed=embed
        )

    def choose_for_signals(self, model: Model, count: int) -> Collection[int]:
        """Choose the positions of a request's images whose pixels are wanted for signals."""
        if self._has_signals(model):
            return self._signals.choose(model.name, count)
        return ()

    def record(
        self, summary: RequestSummary, results: Sequence[ImageResult], *, shed: bool = False
    ) -> StoreResult:
        """Store one request, unless it is to be shed; on return the model's durability holds.

        Raises:
            quadriga.store.records.errors.JournalError: Nothing is certain to be stored, and so nothing may be acknowledged.
        """
        options = summary.model.recognition.written.store
        policy, durability = options.journal_full, options.durability or self._settings.durability
        if summary.error:  # it is not acknowledged, and so nobody waits for it
            policy, durability = "shed", "process"
        elif options.share < 1 and summary.replay_of is None:
            results = _choose_to_store(results, options.share)
        request = None if summary.error else current_request()
        repeatable = None if request is None else request.repeatable
        part = None if repeatable is None else repeatable.next_part()
        seqs = _Ids()
        if summary.replay_of is not None:
            seqs.add(0, replay_id(summary.replay_of, summary.model.reference))
        write = partial(
            self._write_later if durability == "memory" else self._write,
            part=part,
        )
        if not shed:
            try:
                write(summary, results, seqs, durability)
            except JournalError as error:
                self._note_failure(error, summary, results)
                again = partial(write, summary, results, seqs, durability)
                shed = not self.capacity.retry_write(error, policy, again)
        if shed:
            requested = sum(result.storage.store for result in results)
            self.capacity.counts.add("shed", requested)
            return StoreResult([""] * len(results), stored=not requested)
        self.capacity.counts.add("failed" if summary.error else "stored", seqs.new)
        ids = [""] * len(results)
        for position, seq in seqs.items():
            ids[position] = str(seq)
        if not summary.error and summary.replay_of is None and self._has_signals(summary.model):
            self._signal(summary.model, results, seqs)
        return StoreResult(ids, repeated=part is not None and seqs.new < len(seqs))

    def stores_at_once(self, model: Model) -> bool:
        """Check whether to store an inference with tensors takes no longer than to append it to the journal."""
        options = model.recognition.written.store
        durability = options.durability or self._settings.durability
        policy = options.journal_full or self._settings.journal_full
        keeps_input = options.inputs in ("all", "sampled")
        return (
            durability == "process"
            and policy != "block"
            and not keeps_input
            and self.failed_writes.reason is None
        )

    def counters(self) -> dict[str, float]:
        """Return counters of what became of requests, for metrics; those that end in `_total` only rise."""
        return {
            **self.capacity.counts.totals(),
            "lost_total": self._backlog.lost,
            "journal_bytes_total": self._journal.appended_bytes,
            "lag_bytes": self.capacity.lag_bytes(),
            "lag_soft_limit_bytes": self.capacity.soft_bytes,
            "lag_limit_bytes": self.capacity.hard_bytes,
            **self._signals.counts.totals(),
            **self._ids.clock_counters(),
        }

    def refusal_reason(self, model: Model) -> str | None:
        """Return why the inferences of a model cannot be stored and so are refused; None if they are answered."""
        options = model.recognition.written.store
        policy = options.journal_full or self._settings.journal_full
        reason = self.capacity.refusal_reason(policy)
        return reason if reason or policy == "shed" else self.failed_writes.reason

    def check_disk(self) -> None:
        """Find out at the start whether the journal can be written, before a request does."""
        try:
            self._try_write(_RECORD_BYTES, 0)
        except OSError as error:
            cause = JournalError(f"cannot write to the journal: {error.strerror}")
            self.failed_writes.note(cause, _RECORD_BYTES, 0)

    def _note_failure(
        self, error: JournalError, summary: RequestSummary, results: Sequence[ImageResult]
    ) -> None:
        """Note a write that failed; a commit that is late is known from the writer."""
        options = summary.model.recognition.written.store
        durability = options.durability or self._settings.durability
        if durability == "database" and isinstance(error, UnconfirmedError):
            return
        images = (
            len(result.image or b"")
            for result in results
            if result.storage.store and result.storage.store_input and options.inputs != "none"
        )
        self.failed_writes.note(error, _RECORD_BYTES * len(results), sum(images))

    def _try_write(self, record_bytes: int, image_bytes: int) -> None:
        check_writable(self._journal.directory, record_bytes)
        if image_bytes:
            self._blobs.check_writable(image_bytes)

    def close(self) -> None:
        """Write what waits in memory, and close the journal."""
        self.failed_writes.close()
        self._backlog.close()
        self._signals.close()
        self._journal.close()
        self._claims.close()

    def _has_signals(self, model: Model) -> bool:
        """Check whether a model has signals; inferences that may be lost with the process have none."""
        written = model.recognition.written
        survives = (written.store.durability or self._settings.durability) != "memory"
        return survives and written.monitor.signals and self._settings.signals_per_s > 0

    def _signal(
        self, model: Model, results: Sequence[ImageResult], seqs: Mapping[int, int]
    ) -> None:
        """Hand over the images of recorded inferences."""
        space, other_model = model.embedding_space, model.embedding.other_model
        images = [(seq, results[n]) for n, seq in seqs.items() if results[n].width is not None]
        chosen = [
            SignalTask(
                seq,
                result.decoded_image,
                result.embedding,
                embedding_space=space,
                other_model=other_model,
            )
            for seq, result in images
            if result.decoded_image is not None
        ]
        if images:
            self._signals.put(chosen, len(images) - len(chosen))

    def _write_later(
        self,
        summary: RequestSummary,
        results: Sequence[ImageResult],
        seqs: "_Ids",
        _: Durability,
        *,
        part: RequestPart | None,
    ) -> None:
        """Write in another thread; predictions are encoded here, so that their size is known."""
        encoded, size_bytes = list(results), 0
        positions = [number for number, result in enumerate(results) if result.storage.store]
        self._take_ids(positions, seqs, part)
        for position, result in enumerate(results):
            if result.storage.store:
                text = msgspec.json.encode(result.predictions)
                encoded[position] = msgspec.structs.replace(result, predictions=msgspec.Raw(text))
                size_bytes += _RECORD_BYTES + len(result.image or b"") + len(text)
        if seqs:
            later = partial(self._write, summary, encoded, seqs, "memory", part=part)
            self._backlog.put(later, size_bytes)

    def _write(
        self,
        summary: RequestSummary,
        results: Sequence[ImageResult],
        seqs: "_Ids",
        durability: Durability,
        *,
        part: RequestPart | None,
    ) -> None:
        """Store the images, then journal the request, so that no record points to nothing.

        Missing ids, by the image's position, are added just before the append, so that they rise as the journal
        does. A second try has those of the first, of which the writer may have read whole frames; so has a request that
        is sent again under its idempotency key.
        """
        on_disk, written = durability == "power", summary.model.recognition.written
        inputs = []
        for position, result in enumerate(results):
            if result.storage.store:
                inputs.append((position, result, self._store_input(written.store, result)))
        if not inputs:
            return
        if on_disk:
            self._blobs.sync(input_.hash for _, _, input_ in inputs if input_.kept and input_.hash)
        standard = self._standard_metadata(summary, inputs[0][1])
        if part is not None:
            self._take_ids([position for position, _, _ in inputs], seqs, part, durable=on_disk)
        records = []
        for position, result, input_ in inputs:
            seq = seqs.get(position) or seqs.add(position, self._ids.next())
            own = standard
            if result.semantic_score is not None:
                own = {**own, "semantic_score": result.semantic_score}
            if part is not None:
                own = {**own, IDEMPOTENCY_KEY: part.name(position).hex()}
            records.append(_record(summary, result, input_, seq=seq, position=position, own=own))
        end = self._journal.append(records, hold_segment=on_disk)
        if on_disk:
            self._syncing.wait(end)
        elif durability == "database":
            wait_until_committed(self._journal.directory, end, COMMIT_TIMEOUT_S)

    def _take_ids(
        self,
        positions: Sequence[int],
        seqs: "_Ids",
        part: RequestPart | None,
        *,
        durable: bool = False,
    ) -> None:
        """Give ids to those positions that have none: those of an earlier try of the request, if it has a key, or new ones.

        Raises:
            quadriga.store.records.errors.KeyReusedError: The key was used with another request.
            quadriga.store.records.errors.JournalError: An id cannot be claimed for the key.
        """
        missing = [position for position in positions if position not in seqs]
        if part is None:
            for position in missing:
                seqs.add(position, self._ids.next())
            return
        if not missing:  # a second try to write
            return
        made = set[int]()

        def new_id() -> int:
            made.add(seq := self._ids.next())
            return seq

        names = [part.name(position) for position in missing]
        claimed = self._claims.claim(names, part.fingerprint, new_id, durable=durable)
        for position, seq in zip(missing, claimed, strict=True):
            seqs.add(position, seq, is_new=seq in made)

    def _store_input(self, options: StoreOptions, result: ImageResult) -> InputReference:
        """Store the image, if the options say so, and describe it."""
        image = result.image
        if image is None:
            return InputReference(
                result.input_name, None, result.width, height=result.height, mime=result.mime
            )
        key, keep = None, result.storage.store_input and options.inputs != "none"
        if keep and options.inputs == "sampled":
            key = blob_key(image)
            keep = _is_sampled(key, options.sample_rate)
        key = self._blobs.put(image) if keep else key or blob_key(image)
        return InputReference(
            result.input_name,
            key,
            result.width,
            height=result.height,
            mime=result.mime,
            kept=keep,
            bytes=len(image),
        )

    def _standard_metadata(self, summary: RequestSummary, first: ImageResult) -> dict[str, Any]:
        standard: dict[str, Any] = {
            "engine": self._engine_version,
            "protocol": summary.protocol,
            "stages_ms": summary.stages_ms,
        }
        if first.image is not None and first.mime != MEDIA_TYPE:
            standard["preprocessing"] = summary.model.preprocessing
        if summary.trace is not None:
            standard["trace_id"] = summary.trace.trace_id
            standard["span_id"] = summary.trace.span_id
        if summary.error:
            standard["error"] = summary.error
        return standard


class _Ids(dict[int, int]):
    """Ids of the inferences of a request, by the positions of their images."""

    new = 0
    """Number of ids that no earlier try of the request has."""

    def add(self, position: int, seq: int, *, is_new: bool = True) -> int:
        """Set the id of a position, and return it."""
        self[position] = seq
        self.new += is_new
        return seq


def _record(
    summary: RequestSummary,
    result: ImageResult,
    input_: InputReference,
    *,
    seq: int,
    position: int,
    own: dict[str, Any],
) -> InferenceRecord:
    """Return the record of one inference; one with an origin has the request and the image of that."""
    model = summary.model.reference
    request_id, image_no, origin = summary.request_id, position, result.origin
    if origin is not None:
        own = {**own, "crop": origin.description}
        request_id, image_no = origin.request_id, origin.image_no
    if summary.replay_of is not None:
        request_id = str(summary.replay_of)
        # The writer stores one of several records with the same id and name.
        name = key_digest(model.name, model.version, model.sha256, request_id).hex()
        own = {**own, REPLAY_OF: request_id, IDEMPOTENCY_KEY: name}
        model = msgspec.structs.replace(model, name=replay_name(model.name))
    return InferenceRecord(
        seq=seq,
        request_id=request_id,
        image_no=image_no,
        model=model,
        task=summary.model.recognition.task,
        action=result.action,
        latency_ms=summary.latency_ms,
        input=input_,
        predictions=result.predictions,
        metadata=result.metadata,
        status=500 if summary.error else 200,
        standard=own,
        team=summary.team or msgspec.UNSET,
    )


def _choose_to_store(results: Sequence[ImageResult], share: float) -> list[ImageResult]:
    """Return results of which a random share is stored."""
    replace = msgspec.structs.replace
    return [
        result
        if random.random() < share  # noqa: S311 - which inferences are stored is no secret
        else replace(result, storage=replace(result.storage, store=False))
        for result in results
    ]


def _is_sampled(key: str, rate: float) -> bool:
    """Check whether an image is in the sample: always or never, for the same bytes."""
    return int(key.partition(":")[2][:8], 16) < rate * 2**32
