"""Checks a store: the database by itself, each row, each image, and the journal."""

from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import sqlalchemy as sa

from quadriga.store.blobs.interface import Blobs
from quadriga.store.database import database
from quadriga.store.database.damaged_files import damaged_files
from quadriga.store.database.database import ReaderPool, execute, execute_in
from quadriga.store.database.rows import read_records
from quadriga.store.database.sqlite import database_path
from quadriga.store.journal import journal
from quadriga.store.journal.dead_records import FILE, FOLDER, DeadRecords
from quadriga.store.records.errors import StoreError

_PAGE = 1000
_READ_TIMEOUT_S = 3600.0
_SHOWN = 100
_IMAGES = "SELECT seq, input_hash FROM inference WHERE seq IN ({}) AND input_kept = 1 AND input_hash IS NOT NULL"


class StoreProblem(msgspec.Struct, frozen=True):
    """Something that is not as it should be."""

    what: str
    """`database`, `row`, `image`, `journal` or `refused`."""
    where: str
    """Id of the inference, or name of the file."""
    text: str


class CheckedStore(msgspec.Struct, kw_only=True):
    """What was looked at, and what is wrong."""

    inferences: int = 0
    images: int = 0
    """Different images that inferences have, whose bytes were read."""
    journaled: int = 0
    """Records and changes that wait in the journal for the database."""
    problems: list[StoreProblem] = []
    """The first problems."""
    problem_count: int = 0

    def note(self, what: str, where: str, text: str) -> None:
        """Note a problem."""
        self.problem_count += 1
        if len(self.problems) < _SHOWN:
            self.problems.append(StoreProblem(what, where, text))


def check_store(
    data: Path,
    database_url: str,
    blobs: Blobs,
    *,
    reads_images: bool = True,
    report: Callable[[str], None] = lambda _: None,
) -> CheckedStore:
    """Read all that is stored; a server may run meanwhile.

    Args:
        data: Data folder of the server.
        database_url: SQLAlchemy URL of its database.
        blobs: Its images.
        reads_images: Whether each image is read and compared with its hash, instead of being looked for.
        report: Called with what is done.

    A database that does not answer, or is none of ours, is a problem, too.
    """
    checked = CheckedStore(problems=[])
    _check_database(database_url, checked)
    images = _ImageCheck(blobs, checked, reads_images=reads_images)
    try:
        _check_inferences(database_url, images, checked, report)
    except (sa.exc.DBAPIError, StoreError) as error:
        checked.note("database", "inferences", f"reading ended: {str(error).splitlines()[0]}")
    _check_journal(data / "journal", _journal_offsets(data / "journal", database_url), checked)
    _check_set_aside(data, database_url, checked)
    return checked


def _check_set_aside(data: Path, url: str, checked: CheckedStore) -> None:
    """Note what the writer put aside, as no query finds what is in it."""
    refused = DeadRecords(data).records()
    if refused:
        checked.note("refused", FILE, f"{refused:,} records that the database refused")
    folder = data / FOLDER
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        text = "a damaged part of the journal was set aside; the log names its inferences"
        checked.note("journal", f"{FOLDER}/{path.name}", text)
    for path in damaged_files(url):
        checked.note("database", path.name, "a damaged database was set aside: salvage it")


def _check_database(url: str, checked: CheckedStore) -> None:
    """Have SQLite check its own file; PostgreSQL checks pages as they are read."""
    path = database_path(url)
    if path is None:
        return
    if not path.exists():
        checked.note("database", str(path), "there is none yet")
        return
    try:
        with database.writer_engine(url) as engine, engine.connect() as connection:
            for (line,) in execute(connection, f"PRAGMA integrity_check({_SHOWN})"):
                if line != "ok":
                    checked.note("database", path.name, str(line))
    except (sa.exc.DBAPIError, StoreError) as error:
        checked.note("database", path.name, str(error).splitlines()[0])


def _check_inferences(
    url: str, images: "_ImageCheck", checked: CheckedStore, report: Callable[[str], None]
) -> None:
    """Read all inferences in order of their ids, with their images."""
    position = -1
    with closing(ReaderPool(url, 1, _READ_TIMEOUT_S)) as reader:
        while reader.has_database():
            with reader.snapshot() as connection:
                seqs = _next_seqs(connection, position)
                if not seqs:
                    return
                _check_rows(connection, seqs, checked)
                keys = execute_in(connection, _IMAGES, seqs)
            for seq, key in keys:
                images.check(int(seq), str(key))
            position = seqs[-1]
            report(f"inferences: {checked.inferences:,}, images: {checked.images:,}")


def _next_seqs(connection: sa.Connection, position: int) -> list[int]:
    statement = "SELECT seq FROM inference WHERE seq > ? ORDER BY seq LIMIT ?"
    return [int(seq) for (seq,) in execute(connection, statement, (position, _PAGE))]


def _check_rows(connection: sa.Connection, seqs: Collection[int], checked: CheckedStore) -> None:
    """Read the rows of a page together, and one by one if that fails."""
    if _problem_of(connection, seqs) is None:
        checked.inferences += len(seqs)
        return
    for seq in seqs:
        problem = _problem_of(connection, [seq])
        checked.inferences += 1
        if problem is not None:
            checked.note("row", str(seq), problem)


def _problem_of(connection: sa.Connection, seqs: Collection[int]) -> str | None:
    """Return why rows cannot be read as inferences; None if they can."""
    try:
        records = read_records(connection, seqs)
        for record in records:
            for content in (record.predictions, record.metadata, record.standard):
                msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, ValueError, sa.exc.DBAPIError) as error:  # fmt: skip
        return f"{type(error).__name__}: {error}"
    return None if len(records) == len(seqs) else "it was removed meanwhile, or has no model"


class _ImageCheck:
    """Checks each image once, by reading it, or by looking for it alone."""

    def __init__(self, blobs: Blobs, checked: CheckedStore, *, reads_images: bool) -> None:
        self._blobs = blobs
        self._checked = checked
        self._present = None if reads_images else {entry.key for entry in blobs.entries()}
        self._seen: set[bytes] = set()

    def check(self, seq: int, key: str) -> None:
        """Note what is wrong with the image of an inference, unless it was seen already."""
        with suppress(ValueError):
            digits = bytes.fromhex(key.partition(":")[2])
            if digits in self._seen:
                return
            self._seen.add(digits)
        try:
            is_present = self._is_present(key)
        except StoreError as error:
            self._checked.note("image", str(seq), str(error))
            return
        self._checked.images += 1
        if not is_present:
            self._checked.note("image", str(seq), f"{key} is missing, or has other bytes")

    def _is_present(self, key: str) -> bool:
        return self._blobs.get(key) is not None if self._present is None else key in self._present


def _journal_offsets(folder: Path, url: str) -> dict[str, int]:
    """Return up to where the database has each segment of the journal; nothing where it does not say."""
    with (
        suppress(OSError, StoreError, sa.exc.DBAPIError),
        closing(ReaderPool(url, 1, _READ_TIMEOUT_S)) as reader,
    ):
        if reader.has_database():
            with reader.snapshot() as connection:
                return database.journal_offsets(connection, (folder / "id").read_text())
    return {}


def _check_journal(folder: Path, offsets: Mapping[str, int], checked: CheckedStore) -> None:
    for path in journal.segment_paths(folder):
        position = end = 0
        for _, payload, end in journal.read_frames(path):
            start = end - len(payload) - journal.HEADER_BYTES
            if start > position:
                checked.note("journal", path.name, f"damaged from byte {position:,} to {start:,}")
            position = end
            checked.journaled += start >= offsets.get(path.name, 0)
        with suppress(FileNotFoundError):
            size = path.stat().st_size
            if size > end and journal.is_closed(path):
                checked.note("journal", path.name, f"damaged from byte {end:,} to {size:,}")
