"""The audit log of one process: lines at once, equal refusals summed, what could not be written counted.

A line is in the file before the answer that it is about is sent, so it survives the end of the process; the disk has it
within a second, and so it may be lost with the power. Where lines cannot be written, `check` refuses what would have to be
written: nobody changes anything unseen by filling the disk.
"""

import errno
import fcntl
import ipaddress
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from quadriga.store.audit.entries import AuditEntry, encode_entry, file_name, remove_old, timestamp
from quadriga.store.records.errors import AuditError

SUM_S = 60.0
"""Time in which equal refusals become one line."""

MAX_SOURCES = 64
"""Addresses whose refusals are summed apart at a time; those of further ones are summed together."""

MAX_REFUSAL_BYTES = 16 << 20
"""Bytes of lines about refusals in a day and process, beyond which those of all addresses are summed together."""

OTHERS = "others"
"""Address of refusals that are summed over several addresses."""

SEVERAL = "(several)"
"""Action of refusals of several actions."""

_UNCHANGED = (401, 403, 503, "UNAUTHENTICATED", "PERMISSION_DENIED", "UNAVAILABLE")
"""Statuses of requests that have changed nothing."""

_MISTAKES = ("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED")
"""gRPC codes of mistakes, which are 400, 404 and so on over HTTP."""

_INTERVAL_S = 1.0
_IPV6_SITE = 64
_MAX_COPIES = 100
_log = logging.getLogger(__name__)


class AuditFile:
    """The file to which a process appends: a new one each day, locked while it is open; not for several threads.

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


class AuditLog:
    """Safe to use from several threads.

    Args:
        folder: Folder of the files.
        process: Name of the process, part of the names of its files.
        days: Days after which a file is removed.
        clock: Returns the time in seconds since 1970.
    """

    def __init__(
        self, folder: Path, process: str, days: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._days = days
        self._clock = clock
        self._host = socket.gethostname()
        self._file = AuditFile(folder, process)
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, ...], _Sum] = {}
        self._is_synced = True
        self._failure = ""
        self._lost_since_failure = 0
        self._written = self._lost = self._refused = 0
        self._refusal_bytes = 0
        self._day = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def write(self, entry: AuditEntry) -> None:
        """Write a line with the time of now; raises nothing, as what the line is about has happened.

        A request that was a mistake (400 to 499) has changed nothing, and is summed as a refusal is.
        """
        with self._lock:
            if _is_mistake(entry.status) and not entry.number:
                self._add(entry)
            else:
                self._append(entry)

    def refuse(self, entry: AuditEntry) -> None:
        """Write a line about a refusal, or sum it with equal ones: of the same address, key and status."""
        with self._lock:
            self._refused += entry.times
            self._add(entry)

    def check(self) -> None:
        """Check that lines can be written; costs nothing unless the last could not.

        Raises:
            AuditError: They cannot.
        """
        if not self._failure:
            return
        with self._lock:
            if self._failure:
                resumed = AuditEntry(
                    time="", action="audit log", status="resumed", number=self._lost_since_failure
                )
                self._append(resumed)
            if self._failure:
                raise AuditError(
                    "the audit log cannot be written, and nothing is changed or taken without it",
                    detail=self._failure,
                )

    def counters(self) -> dict[str, float]:
        """Return the numbers of this process for metrics."""
        return {
            "audit_lines_total": self._written,
            "audit_lost_total": self._lost,
            "audit_refusals_total": self._refused,
            "audit_failing": float(bool(self._failure)),
        }

    def start(self) -> None:
        """Sync files, write sums and remove old files in a thread."""
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is summed, and close the file."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.write_sums(ended_only=False)
        self._sync()
        with self._lock:
            self._file.close()

    def write_sums(self, *, ended_only: bool = True) -> None:
        """Write a line for each sum whose time has ended, or for all."""
        now_s = self._clock()
        with self._lock:
            for group, total in list(self._sums.items()):
                # After a step back of the clock, a sum ends at once.
                if ended_only and 0 <= now_s - total.begun_s < SUM_S:
                    continue
                if total.entry is None:
                    del self._sums[group]
                    continue
                self._refusal_bytes += self._append(total.entry)
                self._sums[group] = _Sum(now_s)

    def _add(self, entry: AuditEntry) -> None:
        """Append the first of equal entries, and sum the others."""
        group = _site(entry.address), entry.key_id, str(entry.status)
        full = len(self._sums) >= MAX_SOURCES or self._refusal_bytes > MAX_REFUSAL_BYTES
        if group not in self._sums and full:  # keys are few, whatever strangers do
            group = OTHERS, entry.key_id, str(entry.status)
            name = entry.name if entry.key_id else ""
            entry = msgspec.structs.replace(entry, address=OTHERS, name=name)
        if group in self._sums:
            self._sums[group].add(entry, self._clock())
        else:
            self._sums[group] = _Sum(self._clock())
            self._refusal_bytes += self._append(entry)

    def _append(self, entry: AuditEntry) -> int:
        """Append an entry with the time of now; return its bytes, 0 if it was lost."""
        now = timestamp(self._clock())
        if now[:10] != self._day:
            self._day, self._refusal_bytes = now[:10], 0
        entry = msgspec.structs.replace(entry, time=now, host=self._host)
        try:
            size_bytes = self._file.append(entry)
        except OSError as error:
            self._lose(entry, error.strerror or str(error))
            return 0
        if self._failure:
            _log.warning(
                "the audit log is written again; %d lines are lost", self._lost_since_failure
            )
        self._failure, self._lost_since_failure = "", 0
        self._written += 1
        self._is_synced = False
        return size_bytes

    def _lose(self, entry: AuditEntry, reason: str) -> None:
        """Count a line that could not be written; the first, and those about changes, go to the log of the process."""
        if entry.status == "resumed":
            return
        self._lost += 1
        self._lost_since_failure += 1
        if not self._failure or entry.status not in _UNCHANGED:
            _log.error(
                "cannot write the audit log (%s); changes are refused until it can be. The line: %s",
                reason, encode_entry(entry).decode().rstrip(),
            )  # fmt: skip
        self._failure = reason

    def _run(self) -> None:
        cleared = ""
        while not self._stop.wait(_INTERVAL_S):
            with suppress(OSError):
                self._sync()
            self.write_sums()
            if cleared != (today := timestamp(self._clock())[:10]):
                remove_old(self._folder, today, self._days)
                cleared = today

    def _sync(self) -> None:
        """Bring to the disk what was written; the lock is not held meanwhile, as that may take long."""
        with self._lock:
            descriptor = None if self._is_synced else self._file.duplicate()
            self._is_synced = True
        if descriptor is not None:
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class _Sum:
    """Refusals of one address, key and status since a time."""

    def __init__(self, begun_s: float) -> None:
        self.begun_s = begun_s
        self.entry: AuditEntry | None = None

    def add(self, entry: AuditEntry, now_s: float) -> None:
        """Add a refusal."""
        if self.entry is None:
            self.entry = msgspec.structs.replace(entry, since=timestamp(now_s))
            return
        same = self.entry.action == entry.action
        self.entry = msgspec.structs.replace(
            self.entry,
            times=self.entry.times + entry.times,
            action=entry.action if same else SEVERAL,
            request_id="",
            target="",
        )


def _is_mistake(status: int | str) -> bool:
    return 400 <= status < 500 if isinstance(status, int) else status in _MISTAKES


def _site(address: str) -> str:
    """Return the address whose refusals are summed: that of a site in IPv6, which has very many."""
    with suppress(ValueError):
        if isinstance(ipaddress.ip_address(address), ipaddress.IPv6Address):
            return str(ipaddress.ip_network((address, _IPV6_SITE), strict=False))
    return address
