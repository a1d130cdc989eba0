"""Admission of requests by the room in the journal, and handling of requests without room.

The database may be unreachable or slow, or the disk full. A request that cannot be stored is refused before the model
runs, no inference is acknowledged that is not stored, and every other outcome is counted.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from quadriga.engine.config.settings import FullPolicy, Settings
from quadriga.store.journal.journal_lag import JournalLag, default_limit_bytes
from quadriga.store.records.errors import JournalError, UnconfirmedError

BLOCK_S = 1.0
"""Maximum time that the policy `block` waits for room: longer than a pause of the writer, shorter than clients' patience."""

_RETRY_INTERVAL_S = 0.02
_LIMITS_INTERVAL_S = 10.0
_TRIAL_INTERVAL_S = 1.0
_MAX_TRIAL_BYTES = 16 << 20
_log = logging.getLogger(__name__)


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


class FailedWrites:
    """Whether the disk takes what requests store: from a write that failed until one of that size works again.

    Meanwhile a thread tries it, since a server that is not ready may get no request that would.

    Args:
        try_write: Writes so many bytes where records are stored, and so many where images are, and removes them again;
            0 where none need be.
    """

    def __init__(self, try_write: Callable[[int, int], object]) -> None:
        self._try_write = try_write
        self._lock = threading.Lock()
        self.reason: str | None = None
        """Why nothing can be stored; None if nothing is known to be wrong."""
        self._record_bytes = self._image_bytes = 0
        self._closing = threading.Event()

    def note(self, error: JournalError, record_bytes: int, image_bytes: int) -> None:
        """Note that a write of so many bytes of records and of images failed."""
        with self._lock:
            self._record_bytes = min(max(record_bytes, self._record_bytes), _MAX_TRIAL_BYTES)
            self._image_bytes = min(max(image_bytes, self._image_bytes), _MAX_TRIAL_BYTES)
            begins = self.reason is None and not self._closing.is_set()
            self.reason = str(error)
        if begins:
            _log.error("inferences cannot be stored: %s", error)
            threading.Thread(target=self._try_again, name="disk-trial", daemon=True).start()

    def close(self) -> None:
        """End the trials."""
        self._closing.set()

    def _try_again(self) -> None:
        while not self._closing.wait(_TRIAL_INTERVAL_S):
            try:
                self._try_write(self._record_bytes, self._image_bytes)
            except (OSError, JournalError):
                continue
            with self._lock:
                self.reason, self._record_bytes, self._image_bytes = None, 0, 0
            _log.warning("inferences can be stored again")
            return


class Admission(msgspec.Struct, frozen=True):
    """Decision, made before the model runs, whether the journal has room for a request."""

    shed: bool = False
    """Whether the request is answered without being stored."""
    lag_bytes: int = 0
    """Bytes of the journal lag, where it is beyond the soft limit; else 0."""


ADMITTED = Admission()


class JournalCapacity:
    """The limits of one journal, as one worker sees it; safe to use from several threads.

    `soft_bytes` and `hard_bytes` are the limits. Those that the settings leave open follow the free disk space: at the start, and again, at most every
    `_LIMITS_INTERVAL_S`, while the journal is beyond its soft limit, as the disk may have been full at the start.
    """

    def __init__(self, journal_directory: Path, settings: Settings) -> None:
        self._directory = journal_directory
        self._settings = settings
        self._set_limits()
        self._policy = settings.journal_full
        self._block_s = BLOCK_S
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

    def _set_limits(self) -> None:
        settings = self._settings
        self.hard_bytes = settings.journal_hard_bytes or default_limit_bytes(self._directory)
        self.soft_bytes = self.hard_bytes // 2
        self._limits_until_s = time.monotonic() + _LIMITS_INTERVAL_S

    def _has_room(self, lag_bytes: int) -> bool:
        """Check whether a lag is within the hard limit, which follows the disk."""
        if not self._settings.journal_hard_bytes and time.monotonic() > self._limits_until_s:
            with suppress(OSError):  # then the limits stay
                self._set_limits()
        return lag_bytes <= self.hard_bytes

    def is_behind(self) -> bool:
        """Check whether the journal lag is beyond its soft limit."""
        return self.lag_bytes() > self.soft_bytes

    def admit(self, policy: FullPolicy | None) -> Admission:
        """Decide, before the model runs, whether a request can be stored.

        Args:
            policy: What the model does when the journal is full; None follows the settings.

        Raises:
            JournalError: The journal is full, and the policy refuses requests that cannot be stored.
        """
        lag_bytes = self.lag_bytes()
        if lag_bytes <= self.soft_bytes:
            return ADMITTED
        policy = policy or self._policy
        if not self._has_room(lag_bytes) and policy == "block":
            self.counts.add("blocked")
            deadline_s = time.monotonic() + self._block_s
            while lag_bytes > self.hard_bytes and time.monotonic() < deadline_s:
                time.sleep(_RETRY_INTERVAL_S)
                lag_bytes = self.lag_bytes()
        if lag_bytes > self.hard_bytes and policy != "shed":
            self.counts.add("refused")
            raise JournalError(_full(self.hard_bytes, lag_bytes))
        self.counts.add("behind")
        return Admission(shed=lag_bytes > self.hard_bytes, lag_bytes=lag_bytes)

    def refusal_reason(self, policy: FullPolicy | None) -> str | None:
        """Return why requests are refused for want of room in the journal; None if they are not."""
        lag_bytes = self.lag_bytes()
        if (policy or self._policy) == "shed" or self._has_room(lag_bytes):
            return None
        return _full(self.hard_bytes, lag_bytes)

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


def _full(limit_bytes: int, lag_bytes: int) -> str:
    return f"expected at most {limit_bytes} bytes of the journal to wait for the database, got {lag_bytes}"
