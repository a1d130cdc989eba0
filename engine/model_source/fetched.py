"""Models of an object store: its state is fetched into the cache, and served from there."""

import logging
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from quadriga.engine.model_folders import find_models
from quadriga.engine.model_source.cache import Manifest, ModelCache, SourceState, folder_digest
from quadriga.engine.model_source.errors import ChangingSourceError, SourceError
from quadriga.engine.model_source.interface import Models, ServedModel, ServedRecord
from quadriga.engine.model_source.objects import Listing, ObjectFolder
from quadriga.engine.session import LoadError

_FETCHES_AT_ONCE = 4
_log = logging.getLogger("quadriga.models")


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
        self._record = record
        self._lock = threading.Lock()
        self._models: dict[str, Models] = {}
        """Models of snapshots, which never change."""

    def look(self, deadline_s: float, settle_s: float = 0.0) -> None:
        """See `ModelSource`."""
        with self._cache.looking(deadline_s):
            state = self._cache.state()
            listing = self._objects.list()
            is_same = listing == state.objects and self._cache.manifest(state.snapshot) is not None
            if not is_same:
                hashes = self._fetch(listing, state)
                time.sleep(settle_s)
                if self._objects.list() != listing:
                    raise ChangingSourceError
                snapshot = self._cache.place(hashes)
                self._cache.save(SourceState(snapshot, listing, hashes))
            self._cache.note_seen()

    def _fetch(self, listing: Listing, state: SourceState) -> Manifest:
        """Fetch the contents that are not there, and return all hashes; those of a look that fails are kept as well."""
        hashes = {
            path: state.hashes[path]
            for path, listed in listing.items()
            if state.objects.get(path) == listed
            and self._cache.has_content(state.hashes[path], listed.size)
        }
        missing = {path: listed for path, listed in listing.items() if path not in hashes}
        self._cache.remove_unused([model.snapshot for model in self.served().values()])
        size_bytes = sum(listed.size for listed in missing.values())
        self._cache.check_room(size_bytes)
        started_s = time.monotonic()

        def fetch(path: str) -> None:
            fetch_into = partial(self._objects.fetch, path, missing[path])
            hashes[path] = self._cache.add_content(fetch_into)

        try:
            with ThreadPoolExecutor(_FETCHES_AT_ONCE, "fetch-models") as pool:
                fetches = [pool.submit(fetch, path) for path in missing]
                try:
                    for future in fetches:
                        future.result()
                finally:
                    for future in fetches:
                        future.cancel()
        except Exception:
            with suppress(OSError):  # what was fetched is fetched again
                known = {path: listing[path] for path in hashes}
                self._cache.save(
                    msgspec.structs.replace(
                        state,
                        objects={**state.objects, **known},
                        hashes={**state.hashes, **hashes},
                    )
                )
            raise
        if missing:
            _log.info(
                "%d files of the source, %d bytes, fetched in %.1f s",
                len(missing), size_bytes, time.monotonic() - started_s,
            )  # fmt: skip
        return hashes

    def newest(self) -> dict[str, ServedModel]:
        """See `ModelSource`."""
        snapshot = self._cache.state().snapshot
        return {name: self._state_of(snapshot, name) for name in self._models_of(snapshot)}

    def served(self) -> dict[str, ServedModel]:
        """See `ModelSource`."""
        return self._record.read()

    def find(self, states: Mapping[str, ServedModel]) -> Models:
        """See `ModelSource`."""
        self._cache.hold({model.snapshot for model in states.values()})
        return {
            name: versions
            for name, model in states.items()
            if (versions := self._models_of(model.snapshot).get(name)) is not None
        }

    def keep(self, states: Mapping[str, ServedModel]) -> None:
        """See `ModelSource`."""
        self._record.write({**self.served(), **states})

    def begin(self) -> dict[str, ServedModel]:
        """See `ModelSource`; reads every file of it, and removes damaged ones, which are fetched again."""
        served = self.served()
        newest = self._cache.state().snapshot
        whole = self._cache.verify({newest, *(model.snapshot for model in served.values())})
        names = self._models_of(newest) if newest in whole else served
        remaining = {
            name: model
            for name, model in served.items()
            if name in names and model.snapshot in whole
        }
        if remaining != served:
            self._record.write(remaining)
        self._cache.hold({model.snapshot for model in remaining.values()})
        return remaining

    def release(self, paths: Collection[Path]) -> None:
        """See `ModelSource`."""
        self._cache.hold_only(paths)
        with suppress(SourceError), self._cache.looking(time.monotonic()):
            self._cache.remove_unused([model.snapshot for model in self.served().values()])

    def seen_at(self) -> float:
        """See `ModelSource`."""
        return self._cache.seen_at()

    def _models_of(self, snapshot: str) -> Models:
        """Return the models of a snapshot, found once, as each search logs what it ignores."""
        with self._lock:
            if not snapshot:
                return {}
            if snapshot not in self._models:
                try:
                    self._models[snapshot] = find_models(self._cache.folder(snapshot))
                except LoadError:
                    return {}
                for old in list(self._models)[:-_REMEMBERED]:
                    del self._models[old]
            return self._models[snapshot]

    def _state_of(self, snapshot: str, name: str) -> ServedModel:
        folder = self._cache.folder(snapshot)
        models = self._models_of(snapshot)
        manifest = self._cache.manifest(snapshot) or {}
        path = next(iter(models[name].values())).resolve()
        is_all = name == folder.name and len(models) == 1
        inside = "" if is_all else path.relative_to(folder.resolve()).parts[0]
        return ServedModel(folder_digest(manifest, inside), snapshot)


_REMEMBERED = 256
"""Snapshots whose models are remembered."""
