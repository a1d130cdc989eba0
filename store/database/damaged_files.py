"""SQLite files that are damaged: proof of the damage, and setting them aside so that a new database can begin.

Only damage that SQLite itself finds counts, twice, each time on a connection of its own. A database that is busy, away,
full or forbidden is never set aside.
"""

import logging
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa

from quadriga.store.records.disk import sync_path

_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NOT_TEXT = "Could not decode to UTF-8"
"""Start of the message of Python's sqlite3 for text that is none; such an error has no code of SQLite."""

_HEADER = b"SQLite format 3\0"
_MARK = ".damaged-"
_BESIDE = ("-wal", "-shm")
_PAUSE_S = 1.0
_log = logging.getLogger(__name__)


def is_sign_of_damage(error: BaseException) -> bool:
    """Check whether an error may come from a damaged file, so that `find_damage` is worth its time."""
    cause = getattr(error, "orig", None) or error
    code = getattr(cause, "sqlite_errorcode", None)
    return (
        isinstance(cause, UnicodeDecodeError)
        or (code is not None and code & 0xFF in _CODES)
        or str(cause).startswith(_NOT_TEXT)
    )


def find_damage(path: Path) -> str | None:
    """Return what SQLite says of the damage of a file; None if it finds none, or cannot look."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True)) as connection:
            connection.text_factory = bytes
            for row in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"):
                for value in row:
                    if isinstance(value, bytes):
                        value.decode()
            (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except UnicodeDecodeError:
        return "the names of its tables are no text"
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        return str(error) if code is not None and code & 0xFF in _CODES else None
    return None if result == b"ok" else result.decode(errors="replace")


def set_aside_if_damaged(path: Path, *, is_ours: bool) -> Path | None:
    """Rename a database that is proved to be damaged, with its log; return its new path.

    Args:
        path: The file; nothing may have it open for writing.
        is_ours: Whether the file is known to be a database of ours. If not, one without the header of SQLite stays: its
            path may have been given by mistake.

    Raises:
        OSError: It cannot be renamed.
    """
    damage = find_damage(path)
    if damage is None or not (is_ours or _has_header(path)):
        return None
    time.sleep(_PAUSE_S)
    if find_damage(path) is None:
        return None
    target = path.with_name(f"{path.name}{_MARK}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    for suffix in _BESIDE:  # first, as a log without its database would be removed
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(target.with_name(target.name + suffix))
    path.rename(target)
    sync_path(path.parent)
    _log.critical(
        "THE DATABASE IS DAMAGED (%s). It is set aside as %s, and a new one begins, with what the journal still holds. "
        "Images are not removed while it lies there; docs/store.md says how to salvage it",
        damage, target,
    )  # fmt: skip
    return target


def damaged_files(url: str | sa.URL) -> list[Path]:
    """Return the databases that were set aside at the place of a database, the oldest first."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return []
    path = Path(parsed.database)
    return sorted(
        file for file in path.parent.glob(f"{path.name}{_MARK}*") if not file.name.endswith(_BESIDE)
    )


def _has_header(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(_HEADER)) == _HEADER
    return False
