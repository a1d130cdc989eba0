"""Requests to image models: images decoded, run in batches, and read as predictions."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pybase64

from quadriga.engine.measures.model_counts import record_preparation
from quadriga.engine.models.image_graph import ImageGraph, Vector
from quadriga.engine.models.image_text.generation import TextPackage
from quadriga.engine.serving.recording import CutCrops, ImageResult
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.http.chariot import read_image_inputs
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.proto.request import check_deadline
from quadriga.quoting import quoted
from quadriga.store.records.errors import MetadataError
from quadriga.store.records.metadata import check
from quadriga.tasks.generation import FLAGS, PROMPTS
from quadriga.tasks.image import Image, ImageError
from quadriga.tasks.parameters import Budget, BudgetError, ParameterError
from quadriga.tasks.predictions import Answer, Prediction
from quadriga.tasks.tiling import Crop

QUESTIONS = (*PROMPTS, "question", "text", "args")
"""Names of inputs that may be questions; of several in a request, the first name here."""


def move_arguments(request: InferRequest) -> InferRequest:
    """Return a request in which questions and single numbers are parameters, and all inputs are images.

    An input is a question if its name is in `QUESTIONS`, another input is an image, and no parameter holds a prompt:
    the name of an image may be any.

    Raises:
        InvalidRequest: A question is not text.
    """
    question = _question_name(request)
    arguments: dict[str, Any] = {}
    shared = dict(request.parameters)
    images: list[Tensor] = []
    for number, tensor in enumerate(request.inputs):
        if isinstance(tensor.data, list) and tensor.name == question:
            location = f"inputs[{number}] ({quoted(tensor.name, 60)})"
            arguments.setdefault("prompts", []).extend(_texts(tensor, location))
        elif isinstance(tensor.data, np.ndarray) and tensor.data.size == 1:
            arguments[tensor.name] = _number(tensor.name, tensor.data.item())
        else:
            images.append(tensor)
            continue
        own = {name: value for name, value in tensor.parameters.items() if name != "content_type"}
        shared |= own
    if not arguments or not images:
        return request
    return msgspec.structs.replace(request, inputs=images, parameters=shared | arguments)


def _question_name(request: InferRequest) -> str | None:
    """Return the name of the inputs that are questions; None if there are none."""
    parameters = [request.parameters, *(tensor.parameters for tensor in request.inputs)]
    if any(values.get(name) is not None for values in parameters for name in PROMPTS):
        return None
    names = {tensor.name for tensor in request.inputs if isinstance(tensor.data, list)}
    return next((name for name in QUESTIONS if name in names), None) if len(names) > 1 else None


def _texts(tensor: Tensor, location: str) -> list[str]:
    """Return the elements of a question as texts."""
    elements = tensor.data
    try:
        if tensor.parameters.get("content_type") == "base64":
            elements = [pybase64.b64decode(element, validate=True) for element in elements]
        return [element.decode() if isinstance(element, bytes) else element for element in elements]
    except ValueError as error:
        raise InvalidRequest(f"{location}: expected a question in UTF-8, got: {error}") from error


def _number(name: str, value: Any) -> Any:
    """Return the value of an argument; flags are sent as whole numbers, too."""
    return bool(value) if name in FLAGS and value in (0, 1) else value


ECHOED_PARAMETERS = ("action", "metadata")
"""Parameters that an output repeats from its input, or from the request, as they were sent."""


def echoed_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Select the parameters that an output repeats."""
    return {
        name: parameters[name] for name in ECHOED_PARAMETERS if parameters.get(name) is not None
    }


MAX_REQUEST_PIXELS = 320_000_000
"""Maximum pixels of all images of a request, at most 4 GB decoded; a chunk or strip of a file above 100 counts as 1000."""

MAX_TILES = 5_000
"""Maximum tiles of all images of a request: a picture of 50 million pixels has 1,000."""

MAX_SIGNAL_PIXEL_BYTES = 64 << 20
"""Bytes of decoded pixels of one request after which no further image is held for its signals."""


CutDetections = Callable[[Image, bytes, Sequence[Prediction]], CutCrops]
"""Cuts the crops of an image's detections, given the decoded image and its file, which is empty for a crop."""


class ImageModel(msgspec.Struct, frozen=True):
    """A model whose inputs are images, with the limits of its server.

    Budgets say what the images of one request may cost together, and are counted before each step; the default is any amount.
    """

    predictor: ImageGraph | TextPackage
    max_pixels: int
    max_images: int
    pixels: Budget = msgspec.field(default_factory=lambda: Budget(None, "pixels"))
    tiles: Budget = msgspec.field(default_factory=lambda: Budget(None, "tiles"))
    tokens: Budget = msgspec.field(default_factory=lambda: Budget(None, "new tokens"))
    choose_for_signals: Callable[[int], Collection[int]] | None = None
    """Chooses, among so many images, the positions of those whose signals are wanted; None chooses none."""
    is_scored: bool = False
    """Whether images get semantic scores, for which they need embeddings."""
    cut: CutDetections | None = None
    """Cuts the crops for the model behind this one; None where there is none."""


class _ImageRequest(msgspec.Struct, frozen=True):
    """One image of a request, and how to answer it."""

    location: str
    """Place in the request, for messages: `inputs[0] ('image'): data[0]`."""
    data: bytes
    parameters: Mapping[str, Any]
    options: Any
    """The parameters as the predictor read them."""
    result: ImageResult
    """The result without what the model adds."""
    wants_signals: bool = False
    decoded: Image | None = None
    """The image where it is decoded already; None for one to be decoded from `data`."""


def infer_images(
    images: ImageModel, request: InferRequest
) -> tuple[list[Tensor], list[ImageResult]]:
    """Answer a request to an image model, every parameter checked first.

    Returns:
        One output per input of images, of its name; and one result per image.
    """
    request = _of_images(images, request)
    _check_outputs(request)
    count = sum(len(tensor.data) for tensor in request.inputs if isinstance(tensor.data, list))
    if count > images.max_images:
        raise InvalidRequest(
            f"expected at most {images.max_images} images in a request, got {count}"
        )
    image_requests = _choose_for_signals(images, _read_images(images, request))
    _spend_tokens(images, image_requests)
    results = _predict_in_batches(images, image_requests)
    outputs = []
    pairs = zip(image_requests, results, strict=True)
    for tensor in request.inputs:
        predictions = [_format_predictions(images, *next(pairs)) for _ in tensor.data]
        echoed = echoed_parameters({**request.parameters, **tensor.parameters})
        outputs.append(
            Tensor(tensor.name, "BYTES", (len(predictions),), data=predictions, parameters=echoed)
        )
    return outputs, results


def stream_image(
    images: ImageModel, request: InferRequest
) -> Iterator[tuple[str, ImageResult | None]]:
    """Answer one prompt about one image, piece by piece; the result comes with the last piece.

    Raises:
        InvalidRequest: The model answers no prompts, or the request is not one image and one prompt.
    """
    predictor = images.predictor
    if not isinstance(predictor, TextPackage):
        raise InvalidRequest(
            f"expected a model of the task IMAGE_TEXT_TO_TEXT to answer as a stream, got {predictor.task}"
        )
    image_requests = _choose_for_signals(images, _read_images(images, request))
    if len(image_requests) != 1:
        raise InvalidRequest(f"expected one image to answer as a stream, got {len(image_requests)}")
    (image_request,) = image_requests
    _spend_tokens(images, image_requests)
    image = _decode(images, image_request)
    pieces = predictor.stream(image, image_request.options)
    text = ""
    try:
        while True:
            try:
                piece = next(pieces)
            except StopIteration as end:
                last, embedding = end.value
                answer = Answer(image_request.options.prompts[0], text + last)
                yield last, _complete(image_request, image, ([answer], embedding))
                return
            text += piece
            yield piece, None
    except ParameterError as error:
        raise InvalidRequest(f"{image_request.location}: {error}") from error


def describe_crops(
    images: ImageModel, crops: Sequence[tuple[ImageResult, Crop]]
) -> list[ImageResult]:
    """Return the results of crops without what the model adds: metadata and options are those of the image."""
    options = images.predictor.read_options({})
    return [
        ImageResult(
            parent.input_name,
            options.action,
            [],
            parent.metadata,
            width=crop.image.width,
            height=crop.image.height,
            storage=parent.storage,
        )
        for parent, crop in crops
    ]


def infer_crops(
    images: ImageModel, crops: Sequence[Crop], described: Sequence[ImageResult]
) -> list[ImageResult]:
    """Answer crops, as `infer_images` answers the images of a request; results have no file of the image."""
    options = images.predictor.read_options({})
    image_requests = [
        _ImageRequest(
            f"{result.input_name!r}: crop of predictions[{crop.position}]",
            b"",
            {},
            options=options,
            result=result,
            decoded=crop.image,
        )
        for crop, result in zip(crops, described, strict=True)
    ]
    results = _predict_in_batches(images, _choose_for_signals(images, image_requests))
    return [msgspec.structs.replace(result, image=None, mime=None) for result in results]


def decode_images(
    images: ImageModel, request: InferRequest
) -> Iterator[tuple[Image, Mapping[str, Any]]]:
    """Decode the images of a request, each with its parameters."""
    for image_request in _read_images(images, request):
        yield _decode(images, image_request), image_request.parameters


def failed_image_results(images: ImageModel, request: InferRequest) -> list[ImageResult]:
    """Return what can be stored of a request that the model failed to answer."""
    return [
        msgspec.structs.replace(image_request.result, image=image_request.data)
        for image_request in _read_images(images, _of_images(images, request))
    ]


def _of_images(images: ImageModel, request: InferRequest) -> InferRequest:
    """Return a request all of whose inputs are images; those of an image-text model may be arguments, too."""
    return move_arguments(request) if isinstance(images.predictor, TextPackage) else request


def _check_outputs(request: InferRequest) -> None:
    """Check that every requested output is named as an input."""
    names = [tensor.name for tensor in request.inputs]
    for output in request.requested_outputs:
        if output.name not in names:
            raise InvalidRequest(
                f"expected outputs named as the images they answer ({', '.join(names):.200}), "
                f"got {output.name!r:.60}"
            )


def _read_images(images: ImageModel, request: InferRequest) -> list[_ImageRequest]:
    """Check the parameters and metadata of all inputs, then take their images."""
    checked = []
    for image_input in read_image_inputs(request):
        try:
            check(image_input.metadata)
            options = images.predictor.read_options(image_input.parameters)
        except (MetadataError, ParameterError) as error:
            raise InvalidRequest(f"{image_input.location}: {error}") from error
        result = ImageResult(
            image_input.name,
            options.action,
            [],
            image_input.metadata,
            storage=image_input.storage,
        )
        checked.append((image_input, options, result))
    return [
        _ImageRequest(
            f"{image_input.location}: data[{index}]",
            data,
            image_input.parameters,
            options=options,
            result=result,
        )
        for image_input, options, result in checked
        for index, data in enumerate(image_input.images)
    ]


def _choose_for_signals(
    images: ImageModel, image_requests: list[_ImageRequest]
) -> list[_ImageRequest]:
    """Mark the images whose signals are wanted."""
    chosen = list(image_requests)
    if images.choose_for_signals is not None:
        for position in images.choose_for_signals(len(chosen)):
            chosen[position] = msgspec.structs.replace(chosen[position], wants_signals=True)
    return chosen


def _predict_in_batches(
    images: ImageModel, image_requests: Sequence[_ImageRequest]
) -> list[ImageResult]:
    """Answer images, as many at once as the model takes; few of them are held for their signals."""
    results: list[ImageResult] = []
    pixel_bytes = 0
    size = abs(images.predictor.batch_size)
    for start in range(0, len(image_requests), size):
        if start:
            record_preparation()
        for result in _predict(images, image_requests[start : start + size]):
            fits = pixel_bytes < MAX_SIGNAL_PIXEL_BYTES
            pixel_bytes += 0 if result.decoded_image is None else result.decoded_image.pixels.nbytes
            results.append(result if fits else msgspec.structs.replace(result, decoded_image=None))
    return results


def _predict(images: ImageModel, image_requests: Sequence[_ImageRequest]) -> list[ImageResult]:
    """Decode and answer images that run together."""
    decoded = [_decode(images, image_request) for image_request in image_requests]
    options = [image_request.options for image_request in image_requests]
    for image_request, image in zip(image_requests, decoded, strict=True):
        tiles = images.predictor.count_tiles(image, image_request.options)
        _spend(images.tiles, tiles, image_request)
    with_embedding = images.is_scored or any(request.wants_signals for request in image_requests)
    try:
        predicted = images.predictor.predict(decoded, options, with_embedding=with_embedding)
    except ParameterError as error:
        raise InvalidRequest(f"{image_requests[0].location}: {error}") from error
    results = []
    for image_request, image, output in zip(image_requests, decoded, predicted, strict=True):
        result = _complete(image_request, image, output)
        if images.cut is not None:
            crops = images.cut(image, image_request.data, output[0])
            result = msgspec.structs.replace(result, cut_crops=crops)
        results.append(result)
    return results


def _decode(images: ImageModel, image_request: _ImageRequest) -> Image:
    check_deadline()
    if image_request.decoded is not None:
        return image_request.decoded
    try:
        return images.predictor.decode(image_request.data, images.max_pixels, images.pixels)
    except (ImageError, BudgetError) as error:
        raise InvalidRequest(f"{image_request.location}: {error}") from error


def _spend_tokens(images: ImageModel, image_requests: Sequence[_ImageRequest]) -> None:
    """Count the tokens that images may generate, before the first of them is decoded."""
    for image_request in image_requests:
        tokens = images.predictor.count_tokens(image_request.options)
        _spend(images.tokens, tokens, image_request)


def _spend(budget: Budget, units: int, image_request: _ImageRequest) -> None:
    try:
        budget.spend(units)
    except BudgetError as error:
        raise InvalidRequest(f"{image_request.location}: {error}") from error


def _complete(
    image_request: _ImageRequest,
    image: Image,
    predicted: tuple[Sequence[Prediction], Vector | None],
) -> ImageResult:
    """Add to an image's result what the model says of it."""
    predictions, embedding = predicted
    holds_pixels = image_request.wants_signals and image_request.result.storage.store
    return msgspec.structs.replace(
        image_request.result,
        predictions=predictions,
        image=image_request.data,
        width=image.width,
        height=image.height,
        mime=image.mime,
        embedding=embedding,
        decoded_image=image if holds_pixels else None,
    )


def _format_predictions(
    images: ImageModel, image_request: _ImageRequest, result: ImageResult
) -> Any:
    """Return an image's predictions in the requested format; the store has the protocol's."""
    width, height = result.width or 0, result.height or 0
    try:
        return images.predictor.format_predictions(
            result.predictions, image_request.options, width, height
        )
    except ParameterError as error:
        raise InvalidRequest(f"{image_request.location}: {error}") from error
