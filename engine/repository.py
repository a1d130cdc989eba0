"""Model folders: which models and versions there are, their state, and the loaded ones.

One that fails to load does not stop the others. Models are loaded again and unloaded while others answer: a
request keeps the model that it began with.
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


class _Entry(msgspec.Struct, eq=False):
    """One version of one model: where it is and how far its loading came."""

    name: str
    version: str
    path: Path
    overrides: Mapping[str, Any] | None = None
    state: ModelState = "LOADING"
    reason: str = ""
    model: Model | None = None

    def load(self, score_threshold: float | None) -> None:
        """Load it, or raise as `Model` does; the log says how it went."""
        started = time.perf_counter()
        try:
            self.model = Model(self.name, self.version, self.path, score_threshold, self.overrides)
        except LoadError as error:
            _log.error("%s %s: failed to load: %s", self.name, self.version, error)
            raise
        self.state = "READY"
        task = self.model.recognition.task
        elapsed_s = time.perf_counter() - started
        _log.info("%s %s: %s, ready in %.2f s", self.name, self.version, task, elapsed_s)


class ModelRepository:
    """All models of one folder, or of one that is a model's or an ONNX file; safe from several threads.

    Raises:
        LoadError: There is no such folder, or no model in it.
    """

    def __init__(self, root: Path, score_threshold: float | None = None) -> None:
        self._root = root
        self._score_threshold = score_threshold
        self._entries = {
            name: {version: _Entry(name, version, path) for version, path in paths.items()}
            for name, paths in _scan(root).items()
        }
        self._names = _lowered(self._entries)
        if not self._entries:
            raise LoadError(
                f"expected models in {root}, as <name>/model.onnx or <name>/<version>/model.onnx, got none"
            )
        self._changing = threading.Lock()  # whoever reads takes what stands, and needs none
        self.loaded = threading.Event()

    def load_all(self) -> None:
        """Load every model that waits for it, one after the other; states tell how it went."""
        for entry in self._all():
            with self._changing:
                standing = self._entries[entry.name].get(entry.version) is entry
                if not standing or entry.state != "LOADING":
                    continue
                try:
                    entry.load(self._score_threshold)
                except LoadError as error:
                    entry.state, entry.reason = "FAILED", str(error)
                except Exception as error:  # noqa: BLE001 - one model's fault must not stop the others
                    entry.state, entry.reason = "FAILED", f"a fault of the server: {error!r}"
                    _log.exception("%s %s: failed to load", entry.name, entry.version)
        self.loaded.set()

    def load(self, name: str, override: Override | None = None) -> str:
        """Load a model as its folder is now, and serve it once every version of it works.

        Until then, and where one fails, what was served before answers on. The name is that of a folder of the
        repository, or any where files are given.

        Returns:
            The name under which it is served.

        Raises:
            NotFound: There is no such folder.
            LoadError: It cannot be loaded.
        """
        with self._changing:
            entries = self._read(name, override or Override())
            for entry in entries:
                try:
                    entry.load(self._score_threshold)
                except LoadError as error:
                    raise LoadError(
                        f"model {entry.name!r} version {entry.version} failed to load: {error}"
                    ) from error
            return self._put(entries)

    def _read(self, name: str, override: Override) -> list[_Entry]:
        overrides, policy = read_config(override.config)
        if override.folder is None:
            found = _scan(self._root)
            real = _known_name(name, _lowered(found))
            if real is None:
                raise NotFound(f"expected a model's folder in the repository, got {name!r:.140}")
            paths = found[real]
        else:
            real = _known_name(name, self._names) or name
            paths = _versions_in(Path(override.folder))
            if not NAME.fullmatch(real) or not real.strip(".") or not paths:
                raise LoadError(
                    f"expected a name of {NAME.pattern}, and model.onnx or <version>/model.onnx among "
                    f"its files, got {name!r:.140} with {'files' if paths else 'no model'}"
                )
        return [_Entry(real, each, paths[each], overrides) for each in policy.choose(paths)]

    def unload(self, name: str) -> str:
        """Stop serving a model; requests that have begun are answered.

        Returns:
            The name under which it was served.
        """
        with self._changing:
            entries = [
                _Entry(entry.name, entry.version, entry.path, state="UNLOADED", reason="unloaded")
                for entry in self._versions(name).values()
            ]
            _log.info("%s: unloaded", entries[0].name)
            return self._put(entries)

    def _put(self, entries: list[_Entry]) -> str:
        """Put the versions of a model in the place of those that stood there."""
        name = entries[0].name
        self._entries = {**self._entries, name: {entry.version: entry for entry in entries}}
        self._names = _lowered(self._entries)
        return name

    def get(self, name: str, version: str | None = None) -> Model:
        """Give a model that is ready: the version asked for, or the highest one that is ready.

        Its folder is named in any case, also as `m-<name>`.

        Raises:
            NotFound: No such model or version.
            ModelNotReady: It is loading, has failed, or is unloaded.
        """
        candidates = self._asked(name, version)
        for entry in candidates:
            if entry.model is not None:
                return entry.model
        entry = candidates[0]
        states = {"LOADING": "is still loading", "UNLOADED": "is unloaded"}
        state = states.get(entry.state, f"failed to load: {entry.reason}")
        raise ModelNotReady(f"model {entry.name!r} version {entry.version} {state}")

    def info(self, name: str, version: str | None = None) -> ModelInfo:
        """Describe a model; raises as `get` does."""
        return self.get(name, version).info(list(self._versions(name)))

    def statuses(self) -> list[ModelStatus]:
        """Give the state of every version of every model."""
        return [
            ModelStatus(entry.name, entry.version, entry.state, entry.reason)
            for entry in self._all()
        ]

    def statistics(self, name: str | None, version: str | None) -> list[ModelStatistics]:
        """Give what one model, or each, has done since it was loaded; none of what is not loaded."""
        return [
            entry.model.counters.statistics(entry.name, entry.version)
            for entry in (self._all() if name is None else self._asked(name, version))
            if entry.model is not None
        ]

    def _all(self) -> list[_Entry]:
        return [entry for versions in self._entries.values() for entry in versions.values()]

    def _versions(self, name: str) -> Mapping[str, _Entry]:
        real = _known_name(name, self._names)
        if real is None:
            known = ", ".join(sorted(self._entries))
            raise NotFound(f"expected a model among {known}, got {name!r:.140}")
        return self._entries[real]

    def _asked(self, name: str, version: str | None) -> list[_Entry]:
        """Give one version of a model, or all of them."""
        versions = self._versions(name)
        if version is None:
            return list(versions.values())
        if version not in versions:
            known = ", ".join(versions)
            raise NotFound(f"expected a version of {name!r} among {known}, got {version!r:.60}")
        return [versions[version]]


def _lowered(names: Iterable[str]) -> dict[str, str]:
    return {name.lower(): name for name in names}


def _known_name(name: str, lowered: Mapping[str, str]) -> str | None:
    """Find a model by its name in any case, or by its id `m-<name>`."""
    wanted = name.lower()
    candidates = (wanted, wanted.removeprefix("m-"), f"m-{wanted}")
    return next((lowered[each] for each in candidates if each in lowered), None)


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
        raise LoadError(f"expected a folder of models at {root}, got no such folder")
    root = root.resolve()
    alone = _versions_in(root)
    if not {root, root / "model.onnx", root / ONNX_SUBFOLDER / "model.onnx"}.isdisjoint(
        alone.values()
    ):
        return {root.name: alone}  # folders beside it may be anything
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    found = {folder.name: _versions_in(folder) for folder in folders}
    others = any(paths and not name.isdecimal() for name, paths in found.items())
    if alone and not others:  # another file beside model folders does not hide them
        return {root.name: alone}
    for file in sorted(root.glob("*.onnx")):
        place = f"{file.stem}/{file.name}"
        _log.error("%r is passed over: expected a folder for it, as %s", file.name, place)
    for folder in folders:
        if not found[folder.name] and any(folder.glob("*.onnx")):
            _log.error("%r is passed over: expected model.onnx or one ONNX file", folder.name)
        if found[folder.name] and not NAME.fullmatch(folder.name):
            _log.error("%r is passed over: expected a name of %s", folder.name, NAME.pattern)
    models = {name: paths for name, paths in found.items() if paths and NAME.fullmatch(name)}
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
    found = ((sub.name, find_model(sub)) for sub in numbered)
    return {version: path for version, path in found if path is not None}
