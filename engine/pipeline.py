"""One request through the house: read this first.

    parameters and metadata checked → images decoded → preprocess → session → predict → journal → answer

Everything here is plain code that runs in one thread per request, from its bytes to its answer; only
`run`, which hands a request to the pool, is async. Errors of the packages below become those of the
wire here, naming the input.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pybase64

from engine.readiness import Board
from engine.recording import Answered, Recorder
from engine.repository import Model, ModelRepository
from engine.session import RunError
from proto import chariot
from proto.datatypes import DATATYPES
from proto.errors import InternalError, InvalidRequest, Overloaded
from proto.messages import InferRequest, InferResponse, ModelInfo, ModelStatus, Tensor, TensorInfo
from store.errors import MetadataError
from store.metadata import check
from tasks import Task
from tasks.image import ImageError, decode
from tasks.parameters import ParameterError
from tasks.predictions import OutputError
from tasks.resize import Affine
from tasks.specification import ModelSpec

Result = TypeVar("Result")

ECHOED = ("action", "metadata")
"""Parameters that an output has from its input, or from the request, as they were sent."""

MAX_STORED_ELEMENTS = 4096
"""Of an output tensor that is kept with its values; of larger ones only name, type and shape are."""


class _Asked(msgspec.Struct, frozen=True):
    """One image of a request as received, and what is wanted of it."""

    where: str
    input_name: str
    options: Any
    metadata: dict[str, Any]
    element: str | bytes


class _ImageModel(msgspec.Struct, frozen=True):
    """A model whose inputs are images."""

    model: Model
    task: Task
    spec: ModelSpec
    max_pixels: int
    max_images: int


class Pipeline:
    """Answers requests; satisfies `proto.messages.Serving`.

    Args:
        repository: The models.
        recorder: Keeps inferences; None to keep nothing.
        threads: Requests that run at once.
        max_queue: Requests that may run or wait; more are refused.
        max_pixels: Larger images are refused.
        max_images: Requests with more images are refused.
        strict_readiness: Whether a failed model keeps the server from being ready.
    """

    def __init__(
        self,
        repository: ModelRepository,
        recorder: Recorder | None,
        *,
        threads: int,
        max_queue: int,
        max_pixels: int,
        max_images: int,
        strict_readiness: bool,
    ) -> None:
        self._repository = repository
        self._recorder = recorder
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="request")
        self._max_queue = max_queue
        self._queued = 0
        self._max_pixels = max_pixels
        self._max_images = max_images
        self._strict_readiness = strict_readiness
        self.draining = False
        self.board: Board | None = None
        """Where the other workers say whether they are ready."""

    def run(self, job: Callable[[], Result]) -> Awaitable[Result]:
        """Run a job in the pool of threads; called on the event loop.

        Raises:
            Overloaded: As many requests run and wait as may.
        """
        if self._queued >= self._max_queue:
            raise Overloaded(
                f"expected fewer than {self._max_queue} requests at once, got one more"
            )
        self._queued += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, job)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: object) -> None:
        self._queued -= 1

    def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request, in the caller's thread.

        Raises:
            proto.errors.ProtocolError: With the text for the client.
        """
        started = time.perf_counter()
        model = self._repository.get(request.model, request.version)
        try:
            if model.task is None or model.spec is None:
                outputs, answered = _infer_tensors(model, request)
            else:
                limits = (self._max_pixels, self._max_images)
                images = _ImageModel(model, model.task, model.spec, *limits)
                outputs, answered = _infer_images(images, request)
        except (RunError, OutputError) as error:
            raise InternalError(f"model {model.name!r} failed: {error}") from error
        latency_ms = round((time.perf_counter() - started) * 1000, 3)
        ids: list[str] = []
        if self._recorder is not None and model.recognition.store.enabled:
            ids = self._recorder.record(model, request.id, latency_ms, answered)
        if ids and model.task is not None:
            outputs = _with_ids(outputs, ids)
        return InferResponse(model.name, model.version, request.id, outputs, ids)

    def model_info(self, name: str, version: str | None) -> ModelInfo:
        """Describe a model that is ready."""
        return self._repository.info(name, version)

    def model_statuses(self) -> Sequence[ModelStatus]:
        """Give the state of every version of every model."""
        return self._repository.statuses()

    def unready_reason(self) -> str | None:
        """Say why the server is not ready, or None when it is."""
        if self.draining:
            return "the server is shutting down"
        statuses = self._repository.statuses()
        loading = [f"{s.name} {s.version}" for s in statuses if s.state == "LOADING"]
        if loading:
            return f"expected every model to be loaded, still loading: {', '.join(loading)}"
        failed = [f"{s.name} {s.version} ({s.reason})" for s in statuses if s.state == "FAILED"]
        if failed and (self._strict_readiness or len(failed) == len(statuses)):
            return f"expected every model to load, failed: {'; '.join(failed)}"
        return None if self.board is None else self.board.unready_reason()

    def close(self) -> None:
        """Finish what runs, then close the journal."""
        self._pool.shutdown(wait=True)
        if self._recorder is not None:
            self._recorder.close()


def _infer_images(
    images: _ImageModel, request: InferRequest
) -> tuple[list[Tensor], list[Answered]]:
    """Answer an image model: every parameter checked first, one output per input."""
    count = sum(len(tensor.data) for tensor in request.inputs)
    if count > images.max_images:
        raise InvalidRequest(
            f"expected at most {images.max_images} images in a request, got {count}"
        )
    asked = [
        item
        for number, tensor in enumerate(request.inputs)
        for item in _asked(number, tensor, request.parameters, images.task)
    ]
    answered: list[Answered] = []
    size = abs(images.model.batch_size)
    for start in range(0, len(asked), size):
        answered.extend(_answer_chunk(images, asked[start : start + size]))
    outputs = []
    position = 0
    for tensor in request.inputs:
        count = len(tensor.data)
        predictions = [item.predictions for item in answered[position : position + count]]
        given = {**request.parameters, **tensor.parameters}
        echoed = {name: given[name] for name in ECHOED if given.get(name) is not None}
        outputs.append(Tensor(tensor.name, "BYTES", (count,), predictions, echoed))
        position += count
    return outputs, answered


def _asked(number: int, tensor: Tensor, shared: Mapping[str, Any], task: Task) -> Iterator[_Asked]:
    """Check one input's parameters and metadata; the request's own parameters are its defaults."""
    where = f"inputs[{number}] ({tensor.name!r:.60})"
    if not isinstance(tensor.data, list):
        raise InvalidRequest(
            f"{where}: expected images in datatype BYTES, base64-encoded, got {tensor.datatype}"
        )
    if not tensor.data:
        raise InvalidRequest(f"{where}: expected data to hold at least one image, got none")
    parameters = {**shared, **tensor.parameters}
    metadata = _metadata(parameters, where)
    try:
        options = task.options(parameters)
    except ParameterError as error:
        raise InvalidRequest(f"{where}: {error}") from error
    for index, element in enumerate(tensor.data):
        yield _Asked(f"{where}: data[{index}]", tensor.name, options, metadata, element)


def _metadata(parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    metadata = chariot.metadata_of(parameters, where)
    try:
        check(metadata)
    except MetadataError as error:
        raise InvalidRequest(f"{where}: {error}") from error
    return metadata


class _Decoded(msgspec.Struct, frozen=True):
    """One image, ready for the network."""

    asked: _Asked
    received: bytes
    width: int
    height: int
    mime: str
    tensor: npt.NDArray[Any]
    affine: Affine


def _answer_chunk(images: _ImageModel, asked: Sequence[_Asked]) -> list[Answered]:
    """Decode some images, run those of one input size together, and answer them in their order."""
    decoded = [_decoded(images, item) for item in asked]
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, item in enumerate(decoded):
        groups.setdefault(item.tensor.shape, []).append(number)
    predictions: dict[int, Any] = {}
    for numbers in groups.values():
        outputs = _run(images, [decoded[number] for number in numbers])
        for row, number in enumerate(numbers):
            item = decoded[number]
            mine = outputs
            if images.spec.output.batch_axis:
                mine = {name: array[row] for name, array in outputs.items()}
            predictions[number] = images.task.predict(mine, item.affine, item.asked.options)
    return [
        Answered(
            input_name=item.asked.input_name,
            action=item.asked.options.action,
            predictions=predictions[number],
            metadata=item.asked.metadata,
            image=item.received,
            width=item.width,
            height=item.height,
            mime=item.mime,
        )
        for number, item in enumerate(decoded)
    ]


def _decoded(images: _ImageModel, asked: _Asked) -> _Decoded:
    received = _image_bytes(asked)
    try:
        image = decode(received, exif=images.spec.input.exif, max_pixels=images.max_pixels)
    except ImageError as error:
        raise InvalidRequest(f"{asked.where}: {error}") from error
    tensor, affine = images.task.preprocess(image)
    return _Decoded(asked, received, image.width, image.height, image.mime, tensor, affine)


def _run(images: _ImageModel, items: Sequence[_Decoded]) -> dict[str, npt.NDArray[Any]]:
    """Run one batch of images of one input size; a batch that the file fixes is filled up."""
    spec = images.spec.input
    tensors = [item.tensor for item in items]
    tensors.extend(tensors[:1] * (-images.model.batch_size - len(tensors)))
    feeds = {spec.name: np.stack(tensors)}
    if spec.size_input:
        sizes = [items[0].affine.network_wh] * len(tensors)
        feeds[spec.size_input] = np.array(sizes, np.int64)
    return images.model.session.run(feeds)


def _image_bytes(item: _Asked) -> bytes:
    """Decode base64 where JSON carried the image; binary protocols give bytes."""
    if isinstance(item.element, bytes):
        return item.element
    text = item.element
    if text.startswith("data:"):
        _, _, text = text.partition(",")
    try:
        try:
            return pybase64.b64decode(text, validate=True)
        except ValueError:
            if "\n" not in text:
                raise
            return pybase64.b64decode("".join(text.splitlines()), validate=True)
    except ValueError as error:
        raise InvalidRequest(
            f"{item.where}: expected a base64-encoded image, got: {error}"
        ) from error


def _infer_tensors(model: Model, request: InferRequest) -> tuple[list[Tensor], list[Answered]]:
    """Answer any other model: tensors in, tensors out, by the names of the graph."""
    given: dict[str, Tensor] = {}
    for number, tensor in enumerate(request.inputs):
        if tensor.name in given:
            raise InvalidRequest(
                f"inputs[{number}]: expected each input once, got {tensor.name!r} twice"
            )
        given[tensor.name] = tensor
    expected = {info.name: info for info in model.session.inputs}
    if given.keys() != expected.keys():
        raise InvalidRequest(
            f"expected the inputs {', '.join(expected)}, got {', '.join(map(repr, given))}"
        )
    feeds = {name: _feed(given[name], info) for name, info in expected.items()}
    parameters = {
        **request.parameters,
        **{k: v for t in request.inputs for k, v in t.parameters.items()},
    }
    metadata = _metadata(parameters, "inputs[0]")
    names = list(request.requested_outputs)
    known = [info.name for info in model.session.outputs]
    if not set(names) <= set(known):
        raise InvalidRequest(f"expected outputs among {', '.join(known)}, got {', '.join(names)}")
    try:
        results = model.session.run(feeds, names)
    except RunError as error:
        raise InvalidRequest(f"model {model.name!r} refuses the input: {error}") from error
    outputs = [_output_tensor(name, array) for name, array in results.items()]
    kept = [_kept(tensor) for tensor in outputs]
    return outputs, [Answered(request.inputs[0].name, "predict", kept, metadata)]


def _feed(tensor: Tensor, info: TensorInfo) -> npt.NDArray[Any]:
    """Check one input tensor against the graph and make it what onnxruntime takes."""
    where = f"input {tensor.name!r}"
    if tensor.datatype != info.datatype:
        raise InvalidRequest(f"{where}: expected datatype {info.datatype}, got {tensor.datatype}")
    shape = tensor.shape
    if len(shape) == 1 and len(info.shape) == 2 and info.shape[1] in (1, -1):
        shape = (*shape, 1)  # [N] stands for [N, 1]
    fits = len(shape) == len(info.shape) and all(
        wanted in (-1, size) for size, wanted in zip(shape, info.shape, strict=True)
    )
    if not fits:
        raise InvalidRequest(
            f"{where}: expected shape {list(info.shape)} (-1: any), got {list(tensor.shape)}"
        )
    if isinstance(tensor.data, list):
        texts = [e.decode("utf-8") if isinstance(e, bytes) else e for e in tensor.data]
        return np.array(texts, dtype=object).reshape(shape)
    return tensor.data.reshape(shape)


def _output_tensor(name: str, array: npt.NDArray[Any]) -> Tensor:
    if array.dtype == object:
        return Tensor(name, "BYTES", array.shape, [str(element) for element in array.ravel()])
    return Tensor(name, DATATYPES[array.dtype], array.shape, array)


def _kept(tensor: Tensor) -> dict[str, Any]:
    """Give what is stored of an output tensor."""
    kept = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    if isinstance(tensor.data, list):
        return {**kept, "data": tensor.data[:MAX_STORED_ELEMENTS]}
    if tensor.data.size <= MAX_STORED_ELEMENTS:
        return {**kept, "data": tensor.data.ravel().tolist()}
    return kept


def _with_ids(outputs: Sequence[Tensor], ids: Sequence[str]) -> list[Tensor]:
    """Add to each output the ids of its images' records."""
    given = iter(ids)
    return [
        msgspec.structs.replace(
            tensor,
            parameters={
                **tensor.parameters,
                "inference_id": ",".join(next(given) for _ in tensor.data),
            },
        )
        for tensor in outputs
    ]
