"""Model folders: which models and versions there are, their state, and the loaded ones.

`MODELS/<name>/[<integer version>/]model.onnx`, beside an optional model.toml and sidecar files. A folder
without an ONNX file is no model and is passed over. One that fails to load does not stop the others.
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

from engine.recognition import Recognition, recognise
from engine.session import LoadError, RunError, Session
from proto.datatypes import NUMPY_TYPES
from proto.errors import ModelNotReady, NotFound
from proto.messages import ModelInfo, ModelState, ModelStatus, TensorInfo
from tasks import TASKS, Task
from tasks.image import Image
from tasks.predictions import OutputError
from tasks.references import resolve

PLATFORM = "onnxruntime_onnx"
NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

_log = logging.getLogger("quadriga.models")


class Model:
    """One version of a model, loaded and ready to answer.

    Args:
        name: Of its folder.
        version: Of its version folder, or `1`.
        path: The ONNX file.
        score_threshold: The server's default for detections, where the model says nothing.

    Raises:
        LoadError: It cannot be loaded, or does not answer its warm-up.
    """

    def __init__(
        self, name: str, version: str, path: Path, score_threshold: float | None = None
    ) -> None:
        self.name = name
        self.version = version
        self.session = Session(path)
        self.recognition: Recognition = recognise(path.parent, self.session, score_threshold)
        runtime = self.recognition.runtime
        if (runtime.providers, runtime.intra_op_threads) != (("CPUExecutionProvider",), 1):
            self.session = Session(path, runtime.providers, runtime.intra_op_threads)
        self.sha256 = _sha256(path)
        self.spec = spec = self.recognition.spec
        self.task: Task | None = None if spec is None else resolve(spec.task, TASKS, "a task")(spec)
        if runtime.warmup:
            self._warm_up()

    @property
    def batch_size(self) -> int:
        """How many images run together; negative where the file fixes the number."""
        if self.spec is not None and not (self.spec.output.batch_axis and self.spec.input.batch_axis):
            return -1
        name = self.spec.input.name if self.spec is not None else self.session.inputs[0].name
        axis = next(tensor.shape[0] for tensor in self.session.inputs if tensor.name == name)
        return self.recognition.runtime.max_batch if axis < 0 else -axis

    def info(self, versions: Sequence[str]) -> ModelInfo:
        """Describe the model as a client meets it: image models take images, not tensors."""
        inputs, outputs = self.session.inputs, self.session.outputs
        if self.task is not None:
            inputs = outputs = [TensorInfo("image", "BYTES", (-1,))]
        return ModelInfo(
            self.name, self.version, versions, PLATFORM, self.recognition.task, inputs, outputs
        )

    def _warm_up(self) -> None:
        """Run once, so that the first request is as fast as the next and a wrong model fails here."""
        try:
            if self.task is not None and self.spec is not None:
                width, height = self.spec.input.size_wh
                gray = Image(np.full((height, width, 3), 114, np.uint8))
                tensor, affine = self.task.preprocess(gray)
                batch = np.stack([tensor] * max(1, -self.batch_size))
                outputs = self.session.run({self.spec.input.name: batch})
                first = {name: output[0] for name, output in outputs.items()}
                self.task.predict(first, affine, self.task.options({}))
            else:
                self.session.run({tensor.name: _zeros(tensor) for tensor in self.session.inputs})
        except RunError as error:
            if self.task is None:  # zeros of a guessed size may be no input that the model accepts
                _log.info("%s: warm-up with zeros refused: %s", self.name, error)
                return
            raise LoadError(f"the model fails on a gray image: {error}") from error
        except OutputError as error:
            raise LoadError(f"the model's outputs do not fit its task: {error}") from error


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


def find_model_file(folder: Path) -> Path | None:
    """Find the ONNX file of a model folder: model.onnx, or the only one there is."""
    if (folder / "model.onnx").is_file():
        return folder / "model.onnx"
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
    stray = (root / "model.onnx") not in alone.values() and any(
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
    path = find_model_file(folder)
    if path is not None:
        return {"1": path}
    numbered = [
        sub
        for sub in folder.iterdir()
        if sub.is_dir() and sub.name.isascii() and sub.name.isdecimal()
    ]
    found = {}
    for sub in sorted(numbered, key=lambda sub: int(sub.name), reverse=True):
        path = find_model_file(sub)
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
