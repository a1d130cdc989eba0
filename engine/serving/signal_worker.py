"""Signals of recorded images, for drift: computed and journaled in a thread of its own.

Signals are derived and not acknowledged: those for which there is no time or room are counted and left out, and a
kill loses the last moments. A request pays for the choice and for putting a reference into a queue.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from queue import Empty, SimpleQueue

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.engine.serving.journal_capacity import OutcomeCounters
from quadriga.monitor.image_statistics import measure_image
from quadriga.store.errors import JournalError
from quadriga.store.ids import IdSource
from quadriga.store.journal import Journal
from quadriga.store.records import ImageSignals, JournaledChange, SignalsOfImages
from quadriga.tasks.image import Image

MAX_QUEUE_BYTES = 64 << 20
"""Maximum bytes of pixels that wait."""

BATCH_INTERVAL_S = 0.2
BATCH_IMAGES = 64
"""Signals computed within that time, or of so many images, are journaled together."""

Embed = Callable[[str, Image], tuple[npt.NDArray[np.float32] | None, str | None]]
"""Returns the embedding (D,) of an image by the model of a name, and its space; None where there is none."""

_log = logging.getLogger(__name__)


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
