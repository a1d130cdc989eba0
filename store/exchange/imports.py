"""Brings inferences, or what is true of them, into a store, through a journal as a worker's.

Inferences keep their ids, so that importing twice is importing once.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from quadriga.quoting import quoted
from quadriga.store.blobs.interface import Blobs, blob_key
from quadriga.store.changes.annotations import check_fit, derived_task, fits, parse_annotations
from quadriga.store.changes.ground_truth import (
    Subject,
    follow_repeated,
    joined_subjects,
)
from quadriga.store.database.database import ReaderPool, translate_database_errors
from quadriga.store.database.partitions import PastMonths
from quadriga.store.exchange.import_files import ImportedInference, Item
from quadriga.store.journal import journal
from quadriga.store.journal.journal import Journal
from quadriga.store.journal.journal_lag import read_offsets
from quadriga.store.records.disk import try_lock
from quadriga.store.records.errors import NotReadyError, QueryError, QueryTimeoutError, StoreError
from quadriga.store.records.ids import IMPORT_WORKER, IdSource, time_ms
from quadriga.store.records.records import (
    InputReference,
    JournaledChange,
    JournaledRecord,
    TruthStatement,
    timestamp_text,
)
from quadriga.store.records.scope import check_team, owner_of
from quadriga.store.writing.writer import Writer

_TIMEOUT_S = 60.0


class FileTruth(NamedTuple):
    """Ground truth of one image of a file."""

    place: str
    statement: TruthStatement
    """Its task is None for that of the inference of an id, if the annotations fit it."""
    image_hash: Callable[[], str | None]
    """Returns the hash of the image, to join by if no inference has the id; None without an image."""

    def of(self, **fields: Any) -> "FileTruth":
        """Return it with other fields of the statement."""
        return self._replace(statement=msgspec.structs.replace(self.statement, **fields))


def _mismatch(statement: TruthStatement, subjects: Sequence[Subject]) -> str:
    """Return why a statement applies to none of the inferences that it is joined to; empty if it applies to one."""
    if not subjects:
        return f"no stored inference has {statement.join} {quoted(statement.value, 100)}"
    others = set()
    for subject in subjects:
        task = statement.task
        if task is None:
            task = derived_task(statement.annotations, subject.task)
        if not subject.is_of(statement.owner):
            others.add("of another team")
        elif subject.is_in_scope(task, statement.model):
            return ""
        elif statement.model not in ("", subject.model):
            others.add(f"of the model {subject.model}")
        else:
            others.add(f"of the task {subject.task}, and the truth is of {task}")
    return f"its inference is {'; or '.join(sorted(others))}"


BATCH_ENTRIES = 500
BATCH_BYTES = 8 << 20
MAX_LAG_BYTES = 256 << 20  # the import waits while more than this waits in the journal
COMMIT_TIMEOUT_S = 60.0  # how long the end waits for the server's writer
_DAY_MS = 86_400_000
_ID = re.compile("[0-9]{1,19}", re.ASCII)
ImportKind = Literal["inferences", "ground-truth"]
JournalEntry = JournaledRecord | JournaledChange


MAX_REASONS = 100
"""Maximum number of ground truths whose reason to match nothing is kept."""

_ITEMS_AT_ONCE = 500


class ImportCounts(msgspec.Struct):
    """How much was brought in."""

    inferences: int = 0
    images: int = 0
    ground_truths: int = 0
    passed_over: int = 0  # without ground truth, where only that is imported
    matched: int = 0
    """Number of ground truths, of those alone, that are for stored inferences."""
    unmatched: int = 0
    """Number of ground truths that are for none so far."""


class Importer:
    """Puts inferences with their ground truth, or the truth alone, into the journal of a data folder.

    `join` tells the inference of a ground truth, see `TruthStatement.join`. By default that is the
    id where the file has one, else the hash of the image. `task` is the task that ground truth alone is of; None is
    that of the annotations. `model` is the name of the model that ground truth alone is for, empty for every one.
    `team` is the one that everything belongs to; None leaves each inference that of the file.

    Raises:
        StoreError: The team is no name of one.
    """

    def __init__(
        self,
        journal_directory: Path,
        url: str,
        blobs: Blobs,
        kind: ImportKind,
        join: str | None,
        *,
        task: str | None = None,
        model: str = "",
        team: str | None = None,
    ) -> None:
        check_team(team or "")
        self._team = team
        self._model = model
        self._directory = journal_directory
        self._url = url
        self._blobs = blobs
        self._kind = kind
        self._join = join
        self._task = task
        self._tasks: set[str] = set()
        self._empty: list[FileTruth] = []
        self._ids = IdSource(IMPORT_WORKER)
        self._readers = ReaderPool(url, 1, _TIMEOUT_S)
        self._months = PastMonths(self._readers.snapshot)
        self._imported = ImportCounts()
        self.reasons: list[str] = []
        """Why the first ground truths are for no stored inference, each with its place."""

    def run(
        self, items: Iterable[Item], tell: Callable[[int], None] = lambda _: None
    ) -> ImportCounts:
        """Import all items, and say now and then how many are done.

        A server that runs on the data folder moves them into the database; where none runs this
        does. An item that means nothing is a StoreError, whose message names the place; those
        before it may have been imported.
        """
        with _alone(self._directory.parent), _mover(self._directory, self._url) as move:
            appending = Journal(self._directory, IMPORT_WORKER)
            try:
                if self._kind == "ground-truth":
                    with suppress(NotReadyError):  # what is acknowledged can be matched
                        move()
                for done, batch in _batches(self._all_entries(items)):
                    appending.append(batch)
                    move()
                    appending.close_on_request()
                    tell(done)
            finally:
                appending.close()
                self._readers.close()
        return self._imported

    def check(
        self, items: Iterable[Item], tell: Callable[[int], None] = lambda _: None
    ) -> ImportCounts:
        """Read all items of ground truth alone and match them, as `run`, without writing anything."""
        with closing(self._readers):
            for done, _ in _batches(self._all_entries(items)):
                tell(done)
        return self._imported

    def _all_entries(self, items: Iterable[Item]) -> Iterator[list[JournalEntry]]:
        if self._kind == "inferences":
            yield from map(self._entries, items)
            return
        remaining = iter(items)
        while batch := list(islice(remaining, _ITEMS_AT_ONCE)):
            truths = [truth for item in batch for truth in self._truths(item)]
            yield from self._matched(truths)
            yield from ([] for _ in range(len(batch) - len(truths)))
        for start in range(0, len(self._empty), _ITEMS_AT_ONCE):
            yield from self._matched(
                [*map(self._with_only_task, self._empty[start : start + _ITEMS_AT_ONCE])]
            )

    def _entries(self, item: Item) -> list[JournalEntry]:
        try:
            return [self._record(item.inference, item.image()), *self._truth_of_record(item)]
        except StoreError as error:
            raise QueryError(f"{item.place}: {error}") from error

    def _record(self, imported: ImportedInference | None, image: bytes | None) -> JournaledRecord:
        if imported is None:
            raise QueryError(
                "expected an inference as an export writes it, got none; a dataset of others can be "
                "imported as ground truth"
            )
        seq = int(imported.id)
        if time_ms(seq) > time.time() * 1000 + _DAY_MS:
            raise QueryError(f"inference id {seq} is dated in the future")
        if not self._months.has_place(time_ms(seq)):
            raise QueryError(
                f"the database has no partition of the month of inference id {seq}, {timestamp_text(time_ms(seq)):.7}: "
                "quadriga migrate --months, as the owner of the tables"
            )
        reference_fields = msgspec.structs.asdict(imported.input)
        reference_fields["hash"] = self._store_image(imported.input.hash, image)
        reference_fields["kept"] = imported.input.kept or image is not None
        team = imported.team if self._team is None else self._team
        check_team(team)
        self._imported.inferences += 1
        return JournaledRecord(
            seq=seq,
            request_id=imported.request_id,
            image_no=imported.image_no,
            model=imported.model,
            task=imported.task,
            action=imported.action,
            latency_ms=imported.latency_ms,
            input=InputReference(**reference_fields),
            predictions=imported.predictions,
            metadata=imported.metadata,
            status=imported.status,
            standard=imported.standard_metadata,
            team=team or msgspec.UNSET,
        )

    def _store_image(self, key: str | None, image: bytes | None) -> str | None:
        if image is None:
            return key
        image_key = blob_key(image)
        if key not in (None, image_key):
            raise QueryError(f"expected the image {key}, got {image_key}")
        self._blobs.put(image)
        self._imported.images += 1
        return image_key

    def _truth_of_record(self, item: Item) -> list[JournalEntry]:
        if item.truth is None or item.inference is None:
            return []
        annotations = parse_annotations(item.truth)
        # The writer finds the task of what does not fit.
        task = item.inference.task if fits(item.inference.task, annotations) else None
        return [
            self._change(
                self._statement(item, "id", str(int(item.inference.id)), annotations, task)
            )
        ]

    def _truths(self, item: Item) -> list[FileTruth]:
        """Return the ground truth of an item; none if it has none, or one whose task is known at the end."""
        try:
            return self._truth(item)
        except StoreError as error:
            raise QueryError(f"{item.place}: {error}") from error

    def _truth(self, item: Item) -> list[FileTruth]:
        if item.truth is None:
            self._imported.passed_over += 1
            return []
        join, value = self._joined(item)
        annotations, task = parse_annotations(item.truth), self._task
        if task is not None:
            check_fit(task, annotations)
        elif annotations:
            task = derived_task(annotations, None)
        if task is not None:
            self._tasks.add(task)
        if join == "id" and self._task is None:  # the inference decides, once the writer sees it
            task = None
        statement = self._statement(item, join, value, annotations, task)
        truth = FileTruth(item.place, statement, partial(item.value, "input.hash"))
        if task is None and join != "id":
            self._empty.append(truth)
            return []
        return [truth]

    def _joined(self, item: Item) -> tuple[str, str]:
        """Return what tells the inference of a ground truth, and its value."""
        usual = "id" if item.value("id") is not None else "input.hash"
        join = self._join or usual
        value = item.value(join)
        if value is None:
            raise QueryError(
                f"expected {join} to join the ground truth by, got none: --join names another, such as "
                "meta.path"
            )
        if join == "id" and _ID.fullmatch(value) is None:
            raise QueryError(f"expected an id of at most 19 digits, got {quoted(value, 80)}")
        return join, value

    def _with_only_task(self, empty: FileTruth) -> FileTruth:
        """Return a truth of nothing in an image with the task that all others are of."""
        if len(self._tasks) != 1:
            tasks = " and ".join(sorted(self._tasks)) or "none"
            raise QueryError(
                f"{empty.place}: the task of an empty list is that of the other annotations, which are of "
                f"{tasks}: --task names it"
            )
        (task,) = self._tasks
        return empty.of(task=task)

    def _matched(self, truths: Sequence[FileTruth]) -> Iterator[list[JournalEntry]]:
        """Yield the statement of each ground truth, and count those that are for stored inferences."""
        mismatches = self._mismatches(truths)
        by_hash = {
            index: truth
            for index, (is_joined, _) in enumerate(mismatches)
            if not is_joined and (truth := self._joined_by_hash(truths[index])) is not None
        }
        mismatches_by_hash = zip(by_hash, self._mismatches([*by_hash.values()]), strict=True)
        of_hash = {index: reason for index, (is_joined, reason) in mismatches_by_hash if is_joined}
        for index, (truth, (_, reason)) in enumerate(zip(truths, mismatches, strict=True)):
            if index in of_hash:
                truth, reason = by_hash[index], of_hash[index]  # noqa: PLW2901
            if not reason:
                self._imported.matched += 1
            else:
                self._imported.unmatched += 1
                if len(self.reasons) < MAX_REASONS:
                    self.reasons.append(f"{truth.place}: {reason}")
            yield [self._change(truth.statement)]

    def _mismatches(self, truths: Sequence[FileTruth]) -> list[tuple[bool, str]]:
        """Look for the stored inferences that ground truths are for.

        Returns:
            For each whether it is joined to any, of whatever task, model and team; and why it applies to none, empty if it does.
        """
        statements = [truth.statement for truth in truths]
        try:
            with self._readers.snapshot() as connection:
                followed = follow_repeated(connection, statements)
                pairs = [(statement.join, statement.value) for statement in followed]
                joined = joined_subjects(connection, {*pairs})
        except (NotReadyError, QueryTimeoutError) as error:
            return [(False, str(error))] * len(truths)
        return [
            (bool(joined[pair]), _mismatch(statement, joined[pair]))
            for statement, pair in zip(statements, pairs, strict=True)
        ]

    def _joined_by_hash(self, truth: FileTruth) -> FileTruth | None:
        """Return ground truth that no inference has the id of, joined by the hash of its image; None if that is not known.

        Names of other tools' images may look like ids.
        """
        if self._join is not None or truth.statement.join != "id":
            return None
        task = truth.statement.task or derived_task(truth.statement.annotations, None)
        image_hash = truth.image_hash() if task else None
        if image_hash is None:
            return None
        return truth.of(join="input.hash", value=image_hash, task=task)

    def _statement(
        self,
        item: Item,
        join: str,
        value: str,
        annotations: list[dict[str, Any]],
        task: str | None,
    ) -> TruthStatement:
        self._imported.ground_truths += 1
        return TruthStatement(
            join,
            value,
            annotations,
            source="import",
            task=task,
            model=self._model,
            owner=owner_of(self._team or ""),
            review="" if item.inference is None else item.inference.ground_truth_review,
        )

    def _change(self, statement: TruthStatement) -> JournaledChange:
        return JournaledChange(self._ids.next(), statement)


def _batches(entries: Iterable[list[JournalEntry]]) -> Iterator[tuple[int, list[JournalEntry]]]:
    """Yield how many items are done, and what they come to since the last time."""
    batch: list[JournalEntry] = []
    done = size = 0
    for done, of_item in enumerate(entries, 1):
        batch += of_item
        size += sum(map(_size, of_item))
        if len(batch) >= BATCH_ENTRIES or size >= BATCH_BYTES:
            yield done, batch
            batch, size = [], 0
    yield done, batch


def _size(entry: JournalEntry) -> int:
    if isinstance(entry, JournaledRecord):
        return len(bytes(entry.predictions)) + len(bytes(entry.metadata))
    return len(msgspec.json.encode(entry))


@contextmanager
def _alone(data: Path) -> Iterator[None]:
    """Keep other imports away: ids are given once."""
    data.mkdir(parents=True, exist_ok=True)
    file = try_lock(data / "import.lock")
    if file is None:
        raise StoreError(f"expected one import at a time into {data}, got another")
    with file:
        yield


@contextmanager
def _mover(directory: Path, url: str) -> Iterator[Callable[[], object]]:
    """Give what moves the journal on: a writer of our own, or patience with the server's."""
    try:
        # What ClickHouse gets too is left for the server, which sends it and removes it then.
        writer = Writer(
            directory,
            url,
            is_segment_needed=lambda _: journal.clickhouse_position_path(directory).exists(),
        )
    except StoreError:  # another one is at work
        yield lambda: _wait(directory)
        until, own = time.monotonic() + COMMIT_TIMEOUT_S, f"{IMPORT_WORKER:04d}-"
        while any(name.startswith(own) for name in journal.segment_sizes(directory)):
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        return
    try:
        with translate_database_errors():
            yield writer.drain
            writer.drain()
    finally:
        writer.close()


def _wait(directory: Path) -> None:
    while journal.lag_bytes(directory, read_offsets(directory)) >= MAX_LAG_BYTES:
        time.sleep(0.05)
