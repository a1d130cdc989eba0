"""The files of a dataset, in a folder or in a zip."""

from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile

from monitor.evaluation.state import EvaluationError


class Files(NamedTuple):
    """Names with `/`, relative to the folder, in order; read from several threads."""

    names: list[str]
    place: Path
    archive: ZipFile | None = None

    def read(self, name: str) -> bytes:
        """Read one.

        Raises:
            OSError: It cannot be read.
        """
        if self.archive is None:
            return (self.place / name).read_bytes()
        try:
            return self.archive.read(name)
        except (KeyError, BadZipFile, EOFError) as error:
            raise OSError(f"expected {name} in {self.place.name}, got: {error}") from error


def open_files(place: Path) -> Files:
    """List the files of a dataset.

    Raises:
        EvaluationError: It is neither a folder nor a zip.
        OSError: It cannot be read.
    """
    if place.is_dir():
        found = (path.relative_to(place) for path in place.rglob("*") if path.is_file())
        return Files(sorted(path.as_posix() for path in found), place)
    try:
        archive = ZipFile(place)
    except BadZipFile as error:
        raise EvaluationError(
            f"expected {place.name} to be a folder or a zip, got: {error}"
        ) from error
    return Files(sorted(one for one in archive.namelist() if one[-1:] != "/"), place, archive)
