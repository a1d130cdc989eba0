"""Images for bulk inference: a folder or a zip below the folder that the operator allows.

Symbolic links are followed only to files within that folder, and a zip is read in place, never unpacked.
"""

import os
import stat
import zlib
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_LZMA, ZIP_STORED, BadZipFile, ZipFile

import msgspec

from quadriga.quoting import quoted
from quadriga.store.jobs.jobs import EndWebhook
from quadriga.store.query.request import decode_body
from quadriga.store.records import metadata
from quadriga.store.records.errors import QueryError

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif"}
MAX_IMAGES = 1_000_000
"""Maximum number of images of a job."""

OWN_KEYS = ("job_id", "path")
"""Metadata that a job adds to each inference."""

_UNREADABLE = (
    BadZipFile,
    zlib.error,
    KeyError,
    EOFError,
    RuntimeError,  # of a password
    ValueError,
)
"""Exceptions of reading a member of a zip."""

_UNBOUNDED = {ZIP_BZIP2: "bzip2", ZIP_LZMA: "LZMA"}
"""Compressions that are known and not read: a part of a member may become gigabytes, whatever is asked for."""


class BulkParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model to run, and the images to run it on."""

    model: str
    source: str
    """Path of a folder or a zip below the folder of the setting `bulk_folder`."""
    version: str | None = None
    """Version of the model; None for the one that serves requests."""
    parameters: dict[str, Any] = {}
    """Parameters of each request."""
    metadata: dict[str, Any] = {}
    """Metadata of each inference."""
    webhook: EndWebhook = msgspec.UNSET
    """URL that is called when the job has ended."""


def decode_parameters(body: bytes, folder: str) -> BulkParameters:
    """Parse and check the parameters of a job.

    Raises:
        QueryError: They cannot be understood, or there is no such source.
        MetadataError: The metadata breaks a rule.
    """
    parameters = decode_body(body, BulkParameters)
    metadata.check(parameters.metadata | dict.fromkeys(OWN_KEYS, ""))
    taken = next((key for key in OWN_KEYS if key in parameters.metadata), None)
    if taken is not None:
        raise QueryError(f"expected metadata without {taken}, which the job adds")
    if "metadata" in parameters.parameters:
        raise QueryError("expected parameters without metadata, which stands beside them")
    resolve_source(folder, parameters.source)
    return parameters


def resolve_source(folder: str, source: str) -> Path:
    """Return the path of a source.

    Raises:
        QueryError: No folder is allowed, or the source is not below it.
    """
    if not folder:
        raise QueryError("bulk inference is off: the setting bulk_folder names no folder")
    root = Path(folder).resolve()
    try:
        path = (root / source).resolve()
        is_source = path.is_dir() or (path.is_file() and path.suffix.lower() == ".zip")
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, or a loop of links
        is_source = False
    if not is_source or not path.is_relative_to(root):
        raise QueryError(f"folder or zip not found below the bulk_folder: {quoted(source, 200)}")
    return path


class BulkSource:
    """The images of a folder or a zip; safe to use from several threads.

    Args:
        folder: The folder that the operator allows.
        source: Path below it.
        max_bytes: Maximum size of an image.

    Raises:
        QueryError: There is no such source, it has no images or too many, or the zip cannot be read.
    """

    def __init__(self, folder: str, source: str, max_bytes: int) -> None:
        self._root = Path(folder).resolve()
        self._path = resolve_source(folder, source)
        self._max_bytes = max_bytes
        self._archive = None if self._path.is_dir() else _open_archive(self._path)
        names = _files_below(self._path) if self._archive is None else self._archive.namelist()
        self.paths = sorted({name for name in names if _is_image(name)})
        """Paths of the images within the source."""
        if not 0 < len(self.paths) <= MAX_IMAGES:
            expected = f"1 to {MAX_IMAGES} images ({', '.join(sorted(IMAGE_SUFFIXES))})"
            raise QueryError(f"expected {expected} in {quoted(source, 200)}, got {len(self.paths)}")

    def read(self, path: str) -> bytes:
        """Return the bytes of an image.

        Raises:
            OSError: It cannot be read, is too large, or leads out of the folder.
        """
        if self._archive is None:
            data = self._read_file(path)
        else:
            try:
                _check_compression(self._archive.getinfo(path).compress_type)
                with self._archive.open(path) as member:
                    data = member.read(self._max_bytes + 1)
            except _UNREADABLE as error:
                raise OSError(f"cannot read it from the zip: {error}") from error
        if len(data) > self._max_bytes:
            raise OSError(f"expected an image of at most {self._max_bytes} bytes, got more")
        return data

    def close(self) -> None:
        """Close the zip."""
        if self._archive is not None:
            self._archive.close()

    def _read_file(self, path: str) -> bytes:
        try:
            file_path = (self._path / path).resolve()
        except RuntimeError as error:  # Python 3.13 finds it as the file is opened
            raise OSError("it is a loop of symbolic links") from error
        if not file_path.is_relative_to(self._root):
            raise OSError("it leads out of the bulk_folder")
        # A pipe would block, and the file may have become a link since it was resolved.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(file_path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError("it is no regular file")
            return file.read(self._max_bytes + 1)


def _files_below(folder: Path) -> list[str]:
    names = []
    for parent, _, files in os.walk(folder):  # follows no links to folders
        relative = Path(parent).relative_to(folder)
        # A name that is no Unicode is not found later, and so counts as a failure under this name.
        names += [(relative / name).as_posix().encode(errors="replace").decode() for name in files]
        if len(names) > 10 * MAX_IMAGES:
            raise QueryError(f"expected at most {MAX_IMAGES} images, got {len(names)} files")
    return names


def _open_archive(path: Path) -> ZipFile:
    try:
        return ZipFile(path)
    except (BadZipFile, ValueError) as error:
        raise QueryError(f"cannot read {path.name}: {error}") from error
    except OSError as error:
        raise QueryError(f"cannot read {path.name}: {error.strerror}") from error


def _check_compression(method: int) -> None:
    """Check that a member of a zip can be read in parts; raises OSError if not."""
    if method not in (ZIP_STORED, ZIP_DEFLATED):
        name = _UNBOUNDED.get(method, f"method {method}")
        raise OSError(f"expected it to be stored or deflated in the zip, got {name}")


def _is_image(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix.lower() in IMAGE_SUFFIXES and path.parts[0] != "__MACOSX"
