"""Where backups are: a folder, or an object store. A backup is filled in a local folder; it counts once its description is there."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Protocol

from quadriga.store.backup.contents import DESCRIPTION
from quadriga.store.blobs.files import SCHEMES, FileBlobs, open_blobs
from quadriga.store.blobs.interface import Blobs
from quadriga.store.records.disk import sync_path, try_lock
from quadriga.store.records.errors import NotFoundError, NotReadyError, StoreError

IMAGES = "images"
_UNFINISHED = ".part"
_NAME = re.compile(r"\d{8}T\d{6}Z(-\d+)?", re.ASCII)


class BackupPlace(Protocol):
    """A place with backups, and with the images of all of them."""

    images: Blobs

    def names(self) -> list[str]:
        """Return the names of the finished backups, the oldest first."""

    def making(self, name: str) -> AbstractContextManager[Path]:
        """Return a context that yields a local folder to fill, and keeps it as a backup unless it fails.

        Raises:
            StoreError: Another backup is being made there.
        """

    def reading(self, name: str) -> AbstractContextManager[Path]:
        """Return a context that yields a local folder with the files of a backup."""


def open_place(location: str) -> BackupPlace:
    """Open a folder, or a URL of s3, gs or az, for backups."""
    if location.partition("://")[0] in SCHEMES and "://" in location:
        return ObjectPlace(location.rstrip("/"))
    return FolderPlace(Path(location))


def find_backup(location: str) -> tuple[BackupPlace, str]:
    """Return the place and the name of a backup: of the location itself, or of the newest one there.

    Raises:
        NotFoundError: There is none that is finished.
    """
    parent, _, last = location.rstrip("/").rpartition("/")
    if _NAME.fullmatch(last):
        place = open_place(parent or ("/" if location.startswith("/") else "."))
        if last in place.names():
            return place, last
        raise NotFoundError(f"expected a backup at {location}, found none that is finished")
    place = open_place(location)
    names = place.names()
    if not names:
        raise NotFoundError(f"expected a backup in {location}, found none that is finished")
    return place, names[-1]


def new_name(begun: str, taken: list[str]) -> str:
    """Return the name of a backup that was begun at a time such as `20260131T120000Z`, which no other one has."""
    name, number = begun, 1
    while name in taken:
        number += 1
        name = f"{begun}-{number}"
    return name


def in_order(names: list[str]) -> list[str]:
    """Return the names of backups among others, the oldest first."""

    def order(name: str) -> tuple[str, int]:
        time, _, number = name.partition("-")
        return time, int(number or 1)

    return sorted((name for name in names if _NAME.fullmatch(name)), key=order)


class FolderPlace:
    """Backups in a folder, which is made if it is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images: Blobs = FileBlobs(folder / IMAGES)

    def names(self) -> list[str]:
        """See `BackupPlace`."""
        return in_order([path.parent.name for path in self.folder.glob(f"*/{DESCRIPTION}")])

    @contextmanager
    def making(self, name: str) -> Iterator[Path]:
        """See `BackupPlace`."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = try_lock(self.folder / ".lock")
        if lock is None:
            raise StoreError(f"another backup into {self.folder} is being made")
        with closing(lock):
            for leftover in self.folder.glob(f"*{_UNFINISHED}"):
                shutil.rmtree(leftover)
            unfinished = self.folder / f"{name}{_UNFINISHED}"
            unfinished.mkdir(mode=0o700)
            try:
                yield unfinished
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
            for path in unfinished.rglob("*"):
                sync_path(path)
            unfinished.rename(self.folder / name)
            sync_path(self.folder)

    @contextmanager
    def reading(self, name: str) -> Iterator[Path]:
        """See `BackupPlace`."""
        yield self.folder / name


class ObjectPlace:
    """Backups in an object store; a temporary folder of this machine has room for all but the images."""

    def __init__(self, url: str) -> None:
        self._url = url
        # This says what is missing if obstore is not installed.
        self.images: Blobs = open_blobs(f"{url}/{IMAGES}")
        from quadriga.store.blobs.objects import connect  # noqa: PLC0415 - optional dependency

        self._store = connect(url)

    def names(self) -> list[str]:
        """See `BackupPlace`."""
        import obstore  # noqa: PLC0415 - optional dependency

        with self._translated():
            folders = obstore.list_with_delimiter(self._store)["common_prefixes"]
            names = in_order([folder.rstrip("/").rpartition("/")[2] for folder in folders])
            return [name for name in names if self._is_there(f"{name}/{DESCRIPTION}")]

    def _is_there(self, path: str) -> bool:
        import obstore  # noqa: PLC0415 - optional dependency

        try:
            obstore.head(self._store, path)
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def making(self, name: str) -> Iterator[Path]:
        """See `BackupPlace`."""
        import obstore  # noqa: PLC0415 - optional dependency

        with tempfile.TemporaryDirectory(prefix="quadriga-backup-") as folder:
            yield Path(folder)
            paths = [path for path in Path(folder).rglob("*") if path.is_file()]
            paths.sort(key=lambda path: path.name == DESCRIPTION)  # the description comes last
            with self._translated():
                for path in paths:
                    place = path.relative_to(folder).as_posix()
                    obstore.put(self._store, f"{name}/{place}", path)

    @contextmanager
    def reading(self, name: str) -> Iterator[Path]:
        """See `BackupPlace`."""
        import obstore  # noqa: PLC0415 - optional dependency

        with tempfile.TemporaryDirectory(prefix="quadriga-backup-") as folder:
            with self._translated():
                for page in obstore.list(self._store, prefix=name):
                    for entry in page:
                        place = entry["path"].partition(f"{name}/")[2]
                        target = (Path(folder) / place).resolve()
                        if not place or not target.is_relative_to(Path(folder).resolve()):
                            raise StoreError(f"expected paths within the backup, got {place[:200]!r}")  # fmt: skip
                        target.parent.mkdir(parents=True, exist_ok=True)
                        with target.open("wb") as file:
                            for chunk in obstore.get(self._store, entry["path"]).stream():
                                file.write(chunk)
            yield Path(folder)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise a `NotReadyError` where the object store fails."""
        from obstore.exceptions import BaseError  # noqa: PLC0415 - optional dependency

        try:
            yield
        except BaseError as error:
            raise NotReadyError(f"the object store {self._url} failed: {type(error).__name__}") from error  # fmt: skip
