"""The ids of one worker: its number, which the writer claims in the database, and the ids that it follows."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from quadriga.engine.config.settings import Settings
from quadriga.store.clock import MAX_LEAD_MS, Clock
from quadriga.store.errors import NotReadyError, QueryTimeoutError
from quadriga.store.ids import LARGEST_ID, IdSource, smallest_id_at, time_ms
from quadriga.store.inferences import InferenceReader
from quadriga.store.journal import latest_seq as latest_journaled
from quadriga.store.records import timestamp_text
from quadriga.store.worker_numbers import read_numbers

LATEST_ID_TIMEOUT_S = 5.0
"""Maximum time that a worker's start waits for a database that does not respond."""

NO_NUMBER = "expected worker numbers from the database, got no answer: a new data folder has none"
"""Why a worker is not ready whose number the database has to give."""

_POLL_INTERVAL_S = 0.05
_log = logging.getLogger(__name__)


class WorkerIds:
    """Assigns the number of a worker to its source of ids, once it is known.

    Args:
        settings: Settings of the server.
        worker: Which of the server's workers this is, from 0.
        run_id: Id of the run of the server; empty without a writer.
        inferences: Reads the newest stored id.
    """

    def __init__(
        self, settings: Settings, worker: int, run_id: str, *, inferences: InferenceReader
    ) -> None:
        self.source = IdSource(clock=Clock(Path(settings.data)))
        self._settings = settings
        self._worker = worker
        self._run_id = run_id
        self._inferences = inferences

    def close(self) -> None:
        """Close the connections to the store."""
        self._inferences.close()

    def assign(self, on_wait: Callable[[], object] = lambda: None) -> None:
        """Wait for the number, and assign it; `on_wait` is called if that takes longer than a database should.

        In a database of the data folder itself nobody else writes: its numbers need no claim.
        """
        number = self._worker
        if self._settings.database and self._run_id:
            number = self._claimed_number(on_wait)
        directory = self._settings.journal_directory
        limit = smallest_id_at(Clock(Path(self._settings.data)).now_ms() + MAX_LEAD_MS)
        latest = latest_id(self._inferences, directory)
        if latest <= limit:
            self.source.assign(number, latest)
            return
        _log.error(
            "ids until %s are stored, which the clock has not reached: new ids do not follow them",
            timestamp_text(time_ms(latest)),
        )
        self.source.assign(number, latest_id(self._inferences, directory, limit), is_behind=True)

    def _claimed_number(self, on_wait: Callable[[], object]) -> int:
        wait_until_s: float | None = time.monotonic() + LATEST_ID_TIMEOUT_S
        while True:
            claimed = read_numbers(Path(self._settings.data))
            if claimed is not None and claimed.run == self._run_id:
                return claimed.numbers[self._worker]
            if wait_until_s is not None and time.monotonic() > wait_until_s:
                wait_until_s = None
                _log.warning("the worker waits for its number, which the database gives")
                on_wait()
            time.sleep(_POLL_INTERVAL_S)


def latest_id(inferences: InferenceReader, journal_directory: Path, until: int = LARGEST_ID) -> int:
    """Return the largest stored id up to a limit, or the largest journaled one while the database is unavailable.

    A new database does not respond before its first migration. If it stays unavailable, the worker starts
    anyway: its ids repeat no others as long as the clock was not set back.
    """
    deadline_s = time.monotonic() + LATEST_ID_TIMEOUT_S
    while True:
        try:
            return inferences.latest_seq(until)
        except (NotReadyError, QueryTimeoutError) as error:
            if time.monotonic() > deadline_s:
                _log.error(
                    "new ids follow the clock alone, the newest stored is unknown: %s", error
                )
                return latest_journaled(journal_directory, until)
        time.sleep(_POLL_INTERVAL_S)
