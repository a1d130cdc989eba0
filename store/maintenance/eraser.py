"""The eraser: carries out erasures in the writer's process, in steps that repeat without harm after a crash.

First the rows go, some at a time. Then follow, until each is done: images, what ClickHouse and files have of them, the log of
SQLite or the dead rows of PostgreSQL, and the segments of the journal, which workers close so that the writer removes them.
The journal waits for a step, so each is short; what takes long and needs no place between batches runs in a thread:
ClickHouse, the search of files, and PostgreSQL's `VACUUM`.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from quadriga.store.blobs.interface import Blobs
from quadriga.store.blobs.unreferenced import committed_until, unreferenced
from quadriga.store.changes.applying import delete_inferences
from quadriga.store.changes.erasures import Erasures, ErasureTargets, begun_receipt
from quadriga.store.changes.ground_truth import (
    candidate_ids,
    join_values,
    read_subjects,
    stated_joins,
)
from quadriga.store.database import rollups
from quadriga.store.database.damaged_files import damaged_files
from quadriga.store.database.database import check_in_place, execute, execute_in
from quadriga.store.database.rows import NameIds
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.journal import journal
from quadriga.store.maintenance import erased_files
from quadriga.store.maintenance.mentions import Mentions
from quadriga.store.maintenance.vacuum import truncate_log, vacuum_postgresql
from quadriga.store.query.names import repeated_ids
from quadriga.store.records.errors import StoreError, full_text
from quadriga.store.records.records import now_text

_CANDIDATES = 100
"""Inferences that are looked at for one statement; one that may be joined to more stays."""


def remove_statements(
    connection: sa.Connection, joins: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Remove statements of ground truth that no remaining inference is joined to; return their joins."""
    removed = []
    for join, value in joins:
        candidates = candidate_ids(connection, [(join, value)], _CANDIDATES)
        is_needed = len(candidates) > _CANDIDATES or any(
            (join, value) in join_values(subject, {join})
            for subject in read_subjects(connection, candidates)
        )
        if not is_needed:
            statement = "DELETE FROM truth WHERE join_on = ? AND value = ?"
            execute(connection, statement, (join, value))
            removed.append((join, value))
    return removed


STEP_S = 0.2
"""Time after which a step ends with the part that it is at: the journal waits meanwhile."""

STEP_ROWS = 200
"""Rows of one transaction."""

STEP_JOINS = 100
"""Joins of ground truth of one transaction."""

RETRY_S = 0.5
"""Pause until what cannot be done yet is tried again."""

FAILED_RETRY_S = 5.0
"""Pause until a step that failed is tried again."""

UPLOAD_S = 30.0
"""Age since its last upload from which an image on this machine can be removed: then the record of that upload is journaled."""

_STEP_IMAGES = 100
_STEP_OBJECTS = 32
"""Images of one part in an object store, which takes some tenths of a second for a request."""

_BUSY_MS = 300
"""Time to wait for readers of SQLite: the journal waits meanwhile, and it is tried again."""

_TASK_S = 0.05
"""Time that a step waits for what runs in a thread: most have little to search."""

_log = logging.getLogger(__name__)


class ErasedReplica(NamedTuple):
    """Another database that is sent the journal."""

    sent_until: Callable[[Path], int]
    """Returns the offset up to which it has a segment."""
    erase: Callable[[Sequence[int], Sequence[tuple[str, str]]], object]
    """Removes the rows of inferences, and statements by their joins, there."""


class Eraser:
    """Carries out the erasures of a data folder; for the writer's thread.

    Args:
        erasures: The erasures.
        journal_directory: Journal of the workers, in the data folder.
        blobs: The images.
        jobs: The jobs, whose results are removed if they mention what is erased.
        others: Folders in which files that mention it are named in the receipt.
        replica: Another database that is sent the journal, if there is one.
        upload_s: See `UPLOAD_S`.
    """

    def __init__(
        self,
        erasures: Erasures,
        journal_directory: Path,
        blobs: Blobs,
        jobs: Jobs,
        *,
        others: Sequence[Path] = (),
        replica: ErasedReplica | None = None,
        upload_s: float = UPLOAD_S,
    ) -> None:
        self._erasures = erasures
        self._directory = journal_directory
        self._blobs = blobs
        self._jobs = jobs
        self._others = list(others)
        self._replica = replica
        self._upload_s = min(upload_s, blobs.grace_s)
        self._running: dict[str, _Erasure] = {}
        self._unreadable: set[str] = set()

    def is_due(self) -> bool:
        """Check whether there is a step to do."""
        now_s = time.monotonic()
        return any(
            erasure_id not in self._running or self._running[erasure_id].due_s <= now_s
            for erasure_id in self._pending_ids()
        )

    def _pending_ids(self) -> list[str]:
        return [id_ for id_ in self._erasures.pending_ids() if id_ not in self._unreadable]

    def step(self, engine: sa.Engine, names: NameIds, offsets: Mapping[str, int]) -> bool:
        """Do what is due, the oldest erasure first, for `STEP_S`; return whether any may not be complete.

        If this raises, the writer's `names` must be created again.

        Args:
            engine: Database of the writer.
            names: The writer's ids of names.
            offsets: Offset up to which each segment of the journal is moved.
        """
        pending = self._pending_ids()
        deadline_s = time.monotonic() + STEP_S
        for erasure_id in pending:
            if erasure_id not in self._running:
                targets = self._erasures.targets(erasure_id)
                if targets is None:  # such as one of a newer release
                    self._unreadable.add(erasure_id)
                    _log.error("erasure %s cannot be read, and is left", erasure_id)
                    continue
                self._running[erasure_id] = _Erasure(targets)
            erasure = self._running[erasure_id]
            while time.monotonic() >= erasure.due_s and erasure_id in self._running:
                erasure.due_s = time.monotonic() + FAILED_RETRY_S  # each part sets it anew
                self._advance(erasure, engine, names, offsets)
                if time.monotonic() >= deadline_s:
                    return True
        return bool(pending)

    def _advance(
        self, erasure: "_Erasure", engine: sa.Engine, names: NameIds, offsets: Mapping[str, int]
    ) -> None:
        targets = erasure.targets
        # It may have been killed before its end was noted.
        if self._erasures.read(targets.id).state == "complete":
            self._erasures.save_receipt(self._erasures.read(targets.id))
            del self._running[targets.id]
            return
        if targets.step == "collect":
            self._collect(erasure, engine)
        elif targets.step == "rows":
            self._remove_rows(erasure, engine, names)
        else:
            self._finish(erasure, engine, offsets)

    def _collect(self, erasure: "_Erasure", engine: sa.Engine) -> None:
        """Note what some more inferences are joined to."""
        targets, start = erasure.targets, erasure.collected
        seqs = targets.ids[start : start + STEP_ROWS]
        erasure.due_s = 0.0
        if not start:
            self._erasures.save_receipt(begun_receipt(targets))
        if seqs:
            with engine.begin() as connection:
                erasure.note_traces(connection, seqs)
            erasure.collected = start + len(seqs)
            return
        targets.ids += sorted(erasure.repeated)
        targets.joins = sorted(erasure.joins)
        targets.digests = sorted(erasure.digests)
        targets.counts = {"inferences": erasure.inferences}
        targets.step = "rows"
        self._erasures.save_targets(targets)
        self._erasures.save_receipt(begun_receipt(targets))

    def _remove_rows(self, erasure: "_Erasure", engine: sa.Engine, names: NameIds) -> None:
        """Remove some more inferences, then statements that were joined to them."""
        targets, start = erasure.targets, erasure.removed
        seqs = targets.ids[start : start + STEP_ROWS]
        begin = erasure.judged_joins
        joins = targets.joins[begin : begin + STEP_JOINS]
        erasure.due_s = 0.0
        if seqs:
            with names.transaction(engine, exclusive=True) as connection:
                rollups.subtract(connection, seqs)
                delete_inferences(connection, names, seqs)
            erasure.removed = start + len(seqs)
        elif joins:
            with names.transaction(engine, exclusive=True) as connection:
                removed = remove_statements(connection, joins)
            erasure.judged_joins = begin + len(joins)
            erasure.removed_joins += removed
        else:
            targets.joins = erasure.removed_joins
            targets.counts["joins"] = len(targets.joins)
            targets.running_jobs = erased_files.started_jobs(self._jobs)
            targets.step = "rest"
            self._erasures.save_targets(targets)

    def _finish(self, erasure: "_Erasure", engine: sa.Engine, offsets: Mapping[str, int]) -> None:
        """Do a part of what follows the rows; the receipt says what has to be waited for."""
        erasure.needed = erasure.needed or dict(offsets)
        if "images" not in erasure.done and not self._remove_images(erasure, engine):
            erasure.due_s = 0.0
            return
        waiting, remaining = list(erasure.images_waiting), []
        if "replica" not in erasure.done:
            waiting += self._erase_replica(erasure)
        if "files" not in erasure.done:
            waiting += self._remove_files(erasure)
        if not waiting:
            waiting += self._clear_database(erasure, engine) or self._remove_segments(erasure)
            remaining += [
                f"{path.name}: a damaged database that was set aside"
                for path in damaged_files(engine.url)
            ]
            remaining += [erasure.not_vacuumed] if erasure.not_vacuumed else []
        remaining += [f"{name}: it mentions what was erased" for name in erasure.mentioning_files]
        self._note(erasure, engine, waiting, remaining)

    def _note(
        self, erasure: "_Erasure", engine: sa.Engine, waiting: list[str], remaining: list[str]
    ) -> None:
        """Note in the receipt what has to be waited for, or that the erasure is complete."""
        receipt = msgspec.structs.replace(
            begun_receipt(erasure.targets),
            waiting=waiting,
            remaining=remaining,
            kept=_kept(
                engine, has_replica=self._replica is not None, is_local=self._blobs.is_local
            ),
        )
        erasure.due_s = time.monotonic() + RETRY_S
        if not waiting:
            receipt = msgspec.structs.replace(receipt, state="complete", ended_at=now_text())
            _log.info("erasure %s is complete", erasure.targets.id)
            self._erasures.save_receipt(receipt)
            del self._running[erasure.targets.id]
        elif receipt != erasure.receipt:
            self._erasures.save_receipt(receipt)
        erasure.receipt = receipt

    def _remove_images(self, erasure: "_Erasure", engine: sa.Engine) -> bool:
        """Remove some more images that no remaining inference refers to; return whether all were tried, or that failed.

        What has to be waited for is in `images_waiting` then.
        """
        if erasure.images is None:
            erasure.images, erasure.shared = erasure.targets.digests, 0
        # Others that share the database or the images may be about to refer to one that they put lately.
        is_alone = self._blobs.is_local and engine.dialect.name == "sqlite"
        young_s = self._upload_s if is_alone else self._blobs.grace_s
        start = erasure.tried_images
        size = _STEP_IMAGES if self._blobs.is_local else _STEP_OBJECTS
        batch = erasure.images[start : start + size]
        if not batch:
            self._end_images(erasure, young_s)
            return True
        with engine.begin() as connection:
            put_before = committed_until(connection, self._directory) - young_s
            unneeded = unreferenced(connection, batch)
        try:
            erasure.young_images += self._blobs.erase(unneeded, put_before)
        except (OSError, StoreError) as error:
            _log.warning("images of an erasure cannot be removed yet: %s", error)
            erasure.images_waiting = ["the images cannot be removed at present"]
            return True
        erasure.shared += len(batch) - len(unneeded)
        erasure.tried_images = start + len(batch)
        return False

    @staticmethod
    def _end_images(erasure: "_Erasure", young_s: float) -> None:
        """Note that all images were tried; those that were too young are tried again later."""
        erasure.images, erasure.tried_images = erasure.young_images, 0
        erasure.young_images, erasure.images_waiting = [], []
        if erasure.images:
            count = len(erasure.images)
            erasure.images_waiting = [f"{count} images came within the last {young_s:g} s"]
            return
        erasure.targets.counts |= {
            "images": len(erasure.targets.digests) - erasure.shared,
            "images_of_others": erasure.shared,
        }
        erasure.done.add("images")

    def _erase_replica(self, erasure: "_Erasure") -> list[str]:
        if self._replica is not None:
            sizes = journal.segment_sizes(self._directory)
            for name, offset in erasure.needed.items():
                if name in sizes and self._replica.sent_until(self._directory / name) < offset:
                    return ["ClickHouse has not taken the journal yet"]
            erase, targets = self._replica.erase, erasure.targets
            try:
                if not erasure.ends("replica", lambda: erase(targets.ids, targets.joins)):
                    return ["ClickHouse removes the rows"]
            except StoreError as error:
                _log.warning("an erasure waits for ClickHouse: %s", full_text(error))
                return ["ClickHouse does not answer"]
        erasure.done.add("replica")
        return []

    def _remove_files(self, erasure: "_Erasure") -> list[str]:
        targets = erasure.targets
        if running := erased_files.running_jobs(self._jobs, targets.running_jobs):
            return [f"job {job_id} may have read it and has not ended" for job_id in running]

        def search() -> tuple[Mentions, int, list[str]]:
            # An image that others need is no trace of what was erased.
            mentions = Mentions(targets.ids, (), (text for _, text in targets.demanded))
            removed = erased_files.remove_jobs(self._jobs, mentions)
            return mentions, removed, erased_files.mentioning_files(self._others, mentions)

        if not erasure.ends("files", search):
            return ["the results of jobs are being searched"]
        mentions, removed, erasure.mentioning_files = erasure.results.pop("files")
        targets.counts["jobs"] = targets.counts.get("jobs", 0) + removed
        # The writer adds to these files, and so not in a thread.
        set_aside = erased_files.remove_set_aside(self._directory.parent, mentions)
        targets.counts["set_aside"] = targets.counts.get("set_aside", 0) + set_aside
        self._erasures.save_targets(targets)
        erasure.done.add("files")
        return []

    @staticmethod
    def _clear_database(erasure: "_Erasure", engine: sa.Engine) -> list[str]:
        """Empty the log of SQLite, or clear the dead rows of PostgreSQL; return what has to be waited for."""
        if engine.dialect.name == "sqlite":
            with engine.connect() as connection:
                check_in_place(connection)
                is_busy = truncate_log(connection, _BUSY_MS)
            return ["a reader still reads an older state of the database"] if is_busy else []
        if "database" not in erasure.done:
            if not erasure.ends("database", lambda: vacuum_postgresql(engine)):
                return ["PostgreSQL clears the rows that were removed"]
            erasure.not_vacuumed = erasure.results.pop("database")
            erasure.done.add("database")
        return []

    def _remove_segments(self, erasure: "_Erasure") -> list[str]:
        """Have the segments closed that are there; the writer removes those that are moved as a whole."""
        sizes = journal.segment_sizes(self._directory)
        if erasure.segments is None:
            erasure.segments = {name for name, size in sizes.items() if size}
        erasure.segments &= sizes.keys()
        journal.ask_to_close(self._directory, erasure.segments)
        count = len(erasure.segments)
        return [f"{count} segments of the journal are not closed and moved yet"] if count else []


class _Erasure:
    """An erasure that this process carries out, and what is done of it since it began."""

    def __init__(self, targets: ErasureTargets) -> None:
        self.targets = targets
        self.due_s = 0.0
        self.joins = set(targets.demanded)
        self.digests: set[str] = set()
        self.repeated: set[int] = set()
        """Ids that lead to the inferences: other servers wrote them to their journals, and sent them to ClickHouse."""
        self.inferences = 0
        self.collected = self.removed = self.judged_joins = self.tried_images = self.shared = 0
        """How far each kind is."""
        self.removed_joins: list[tuple[str, str]] = []
        self.images: list[str] | None = None
        """Images to remove, of which `tried_images` were tried; then those that were too young, again."""
        self.young_images: list[str] = []
        self.images_waiting: list[str] = []
        self.not_vacuumed = ""
        """Why PostgreSQL keeps deleted rows, empty if it does not."""
        self.segments: set[str] | None = None
        """Segments of the journal that may hold what was erased; None until all else is done."""
        self.needed: dict[str, int] = {}
        self.done: set[str] = set()
        self.tasks: dict[str, Future[Any]] = {}
        self.results: dict[str, Any] = {}
        self.mentioning_files: list[str] = []
        self.receipt: object = None

    def note_traces(self, connection: sa.Connection, seqs: Collection[int]) -> None:
        """Note what some inferences are joined to, before their rows go: images, statements and repeated ids."""
        subjects = read_subjects(connection, seqs)
        joins = stated_joins(connection, subjects) - {"id"}
        pairs = {pair for subject in subjects for pair in join_values(subject, joins)}
        stated = "SELECT DISTINCT value FROM truth WHERE join_on = ? AND value IN ({})"
        for join in joins:
            values = {value for join_, value in pairs if join_ == join}
            rows = execute_in(connection, stated, values, (join,))
            self.joins.update((join, str(value)) for (value,) in rows)
        self.digests.update(str(subject.input_hash) for subject in subjects if subject.input_hash)
        self.repeated.update(repeated_ids(connection, seqs))
        self.inferences += len(subjects)

    def ends(self, name: str, work: Callable[[], Any]) -> bool:
        """Run something in a thread; return whether it has ended, with its result in `results`, or raise what it raised.

        The end of the process ends the thread, so the work has to be such that it can be run again.
        """
        if name not in self.tasks:
            task = self.tasks[name] = Future()
            thread = threading.Thread(
                target=_complete, args=(task, work), name=f"erasure-{name}", daemon=True
            )
            thread.start()
        if not wait([self.tasks[name]], _TASK_S).done:
            return False
        self.results[name] = self.tasks.pop(name).result()
        return True


def _complete(task: Future[Any], work: Callable[[], Any]) -> None:
    try:
        task.set_result(work())
    except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
        task.set_exception(error)


def _kept(engine: sa.Engine, *, has_replica: bool, is_local: bool) -> list[str]:
    """Return the places outside of this server's reach that may keep copies."""
    places = [
        "backups and snapshots of the data folder, of its volume, of the database and of the images",
        "log files of the server: ids of inferences, and errors",
        "what clients, labelling tools and webhooks were sent, and exports that were downloaded",
        "frozen baselines: values and embeddings, without the ids of their inferences, until they are replaced",
        "the blocks of the disk that a file system or a drive has not used again",
        "the journal: measures of images that came after the erasure, until their segment is full or closed",
    ]
    if engine.dialect.name == "sqlite":
        places.append(
            "SQLite: copies of rows that it moved, in the free space of its pages, until it uses that again (quadriga store vacuum)"
        )
    if engine.dialect.name == "postgresql":
        places += [
            "PostgreSQL: free space of pages until it is used again (VACUUM FULL)",
            "PostgreSQL: the write-ahead log, its archive, replicas and backups",
            "journals of other servers on the same database, until their segments are moved and full or closed",
        ]
    if has_replica:
        places.append(
            "ClickHouse: old parts for some minutes, its logs of queries, replicas and backups"
        )
    if not is_local:
        places.append(
            "the object store: earlier versions of objects where versioning is on, and replicas"
        )
    return places
