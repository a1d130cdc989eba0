"""Restores a backup into an empty folder, with its database where it has one; without it, beside a database that is there."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from quadriga.store.backup.contents import (
    DATABASE,
    FILES,
    IMAGE_LIST,
    JOURNAL,
    BackupDescription,
    check_files,
    read_description,
)
from quadriga.store.backup.places import BackupPlace
from quadriga.store.blobs.interface import Blobs
from quadriga.store.database.sqlite import database_path
from quadriga.store.records.errors import StoreError


class Restored(NamedTuple):
    """What was restored."""

    name: str
    description: BackupDescription
    missing_images: int
    """Images of the backup whose bytes its place has not, or not as they were."""


def restore_backup(
    place: BackupPlace,
    name: str,
    data: Path,
    database_url: str,
    blobs: Blobs,
    *,
    has_database: bool = True,
    report: Callable[[str], None] = lambda _: None,
) -> Restored:
    """Restore a backup; all of its files are checked before anything is written.

    Args:
        place: Where backups are.
        name: Name of the backup.
        data: Data folder, empty or not there yet.
        database_url: SQLAlchemy URL of a file of SQLite that does not exist. If the backup has no database, it may be any,
            and is left as it is: what the journal has beside it, the server moves.
        blobs: Where images go.
        has_database: Whether the database of the backup is restored.
        report: Called with what is done.

    Raises:
        StoreError: The backup is damaged or of a newer version, what is written to is not empty, or its database is to go into
            another one than SQLite.
    """
    with place.reading(name) as backup:
        description = read_description(backup)
        has_database = has_database and description.has_database
        _check_folder(data)
        if has_database:
            _check_database(database_url)
        check_files(backup, description)
        report("the files of the backup are as they were written")
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        _restore_files(backup, description.files, data)
        has_images = description.has_images
        missing = _restore_images(backup, place.images, blobs, report) if has_images else 0
        if has_database and DATABASE in description.files:
            _restore_database(backup / DATABASE, database_url)
    return Restored(name, description, missing)


def _check_folder(data: Path) -> None:
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise StoreError(f"expected {data} to be empty, or not to be there")


def _check_database(url: str) -> None:
    path = database_path(url)
    if path is None:
        raise StoreError(
            "expected a file of SQLite for the database of this backup, got another database: restore it without --database, "
            "and copy it by `quadriga store copy`; or use --no-database beside one that pg_restore has made"
        )
    if path.exists():
        raise StoreError(f"expected no database yet, got {path}")


def _restore_files(backup: Path, names: Iterable[str], data: Path) -> None:
    """Copy the files of a backup, but for its database, to where they were in the data folder."""
    for name in names:
        folder, _, rest = name.partition("/")
        if rest and folder in {FILES, JOURNAL}:
            target = data / rest if folder == FILES else data / JOURNAL / rest
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(backup / name, target)
            target.chmod(0o600)


def _restore_images(
    backup: Path, images: Blobs, blobs: Blobs, report: Callable[[str], None]
) -> int:
    missing = 0
    with (backup / IMAGE_LIST).open() as lines:
        for number, line in enumerate(lines, 1):
            content = images.get(line.rstrip("\n"))
            if content is None:
                missing += 1
            else:
                blobs.put(content)
            if number % 1000 == 0:
                report(f"images: {number:,}")
    return missing


def _restore_database(source: Path, url: str) -> None:
    if target := database_path(url):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o600)
