"""Neutral requests and responses shared by all protocols, and the interface of the server behind them."""

from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import numpy.typing as npt

from quadriga.proto.errors import InvalidRequest, ModelNotReady, Unsupported
from quadriga.proto.request import Deadline, QueueStatistics, new_request_id

Result = TypeVar("Result")

ModelState = Literal["LOADING", "READY", "FAILED", "UNLOADED", "REFUSED"]
"""State of a model version; one that is `REFUSED` is loaded, but has ended its process too often."""

NotFinite = Literal["token", "null", "error"]
"""How NaN and the infinities, which JSON cannot represent, are written: as a bare token, as null, or refused."""

MAX_INPUTS = 10_000
"""Maximum inputs of a request, or images of protocols that make an input of each."""
MAX_NAME_CHARACTERS = 1024
"""Maximum length of a request's id and of an input's name, which are stored with each inference."""

SHARED_MEMORY = "shared_memory_region"
"""Parameter of a tensor that is in shared memory. Source: Triton, extension "shared memory"."""

MAX_NAME_BYTES = 2048
"""Maximum length of the same names in UTF-8: PostgreSQL indexes at most 2,704 bytes."""


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


def check_input_count(count: int) -> None:
    """Refuse a request of more than `MAX_INPUTS` inputs, before each is read."""
    if count > MAX_INPUTS:
        raise InvalidRequest(f"expected at most {MAX_INPUTS} inputs in a request, got {count}")


def first_request_id(*ids: str | None) -> str:
    """Return the first id that is not empty, or a new one; raises as `check_name`."""
    for id_ in ids:
        if id_:
            check_name("id", id_)
            return id_
    return new_request_id()


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
    """Storage options of one image; the fields are parameters of the request."""

    store: bool = True
    store_input: bool = True
    semantic_score: bool | None = None
    """Whether the output's parameters include the semantic score; None follows the setting."""


DEFAULT_STORAGE = StorageOptions()
"""Defaults used when the request omits all of them."""


class ImageInput(msgspec.Struct, frozen=True):
    """One input of images, as bytes, independent of their form on the wire."""

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


def refuse_shared_memory(parameters: Collection[str] | None, location: str) -> None:
    """Refuse a tensor or an output that is in shared memory.

    Raises:
        Unsupported: It is.
    """
    if parameters and SHARED_MEMORY in parameters:
        raise Unsupported(
            f"{location}: expected the data in the message, got shared memory, which this server has not"
        )


class InferRequest(msgspec.Struct, frozen=True):
    """One request to a model, independent of its protocol."""

    model: str
    version: str | None
    id: str
    inputs: Sequence[Tensor]
    requested_outputs: Sequence[RequestedOutput] = ()
    """Requested outputs, in the order of the response; empty for all."""
    parameters: Mapping[str, Any] = {}
    protocol: str = "v2"
    """Name of the protocol of the request, as stored with its inferences."""
    has_text_numbers: bool = False
    """Whether the protocol's parameters have no fractions, so that texts may stand for numbers."""


class InferResponse(msgspec.Struct, frozen=True):
    """Outputs of a model for one request, and the result of storing them."""

    model: str
    version: str
    id: str
    outputs: Sequence[Tensor]
    inference_ids: Sequence[str] = ()
    """Ids of the stored inferences, in the order of the images."""
    stored: bool = True
    """False if the store had no room for the request, which was answered all the same."""
    lag_bytes: int = 0
    """Journal lag, in bytes, if it exceeds the soft limit of the journal; else 0."""
    headers: Sequence[tuple[str, str]] = ()
    """Further headers, whose names come from the settings."""


class InferChunk(msgspec.Struct, frozen=True):
    """A chunk of generated text; the chunks of one response together are the text."""

    model: str
    version: str
    id: str
    text: str
    inference_ids: Sequence[str] = ()
    """Id of the stored inference; only in the last chunk."""
    stored: bool = True
    """Whether the inference was stored, see `InferResponse.stored`; only in the last chunk."""


class TensorInfo(msgspec.Struct, frozen=True):
    """An input or output of a model; -1 stands for a variable dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.datatype} {list(self.shape)}"


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
    """Labels of the classes, by class id."""
    features: Sequence[str] = ()
    """Names of the features of a row, in the order of the inputs and their columns, where anything names them."""
    takes_images: bool = False
    """Whether the inputs are images; else they are the tensors of `inputs`."""
    version_labels: Sequence[str] = ()
    """Names of this version in TF Serving's paths, such as `stable`."""
    max_batch: int = 1
    """Maximum number of images, or of rows of tensors, in one run."""
    graph_inputs: Sequence[TensorInfo] = ()
    """Inputs of the graph, if requests have others unless their content_type is raw."""
    graph_outputs: Sequence[TensorInfo] = ()
    providers: Sequence[str] = ()
    """Execution providers that run it, in order; none where that is onnxruntime's default."""


class ModelStatus(msgspec.Struct, frozen=True):
    """The state of one version of one model."""

    name: str
    version: str
    state: ModelState
    reason: str = ""


HealthState = Literal["ready", "degraded", "not ready", "off"]
"""`degraded`: something is wrong that fails no request; `off`: the settings switch it off."""


class HealthPart(msgspec.Struct, frozen=True):
    """State of one part of the server."""

    state: HealthState
    reason: str | None = None
    """What is wrong, for the operator; None where nothing is."""


class ProcessHealth(msgspec.Struct, frozen=True):
    """State of one process of the server."""

    name: str
    state: str
    reason: str | None
    restarts: int
    hangs: int


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of the server by its parts."""

    status: HealthState
    """The worst state of a part."""
    process: HealthPart
    store: HealthPart
    models: HealthPart
    lag_bytes: int | None
    """Bytes of the journal that are not in the database; None where nothing is stored."""
    processes: Sequence[ProcessHealth]
    versions: Sequence[ModelStatus]


class Duration(msgspec.Struct, frozen=True):
    """Number of operations, and their total time."""

    count: int = 0
    ns: int = 0


class BatchStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The executions of one size of batch."""

    batch_size: int
    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()


class ModelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and times of one version of a model since it was loaded.

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
    """Statistics of each batch size, in increasing order."""


class Serving(Protocol):
    """The server behind the protocols; `quadriga.engine.serving.pipeline` satisfies it."""

    def infer(self, request: InferRequest) -> InferResponse:
        """Run a request; blocking, so call it inside `run`.

        Raises:
            quadriga.proto.errors.ProtocolError: The request failed; its text is for the client. The other methods raise it, too.
        """

    def stream(self, request: InferRequest) -> Iterator[InferChunk]:
        """Generate the answer to one prompt about one image in chunks; blocking, as `infer`.

        Errors of the request are raised before the first chunk. Closing the iterator early stops the generation.
        """

    def explain(self, request: InferRequest) -> tuple[InferResponse, Sequence[Any]]:
        """Run a request as `infer`, and return one JSON-encodable explanation of each image, too.

        Raises:
            quadriga.proto.errors.Unsupported: The model's task has no explanation.
        """

    def run(
        self,
        task: Callable[[], Result],
        *,
        model: str | None = None,
        deadline: Deadline | None = None,
        connection: Hashable = None,
        is_begun: bool = False,
        body_bytes: int | None = None,
    ) -> Awaitable[Result]:
        """Run a task in the bounded pool of threads, off the event loop unless its model is known to be cheap.

        Args:
            task: A function that blocks.
            model: Name of the model that the request names, in any form; None if it names none.
            deadline: Ends the wait, and the task where it checks it; None for no limit.
            connection: Connection from which the request came: those of one model take turns.
            is_begun: Whether the task continues a request, which is not refused again.
            body_bytes: Size of a whole request whose work follows from it, which may be answered at once; None for any other.

        Raises:
            quadriga.proto.errors.WaitTooLong: The request would wait too long.
            quadriga.proto.errors.DeadlineExceeded: The time of the request is over.
        """

    def model_info(self, name: str, version: str | None) -> ModelInfo:
        """Describe a model that is ready.

        Raises:
            quadriga.proto.errors.NotFound: No such model or version.
            quadriga.proto.errors.ModelNotReady: It is loading or has failed.
        """

    def model_statuses(self) -> Sequence[ModelStatus]:
        """Return the state of every version of every model."""

    def unready_reason(self) -> str | None:
        """Return why the server is not ready; None if it is."""

    def model_unready_reason(self, name: str, version: str | None) -> str | None:
        """Return why requests to a model are refused; None if they are answered.

        Raises:
            quadriga.proto.errors.NotFound: No such model or version.
        """

    def health_report(self) -> HealthReport:
        """Return the state of the server by its parts."""

    def load_model(
        self, name: str, config: Mapping[str, Any] | None, files: Mapping[str, bytes]
    ) -> None:
        """Load a model of the repository, or load it again; blocking.

        Args:
            name: Folder in the repository, or a new name if `files` are given.
            config: Keys that override those of the folder's model.toml; None for none.
            files: Contents by path below the folder, which replace the folder's own files.
        """

    def unload_model(self, name: str) -> None:
        """Stop serving a model; its folder stays."""

    def statistics(self, name: str | None, version: str | None) -> Sequence[ModelStatistics]:
        """Return the statistics of one model, or of all."""

    def queue_statistics(self) -> Sequence[QueueStatistics]:
        """Return which requests wait, run, were refused and were stopped, by model."""


def check_model_exists(serving: Serving, name: str, version: str | None) -> None:
    """Raise what says that there is no such model, for a request whose body is wrong, too: its name is said first.

    Nothing is said of a model that is there, whether it can answer now or not.
    """
    with suppress(ModelNotReady):
        serving.model_info(name, version)
