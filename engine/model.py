"""One version of a model, loaded: its session, what it means, and how a client meets it."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.engine.embedding import Vector, load_session, with_length
from quadriga.engine.embedding_finder import EmbeddingSource
from quadriga.engine.image_graph import ImageGraph
from quadriga.engine.image_text.generation import TextPackage
from quadriga.engine.recognition.model_toml import read_model_toml
from quadriga.engine.recognition.recognise import Recognition, recognise
from quadriga.engine.session import RunError
from quadriga.engine.stopwatch import ModelCounters, Stopwatch
from quadriga.proto.datatypes import NUMPY_TYPES
from quadriga.proto.messages import ModelInfo, TensorInfo
from quadriga.store.records import ModelReference
from quadriga.tasks.image import Image
from quadriga.tasks.specification import ModelSpec

PLATFORM, BACKEND = "onnxruntime_onnx", "onnxruntime"

ONNX_SUBFOLDER = "onnx"
"""Folder of the ONNX file below the one of config.json, in the layout of transformers.js."""

_log = logging.getLogger("quadriga.models")


class Model:
    """One version of a model, loaded and ready to answer.

    It is in the ONNX file `path`, or in the folder of a package of several. `score_threshold` is the server's
    default for detections, where the model says nothing; `overrides` go before its model.toml.

    Raises:
        LoadError: It cannot be loaded, or does not answer its warm-up.
    """

    def __init__(
        self,
        name: str,
        version: str,
        path: Path,
        score_threshold: float | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.image_predictor: ImageGraph | TextPackage | None = None
        """Predicts what images show; None where the model takes tensors."""
        self.counters = ModelCounters()
        self.stopwatch = Stopwatch()
        if path.is_dir():
            self.image_predictor = package = TextPackage(path, overrides, self.stopwatch)
            self.session = package.session
            self.recognition: Recognition = package.recognition
            self.embedding = package.embedding
            self.paths = package.paths
        else:
            folder = model_folder(path)
            toml = read_model_toml(folder, overrides)
            self.session, self.embedding = load_session(name, path, toml, self.stopwatch)
            self.recognition = recognise(folder, self.session, toml, score_threshold)
            if self.spec is None:
                self.embedding = EmbeddingSource(reason="the model takes tensors")
            else:
                max_batch, output = toml.runtime.max_batch, self.embedding.output
                self.image_predictor = ImageGraph(self.session, self.spec, max_batch, output)
            self.paths = [path]
        self.sha256 = _sha256(self.paths)
        self.reference = ModelReference(name, version, self.sha256)
        """The model as records name it."""
        self.preprocessing: str | None = None
        """Hash of how images become input: models with equal hashes prepare them alike."""
        if self.spec is not None:
            encoded = msgspec.json.encode(self.spec.input)
            self.preprocessing = hashlib.sha256(encoded).hexdigest()[:12]
        if self.recognition.written.runtime.warmup:
            self._warm_up()
        self.embedding_space = self.embedding.space_id(self.sha256)
        """Embedding-space id (16 hex digits), or None."""

    @property
    def spec(self) -> ModelSpec | None:
        """Meaning of its input and outputs; None where the model takes tensors."""
        return self.recognition.spec

    def info(self, versions: Sequence[str]) -> ModelInfo:
        """Describe the model as a client meets it: image models take images, not tensors."""
        inputs, outputs = self.session.inputs, self.session.outputs
        max_batch = self.recognition.written.runtime.max_batch
        if self.image_predictor is not None:
            max_batch = abs(self.image_predictor.batch_size)
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
        """Return the embedding of an image decoded for this model; None where the model has none."""
        return None if self.image_predictor is None else self.image_predictor.embed(image)

    def _warm_up(self) -> None:
        """Run once, so that the first request is as fast as the next and a wrong model fails here."""
        if self.image_predictor is not None:
            self.embedding = with_length(self.embedding, self.image_predictor.warm_up())
            return
        try:
            self.session.run({tensor.name: _zeros(tensor) for tensor in self.session.inputs})
        except RunError as error:  # zeros of a guessed size may be no input that the model accepts
            _log.info("%s: warm-up with zeros refused: %s", self.name, error)


def model_folder(path: Path) -> Path:
    """Return the folder of an ONNX file and of its sidecars; the file may be in the folder `onnx` below."""
    is_below = path.parent.name == ONNX_SUBFOLDER and not (path.parent / "model.toml").exists()
    return path.parent.parent if is_below and path.name == "model.onnx" else path.parent


def _sha256(paths: Sequence[Path]) -> str:
    """Identify a file, or several by a digest over theirs."""
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256"))
    if len(digests) == 1:
        return digests[0].hexdigest()
    return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()


def _zeros(tensor: TensorInfo) -> npt.NDArray[Any]:
    shape = [max(1, size) for size in tensor.shape]
    if tensor.datatype == "BYTES":
        return np.full(shape, "", dtype=object)
    return np.zeros(shape, NUMPY_TYPES[tensor.datatype])
