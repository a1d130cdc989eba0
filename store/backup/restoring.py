"""Restores a backup into an empty folder, and an empty database."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from quadriga.store import database
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
from quadriga.store.backup.shared_tables import copy_shared_tables
from quadriga.store.blobs.interface import Blobs
from quadriga.store.errors import NotFoundError, StoreError
from quadriga.store.replication.copying import copy_store


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
    report: Callable[[str], None] = lambda _: None,
) -> Restored:
    """Restore a backup; all of its files are checked before anything is written.

    Args:
        place: Where backups are.
        name: Name of the backup.
        data: Data folder, empty or not there yet.
        database_url: SQLAlchemy URL of a database without inferences; SQLite's file must not exist.
        blobs: Where images go.
        report: Called with what is done.

    Raises:
        StoreError: The backup is damaged or of a newer version, or what is written to is not empty.
    """
    with place.reading(name) as backup:
        description = read_description(backup)
        _check_empty(data, database_url)
        check_files(backup, description)
        report("the files of the backup are as they were written")
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in description.files:
            folder, _, rest = path.partition("/")
            if rest and folder in {FILES, JOURNAL}:
                target = data / rest if folder == FILES else data / JOURNAL / rest
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.copyfile(backup / path, target)
                target.chmod(0o600)
        missing = 0
        if description.has_images:
            missing = _restore_images(backup, place.images, blobs, report)
        if DATABASE in description.files:
            _restore_database(backup / DATABASE, database_url, report)
    return Restored(name, description, missing)


def _check_empty(data: Path, url: str) -> None:
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise StoreError(f"expected {data} to be empty, or not to be there")
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        if parsed.database and Path(parsed.database).exists():
            raise StoreError(f"expected no database yet, got {parsed.database}")
        return
    database.make_tables(url)
    with database.writer_engine(url) as engine, engine.connect() as connection:
        first = database.execute(connection, "SELECT seq FROM inference LIMIT 1").scalar()
    if first is not None:
        raise StoreError("expected a database without inferences: it has some")


def _restore_images(
    backup: Path, images: Blobs, blobs: Blobs, report: Callable[[str], None]
) -> int:
    missing = 0
    for number, key in enumerate(_keys(backup / IMAGE_LIST), 1):
        content = images.get(key)
        if content is None:
            missing += 1
        else:
            blobs.put(content)
        if number % 1000 == 0:
            report(f"images: {number:,}")
    return missing


def _keys(path: Path) -> Iterator[str]:
    with path.open() as lines:
        for line in lines:
            yield line.rstrip("\n")


def _restore_database(source: Path, url: str, report: Callable[[str], None]) -> None:
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database:
            raise NotFoundError("expected the path of a database, got a database in memory")
        target = Path(parsed.database)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o600)
        return
    # The copy in the backup may be of an earlier revision: it is brought up to date aside of it.
    current = source.with_name(f".{source.name}.current")
    shutil.copyfile(source, current)
    try:
        local = f"sqlite:///{current.absolute()}"
        database.migrate(local)
        copy_store(local, url, report=lambda progress: report(str(progress)))
        copy_shared_tables(local, url)
    finally:
        for path in current.parent.glob(f"{current.name}*"):
            path.unlink()
