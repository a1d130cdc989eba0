"""Requests to models of tensors: arrays in, arrays out, by the names of the graph."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pybase64

from quadriga.engine.model import Model
from quadriga.engine.recording import ImageResult
from quadriga.engine.session import RunError
from quadriga.proto.chariot import parse_metadata, read_storage_options
from quadriga.proto.datatypes import DATATYPES
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor, TensorInfo
from quadriga.store.errors import MetadataError
from quadriga.store.metadata import check

MAX_STORED_ELEMENTS = 4096
"""Maximum elements of an output tensor that is stored with its values; of larger ones only name, type and shape are."""


def infer_tensors(model: Model, request: InferRequest) -> tuple[list[Tensor], list[ImageResult]]:
    """Answer a request to a model of tensors.

    Returns:
        The outputs of the graph; and one result for all of them.
    """
    inputs: dict[str, Tensor] = {}
    for number, tensor in enumerate(request.inputs):
        name = tensor.name
        if name in inputs:
            raise InvalidRequest(f"inputs[{number}]: expected each input once, got {name!r} twice")
        inputs[name] = tensor
    expected = {info.name: info for info in model.session.inputs}
    if inputs.keys() != expected.keys():
        raise InvalidRequest(
            f"expected the inputs {', '.join(expected)}, as {model.name} takes tensors, got "
            f"{', '.join(map(repr, inputs))}; task in its model.toml would make them of images"
        )
    feeds = {name: _check_input(inputs[name], info) for name, info in expected.items()}
    result = _result_without_predictions(request)
    names = [output.name for output in request.requested_outputs]
    available = [info.name for info in model.session.outputs]
    if not set(names) <= set(available):
        raise InvalidRequest(
            f"expected outputs among {', '.join(available)}, got {', '.join(names)}"
        )
    try:
        arrays = model.session.run(feeds, names, count_rows(model, request))
    except RunError as error:
        raise InvalidRequest(f"model {model.name!r} refuses the input: {error}") from error
    outputs = [_output_tensor(name, array) for name, array in arrays.items()]
    predictions = [_stored_form(tensor) for tensor in outputs]
    return outputs, [msgspec.structs.replace(result, predictions=predictions)]


def failed_tensor_results(request: InferRequest) -> list[ImageResult]:
    """Return what can be stored of a request that the model failed to answer."""
    return [_result_without_predictions(request)]


def _result_without_predictions(request: InferRequest) -> ImageResult:
    """Check metadata and storage options, of the request and of all its inputs together."""
    parameters = dict(request.parameters)
    for tensor in request.inputs:
        parameters.update(tensor.parameters)
    metadata = parse_metadata(parameters, "inputs[0]")
    storage = read_storage_options(parameters, "inputs[0]")
    try:
        check(metadata)
    except MetadataError as error:
        raise InvalidRequest(f"inputs[0]: {error}") from error
    return ImageResult(request.inputs[0].name, "predict", [], metadata, storage=storage)


def count_rows(model: Model, request: InferRequest) -> int:
    """Count the rows of a request: along the first axis where the graph leaves it open, else 1."""
    first = model.session.inputs[0].shape[:1] if model.session.inputs else ()
    shape = request.inputs[0].shape if request.inputs else ()
    return shape[0] if first == (-1,) and shape else 1


def _check_input(tensor: Tensor, info: TensorInfo) -> npt.NDArray[Any]:
    """Check one input tensor against the graph and make it what onnxruntime takes."""
    location = f"input {tensor.name!r}"
    if tensor.datatype != info.datatype:
        raise InvalidRequest(
            f"{location}: expected datatype {info.datatype}, got {tensor.datatype}"
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
            f"{location}: expected shape {list(info.shape)} (-1: any), got {list(tensor.shape)}"
        )
    if isinstance(tensor.data, list):
        return np.array(_texts(tensor, location), dtype=object).reshape(shape)
    return tensor.data.reshape(shape)


def _texts(tensor: Tensor, location: str) -> list[str]:
    """Decode the elements of a BYTES tensor: onnxruntime's strings are UTF-8."""
    elements = tensor.data
    try:
        if tensor.parameters.get("content_type") == "base64":
            elements = [pybase64.b64decode(element, validate=True) for element in elements]
        return [element.decode() if isinstance(element, bytes) else element for element in elements]
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{location}: expected texts in UTF-8, got: {error}") from error
    except ValueError as error:
        raise InvalidRequest(f"{location}: expected base64, got: {error}") from error


def _output_tensor(name: str, array: npt.NDArray[Any]) -> Tensor:
    if array.dtype == object:
        return Tensor(name, "BYTES", array.shape, [str(element) for element in array.ravel()])
    return Tensor(name, DATATYPES[array.dtype], array.shape, array)


def _stored_form(tensor: Tensor) -> dict[str, Any]:
    """Describe an output tensor as it is stored: with its values, if they are few."""
    stored = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    if isinstance(tensor.data, list):
        stored["data"] = tensor.data[:MAX_STORED_ELEMENTS]
    elif tensor.data.size <= MAX_STORED_ELEMENTS:
        stored["data"] = tensor.data.ravel().tolist()
    return stored
