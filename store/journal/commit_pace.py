"""When the writer moves what is in the journal: soon if somebody waits for it, else a few times a second.

A transaction costs as much as dozens of records, so the records of a quarter of a second share one. Whoever waits for what
is in the journal, as for a change or for the durability `database`, asks for it by a file beside the journal.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

GATHER_S = 0.25
"""Time from one commit to the next, as long as nobody asks for it."""

GATHER_BYTES = 256 << 10
"""Bytes of the journal that do not wait any longer, as their transaction is large enough."""

_FILE = "journal.wanted"


def ask_for_commit(journal_directory: Path) -> None:
    """Ask the writer to move at once what was appended before; where that fails, it does so a little later."""
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT
        os.close(os.open(journal_directory.parent / _FILE, flags, 0o644))


class CommitPace:
    """Says when to commit; for one writer."""

    def __init__(self, journal_directory: Path) -> None:
        self._path = os.fsencode(journal_directory.parent / _FILE)
        self._due_s = 0.0

    def is_due(self, waiting_bytes: int) -> bool:
        """Check whether to commit now, given the bytes of the journal that wait, looked up after `take_request`."""
        return waiting_bytes >= GATHER_BYTES or (
            waiting_bytes > 0 and time.monotonic() >= self._due_s
        )

    def take_request(self) -> bool:
        """Check whether somebody asked for a commit since the last call.

        What it is about was appended before, so it is seen by whoever looks into the journal after this.
        """
        try:
            os.unlink(self._path)  # noqa: PTH108 - as bytes, 25 times a second
        except FileNotFoundError:
            return False
        return True

    def note_commit(self) -> None:
        """Begin to gather anew."""
        self._due_s = time.monotonic() + GATHER_S
