"""What a backup consists of, and its description, which is written last: without it a backup is none.

```
TARGET/
  images/             images of all backups by content, each once
  20260131T120000Z/   a backup
    backup.json       this description
    store.db          the database, if it is SQLite
    journal/          what was acknowledged and may not be in the database
    files/            everything else of the data folder
    images.txt        keys of its images
```
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
from blake3 import blake3

from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import StoreError

DESCRIPTION = "backup.json"
DATABASE = "store.db"
JOURNAL = "journal"
FILES = "files"
IMAGE_LIST = "images.txt"
FORM = 1
"""Form of a backup; a later one has another number."""

_LEFT_OUT = re.compile(
    r"store\.db.*|store\.json|journal|journal\..*|blobs|run|sizes|archives|clock\.json|worker-numbers\.json|keys\.json|clickhouse\.json|"
    r"logged-keys\.db.*|model-cache|served-models\.json|traffic\.json|\..*|.*\.lock"
)
"""Entries of a data folder that are elsewhere in a backup, of one machine alone, or made again."""


class BackupFile(msgspec.Struct, frozen=True):
    """A file of a backup."""

    bytes: int
    blake3: str


class BackupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a backup."""

    form: int = FORM
    created: str
    """Time at which it was begun, RFC 3339, UTC: all that was acknowledged before is in it."""
    version: str
    """Version of Quadriga that made it."""
    revision: str
    """Revision of its database; empty without one."""
    inferences: int
    """Inferences of its database."""
    journaled: int
    """Records and changes of its journal; the database may have the first of them, too."""
    images: int
    image_bytes: int
    missing_images: int = 0
    """Images that were removed or damaged before they could be copied."""
    unfound_images: int = 0
    """Images that inferences of its database have, and that were not found where images were looked for."""
    has_database: bool = True
    """Whether the database was to be in it; without, it goes beside a copy of the database that was made after it."""
    host: str = ""
    """Name of the machine of the server, as it calls itself."""
    folder: str = ""
    """Name of the server's data folder, without where it is."""
    has_images: bool = True
    """Whether images were to be in it."""
    files: dict[str, BackupFile] = {}
    """Files by their path within the backup, but for this description and the images."""


def read_description(backup: Path) -> BackupDescription:
    """Read the description of a backup.

    Raises:
        StoreError: It cannot be read, or is of a form that this version does not know.
    """
    try:
        description = msgspec.json.decode(
            (backup / DESCRIPTION).read_bytes(), type=BackupDescription
        )
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(
            f"expected {backup / DESCRIPTION} to describe a backup: {error}"
        ) from error
    if description.form != FORM:
        raise StoreError(
            f"expected a backup of form {FORM}, got {description.form}: a newer version made it"
        )
    for name in description.files:
        if name.startswith("/") or ".." in Path(name).parts:
            raise StoreError(f"expected paths within the backup, got {name[:200]!r}")
    return description


def write_description(backup: Path, description: BackupDescription) -> None:
    """Write the description of a backup, so that it survives a loss of power."""
    text = msgspec.json.format(msgspec.json.encode(description), indent=1)
    write_atomically(backup / DESCRIPTION, text, 0o600, is_synced=True)


def kept_files(data: Path) -> Iterator[Path]:
    """Yield the files of a data folder that a backup has below `FILES`, relative to the folder."""
    for folder, names, files in os.walk(data):
        place = Path(folder)
        if place == data:
            names[:] = [name for name in names if not _LEFT_OUT.fullmatch(name)]
            files = [name for name in files if not _LEFT_OUT.fullmatch(name)]  # noqa: PLW2901 - those of the folder itself
        names.sort()
        for name in sorted(files):
            path = place / name
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(data)


def describe_file(path: Path) -> BackupFile:
    """Return size and hash of a file."""
    return BackupFile(path.stat().st_size, blake3().update_mmap(path).hexdigest())


def describe_files(backup: Path) -> dict[str, BackupFile]:
    """Return all files of a backup that is being made, by their paths within it."""
    paths = sorted(path for path in backup.rglob("*") if path.is_file())
    return {path.relative_to(backup).as_posix(): describe_file(path) for path in paths}


def check_files(backup: Path, description: BackupDescription) -> None:
    """Compare the files of a backup with its description.

    Raises:
        StoreError: One is missing, or is not what was written.
    """
    for name, expected in description.files.items():
        path = backup / name
        if not path.is_file():
            raise StoreError(f"expected {path} in the backup, found none")
        if (present := describe_file(path)) != expected:
            raise StoreError(
                f"{path} is damaged: expected {expected.bytes} bytes with the hash {expected.blake3[:16]}, "
                f"got {present.bytes} with {present.blake3[:16]}"
            )
