"""Archives of model folders: read without trusting what they say, and unpacked once for all workers.

An archive has regular files and folders with relative paths; anything else is refused. What it takes unpacked is
counted while it is read, whatever sizes it declares.
"""

import errno
import fcntl
import lzma
import os
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from gzip import GzipFile
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, cast

from blake3 import blake3

from quadriga.engine.models.runners.session import LoadError
from quadriga.quoting import quoted

SUFFIXES = (".zip", ".tar.gz", ".tgz", ".tar")
"""Ends of the names of archives, in any letter case."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk or a share of it that is full, which may have room again."""

MAX_BYTES = 32 << 30
"""Maximum size of an archive's content."""

MAX_MEMBERS = 10_000
"""Maximum number of files and folders in an archive."""

MAX_RATIO = 100
"""Maximum size of the content as a multiple of the archive's own size; 64 MiB are allowed whatever the ratio."""

_ALWAYS_ALLOWED_BYTES = 64 << 20
_MAX_DEPTH = 16  # names in a path
_MAX_DIRECTORY_BYTES = 8 << 20  # of the table of contents of a zip, which zipfile reads at once
_CHUNK_BYTES = 1 << 20
_SKIPPED = "__MACOSX"  # the folder in which macOS adds its own files to a zip
_UNREADABLE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,  # a compression that zipfile does not know
    ValueError,
)


_Member = tuple[PurePosixPath, Iterator[bytes]]
"""A file of an archive, and its chunks, which are read before the next file."""


class _Budget:
    """What may still be read from an archive."""

    def __init__(self, archive_bytes: int, max_bytes: int) -> None:
        allowed = max(archive_bytes * MAX_RATIO, _ALWAYS_ALLOWED_BYTES)
        self._max_bytes = min(max_bytes, allowed)
        self._reason = "" if allowed >= max_bytes else f", {MAX_RATIO} times the archive's size"
        self._bytes = self._members = 0

    def spend_bytes(self, count: int) -> None:
        self._bytes += count
        if self._bytes > self._max_bytes:
            limit = f"{self._max_bytes} bytes{self._reason}"
            raise LoadError(f"expected files of at most {limit}, got more")

    def spend_member(self) -> None:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise LoadError(f"expected at most {MAX_MEMBERS} files and folders, got more")


def archive_name(path: Path | PurePosixPath) -> str | None:
    """Return the name of an archive without its suffix; None if the name is not that of an archive."""
    lowered = path.name.lower()
    ends = (len(suffix) for suffix in SUFFIXES if lowered.endswith(suffix))
    return next((path.name[:-length] for length in ends), None)


def read_archive(name: str, content: bytes, max_bytes: int) -> dict[str, bytes]:
    """Return the files of an archive by their paths below the model's folder.

    Raises:
        LoadError: It cannot be read, has something else than files and folders, or is too large.
    """
    file, files = BytesIO(content), dict[str, bytes]()
    with _named_errors(name):
        for member, chunks in _members(file, name, _Budget(len(content), max_bytes)):
            path = str(member)
            if path in files:
                raise LoadError(f"expected each file once, got {quoted(path, 200)} twice")
            files[path] = b"".join(chunks)
        folder = _common_folder(map(PurePosixPath, files))
    return {path.removeprefix(f"{folder}/"): data for path, data in files.items()}


class UnpackedArchives:
    """Archives unpacked below a folder, each content once; safe to use from several processes.

    Args:
        directory: Folder of the unpacked archives, which may not exist yet.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._in_use: dict[str, int] = {}
        """Descriptors of unpacked folders, locked against removal, by the names of their archives."""

    def unpack(self, path: Path) -> Path:
        """Return the folder with the files of an archive, unpacked now unless its content is there already.

        The folder stays until the process ends, or unpacks another archive of the same name.

        Raises:
            LoadError: The archive cannot be unpacked.
        """
        with _named_errors(path.name), path.open("rb") as file:
            version = _file_version(file)
            digest = blake3()
            for chunk in _chunks(file):
                digest.update(chunk)
            folder = self._directory / digest.hexdigest()
            with self._lock():
                if not folder.is_dir():
                    self._write(file, path.name, folder)
                if _file_version(file) != version:
                    shutil.rmtree(folder, ignore_errors=True)
                    raise LoadError("it was changed while it was read: load it again")
                descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            previous, self._in_use[path.name] = self._in_use.get(path.name), descriptor
            if previous is not None:
                os.close(previous)
        return folder

    def remove_unused(self) -> None:
        """Remove the folders that no process uses."""
        if not self._directory.is_dir():
            return
        with self._lock():
            for folder in filter(Path.is_dir, self._directory.iterdir()):
                descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                except BlockingIOError:
                    pass  # in use
                finally:
                    os.close(descriptor)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Prevent other processes from writing and removing."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, file: IO[bytes], name: str, folder: Path) -> None:
        """Unpack into a temporary folder and rename it; after a loss of power it is complete or absent."""
        archive_bytes = os.fstat(file.fileno()).st_size
        temporary = Path(tempfile.mkdtemp(prefix=".", dir=self._directory))
        try:
            paths = []
            for path, chunks in _members(file, name, _Budget(archive_bytes, MAX_BYTES)):
                paths.append(path)
                target = temporary / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as out:
                    out.writelines(chunks)
                    out.flush()
                    os.fsync(out.fileno())
            (temporary / (_common_folder(paths) or "")).rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Raise all errors of reading an archive, and of writing its files, as a `LoadError` that names it."""
    try:
        yield
    except LoadError as error:
        raise LoadError(f"cannot unpack {name}: {error}") from error
    except FileExistsError as error:
        raise LoadError(f"cannot unpack {name}: expected each file once, got one twice") from error
    except OSError as error:
        raise LoadError(f"cannot unpack {name}: {error.strerror or error}") from error
    except (RuntimeError, *_UNREADABLE) as error:  # zipfile raises a RuntimeError for a password
        raise LoadError(f"cannot unpack {name}: {str(error) or 'it is incomplete'}") from error


def _members(file: IO[bytes], name: str, budget: _Budget) -> Iterator[_Member]:
    """Yield the files of an archive in order."""
    file.seek(0)
    if name.lower().endswith(".zip"):
        members = _zip_members(file, budget)
    else:
        stream = file if name.lower().endswith(".tar") else GzipFile(fileobj=file)
        members = _tar_members(_CountedStream(stream, budget))
    return (member for member in members if member[0].parts[0] != _SKIPPED)


def _zip_members(file: IO[bytes], budget: _Budget) -> Iterator[_Member]:
    with zipfile.ZipFile(_ShortReads(file)) as archive:
        for info in archive.infolist():
            budget.spend_member()
            path = _checked_path(info.filename)
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.is_dir() or path == PurePosixPath():
                continue
            if kind not in (0, stat.S_IFREG):
                raise _unexpected_kind(info.filename)
            with archive.open(info) as content:
                yield path, _chunks(_CountedStream(content, budget))


def _tar_members(stream: "_CountedStream") -> Iterator[_Member]:
    with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as archive:
        for info in archive:
            stream.budget.spend_member()
            path = _checked_path(info.name)
            if info.isdir():
                continue
            content = archive.extractfile(info) if info.isreg() and not info.issparse() else None
            if content is None or path == PurePosixPath():
                raise _unexpected_kind(info.name)
            yield path, _chunks(content)
    for _ in _chunks(stream):  # to the end, where gzip has its checksum
        pass


class _CountedStream:
    """A stream whose bytes are counted, so that long headers cannot pass the limit either."""

    def __init__(self, stream: IO[bytes] | GzipFile, budget: _Budget) -> None:
        self._stream = stream
        self.budget = budget

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self.budget.spend_bytes(len(data))
        return data


class _ShortReads:
    """A file that refuses long reads: zipfile reads the table of contents in one, and makes an object of each entry."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > _MAX_DIRECTORY_BYTES:
            raise LoadError(f"expected at most {MAX_MEMBERS} files and folders, got more")
        return self._file.read(size)


def _chunks(content: "IO[bytes] | _CountedStream") -> Iterator[bytes]:
    while chunk := content.read(_CHUNK_BYTES):
        yield chunk


def _checked_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    is_inside = not path.is_absolute() and ".." not in path.parts
    if not is_inside or "\\" in name or "\0" in name or len(path.parts) > _MAX_DEPTH:
        raise LoadError(
            f"expected relative paths of at most {_MAX_DEPTH} names inside the archive, got {quoted(name, 200)}"
        )
    return path


def _unexpected_kind(name: str) -> LoadError:
    return LoadError(f"expected files and folders, got a link or device: {quoted(name, 200)}")


def _common_folder(paths: Iterable[PurePosixPath]) -> str | None:
    """Return the folder that has all files, unless it is that of a version: then it is the model's folder."""
    tops = {path.parts[0] if len(path.parts) > 1 else "" for path in paths}
    top = tops.pop() if len(tops) == 1 else ""
    return None if not top or top.isdecimal() else top


def _file_version(file: IO[bytes]) -> tuple[int, int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
