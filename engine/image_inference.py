"""Requests to image models: images decoded, run in batches, and read as predictions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pybase64

from engine.recording import Answered, request_metadata
from engine.repository import Model
from proto.errors import InvalidRequest
from proto.messages import InferRequest, Tensor
from tasks import Task
from tasks.image import ImageError, decode
from tasks.parameters import ParameterError
from tasks.resize import Affine
from tasks.specification import ModelSpec

ECHOED = ("action", "metadata")
"""Parameters that an output has from its input, or from the request, as they were sent."""


class ImageModel(msgspec.Struct, frozen=True):
    """A model whose inputs are images."""

    model: Model
    task: Task
    spec: ModelSpec
    max_pixels: int
    max_images: int = 1


class _Asked(msgspec.Struct, frozen=True):
    """One image of a request as received, and what is wanted of it."""

    where: str
    input_name: str
    options: Any
    metadata: dict[str, Any]
    element: str | bytes


def infer_images(images: ImageModel, request: InferRequest) -> tuple[list[Tensor], list[Answered]]:
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
    metadata = request_metadata(parameters, where)
    try:
        options = task.options(parameters)
    except ParameterError as error:
        raise InvalidRequest(f"{where}: {error}") from error
    for index, element in enumerate(tensor.data):
        yield _Asked(f"{where}: data[{index}]", tensor.name, options, metadata, element)


class _Decoded(msgspec.Struct, frozen=True):
    """One image, ready for the network."""

    asked: _Asked
    received: bytes
    width: int
    height: int
    mime: str
    tensor: npt.NDArray[Any]
    affine: Affine


def _answer_chunk(images: ImageModel, asked: Sequence[_Asked]) -> list[Answered]:
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


def _decoded(images: ImageModel, asked: _Asked) -> _Decoded:
    received = _image_bytes(asked)
    try:
        image = decode(received, exif=images.spec.input.exif, max_pixels=images.max_pixels)
    except ImageError as error:
        raise InvalidRequest(f"{asked.where}: {error}") from error
    tensor, affine = images.task.preprocess(image)
    return _Decoded(asked, received, image.width, image.height, image.mime, tensor, affine)


def _run(images: ImageModel, items: Sequence[_Decoded]) -> dict[str, npt.NDArray[Any]]:
    """Run one batch of images of one input size; a batch that the file fixes is filled up."""
    spec = images.spec.input
    tensors = [item.tensor for item in items]
    tensors.extend(tensors[:1] * (-images.model.batch_size - len(tensors)))
    feeds = {spec.name: np.stack(tensors) if spec.batch_axis else tensors[0]}
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
