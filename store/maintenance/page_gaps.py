"""Clearing of the gaps in the pages of a SQLite file: where rows were before SQLite moved them to another page.

`secure_delete` overwrites what is deleted, but not the copies that stay behind when a page is split or filled anew. They lie
between the pointers and the cells of a page of a b-tree, where nothing reads.

The file is written below SQLite. This is safe while the log is empty and the lock of writers is held: then nobody else writes
to the file, and readers do not look at what changes. A commit at the end makes all others forget the pages that they hold.

Source: "Database File Format", sections 1.5, 1.6 and 4.5.
"""

import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGES_AT_ONCE = 4096

_HEADER_BYTES = {2: 12, 5: 12, 10: 8, 13: 8}
"""Size of the header of a page by its first byte, which is that of a b-tree."""
_FILE_HEADER_BYTES = 100
_MAX_PAGES = 2 << 24
"""Number of pages from which on that byte may begin the number of another page instead."""

_files: dict[tuple[int, int], int] = {}
"""Descriptors by device and inode; never closed, as that would end SQLite's locks on the file in this process."""


class GapsRemain(Exception):
    """The gaps cannot be cleared now."""


def clear_gaps(driver: Any, path: Path, first_page: int) -> int | None:
    """Clear the gaps of some pages; return the number of the first page that is left, None if there is none.

    Args:
        driver: Connection to the database of its own, without a transaction, after its log was emptied.
        path: File of the database.
        first_page: Number of the first page, from 0.

    Raises:
        GapsRemain: The log is not empty any more.
        ValueError: The file has a form in which pages cannot be told apart.
    """
    driver.execute("BEGIN IMMEDIATE")
    try:
        page_bytes = _check_form(driver, path)
        descriptor = _open(path)
        pages = os.fstat(descriptor).st_size // page_bytes
        if pages >= _MAX_PAGES:
            raise ValueError(f"it has {pages} pages")
        count = max(min(PAGES_AT_ONCE, pages - first_page), 0)
        (mark,) = driver.execute("PRAGMA user_version").fetchone()
        if _overwrite_gaps(descriptor, first_page, count, page_bytes):
            driver.execute(f"PRAGMA user_version={mark}")
            driver.execute("COMMIT")
    finally:
        if driver.in_transaction:
            driver.execute("ROLLBACK")
    next_page = first_page + count
    return next_page if next_page < pages else None


def _check_form(driver: Any, path: Path) -> int:
    """Check that the gaps of a database can be cleared now, or raise as `clear_gaps`; return the bytes of a page."""
    (mode,) = driver.execute("PRAGMA journal_mode").fetchone()
    (vacuum,) = driver.execute("PRAGMA auto_vacuum").fetchone()
    if mode != "wal" or vacuum:
        raise ValueError(f"its journal_mode is {mode}, its auto_vacuum {vacuum}")
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise GapsRemain
    (page_bytes,) = driver.execute("PRAGMA page_size").fetchone()
    return int(page_bytes)


def _overwrite_gaps(descriptor: int, first_page: int, count: int, page_bytes: int) -> bool:
    """Overwrite the gaps of some pages on the disk; return whether there were any."""
    offset = first_page * page_bytes
    data = os.pread(descriptor, count * page_bytes, offset)
    gaps = list(_gaps(data, page_bytes, is_first=first_page == 0))
    for start, end in gaps:
        os.pwrite(descriptor, bytes(end - start), offset + start)
    if gaps:
        os.fdatasync(descriptor)
    return bool(gaps)


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection for `clear_gaps`, which has no page in its memory."""
    return sqlite3.connect(path, timeout=0.3, isolation_level=None)


def _open(path: Path) -> int:
    status = path.stat()
    key = status.st_dev, status.st_ino
    if key not in _files:
        _files[key] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    return _files[key]


def _gaps(data: bytes, page_bytes: int, *, is_first: bool) -> Iterator[tuple[int, int]]:
    """Yield beginning and end of each gap in which something is; a page that is not as expected has none."""
    usable = page_bytes
    for page in range(0, len(data) - page_bytes + 1, page_bytes):
        header = page + _FILE_HEADER_BYTES * (is_first and page == 0)
        if header > page:
            usable = page_bytes - data[page + 20]
        size = _HEADER_BYTES.get(data[header])
        if size is None:
            continue
        cells, content = struct.unpack_from(">HH", data, header + 3)
        content = content or 65536
        begin, end = header + size + 2 * cells, page + content
        if not begin <= end <= page + usable:
            continue
        pointers = struct.unpack_from(f">{cells}H", data, header + size)
        if pointers and not content <= min(pointers) <= max(pointers) < usable:
            continue
        if data.count(0, begin, end) < end - begin:
            yield begin, end
