"""Shadows: a version of a model that answers live requests for the record alone, once their own answers have left.

It never holds up what it shadows: where the server has processors to spare, a request is handed over by adding it to a short
list, and a thread sends it to the process of the shadow, one request at a time. What finds no spare processor, or no room, is
dropped and counted.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Literal

import msgspec

from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.server_numbers import SHADOW, SHADOW_OUTCOMES
from quadriga.engine.measures.shared_counts import OTHER, CountRow, SharedCounts
from quadriga.engine.models.model import Model
from quadriga.engine.serving.recording import ImageResult, Recorder, RequestSummary, ResultOrigin
from quadriga.engine.serving.shadows.shadow_messages import (
    OpenShadow,
    ShadowAnswered,
    ShadowFailed,
    ShadowLimits,
    to_message,
)
from quadriga.engine.serving.shadows.shadow_process import NICENESS, ShadowEndedError, ShadowProcess
from quadriga.engine.serving.traffic import Traffic
from quadriga.engine.serving.traffic_rules import is_shadowed
from quadriga.proto.messages import InferRequest
from quadriga.store.errors import JournalError
from quadriga.store.records import ModelReference
from quadriga.store.replays import SHADOW_SUFFIX

MAX_WAITING = 4
"""Maximum requests of a worker that wait for their shadow."""

MAX_WAITING_BYTES = 32 << 20
MAX_WAIT_S = 2.0
"""Time after which a request that found no spare processor is dropped."""

RUN_S = 30.0

AFTER_S = 0.005
"""Time that is left to the answer of a request to leave before its shadow begins."""

PAUSE_S = 1.0
"""Pause after answers for which the process of the shadow waited for a processor more than half of the time."""

OWN_SHARE = 0.01
"""Largest part of a busy worker's time that its thread for shadows may take."""

BUSY_SHARE = 0.25
"""Part of a processor from which on a worker is busy."""

SPARE_LOOKS = 3
"""How often in a row a busy worker must have processors to spare: one look may fall between two requests of a full load."""

_POLL_S, _MAX_POLL_S, _SPARE_POLL_S = 0.01, 0.1, 0.002
_IDLE_S = 5.0
_MIN_DELAY_S, _MAX_DELAY_S = 5.0, 300.0
_MIN_MEASURED_MS = 20.0
_HANDING_MS = 2.0
"""Milliseconds of each answer that are not counted as waiting: handing it over takes some where nobody waits, too."""
_WINDOW_S = 0.2

Outcome = Literal["answered", "failed", "dropped"]

_log = logging.getLogger("quadriga.models")


class _Offer(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A live request that was answered, and is to be answered by its shadow."""

    model: Model
    shadow: Model
    request: InferRequest
    results: Sequence[ImageResult]
    """Results of the live request, without what only an answer needs."""
    ids: Sequence[str]
    """Ids of its inferences, one for each result; empty for those that are not stored."""
    protocol: str
    team: str
    size_bytes: int
    offered_s: float


class _Failures:
    """How often the process of a shadow ended in a row, and from when on it may be started again."""

    def __init__(self) -> None:
        self.count = 0
        self.until_s = 0.0

    def add(self) -> float:
        """Note one more; return the seconds until the next start."""
        delay_s = min(_MIN_DELAY_S * 2.0**self.count, _MAX_DELAY_S)
        self.count += 1
        self.until_s = time.monotonic() + delay_s
        return delay_s


class Shadows:
    """The shadows of a worker; `offer` is safe to call from several threads.

    Args:
        traffic: Knows which requests a shadow sees.
        recorder: Stores what shadows say.
        settings: Settings of the server.
        counts: What is counted for metrics.
        has_spare: Checks whether no request waits, and fewer than a number of them run.
        niceness: How far the processes of shadows go after this one.
        run_s: Time limit of one answer, after which the process of the shadow is ended.
    """

    def __init__(
        self,
        traffic: Traffic,
        recorder: Recorder,
        settings: Settings,
        counts: SharedCounts,
        has_spare: Callable[[int], bool],
        *,
        niceness: int = NICENESS,
        run_s: float = RUN_S,
    ) -> None:
        self._traffic = traffic
        self._recorder = recorder
        self._niceness = niceness
        self._run_s = run_s
        self._settings = settings
        self._counts = counts
        self._has_spare = has_spare
        self._cores = max(len(os.sched_getaffinity(0)) // settings.workers, 1)
        self._lock = threading.Lock()
        self._waiting: deque[_Offer] = deque()
        self._waiting_bytes = 0
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._processes: dict[str, tuple[Model, ShadowProcess]] = {}
        """The process of each model's shadow, with the version that it has loaded."""
        self._rows: dict[tuple[str, str], CountRow] = {}
        self._failures: dict[tuple[str, str], _Failures] = {}
        self._pause_until_s = 0.0
        self._round_trips_ms = self._waits_ms = 0.0
        self._window = (time.monotonic(), time.process_time())
        self._is_busy = False

    def offer(
        self,
        model: Model,
        request: InferRequest,
        results: Sequence[ImageResult],
        ids: Sequence[str],
        *,
        protocol: str,
        team: str,
    ) -> None:
        """Hand over a request that a model has answered, if its rule has a shadow that sees it."""
        rule = self._traffic.rule_of(model.name)
        if rule is None or rule.shadow is None or not is_shadowed(rule, model.name, request):
            return
        version = rule.shadow.version
        if version == model.version or not any(ids):
            return
        now_s = time.monotonic()
        # One more than has to be free: the request that was answered just now has its thread still.
        if now_s < self._pause_until_s or not self._has_spare(self._cores + 1):
            self._count(model.name, version, "dropped")
            return
        shadow = self._traffic.ready_version(model.name, version)
        size_bytes = _size_bytes(request, results)
        with self._lock:
            has_room = (
                shadow is not None
                and not self._is_closed
                and len(self._waiting) < MAX_WAITING
                and self._waiting_bytes + size_bytes <= MAX_WAITING_BYTES
            )
            if shadow is not None and has_room:
                self._waiting_bytes += size_bytes
                self._waiting.append(
                    _Offer(
                        model=model,
                        shadow=shadow,
                        request=request,
                        results=[_without_answer(result) for result in results],
                        ids=ids,
                        protocol=protocol,
                        team=team,
                        size_bytes=size_bytes,
                        offered_s=now_s,
                    )
                )
                self._start()
        if has_room:
            self._wake.set()
        else:
            self._count(model.name, version, "dropped")

    def close(self) -> None:
        """End the processes; what waits is dropped."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._wake.set()
        for _, process in list(self._processes.values()):
            process.kill()
        if thread is not None:
            thread.join(timeout=1.0)

    def _start(self) -> None:
        """Start the thread with the first request; called with the lock held."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="shadows", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                offer = self._next()
                if offer is None:
                    self._end_unused()
                    continue
                begun_s = time.thread_time()
                outcome = self._answer(offer)
                self._count(offer.model.name, offer.shadow.version, outcome)
                if self._is_busy:
                    self._pause((time.thread_time() - begun_s) / OWN_SHARE)
            except Exception:  # noqa: BLE001 - the loop must go on
                _log.exception("a shadow could not answer")
                self._pause(PAUSE_S)
        for _, process in self._processes.values():
            process.close()

    def _next(self) -> _Offer | None:
        """Return a request as soon as there are processors to spare; None if none came for a while."""
        if not self._waiting:
            self._wake.clear()
            if not self._waiting and not self._wake.wait(_IDLE_S):
                return None
        wait_s, spare_looks = _POLL_S, 0
        while not self._is_closed:
            time.sleep(_SPARE_POLL_S if spare_looks else wait_s)
            self._look()
            self._drop_old()
            with self._lock:
                if not self._waiting:
                    break
                if not self._may_begin(self._waiting[0]):
                    spare_looks = 0
                    wait_s = min(
                        2 * wait_s, _MAX_POLL_S
                    )  # a look takes time from whoever is answered
                    continue
                spare_looks += 1
                if spare_looks == SPARE_LOOKS or not self._is_busy:
                    return self._take()
        return None

    def _may_begin(self, offer: _Offer) -> bool:
        """Check whether the answer of a request has left, and there are processors to spare."""
        now_s = time.monotonic()
        is_left = now_s - offer.offered_s >= AFTER_S
        return is_left and now_s >= self._pause_until_s and self._has_spare(self._cores)

    def _look(self) -> None:
        """Find out whether the worker is busy."""
        now_s, cpu_s = time.monotonic(), time.process_time()
        elapsed_s = now_s - self._window[0]
        if elapsed_s >= _WINDOW_S:
            self._is_busy = cpu_s - self._window[1] > BUSY_SHARE * elapsed_s
            self._window = now_s, cpu_s

    def _drop_old(self) -> None:
        dropped = []
        with self._lock:
            while self._waiting and time.monotonic() - self._waiting[0].offered_s > MAX_WAIT_S:
                dropped.append(self._take())
        for offer in dropped:
            self._count(offer.model.name, offer.shadow.version, "dropped")

    def _take(self) -> _Offer:
        offer = self._waiting.popleft()
        self._waiting_bytes -= offer.size_bytes
        return offer

    def _pause(self, seconds: float) -> None:
        self._pause_until_s = max(self._pause_until_s, time.monotonic() + seconds)

    def _answer(self, offer: _Offer) -> Outcome:
        """Have the shadow answer a request, and store what it says."""
        is_stored = offer.shadow.recognition.written.store.enabled
        if not is_stored or self._recorder.capacity.is_behind():
            return "dropped"
        key = offer.shadow.name, offer.shadow.version
        failures = self._failures.setdefault(key, _Failures())
        if time.monotonic() < failures.until_s:
            return "dropped"
        started_s = time.monotonic()
        try:
            process = self._process(offer.shadow)
            started_s = time.monotonic()
            answer = process.run(to_message(offer.request), self._run_s)
        except ShadowEndedError as error:
            if self._is_closed:
                return "dropped"
            self._processes.pop(offer.shadow.name, None)
            delay_s = failures.add()
            _log.error("%s %s as a shadow: %s; starting it again in %g s", *key, error, delay_s)
            elapsed_ms = (time.monotonic() - started_s) * 1000
            answer = ShadowFailed(f"as a shadow: {error}", elapsed_ms)
        else:
            failures.count = 0
        if isinstance(answer, ShadowAnswered):
            round_trip_ms = (time.monotonic() - started_s) * 1000
            self._note_wait(round_trip_ms, answer.elapsed_ms - answer.waited_ms)
        try:
            self._recorder.record(_summary(offer, answer), _results(offer, answer))
        except JournalError as error:
            _log.warning("%s %s: its answer as a shadow cannot be stored: %s", *key, error)
            return "failed"
        return "answered" if isinstance(answer, ShadowAnswered) else "failed"

    def _note_wait(self, round_trip_ms: float, needed_ms: float) -> None:
        """Note how long an answer took and would have taken; pause if processors were short for the last ones."""
        self._round_trips_ms += round_trip_ms
        self._waits_ms += max(round_trip_ms - needed_ms - _HANDING_MS, 0.0)
        if self._round_trips_ms > _MIN_MEASURED_MS:
            if self._waits_ms > self._round_trips_ms / 2:
                self._pause(PAUSE_S)
            self._round_trips_ms = self._waits_ms = 0.0

    def _process(self, model: Model) -> ShadowProcess:
        """Return the process that has loaded a version, and start it if there is none; raises as `ShadowProcess`."""
        present = self._processes.get(model.name)
        if present is not None:
            if present[0] is model:
                return present[1]
            self._processes.pop(model.name)
            present[1].close()
        settings, origin = self._settings, model.origin
        opening = OpenShadow(
            name=model.name,
            version=model.version,
            path=str(origin.path),
            overrides=None if origin.overrides is None else dict(origin.overrides),
            score_threshold=origin.score_threshold,
            extensions=settings.extensions or "",
            limits=ShadowLimits(
                **{name: getattr(settings, name) for name in ShadowLimits.__struct_fields__}
            ),
        )
        process = ShadowProcess(opening, settings.load_timeout_s, self._niceness)
        self._processes[model.name] = model, process
        return process

    def _end_unused(self) -> None:
        """End the processes of versions that are no shadow any more, or are no longer served."""
        for name, (model, process) in list(self._processes.items()):
            rule = self._traffic.rule_of(name)
            shadow = None if rule is None else rule.shadow
            is_shadow = shadow is not None and shadow.version == model.version
            if not is_shadow or self._traffic.ready_version(name, model.version) is not model:
                del self._processes[name]
                process.close()

    def _count(self, model: str, version: str, outcome: Outcome) -> None:
        row = self._rows.get((model, version))
        if row is None:
            row = self._counts.row((SHADOW, model, version), (SHADOW, OTHER, OTHER))
            self._rows[model, version] = row
        row.add(SHADOW_OUTCOMES.index(outcome))


def _size_bytes(request: InferRequest, results: Sequence[ImageResult]) -> int:
    """Return about how much memory a request holds that waits."""
    size_bytes = sum(len(result.image or b"") for result in results)
    for tensor in request.inputs:
        if isinstance(tensor.data, list):
            size_bytes += sum(map(len, tensor.data))
        else:
            size_bytes += tensor.data.nbytes
    return size_bytes


def _without_answer(result: ImageResult) -> ImageResult:
    return msgspec.structs.replace(
        result,
        predictions=[],
        embedding=None,
        decoded_image=None,
        semantic_score=None,
        cut_crops=None,
    )


def _summary(offer: _Offer, answer: ShadowAnswered | ShadowFailed) -> RequestSummary:
    """Return the request-level fields to store, of the shadow under its own name."""
    model = copy(offer.shadow)
    reference = offer.shadow.reference
    model.reference = ModelReference(
        reference.name + SHADOW_SUFFIX, reference.version, reference.sha256
    )
    return RequestSummary(
        model,
        offer.request.id,
        offer.protocol,
        latency_ms=round(answer.elapsed_ms, 3),
        stages_ms=answer.stages_ms if isinstance(answer, ShadowAnswered) else {},
        error=answer.reason if isinstance(answer, ShadowFailed) else "",
        team=offer.team,
    )


def _results(offer: _Offer, answer: ShadowAnswered | ShadowFailed) -> list[ImageResult]:
    """Return the results to store: one for each result of the live request that is stored, linked to it."""
    answered = answer.results if isinstance(answer, ShadowAnswered) else [None] * len(offer.results)
    results = []
    for live, inference_id, shadow in zip(offer.results, offer.ids, answered, strict=False):
        if not inference_id:
            continue
        description = {
            "inference_id": inference_id,
            "request_id": offer.request.id,
            "model": offer.model.name,
            "version": offer.model.version,
        }
        results.append(
            msgspec.structs.replace(
                live,
                action=live.action if shadow is None else shadow.action,
                predictions=[] if shadow is None else msgspec.Raw(shadow.predictions),
                origin=ResultOrigin(inference_id, 0, description, "shadow"),
            )
        )
    return results
