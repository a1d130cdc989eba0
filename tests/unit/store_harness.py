"""A store without a server, for the tests of every package that write records and read them back."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from quadriga.engine.config.extras import dataset_formats
from quadriga.monitor.report.cells import listed_ids
from quadriga.monitor.report.saved import ReportStore
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.changes.erasures import Erasures
from quadriga.store.database.database import execute, writer_engine
from quadriga.store.database.rollups import PERIODS, Tally, decode_counts
from quadriga.store.exchange.export import ExportParameters, export
from quadriga.store.exchange.import_files import read
from quadriga.store.exchange.imports import Importer
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.journal.journal import Journal
from quadriga.store.maintenance.eraser import Eraser
from quadriga.store.query.inferences import InferenceReader, QueryRequest
from quadriga.store.records.records import InferenceRecord, JournaledChange
from quadriga.store.writing.writer import Writer

TABLES = ("inference", "meta_num", "meta_str", "pred", "metadata_change", "truth", "ground_truth",
          "other_truth", "repeated_id", "feedback", "signal", "retention")  # fmt: skip
Entry = InferenceRecord | JournaledChange
FIRST_CHANGE_ID = 1 << 40
"""Lowest id of a change in tests; the ids of records are below it."""


def select_rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows that a statement selects from a database."""
    with writer_engine(url) as engine, engine.connect() as connection:
        return [tuple(row) for row in execute(connection, statement)]


def check_sums(url: str) -> None:
    """Check that the counts of hours, of days and of all time are the sums of those of minutes."""
    counts: dict[tuple[int, ...], Tally] = {}
    columns = "minute, n, errors, latency, labels"
    for model_id, minute, *row in select_rows(url, f"SELECT model_id, {columns} FROM rollup"):
        for period in PERIODS:
            key = (model_id, period, minute - minute % period)
            counts.setdefault(key, Tally()).add(_tally(*row))
    sums = {
        (model_id, period, minute): _tally(*row)
        for model_id, period, minute, *row in select_rows(
            url, f"SELECT model_id, period, {columns} FROM rollup_sum"
        )
    }
    empty = Tally()
    assert {key: tally for key, tally in sums.items() if tally != empty} == {
        key: tally for key, tally in counts.items() if tally != empty
    }


def _tally(n: int, errors: int, latency: str, labels: str) -> Tally:
    return Tally(n, errors, decode_counts(latency), decode_counts(labels))


def run_statements(url: str, *statements: tuple[str, Sequence[Any]]) -> None:
    """Change a database behind a writer's back, by statements with their values, in one transaction."""
    with writer_engine(url) as engine, engine.begin() as connection:
        for statement, values in statements:
            execute(connection, statement, values)


def commit_journal(url: str, directory: Path) -> Writer:
    """Commit a journal to a database by a new writer; return that writer, closed."""
    writer = Writer(directory, url)
    try:
        writer.drain()
    finally:
        writer.close()
    return writer


def store_entries(url: str, directory: Path, entries: Sequence[Entry]) -> Writer:
    """Append entries to a journal and commit it by a new writer; return that writer, closed."""
    journal = Journal(directory, 0)
    journal.append(entries)
    journal.close()
    return commit_journal(url, directory)


class StoreHarness:
    """A data folder and a database, with the journal, blobs, writer and readers between them.

    The writer and the readers open when they are first used, as a journal has one writer at a time: a test
    either uses `writer` and what builds on it, or `commit_journal`, `add` and `import_file`.
    """

    def __init__(self, root: Path, url: str) -> None:
        self.url = url
        self.root = root
        self.journal_directory = root / "journal"
        self.journal = Journal(self.journal_directory, 0)
        self.blobs = FileBlobs(root / "blobs")
        self.erasures = Erasures(root / "erasures")
        self.jobs = Jobs(root / "jobs")
        self._last_change_id = FIRST_CHANGE_ID

    @cached_property
    def writer(self) -> Writer:
        """The writer that stays open until the harness is closed."""
        return Writer(self.journal_directory, self.url, eraser=self.eraser)

    @cached_property
    def eraser(self) -> Eraser:
        """The eraser of the open writer."""
        return Eraser(
            self.erasures,
            self.journal_directory,
            self.blobs,
            self.jobs,
            others=[self.root / "drift"],
            upload_s=0.05,
        )

    @cached_property
    def inferences(self) -> InferenceReader:
        """The readers of the stored inferences."""
        reports = ReportStore(self.jobs)
        return InferenceReader(
            self.url,
            self.journal_directory,
            self.blobs,
            cell_ids=listed_ids(lambda scope, id_: reports.within(scope).directory(id_)),
        )

    def commit(self, *entries: Entry) -> None:
        """Journal records and changes, and commit them by the open writer."""
        self.journal.append(entries)
        self.writer.drain()

    def commit_changes(self, *changes: Any) -> None:
        """Journal changes with the next ids, and commit them by the open writer."""
        self.commit(*(self.sequenced(change) for change in changes))

    def sequenced(self, change: Any) -> JournaledChange:
        """Return a change with the next id."""
        self._last_change_id += 1
        return JournaledChange(self._last_change_id, change)

    def add(self, *entries: Entry) -> None:
        """Store entries by a writer of their own, which is closed again."""
        store_entries(self.url, self.journal_directory, entries)

    def commit_journal(self) -> tuple[int, int, int]:
        """Commit the journal by a new writer; return the counts of committed and rejected records and damaged parts."""
        writer = commit_journal(self.url, self.journal_directory)
        return writer.records_committed, writer.records_rejected, writer.damaged_parts

    def recommit_journal(self) -> None:
        """Commit the journal from its beginning once more, by a new writer that stays open."""
        self.execute("DELETE FROM journal_offset")
        self.writer.close()
        del self.writer
        self.writer.drain()

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows that a statement selects."""
        return select_rows(self.url, statement)

    def all_rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table that changes touch."""
        return {table: sorted(self.rows(f"SELECT * FROM {table}"), key=str) for table in TABLES}

    def execute(self, statement: str) -> None:
        """Change the database behind the writer's back."""
        run_statements(self.url, (statement, ()))

    def stored_ids(self) -> list[int]:
        """Return the ids in the database, the lowest first."""
        return [seq for (seq,) in self.rows("SELECT seq FROM inference ORDER BY seq")]

    def page_ids(self, **request: Any) -> list[int]:
        """Return the ids of one page of a query."""
        page = self.inferences.query(QueryRequest(**request))
        return [int(inference.id) for inference in page.inferences]

    def metadata(self, seq: int) -> Any:
        """Return the metadata of an inference."""
        return msgspec.json.decode(self.inferences.get(str(seq)).metadata)

    def ground_truth(self, seq: int) -> Any:
        """Return the ground truth of an inference, None without one."""
        annotations = self.inferences.get(str(seq)).ground_truth
        return None if annotations is None else msgspec.json.decode(annotations)

    def export(self, target: Path, **parameters: Any) -> Path:
        """Export inferences to a file, and return its path."""
        asked = msgspec.convert(parameters, ExportParameters)
        export(self.inferences, self.blobs, asked, target, formats=dataset_formats())
        return target

    def importer(self, kind: str, join: str | None = None, **options: Any) -> Importer:
        """Return an importer into this store."""
        return Importer(self.journal_directory, self.url, self.blobs, kind, join, **options)

    def read(self, file: Path, **options: Any) -> Any:
        """Read the items of a file."""
        return read(file, formats=dataset_formats(), **options)

    def import_file(
        self,
        file: Path,
        kind: str = "inferences",
        join: str | None = None,
        *,
        task: str | None = None,
        accept_predictions: bool = False,
    ) -> Any:
        """Import a file of inferences or of ground truth; return the counts of what was imported."""
        items = self.read(file, task=task, accept_predictions=accept_predictions)
        return self.importer(kind, join, task=task).run(items)

    def close(self) -> None:
        """Close the journal, and the writer and the readers where they are open."""
        self.journal.close()
        for name in ("writer", "inferences"):
            if name in self.__dict__:
                getattr(self, name).close()
