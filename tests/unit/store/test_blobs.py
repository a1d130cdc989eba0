"""One suite for every place where blobs can be; then what is special to each."""

import itertools
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from quadriga.store.blobs import objects as object_blobs
from quadriga.store.blobs.files import FileBlobs, open_blobs
from quadriga.store.blobs.interface import Blobs, blob_key, blob_path
from quadriga.store.blobs.objects import ObjectBlobs
from quadriga.store.records.errors import JournalError, NotReadyError, StoreError
from tests.background import at_once
from tests.s3_server import BUCKET, S3Server

EMPTY = "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
HOUR = 3600.0
_prefixes = itertools.count()


class BlobHarness:
    """An empty folder or bucket for blobs, which tests age and damage behind the back of the code."""

    def __init__(self, directory: Path, server: S3Server | None) -> None:
        self.directory = directory
        self.server = server
        self.prefix = f"test/{next(_prefixes)}"
        self.url = str(directory) if server is None else f"s3://{BUCKET}/{self.prefix}"

    def open(self) -> Blobs:
        return open_blobs(self.url)

    def age(self, key: str, seconds: float) -> None:
        put_at = time.time() - seconds
        if self.server is None:
            os.utime(self.directory / blob_path(key), (put_at, put_at))
        else:
            self.server.set_put_at(f"{self.prefix}/{blob_path(key)}", put_at)

    def damage(self, key: str, data: bytes) -> None:
        if self.server is None:
            (self.directory / blob_path(key)).write_bytes(data)
        else:
            ObjectBlobs(self.url)._write(blob_path(key), data)

    def names(self) -> list[str]:
        if self.server is None:
            files = (p for p in self.directory.rglob("*") if p.is_file())
            return sorted(str(path.relative_to(self.directory)) for path in files)
        prefix = f"{self.prefix}/"
        return sorted(n.removeprefix(prefix) for n in self.server.objects if n.startswith(prefix))


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@pytest.fixture(params=["folder", "s3"])
def place(request, tmp_path: Path, monkeypatch) -> BlobHarness:
    if request.param == "folder":
        return BlobHarness(tmp_path / "blobs", None)
    return s3_place(request.getfixturevalue("s3"), tmp_path, monkeypatch)


def s3_place(s3: S3Server, tmp_path: Path, monkeypatch) -> BlobHarness:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return BlobHarness(tmp_path, s3)


@pytest.mark.parametrize("data", [b"", b"x", b"\x89PNG" * 100_000])
def test_bytes_come_back_by_their_key(place: BlobHarness, data: bytes) -> None:
    blobs = place.open()
    key = blobs.put(data)
    assert key == blob_key(data)
    assert place.open().get(key) == data


def test_the_same_bytes_are_kept_once_in_a_folder_by_prefix(place: BlobHarness) -> None:
    assert place.open().put(b"") == place.open().put(b"") == EMPTY
    digits = EMPTY.removeprefix("blake3:")
    assert place.names() == [f"{digits[:2]}/{digits}"]


def test_bytes_never_kept_are_none(place: BlobHarness) -> None:
    assert place.open().get(EMPTY) is None
    assert not place.open().delete(EMPTY)
    assert list(place.open().entries()) == []


@pytest.mark.parametrize(
    "key", ["", "blake3:", "blake3:../../etc/passwd", "sha256:" + "0" * 64, "blake3:" + "A" * 64,
            "blake3:" + "0" * 64 + "\n", "blake3:" + "0" * 63, "0" * 64]
)  # fmt: skip
@pytest.mark.parametrize("name", ["get", "delete"])
def test_malformed_keys_are_refused(place: BlobHarness, name: str, key: str) -> None:
    with pytest.raises(StoreError, match="expected a blob key"):
        getattr(place.open(), name)(key)


@pytest.mark.parametrize("data", [b"", b"whol", b"other"])
def test_damaged_bytes_are_none_and_said(place: BlobHarness, caplog, data: bytes) -> None:
    key = place.open().put(b"whole")
    place.damage(key, data)
    assert place.open().get(key) is None
    assert f"{key} is damaged" in caplog.text


def test_a_removal_takes_old_blobs_and_leaves_young_ones(place: BlobHarness) -> None:
    blobs = place.open()
    young, old = blobs.put(b"young"), blobs.put(b"old")
    place.age(young, 0.9 * HOUR)
    place.age(old, 1.1 * HOUR)
    assert not blobs.delete(young)
    assert not blobs.delete(old, as_of=time.time() - HOUR)
    assert blobs.delete(old)
    assert place.names() == [blob_path(young)]


def test_blobs_that_are_there_are_synced(place: BlobHarness) -> None:
    place.open().sync([place.open().put(b"a"), place.open().put(b"b")])
    place.open().sync([])


def test_a_put_makes_an_old_blob_young(place: BlobHarness) -> None:
    key = place.open().put(b"seen again")
    place.age(key, 2 * HOUR)
    assert place.open().put(b"seen again") == key
    assert not place.open().delete(key)
    assert place.open().get(key) == b"seen again"


def test_a_list_gives_size_and_time_of_each(place: BlobHarness) -> None:
    blobs = place.open()
    keys = {blobs.put(b"%d" % number * number): number for number in range(5)}
    place.age(blob_key(b"4444"), HOUR)
    entries = {blob.key: blob for blob in blobs.entries()}
    assert {key: blob.size for key, blob in entries.items()} == keys
    ages = sorted(round((time.time() - blob.put_at) / HOUR) for blob in entries.values())
    assert ages == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("rounds", [15])
def test_of_puts_and_removals_at_once_the_puts_win(place: BlobHarness, rounds: int) -> None:
    key = place.open().put(b"wanted")
    for _ in range(rounds * (1 if place.server else 20)):
        place.age(key, 2 * HOUR)
        put, delete = partial(place.open().put, b"wanted"), partial(place.open().delete, key)
        at_once([put, put, delete, delete, lambda: list(place.open().entries())])
        assert place.open().get(key) == b"wanted"
        assert not place.open().delete(key)  # it is young
    assert place.names() == [blob_path(key)]


@pytest.mark.parametrize("url", ["ftp://host/x", "file:///x", "s3:///no-bucket", "az://account"])
def test_places_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(StoreError, match="expected"):
        open_blobs(url)


def test_without_the_extra_an_object_store_is_refused(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "quadriga.store.blobs.objects")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreError, match=r"pip install 'quadriga\[s3\]'"):
        open_blobs("gs://bucket")


# Files


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        FileBlobs(tmp_path).put("text")  # type: ignore[arg-type]
    digits = EMPTY.removeprefix("blake3:")
    (tmp_path / digits[:2]).touch()  # a file where the folder belongs
    with pytest.raises(JournalError, match="cannot store 0 bytes"):
        FileBlobs(tmp_path).put(b"")
    assert [p.name for p in tmp_path.iterdir()] == [digits[:2]]
    assert list(FileBlobs(tmp_path).entries()) == []


def test_a_put_repairs_what_was_cut_short(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    key = blobs.put(b"whole")
    (tmp_path / blob_path(key)).write_bytes(b"who")
    assert blobs.put(b"whole") == key
    assert blobs.get(key) == b"whole"


def test_a_list_clears_away_what_crashes_left(tmp_path: Path) -> None:
    key = FileBlobs(tmp_path).put(b"half removed")
    path = tmp_path / blob_path(key)
    path.rename(path.with_name(f".{path.name}.0123.removed"))
    path.with_name(".written").write_bytes(b"half written")
    assert list(FileBlobs(tmp_path).entries()) == []  # it may be under way
    assert len(list(path.parent.iterdir())) == 2
    list(FileBlobs(tmp_path, grace_s=-1).entries())
    assert list(path.parent.iterdir()) == [path]
    assert FileBlobs(tmp_path).get(key) == b"half removed"


def test_a_removal_that_died_is_not_undone_where_there_was_a_put_since(tmp_path: Path) -> None:
    key = FileBlobs(tmp_path).put(b"half removed")
    path = tmp_path / blob_path(key)
    path.rename(path.with_name(f".{path.name}.0123.removed"))
    FileBlobs(tmp_path).put(b"half removed")
    put_at = path.stat().st_mtime_ns
    list(FileBlobs(tmp_path, grace_s=-1).entries())
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mtime_ns == put_at


# Objects


@pytest.fixture
def objects(s3: S3Server, tmp_path: Path, monkeypatch) -> BlobHarness:
    return s3_place(s3, tmp_path, monkeypatch)


def test_an_image_that_is_known_to_be_there_is_asked_for_no_more(objects: BlobHarness, s3) -> None:
    blobs = objects.open()
    key = blobs.put(b"frame")
    del s3.objects[f"{objects.prefix}/{blob_path(key)}"]
    assert blobs.put(b"frame") == key
    assert objects.names() == []


def test_only_so_many_are_remembered(objects: BlobHarness, monkeypatch) -> None:
    monkeypatch.setattr(object_blobs, "_MAX_CACHED_KEYS", 3)
    blobs = objects.open()
    for number in range(5):
        blobs.put(b"%d" % number)
    assert len(blobs._young_until) == 3


def test_a_removal_that_died_is_waited_for_no_longer_than_it_could_last(
    objects: BlobHarness,
) -> None:
    blobs = objects.open()
    key = blobs.put(b"wanted")
    mark = f"{blob_path(key)}.removing"
    blobs._write(mark, b"")
    objects.server.set_put_at(f"{objects.prefix}/{mark}", time.time() - HOUR)
    objects.age(key, 2 * HOUR)
    assert not blobs.delete(key)
    assert objects.open().put(b"wanted") == key
    assert objects.names() == [blob_path(key), mark]
    list(blobs.entries())
    assert objects.names() == [blob_path(key)]


def test_a_put_waits_for_a_removal_to_end(objects: BlobHarness, monkeypatch) -> None:
    monkeypatch.setattr(object_blobs, "_RENEWALS", 2)
    blobs = objects.open()
    key = blobs.put(b"wanted")
    blobs._write(f"{blob_path(key)}.removing", b"")
    objects.age(key, 2 * HOUR)
    with pytest.raises(
        JournalError, match="cannot store 6 bytes in the object store: TimeoutError"
    ):
        objects.open().put(b"wanted")


def test_a_presigned_url_answers_the_bytes(objects: BlobHarness) -> None:
    blobs = objects.open()
    url = blobs.presigned_url(blobs.put(b"<p>"), 90.0)
    assert "X-Amz-Expires=90" in url
    answer = httpx.get(url)
    assert answer.content == b"<p>"
    assert answer.headers["content-type"] == "application/octet-stream"


def test_azure_is_found_by_its_container_and_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    url = open_blobs("az://images/folder").presigned_url(EMPTY, 60.0)
    host = "https://account.blob.core.windows.net"
    assert url.startswith(f"{host}/images/folder/{blob_path(EMPTY)}?")


def test_a_server_that_is_away_is_no_crash(monkeypatch, s3, tmp_path) -> None:
    for name, value in (s3.environment | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}).items():
        monkeypatch.setenv(name, value)
    blobs = ObjectBlobs(f"s3://{BUCKET}")
    with pytest.raises(JournalError, match="cannot store 5 bytes in the object store"):
        blobs.put(b"image")
    for call in (blobs.get, blobs.delete, lambda _: list(blobs.entries())):
        with pytest.raises(NotReadyError, match="the object store cannot"):
            call(EMPTY)
