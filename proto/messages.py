"""What all protocols have in common: data, and the interface of the server behind them."""

import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import numpy.typing as npt

from quadriga.proto.errors import InvalidRequest

Result = TypeVar("Result")

ModelState = Literal["LOADING", "READY", "FAILED", "UNLOADED"]

NotFinite = Literal["token", "null", "error"]
"""What stands for NaN and the infinities in JSON, which has no word for them."""

MAX_NAME_CHARACTERS = 1024
"""Of a request's id and an input's name, which are stored with each inference."""

MAX_NAME_BYTES = 2048
"""Of the same, as UTF-8: PostgreSQL indexes no more than 2,704."""


def check_name(subject: str, name: str) -> None:
    """Refuse a name that is too long to be stored."""
    if len(name) > MAX_NAME_CHARACTERS:
        raise InvalidRequest(
            f"expected {subject} of at most {MAX_NAME_CHARACTERS} characters, got {len(name)}"
        )
    size_bytes = len(name.encode(errors="replace")) + 2 * name.count("\0")  # stored as three bytes
    if size_bytes > MAX_NAME_BYTES:
        raise InvalidRequest(
            f"expected {subject} of at most {MAX_NAME_BYTES} bytes, got {size_bytes}"
        )


def first_request_id(*ids: str | None) -> str:
    """Take the first id that is given and not empty, or else a new one; raises as `check_name`."""
    id_ = next(filter(None, ids), None) or str(uuid.uuid4())
    check_name("id", id_)
    return id_


class Tensor(msgspec.Struct, frozen=True):
    """A named array, or for `BYTES` a list of elements.

    `data` is an array of `shape`; for `BYTES` input a flat list of `str` (as JSON carries them) or
    `bytes`; for `BYTES` output a flat list of `str`, `bytes` or JSON-encodable predictions.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: npt.NDArray[Any] | list[Any]
    parameters: Mapping[str, Any] = {}


class StorageOptions(msgspec.Struct, frozen=True):
    """What a request asks to store, and to say, of one image; the fields are parameters of the request."""

    store: bool = True
    store_input: bool = True
    semantic_score: bool | None = None
    """Whether its semantic score is wanted in the output's parameters; None follows the setting."""


DEFAULT_STORAGE = StorageOptions()
"""Defaults used when the request omits all of them."""


class ImageInput(msgspec.Struct, frozen=True):
    """One input of images, as bytes, whatever form they had on the wire."""

    name: str
    location: str
    """Place in the request, for messages: `inputs[0] ('image')`."""
    images: Iterator[bytes]
    """Images as files, at least one; decoded as they are taken, so that parameters can be checked first."""
    parameters: Mapping[str, Any]
    """Parameters of the request, overridden by the input's own."""
    metadata: dict[str, Any]
    """Metadata as plain nested JSON."""
    storage: StorageOptions = DEFAULT_STORAGE


class RequestedOutput(msgspec.Struct):
    """An output that a request asks for."""

    name: str
    parameters: dict[str, Any] | None = None


class InferRequest(msgspec.Struct, frozen=True):
    """One request to a model, whatever protocol it came by."""

    model: str
    version: str | None
    id: str
    inputs: Sequence[Tensor]
    requested_outputs: Sequence[RequestedOutput] = ()
    """The outputs wanted, in their order; empty for all."""
    parameters: Mapping[str, Any] = {}
    protocol: str = "v2"
    """By which it came, as it is stored."""


class InferResponse(msgspec.Struct, frozen=True):
    """What the model answered."""

    model: str
    version: str
    id: str
    outputs: Sequence[Tensor]
    inference_ids: Sequence[str] = ()
    """Ids of the stored inferences, in the order of the images."""
    stored: bool = True
    """False where the store had no room for it and it was answered all the same."""
    lag_bytes: int = 0
    """That the store is behind, where that is more than it should be."""
    headers: Sequence[tuple[str, str]] = ()
    """Further ones, whose names the settings say."""


class InferChunk(msgspec.Struct, frozen=True):
    """A piece of a text that a model answers; the pieces of one answer together are the text."""

    model: str
    version: str
    id: str
    text: str
    inference_ids: Sequence[str] = ()
    """Id of the stored inference; with the last piece alone."""
    stored: bool = True
    """As in `InferResponse`; with the last piece alone."""


class TensorInfo(msgspec.Struct, frozen=True):
    """An input or output of a model; -1 stands for a variable dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class ModelInfo(msgspec.Struct, frozen=True):
    """A model's metadata."""

    name: str
    version: str
    versions: Sequence[str]
    platform: str
    task: str
    inputs: Sequence[TensorInfo]
    outputs: Sequence[TensorInfo]
    labels: Sequence[str] = ()
    """Of the classes, by index."""
    version_labels: Sequence[str] = ()
    """Names under which TF Serving's paths find this version, such as `stable`."""
    max_batch: int = 1
    """Images, or rows of tensors, that run together."""


class ModelStatus(msgspec.Struct, frozen=True):
    """The state of one version of one model."""

    name: str
    version: str
    state: ModelState
    reason: str = ""


class Duration(msgspec.Struct, frozen=True):
    """How often something was done, and how long it took in all."""

    count: int = 0
    ns: int = 0


class BatchStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The executions of one size of batch."""

    batch_size: int
    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()


class ModelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What one version of one model has done since it was loaded.

    A request may hold several images; an execution is one run of the graph, of a batch of them.
    """

    name: str
    version: str
    last_inference_ms: int = 0
    """Milliseconds since 1970; 0 before the first."""
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = Duration()
    fail: Duration = Duration()
    queue: Duration = Duration()
    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()
    batches: Sequence[BatchStatistics] = ()
    """By size, each once."""


class Serving(Protocol):
    """The server behind the protocols; `quadriga.engine.pipeline` satisfies it."""

    def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request; plain and slow, so it is called inside `run`.

        Raises:
            quadriga.proto.errors.ProtocolError: With the text for the client; so do the others.
        """
        ...

    def stream(self, request: InferRequest) -> Iterator[InferChunk]:
        """Answer one prompt about one image piece by piece; plain and slow, as `infer`.

        Whatever is wrong with the request is raised before the first piece. An iterator that is
        closed before its end ends the work.
        """
        ...

    def explain(self, request: InferRequest) -> tuple[InferResponse, Sequence[Any]]:
        """Answer as `infer`, and give one JSON-encodable explanation of each image.

        Raises:
            quadriga.proto.errors.Unsupported: The model's task has no explanation.
        """
        ...

    def run(self, task: Callable[[], Result]) -> Awaitable[Result]:
        """Run a task in the bounded pool of threads, off the event loop."""
        ...

    def model_info(self, name: str, version: str | None) -> ModelInfo:
        """Describe a model that is ready.

        Raises:
            quadriga.proto.errors.NotFound: No such model or version.
            quadriga.proto.errors.ModelNotReady: It is loading or has failed.
        """
        ...

    def model_statuses(self) -> Sequence[ModelStatus]:
        """Give the state of every version of every model."""
        ...

    def unready_reason(self) -> str | None:
        """Say why the server is not ready, or None when it is."""
        ...

    def load_model(
        self, name: str, config: Mapping[str, Any] | None, files: Mapping[str, bytes]
    ) -> None:
        """Load a model of the repository, or load it again; plain and slow.

        Args:
            name: Of a folder in the repository, or a new name where files are given.
            config: What goes before the folder's model.toml, key by key, if anything does.
            files: Contents by path below the folder, which stand for the folder's own.
        """
        ...

    def unload_model(self, name: str) -> None:
        """Stop serving a model, whose folder stays."""
        ...

    def statistics(self, name: str | None, version: str | None) -> Sequence[ModelStatistics]:
        """Give the statistics of one model, or of all."""
        ...
