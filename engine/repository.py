"""The model repository: models and versions in folders, their states, and the loaded ones.

A model that fails to load does not stop the others. Models are reloaded and unloaded while others serve: a
request keeps the model that it started with.
"""

import logging
import re
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from quadriga.engine.image_text.generation import describe_text_package
from quadriga.engine.model import ONNX_SUBFOLDER, Model, model_folder
from quadriga.engine.overrides import Override, read_config
from quadriga.engine.session import LoadError
from quadriga.proto.errors import ModelNotReady, NotFound
from quadriga.proto.messages import ModelInfo, ModelState, ModelStatistics, ModelStatus

NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

_log = logging.getLogger("quadriga.models")


class _VersionEntry(msgspec.Struct, eq=False):
    """One version of one model: its path and state."""

    name: str
    version: str
    path: Path
    overrides: Mapping[str, Any] | None = None
    state: ModelState = "LOADING"
    reason: str = ""
    model: Model | None = None

    def load(self, score_threshold: float | None) -> None:
        """Load the version, and log the outcome; raises as `Model` does."""
        started = time.perf_counter()
        try:
            self.model = Model(
                self.name,
                self.version,
                self.path,
                score_threshold=score_threshold,
                overrides=self.overrides,
            )
        except LoadError as error:
            _log.error("%s %s: failed to load: %s", self.name, self.version, error)
            raise
        self.state = "READY"
        task = self.model.recognition.task
        elapsed_s = time.perf_counter() - started
        _log.info("%s %s: %s, ready in %.2f s", self.name, self.version, task, elapsed_s)


class ModelRepository:
    """All models of one folder, or the model of a model folder or an ONNX file; safe from several threads.

    Raises:
        LoadError: There is no such folder, or no model in it.
    """

    def __init__(self, root: Path, score_threshold: float | None = None) -> None:
        self._root = root
        self._score_threshold = score_threshold
        self._entries = {
            name: {version: _VersionEntry(name, version, path) for version, path in paths.items()}
            for name, paths in _scan(root).items()
        }
        self._names = _by_lower_case(self._entries)
        if not self._entries:
            raise LoadError(
                f"no model found in {root}: expected <name>/model.onnx or <name>/<version>/model.onnx"
            )
        self._change_lock = threading.Lock()  # readers take the current entries, and need no lock
        self.loaded = threading.Event()

    def load_all(self) -> None:
        """Load every model that is waiting, one after the other; states have the outcome."""
        for entry in self._all():
            with self._change_lock:
                standing = self._entries[entry.name].get(entry.version) is entry
                if not standing or entry.state != "LOADING":
                    continue
                try:
                    entry.load(self._score_threshold)
                except LoadError as error:
                    entry.state, entry.reason = "FAILED", str(error)
                except Exception as error:  # noqa: BLE001 - one model's fault must not stop the others
                    entry.state, entry.reason = "FAILED", f"internal error: {error!r}"
                    _log.exception("%s %s: failed to load", entry.name, entry.version)
        self.loaded.set()

    def load(self, name: str, override: Override | None = None) -> str:
        """Load a model from the current content of its folder, and serve it once all its versions work.

        Until then, and if a version fails, the previous versions stay in service. The name is that of a folder
        of the repository, or any name if there are files.

        Returns:
            The name under which it is served.

        Raises:
            NotFound: The repository has no such folder.
            LoadError: A version cannot be loaded.
        """
        with self._change_lock:
            entries = self._read(name, override or Override())
            for entry in entries:
                try:
                    entry.load(self._score_threshold)
                except LoadError as error:
                    raise LoadError(
                        f"model {entry.name!r} version {entry.version} failed to load: {error}"
                    ) from error
            return self._put(entries)

    def _read(self, name: str, override: Override) -> list[_VersionEntry]:
        overrides, policy = read_config(override.config)
        if override.folder is None:
            models = _scan(self._root)
            model_name = _find_name(name, _by_lower_case(models))
            if model_name is None:
                raise NotFound(f"model folder not found in the repository: {name!r:.140}")
            paths = models[model_name]
        else:
            model_name = _find_name(name, self._names) or name
            paths = _versions_in(Path(override.folder))
            if not NAME.fullmatch(model_name) or not model_name.strip(".") or not paths:
                raise LoadError(
                    f"expected a name of {NAME.pattern}, and model.onnx or <version>/model.onnx among "
                    f"its files, got {name!r:.140} with {'files' if paths else 'no model'}"
                )
        return [
            _VersionEntry(model_name, version, paths[version], overrides)
            for version in policy.choose(paths)
        ]

    def unload(self, name: str) -> str:
        """Stop serving a model; running requests are finished.

        Returns:
            The name under which it was served.
        """
        with self._change_lock:
            entries = [
                _VersionEntry(
                    entry.name, entry.version, entry.path, state="UNLOADED", reason="unloaded"
                )
                for entry in self._versions(name).values()
            ]
            _log.info("%s: unloaded", entries[0].name)
            return self._put(entries)

    def _put(self, entries: list[_VersionEntry]) -> str:
        """Replace the versions of a model."""
        name = entries[0].name
        self._entries = {**self._entries, name: {entry.version: entry for entry in entries}}
        self._names = _by_lower_case(self._entries)
        return name

    def get(self, name: str, version: str | None = None) -> Model:
        """Return a model that is ready: the requested version, or the highest one that is ready.

        The case of the name does not matter; it may also be `m-<name>`.

        Raises:
            NotFound: No such model or version.
            ModelNotReady: The model is loading, has failed, or is unloaded.
        """
        candidates = self._requested_entries(name, version)
        for entry in candidates:
            if entry.model is not None:
                return entry.model
        entry = candidates[0]
        states = {"LOADING": "is still loading", "UNLOADED": "is unloaded"}
        state = states.get(entry.state, f"failed to load: {entry.reason}")
        raise ModelNotReady(f"model {entry.name!r} version {entry.version} {state}")

    def info(self, name: str, version: str | None = None) -> ModelInfo:
        """Return the description of a model; raises as `get` does."""
        return self.get(name, version).info(list(self._versions(name)))

    def statuses(self) -> list[ModelStatus]:
        """Return the state of every version of every model."""
        return [
            ModelStatus(entry.name, entry.version, entry.state, entry.reason)
            for entry in self._all()
        ]

    def statistics(self, name: str | None, version: str | None) -> list[ModelStatistics]:
        """Return the statistics of one model, or of all, since they were loaded; none for unloaded ones."""
        return [
            entry.model.counters.statistics(entry.name, entry.version)
            for entry in (self._all() if name is None else self._requested_entries(name, version))
            if entry.model is not None
        ]

    def _all(self) -> list[_VersionEntry]:
        return [entry for versions in self._entries.values() for entry in versions.values()]

    def _versions(self, name: str) -> Mapping[str, _VersionEntry]:
        model_name = _find_name(name, self._names)
        if model_name is None:
            names = ", ".join(sorted(self._entries))
            raise NotFound(f"expected a model among {names}, got {name!r:.140}")
        return self._entries[model_name]

    def _requested_entries(self, name: str, version: str | None) -> list[_VersionEntry]:
        """Return one version of a model, or all of them."""
        versions = self._versions(name)
        if version is None:
            return list(versions.values())
        if version not in versions:
            expected = ", ".join(versions)
            raise NotFound(f"expected a version of {name!r} among {expected}, got {version!r:.60}")
        return [versions[version]]


def _by_lower_case(names: Iterable[str]) -> dict[str, str]:
    return {name.lower(): name for name in names}


def _find_name(name: str, lowered: Mapping[str, str]) -> str | None:
    """Return the name of a model given in any case, or by its id `m-<name>`; None if there is none."""
    lower_name = name.lower()
    candidates = (lower_name, lower_name.removeprefix("m-"), f"m-{lower_name}")
    return next((lowered[candidate] for candidate in candidates if candidate in lowered), None)


def find_model(folder: Path) -> Path | None:
    """Find the model of a folder: model.onnx, a package of several, `onnx/model.onnx`, the only ONNX file."""
    if (folder / "model.onnx").is_file():
        return folder / "model.onnx"
    if describe_text_package(folder) is not None:
        return folder
    if (folder / ONNX_SUBFOLDER / "model.onnx").is_file():
        return folder / ONNX_SUBFOLDER / "model.onnx"
    files = sorted(folder.glob("*.onnx"))
    return files[0] if len(files) == 1 else None


def _scan(root: Path) -> dict[str, dict[str, Path]]:
    """Find the models of a folder by name, and the versions of each, highest first."""
    if root.is_file():
        path = root.resolve()
        return {model_folder(path).name if root.stem == "model" else root.stem: {"1": root}}
    if not root.is_dir():
        raise LoadError(f"model folder not found: {root}")
    root = root.resolve()
    root_versions = _versions_in(root)
    if not {root, root / "model.onnx", root / ONNX_SUBFOLDER / "model.onnx"}.isdisjoint(
        root_versions.values()
    ):
        return {root.name: root_versions}  # other folders beside it do not matter
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    by_folder = {folder.name: _versions_in(folder) for folder in folders}
    has_model_folders = any(paths and not name.isdecimal() for name, paths in by_folder.items())
    if (
        root_versions and not has_model_folders
    ):  # a stray file beside model folders does not hide them
        return {root.name: root_versions}
    for file in sorted(root.glob("*.onnx")):
        location = f"{file.stem}/{file.name}"
        _log.error("%r is ignored: it needs a folder of its own, as %s", file.name, location)
    for folder in folders:
        if not by_folder[folder.name] and any(folder.glob("*.onnx")):
            _log.error("%r is ignored: expected model.onnx or one ONNX file", folder.name)
        if by_folder[folder.name] and not NAME.fullmatch(folder.name):
            _log.error("%r is ignored: expected a name of %s", folder.name, NAME.pattern)
    models = {name: paths for name, paths in by_folder.items() if paths and NAME.fullmatch(name)}
    lowered = [name.lower() for name in models]
    for name in models:
        if lowered.count(name.lower()) > 1:
            raise LoadError(f"expected names that differ in more than case, got {name!r} twice")
    return models


def _versions_in(folder: Path) -> dict[str, Path]:
    path = find_model(folder)
    if path is not None:
        return {"1": path}
    below = (sub for sub in folder.iterdir() if sub.name.isascii() and sub.name.isdecimal())
    numbered = sorted(filter(Path.is_dir, below), key=lambda sub: int(sub.name), reverse=True)
    models = ((sub.name, find_model(sub)) for sub in numbered)
    return {version: path for version, path in models if path is not None}
