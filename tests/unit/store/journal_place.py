"""A data folder without a server, for tests of what moves the journal."""

from pathlib import Path

from quadriga.store.journal import Journal
from tests.unit.store.place import drain, rows


class JournalPlace:
    """A data folder: a journal, a database, and what the database holds."""

    def __init__(self, root: Path, url: str) -> None:
        self.root = root
        self.directory = root / "journal"
        self.journal = Journal(self.directory, 0)
        self.url = url

    def drain(self) -> tuple[int, int, int]:
        """Move the journal; return how many records moved, died, and parts were damaged."""
        writer = drain(self.url, self.directory)
        return writer.records_committed, writer.records_rejected, writer.damaged_parts

    def rows(self, statement: str) -> list[tuple]:
        """Return what the database answers."""
        return rows(self.url, statement)

    def seqs(self) -> list[int]:
        """Return the ids in the database."""
        return [seq for (seq,) in self.rows("SELECT seq FROM inference ORDER BY seq")]
