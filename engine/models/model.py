"""One version of a model, loaded: its session, what it means, and how a client meets it."""

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.engine.models.embedding import EmbeddingSource, load_session, with_length
from quadriga.engine.models.image_graph import ImageGraph, Vector
from quadriga.engine.models.image_text.generation import VARIANTS, TextPackage
from quadriga.engine.models.model_host import ModelHost
from quadriga.engine.models.recognition.decisions import Decision
from quadriga.engine.models.recognition.evidence import check_activation
from quadriga.engine.models.recognition.model_toml import ModelToml, read_model_toml
from quadriga.engine.models.recognition.recognise import Recognition, recognise
from quadriga.engine.models.runners.crashes import ModelRuns
from quadriga.engine.models.runners.session import CPU, LoadError, LocalRunner, RunError
from quadriga.proto.datatypes import NUMPY_TYPES
from quadriga.proto.errors import ModelNotReady
from quadriga.proto.messages import ModelInfo, TensorInfo
from quadriga.store.records.records import ModelReference
from quadriga.tasks.classification import RowClassification
from quadriga.tasks.image import Image
from quadriga.tasks.specification import ModelSpec

ROW_OUTPUT = "predictions"
"""Name of the output that holds the predictions of each row of features."""

PLATFORM = "onnx_onnxv1"
"""Platform of all models, as the Open Inference Protocol lists it."""

EXAMPLES = 3
"""Inputs that are tried alone and beside others before requests share runs."""

ONNX_SUBFOLDER = "onnx"
"""Folder of the ONNX file below the one of config.json, in the layout of transformers.js."""

ONNX_NAMES = tuple(f"model{end}.onnx" for end in VARIANTS)
"""Names of a model's graph in several precisions, in order of preference."""

_log = logging.getLogger("quadriga.models")


class Model:
    """One version of a model, loaded and ready to answer.

    It is in the ONNX file `path`, or in the folder of a package of several. `score_threshold` is the server's
    default for detections, where the model says nothing; `overrides` go before its model.toml. `host` gives it
    its counts and what runs its graphs; without one it runs in this process, which counts for itself.

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
        *,
        host: ModelHost | None = None,
    ) -> None:
        host = host or ModelHost()
        toml = read_model_toml(path if path.is_dir() else model_folder(path), overrides)
        self.run_mark = ModelRuns(host.counts, name, version)
        """Counts the runs of the model, for the case that one ends the process."""
        self.runner = host.runner(toml.runtime, self.run_mark, path)
        """Runs its graphs, in this process or in one of the model's own."""
        self.name = name
        self.version = version
        self.image_predictor: ImageGraph | TextPackage | None = None
        """Predicts what images show; None where the model takes tensors."""
        self.row_classifier: RowClassification | None = None
        """Classifies rows of features; None for other models."""
        self.counters = host.counters(name, version)
        if path.is_dir():
            self._open_package(path, toml)
        else:
            self._open_graph(path, toml, score_threshold)
        labelled = self.spec or self.recognition.rows
        self.labels: tuple[str, ...] = () if labelled is None else labelled.labels
        """Labels of its classes, by class id; empty where it has none."""
        self.sha256 = _sha256(self.paths)
        self.reference = ModelReference(name, version, self.sha256)
        """The model as records name it."""
        self.preprocessing: str | None = None
        """Hash of how images become input: models with equal hashes prepare them alike."""
        if self.spec is not None:
            encoded = msgspec.json.encode(self.spec.input)
            self.preprocessing = hashlib.sha256(encoded).hexdigest()[:12]
        try:
            with self.run_mark.running():
                if toml.runtime.warmup or host.origin == "trial":
                    self._warm_up()
                self._share_runs()
        except ModelNotReady as error:  # it has a process of its own, which has ended
            raise LoadError(str(error)) from error
        self.runner.end_loading()
        self.is_light = self._is_light()
        """Whether the work for tensors follows from their shapes, and is done by the thread that asks for it."""
        self.embedding_space = self.embedding.space_id(self.sha256)
        """Embedding-space id (16 hex digits), or None."""

    def _open_package(self, path: Path, toml: ModelToml) -> None:
        """Open a package of several graphs."""
        self.image_predictor = package = TextPackage(path, toml, self.runner)
        self.session = package.session
        self.recognition: Recognition = package.recognition
        self.embedding = package.embedding
        self.paths = package.paths

    def _open_graph(self, path: Path, toml: ModelToml, score_threshold: float | None) -> None:
        """Open a graph, and what predicts by it."""
        self.session, self.embedding = load_session(self.name, path, toml, runner=self.runner)
        self.recognition = recognise(model_folder(path), self.session, toml, score_threshold)
        self.paths = [path]
        if self.spec is not None:
            self.image_predictor = self._image_graph(self.spec)
            return
        self.embedding = EmbeddingSource(reason="the model takes tensors")
        if self.recognition.rows is not None:
            self.row_classifier = RowClassification(self.recognition.rows)

    def _image_graph(self, spec: ModelSpec) -> ImageGraph:
        max_batch, family = self.recognition.written.runtime.max_batch, self.recognition.family
        return ImageGraph(self.session, spec, max_batch, self.embedding.output, family)

    @property
    def spec(self) -> ModelSpec | None:
        """Meaning of its input and outputs; None where the model takes tensors."""
        return self.recognition.spec

    @property
    def tensor_inputs(self) -> list[TensorInfo]:
        """Inputs of the graph as a client sends them: any number of rows to a classifier of rows."""
        inputs = self.session.inputs
        if self.row_classifier is None:
            return inputs
        return [TensorInfo(info.name, info.datatype, (-1, *info.shape[1:])) for info in inputs]

    def info(self, versions: Sequence[str]) -> ModelInfo:
        """Describe the model as a client meets it: image models take images, and classifiers answer labels."""
        inputs, outputs = self.tensor_inputs, self.session.outputs
        max_batch = self.recognition.written.runtime.max_batch
        if self.image_predictor is not None:
            max_batch = abs(self.image_predictor.batch_size)
            inputs = outputs = [TensorInfo("image", "BYTES", (-1,))]
        elif self.row_classifier is not None:
            outputs = [TensorInfo(ROW_OUTPUT, "BYTES", (-1,))]
        takes_raw = isinstance(self.image_predictor, ImageGraph)
        return ModelInfo(
            name=self.name,
            version=self.version,
            versions=versions,
            platform=PLATFORM,
            task=self.recognition.task,
            inputs=inputs,
            outputs=outputs,
            labels=self.labels,
            features=() if self.recognition.rows is None else self.recognition.rows.features,
            takes_images=self.image_predictor is not None,
            max_batch=max_batch,
            graph_inputs=self.session.inputs if takes_raw else (),
            graph_outputs=self.session.outputs if takes_raw else (),
            version_labels=self.recognition.written.runtime.version_labels,
            providers=() if self.session.providers == (CPU,) else self.session.providers,
        )

    def embed(self, image: Image) -> Vector | None:
        """Return the embedding of an image decoded for this model; None where the model has none."""
        if self.image_predictor is None:
            return None
        with self.run_mark.running():
            return self.image_predictor.embed(image)

    def _warm_up(self) -> None:
        """Run once, so that the first request is as fast as the next and a wrong model fails here."""
        try:
            if self.image_predictor is not None:
                vector = self.image_predictor.warm_up()
                if self._drop_softmax():
                    vector = self.image_predictor.warm_up()
                self.embedding = with_length(self.embedding, vector)
                return
            self.session.run({tensor.name: _zeros(tensor) for tensor in self.session.inputs})
        except RunError as error:  # zeros of a guessed size may be no input that the model accepts
            _log.info("%s: warm-up with zeros refused: %s", self.name, error)

    def _drop_softmax(self) -> bool:
        """Take the scores of a classifier as they are if they sum to 1 already and model.toml does not say otherwise."""
        recognition, spec, graph = self.recognition, self.spec, self.image_predictor
        is_written = "activation" in recognition.written.output
        if spec is None or is_written or not isinstance(graph, ImageGraph):
            return False
        if not graph.is_activated:
            if spec.output.activation != "none":
                check_activation(graph.scored_by)
            return False
        none = Decision("output.activation", "none", "scores of two images sum to 1 already")
        replace = msgspec.structs.replace
        spec = replace(spec, output=replace(spec.output, activation="none"))
        decisions = tuple(none if old.field == none.field else old for old in recognition.decisions)
        self.recognition = replace(recognition, spec=spec, decisions=decisions)
        self.image_predictor = self._image_graph(spec)
        return True

    def _is_light(self) -> bool:
        runtime, session = self.recognition.written.runtime, self.session
        return (
            isinstance(self.runner, LocalRunner)
            and session.providers == (CPU,)
            and not isinstance(self.image_predictor, TextPackage)
            and self.row_classifier is None
            and runtime.intra_op_threads == 1
            and runtime.batching is None
            and session.header.is_bounded
        )

    def _share_runs(self) -> None:
        """Let requests share runs if model.toml says so, and the graph answers them alike.

        Raises:
            LoadError: It does not.
        """
        runtime = self.recognition.written.runtime
        if runtime.batching is None:
            return
        if isinstance(self.image_predictor, TextPackage):
            raise LoadError("batching in model.toml has no use for a package of several graphs")
        if self.image_predictor is None:
            random = np.random.default_rng(0)
            examples = [
                {info.name: _noise(info, random) for info in self.session.inputs}
                for _ in range(EXAMPLES)
            ]
        elif self.image_predictor.batch_size < 0:
            raise LoadError(
                "batching in model.toml: expected an open batch axis of the graph's input and outputs, got a number that "
                "the file fixes: export it with a dynamic batch, or remove the key"
            )
        else:
            examples = self.image_predictor.example_feeds(EXAMPLES)
        runs_at_once = 1
        if self.session.providers[:1] == (CPU,) and runtime.intra_op_threads:
            runs_at_once = max(len(os.sched_getaffinity(0)) // runtime.intra_op_threads, 1)
        paused = nullcontext if isinstance(self.runner, LocalRunner) else self.run_mark.paused
        self.session.share_runs(runtime.batching, examples, runs_at_once, paused)


def model_folder(path: Path) -> Path:
    """Return the folder of an ONNX file and of its sidecars; the file may be in the folder `onnx` below."""
    is_below = path.parent.name == ONNX_SUBFOLDER and not (path.parent / "model.toml").exists()
    return path.parent.parent if is_below and path.name in ONNX_NAMES else path.parent


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


def _noise(tensor: TensorInfo, random: np.random.Generator) -> npt.NDArray[Any]:
    """Return a row of small numbers or texts: whole ones may be indices or divisors, so they are 1 or 2."""
    shape = [1, *(max(1, size) for size in tensor.shape[1:])]
    if tensor.datatype == "BYTES":
        return random.integers(0, 2, shape).astype(str).astype(object)
    kind = np.dtype(NUMPY_TYPES[tensor.datatype])
    numbers = random.normal(size=shape) if kind.kind == "f" else random.integers(1, 3, shape)
    return numbers.astype(kind)
