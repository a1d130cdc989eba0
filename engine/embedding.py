"""A model's own embedding of an image: which tensor of its graph it is, taken in the run that answers.

The graph is loaded with one output more, which none but `quadriga.engine.image_graph` sees. Where a graph has no
embedding, or onnxruntime refuses the further output, the model answers without one.
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

from quadriga.engine.embedding_finder import AVERAGE, TOKENS, Embedding, EmbeddingFinder
from quadriga.engine.onnx_file import Graph, OnnxFileError, add_output, read_onnx
from quadriga.engine.recognition.model_toml import ModelToml
from quadriga.engine.session import LoadError, Session
from quadriga.engine.stopwatch import Stopwatch
from quadriga.proto.messages import TensorInfo
from quadriga.tasks import full_name

Vector = npt.NDArray[np.float32]
"""An embedding: float32 (D,)."""

NONE = "none"
OF_MODEL = "model:"
"""What stands in model.toml before the name of the model whose embedding is taken instead."""

_OUTPUT = "quadriga_embedding"
"""Name of the output that is the average of a map."""
_LONGEST = 16_384
"""Numbers in an embedding."""
_MOST_BYTES = 2**31 - 2**16
"""Of a model that is read from memory, as protocol buffers have it."""
_POOLINGS = {2: "", 3: TOKENS, 4: AVERAGE}
"""By the number of dimensions."""
_FLOATS = ("FP32", "FP16", "FP64")

_log = logging.getLogger("quadriga.models")


def load_session(
    name: str, path: Path, toml: ModelToml, stopwatch: Stopwatch | None = None
) -> tuple[Session, Embedding]:
    """Load a graph as model.toml says, with its embedding where it has one; `name` is for the log."""
    try:
        header, graph = read_onnx(path)
    except OnnxFileError as error:
        raise LoadError(str(error)) from error
    given = path, toml.runtime.providers, toml.runtime.intra_op_threads, stopwatch
    session = partial(Session, *given, header=header)
    found = _search(graph, toml)
    if found.tensor is None:
        return session(), found
    if path.stat().st_size > _MOST_BYTES:
        reason = f"expected a file of at most {_MOST_BYTES} bytes beside its external weights"
        return session(), Embedding(reason=reason)
    average = _OUTPUT if found.pooling == AVERAGE else ""
    output = average or found.tensor
    changed, hidden = None, ""
    if output not in graph.outputs:
        changed, hidden = add_output(path.read_bytes(), found.tensor, average), output
    try:
        loaded = session(modified_model=changed, hidden_output=hidden)
        info = loaded.hidden_output or next(each for each in loaded.outputs if each.name == output)
        reason = _unfit(info, (4,) if average else (2, 3, 4))
    except LoadError as error:
        reason = f"onnxruntime refuses it as an output: {error}"
    if reason:
        plain = session()  # where the file itself is at fault, its error is all there is to say
        _log.warning("%s: no embedding of the tensor %r: %s", name, found.tensor, reason)
        return plain, Embedding(reason=f"tensor {found.tensor!r}: {reason}")
    pooling = _POOLINGS.get(len(info.shape), found.pooling)
    return loaded, Embedding(found.tensor, pooling, found.reason, _length(info), output)


def encoder_embedding(toml: ModelToml, tensor: str) -> Embedding:
    """Say what the embedding of a model is whose tokens of the image, (N, T, D), are an output already."""
    written = toml.monitor.embedding
    if written is None:
        return Embedding(tensor, TOKENS, "the image encoder's output")
    if elsewhere := _elsewhere(written):
        return elsewhere
    raise LoadError(
        f"expected [monitor] embedding in model.toml to be {NONE!r} or '{OF_MODEL}<name>' for an image-text "
        f"model, got {written!r}"
    )


def with_length(embedding: Embedding, vector: Vector | None) -> Embedding:
    """Take note of what the embedding of one image is; None says that the tensor is no embedding."""
    if embedding.tensor is None:
        return embedding
    if vector is None:
        expected = f"expected one vector an image of finite numbers, at most {_LONGEST}"
        return Embedding(reason=f"tensor {embedding.tensor!r}: {expected}")
    return msgspec.structs.replace(embedding, length=len(vector))


def pool_vectors(array: npt.NDArray[Any], rows: int) -> list[Vector | None]:
    """Make one vector an image of an output.

    Args:
        array: (N, D), (N, T, D) as tokens or (N, D, H, W) as maps, of any floating type.
        rows: The N expected.

    Returns:
        A vector an image; None for each where the array is of another shape, and for one that has values that
        are no finite numbers.
    """
    if array.ndim not in (2, 3, 4) or len(array) != rows or array.dtype.kind != "f":
        return [None] * rows
    with np.errstate(all="ignore"):  # what is not finite is left out below
        if array.shape[2:] == (1, 1):
            array = array.reshape(rows, -1)
        elif array.ndim > 2:
            array = array.mean(1 if array.ndim == 3 else (2, 3), dtype=np.float32)
        vectors = [np.array(row, np.float32) for row in array]
    fits = 0 < array.shape[1] <= _LONGEST
    return [vector if fits and np.isfinite(vector).all() else None for vector in vectors]


def mean_vector(vectors: Sequence[Vector | None]) -> Vector | None:
    """Give the mean of the embeddings of an image's parts; None where one is missing."""
    found = [vector for vector in vectors if vector is not None]
    return np.mean(found, axis=0) if found and len(found) == len(vectors) else None


def _elsewhere(written: str) -> Embedding | None:
    """Read what model.toml says where it names no tensor: no embedding, or that of another model."""
    if written == NONE:
        return Embedding(reason="model.toml")
    other = written.removeprefix(OF_MODEL)
    return None if other == written else Embedding(reason="model.toml", other=other)


def _search(graph: Graph, toml: ModelToml) -> Embedding:
    written = toml.monitor.embedding
    if written is not None and (elsewhere := _elsewhere(written)):
        return elsewhere
    images = [name for name, shape in graph.inputs.items() if len(shape) in (3, 4)]
    image = toml.input.get("name") or (images[0] if len(images) == 1 else "")
    search = EmbeddingFinder(graph, image)
    if written is not None:
        found = search.by_name(written)
        if found is None:
            near = difflib.get_close_matches(written, search.names(), 3, 0)
            raise LoadError(
                f"expected [monitor] embedding in model.toml to be {NONE!r}, '{OF_MODEL}<name>' or a tensor of "
                f"the graph, such as {', '.join(map(repr, near))}, got {written!r}"
            )
        return found
    if toml.task is not None and full_name(toml.task) == "TENSOR":
        return Embedding(reason="the model takes tensors")
    if not image:
        return Embedding(reason="expected one input of 3 or 4 dimensions, which takes the image")
    return search.find()


def _unfit(info: TensorInfo, ranks: Sequence[int]) -> str:
    """Say why an output is no embedding; empty where it may be one."""
    if info.datatype not in _FLOATS:
        return f"expected floating numbers, got {info.datatype}"
    if info.shape and len(info.shape) not in ranks:  # empty where onnxruntime does not know it
        return f"expected {' or '.join(map(str, ranks))} dimensions, got {list(info.shape)}"
    if (_length(info) or 1) > _LONGEST:
        return f"expected at most {_LONGEST} numbers, got {_length(info)}"
    return ""


def _length(info: TensorInfo) -> int | None:
    size = {2: 1, 3: 2, 4: 1}.get(len(info.shape))
    return None if size is None or info.shape[size] < 1 else info.shape[size]
