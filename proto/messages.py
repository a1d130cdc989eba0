"""What all protocols have in common: data, and the interface of the server behind them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import numpy.typing as npt

Result = TypeVar("Result")

ModelState = Literal["LOADING", "READY", "FAILED"]


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


class RequestedOutput(msgspec.Struct, frozen=True):
    """An output that the client asks for, and how it wants it."""

    name: str
    parameters: Mapping[str, Any] = {}


class InferRequest(msgspec.Struct, frozen=True):
    """One request to a model, whatever protocol it came by."""

    model: str
    version: str | None
    id: str
    inputs: Sequence[Tensor]
    requested_outputs: Sequence[RequestedOutput] = ()
    """The outputs wanted, in their order; empty for all."""
    parameters: Mapping[str, Any] = {}


class InferResponse(msgspec.Struct, frozen=True):
    """What the model answered."""

    model: str
    version: str
    id: str
    outputs: Sequence[Tensor]
    inference_ids: Sequence[str] = ()
    """Ids of the stored inferences, in the order of the images."""


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


class ModelStatus(msgspec.Struct, frozen=True):
    """The state of one version of one model."""

    name: str
    version: str
    state: ModelState
    reason: str = ""


class Serving(Protocol):
    """The server behind the protocols; `engine.pipeline` satisfies it."""

    def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request; plain and slow, so it is called inside `run`.

        Raises:
            proto.errors.ProtocolError: With the text for the client.
        """
        ...

    def run(self, job: Callable[[], Result]) -> Awaitable[Result]:
        """Run a job in the bounded pool of threads, off the event loop."""
        ...

    def model_info(self, name: str, version: str | None) -> ModelInfo:
        """Describe a model that is ready.

        Raises:
            proto.errors.NotFound: No such model or version.
            proto.errors.ModelNotReady: It is loading or has failed.
        """
        ...

    def model_statuses(self) -> Sequence[ModelStatus]:
        """Give the state of every version of every model."""
        ...

    def unready_reason(self) -> str | None:
        """Say why the server is not ready, or None when it is."""
        ...
