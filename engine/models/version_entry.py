"""One version of one model as the repository holds it: its path and state, its loading, and warnings of its changes."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from quadriga.engine.models.model import Model, model_folder
from quadriga.engine.models.model_archives import archive_name
from quadriga.engine.models.model_host import ModelHost
from quadriga.engine.models.recognition.model_toml import ThenOptions, read_model_toml
from quadriga.engine.models.runners.providers import CPU
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.messages import ModelState
from quadriga.quoting import quoted

_SHOWN_DIGITS = 12
_SHOWN_LABEL = 60

_log = logging.getLogger("quadriga.models")


class VersionEntry(msgspec.Struct, eq=False):
    """One version of one model: its path and state."""

    name: str
    version: str
    path: Path
    overrides: Mapping[str, Any] | None = None
    state: ModelState = "LOADING"
    reason: str = ""
    model: Model | None = None
    is_from_client: bool = False
    """Whether a client sent its files."""
    sha256: str = ""
    """SHA-256 of the file that was loaded last, also after an unload; empty before the first load."""

    def written_then(self) -> ThenOptions | None:
        """Return what model.toml says of the model behind this one, also before it is loaded."""
        if self.model is not None:
            return self.model.recognition.written.then
        if self.state == "UNLOADED" or archive_name(self.path) is not None:
            return None
        folder = self.path if self.path.is_dir() else model_folder(self.path)
        with suppress(LoadError, OSError):
            return read_model_toml(folder, self.overrides).then
        return None

    def load(
        self, score_threshold: float | None, host: ModelHost, check: Callable[[Model], None]
    ) -> None:
        """Load the version, and log the outcome; raises as `Model` and the further `check` do."""
        started = time.perf_counter()
        if self.is_from_client:
            host = msgspec.structs.replace(host, origin="client")
        try:
            model = self._open(score_threshold, host)
            check(model)
            self.model = model
        except LoadError as error:
            _log.error("%s %s: failed to load: %s", self.name, self.version, error)
            raise
        self.state, self.sha256 = "READY", model.sha256
        task = self.model.recognition.task
        elapsed_s = time.perf_counter() - started
        providers = self.model.session.providers
        by = "" if providers == (CPU,) else f" by {', '.join(providers)}"
        _log.info("%s %s: %s%s, ready in %.2f s", self.name, self.version, task, by, elapsed_s)

    def try_first(self, score_threshold: float | None, host: ModelHost) -> None:
        """Load the version in a process of its own and drop it, so that the worker opens nothing that crashes it.

        A version that has its own process anyway is not tried.
        """
        overrides = self.overrides or {}
        isolation = overrides.get("runtime", {}).get("isolation")
        if isolation == "process" or (self.is_from_client and host.isolation != "none"):
            return
        self._open(score_threshold, msgspec.structs.replace(host, origin="trial"))

    def _open(self, score_threshold: float | None, host: ModelHost) -> Model:
        return Model(
            self.name,
            self.version,
            self.path,
            score_threshold=score_threshold,
            overrides=self.overrides,
            host=host,
        )

    def take_over(self, standing: "VersionEntry | None") -> bool:
        """Take the loaded model of the entry in this one's place; return whether it is one of the same files.

        They are the same if they are at another path as links to them: a snapshot of a source has those of the one before.
        """
        if (
            standing is None
            or standing.model is None
            or standing.is_from_client
            or standing.path == self.path
            or (standing.overrides or {}) != (self.overrides or {})
            or _file_ids(standing.path) != _file_ids(self.path)
        ):
            return False
        self.path, self.model, self.state = standing.path, standing.model, "READY"
        self.sha256 = standing.sha256
        return True


def _file_ids(path: Path) -> dict[str, tuple[int, int]]:
    """Return the device and number of each file of a model's folder, by its path below it."""
    folder = path if path.is_dir() else model_folder(path)
    return {
        str(file.relative_to(folder)): ((status := file.stat()).st_dev, status.st_ino)
        for file in folder.rglob("*")
        if file.is_file()
    }


def warn_of_changed_file(entry: VersionEntry, standing: VersionEntry | None) -> None:
    """Warn if a version was loaded from another file than the one that was served under its name before."""
    if standing is None or not standing.sha256 or standing.sha256 == entry.sha256:
        return
    _log.warning(
        "%s %s: the file changed, sha256 %s was %s: give it a new version so that reports can tell them apart",
        entry.name,
        entry.version,
        entry.sha256[:_SHOWN_DIGITS],
        standing.sha256[:_SHOWN_DIGITS],
    )


def warn_of_changed_labels(entries: Iterable[VersionEntry]) -> None:
    """Warn if the highest version that is ready has other labels than the one before it; versions come highest first."""
    ready = [entry.model for entry in entries if entry.model is not None]
    if len(ready) < 2:
        return
    newest, before = ready[:2]
    if not newest.labels or not before.labels or newest.labels == before.labels:
        return
    index, label, former = next(
        (index, label, former)
        for index, (label, former) in enumerate(zip_longest(newest.labels, before.labels))
        if label != former
    )
    _log.warning(
        "%s %s: its labels differ from those of version %s: class %d is %s, was %s",
        newest.name,
        newest.version,
        before.version,
        index,
        "absent" if label is None else quoted(label, _SHOWN_LABEL),
        "absent" if former is None else quoted(former, _SHOWN_LABEL),
    )
