"""Durability `power`: what was appended is brought to the disk, by one sync for all who wait for it."""

import os
import threading
from pathlib import Path

from store.disk import sync_path
from store.errors import Unconfirmed
from store.journal import Position


class _Group:
    """Appends that are synced together."""

    def __init__(self) -> None:
        self.held: dict[str, list[int]] = {}
        self.is_done = False
        self.error: OSError | None = None


class GroupSync:
    """Brings appends to the disk; safe to use from several threads.

    Whoever comes while a sync is under way shares the next one, so that many appends cost one.
    """

    def __init__(self, journal_directory: Path) -> None:
        self._directory = journal_directory
        self._open: _Group | None = None
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._in_folder: set[str] = set()
        self.count = 0  # syncs so far

    def wait(self, position: Position) -> None:
        """Return once an append, its segment held, is on the disk; `Unconfirmed` if that fails."""
        with self._lock:
            group = self._open = self._open or _Group()
            if position.held is not None:
                group.held.setdefault(position.segment, []).append(position.held)
        with self._turn:
            with self._lock:
                if self._open is group:
                    self._open = None
            if not group.is_done:
                self._sync(group)
        if group.error is not None:
            raise Unconfirmed(
                f"expected the journal to reach the disk, got: {group.error.strerror}; "
                "what was answered is journaled and may still be stored"
            ) from group.error

    def _sync(self, group: _Group) -> None:
        """Sync segments, and the entries of the folders to those that are new."""
        try:
            for descriptors in group.held.values():
                os.fdatasync(descriptors[0])
            if not group.held.keys() <= self._in_folder:
                sync_path(self._directory)
                sync_path(self._directory.parent)
                self._in_folder = set(group.held)
        except OSError as error:
            group.error = error
        finally:
            for descriptors in group.held.values():
                for descriptor in descriptors:
                    os.close(descriptor)
            self.count += 1
            group.is_done = True
