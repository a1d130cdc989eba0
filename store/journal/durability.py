"""Waiting for the durability that a model's settings require: `memory`, `power` or `database`.

`process`, the default, needs nothing but the append to the journal.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from quadriga.store.journal.journal import AppendPosition
from quadriga.store.journal.journal_lag import ask_for_commit, read_offsets
from quadriga.store.records.disk import sync_path
from quadriga.store.records.errors import JournalError, UnconfirmedError

RETRY_S = 0.2
_POLL_S = 0.005
_log = logging.getLogger(__name__)


class Backlog:
    """Queue of tasks for durability `memory`, run in order, one at a time; safe to use from several threads.

    A task that raises a JournalError is retried until it succeeds or the backlog is closed. The queued
    tasks may hold up to `limit_bytes`; a larger one is accepted if no other is queued.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[Callable[[], object], int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.lost = 0  # tasks that failed for good

    def put(self, task: Callable[[], object], size_bytes: int) -> None:
        """Queue a task; raise a `JournalError` if the queue is full."""
        with self._changed:
            if self._waiting and self._bytes + size_bytes > self._limit_bytes:
                raise JournalError(
                    f"expected at most {self._limit_bytes} bytes in memory that wait for the journal, got "
                    f"{self._bytes} and {size_bytes} more"
                )
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="backlog", daemon=True)
                self._thread.start()
            self._waiting.append((task, size_bytes))
            self._bytes += size_bytes
            self._changed.notify()

    def close(self) -> None:
        """Run the queued tasks, each at most once more, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        failing = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                task, size_bytes = self._waiting[0]
                is_last_try = self._closing
            try:
                task()
                failing = False
            except JournalError as error:
                if not failing:
                    _log.warning("inferences in memory wait for the journal: %s", error)
                failing = True
                if not is_last_try:
                    with self._changed:
                        if not self._closing:
                            self._changed.wait(RETRY_S)
                    continue
                self._give_up(error)
            except Exception as error:  # noqa: BLE001 - a failing task must not stop the others
                self._give_up(error)
            with self._changed:
                self._waiting.popleft()
                self._bytes -= size_bytes

    def _give_up(self, error: Exception) -> None:
        self.lost += 1
        _log.error("an inference in memory is lost: %s: %s", type(error).__name__, error)


class _Group:
    """Appends that are synced together."""

    def __init__(self) -> None:
        self.descriptors: dict[str, list[int]] = {}
        self.is_done = False
        self.error: OSError | None = None


class GroupSync:
    """Syncs appends to the disk for durability `power`; safe to use from several threads.

    Appends that arrive during a sync share the next one, so many appends cost one sync.
    """

    def __init__(self, journal_directory: Path) -> None:
        self._directory = journal_directory
        self._open: _Group | None = None
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._in_folder: set[str] = set()
        self.count = 0  # syncs done

    def wait(self, position: AppendPosition) -> None:
        """Wait until an append, made with `hold_segment`, is on the disk; raise `UnconfirmedError` if that fails."""
        with self._lock:
            group = self._open = self._open or _Group()
            if position.held_descriptor is not None:
                group.descriptors.setdefault(position.segment, []).append(position.held_descriptor)
        with self._turn:
            with self._lock:
                if self._open is group:
                    self._open = None
            if not group.is_done:
                self._sync(group)
        if group.error is not None:
            raise UnconfirmedError(
                f"the journal cannot be synced to the disk: {group.error.strerror}; "
                "the request is journaled and may still be stored"
            ) from group.error

    def _sync(self, group: _Group) -> None:
        """Sync the segments, and the folder entries of new segments."""
        try:
            for descriptors in group.descriptors.values():
                os.fdatasync(descriptors[0])
            if not group.descriptors.keys() <= self._in_folder:
                sync_path(self._directory)
                sync_path(self._directory.parent)
                self._in_folder = set(group.descriptors)
        except OSError as error:
            group.error = error
        finally:
            for descriptors in group.descriptors.values():
                for descriptor in descriptors:
                    os.close(descriptor)
            self.count += 1
            group.is_done = True


def wait_until_committed(directory: Path, position: AppendPosition, timeout_s: float) -> None:
    """Wait until the writer has committed an append, for durability `database`; raise `UnconfirmedError` if late."""
    deadline = time.monotonic() + timeout_s
    ask_for_commit(directory)
    while (
        read_offsets(directory).get(position.segment, 0) < position.end
        and (directory / position.segment).exists()  # removed once all of it is committed
    ):
        if time.monotonic() > deadline:
            raise UnconfirmedError(
                f"the database has not committed within {timeout_s:g} s; the request is journaled "
                "and may still be stored"
            )
        time.sleep(_POLL_S)
