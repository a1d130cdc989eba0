"""A model's own embedding of an image: which tensor of its graph it is, taken in the run that answers.

The graph is loaded with one output more, which none but `engine.image_graph` sees. Where a graph has no
embedding, or onnxruntime refuses the further output, the model answers without one.
"""

import difflib
import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from engine.model_toml import ModelToml
from engine.onnx_file import OnnxFileError
from engine.onnx_graph import Graph, read_graph, with_output
from engine.penultimate import AVERAGE, TOKENS, Found, Search
from engine.session import LoadError, Session
from engine.stopwatch import Stopwatch
from proto.messages import TensorInfo
from tasks import SHORT_NAMES

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


class Embedding(msgspec.Struct, frozen=True):
    """Where a model's embedding comes from."""

    tensor: str | None
    """None where there is none, or where it is another model's."""
    pooling: str
    """What makes one vector an image of the tensor; empty where it is one."""
    reason: str
    """Why it is this tensor, or why there is none."""
    length: int | None = None
    """Numbers in it; None where nothing has shown it yet."""
    output: str = ""
    """Name of the session's output that has it."""
    other: str = ""
    """Name of the model whose embedding is taken instead."""

    def shown(self, vector: Vector | None) -> "Embedding":
        """Take note of what the embedding of one image is; None says that the tensor is no embedding."""
        if self.tensor is None:
            return self
        if vector is None:
            reason = f"tensor {self.tensor!r}: expected one vector an image of finite numbers, at most {_LONGEST}"
            return Embedding(None, "", reason)
        return msgspec.structs.replace(self, length=len(vector))

    def space(self, sha256: str) -> str | None:
        """Name the embedding in 16 hexadecimal digits: those of other spaces are not compared with it."""
        if self.tensor is None:
            return None
        return hashlib.sha256(f"{sha256} {self.tensor}".encode()).hexdigest()[:16]


def load(
    name: str, path: Path, toml: ModelToml, stopwatch: Stopwatch | None = None
) -> tuple[Session, Embedding]:
    """Load a graph as model.toml says, with its embedding where it has one.

    Args:
        name: Of the model, for the log.
        path: The ONNX file.
        toml: The model's model.toml.
        stopwatch: Takes the time of each run.

    Raises:
        LoadError: The graph cannot be loaded, or has no tensor of the name in model.toml.
    """
    runtime = toml.runtime
    given = path, runtime.providers, runtime.intra_op_threads, stopwatch
    found = Found(None, "", "")
    try:
        graph = read_graph(path)
        found = _search(graph, toml)
    except OnnxFileError:  # the session says what is wrong with the file
        graph = Graph((), {}, {}, {}, {})
    if found.tensor is None:
        return Session(*given), Embedding(None, "", found.reason, other=_other(toml))
    if path.stat().st_size > _MOST_BYTES:
        reason = f"expected a file of at most {_MOST_BYTES} bytes beside its external weights"
        return Session(*given), Embedding(None, "", reason)
    average = _OUTPUT if found.pooling == AVERAGE else ""
    output = average or found.tensor
    changed, hidden = None, ""
    if output not in graph.outputs:
        changed, hidden = with_output(path.read_bytes(), found.tensor, average), output
    try:
        session = Session(*given, changed=changed, hidden=hidden)
        known = {tensor.name: tensor for tensor in session.outputs}
        info = session.hidden or known[output]
        reason = _unfit(info, (4,) if average else (2, 3, 4))
    except LoadError as error:
        reason = f"onnxruntime refuses it as an output: {error}"
    if reason:
        session = Session(*given)
        _log.warning("%s: no embedding of the tensor %r: %s", name, found.tensor, reason)
        return session, Embedding(None, "", f"tensor {found.tensor!r}: {reason}")
    pooling = _POOLINGS.get(len(info.shape), found.pooling)
    return session, Embedding(found.tensor, pooling, found.reason, _length(info), output)


def of_encoder(toml: ModelToml, tensor: str) -> Embedding:
    """Say what the embedding of a model is whose tokens of the image are an output already.

    Args:
        toml: Its model.toml.
        tensor: The output, (N, T, D).

    Raises:
        LoadError: model.toml names a tensor.
    """
    written = toml.monitor.embedding
    if written is None:
        return Embedding(tensor, TOKENS, "the image encoder's output")
    if written == NONE or written.startswith(OF_MODEL):
        return Embedding(None, "", "model.toml", other=_other(toml))
    raise LoadError(
        f"expected [monitor] embedding in model.toml to be {NONE!r} or '{OF_MODEL}<name>' for an image-text "
        f"model, got {written!r}"
    )


def pool(array: npt.NDArray[Any], rows: int) -> list[Vector | None]:
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
    return [
        vector if 0 < len(vector) <= _LONGEST and np.isfinite(vector).all() else None
        for vector in vectors
    ]


def mean(vectors: Sequence[Vector | None]) -> Vector | None:
    """Give the mean of the embeddings of an image's parts; None where one is missing."""
    found = [vector for vector in vectors if vector is not None]
    return np.mean(found, axis=0) if found and len(found) == len(vectors) else None


def _search(graph: Graph, toml: ModelToml) -> Found:
    """Find the tensor that model.toml names, or by what the graph is."""
    written = toml.monitor.embedding
    if written == NONE or (written is not None and written.startswith(OF_MODEL)):
        return Found(None, "", "model.toml")
    search = Search(graph, image := _image(graph, toml))
    if written is not None:
        found = search.named(written)
        if found is None:
            near = difflib.get_close_matches(written, search.names(), 3, 0)
            raise LoadError(
                f"expected [monitor] embedding in model.toml to be {NONE!r}, '{OF_MODEL}<name>' or a tensor of "
                f"the graph, such as {', '.join(map(repr, near))}, got {written!r}"
            )
        return found
    task = toml.task or ""
    if SHORT_NAMES.get(task.lower(), task.upper()) == "TENSOR":
        return Found(None, "", "the model takes tensors")
    if not image:
        return Found(None, "", "expected one input of 3 or 4 dimensions, which takes the image")
    return search.find()


def _image(graph: Graph, toml: ModelToml) -> str:
    """Give the name of the input that takes the image; empty where that is not plain."""
    found = [name for name, shape in graph.inputs.items() if len(shape) in (3, 4)]
    written = str(toml.input.get("name", ""))
    return written or (found[0] if len(found) == 1 else "")


def _other(toml: ModelToml) -> str:
    written = toml.monitor.embedding or ""
    return written.removeprefix(OF_MODEL) if written.startswith(OF_MODEL) else ""


def _unfit(info: TensorInfo, ranks: Sequence[int]) -> str:
    """Say why an output is no embedding; empty where it may be one."""
    if info.datatype not in _FLOATS:
        return f"expected floating numbers, got {info.datatype}"
    if (
        info.shape and len(info.shape) not in ranks
    ):  # it is empty where onnxruntime does not know it
        return f"expected {' or '.join(map(str, ranks))} dimensions, got {list(info.shape)}"
    if (_length(info) or 1) > _LONGEST:
        return f"expected at most {_LONGEST} numbers, got {_length(info)}"
    return ""


def _length(info: TensorInfo) -> int | None:
    size = {2: 1, 3: 2, 4: 1}.get(len(info.shape))
    return None if size is None or info.shape[size] < 1 else info.shape[size]
