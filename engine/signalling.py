"""What drift is told by, made of images after they are recorded, in a thread of its own.

It is derived, not acknowledged: what there is no time or room for is counted and left out, and a kill loses
the last moments. Requests pay for the choice and for putting a reference into a queue.
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

from quadriga.engine.room import Counts
from quadriga.monitor.signals import picture
from quadriga.store.errors import JournalError
from quadriga.store.ids import IdSource
from quadriga.store.journal import Journal
from quadriga.store.records import ImageSignals, JournaledChange, SignalsOfImages
from quadriga.tasks.image import Image

QUEUE_BYTES = 64 << 20
"""Of pixels that wait."""

FRAME_S = 0.2
FRAME_IMAGES = 64
"""What is made within that time, or of so many images, is journaled together."""

Embed = Callable[[str, Image], tuple[npt.NDArray[np.float32] | None, str | None]]
"""Gives the embedding (D,) of an image by a model of this name, and its space; None where there is none."""

_log = logging.getLogger(__name__)


class Signalled(msgspec.Struct, frozen=True, eq=False):
    """A recorded image whose signals are wanted."""

    seq: int
    """Of its record."""
    pixels: Image
    embedding: npt.NDArray[np.float32] | None = None
    """Of its model, (D,)."""
    space: str | None = None
    """Of the embedding."""
    other: str = ""
    """Name of the model whose embedding is wanted where there is none."""


class Signaller:
    """Makes and journals the signals of images; safe to use from several threads.

    They are made of `per_s` images of each model on average. `is_behind` tells whether the journal is
    to be spared, `embed` asks another model for an embedding.
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
        """Tokens of each model, and when they were counted."""
        self._waiting: SimpleQueue[Signalled | None] = SimpleQueue()
        """None is the end."""
        self._bytes = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()
        """Faults that were logged."""
        self.counts = Counts(
            "signals",  # of recorded images, journaled
            "signals_skipped",  # beyond the rate, or beyond what one request may hold
            "signals_dropped",  # there was no room for them, or they could not be made
        )

    def choose(self, model: str, count: int) -> Collection[int]:
        """Choose those of a request's images whose signals are wanted, by their positions.

        Each takes a random number of tokens, one on average: where images come faster than the rate, the
        gaps between those chosen are random, or a camera that takes its turn might never be seen.
        """
        if not self._per_s:
            return ()
        order = range(count) if count == 1 else random.sample(range(count), count)
        chosen = []
        with self._lock:
            now, most = time.monotonic(), max(self._per_s, 1.0)
            tokens, counted_s = self._buckets.get(model, (most, now))
            tokens = min(tokens + (now - counted_s) * self._per_s, most)
            for position in order:
                if tokens <= 0:
                    break
                tokens -= random.expovariate(1.0)
                chosen.append(position)
            self._buckets[model] = tokens, now
        return chosen

    def put(self, images: Sequence[Signalled], skipped: int) -> None:
        """Take images, as many as there is room for; count those that were not chosen."""
        self.counts.add("signals_skipped", skipped)
        with self._lock:
            for image in images:
                size_bytes = image.pixels.pixels.nbytes
                if self._bytes and self._bytes + size_bytes > QUEUE_BYTES:
                    self.counts.add("signals_dropped")
                    continue
                self._waiting.put(image)
                self._bytes += size_bytes
            if images and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Make the signals of what waits, journal them, and end."""
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        made: list[ImageSignals] = []
        due_s = 0.0
        while True:
            image = self._next(due_s if made else None)
            if image is not None:
                due_s = due_s if made else time.monotonic() + FRAME_S
                made.extend(self._made(image))
            elif not made:  # the end
                return
            if image is None or len(made) >= FRAME_IMAGES or time.monotonic() >= due_s:
                self._append(made)
                made = []

    def _next(self, until_s: float | None) -> Signalled | None:
        """Wait for an image; None where none came until then, or at the end."""
        timeout_s = None if until_s is None else max(until_s - time.monotonic(), 0)
        try:
            image = self._waiting.get(timeout=timeout_s)
        except Empty:
            return None
        if image is None:
            self._waiting.put(None)  # it stays the end
            return None
        with self._lock:
            self._bytes -= image.pixels.pixels.nbytes
        return image

    def _made(self, image: Signalled) -> list[ImageSignals]:
        """Make the signals of an image; none where that fails."""
        embedding, space = image.embedding, image.space
        if embedding is None and image.other:
            try:
                embedding, space = self._embed(image.other, image.pixels)
                if embedding is None:
                    raise ValueError("expected it to have one of its own, got none")
            except Exception as error:  # noqa: BLE001 - whatever it is, it costs the embedding alone
                self._tell(f"{image.other!r} gives no embedding of", image, error)
        try:
            numbers = picture(image.pixels.pixels, image.pixels.bit_depth).astype("<f4").tobytes()
        except Exception as error:  # noqa: BLE001 - as above, the signals
            self.counts.add("signals_dropped")
            self._tell("there are no signals of", image, error)
            return []
        if embedding is None or space is None:
            return [ImageSignals(image.seq, numbers)]
        return [ImageSignals(image.seq, numbers, embedding.astype("<f2").tobytes(), space)]

    def _tell(self, what: str, image: Signalled, error: Exception) -> None:
        """Log a fault, once each."""
        if what not in self._told:
            self._told.add(what)
            _log.error("%s inference %d: %r; it is not said again", what, image.seq, error)

    def _append(self, made: list[ImageSignals]) -> None:
        if not made:
            return
        if self._is_behind():
            self.counts.add("signals_dropped", len(made))
            return
        try:
            self._journal.append([JournaledChange(self._ids.next(), SignalsOfImages(made))])
        except JournalError:  # whoever records is told, and tells
            self.counts.add("signals_dropped", len(made))
        else:
            self.counts.add("signals", len(made))
