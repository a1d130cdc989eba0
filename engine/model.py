"""One version of a model, loaded: its session, what it means, and how a client meets it."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.engine.embedding import Vector, load, shown
from quadriga.engine.image_graph import ImageGraph
from quadriga.engine.image_text.generation import TextPackage
from quadriga.engine.penultimate import Embedding
from quadriga.engine.recognition.model_toml import read_model_toml
from quadriga.engine.recognition.recognise import Recognition, recognise
from quadriga.engine.session import RunError
from quadriga.engine.stopwatch import Counters, Stopwatch
from quadriga.proto.datatypes import NUMPY_TYPES
from quadriga.proto.messages import ModelInfo, TensorInfo
from quadriga.store.records import ModelReference
from quadriga.tasks.image import Image
from quadriga.tasks.specification import ModelSpec

PLATFORM, BACKEND = "onnxruntime_onnx", "onnxruntime"

BELOW = "onnx"
"""Folder below the one of config.json and the like, in which transformers.js looks for the file."""

_log = logging.getLogger("quadriga.models")


class Model:
    """One version of a model, loaded and ready to answer.

    It is in the ONNX file `path`, or in the folder of a package of several. `score_threshold` is the server's
    default for detections, where the model says nothing; `over` goes before its model.toml.

    Raises:
        LoadError: It cannot be loaded, or does not answer its warm-up.
    """

    def __init__(
        self,
        name: str,
        version: str,
        path: Path,
        score_threshold: float | None = None,
        over: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.images: ImageGraph | TextPackage | None = None
        """Answers images; None where the model takes tensors."""
        self.counters = Counters()
        self.stopwatch = Stopwatch()
        if path.is_dir():
            self.images = package = TextPackage(path, over, self.stopwatch)
            self.session = package.session
            self.recognition: Recognition = package.recognition
            self.embedding = package.embedding
            self.paths = package.paths
        else:
            folder = folder_of(path)
            toml = read_model_toml(folder, over)
            self.session, self.embedding = load(name, path, toml, self.stopwatch)
            self.recognition = recognise(folder, self.session, toml, score_threshold)
            if self.spec is None:
                self.embedding = Embedding(reason="the model takes tensors")
            else:
                max_batch, output = toml.runtime.max_batch, self.embedding.output
                self.images = ImageGraph(self.session, self.spec, max_batch, output)
            self.paths = [path]
        self.sha256 = _sha256(self.paths)
        self.reference = ModelReference(name, version, self.sha256)
        """As records carry it."""
        self.preprocessing: str | None = None
        """Tells how images become input: models with one such hash prepare them alike."""
        if self.spec is not None:
            encoded = msgspec.json.encode(self.spec.input)
            self.preprocessing = hashlib.sha256(encoded).hexdigest()[:12]
        if self.recognition.written.runtime.warmup:
            self._warm_up()
        self.embedding_space = self.embedding.space(self.sha256)
        """Of `recording.Answered.embedding`, in 16 hexadecimal digits; None where there is none."""

    @property
    def spec(self) -> ModelSpec | None:
        """What its input and outputs mean; None where the model takes tensors."""
        return self.recognition.spec

    def info(self, versions: Sequence[str]) -> ModelInfo:
        """Describe the model as a client meets it: image models take images, not tensors."""
        inputs, outputs = self.session.inputs, self.session.outputs
        max_batch = self.recognition.written.runtime.max_batch
        if self.images is not None:
            max_batch = abs(self.images.batch_size)
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
            max_batch=max_batch,
            version_labels=self.recognition.written.runtime.version_labels,
        )

    def embed(self, image: Image) -> Vector | None:
        """Give the embedding of an image decoded for this model; None where the model has none."""
        return None if self.images is None else self.images.embed(image)

    def _warm_up(self) -> None:
        """Run once, so that the first request is as fast as the next and a wrong model fails here."""
        if self.images is not None:
            self.embedding = shown(self.embedding, self.images.warm_up())
            return
        try:
            self.session.run({tensor.name: _zeros(tensor) for tensor in self.session.inputs})
        except RunError as error:  # zeros of a guessed size may be no input that the model accepts
            _log.info("%s: warm-up with zeros refused: %s", self.name, error)


def folder_of(path: Path) -> Path:
    """Give the folder of an ONNX file and of what stands beside it; the file may be in `onnx` below."""
    below = path.parent.name == BELOW and not (path.parent / "model.toml").exists()
    return path.parent.parent if below and path.name == "model.onnx" else path.parent


def _sha256(paths: Sequence[Path]) -> str:
    """Identify a file, or several by a digest over theirs."""
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256"))
    if len(digests) == 1:
        return digests[0].hexdigest()
    return hashlib.sha256(b"".join(each.digest() for each in digests)).hexdigest()


def _zeros(tensor: TensorInfo) -> npt.NDArray[Any]:
    shape = [max(1, size) for size in tensor.shape]
    if tensor.datatype == "BYTES":
        return np.full(shape, "", dtype=object)
    return np.zeros(shape, NUMPY_TYPES[tensor.datatype])
