"""The file of the audit log to which a process appends: a new one each day, locked while it is open."""

import errno
import fcntl
import os
from pathlib import Path

from quadriga.store.audit.entries import AuditEntry, encode_entry, file_name

_MAX_COPIES = 100


class AuditFile:
    """Appends lines; not safe to use from several threads.

    Args:
        folder: Folder of the audit log, made with the first line.
        process: Name of the process; where another process of that name writes, a number is added.
    """

    def __init__(self, folder: Path, process: str) -> None:
        self._folder = folder
        self._process = process
        self._descriptor: int | None = None
        self._path = b""
        self._day = ""
        self._is_torn = False

    def append(self, entry: AuditEntry) -> int:
        """Append an entry by one write, after which it survives the end of the process; return its bytes.

        Raises:
            OSError: It could not be written, as on a full disk; a part of the line may be there.
        """
        descriptor = self.open(entry.time[:10])
        line = encode_entry(entry)
        data = b"\n" + line if self._is_torn else line
        written = os.write(descriptor, data)
        self._is_torn = written != len(data)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written

    def open(self, day: str) -> int:
        """Return the descriptor of the file of a day, opened if it is not; raises as `append`.

        A file that was removed is made again, as what is written to it would be lost.
        """
        if self._descriptor is not None and day == self._day and os.access(self._path, os.F_OK):
            return self._descriptor
        self.close()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for copy in range(1, _MAX_COPIES + 1):
            path = self._folder / file_name(day, self._process, copy)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            self._descriptor, self._day, self._path = descriptor, day, os.fsencode(path)
            size = os.fstat(descriptor).st_size
            self._is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            return descriptor
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def duplicate(self) -> int | None:
        """Return a descriptor of the open file for the caller to sync and to close; None if none is open."""
        return None if self._descriptor is None else os.dup(self._descriptor)

    def close(self) -> None:
        """Close the file, which ends its lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
