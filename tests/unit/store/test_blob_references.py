import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quadriga.store.blobs import unreferenced as blob_references
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.blobs.interface import BlobEntry, blob_key, blob_path
from quadriga.store.blobs.unreferenced import (
    committed_until,
    remove_unreferenced,
    sweep,
    sweep_periodically,
)
from quadriga.store.database.database import ReaderPool, execute, migrate, open_writer
from quadriga.store.database.partitions import create_partitions
from quadriga.store.database.sizes import read_size
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import InputReference
from tests.background import in_background, until
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness, run_statements

HOUR = 3600.0
NOW_SEQ = smallest_id_at(time.time_ns() // 1_000_000)


class BlobReferenceHarness(StoreHarness):
    """A store of which unreferenced blobs are removed."""

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root, url)
        self.readers = ReaderPool(url)

    def put(self, data: bytes, age_s: float = 2 * HOUR) -> str:
        key = self.blobs.put(data)
        put_at = time.time() - age_s
        os.utime(self.root / "blobs" / blob_path(key), (put_at, put_at))
        return key

    def journal_record(self, seq: int, key: str, *, has_blob: bool = True) -> None:
        """Journal a record as a request would, with its input kept or only hashed."""
        image = InputReference("image", key, 1, 1, "image/png", kept=has_blob)
        self.journal.append([make_record(seq, input=image)])

    def remove(self, *keys: str) -> int:
        with self.readers.snapshot() as connection:
            return remove_unreferenced(connection, self.blobs, keys, self.journal_directory)

    def sweep(self) -> list[int]:
        swept = sweep(self.blobs, self.readers, self.journal_directory)
        return [removed for removed, _ in swept]

    def stored_keys(self) -> set[str]:
        return {blob.key for blob in self.blobs.entries()}


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[BlobReferenceHarness]:
    store = BlobReferenceHarness(tmp_path, database_url)
    yield store
    store.close()
    store.readers.close()


def test_what_a_row_keeps_stays_and_the_rest_goes_once_it_is_old(
    store: BlobReferenceHarness,
) -> None:
    referenced, hashed, orphan = store.put(b"kept"), store.put(b"hashed"), store.put(b"orphan")
    young = store.put(b"young", 0.5 * HOUR)
    store.journal_record(NOW_SEQ + 1, referenced)
    store.journal_record(NOW_SEQ + 2, hashed, has_blob=False)
    store.commit_journal()
    assert store.remove(referenced, hashed, orphan, young, orphan, blob_key(b"never")) == 2
    assert store.stored_keys() == {referenced, young}
    assert store.remove() == 0


def test_a_blob_of_two_rows_stays_until_both_are_gone(store: BlobReferenceHarness) -> None:
    key = store.put(b"twice")
    store.journal_record(NOW_SEQ + 1, key)
    store.journal_record(NOW_SEQ + 2, key)
    store.commit_journal()
    for number, expected in ((1, 0), (2, 1)):
        run_statements(store.url, ("DELETE FROM inference WHERE seq = ?", (NOW_SEQ + number,)))
        assert store.remove(key) == expected


def test_what_waits_in_the_journal_keeps_what_was_put_before_it(
    store: BlobReferenceHarness,
) -> None:
    start = time.time()
    with store.readers.snapshot() as connection:
        assert start <= committed_until(connection, store.journal_directory) <= time.time()
    old = store.put(b"of a record that waits", 3 * HOUR)
    older = store.put(b"put long before any record that waits", 5 * HOUR)
    waits = smallest_id_at(round((time.time() - 2.5 * HOUR) * 1000))
    store.journal_record(waits, old)
    with store.readers.snapshot() as connection:
        until = committed_until(connection, store.journal_directory)
    assert abs(time.time() - 2.5 * HOUR - until) < 60
    assert store.remove(old, older) == 1
    assert store.sweep() == [0]
    assert store.stored_keys() == {old}
    store.commit_journal()
    assert store.remove(old) == 0


def test_a_sweep_looks_at_all_in_steps(store: BlobReferenceHarness, monkeypatch) -> None:
    monkeypatch.setattr(blob_references, "SWEEP_BATCH", 4)
    referenced = {store.put(b"kept %d" % number) for number in range(5)}
    young = {store.put(b"young %d" % number, 0.0) for number in range(3)}
    for number, key in enumerate(referenced):
        store.journal_record(NOW_SEQ + number, key)
    store.commit_journal()
    for number in range(6):
        store.put(b"orphan %d" % number)
    removed = store.sweep()
    assert (len(removed), sum(removed)) == (4, 6)
    assert store.stored_keys() == referenced | young
    assert sum(store.sweep()) == 0


def test_a_sweep_counts_the_images_that_stay(store: BlobReferenceHarness, monkeypatch) -> None:
    monkeypatch.setattr(blob_references, "SWEEP_BATCH", 2)
    store.put(b"orphan")
    for number, data in enumerate((b"four", b"sixsix")):
        store.journal_record(NOW_SEQ + number, store.put(data))
    store.put(b"young", 0.0)
    store.commit_journal()
    swept = [*sweep(store.blobs, store.readers, store.journal_directory)]
    assert sum(removed for removed, _ in swept) == 1
    assert sorted(size for _, kept in swept for size in kept) == [4, 5, 6]


def test_a_whole_sweep_leaves_a_size_and_an_interrupted_one_does_not(
    store: BlobReferenceHarness,
) -> None:
    stop, data = threading.Event(), store.journal_directory.parent
    store.put(b"young", 0.0)

    class Interrupted(FileBlobs):
        def entries(self) -> Iterator[BlobEntry]:
            yield from super().entries()
            stop.set()

    blobs = Interrupted(data / "blobs")
    sweep_periodically(blobs, store.url, store.journal_directory, stop, 0.01)
    assert read_size(data, "images") is None
    with sweeping(store.blobs, store.url, store.journal_directory):
        until(lambda: read_size(data, "images") is not None)
    size = read_size(data, "images")
    assert size is not None
    assert (size.count, size.bytes) == (1, 5)


def sweeping(blobs: FileBlobs, url: str, journal: Path):
    return in_background(lambda stop: sweep_periodically(blobs, url, journal, stop, 0.01))


def test_sweeps_go_on_until_they_are_stopped(store: BlobReferenceHarness, caplog) -> None:
    caplog.set_level("INFO")
    orphan = store.put(b"orphan")
    with sweeping(store.blobs, store.url, store.journal_directory):
        until(lambda: store.blobs.get(orphan) is None)
        store.put(b"another")
        until(lambda: not store.stored_keys())
    assert "1 unreferenced images are removed" in caplog.text


def test_a_sweep_that_fails_is_said_and_tried_again(tmp_path: Path, caplog) -> None:
    blobs, url = FileBlobs(tmp_path / "blobs", grace_s=0.0), f"sqlite:///{tmp_path}/store.db"
    orphan = blobs.put(b"orphan")
    with sweeping(blobs, url, tmp_path / "journal"):
        until(lambda: "the sweep of unreferenced images is interrupted" in caplog.text)
        migrate(url)
        until(lambda: blobs.get(orphan) is None)


def test_objects_are_left_to_the_sweep(store: BlobReferenceHarness, monkeypatch) -> None:
    monkeypatch.setattr(store.blobs, "is_local", False)
    orphan = store.put(b"orphan")
    assert store.remove(orphan) == 0
    assert sum(store.sweep()) == 1


def test_blobs_are_looked_up_by_the_index(database_url: str) -> None:
    engine = open_writer(database_url)
    words = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"
    statement = words + blob_references.SELECT_UNREFERENCED.format("(?), (?)")
    with engine.connect() as connection:
        create_partitions(connection, [NOW_SEQ])
        if engine.dialect.name == "postgresql":  # the tables are empty
            connection.exec_driver_sql("SET enable_seqscan = off")
        plan = str(execute(connection, statement, ("blake3:a", "blake3:b")).all())
    engine.dispose()
    assert "input_hash_idx" in plan or "ix_inference_input_hash" in plan, plan
