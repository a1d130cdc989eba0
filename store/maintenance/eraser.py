"""The eraser: carries out erasures in the writer's process, in steps that repeat without harm after a crash.

First the rows go, some at a time. Then follow, until each is done: images, what ClickHouse and files have of them, the moved
part of the journal, and the pages of the database.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from quadriga.store import journal
from quadriga.store.blobs.interface import Blobs
from quadriga.store.blobs.unreferenced import committed_until, unreferenced
from quadriga.store.changes.erasures import Erasures, ErasureTargets, begun_receipt
from quadriga.store.damaged_files import damaged_files
from quadriga.store.database import check_in_place, make_durable
from quadriga.store.errors import StoreError, full_text
from quadriga.store.jobs import Jobs
from quadriga.store.maintenance import erased_files
from quadriga.store.maintenance.erased_pages import clear_deleted
from quadriga.store.maintenance.erased_rows import note_targets, remove_rows, remove_statements
from quadriga.store.maintenance.mentions import Mentions
from quadriga.store.maintenance.moved_frames import overwrite_moved
from quadriga.store.records import timestamp_text
from quadriga.store.rows import NameIds

STEP_ROWS = 1000
"""Rows of one transaction."""

RETRY_S = 0.5
"""Pause until what cannot be done yet is tried again."""

FAILED_RETRY_S = 5.0
"""Pause until a step that failed is tried again."""

UPLOAD_S = 30.0
"""Age since its last upload from which an image on this machine can be removed: then the record of that upload is journaled."""

LATE_S = 60.0
"""Time after an erasure for which the moved journal is overwritten again: signals of an image may come so late."""

_IMAGES_AT_ONCE = 500
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
        self._late_until = 0.0

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
        """Do one step of each erasure that is due; return whether any is not complete.

        If this raises, the writer's `names` must be created again.

        Args:
            engine: Database of the writer.
            names: The writer's ids of names.
            offsets: Offset up to which each segment of the journal is moved.
        """
        pending = self._pending_ids()
        for erasure_id in pending:
            if erasure_id not in self._running:
                targets = self._erasures.targets(erasure_id)
                if targets is None:  # such as one of a newer release
                    self._unreadable.add(erasure_id)
                    _log.error("erasure %s cannot be read, and is left", erasure_id)
                    continue
                self._running[erasure_id] = _Erasure(targets)
            erasure = self._running[erasure_id]
            if time.monotonic() >= erasure.due_s:
                erasure.due_s = time.monotonic() + FAILED_RETRY_S  # each step sets it anew
                self._advance(erasure, engine, names, offsets)
        if not pending and self._late_until > time.monotonic():
            self._overwrite(engine, offsets)
        return bool(pending)

    def _advance(
        self, erasure: "_Erasure", engine: sa.Engine, names: NameIds, offsets: Mapping[str, int]
    ) -> None:
        targets = erasure.targets
        if self._is_complete(targets.id):  # and was killed before its end was noted
            self._erasures.save_receipt(self._erasures.read(targets.id))
            del self._running[targets.id]
            return
        if targets.step == "collect":
            self._collect(erasure, engine)
        elif targets.step == "rows":
            self._remove_rows(erasure, engine, names)
        else:
            self._finish(erasure, engine, offsets)

    def _is_complete(self, erasure_id: str) -> bool:
        return self._erasures.read(erasure_id).state == "complete"

    def _collect(self, erasure: "_Erasure", engine: sa.Engine) -> None:
        targets = erasure.targets
        targets.counts, targets.joins, targets.digests = {"inferences": 0}, targets.demanded, []
        with engine.begin() as connection:
            for start in range(0, len(targets.ids), STEP_ROWS):
                note_targets(connection, targets, targets.ids[start : start + STEP_ROWS])
        targets.step = "rows"
        self._erasures.save_targets(targets)
        self._erasures.save_receipt(begun_receipt(targets))
        erasure.due_s = 0.0

    def _remove_rows(self, erasure: "_Erasure", engine: sa.Engine, names: NameIds) -> None:
        targets, start = erasure.targets, erasure.removed
        seqs = targets.ids[start : start + STEP_ROWS]
        with names.transaction(engine, exclusive=True) as connection:
            if seqs:
                remove_rows(connection, names, seqs)
            else:
                joins = remove_statements(connection, targets.joins)
        erasure.due_s = 0.0
        if seqs:
            erasure.removed = start + len(seqs)
            return
        targets.joins = joins
        targets.counts["joins"] = len(joins)
        targets.running_jobs = erased_files.started_jobs(self._jobs)
        targets.step = "rest"
        self._erasures.save_targets(targets)

    def _finish(self, erasure: "_Erasure", engine: sa.Engine, offsets: Mapping[str, int]) -> None:
        targets = erasure.targets
        erasure.due_s = time.monotonic() + RETRY_S
        erasure.needed = erasure.needed or dict(offsets)
        waiting, remaining = [], []
        if "images" not in erasure.done:
            waiting += self._remove_images(erasure, engine)
        if "replica" not in erasure.done:
            waiting += self._erase_replica(erasure)
        if "files" not in erasure.done:
            waiting += self._remove_files(erasure)
        if not waiting:
            remaining += [
                f"{path.name}: a damaged database that was set aside"
                for path in damaged_files(engine.url.render_as_string(hide_password=False))
            ]
            self._overwrite(engine, offsets)
            busy, failure = clear_deleted(engine)
            waiting += [busy] if busy else []
            remaining += [failure] if failure else []
        remaining += [f"{name}: it mentions what was erased" for name in erasure.mentioning_files]
        receipt = msgspec.structs.replace(
            begun_receipt(targets),
            waiting=waiting,
            remaining=remaining,
            kept=_kept(
                engine, has_replica=self._replica is not None, is_local=self._blobs.is_local
            ),
        )
        if not waiting:
            receipt = msgspec.structs.replace(receipt, state="complete", ended_at=_now())
            self._late_until = time.monotonic() + LATE_S
            _log.info("erasure %s is complete", targets.id)
            self._erasures.save_receipt(receipt)
            del self._running[targets.id]
        elif receipt != erasure.receipt:
            self._erasures.save_receipt(receipt)
        erasure.receipt = receipt

    def _remove_images(self, erasure: "_Erasure", engine: sa.Engine) -> list[str]:
        """Remove images that no remaining inference refers to; return what has to be waited for."""
        targets = erasure.targets
        # Others that share the database or the images may be about to refer to one that they put lately.
        is_alone = self._blobs.is_local and engine.dialect.name == "sqlite"
        young_s = self._upload_s if is_alone else self._blobs.grace_s
        young = shared = 0
        for start in range(0, len(targets.digests), _IMAGES_AT_ONCE):
            batch = targets.digests[start : start + _IMAGES_AT_ONCE]
            with engine.begin() as connection:
                put_before = committed_until(connection, self._directory) - young_s
                unneeded = unreferenced(connection, batch)
            shared += len(batch) - len(unneeded)
            try:
                young += sum(not self._blobs.erase(key, put_before) for key in unneeded)
            except (OSError, StoreError) as error:
                _log.warning("images of an erasure cannot be removed yet: %s", error)
                return ["the images cannot be removed at present"]
        if young:
            return [f"{young} images came within the last {young_s:g} s"]
        targets.counts |= {"images": len(targets.digests) - shared, "images_of_others": shared}
        erasure.done.add("images")
        return []

    def _erase_replica(self, erasure: "_Erasure") -> list[str]:
        if self._replica is not None:
            sizes = journal.segment_sizes(self._directory)
            for name, offset in erasure.needed.items():
                if name in sizes and self._replica.sent_until(self._directory / name) < offset:
                    return ["ClickHouse has not taken the journal yet"]
            targets = erasure.targets
            try:
                self._replica.erase(targets.ids, targets.joins)
            except StoreError as error:
                _log.warning("an erasure waits for ClickHouse: %s", full_text(error))
                return ["ClickHouse does not answer"]
        erasure.done.add("replica")
        return []

    def _remove_files(self, erasure: "_Erasure") -> list[str]:
        targets = erasure.targets
        if running := erased_files.running_jobs(self._jobs, targets.running_jobs):
            return [f"job {job_id} may have read it and has not ended" for job_id in running]
        # An image that others need is no trace of what was erased.
        mentions = Mentions(targets.ids, (), (text for _, text in targets.demanded))
        targets.counts["jobs"] = targets.counts.get("jobs", 0) + erased_files.remove_jobs(
            self._jobs, mentions
        )
        set_aside = erased_files.remove_set_aside(self._directory.parent, mentions)
        targets.counts["set_aside"] = targets.counts.get("set_aside", 0) + set_aside
        erasure.mentioning_files = erased_files.mentioning_files(self._others, mentions)
        self._erasures.save_targets(targets)
        erasure.done.add("files")
        return []

    def _overwrite(self, engine: sa.Engine, offsets: Mapping[str, int]) -> None:
        """Overwrite what the journal holds although the database and the replica have it, once that is on the disk."""
        with engine.connect() as connection:
            check_in_place(connection)
            make_durable(connection)
        for path in journal.segment_paths(self._directory):
            end = offsets.get(path.name, 0)
            if self._replica is not None:
                end = min(end, self._replica.sent_until(path))
            if end:
                overwrite_moved(path, end)


class _Erasure:
    """An erasure that this process carries out, and what is done of it since it began."""

    def __init__(self, targets: ErasureTargets) -> None:
        self.targets = targets
        self.due_s = 0.0
        self.removed = 0
        self.needed: dict[str, int] = {}
        self.done: set[str] = set()
        self.mentioning_files: list[str] = []
        self.receipt: object = None


def _kept(engine: sa.Engine, *, has_replica: bool, is_local: bool) -> list[str]:
    """Return the places outside of this server's reach that may keep copies."""
    places = [
        "backups and snapshots of the data folder, of its volume, of the database and of the images",
        "log files of the server: ids of inferences, and errors",
        "what clients, labelling tools and webhooks were sent, and exports that were downloaded",
        "frozen baselines: values and embeddings, without the ids of their inferences, until they are replaced",
        "the blocks of the disk that a file system or a drive has not used again",
    ]
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


def _now() -> str:
    return timestamp_text(time.time_ns() // 1_000_000)
