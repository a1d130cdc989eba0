"""Copies of images beside them: how much they take, and that none is there longer than its image."""

import os
import time
from pathlib import Path

import pytest

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.blobs.interface import blob_key
from quadriga.store.blobs.thumbnails import MAX_BYTES, WIDTHS, ThumbnailFiles
from tests.background import at_once

COPY = b"\xff\xd8" + bytes(100) + b"\xff\xd9"
OLD_S = 8000.0


class Folder:
    """Blobs with copies of some of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.blobs = FileBlobs(directory)

    def put(self, data: bytes, age_s: float = OLD_S) -> str:
        key = self.blobs.put(data)
        for width in WIDTHS:
            self.blobs.put_thumbnail(key, width, COPY)
        put_at = time.time() - age_s
        os.utime(self.directory / key[7:9] / key[7:], (put_at, put_at))
        return key

    def copies(self) -> list[str]:
        files = (self.directory / "thumbnails").rglob("*")
        return sorted(path.name for path in files if path.is_file())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "blobs")


def names(*keys: str) -> list[str]:
    return sorted(f"{key[7:]}-{width}.jpg" for key in keys for width in WIDTHS)


def test_a_copy_comes_back_for_its_width_alone(folder: Folder) -> None:
    key = folder.blobs.put(b"image")
    folder.blobs.put_thumbnail(key, 256, COPY)
    assert folder.blobs.thumbnail(key, 256) == COPY
    assert folder.blobs.thumbnail(key, 128) is None
    assert folder.blobs.thumbnail(blob_key(b"other"), 256) is None
    assert [entry.key for entry in folder.blobs.entries()] == [key]


def test_copies_go_with_their_image(folder: Folder) -> None:
    kept, removed, young = folder.put(b"kept"), folder.put(b"removed"), folder.put(b"young", 0)
    assert folder.blobs.delete(removed)
    assert not folder.blobs.delete(young)
    assert folder.copies() == names(kept, young)


def test_erasing_takes_copies_and_what_is_left_of_writing_them(folder: Folder) -> None:
    erased, gone, young = folder.put(b"erased"), folder.put(b"gone"), folder.put(b"young", 0)
    (folder.directory / gone[7:9] / gone[7:]).unlink()
    for key in (erased, gone):
        (folder.directory / "thumbnails" / key[7:9] / f".{key[7:]}-256.jpg-ab12").write_bytes(COPY)
    assert folder.blobs.erase([erased, gone, young], time.time() - 100) == [young]
    assert folder.copies() == names(young)


def test_a_copy_of_an_image_that_went_meanwhile_does_not_stay(folder: Folder) -> None:
    key = folder.put(b"image")
    folder.blobs.erase([key], time.time())
    folder.blobs.put_thumbnail(key, 256, COPY)
    assert folder.copies() == []


def test_no_copy_outlives_an_image_that_is_erased_while_copies_are_made(folder: Folder) -> None:
    for number in range(60):
        key = folder.blobs.put(b"image %d" % number)

        def make(key: str = key) -> None:
            for width in WIDTHS:
                folder.blobs.put_thumbnail(key, width, COPY)

        def erase(key: str = key) -> None:
            assert folder.blobs.erase([key], time.time() + 100) == []

        at_once([make, erase, make])
        assert folder.copies() == []


def test_the_sweep_finds_copies_without_image_and_leftovers(folder: Folder) -> None:
    kept, lost = folder.put(b"kept"), folder.put(b"lost")
    (folder.directory / lost[7:9] / lost[7:]).unlink()
    old, new = (
        folder.directory / "thumbnails" / kept[7:9] / f".{kept[7:]}-256.jpg-{end}"
        for end in ("old", "new")
    )
    for path, age_s in ((old, OLD_S), (new, 0)):
        path.write_bytes(COPY)
        os.utime(path, (time.time() - age_s,) * 2)
    assert len(list(folder.blobs.entries())) == 1
    assert folder.copies() == sorted([*names(kept), new.name])


def test_a_full_folder_loses_what_was_asked_for_least_recently(tmp_path: Path) -> None:
    share = len(COPY) * 100
    files = ThumbnailFiles(tmp_path, lambda _: True, share * 256)
    digits = [f"ab{number:062x}" for number in range(300)]
    for number, name in enumerate(digits):
        files.put(name, 256, COPY)
        if number >= 10:  # the first is asked for again and again
            os.utime(tmp_path / "ab" / f"{name}-256.jpg", (number, number))
            assert files.get(digits[0], 256) == COPY
    total = sum(path.stat().st_size for path in (tmp_path / "ab").iterdir())
    assert share / 2 < total <= share * 17 / 16
    assert files.get(digits[299], 256) == COPY
    assert files.get(digits[20], 256) is None
    assert MAX_BYTES == 1 << 30


@pytest.mark.parametrize("damage", [b"", COPY[:-1], b"\xff\xd8"])
def test_a_copy_that_is_not_whole_is_none(folder: Folder, damage: bytes) -> None:
    key = folder.put(b"image")
    (folder.directory / "thumbnails" / key[7:9] / f"{key[7:]}-256.jpg").write_bytes(damage)
    assert folder.blobs.thumbnail(key, 256) is None


def test_without_room_nothing_is_kept_and_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "thumbnails").write_text("in the way")
    blobs = FileBlobs(tmp_path)
    blobs.put_thumbnail(blobs.put(b"image"), 256, COPY)
    assert blobs.thumbnail(blob_key(b"image"), 256) is None
