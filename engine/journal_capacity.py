"""Admission of requests by the room in the journal, and handling of requests without room.

The database may be unreachable or slow, or the disk full. A request that cannot be stored is refused before the model
runs, no inference is acknowledged that is not stored, and every other outcome is counted.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from quadriga.engine.settings import FullPolicy, Settings
from quadriga.store.errors import JournalError, UnconfirmedError
from quadriga.store.journal_lag import JournalLag, default_limit_bytes

_RETRY_INTERVAL_S = 0.02


class OutcomeCounters:
    """Counters of outcomes since the process began, by name; safe to use from several threads."""

    def __init__(self, *names: str) -> None:
        self._lock = threading.Lock()
        self._totals = dict.fromkeys(names, 0)

    def add(self, name: str, count: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._totals[name] += count

    def totals(self) -> dict[str, int]:
        """Return all counters, with the names of metrics that only rise."""
        return {f"{name}_total": total for name, total in self._totals.items()}


class Admission(msgspec.Struct, frozen=True):
    """Decision, made before the model runs, whether the journal has room for a request."""

    shed: bool = False
    """Whether the request is answered without being stored."""
    lag_bytes: int = 0
    """Bytes of the journal lag, where it is beyond the soft limit; else 0."""


ADMITTED = Admission()


class JournalCapacity:
    """The limits of one journal, as one worker sees it; safe to use from several threads.

    Limits that the settings leave open follow the free disk space at the start.
    """

    def __init__(self, journal_directory: Path, settings: Settings) -> None:
        self._hard_bytes = settings.journal_hard_bytes or default_limit_bytes(journal_directory)
        soft_bytes = settings.journal_soft_bytes or self._hard_bytes // 2
        self._soft_bytes = min(soft_bytes, self._hard_bytes)
        self._policy = settings.journal_full
        self._block_s = settings.journal_block_ms / 1000
        self.lag_bytes = JournalLag(journal_directory).bytes
        """Returns the bytes of the journal lag, as of at most 0.1 s ago."""
        self.counts = OutcomeCounters(
            "stored",  # records acknowledged
            "shed",  # records answered without being stored, for lack of room
            "refused",  # requests that could not be stored, or not for certain
            "blocked",  # requests that waited for room
            "behind",  # requests answered while the journal lag was beyond its soft limit
            "failed",  # records of requests that the model failed to answer
        )

    def is_behind(self) -> bool:
        """Check whether the journal lag is beyond its soft limit."""
        return self.lag_bytes() > self._soft_bytes

    def admit(self, policy: FullPolicy | None) -> Admission:
        """Decide, before the model runs, whether a request can be stored.

        Args:
            policy: What the model does when the journal is full; None follows the settings.

        Raises:
            JournalError: The journal is full, and the policy refuses requests that cannot be stored.
        """
        lag_bytes = self.lag_bytes()
        if lag_bytes <= self._soft_bytes:
            return ADMITTED
        policy = policy or self._policy
        if lag_bytes > self._hard_bytes and policy == "block":
            self.counts.add("blocked")
            deadline_s = time.monotonic() + self._block_s
            while lag_bytes > self._hard_bytes and time.monotonic() < deadline_s:
                time.sleep(_RETRY_INTERVAL_S)
                lag_bytes = self.lag_bytes()
        if lag_bytes > self._hard_bytes and policy != "shed":
            self.counts.add("refused")
            raise JournalError(
                f"expected at most {self._hard_bytes} bytes of the journal to wait for the "
                f"database, got {lag_bytes}"
            )
        self.counts.add("behind")
        return Admission(shed=lag_bytes > self._hard_bytes, lag_bytes=lag_bytes)

    def retry_write(
        self, error: JournalError, policy: FullPolicy | None, write: Callable[[], None]
    ) -> bool:
        """Handle a write that failed, as on a full disk, by the policy.

        Returns:
            Whether the request is stored now; if not, it is shed.

        Raises:
            JournalError: The policy refuses the request; or it may be stored, and that is not certain.
        """
        policy, deadline_s = policy or self._policy, None
        while True:
            now_s, is_certain = time.monotonic(), not isinstance(error, UnconfirmedError)
            if is_certain and policy == "shed":
                return False
            if is_certain and policy == "block" and deadline_s is None:
                self.counts.add("blocked")
                deadline_s = now_s + self._block_s
            if not is_certain or deadline_s is None or now_s >= deadline_s:
                self.counts.add("refused")
                raise error
            time.sleep(_RETRY_INTERVAL_S)
            try:
                write()
            except JournalError as again:
                error = again
            else:
                return True
