"""A source of models in memory, and what the tests of sources share."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from blake3 import blake3

from quadriga.extras.object_stores.cache import ModelCache
from quadriga.extras.object_stores.fetched import FetchedModels
from quadriga.extras.object_stores.objects import Listing, SourceObject
from quadriga.extras.object_stores.source import ChangingSourceError, ServedRecord, SourceError


class MemoryObjects:
    """Objects in memory, which may be away, or change at the moments that a test chooses."""

    def __init__(self, **contents: bytes) -> None:
        self.contents: dict[str, bytes] = {}
        self.is_away = False
        self.fetched: list[str] = []
        self.before_fetch: Callable[[str], object] = lambda _: None
        self.put(**contents)

    def put(self, **contents: bytes) -> None:
        """Put objects; `a__1__model` names `a/1/model.onnx`."""
        for name, content in contents.items():
            self.contents[f"{name.replace('__', '/')}.onnx"] = content

    def list(self) -> Listing:
        """See `Objects`."""
        if self.is_away:
            raise SourceError("cannot list their source: it does not answer")
        return {path: self._listed(path) for path in self.contents}

    def fetch(self, path: str, listed: SourceObject, file: IO[bytes]) -> str:
        """See `Objects`."""
        self.before_fetch(path)
        if self.is_away:
            raise SourceError("cannot read their source: it does not answer")
        if path not in self.contents or self._listed(path) != listed:
            raise ChangingSourceError
        self.fetched.append(path)
        file.write(self.contents[path])
        return str(blake3(self.contents[path]).hexdigest())

    def _listed(self, path: str) -> SourceObject:
        content = self.contents[path]
        return SourceObject(len(content), 0, blake3(content).hexdigest())


def open_models(
    directory: Path, objects: MemoryObjects, data: str = "data", name: str = "models"
) -> FetchedModels:
    """Open a source on a cache below a folder, as one process of a server on a data folder does."""
    record = ServedRecord(directory / data / "served-models.json", "memory")
    return FetchedModels(objects, ModelCache(directory / "cache", name), record)


def look(models: FetchedModels, wait_s: float = 0.0) -> None:
    """Look at a source, and wait for other looks for some seconds."""
    models.look(time.monotonic() + wait_s)


def files(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
