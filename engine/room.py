"""Whether the journal has room for more, and what becomes of a request where it has none.

The database may be away or slow, or the disk full. Nothing is computed that is known not to be kept, nothing is
acknowledged that is not kept, and whoever is told otherwise is counted.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from quadriga.engine.settings import FullPolicy, Settings
from quadriga.store.errors import JournalError, UnconfirmedError
from quadriga.store.journal_lag import JournalLag, default_limit_bytes

_PAUSE_S = 0.02


class Counts:
    """How often things happened since the process began, by name; safe from several threads."""

    def __init__(self, *names: str) -> None:
        self._lock = threading.Lock()
        self._numbers = dict.fromkeys(names, 0)

    def add(self, name: str, number: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._numbers[name] += number

    def totals(self) -> dict[str, int]:
        """Give all of them, as metrics name what only rises."""
        return {f"{name}_total": number for name, number in self._numbers.items()}


class Admission(msgspec.Struct, frozen=True):
    """What is known of the room when a request begins."""

    shed: bool = False
    """Whether the request is to be answered and not kept."""
    lag_bytes: int = 0
    """How far the database is behind, where that is beyond the soft limit."""


ADMITTED = Admission()


class Room:
    """The room of one journal, as one worker sees it; safe from several threads.

    What the settings leave open is taken from the disk as it is now.
    """

    def __init__(self, journal_directory: Path, settings: Settings) -> None:
        self._hard_bytes = settings.journal_hard_bytes or default_limit_bytes(journal_directory)
        soft_bytes = settings.journal_soft_bytes or self._hard_bytes // 2
        self._soft_bytes = min(soft_bytes, self._hard_bytes)
        self._full = settings.journal_full
        self._block_s = settings.journal_block_ms / 1000
        self.lag_bytes = JournalLag(journal_directory).bytes
        """Gives how far the database is behind, as of at most 0.1 s ago."""
        self.counts = Counts(
            "stored",  # records acknowledged
            "shed",  # records that were answered and not kept, as there was no room
            "refused",  # requests, as they could not be kept, or not for certain
            "blocked",  # requests that waited for room
            "behind",  # requests answered while the store was behind its soft limit
            "failed",  # records of requests that the model failed to answer
        )

    def is_behind(self) -> bool:
        """Tell whether the database is further behind than it should be."""
        return self.lag_bytes() > self._soft_bytes

    def admit(self, full: FullPolicy | None) -> Admission:
        """Decide whether a request can be kept, by the model's policy, before the model is run.

        Raises:
            JournalError: The journal is full, and what cannot be kept is not to be answered.
        """
        lag = self.lag_bytes()
        if lag <= self._soft_bytes:
            return ADMITTED
        full = full or self._full
        if lag > self._hard_bytes and full == "block":
            self.counts.add("blocked")
            until = time.monotonic() + self._block_s
            while lag > self._hard_bytes and time.monotonic() < until:
                time.sleep(_PAUSE_S)
                lag = self.lag_bytes()
        if lag > self._hard_bytes and full != "shed":
            self.counts.add("refused")
            raise JournalError(
                f"expected at most {self._hard_bytes} bytes of the journal to wait for the "
                f"database, got {lag}"
            )
        self.counts.add("behind")
        return Admission(shed=lag > self._hard_bytes, lag_bytes=lag)

    def insist(
        self, error: JournalError, full: FullPolicy | None, write: Callable[[], None]
    ) -> bool:
        """Do as the policy says with what could not be written, as on a full disk.

        Returns:
            Whether it is kept; if not, what was answered is to be shed.

        Raises:
            JournalError: It is to be refused; or it may be kept, and that is not certain.
        """
        full, until = full or self._full, None
        while True:
            now, is_certain = time.monotonic(), not isinstance(error, UnconfirmedError)
            if is_certain and full == "shed":
                return False
            if is_certain and full == "block" and until is None:
                self.counts.add("blocked")
                until = now + self._block_s
            if not is_certain or until is None or now >= until:
                self.counts.add("refused")
                raise error
            time.sleep(_PAUSE_S)
            try:
                write()
            except JournalError as again:
                error = again
            else:
                return True
