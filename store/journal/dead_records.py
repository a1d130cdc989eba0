"""What the writer could not store and put aside in the data folder: how many records, and damaged parts of segments."""

import threading
from pathlib import Path

FILE, FOLDER = "dead.jsonl", "dead"
"""File of records that the database rejected, a line each, and folder of the damaged parts of segments."""

_CHUNK_BYTES = 1 << 20


class DeadRecords:
    """Counts what lies there; safe to use from several threads.

    Args:
        data_directory: The data folder.
    """

    def __init__(self, data_directory: Path) -> None:
        self._file = data_directory / FILE
        self._folder = data_directory / FOLDER
        self._lock = threading.Lock()
        self._read_bytes = self._lines = 0

    def records(self) -> int:
        """Return how many records were rejected; what was counted before is not read again.

        Raises:
            OSError: The file cannot be read.
        """
        with self._lock:
            size = self._file.stat().st_size if self._file.exists() else 0
            if size < self._read_bytes:  # somebody has removed it
                self._read_bytes = self._lines = 0
            if size > self._read_bytes:
                with self._file.open("rb") as file:
                    file.seek(self._read_bytes)
                    while chunk := file.read(_CHUNK_BYTES):
                        self._lines += chunk.count(b"\n")
                        self._read_bytes += len(chunk)
            return self._lines

    def segments(self) -> int:
        """Return how many damaged parts of segments there are; raises as `records`."""
        return sum(1 for _ in self._folder.iterdir()) if self._folder.exists() else 0
