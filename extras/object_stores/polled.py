"""Models of a folder of this machine that is polled: its state is that of the sizes and times of its files."""

import hashlib
import os
import time
from collections.abc import Collection, Mapping
from itertools import islice
from pathlib import Path

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.model import model_folder
from quadriga.engine.models.model_archives import archive_name
from quadriga.engine.models.model_folders import find_models
from quadriga.engine.models.model_host import ModelHost
from quadriga.engine.models.runners.session import LoadError
from quadriga.extras.object_stores.source import (
    RECORD,
    Models,
    ServedRecord,
    SourceError,
    SourceWatch,
    States,
    open_watch,
    settled,
)

_MAX_FILES = 10_000
"""Files of a model that are looked at."""


def open_folder(settings: Settings, directory: Path, host: ModelHost) -> SourceWatch:
    """Return the watch over the folder of the models.

    Args:
        settings: Settings of the server.
        directory: Folder that the workers share, for as long as the server runs.
        host: What the worker gives to its models.
    """
    record = ServedRecord(directory / RECORD, "folder")
    folder = WatchedFolder(Path(settings.models), record, settings.name)
    return open_watch(folder, settings, directory, host)


class WatchedFolder:
    """The models of a folder; a `ModelSource` whose newest state is that of the folder.

    Args:
        root: The folder or file.
        record: Which state of each model is served.
        name: Name of the model if there is only one; empty for that of its folder.
    """

    def __init__(self, root: Path, record: ServedRecord, name: str = "") -> None:
        self.folder = root
        self._name = name
        self._record = record
        self._newest: dict[str, str] = {}
        self._seen_at = 0.0

    def look(self, deadline_s: float, settle_s: float = 0.0) -> None:  # noqa: ARG002 - nothing is awaited
        """See `ModelSource`; a model that changes meanwhile stays as it was."""
        served = self.served()
        newest = self._digests()
        if newest != served and settle_s:
            last, changing = settled(self._digests, settle_s)
            newest = {
                name: digest if name not in changing else served.get(name, "")
                for name, digest in last.items()
            }
        self._newest = {name: digest for name, digest in newest.items() if digest}
        self._seen_at = time.time()

    def _digests(self) -> dict[str, str]:
        try:
            models = find_models(self.folder, _ignore, name=self._name)
        except (LoadError, OSError) as error:
            raise SourceError("their folder cannot be read", detail=str(error)) from error
        return {name: _digest(versions) for name, versions in models.items()}

    def newest(self) -> dict[str, str]:
        """See `ModelSource`."""
        return dict(self._newest)

    def served(self) -> dict[str, str]:
        """See `ModelSource`."""
        return self._record.read()

    def find(self, states: States) -> Models:  # noqa: ARG002 - a folder has one state
        """See `ModelSource`."""
        return find_models(self.folder, name=self._name)

    def keep(self, states: States) -> None:
        """See `ModelSource`."""
        self._record.write(states)

    def is_kept(self) -> bool:
        """See `ModelSource`."""
        return True

    def begin(self) -> dict[str, str]:
        """See `ModelSource`: a start serves what is in the folder."""
        self._record.write({})
        return {}

    def release(self, paths: Collection[Path]) -> None:
        """See `ModelSource`; there is nothing to let go of."""

    def seen_at(self) -> float:
        """See `ModelSource`."""
        return self._seen_at


def _digest(versions: Mapping[str, Path]) -> str:
    """Return a hash of the names, sizes and times of a model's files."""
    digest = hashlib.blake2b(digest_size=16)
    for version, path in versions.items():
        is_alone = path.is_file() and archive_name(path) is not None
        folder = path if path.is_dir() or is_alone else model_folder(path)
        for file in [folder] if is_alone else _files(folder):
            try:
                status = file.stat()
            except FileNotFoundError:
                continue
            stamp = (version, str(file), status.st_size, status.st_mtime_ns, status.st_ino)
            digest.update(repr(stamp).encode())
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Return the files of a model's folder; the first of them where it is one that holds all sorts of files."""
    paths = (Path(parent, name) for parent, _, names in os.walk(folder) for name in sorted(names))
    return sorted(islice(paths, _MAX_FILES))


def _ignore(*_: object) -> None:
    """Report nothing: the server's start has, and each look would again."""
