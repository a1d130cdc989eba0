"""The cache of a source of models: contents by hash, and snapshots, each a whole state of a model.

    files/<hash>                   a content, once
    snapshots/<id>/manifest.json   the hash of each file
    snapshots/<id>/<name>/…        the files, hard links to the contents
    listing.json                   the newest states, and what their objects were listed as
    seen                           its time is that of the last look at the source

A snapshot is made under another name and renamed, so it is there whole or not at all, and never changes. Servers may
share a cache: one at a time looks at the source, and nobody removes a snapshot that a process holds.
"""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec
from blake3 import blake3

from quadriga.extras.object_stores.objects import Listing
from quadriga.extras.object_stores.source import SourceError
from quadriga.store.records.disk import lock, sync_path, try_lock, write_atomically

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
"""Errors of file systems without hard links, or with no more of them; their snapshots are copies."""

_CHUNK_BYTES = 1 << 20
_MARGIN_BYTES = 64 << 20  # room that a download leaves free
_FILES, _SNAPSHOTS = "files", "snapshots"
_MANIFEST, _LISTING, _SEEN = "manifest.json", "listing.json", "seen"

Manifest = dict[str, str]
"""Hashes of the files of a snapshot by their paths."""


class SourceState(msgspec.Struct, frozen=True):
    """What is known of a source."""

    models: dict[str, str] = {}
    """Id of the snapshot of each model in its newest state, by name."""
    objects: Listing = {}
    """Objects whose contents are known, by path."""
    hashes: Manifest = {}
    """Their hashes."""
    is_whole: bool = False
    """Whether the models were made of exactly these objects; not after a look that failed."""


class ModelCache:
    """The cache of one source; safe to use from several processes.

    Args:
        directory: Its folder, which may not exist yet.
        name: Name of the folder of models in each snapshot.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory.resolve()  # as the paths of models are
        self._name = name
        self._held: dict[str, int] = {}
        """Descriptors of snapshots that this process holds, by id."""

    @contextmanager
    def looking(self, deadline_s: float) -> Iterator[None]:
        """Prevent other processes from looking at the source.

        Raises:
            SourceError: One of them does so for longer than until a time of the monotonic clock.
        """
        for folder in (_FILES, _SNAPSHOTS):
            (self.directory / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        while (file := try_lock(self.directory / "look.lock")) is None:
            if time.monotonic() > deadline_s:
                raise SourceError("another process is fetching them", errno.EBUSY)
            time.sleep(0.05)
        with file:
            yield

    def state(self) -> SourceState:
        """Return what is known of the source; nothing before the first look, or if the file is damaged."""
        try:
            return msgspec.json.decode((self.directory / _LISTING).read_bytes(), type=SourceState)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            return SourceState()

    def save(self, state: SourceState) -> None:
        """Keep what is known of the source; called while looking."""
        data = msgspec.json.encode(state)
        write_atomically(self.directory / _LISTING, data, 0o600, is_synced=True)

    def note_seen(self) -> None:
        """Note that the models of the source are in their newest states now."""
        (self.directory / _SEEN).touch(0o600)

    def seen_at(self) -> float:
        """Return when that was noted last, in seconds since 1970; 0 if never."""
        try:
            return (self.directory / _SEEN).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def has_content(self, digest: str, size: int) -> bool:
        """Check whether a content is there."""
        with suppress(FileNotFoundError):
            return (self.directory / _FILES / digest).stat().st_size == size
        return False

    def check_room(self, size_bytes: int) -> None:
        """Check that the disk has room.

        Raises:
            SourceError: It has not.
        """
        free_bytes = shutil.disk_usage(self.directory).free
        if size_bytes + _MARGIN_BYTES > free_bytes:
            raise SourceError(
                f"the disk of their cache has no room: {size_bytes} bytes to fetch, {free_bytes} free",
                errno.ENOSPC,
            )

    def add_content(self, fetch: Callable[[IO[bytes]], str]) -> str:
        """Keep what a function writes into a file and returns the hash of; return the hash."""
        folder = self.directory / _FILES
        descriptor, name = tempfile.mkstemp(prefix=".", dir=folder)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                digest = fetch(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o400)
            temporary.replace(folder / digest)
        finally:
            temporary.unlink(missing_ok=True)
        return digest

    @contextmanager
    def assembled(self, manifest: Manifest) -> Iterator[Path]:
        """Make a folder with some files, whose contents are there, for the context; called while looking."""
        temporary = Path(tempfile.mkdtemp(prefix=".", dir=self.directory / _SNAPSHOTS))
        try:
            self._fill(temporary, manifest)
            yield temporary / self._name
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def place(self, manifest: Manifest) -> str:
        """Make the snapshot with some files, whose contents are there, unless it exists; return its id."""
        lines = "".join(f"{digest} {path}\n" for path, digest in sorted(manifest.items()))
        snapshot = blake3(lines.encode()).hexdigest()[:32]
        target = self.directory / _SNAPSHOTS / snapshot
        if target.is_dir():
            return snapshot
        sync_path(self.directory / _FILES)
        temporary = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
        try:
            folders = self._fill(temporary, manifest)
            data = msgspec.json.encode(manifest)
            write_atomically(temporary / _MANIFEST, data, 0o400, is_synced=True)
            for folder in folders:
                sync_path(folder)
            temporary.rename(target)
            sync_path(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return snapshot

    def _fill(self, folder: Path, manifest: Manifest) -> set[Path]:
        """Put files into a new folder; return it and the folders in it."""
        folders = {folder, folder / self._name}
        (folder / self._name).mkdir()
        for path, digest in manifest.items():
            file = folder / self._name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            folders |= {parent for parent in file.parents if parent.is_relative_to(folder)}
            _link(self.directory / _FILES / digest, file)
        return folders

    def folder(self, snapshot: str) -> Path:
        """Return the folder of models of a snapshot."""
        return self.directory / _SNAPSHOTS / snapshot / self._name

    def manifest(self, snapshot: str) -> Manifest | None:
        """Return the hashes of a snapshot's files; None if it is not there."""
        try:
            path = self.directory / _SNAPSHOTS / snapshot / _MANIFEST
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except (OSError, msgspec.MsgspecError):
            return None

    def has(self, snapshots: Collection[str]) -> bool:
        """Check whether all of some snapshots are there."""
        return all((self.directory / _SNAPSHOTS / snapshot).is_dir() for snapshot in snapshots)

    def verify(self, snapshots: Collection[str]) -> list[str]:
        """Remove snapshots with damaged files, and these; return the ids of the undamaged ones."""
        verified: dict[str, bool] = {}
        undamaged = []
        for snapshot in snapshots:
            manifest = self.manifest(snapshot)
            if manifest is None:
                continue
            damaged = [
                digest
                for path, digest in manifest.items()
                if not verified.setdefault(digest, _has_hash(self.folder(snapshot) / path, digest))
            ]
            for digest in damaged:
                (self.directory / _FILES / digest).unlink(missing_ok=True)
            if damaged:
                shutil.rmtree(self.folder(snapshot).parent, ignore_errors=True)
            else:
                undamaged.append(snapshot)
        return undamaged

    def hold(self, snapshots: Collection[str]) -> None:
        """Keep some snapshots from being removed, until this process ends or holds others only.

        Raises:
            FileNotFoundError: One is not there.
        """
        with self._changing():
            for snapshot in set(snapshots) - self._held.keys():
                path = self.directory / _SNAPSHOTS / snapshot
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                self._held[snapshot] = descriptor

    def hold_only(self, paths: Collection[Path]) -> None:
        """Hold only the snapshots that some paths lie in."""
        root = self.directory / _SNAPSHOTS
        used = {path.relative_to(root).parts[0] for path in paths if path.is_relative_to(root)}
        for snapshot in self._held.keys() - used:
            os.close(self._held.pop(snapshot))

    def remove_unused(self, needed: Collection[str]) -> None:
        """Remove snapshots that are neither needed nor held, and contents that are in none; called while looking."""
        state = self.state()
        needed_ids = {*needed, *state.models.values()}
        with self._changing():
            for folder in (self.directory / _SNAPSHOTS).iterdir():
                if folder.name not in needed_ids:
                    _remove_unless_held(folder)
        known = set(state.hashes.values())
        for file in (self.directory / _FILES).iterdir():
            if file.stat().st_nlink == 1 and file.name not in known:
                file.unlink()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Prevent other processes from holding and removing snapshots."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock(self.directory / "lock"):
            yield


def _link(content: Path, file: Path) -> None:
    try:
        os.link(content, file)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(content, file)
        sync_path(file)


def _has_hash(path: Path, expected: str) -> bool:
    digest = blake3()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return False
    return digest.hexdigest() == expected


def _remove_unless_held(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
