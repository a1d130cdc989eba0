"""Sources of bulk inference: what lies below the allowed folder, and nothing else."""

import json
import os
import zipfile
from pathlib import Path

import pytest

from quadriga.engine.jobs.bulk_source import BulkSource, decode_parameters, resolve_source
from quadriga.store.records.errors import MetadataError, QueryError

BODY = {"model": "m", "source": "set"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An allowed folder beside files that are not allowed."""
    allowed = tmp_path / "allowed"
    (allowed / "set" / "below").mkdir(parents=True)
    for name in ("b.PNG", "a.jpg", "below/c.webp", "notes.txt"):
        (allowed / "set" / name).write_bytes(name.encode())
    with zipfile.ZipFile(allowed / "set.zip", "w") as archive:
        for name in ("x.png", "below/y.jpg", "__MACOSX/z.png", "notes.txt", "../up.png"):
            archive.writestr(name, name)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "s.png").write_bytes(b"secret")
    (allowed / "notes.txt").touch()
    (allowed / "empty").mkdir()
    (allowed / "link").symlink_to(tmp_path / "secret")
    (allowed / "inner").symlink_to(allowed / "set")
    return allowed


def test_images_of_a_folder_and_of_a_zip_are_read(folder: Path) -> None:
    source = BulkSource(str(folder), "set", 100)
    assert source.paths == ["a.jpg", "b.PNG", "below/c.webp"]
    assert [source.read(path) for path in source.paths] == [b"a.jpg", b"b.PNG", b"below/c.webp"]
    archive = BulkSource(str(folder), "set.zip", 100)
    assert archive.paths == ["../up.png", "below/y.jpg", "x.png"]
    assert archive.read("../up.png") == b"../up.png"  # of the zip: nothing is unpacked
    archive.close()
    assert BulkSource(str(folder), "inner", 100).paths == source.paths
    assert len(BulkSource(str(folder), ".", 100).paths) == 3


@pytest.mark.parametrize(
    "source",
    ["..", "../secret", "set/../../secret", "link", "link/s.png", "none", "notes.txt", "set/a.jpg",
     "/etc", "\0", "a" * 5000, "set/" * 2000],
)  # fmt: skip
def test_other_places_are_not_found(folder: Path, source: str) -> None:
    with pytest.raises(QueryError, match="folder or zip not found below the bulk_folder") as caught:
        resolve_source(str(folder), source)
    assert str(folder) not in str(caught.value)


def test_without_a_setting_nothing_is_allowed() -> None:
    with pytest.raises(QueryError, match="bulk inference is off"):
        resolve_source("", ".")


def test_files_that_lead_out_or_block_are_not_read(folder: Path, tmp_path: Path) -> None:
    images = folder / "set"
    (images / "link.png").symlink_to(tmp_path / "secret" / "s.png")
    (images / "near.png").symlink_to(images / "a.jpg")
    (images / "loop.png").symlink_to("loop.png")
    os.mkfifo(images / "pipe.png")
    (images / "large.png").write_bytes(bytes(101))
    (images / "gone.png").symlink_to(images / "none.png")
    (images / "folder.png").mkdir()
    os.close(os.open(os.fsencode(images) + b"/\xff.png", os.O_CREAT))
    source = BulkSource(str(folder), "set", 100)
    assert source.read("near.png") == b"a.jpg"
    refused = {
        "link.png": "it leads out of the bulk_folder",
        "loop.png": "loop of symbolic links|Too many levels of symbolic links",
        "pipe.png": "it is no regular file",
        "large.png": "at most 100 bytes",
        "gone.png": "No such file",
        "?.png": "No such file",
    }
    assert set(source.paths) == {"a.jpg", "b.PNG", "below/c.webp", "near.png", *refused}
    for path, reason in refused.items():
        with pytest.raises(OSError, match=reason):
            source.read(path)


def test_damaged_and_large_members_are_not_read(folder: Path) -> None:
    path = folder / "damaged.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.png", bytes(1 << 20))
        archive.writestr("cut.png", b"content of the image")
    path.write_bytes(path.read_bytes().replace(zlib_of(path, "cut.png"), bytes(8), 1))
    source = BulkSource(str(folder), "damaged.zip", 1000)
    for name, reason in {"bomb.png": "at most 1000 bytes", "cut.png": "from the zip"}.items():
        with pytest.raises(OSError, match=reason):
            source.read(name)
    source.close()


@pytest.mark.parametrize(
    ("method", "name"),
    [(zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "LZMA"), (97, "method 97")],
)
def test_members_that_cannot_be_read_in_parts_are_not_read(
    folder: Path, method: int, name: str
) -> None:
    path = folder / "packed.zip"
    with zipfile.ZipFile(path, "w", method % 97) as archive:
        archive.writestr("bomb.png", bytes(1 << 20))
        archive.writestr("small.png", b"small")
    if method == 97:  # WavPack, which the module cannot write
        content = path.read_bytes()
        head, _, directory = content.rpartition(b"PK\1\2")
        path.write_bytes(head + b"PK\1\2" + directory[:6] + bytes([97, 0]) + directory[8:])
    source = BulkSource(str(folder), "packed.zip", 1000)
    with pytest.raises(
        OSError, match=f"expected it to be stored or deflated in the zip, got {name}"
    ):
        source.read("small.png")
    source.close()


def zlib_of(path: Path, name: str) -> bytes:
    """Return the first bytes of a compressed member."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(name)
    start = info.header_offset + 30 + len(name)
    return path.read_bytes()[start : start + 8]


@pytest.mark.parametrize("source", ["empty", "no.zip"])
def test_a_source_without_images_is_refused(folder: Path, source: str) -> None:
    (folder / "no.zip").write_bytes(b"no zip")
    with pytest.raises(QueryError, match=r"expected 1 to 1000000 images|cannot read no.zip"):
        BulkSource(str(folder), source, 100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": "../secret"}, "not found below"),
        ({"model": 1}, "model"),
        ({"url": "http://127.0.0.1"}, "url"),
        ({"source": "https://127.0.0.1/x.zip"}, "not found below"),
        ({"metadata": {"job_id": "1"}}, "expected metadata without job_id, which the job adds"),
        ({"metadata": {"path": "1"}}, "expected metadata without path"),
        ({"metadata": {"a": {"b": {}} | {"": 1}}}, "key"),
        ({"metadata": []}, "metadata"),
        ({"parameters": {"metadata": "{}"}}, "expected parameters without metadata"),
    ],
)
def test_parameters_are_checked_before_a_job_begins(folder: Path, change, message) -> None:
    assert decode_parameters(json.dumps(BODY).encode(), str(folder)).source == "set"
    with pytest.raises((QueryError, MetadataError), match=message):
        decode_parameters(json.dumps(BODY | change).encode(), str(folder))
