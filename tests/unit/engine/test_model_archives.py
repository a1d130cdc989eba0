"""Archives of models: what is unpacked, what is refused, and what is unpacked only once."""

import io
import random
import stat
import subprocess
import sys
import tarfile
import zipfile
from contextlib import suppress

import pytest

from quadriga.engine.models import model_archives
from quadriga.engine.models.model_archives import UnpackedArchives, archive_name, read_archive
from quadriga.engine.models.runners.session import LoadError
from tests.background import at_once

FILES = {"1/model.onnx": b"graph", "1/weights/part.0": b"w" * 5000, "labels.txt": b""}
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")


def packed(files, suffix=".zip", prefix=""):
    """Return an archive of files."""
    out = io.BytesIO()
    if suffix == ".zip":
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(prefix + name, content)
    else:
        with tarfile.open(fileobj=out, mode="w" if suffix == ".tar" else "w:gz") as archive:
            for name, content in files.items():
                info = tarfile.TarInfo(prefix + name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def tar_of(name, **fields):
    """Return a tar with one member that is no regular file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo(name)
        for field, value in fields.items():
            setattr(info, field, value)
        archive.addfile(info)
    return out.getvalue()


def zip_of_link():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo("labels.txt")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    return out.getvalue()


def contents(folder):
    """Return the files below a folder by their paths."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def unpack(tmp_path):
    """Unpack the bytes of an archive; returns the contents of its folder."""
    archives = UnpackedArchives(tmp_path / "archives")

    def unpack(name, data):
        (tmp_path / name).write_bytes(data)
        return contents(archives.unpack(tmp_path / name))

    return unpack


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("prefix", ["", "./", "folder/", "./folder/"])
def test_an_archive_is_its_files_with_or_without_a_folder_around_them(unpack, suffix, prefix):
    data = packed(FILES, suffix, prefix)
    assert unpack(f"model{suffix}", data) == FILES
    assert read_archive(f"model{suffix}", data, 20_000) == FILES


def test_the_folder_of_a_version_and_files_of_macos(unpack):
    files = {"3/model.onnx": b"graph"}
    assert unpack("a.zip", packed(files)) == files
    assert unpack("b.zip", packed({**files, "__MACOSX/._x": b"x"}, prefix="")) == files


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("a.zip", "a"),
        ("a.b.tar.gz", "a.b"),
        ("A.TGZ", "A"),
        ("a.tar", "a"),
        (".zip", ""),
        ("a.onnx", None),
        ("a.gz", None),
        ("zip", None),
    ],
)
def test_the_name_is_that_of_the_file(tmp_path, name, model):
    assert archive_name(tmp_path / name) == model


ESCAPES = ["/etc/passwd", "../x", "a/../../x", "a\\..\\x", "/".join("a" * 17)]


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
@pytest.mark.parametrize("path", ESCAPES)
def test_paths_that_lead_elsewhere_are_refused(tmp_path, unpack, suffix, path):
    data = packed({"model.onnx": b"graph", path: b"x"}, suffix)
    for read in (unpack, lambda name, data: read_archive(name, data, 20_000)):
        with pytest.raises(LoadError, match=f"cannot unpack m{suffix}: expected relative paths"):
            read(f"m{suffix}", data)
    assert {path.name for path in (tmp_path / "archives").iterdir()} == {"lock"}
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("m.zip", zip_of_link()),
        ("m.tar", tar_of("labels.txt", type=tarfile.SYMTYPE, linkname="/etc/passwd")),
        ("m.tar", tar_of("labels.txt", type=tarfile.LNKTYPE, linkname="../secret")),
        ("m.tar", tar_of("pipe", type=tarfile.FIFOTYPE)),
        ("m.tar", tar_of("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)),
        ("m.tar", tar_of("disk", type=tarfile.BLKTYPE)),
        ("m.tar", tar_of(".", type=tarfile.REGTYPE)),
    ],
)
def test_links_and_devices_are_refused(tmp_path, unpack, name, data):
    with pytest.raises(LoadError, match="expected files and folders, got a link or device"):
        unpack(name, data)
    assert {path.name for path in (tmp_path / "archives").iterdir()} == {"lock"}


def encrypted():
    """Return a zip whose member is marked as encrypted."""
    data = bytearray(packed({"model.onnx": b"graph"}))
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("m.zip", b"", "not a zip"),
        ("m.zip", b"x" * 1000, "not a zip"),
        ("m.tar", b"", "empty"),
        ("m.tar", b"x" * 1000, "."),
        ("m.tgz", b"x" * 1000, "gzip"),
        ("m.tgz", packed(FILES, ".tgz")[:-9], "end-of-stream"),
        ("m.tar", packed(FILES, ".tar")[:2600], "unexpected end"),
        ("m.zip", packed(FILES).replace(b"labels", b"tables", 1), "differ"),
        ("m.zip", encrypted(), "encrypted"),
        ("m.tar", packed({"a": b"", "./a": b""}, ".tar"), "once"),
        ("m.tar", packed({"a": b"", "a/b": b""}, ".tar"), "."),
    ],
)
def test_a_damaged_archive_is_an_error_with_its_name(tmp_path, unpack, name, data, reason):
    with pytest.raises(LoadError, match=rf"^cannot unpack {name}: .*{reason}") as caught:
        unpack(name, data)
    assert str(tmp_path) not in str(caught.value)


def test_any_damage_is_an_error_or_nothing(tmp_path):
    """Damaged at random, an archive is read or refused, and raises nothing else."""
    generator = random.Random(0)
    for suffix in SUFFIXES:
        intact = packed(FILES, suffix)
        for _ in range(100):
            data = bytearray(intact)
            for _ in range(generator.randrange(1, 4)):
                data[generator.randrange(len(data))] = generator.randrange(256)
            with suppress(LoadError):
                read_archive(f"m{suffix}", bytes(data), 20_000)


BOMB = {"model.onnx": bytes(80 << 20)}


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_a_bomb_is_refused_at_a_multiple_of_its_size(tmp_path, unpack, suffix):
    data = packed(BOMB, suffix)
    assert len(data) < 400_000
    with pytest.raises(LoadError, match="67108864 bytes, 100 times the archive's size, got more"):
        unpack(f"m{suffix}", data)
    assert {path.name for path in (tmp_path / "archives").iterdir()} == {"lock"}


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_size_and_number_of_files_are_limited(monkeypatch, unpack, suffix):
    data = packed(FILES, suffix)
    with pytest.raises(LoadError, match="at most 5004 bytes, got more"):
        read_archive(f"m{suffix}", data, 5004)
    monkeypatch.setattr(model_archives, "MAX_MEMBERS", 2)
    with pytest.raises(LoadError, match="at most 2 files and folders, got more"):
        unpack(f"m{suffix}", data)


def test_a_table_of_contents_is_refused_before_it_is_read():
    data = packed({f"{number}{'x' * 60_000}": b"" for number in range(150)})
    with pytest.raises(LoadError, match="at most 10000 files"):
        read_archive("m.zip", data, 1000)


def test_a_long_header_is_refused_before_it_fills_the_memory():
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    with pytest.raises(LoadError, match="at most 100000 bytes"):
        read_archive("m.tar", header.tobuf(tarfile.GNU_FORMAT) + bytes(200_000), 100_000)


def test_a_content_is_unpacked_once(tmp_path):
    path = tmp_path / "m.zip"
    path.write_bytes(packed(FILES))
    folder = UnpackedArchives(tmp_path / "archives").unpack(path)
    (folder / "mark").touch()
    path.write_bytes(packed(FILES))  # the same again
    again = UnpackedArchives(tmp_path / "archives")
    assert again.unpack(path) == folder
    assert (folder / "mark").exists()
    path.write_bytes(packed({"model.onnx": b"other"}))
    assert contents(again.unpack(path)) == {"model.onnx": b"other"}


def test_what_no_process_uses_is_removed(tmp_path):
    path = tmp_path / "m.zip"
    path.write_bytes(packed(FILES))
    first, second = (UnpackedArchives(tmp_path / "archives") for _ in range(2))
    second.remove_unused()  # there is no folder yet
    old = first.unpack(path)
    assert second.unpack(path) == old
    path.write_bytes(packed({"model.onnx": b"other"}))
    new = first.unpack(path)
    first.remove_unused()
    assert old.exists()  # in use by the second
    second.unpack(path)
    second.remove_unused()
    assert not old.exists()
    assert new.exists()


def test_folders_of_processes_that_died_are_removed(tmp_path):
    path = tmp_path / "m.zip"
    path.write_bytes(packed(FILES))
    code = (
        "import sys; from pathlib import Path;"
        "from quadriga.engine.models.model_archives import UnpackedArchives;"
        "UnpackedArchives(Path(sys.argv[1])).unpack(Path(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "archives"), str(path)], check=True)
    (tmp_path / "archives" / ".killed").mkdir()
    assert len(list((tmp_path / "archives").glob("*"))) == 3
    UnpackedArchives(tmp_path / "archives").remove_unused()
    assert [path.name for path in (tmp_path / "archives").iterdir()] == ["lock"]


def test_several_unpack_the_same_at_once(tmp_path):
    path = tmp_path / "m.zip"
    path.write_bytes(packed({f"{number}.bin": bytes(10_000) for number in range(100)}))
    archives = [UnpackedArchives(tmp_path / "archives") for _ in range(4)]
    folders = set()
    at_once([lambda archive=archive: folders.add(archive.unpack(path)) for archive in archives])
    (folder,) = folders
    assert len(contents(folder)) == 100
    assert {path.name for path in (tmp_path / "archives").iterdir()} == {"lock", folder.name}


def test_an_archive_that_changes_meanwhile_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "m.zip"
    path.write_bytes(packed(FILES))
    members = model_archives._members

    def changing(file, name, budget):
        yield from members(file, name, budget)
        with path.open("ab") as out:
            out.write(b"more")

    monkeypatch.setattr(model_archives, "_members", changing)
    archives = UnpackedArchives(tmp_path / "archives")
    with pytest.raises(LoadError, match="changed while it was read"):
        archives.unpack(path)
    assert [path.name for path in (tmp_path / "archives").iterdir()] == ["lock"]
