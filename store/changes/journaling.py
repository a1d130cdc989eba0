"""Journaling of changes, each awaited until the writer has applied it."""

from collections.abc import Sequence

from quadriga.store.journal.journal import Journal
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotAppliedError, NotReadyError, QueryTimeoutError
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import Change, JournaledChange


class ChangeJournal:
    """Journals the changes of one worker; safe to use from several threads.

    Args:
        inferences: Reads the store.
        journal: The worker's journal.
        ids: The worker's ids.
    """

    def __init__(self, inferences: InferenceReader, journal: Journal, ids: IdSource) -> None:
        self._inferences = inferences
        self._journal = journal
        self._ids = ids

    def apply(self, changes: Sequence[Change], floor: int = 0) -> list[int]:
        """Journal changes, all or none, wait until the writer has applied them, and return their ids.

        The ids are above a floor, such as that of the change that they follow: the clock of another server may be
        ahead. A floor of more than a minute ahead is passed over, as the clock that made it was wrong.

        Raises:
            JournalError: They could not be journaled.
            NotAppliedError: They are journaled, but not applied yet.
        """
        journaled = [JournaledChange(self._ids.next(floor), change) for change in changes]
        self._journal.append(journaled)
        try:
            self._inferences.wait_for_journal()
        except (NotReadyError, QueryTimeoutError) as error:
            message = f"the change is journaled and will be applied, but {error}"
            raise NotAppliedError(message) from error
        return [change.seq for change in journaled]
