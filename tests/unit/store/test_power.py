import os
import threading
from pathlib import Path

import pytest

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.journal import durability
from quadriga.store.journal.durability import GroupSync
from quadriga.store.journal.journal import Journal, is_closed, read_frames, segment_paths
from quadriga.store.records.errors import JournalError, UnconfirmedError


class SyncHarness:
    """A journal whose segments are small, and the synchronization of its appends."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "journal"
        self.journal = Journal(self.directory, 0, segment_bytes=2000)
        self.syncing = GroupSync(self.directory)


@pytest.fixture
def harness(tmp_path: Path) -> SyncHarness:
    return SyncHarness(tmp_path)


@pytest.fixture
def synced(monkeypatch) -> list[str]:
    """Names of the files and folders that were synced, in order."""
    names: list[str] = []

    def noting(real):
        def sync(descriptor: int) -> None:
            names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            real(descriptor)

        return sync

    monkeypatch.setattr(os, "fsync", noting(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noting(os.fdatasync))
    return names


def test_an_append_is_synced_and_the_folder_once(harness, record, synced) -> None:
    for seq in (1, 2):
        harness.syncing.wait(harness.journal.append([record(seq)], hold_segment=True))
    (segment,) = segment_paths(harness.directory)
    assert synced == [segment.name, "journal", harness.directory.parent.name, segment.name]


def test_an_image_is_synced_with_its_folders(tmp_path, synced) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    key = blobs.put(b"image")
    digest = key.removeprefix("blake3:")
    blobs.sync([])
    assert synced == []
    blobs.sync([key])
    assert synced == [digest, digest[:2], "blobs", tmp_path.name]
    synced.clear()
    blobs.sync(iter([key]))
    assert synced == [digest, digest[:2]]
    (tmp_path / "blobs" / digest[:2] / digest).unlink()
    with pytest.raises(JournalError, match="cannot sync 1 images to the disk: No such file"):
        blobs.sync([key])


def test_threads_that_wait_share_syncs_and_all_are_kept(harness, record, monkeypatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    real = os.fdatasync

    def slow(descriptor: int) -> None:
        begun.set()
        assert go_on.wait(10)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)

    def keep(seq: int) -> None:
        harness.syncing.wait(harness.journal.append([record(seq)], hold_segment=True))

    threads = [threading.Thread(target=keep, args=(seq,)) for seq in range(12)]
    threads[0].start()
    assert begun.wait(10)
    for thread in threads[1:]:
        thread.start()
    while sum(len(list(read_frames(path))) for path in segment_paths(harness.directory)) < 12:
        pass
    while (
        harness.syncing._open is None
        or sum(map(len, harness.syncing._open.descriptors.values())) < 11
    ):
        pass
    go_on.set()
    for thread in threads:
        thread.join()
    assert harness.syncing.count == 2
    harness.journal.close()
    assert len(segment_paths(harness.directory)) > 1
    assert all(is_closed(path) for path in segment_paths(harness.directory)), (
        "a descriptor is left open"
    )


def test_a_held_segment_is_not_closed_until_it_is_synced(harness, record) -> None:
    position = harness.journal.append([record(1)], hold_segment=True)
    harness.journal.close()
    (segment,) = segment_paths(harness.directory)
    assert not is_closed(segment)
    harness.syncing.wait(position)
    assert is_closed(segment)


def test_a_disk_that_fails_confirms_nothing_and_later_syncs_succeed(
    harness, record, monkeypatch
) -> None:
    def fail(_: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(durability, "sync_path", fail)
        position = harness.journal.append([record(1)], hold_segment=True)
        with pytest.raises(
            UnconfirmedError, match=r"Input/output error.*may still be stored"
        ) as caught:
            harness.syncing.wait(position)
    assert caught.value.status == 503
    harness.syncing.wait(harness.journal.append([record(2)], hold_segment=True))
    harness.journal.close()
    assert is_closed(segment_paths(harness.directory)[0])
