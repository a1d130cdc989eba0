"""What a worker and the process of a shadow say to each other, in the frames of `quadriga.engine.models.runners.graph_messages`."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from quadriga.engine.serving.image_inference import MAX_REQUEST_PIXELS, MAX_TILES
from quadriga.proto.messages import InferRequest, Tensor


class ShadowLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one request."""

    max_pixels: int
    max_images: int
    max_request_pixels: int = MAX_REQUEST_PIXELS
    max_tiles: int = MAX_TILES
    max_tokens: int


class OpenShadow(msgspec.Struct, frozen=True, tag="open", kw_only=True):
    """Asks to load a version of a model."""

    name: str
    version: str
    path: str
    overrides: dict[str, Any] | None
    score_threshold: float | None
    extensions: str
    limits: ShadowLimits
    niceness: int = 0
    """How far the process goes after the worker from then on."""


class SentTensor(msgspec.Struct, frozen=True, kw_only=True):
    """An input of a request: an array as its bytes, or a list of elements."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Any]
    elements: list[Any] | None = None
    """Texts or bytes."""
    array: bytes = b""
    dtype: str = ""


class RunShadow(msgspec.Struct, frozen=True, tag="run", kw_only=True):
    """Asks for an answer to a request."""

    id: str
    protocol: str
    parameters: dict[str, Any]
    has_text_numbers: bool
    inputs: list[SentTensor]


class ShadowResult(msgspec.Struct, frozen=True):
    """The answer about one image, one row, or one set of tensors."""

    action: str
    predictions: bytes
    """Predictions as JSON."""


class ShadowOpened(msgspec.Struct, frozen=True, tag="opened"):
    """The model is loaded."""


class ShadowAnswered(msgspec.Struct, frozen=True, tag="answered", kw_only=True):
    """The request was answered."""

    results: list[ShadowResult]
    elapsed_ms: float
    waited_ms: float
    """Milliseconds of these in which the process waited for a processor; 0 where the system does not say."""
    stages_ms: dict[str, float]


class ShadowFailed(msgspec.Struct, frozen=True, tag="failed"):
    """It failed."""

    reason: str
    elapsed_ms: float = 0.0


ShadowRequest = OpenShadow | RunShadow
ShadowAnswer = ShadowOpened | ShadowAnswered | ShadowFailed


def to_message(request: InferRequest) -> RunShadow:
    """Return a request as a message."""
    return RunShadow(
        id=request.id,
        protocol=request.protocol,
        parameters=_plain(request.parameters),
        has_text_numbers=request.has_text_numbers,
        inputs=[_sent(tensor) for tensor in request.inputs],
    )


def to_request(message: RunShadow, model: str, version: str) -> InferRequest:
    """Return the request of a message, to a version of a model."""
    return InferRequest(
        model=model,
        version=version,
        id=message.id,
        inputs=[_tensor(sent) for sent in message.inputs],
        parameters=message.parameters,
        protocol=message.protocol,
        has_text_numbers=message.has_text_numbers,
    )


def _sent(tensor: Tensor) -> SentTensor:
    if isinstance(tensor.data, list):
        elements, array, dtype = tensor.data, b"", ""
    elif tensor.data.dtype == object:
        elements, array, dtype = tensor.data.ravel().tolist(), b"", "object"
    else:
        elements, array, dtype = None, tensor.data.tobytes(), tensor.data.dtype.str
    return SentTensor(
        name=tensor.name,
        datatype=tensor.datatype,
        shape=tensor.shape,
        parameters=_plain(tensor.parameters),
        elements=elements,
        array=array,
        dtype=dtype,
    )


def _tensor(sent: SentTensor) -> Tensor:
    data: Any
    if sent.elements is None:
        data = np.frombuffer(sent.array, sent.dtype).reshape(sent.shape)
    elif sent.dtype:
        data = np.array(sent.elements, dtype=object).reshape(sent.shape)
    else:
        data = sent.elements
    return Tensor(sent.name, sent.datatype, sent.shape, data=data, parameters=sent.parameters)


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return dict(parameters)
