"""Requests to models without a task: tensors in, tensors out, by the names of the graph."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pybase64

from quadriga.engine.model import Model
from quadriga.engine.recording import Answered, read_wishes
from quadriga.engine.session import RunError
from quadriga.proto.datatypes import DATATYPES
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor, TensorInfo

MAX_STORED_ELEMENTS = 4096
"""Of an output tensor that is kept with its values; of larger ones only name, type and shape are."""


def infer_tensors(model: Model, request: InferRequest) -> tuple[list[Tensor], list[Answered]]:
    """Answer any other model: tensors in, tensors out, by the names of the graph."""
    given: dict[str, Tensor] = {}
    for number, tensor in enumerate(request.inputs):
        name = tensor.name
        if name in given:
            raise InvalidRequest(f"inputs[{number}]: expected each input once, got {name!r} twice")
        given[name] = tensor
    expected = {info.name: info for info in model.session.inputs}
    if given.keys() != expected.keys():
        raise InvalidRequest(
            f"expected the inputs {', '.join(expected)}, as {model.name} takes tensors, got "
            f"{', '.join(map(repr, given))}; task in its model.toml would make them of images"
        )
    feeds = {name: _feed(given[name], info) for name, info in expected.items()}
    unanswered = _asked(request)
    names = [output.name for output in request.requested_outputs]
    known = [info.name for info in model.session.outputs]
    if not set(names) <= set(known):
        raise InvalidRequest(f"expected outputs among {', '.join(known)}, got {', '.join(names)}")
    try:
        results = model.session.run(feeds, names, rows(model, request))
    except RunError as error:
        raise InvalidRequest(f"model {model.name!r} refuses the input: {error}") from error
    outputs = [_output_tensor(name, array) for name, array in results.items()]
    kept = [_kept(tensor) for tensor in outputs]
    return outputs, [msgspec.structs.replace(unanswered, predictions=kept)]


def failed_tensors(request: InferRequest) -> list[Answered]:
    """Give what there is to keep of a request that the model failed to answer."""
    return [_asked(request)]


def _asked(request: InferRequest) -> Answered:
    """Check metadata and wishes, of the request and of all its inputs; what was answered is left out."""
    own = {name: value for tensor in request.inputs for name, value in tensor.parameters.items()}
    parameters = {**request.parameters, **own}
    metadata, wishes = read_wishes(parameters, "inputs[0]")
    return Answered(request.inputs[0].name, "predict", [], metadata, wishes=wishes)


def rows(model: Model, request: InferRequest) -> int:
    """Count the rows of a request: along the first axis where the graph leaves it open, else 1."""
    first = model.session.inputs[0].shape[:1] if model.session.inputs else ()
    shape = request.inputs[0].shape if request.inputs else ()
    return shape[0] if first == (-1,) and shape else 1


def _feed(tensor: Tensor, info: TensorInfo) -> npt.NDArray[Any]:
    """Check one input tensor against the graph and make it what onnxruntime takes."""
    where = f"input {tensor.name!r}"
    if tensor.datatype != info.datatype:
        raise InvalidRequest(f"{where}: expected datatype {info.datatype}, got {tensor.datatype}")
    shape = tensor.shape
    if len(shape) == 1 and len(info.shape) == 2 and info.shape[1] in (1, -1):
        shape = (*shape, 1)  # [N] stands for [N, 1]
    elif len(shape) == 2 and len(info.shape) == 1 and shape[1] == 1:
        shape = shape[:1]  # and the other way round, as MLServer's codecs send it
    elif shape == (1,) and info.shape == ():
        shape = ()  # a shape of the wire has an axis: the configuration says [1] too
    fits = len(shape) == len(info.shape) and all(
        wanted in (-1, size) for size, wanted in zip(shape, info.shape, strict=True)
    )
    if not fits:
        raise InvalidRequest(
            f"{where}: expected shape {list(info.shape)} (-1: any), got {list(tensor.shape)}"
        )
    if isinstance(tensor.data, list):
        return np.array(_texts(tensor, where), dtype=object).reshape(shape)
    return tensor.data.reshape(shape)


def _texts(tensor: Tensor, where: str) -> list[str]:
    """Decode the elements of a BYTES tensor: onnxruntime's strings are UTF-8."""
    elements = tensor.data
    try:
        if tensor.parameters.get("content_type") == "base64":
            elements = [pybase64.b64decode(element, validate=True) for element in elements]
        return [element.decode() if isinstance(element, bytes) else element for element in elements]
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{where}: expected texts in UTF-8, got: {error}") from error
    except ValueError as error:
        raise InvalidRequest(f"{where}: expected base64, got: {error}") from error


def _output_tensor(name: str, array: npt.NDArray[Any]) -> Tensor:
    if array.dtype == object:
        return Tensor(name, "BYTES", array.shape, [str(element) for element in array.ravel()])
    return Tensor(name, DATATYPES[array.dtype], array.shape, array)


def _kept(tensor: Tensor) -> dict[str, Any]:
    kept = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    if isinstance(tensor.data, list):
        kept["data"] = tensor.data[:MAX_STORED_ELEMENTS]
    elif tensor.data.size <= MAX_STORED_ELEMENTS:
        kept["data"] = tensor.data.ravel().tolist()
    return kept
