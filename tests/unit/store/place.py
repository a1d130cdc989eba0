"""A whole store in one process, for tests of what is changed in it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.database import execute, writer_engine
from quadriga.store.inferences import InferenceReader, QueryRequest
from quadriga.store.journal import Journal
from quadriga.store.records import InferenceRecord, JournaledChange
from quadriga.store.writer import Writer

TABLES = ("inference", "meta_num", "meta_str", "pred", "metadata_change", "truth", "ground_truth",
          "feedback", "signal", "retention")  # fmt: skip
Entry = InferenceRecord | JournaledChange
LATER = 1 << 40
"""Ids of changes, in tests; those of records are below."""


def rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Return what a database answers."""
    with writer_engine(url) as engine, engine.connect() as connection:
        return [tuple(row) for row in execute(connection, statement)]


def run_statements(url: str, *statements: tuple[str, Sequence[Any]]) -> None:
    """Change a database behind a writer's back, by statements with their values, in one transaction."""
    with writer_engine(url) as engine, engine.begin() as connection:
        for statement, values in statements:
            execute(connection, statement, values)


def drain(url: str, directory: Path) -> Writer:
    """Move a journal into a database, and return the writer that did, which is closed."""
    writer = Writer(directory, url)
    try:
        writer.drain()
    finally:
        writer.close()
    return writer


def fill(url: str, directory: Path, entries: Sequence[Entry]) -> Writer:
    """As `drain`, after these entries were appended to the journal."""
    journal = Journal(directory, 0)
    journal.append(entries)
    journal.close()
    return drain(url, directory)


class Place:
    """A journal, a database of some kind, its writer and its readers."""

    def __init__(self, root: Path, url: str) -> None:
        self.url = url
        self.root = root
        self.journal = Journal(root / "journal", 0)
        self.writer = Writer(root / "journal", url)
        self.inferences = InferenceReader(url, root / "journal", FileBlobs(root / "blobs"))
        self._next = LATER

    def move(self, *entries: Entry) -> None:
        """Journal records and changes, and move them."""
        self.journal.append(entries)
        self.writer.drain()

    def change(self, *changes: Any) -> None:
        """Journal changes with the next ids, and move them."""
        self.move(*(self.journaled(change) for change in changes))

    def journaled(self, change: Any) -> JournaledChange:
        """Give a change the next id."""
        self._next += 1
        return JournaledChange(self._next, change)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return what the database answers."""
        return rows(self.url, statement)

    def all_rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table that changes touch."""
        return {table: sorted(self.rows(f"SELECT * FROM {table}"), key=str) for table in TABLES}

    def execute(self, statement: str) -> None:
        """Change the database behind the writer's back."""
        run_statements(self.url, (statement, ()))

    def replay(self) -> None:
        """Make a new writer move the journal once more."""
        self.execute("DELETE FROM journal_offset")
        self.writer.close()
        self.writer = Writer(self.root / "journal", self.url)
        self.writer.drain()

    def found(self, where: Any) -> list[int]:
        """Return ids of inferences."""
        page = self.inferences.query(QueryRequest(where=where))
        return [int(one.id) for one in page.inferences]

    def metadata(self, seq: int) -> Any:
        """Return the metadata of an inference."""
        return msgspec.json.decode(self.inferences.get(str(seq)).metadata)

    def truth(self, seq: int) -> Any:
        """Return the ground truth of an inference."""
        found = self.inferences.get(str(seq)).ground_truth
        return None if found is None else msgspec.json.decode(found)

    def close(self) -> None:
        self.journal.close()
        self.writer.close()
        self.inferences.close()
