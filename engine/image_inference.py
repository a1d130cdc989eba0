"""Requests to image models: images decoded, run in batches, and read as predictions."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec
import pybase64

from quadriga.engine.embedding import Vector
from quadriga.engine.image_graph import ImageGraph
from quadriga.engine.image_text.generation import TextPackage
from quadriga.engine.recording import Answered, read_wishes
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.image import Image, decode
from quadriga.tasks.image_formats import ImageError
from quadriga.tasks.image_text import PROMPTS
from quadriga.tasks.legacy import legacy, wants_legacy
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import Answer, Prediction
from quadriga.tasks.resize import check_shape
from quadriga.tasks.specification import ModelSpec

ECHOED = ("action", "metadata")
"""Parameters that an output has from its input, or from the request, as they were sent."""

PIXEL_BYTES = 64 << 20
"""Of a request whose pixels are kept for signals: those of the image that goes beyond are the last."""


class ImageModel(msgspec.Struct, frozen=True):
    """A model whose inputs are images."""

    answerer: ImageGraph | TextPackage
    spec: ModelSpec
    max_pixels: int
    max_images: int
    choose: Callable[[int], Collection[int]] = lambda _: ()
    """Chooses those of so many images, by position, whose signals are wanted."""


class _Asked(msgspec.Struct, frozen=True):
    """One image of a request as received, and what is wanted of it."""

    where: str
    parameters: dict[str, Any]
    """Its own, above those of the request."""
    options: Any
    kept: Answered
    """What is known before it is answered."""
    legacy: bool
    """Whether predictions are wanted in their old shape."""
    element: str | bytes
    chosen: bool = False
    """Whether its signals are wanted."""


def infer_images(images: ImageModel, request: InferRequest) -> tuple[list[Tensor], list[Answered]]:
    """Answer an image model: every parameter checked first, one output per input, of its name."""
    _check_outputs(request)
    count, most = sum(len(tensor.data) for tensor in request.inputs), images.max_images
    if count > most:
        raise InvalidRequest(f"expected at most {most} images in a request, got {count}")
    asked = _with_choice(images, _asked(images, request))
    answered: list[Answered] = []
    pixel_bytes = 0
    size = abs(images.answerer.batch_size)
    for start in range(0, len(asked), size):
        if start:
            images.answerer.stopwatch.prepares()
        for item in _answer_chunk(images, asked[start : start + size]):
            fits = pixel_bytes < PIXEL_BYTES
            answered.append(item if fits else msgspec.structs.replace(item, pixels=None))
            pixel_bytes += 0 if item.pixels is None else item.pixels.pixels.nbytes
    outputs = []
    pairs = zip(asked, answered, strict=True)
    for tensor in request.inputs:
        predictions = [_shown(images, *next(pairs)) for _ in tensor.data]
        given = {**request.parameters, **tensor.parameters}
        echoed = {name: given[name] for name in ECHOED if given.get(name) is not None}
        outputs.append(Tensor(tensor.name, "BYTES", (len(predictions),), predictions, echoed))
    return outputs, answered


def _shown(images: ImageModel, asked: _Asked, answered: Answered) -> Any:
    """Give the predictions for an image in the shape that is wanted; the store has the protocol's."""
    if not asked.legacy:
        return answered.predictions
    width, height = answered.width or 0, answered.height or 0
    try:
        return legacy(answered.predictions, answered.action, images.spec, width, height)
    except ParameterError as error:
        raise InvalidRequest(f"{asked.where}: {error}") from error


def stream_image(
    images: ImageModel, request: InferRequest
) -> Iterator[tuple[str, Answered | None]]:
    """Answer one prompt about one image, piece by piece; what was answered comes with the last piece.

    Raises:
        InvalidRequest: The model answers no prompts, or the request is not one image and one prompt.
    """
    answerer = images.answerer
    if not isinstance(answerer, TextPackage):
        raise InvalidRequest(
            f"expected a model of the task IMAGE_TEXT_TO_TEXT to answer as a stream, got {images.spec.task}"
        )
    asked = _with_choice(images, _asked(images, request))
    if len(asked) != 1:
        raise InvalidRequest(f"expected one image to answer as a stream, got {len(asked)}")
    (item,) = asked
    received = _image_bytes(item)
    image = _decoded(images, item, received)
    pieces = answerer.stream(image, item.options)
    text = ""
    try:
        while True:
            try:
                piece = next(pieces)
            except StopIteration as end:
                last, vector = end.value
                answers = [Answer(item.options.prompts[0], text + last)]
                yield last, _answered(item, received, image, (answers, vector))
                return
            text += piece
            yield piece, None
    except ParameterError as error:
        raise InvalidRequest(f"{item.where}: {error}") from error


def images_of(images: ImageModel, request: InferRequest) -> Iterator[tuple[Image, dict[str, Any]]]:
    """Decode the images of a request, each with the parameters that hold for it."""
    for item in _asked(images, request):
        yield _decoded(images, item, _image_bytes(item)), item.parameters


def _check_outputs(request: InferRequest) -> None:
    known = [tensor.name for tensor in request.inputs]
    for output in request.requested_outputs:
        if output.name not in known:
            raise InvalidRequest(
                f"expected outputs named as the images they answer ({', '.join(known):.200}), "
                f"got {output.name!r:.60}"
            )


def wants_tensors(request: InferRequest) -> bool:
    """Tell whether a request brings an image model the tensors of its graph, and wants them back."""
    if all(tensor.datatype == "BYTES" for tensor in request.inputs):
        return False
    given = [tensor.parameters.get("content_type") for tensor in request.inputs]
    return "raw" in (request.parameters.get("content_type"), *given)


def _asked(images: ImageModel, request: InferRequest) -> Iterator[_Asked]:
    """Check each input's parameters and metadata; the request's own parameters are its defaults."""
    for number, tensor in enumerate(request.inputs):
        where = f"inputs[{number}] ({tensor.name!r:.60})"
        if not isinstance(tensor.data, list):
            raise InvalidRequest(
                f"{where}: expected images in datatype BYTES, base64-encoded in JSON, got "
                f"{tensor.datatype}; content_type raw sends the graph its tensors and answers its outputs"
            )
        if not tensor.data:
            raise InvalidRequest(f"{where}: expected data to hold at least one image, got none")
        shared, own = request.parameters, tensor.parameters
        if any(own.get(name) is not None for name in PROMPTS):
            shared = {name: value for name, value in shared.items() if name not in PROMPTS}
        parameters = {**shared, **own}
        metadata, wishes = read_wishes(parameters, where)
        try:
            options = images.answerer.options(parameters)
            in_old_shape = wants_legacy(parameters, images.spec.task)
        except ParameterError as error:
            raise InvalidRequest(f"{where}: {error}") from error
        kept = Answered(tensor.name, options.action, [], metadata, wishes=wishes)
        encoded = own.get("content_type") == "base64"  # also where a protocol has bytes
        for index, element in enumerate(tensor.data):
            if encoded and isinstance(element, bytes):
                element = element.decode("latin-1")  # noqa: PLW2901 - the text that it is
            here = f"{where}: data[{index}]"
            yield _Asked(here, parameters, options, kept, in_old_shape, element)


def _with_choice(images: ImageModel, asked: Iterator[_Asked]) -> list[_Asked]:
    """Mark the images whose signals are wanted."""
    items = list(asked)
    for position in images.choose(len(items)):
        items[position] = msgspec.structs.replace(items[position], chosen=True)
    return items


def _answer_chunk(images: ImageModel, asked: Sequence[_Asked]) -> list[Answered]:
    received = [_image_bytes(item) for item in asked]
    decoded = [_decoded(images, *each) for each in zip(asked, received, strict=True)]
    try:
        found = images.answerer.answer(decoded, [item.options for item in asked])
    except ParameterError as error:
        raise InvalidRequest(f"{asked[0].where}: {error}") from error
    return [_answered(*each) for each in zip(asked, received, decoded, found, strict=True)]


def _answered(
    asked: _Asked, received: bytes, image: Image, found: tuple[Sequence[Prediction], Vector | None]
) -> Answered:
    predictions, embedding = found
    return msgspec.structs.replace(
        asked.kept,
        predictions=predictions,
        image=received,
        width=image.width,
        height=image.height,
        mime=image.mime,
        embedding=embedding,
        pixels=image if asked.chosen and asked.kept.wishes.store else None,
    )


def failed_images(images: ImageModel, request: InferRequest) -> list[Answered]:
    """Give what there is to keep of a request that the model failed to answer."""
    asked = _asked(images, request)
    return [msgspec.structs.replace(item.kept, image=_image_bytes(item)) for item in asked]


def _decoded(images: ImageModel, asked: _Asked, received: bytes) -> Image:
    spec = images.spec.input
    try:
        image = decode(
            received,
            channels=spec.channels,
            bit_depth=spec.bit_depth,
            exif=spec.exif,
            max_pixels=images.max_pixels,
        )
        check_shape(image.width, image.height, spec)
    except ImageError as error:
        raise InvalidRequest(f"{asked.where}: {error}") from error
    return image


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
