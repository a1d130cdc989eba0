"""A model's own embedding of an image: a tensor of its graph, computed in the same run as the predictions.

The graph is loaded with one more output, which only `quadriga.engine.models.image_graph` sees. If a graph has no
embedding, or onnxruntime refuses the additional output, the model works without one.
"""

import difflib
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.engine.measures.stopwatch import Stopwatch
from quadriga.engine.models.onnx.embedding_finder import (
    AVERAGE,
    TOKENS,
    EmbeddingFinder,
    EmbeddingSource,
)
from quadriga.engine.models.onnx.onnx_file import Graph, OnnxFileError, add_output, read_onnx
from quadriga.engine.models.recognition.model_toml import ModelToml
from quadriga.engine.models.runners.session import LoadError, Runner, Session
from quadriga.proto.messages import TensorInfo
from quadriga.tasks import full_name

Vector = npt.NDArray[np.float32]
"""An embedding: float32 (D,)."""

NONE = "none"
OTHER_MODEL_PREFIX = "model:"
"""Prefix in model.toml of the name of another model whose embedding is used instead."""

_AVERAGE_OUTPUT = "quadriga_embedding"
"""Name of the added output that is the average of a map."""
_MAX_LENGTH = 16_384
"""Maximum length of an embedding."""
_MAX_MODEL_BYTES = 2**31 - 2**16
"""Maximum size of a model that is loaded from memory, a limit of protocol buffers."""
_POOLINGS = {2: "", 3: TOKENS, 4: AVERAGE}
"""Pooling by the number of dimensions of the tensor."""
_FLOATS = ("FP32", "FP16", "FP64")

_log = logging.getLogger("quadriga.models")


def load_session(
    name: str, path: Path, toml: ModelToml, *, stopwatch: Stopwatch, runner: Runner
) -> tuple[Session, EmbeddingSource]:
    """Load a graph as model.toml says, with its embedding if it has one; `name` is for the log."""
    try:
        header, graph = read_onnx(path)
    except OnnxFileError as error:
        raise LoadError(str(error)) from error
    runtime = toml.runtime
    session = partial(
        Session,
        path,
        runtime.providers,
        runtime.intra_op_threads,
        stopwatch,
        header=header,
        runner=runner,
        provider_fallback=runtime.provider_fallback,
    )
    source = _find_embedding(graph, toml)
    if source.tensor is None:
        return session(), source
    if path.stat().st_size > _MAX_MODEL_BYTES:
        reason = f"expected a file of at most {_MAX_MODEL_BYTES} bytes beside its external weights"
        return session(), EmbeddingSource(reason=reason)
    average = _AVERAGE_OUTPUT if source.pooling == AVERAGE else ""
    output = average or source.tensor
    try:
        if output in graph.outputs:
            loaded = session()
        else:
            model = add_output(path.read_bytes(), source.tensor, average)
            loaded = session(modified_model=model, hidden_output=output)
        outputs = [*loaded.outputs, loaded.hidden_output]
        info = next(tensor for tensor in outputs if tensor and tensor.name == output)
        reason = _unfit_reason(info, (4,) if average else (2, 3, 4))
    except LoadError as error:
        reason = f"onnxruntime refuses it as an output: {error}"
    if reason:
        unmodified = session()  # raises if the file itself is at fault
        _log.warning("%s: no embedding of the tensor %r: %s", name, source.tensor, reason)
        return unmodified, EmbeddingSource(reason=f"tensor {source.tensor!r}: {reason}")
    pooling = _POOLINGS.get(len(info.shape), source.pooling)
    return loaded, EmbeddingSource(
        source.tensor, pooling, source.reason, length=_length(info), output=output
    )


def encoder_embedding(toml: ModelToml, tensor: str) -> EmbeddingSource:
    """Return the embedding of a model whose image tokens (N, T, D) are an output already."""
    written = toml.monitor.embedding
    if written is None:
        return EmbeddingSource(tensor, TOKENS, "the image encoder's output")
    if other_source := _parse_other_source(written):
        return other_source
    raise LoadError(
        f"expected [monitor] embedding in model.toml to be {NONE!r} or '{OTHER_MODEL_PREFIX}<name>' for an image-text "
        f"model, got {written!r}"
    )


def with_length(embedding: EmbeddingSource, vector: Vector | None) -> EmbeddingSource:
    """Complete a source with the length of an image's embedding; None means that it is no embedding."""
    if embedding.tensor is None:
        return embedding
    if vector is None:
        expected = f"expected one vector of at most {_MAX_LENGTH} finite numbers per image"
        return EmbeddingSource(reason=f"tensor {embedding.tensor!r}: {expected}")
    return msgspec.structs.replace(embedding, length=len(vector))


def pool_vectors(array: npt.NDArray[Any], rows: int) -> list[Vector | None]:
    """Pool an output to one vector per image.

    Args:
        array: (N, D), (N, T, D) as tokens or (N, D, H, W) as maps, of any floating type.
        rows: The expected N.

    Returns:
        One vector per image; None for all if the array has another shape, and for an image whose vector is not
        finite.
    """
    if array.ndim not in (2, 3, 4) or len(array) != rows or array.dtype.kind != "f":
        return [None] * rows
    with np.errstate(all="ignore"):  # vectors that are not finite are dropped below
        if array.shape[2:] == (1, 1):
            array = array.reshape(rows, -1)
        elif array.ndim > 2:
            array = array.mean(1 if array.ndim == 3 else (2, 3), dtype=np.float32)
        vectors = [np.array(row, np.float32) for row in array]
    fits = 0 < array.shape[1] <= _MAX_LENGTH
    return [vector if fits and np.isfinite(vector).all() else None for vector in vectors]


def mean_vector(vectors: Sequence[Vector | None]) -> Vector | None:
    """Return the mean of the embeddings of an image's tiles; None if one is missing."""
    present = [vector for vector in vectors if vector is not None]
    return np.mean(present, axis=0) if present and len(present) == len(vectors) else None


def _parse_other_source(written: str) -> EmbeddingSource | None:
    """Return the source in model.toml if it is not a tensor: no embedding, or that of another model."""
    if written == NONE:
        return EmbeddingSource(reason="model.toml")
    other_model = written.removeprefix(OTHER_MODEL_PREFIX)
    return (
        None
        if other_model == written
        else EmbeddingSource(reason="model.toml", other_model=other_model)
    )


def _find_embedding(graph: Graph, toml: ModelToml) -> EmbeddingSource:
    written = toml.monitor.embedding
    if written is not None and (other_source := _parse_other_source(written)):
        return other_source
    ranks = {name: len(shape) for name, shape in graph.inputs.items()}
    images = [name for name in ranks if ranks[name] == (4 if 4 in ranks.values() else 3)]
    image = toml.input.get("name") or (images[0] if len(images) == 1 else "")
    finder = EmbeddingFinder(graph, image)
    if written is not None:
        source = finder.by_name(written)
        if source is None:
            near = difflib.get_close_matches(written, finder.names(), 3, 0)
            raise LoadError(
                f"expected [monitor] embedding in model.toml to be {NONE!r}, '{OTHER_MODEL_PREFIX}<name>' or a tensor of "
                f"the graph, such as {', '.join(map(repr, near))}, got {written!r}"
            )
        return source
    if toml.task is not None and full_name(toml.task) == "TENSOR":
        return EmbeddingSource(reason="the model takes tensors")
    if not image:
        return EmbeddingSource(
            reason="expected one input of 3 or 4 dimensions, which takes the image"
        )
    return finder.find()


def _unfit_reason(info: TensorInfo, ranks: Sequence[int]) -> str:
    """Return why an output cannot be an embedding; empty if it can."""
    if info.datatype not in _FLOATS:
        return f"expected floating numbers, got {info.datatype}"
    if info.shape and len(info.shape) not in ranks:  # empty where onnxruntime does not know it
        return f"expected {' or '.join(map(str, ranks))} dimensions, got {list(info.shape)}"
    if (_length(info) or 1) > _MAX_LENGTH:
        return f"expected at most {_MAX_LENGTH} numbers, got {_length(info)}"
    return ""


def _length(info: TensorInfo) -> int | None:
    size = {2: 1, 3: 2, 4: 1}.get(len(info.shape))
    return None if size is None or info.shape[size] < 1 else info.shape[size]
