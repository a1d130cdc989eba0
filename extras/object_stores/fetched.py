"""Models of an object store: their states are fetched into the cache, and served from there."""

import logging
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from blake3 import blake3

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.model_folders import NAME, find_models
from quadriga.engine.models.model_host import ModelHost
from quadriga.engine.models.runners.session import LoadError
from quadriga.extras.object_stores.cache import Manifest, ModelCache, SourceState
from quadriga.extras.object_stores.objects import Listing, ObjectFolder
from quadriga.extras.object_stores.settings import ObjectStoreSettings
from quadriga.extras.object_stores.source import (
    RECORD,
    ChangingSourceError,
    Models,
    ServedRecord,
    SourceError,
    SourceWatch,
    States,
    open_watch,
)
from quadriga.store.records.errors import StoreError

_FETCHES_AT_ONCE = 4
_REMEMBERED = 1024
"""Snapshots whose models are remembered."""

_log = logging.getLogger("quadriga.models")


def open_store(settings: Settings, directory: Path, host: ModelHost) -> SourceWatch:
    """Return the watch over the object store of the models.

    Args:
        settings: Settings of the server.
        directory: Folder that the workers share, for as long as the server runs.
        host: What the worker gives to its models.

    Raises:
        LoadError: The URL is none of an object store.
    """
    own = msgspec.convert(settings.extras.get("object_stores", {}), ObjectStoreSettings)
    url = settings.models.rstrip("/")
    source_id = blake3(url.encode()).hexdigest()[:16]
    try:
        objects = ObjectFolder(url, own.max_bytes)
    except StoreError as error:
        raise LoadError(str(error)) from error
    name = objects.name if NAME.fullmatch(objects.name) and objects.name.strip(".") else "models"
    if settings.name:
        name, source_id = settings.name, f"{source_id}-{settings.name}"
    folder = Path(own.cache or Path(settings.data) / "model-cache")
    cache = ModelCache(folder / source_id, name)
    record = ServedRecord(Path(settings.data) / RECORD, source_id)
    return open_watch(FetchedModels(objects, cache, record), settings, directory, host)


class FetchedModels:
    """The models below a URL of an object store; a `ModelSource`.

    Args:
        objects: The objects below the URL.
        cache: Where their contents are kept.
        record: Which state of each model is served.
    """

    def __init__(self, objects: ObjectFolder, cache: ModelCache, record: ServedRecord) -> None:
        self._objects = objects
        self._cache = cache
        self.folder = cache.directory
        self._record = record
        self._lock = threading.Lock()
        self._models: dict[str, Models] = {}
        """Models of snapshots, which never change."""

    def look(self, deadline_s: float, settle_s: float = 0.0) -> None:
        """See `ModelSource`."""
        with self._cache.looking(deadline_s):
            state = self._cache.state()
            listing = self._objects.list()
            is_same = state.is_whole and listing == state.objects
            if not is_same or not self._cache.has(state.models.values()):
                hashes = self._fetch(listing, state)
                time.sleep(settle_s)
                if self._objects.list() != listing:
                    raise ChangingSourceError
                self._cache.save(SourceState(self._place(hashes), listing, hashes, is_whole=True))
            self._cache.note_seen()

    def _fetch(self, listing: Listing, state: SourceState) -> Manifest:
        """Fetch the contents that are not there, and return all hashes; what a look that fails fetched is kept, too."""
        self._cache.remove_unused(self.served().values())
        hashes = {
            path: state.hashes[path]
            for path, listed in listing.items()
            if state.objects.get(path) == listed
            and self._cache.has_content(state.hashes[path], listed.size)
        }
        missing = [path for path in listing if path not in hashes]
        size_bytes = sum(listing[path].size for path in missing)
        self._cache.check_room(size_bytes)
        started_s = time.monotonic()

        def fetch(path: str) -> None:
            hashes[path] = self._cache.add_content(
                partial(self._objects.fetch, path, listing[path])
            )

        with ThreadPoolExecutor(_FETCHES_AT_ONCE, "fetch-models") as pool:
            fetches = [pool.submit(fetch, path) for path in missing]
            try:
                for future in fetches:
                    future.result()
            finally:
                pool.shutdown(cancel_futures=True)
                if missing:
                    self._remember(listing, state, hashes)
        if missing:
            elapsed_s = time.monotonic() - started_s
            _log.info(
                "%d files of the source of the models, %d bytes, fetched in %.1f s",
                len(missing), size_bytes, elapsed_s,
            )  # fmt: skip
        return hashes

    def _remember(self, listing: Listing, state: SourceState, hashes: Manifest) -> None:
        """Note what was fetched, whatever becomes of the look."""
        objects = {path: listing[path] for path in hashes}
        with suppress(OSError):  # then it is fetched again
            self._cache.save(SourceState(state.models, objects, dict(hashes)))

    def _place(self, hashes: Manifest) -> dict[str, str]:
        """Make a snapshot of each model; return their ids by name."""
        with self._cache.assembled(hashes) as root:
            models = find_models(root)
            folders = {
                name: "" if len(models) == 1 and name == root.name else _folder(root, versions)
                for name, versions in models.items()
                if name == root.name
                or not name.isdecimal()  # below a folder of their own these are versions
            }
        if not folders:
            raise SourceError("their source has no model: expected <name>/model.onnx")
        return {
            name: self._cache.place(
                {
                    path: digest
                    for path, digest in hashes.items()
                    if not folder or path == folder or path.startswith(f"{folder}/")
                }
            )
            for name, folder in folders.items()
        }

    def newest(self) -> dict[str, str]:
        """See `ModelSource`: states are ids of snapshots."""
        return self._cache.state().models

    def served(self) -> dict[str, str]:
        """See `ModelSource`."""
        return self._record.read()

    def find(self, states: States) -> Models:
        """See `ModelSource`."""
        self._cache.hold(states.values())
        return {
            name: versions
            for name, snapshot in states.items()
            if (versions := self._models_of(snapshot).get(name)) is not None
        }

    def keep(self, states: States) -> None:
        """See `ModelSource`."""
        self._record.write(states)

    def is_kept(self) -> bool:
        """See `ModelSource`."""
        return self._cache.has(self.served().values())

    def begin(self) -> dict[str, str]:
        """See `ModelSource`; reads every file of it, and removes damaged ones, which are fetched again."""
        served, newest = self.served(), self._cache.state().models
        undamaged = self._cache.verify({*newest.values(), *served.values()})
        remaining = {
            name: snapshot
            for name, snapshot in served.items()
            if snapshot in undamaged and (name in newest or not newest)
        }
        self._cache.hold(remaining.values())
        return remaining

    def release(self, paths: Collection[Path]) -> None:
        """See `ModelSource`."""
        self._cache.hold_only(paths)
        with suppress(SourceError), self._cache.looking(time.monotonic()):
            self._cache.remove_unused(self.served().values())

    def seen_at(self) -> float:
        """See `ModelSource`."""
        return self._cache.seen_at()

    def _models_of(self, snapshot: str) -> Models:
        """Return the models of a snapshot, found once."""
        with self._lock:
            if snapshot not in self._models:
                try:
                    self._models[snapshot] = find_models(self._cache.folder(snapshot))
                except LoadError:
                    return {}
                for old in list(self._models)[:-_REMEMBERED]:
                    del self._models[old]
            return self._models[snapshot]


def _folder(root: Path, versions: dict[str, Path]) -> str:
    """Return the name of the folder, or archive, of a model below the root of all."""
    path = next(iter(versions.values()))
    return path.relative_to(root.resolve()).parts[0]
