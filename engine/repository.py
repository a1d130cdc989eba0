"""Model folders: which models and versions there are, their state, and the loaded ones.

`MODELS/<name>/[<integer version>/]model.onnx`, or a package of several graphs, beside an optional
model.toml and sidecar files. A folder without an ONNX file is no model and is passed over. One that fails
to load does not stop the others.
"""

import hashlib
import logging
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.generation import TextPackage, is_text_package
from engine.image_graph import ImageGraph
from engine.recognition import Recognition, recognise
from engine.session import LoadError, RunError, Session
from proto.datatypes import NUMPY_TYPES
from proto.errors import ModelNotReady, NotFound
from proto.messages import ModelInfo, ModelState, ModelStatus, TensorInfo
from tasks.specification import ModelSpec

PLATFORM = "onnxruntime_onnx"
NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

_log = logging.getLogger("quadriga.models")


class Model:
    """One version of a model, loaded and ready to answer.

    Args:
        name: Of its folder.
        version: Of its version folder, or `1`.
        path: The ONNX file, or the folder of a package of several.
        score_threshold: The server's default for detections, where the model says nothing.

    Raises:
        LoadError: It cannot be loaded, or does not answer its warm-up.
    """

    def __init__(
        self, name: str, version: str, path: Path, score_threshold: float | None = None
    ) -> None:
        self.name = name
        self.version = version
        self.images: ImageGraph | TextPackage | None = None
        """Answers images; None where the model takes tensors."""
        if path.is_dir():
            self.images = package = TextPackage(path)
            self.session = package.session
            self.recognition: Recognition = package.recognition
            self.paths, self.sha256 = package.paths, package.sha256()
        else:
            self.session = Session(path)
            self.recognition = recognise(path.parent, self.session, score_threshold)
            runtime = self.recognition.runtime
            if (runtime.providers, runtime.intra_op_threads) != (("CPUExecutionProvider",), 1):
                self.session = Session(path, runtime.providers, runtime.intra_op_threads)
            if self.recognition.spec is not None:
                self.images = ImageGraph(self.session, self.recognition.spec, runtime.max_batch)
            self.paths, self.sha256 = [path], _sha256(path)
        if self.recognition.runtime.warmup:
            self._warm_up()

    @property
    def spec(self) -> ModelSpec | None:
        """What its input and outputs mean; None where the model takes tensors."""
        return self.recognition.spec

    def info(self, versions: Sequence[str]) -> ModelInfo:
        """Describe the model as a client meets it: image models take images, not tensors."""
        inputs, outputs = self.session.inputs, self.session.outputs
        if self.images is not None:
            inputs = outputs = [TensorInfo("image", "BYTES", (-1,))]
        return ModelInfo(
            name=self.name,
            version=self.version,
            versions=versions,
            platform=PLATFORM,
            task=self.recognition.task,
            inputs=inputs,
            outputs=outputs,
            labels=() if self.spec is None else self.spec.labels,
            version_labels=self.recognition.runtime.version_labels,
        )

    def _warm_up(self) -> None:
        """Run once, so that the first request is as fast as the next and a wrong model fails here."""
        if self.images is not None:
            self.images.warm_up()
            return
        try:
            self.session.run({tensor.name: _zeros(tensor) for tensor in self.session.inputs})
        except RunError as error:  # zeros of a guessed size may be no input that the model accepts
            _log.info("%s: warm-up with zeros refused: %s", self.name, error)


class _Entry:
    """One version of one model: where it is and how far its loading came."""

    def __init__(self, name: str, version: str, path: Path) -> None:
        self.name = name
        self.version = version
        self.path = path
        self.state: ModelState = "LOADING"
        self.reason = ""
        self.model: Model | None = None


class ModelRepository:
    """All models of one folder.

    Args:
        root: A folder of model folders, one model folder, or an ONNX file.
        score_threshold: The server's default for detections.

    Raises:
        LoadError: There is no such folder, or no model in it.
    """

    def __init__(self, root: Path, score_threshold: float | None = None) -> None:
        self._score_threshold = score_threshold
        self._entries: dict[str, dict[str, _Entry]] = {}
        for entry in _scan(root):
            self._entries.setdefault(entry.name, {})[entry.version] = entry
        if not self._entries:
            raise LoadError(
                f"expected models in {root}, as <name>/model.onnx or <name>/<version>/model.onnx, got none"
            )
        self._names = {name.lower(): name for name in self._entries}
        self.loaded = threading.Event()

    def load_all(self) -> None:
        """Load every model, one after the other; states tell how it went."""
        for versions in self._entries.values():
            for entry in versions.values():
                self._load(entry)
        self.loaded.set()

    def _load(self, entry: _Entry) -> None:
        started = time.perf_counter()
        try:
            entry.model = Model(entry.name, entry.version, entry.path, self._score_threshold)
        except LoadError as error:
            entry.state, entry.reason = "FAILED", str(error)
            _log.error("%s %s: failed to load: %s", entry.name, entry.version, error)
        except Exception as error:  # noqa: BLE001 - one model's fault must not stop the others
            entry.state, entry.reason = "FAILED", f"a fault of the server: {error!r}"
            _log.exception("%s %s: failed to load", entry.name, entry.version)
        else:
            entry.state = "READY"
            task = entry.model.recognition.task
            elapsed_s = time.perf_counter() - started
            _log.info("%s %s: %s, ready in %.2f s", entry.name, entry.version, task, elapsed_s)

    def get(self, name: str, version: str | None = None) -> Model:
        """Give a model that is ready: the version asked for, or the highest one that is ready.

        Args:
            name: Of the folder, in any case, also as `m-<name>`.
            version: As in the path.

        Raises:
            NotFound: No such model or version.
            ModelNotReady: It is loading or has failed.
        """
        versions = self._versions(name)
        if version is not None:
            if version not in versions:
                known = ", ".join(versions)
                raise NotFound(f"expected a version of {name!r} among {known}, got {version!r:.60}")
            candidates = [versions[version]]
        else:
            candidates = list(versions.values())
        for entry in candidates:
            if entry.model is not None:
                return entry.model
        entry = candidates[0]
        state = (
            "is still loading" if entry.state == "LOADING" else f"failed to load: {entry.reason}"
        )
        raise ModelNotReady(f"model {entry.name!r} version {entry.version} {state}")

    def info(self, name: str, version: str | None = None) -> ModelInfo:
        """Describe a model; raises as `get` does."""
        return self.get(name, version).info(list(self._versions(name)))

    def statuses(self) -> list[ModelStatus]:
        """Give the state of every version of every model."""
        return [
            ModelStatus(entry.name, entry.version, entry.state, entry.reason)
            for versions in self._entries.values()
            for entry in versions.values()
        ]

    def _versions(self, name: str) -> dict[str, _Entry]:
        wanted = name.lower()
        for candidate in (wanted, wanted.removeprefix("m-"), f"m-{wanted}"):
            if candidate in self._names:
                return self._entries[self._names[candidate]]
        known = ", ".join(sorted(self._entries))
        raise NotFound(f"expected a model among {known}, got {name!r:.140}")


def find_model(folder: Path) -> Path | None:
    """Find the model of a folder: model.onnx, the folder itself for a package, or the only ONNX file."""
    if (folder / "model.onnx").is_file():
        return folder / "model.onnx"
    if is_text_package(folder) is not None:
        return folder
    files = sorted(folder.glob("*.onnx"))
    return files[0] if len(files) == 1 else None


def _scan(root: Path) -> list[_Entry]:
    if root.is_file():
        return [_Entry(_name_of(root), "1", root)]
    if not root.is_dir():
        raise LoadError(f"expected a folder of models at {root}, got no such folder")
    root = root.resolve()
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    alone = _versions_in(root)
    stray = not {root, root / "model.onnx"} & {*alone.values()} and any(
        not folder.name.isdecimal() and _versions_in(folder) for folder in folders
    )
    if alone and not stray:  # one file beside model folders does not hide them
        return [_Entry(root.name, version, path) for version, path in alone.items()]
    entries: list[_Entry] = []
    for folder in folders:
        found = _versions_in(folder)
        if not found and any(folder.glob("*.onnx")):
            _log.error("%r is passed over: expected model.onnx or one ONNX file", folder.name)
        if found and not NAME.fullmatch(folder.name):
            _log.error("%r is passed over: expected a name of %s", folder.name, NAME.pattern)
            continue
        entries.extend(_Entry(folder.name, version, path) for version, path in found.items())
    lowered = [entry.name.lower() for entry in entries]
    for entry in entries:
        if lowered.count(entry.name.lower()) > sum(other.name == entry.name for other in entries):
            raise LoadError(
                f"expected names that differ in more than case, got {entry.name!r} twice"
            )
    return entries


def _versions_in(folder: Path) -> dict[str, Path]:
    """Find the versions in a model folder, highest first."""
    path = find_model(folder)
    if path is not None:
        return {"1": path}
    numbered = [
        sub
        for sub in folder.iterdir()
        if sub.is_dir() and sub.name.isascii() and sub.name.isdecimal()
    ]
    found = {}
    for sub in sorted(numbered, key=lambda sub: int(sub.name), reverse=True):
        path = find_model(sub)
        if path is not None:
            found[sub.name] = path
    return found


def _name_of(path: Path) -> str:
    """Name a model given as a file: by the file, or by its folder where the file is model.onnx."""
    return path.resolve().parent.name if path.stem == "model" else path.stem


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _zeros(tensor: TensorInfo) -> Any:
    shape = [max(1, size) for size in tensor.shape]
    if tensor.datatype == "BYTES":
        return np.full(shape, "", dtype=object)
    return np.zeros(shape, NUMPY_TYPES[tensor.datatype])
