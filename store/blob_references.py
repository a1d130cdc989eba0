"""Which blobs are needed: those of a row that keeps its input."""

from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sa

from store.blobs import BlobStore
from store.database import run


def remove_unreferenced(
    connection: sa.Connection, blobs: BlobStore, keys: Iterable[str], journal_directory: Path
) -> int:
    """Remove those of some blobs that nothing needs any more; returns how many."""
    del journal_directory
    removed = 0
    for key in keys:
        needed = run(
            connection,
            "SELECT 1 FROM inference WHERE input_hash = ? AND input_kept = 1 LIMIT 1",
            (key,),
        ).first()
        if needed is None and blobs.get(key) is not None:
            blobs._path(key).unlink()  # noqa: SLF001 - until blobs can be deleted
            removed += 1
    return removed
