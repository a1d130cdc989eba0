"""Files of a dataset, in a folder or a zip, read by their names alone: nothing is unpacked."""

import stat
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast
from zipfile import BadZipFile, ZipFile

from quadriga.store.records.errors import QueryError

MAX_FILE_BYTES = 2 << 30
"""Maximum size of an image, or of a file that is read whole: what is larger is refused before it is read."""

MAX_LABEL_BYTES = 64 << 20
"""Maximum size of the labels of one image."""

_READ_ERRORS = (KeyError, BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error)


class DatasetFiles:
    """Files of a folder or a zip, which may be read from several threads; a zip is closed with the last reference.

    Args:
        names: Names of the files, relative, with `/`; no other can be read.
        place: The folder or the zip.
        archive: The opened zip; None for a folder.
    """

    def __init__(self, names: list[str], place: Path, archive: ZipFile | None = None) -> None:
        self.names = sorted(names)
        self.place = place
        self._root = place if archive else place.resolve()
        self._known = frozenset(names)
        self._archive = archive

        self._by_stem = {name.rpartition(".")[0]: name for name in self.names}

    def find(self, name: str) -> str | None:
        """Return the name of a file, given with or without its ending; None if there is none."""
        return name if name in self._known else self._by_stem.get(name)

    def __contains__(self, name: str) -> bool:
        """Check whether there is a file of a name."""
        return name in self._known

    def read(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Read a file.

        Raises:
            OSError: There is no such file, it cannot be read, or it is too large.
        """
        with self.open(name, max_bytes) as file:
            try:
                return file.read()
            except _READ_ERRORS as error:
                raise OSError(f"cannot read {name} of {self.place.name}: {error}") from error

    def open(self, name: str, max_bytes: int | None = None) -> BinaryIO:
        """Open a file; errors as of `read`. Reading a damaged zip may raise `BadZipFile` or `zlib.error`."""
        path = self.place / name
        if name in self._known and self._archive is None:
            path = path.resolve()  # it may have become a link since it was listed
        if name not in self._known or not path.is_relative_to(self._root):
            raise FileNotFoundError(
                f"expected {name[:200]} in {self.place.name}, got none, or a link that leads out of it"
            )
        size = self.size(name)
        if max_bytes is not None and size > max_bytes:
            raise OSError(f"expected {name} to have at most {max_bytes} bytes, got {size}")
        if self._archive is None:
            return path.open("rb")
        try:
            return cast("BinaryIO", self._archive.open(name))
        except _READ_ERRORS as error:
            raise OSError(f"cannot read {name} of {self.place.name}: {error}") from error

    def size(self, name: str) -> int:
        """Return the size of a file, unpacked, bytes."""
        if self._archive is None:
            return (self.place / name).stat().st_size
        return self._archive.getinfo(name).file_size


def open_dataset_files(location: Path) -> DatasetFiles:
    """List the files of a dataset, but no links that lead out of it: whoever made it may not be who reads it.

    Args:
        location: A folder or a zip.

    Raises:
        QueryError: It is neither.
        OSError: It cannot be read.
    """
    if location.is_dir():
        root = location.resolve()
        files = (path for path in location.rglob("*") if path.is_file())
        names = [
            path.relative_to(location).as_posix()
            for path in files
            if path.resolve().is_relative_to(root)
        ]
        return DatasetFiles(names, location)
    try:
        archive = ZipFile(location)
    except (BadZipFile, zlib.error) as error:
        raise QueryError(
            f"cannot open {location.name}, which is neither a folder nor a zip: {error}"
        ) from error
    names = [
        info.filename
        for info in archive.infolist()
        if not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16)
    ]
    return DatasetFiles([*dict.fromkeys(names)], location, archive)


def nearest_to_root(files: DatasetFiles, is_match: Callable[[str], bool]) -> list[str]:
    """Return the files with matching names, without their folders, that are nearest to the root."""
    paths = [PurePosixPath(name) for name in files.names if is_match(PurePosixPath(name).name)]
    depth = min((len(path.parts) for path in paths), default=0)
    return [str(path) for path in paths if len(path.parts) == depth]
