"""Makes a backup of a store, also of one that a server writes.

The order makes it whole: first the journal, then the database, then the images. What was acknowledged before the start is
in the journal's copy, or had been moved into the database before that was copied; and an image is stored before the record
that names it. While a backup is made, the writer removes no segment of the journal, so that what the database's copy has
of each segment is known.
"""

import os
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from quadriga.store.backup.contents import (
    DATABASE,
    FILES,
    IMAGE_LIST,
    JOURNAL,
    BackupDescription,
    describe_files,
    kept_files,
    write_description,
)
from quadriga.store.backup.places import BackupPlace, new_name
from quadriga.store.blobs.interface import Blobs
from quadriga.store.database import database
from quadriga.store.database.sqlite import database_path, sqlite_url
from quadriga.store.journal import journal
from quadriga.store.records.errors import StoreError
from quadriga.store.records.records import timestamp_text

OnProgress = Callable[[str], None]
"""Called with what is done, such as `images: 1,200`."""

_OF_THIS_MACHINE = "worker_number"


class BackedUp(NamedTuple):
    """A backup that was made."""

    name: str
    description: BackupDescription
    new_images: int
    """Images that no earlier backup of the place had."""


def make_backup(
    data: Path,
    database_url: str,
    blobs: Blobs,
    place: BackupPlace,
    *,
    has_images: bool = True,
    has_database: bool = True,
    report: OnProgress = lambda _: None,
) -> BackedUp:
    """Make a backup of all that a server stores.

    Args:
        data: Its data folder.
        database_url: SQLAlchemy URL of its database. One that is not SQLite is left out: its own tools back it up.
        blobs: Its images.
        place: Where backups are.
        has_images: Whether images are copied; without, a backup needs the place where they are.
        has_database: Whether the database is copied; without, a copy of it has to be made after the backup.
        report: See `OnProgress`.

    Raises:
        StoreError: Another backup into the place is being made, or the store cannot be read.
        OSError: The backup cannot be written, as on a full disk.
    """
    if not data.is_dir():
        raise StoreError(f"expected the data folder of a server, got {data}")
    has_database = has_database and database_path(database_url) is not None
    begun = datetime.now(UTC)
    name = new_name(begun.strftime("%Y%m%dT%H%M%SZ"), place.names())
    with place.making(name) as backup:
        if backup.resolve().is_relative_to(data.resolve()):
            raise StoreError(f"expected a place outside of the data folder {data} for backups")
        with journal.hold_segments(data / JOURNAL):
            segments = _copy_journal(data / JOURNAL, backup / JOURNAL)
            report("journal")
            if has_database:
                _copy_database(database_url, backup / DATABASE)
            revision, inferences = _summary(backup / DATABASE)
            journaled = _trim_journal(data / JOURNAL, backup, segments)
        report("database")
        _copy_files(data, backup / FILES)
        copied = new = missing = size_bytes = unfound = 0
        if has_images:
            copied, new, missing, size_bytes = _copy_images(blobs, place.images, backup, report)
            unfound = _count_unfound(backup)
        description = BackupDescription(
            created=timestamp_text(int(begun.timestamp() * 1000)),
            version=version("quadriga"),
            revision=revision,
            inferences=inferences,
            journaled=journaled,
            images=copied,
            image_bytes=size_bytes,
            missing_images=missing,
            unfound_images=unfound,
            has_images=has_images,
            has_database=has_database,
            host=socket.gethostname(),
            folder=data.resolve().name,
            files=describe_files(backup),
        )
        write_description(backup, description)
    return BackedUp(name, description, new)


def _copy_journal(source: Path, target: Path) -> list[str]:
    """Copy the segments up to their last whole frame, and the journal's id; return the names of the segments."""
    target.mkdir()
    names = []
    for path in journal.segment_paths(source):
        end = 0
        for _, _, frame_end in journal.read_frames(path):
            end = frame_end
        with suppress(FileNotFoundError):  # moved into the database just now, and removed
            shutil.copyfile(path, target / path.name)
            os.truncate(target / path.name, end)
            names.append(path.name)
    with suppress(FileNotFoundError):
        shutil.copyfile(source / "id", target / "id")
    return names


def _trim_journal(source: Path, backup: Path, names: list[str]) -> int:
    """Remove the segments that the database's copy has as a whole; return how many frames it may not have."""
    offsets: dict[str, int] = {}
    id_file = backup / JOURNAL / "id"
    if id_file.exists() and (backup / DATABASE).exists():
        url = sqlite_url(backup / DATABASE)
        with database.writer_engine(url) as engine, engine.connect() as connection:
            offsets = database.journal_offsets(connection, id_file.read_text())
    frames = 0
    for name in names:
        path = backup / JOURNAL / name
        is_gone = name not in offsets and not (source / name).exists()
        if is_gone or offsets.get(name, -1) >= path.stat().st_size:
            path.unlink()  # removed as this backup began, or in the database's copy as a whole
            continue
        frames += sum(1 for _ in journal.read_frames(path, offsets.get(name, 0)))
    return frames


def _copy_database(url: str, target: Path) -> None:
    """Copy the file of SQLite; none is written where there is none yet."""
    path = database_path(url)
    if path is None or not path.exists():
        return
    _copy_sqlite(path, target)
    with closing(sqlite3.connect(target)) as connection:
        with connection:
            if _has_table(connection, _OF_THIS_MACHINE):  # as all but the oldest have
                # The restored server holds its own.
                connection.execute(f"DELETE FROM {_OF_THIS_MACHINE}")
        connection.execute("PRAGMA journal_mode=DELETE")  # so that it is one file


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    statement = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return connection.execute(statement, (name,)).fetchone() is not None


def _copy_sqlite(source: Path, target: Path) -> None:
    try:
        with (
            closing(sqlite3.connect(_read_only(source), uri=True, timeout=60)) as reading,
            closing(sqlite3.connect(target)) as writing,
        ):
            reading.backup(writing)  # in one read transaction, beside which the writer goes on
    except sqlite3.Error as error:
        raise StoreError(f"cannot copy the database {source}: {error}") from error


def _read_only(path: Path) -> str:
    """Return the URI by which SQLite opens a file to read it, whatever characters its path has."""
    return f"{path.absolute().as_uri()}?mode=ro"


def _summary(path: Path) -> tuple[str, int]:
    """Return the revision of a copied database, and its number of inferences."""
    if not path.exists():
        return "", 0
    with closing(sqlite3.connect(path)) as connection:
        if not _has_table(connection, "alembic_version"):
            raise StoreError(f"expected a database of Quadriga, got {path}")
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        (inferences,) = connection.execute("SELECT count(*) FROM inference").fetchone()
    return str(revision), int(inferences)


def _copy_files(data: Path, target: Path) -> None:
    for path in kept_files(data):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # removed since
            shutil.copyfile(data / path, target / path)
            os.chmod(target / path, 0o600)  # noqa: PTH101 - it may hold secrets, such as the key of URLs


def _copy_images(
    blobs: Blobs, images: Blobs, backup: Path, report: OnProgress
) -> tuple[int, int, int, int]:
    """Copy the images that the place has not yet.

    Returns:
        Number of images of the backup, of those that were copied now, of those that were removed or damaged before, and the
        size of the first in bytes.
    """
    present = {entry.key for entry in images.entries()}
    copied = new = missing = size_bytes = 0
    with (backup / IMAGE_LIST).open("w") as listed:
        for entry in blobs.entries():
            if entry.key not in present:
                content = blobs.get(entry.key)
                if content is None:  # removed since, or damaged
                    missing += 1
                    continue
                images.put(content)
                new += 1
            copied += 1
            size_bytes += entry.size
            listed.write(f"{entry.key}\n")
            if copied % 1000 == 0:
                report(f"images: {copied:,}")
    return copied, new, missing, size_bytes


def _count_unfound(backup: Path) -> int:
    """Count the images that inferences of a copied database have, and that are not among those of the backup."""
    if not (backup / DATABASE).exists():
        return 0
    with (
        closing(sqlite3.connect(_read_only(backup / DATABASE), uri=True)) as connection,
        (backup / IMAGE_LIST).open() as listed,
    ):
        connection.execute("CREATE TEMP TABLE listed (key TEXT PRIMARY KEY) WITHOUT ROWID")
        connection.executemany(
            "INSERT OR IGNORE INTO listed VALUES (?)", ((line.rstrip("\n"),) for line in listed)
        )
        (count,) = connection.execute(
            "SELECT count(DISTINCT input_hash) FROM inference WHERE input_kept = 1 AND input_hash IS NOT NULL"
            " AND NOT EXISTS (SELECT 1 FROM listed WHERE key = input_hash)"
        ).fetchone()
    return int(count)
