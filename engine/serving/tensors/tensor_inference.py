"""Requests to models of tensors: arrays in, arrays out, by the names of the graph."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pybase64

from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import RunError
from quadriga.engine.serving.image_inference import echoed_parameters
from quadriga.engine.serving.recording import ImageResult
from quadriga.proto.datatypes import DATATYPES, elements_as_bytes, to_raw
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.http.chariot import parse_metadata, read_storage_options
from quadriga.proto.messages import InferRequest, StorageOptions, Tensor, TensorInfo
from quadriga.store.blobs.tensor_file import MEDIA_TYPE, encode_tensors
from quadriga.store.records.errors import MetadataError
from quadriga.store.records.metadata import check
from quadriga.tasks import parameters as read
from quadriga.tasks.parameters import ParameterError

Feeds = dict[str, npt.NDArray[Any]]
"""Arrays of a request by the inputs of the graph."""

ACTIONS = ("predict",)
"""Actions that a request with tensors may name."""

_OPTIONS = frozenset({"action", "metadata", *StorageOptions.__struct_fields__})
"""Parameters that say something of the inference as a whole."""

MAX_STORED_ELEMENTS = 4096
"""Maximum elements of an output tensor that is stored with its values; of larger ones only name, type and shape are."""

MAX_PADDED_BYTES = 1 << 28
"""Maximum bytes of elements that are no texts, as they are padded for onnxruntime to the longest."""


MAX_STORED_INPUT_BYTES = 1 << 20
"""Maximum size of the inputs of an inference that are stored."""


def infer_tensors(
    model: Model, request: InferRequest, *, is_stored: bool
) -> tuple[list[Tensor], list[ImageResult]]:
    """Answer a request to a model of tensors.

    Args:
        model: The model.
        request: The request.
        is_stored: Whether results of the model are stored.

    Returns:
        The outputs of the graph; and one result for all of them, which describes them where it is stored.
    """
    feeds = read_feeds(
        model.name,
        model.session.inputs,
        request,
        is_of_images=model.image_predictor is not None,
    )
    parameters = all_parameters(request)
    result = result_without_predictions(request, parameters, ACTIONS)
    available = model.session.tensor_outputs
    names = [output.name for output in request.requested_outputs]
    if not set(names) <= set(available):
        raise InvalidRequest(
            f"expected outputs among {', '.join(available)}, got {', '.join(names)}"
        )
    try:
        arrays = model.session.run(feeds, names or available, count_rows(model, request))
    except RunError as error:
        raise InvalidRequest(f"model {model.name!r} refuses the input: {error}") from error
    echoed = echoed_parameters(parameters)
    outputs = [_output_tensor(name, array, echoed) for name, array in arrays.items()]
    if not is_stored:
        return outputs, [result]
    predictions = [stored_form(tensor) for tensor in outputs]
    result = with_input(model, result, feeds, model.recognition.written.features)
    return outputs, [msgspec.structs.replace(result, predictions=predictions)]


def with_input(
    model: Model, result: ImageResult, feeds: Feeds, features: Sequence[str]
) -> ImageResult:
    """Add the tensors of an inference to its result, if model.toml asks to store them and they are small enough."""
    wanted = model.recognition.written.store.inputs in ("all", "sampled")
    size_bytes = sum(array.nbytes for array in feeds.values())
    if not (wanted and result.storage.store_input and size_bytes <= MAX_STORED_INPUT_BYTES):
        return result
    shapes = [array.shape[:1] for array in feeds.values()]
    has_rows = all(info.shape[:1] == (-1,) for info in model.tensor_inputs)
    rows = shapes[0][0] if has_rows and len(set(shapes)) == 1 else 0
    tensors = [
        (info.name, info.datatype, array.shape, to_raw(_output_tensor(info.name, array, {})))
        for info in model.session.inputs
        for array in (feeds[info.name],)
    ]
    data = encode_tensors(tensors, rows=rows, features=features)
    if len(data) > MAX_STORED_INPUT_BYTES:
        return result
    return msgspec.structs.replace(result, image=data, mime=MEDIA_TYPE)


def read_feeds(
    model: str, infos: Sequence[TensorInfo], request: InferRequest, *, is_of_images: bool = False
) -> Feeds:
    """Check the tensors of a request against the inputs of a model, and return them by name.

    Args:
        model: Name of the model.
        infos: Its inputs.
        request: The request.
        is_of_images: Whether the model takes images, and the request has tensors for its graph.
    """
    inputs: dict[str, Tensor] = {}
    for number, tensor in enumerate(request.inputs):
        name = tensor.name
        if name in inputs:
            raise InvalidRequest(f"inputs[{number}]: expected each input once, got {name!r} twice")
        inputs[name] = tensor
    expected = [info.name for info in infos]
    if inputs.keys() != set(expected):
        reason = f"{model} takes tensors"
        advice = "; task in its model.toml would make them of images"
        if is_of_images:
            reason, advice = f"content_type raw sends tensors to the graph of {model}", ""
        raise InvalidRequest(
            f"expected the inputs {', '.join(expected)}, as {reason}, got {', '.join(map(repr, inputs))}{advice}"
        )
    return {info.name: _check_input(inputs[info.name], info) for info in infos}


def failed_tensor_results(request: InferRequest) -> list[ImageResult]:
    """Return what can be stored of a request that the model failed to answer."""
    actions = *ACTIONS, "predict_proba"
    return [result_without_predictions(request, all_parameters(request), actions)]


def result_without_predictions(
    request: InferRequest, parameters: Mapping[str, Any], actions: Sequence[str]
) -> ImageResult:
    """Check action, metadata and storage options of the request, given as the parameters of it and all its inputs together."""
    if parameters.keys().isdisjoint(_OPTIONS):
        return ImageResult(request.inputs[0].name, actions[0], [], {})
    metadata = parse_metadata(parameters, "inputs[0]")
    storage = read_storage_options(parameters, "inputs[0]")
    try:
        check(metadata)
        action = read.action(parameters, actions)
    except (MetadataError, ParameterError) as error:
        raise InvalidRequest(f"inputs[0]: {error}") from error
    return ImageResult(request.inputs[0].name, action, [], metadata, storage=storage)


def all_parameters(request: InferRequest) -> dict[str, Any]:
    """Return the parameters of a request, overridden by those of its inputs in their order."""
    parameters = dict(request.parameters)
    for tensor in request.inputs:
        parameters.update(tensor.parameters)
    return parameters


def count_rows(model: Model, request: InferRequest) -> int:
    """Count the rows of a request: along the first axis where the graph leaves it open, else 1."""
    first = model.session.inputs[0].shape[:1] if model.session.inputs else ()
    shape = request.inputs[0].shape if request.inputs else ()
    return shape[0] if first == (-1,) and shape else 1


def _check_input(tensor: Tensor, info: TensorInfo) -> npt.NDArray[Any]:
    """Check one input tensor against the graph and make it what onnxruntime takes."""
    if tensor.datatype != info.datatype:
        raise InvalidRequest(
            f"input {tensor.name!r}: expected datatype {info.datatype}, got {tensor.datatype}"
        )
    shape = tensor.shape
    if len(shape) == 1 and len(info.shape) == 2 and info.shape[1] in (1, -1):
        shape = (*shape, 1)  # [N] stands for [N, 1]
    elif len(shape) == 2 and len(info.shape) == 1 and shape[1] == 1:
        shape = shape[:1]  # and the other way round, as MLServer's codecs send it
    elif shape == (1,) and info.shape == ():
        shape = ()  # a shape of the wire has an axis: the configuration says [1] too
    fits = len(shape) == len(info.shape) and all(
        expected in (-1, size) for size, expected in zip(shape, info.shape, strict=True)
    )
    if not fits:
        raise InvalidRequest(
            f"input {tensor.name!r}: expected shape {list(info.shape)} (-1: any), got {list(tensor.shape)}"
        )
    if isinstance(tensor.data, list):
        return _strings(tensor, f"input {tensor.name!r}").reshape(shape)
    return tensor.data.reshape(shape)


def _strings(tensor: Tensor, location: str) -> npt.NDArray[Any]:
    """Return the elements of a BYTES tensor as onnxruntime takes its strings: texts, or else bytes."""
    elements = tensor.data
    try:
        if tensor.parameters.get("content_type") == "base64":
            elements = [pybase64.b64decode(element, validate=True) for element in elements]
        texts = [
            element.decode() if isinstance(element, bytes) else element for element in elements
        ]
    except UnicodeDecodeError:
        return _byte_strings(elements_as_bytes(elements), location)
    except ValueError as error:
        raise InvalidRequest(f"{location}: expected base64, got: {error}") from error
    return np.array(texts, dtype=object)


def _byte_strings(elements: Sequence[bytes], location: str) -> npt.NDArray[Any]:
    """Return bytes as onnxruntime takes them: of one length, or padded to one and read to the first NUL."""
    lengths = set(map(len, elements))
    if len(lengths) == 1:
        return np.frombuffer(b"".join(elements), f"V{lengths.pop()}")
    if any(b"\0" in element for element in elements):
        raise InvalidRequest(
            f"{location}: expected texts in UTF-8, or bytes without NUL or all of one length, got others"
        )
    if max(lengths) * len(elements) > MAX_PADDED_BYTES:
        raise InvalidRequest(
            f"{location}: expected bytes of at most {MAX_PADDED_BYTES} with each element as long as the longest, got "
            f"{max(lengths)} x {len(elements)}"
        )
    return np.array(elements)


def _output_tensor(name: str, array: npt.NDArray[Any], parameters: Mapping[str, Any]) -> Tensor:
    if array.dtype.kind in "SV":  # bytes that are no texts
        elements = [bytes(element) for element in array.ravel()]
        return Tensor(name, "BYTES", array.shape, data=elements, parameters=parameters)
    if array.dtype == object:
        texts = [str(element) for element in array.ravel()]
        return Tensor(name, "BYTES", array.shape, data=texts, parameters=parameters)
    return Tensor(name, DATATYPES[array.dtype], array.shape, data=array, parameters=parameters)


def stored_form(tensor: Tensor) -> dict[str, Any]:
    """Describe an output tensor as it is stored: with its values, if they are few."""
    stored = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    if isinstance(tensor.data, list):
        stored["data"] = tensor.data[:MAX_STORED_ELEMENTS]
    elif tensor.data.size <= MAX_STORED_ELEMENTS:
        stored["data"] = tensor.data.ravel().tolist()
    return stored
