"""V2 envelope: parses an inference request from a body, and renders a response to one.

The body is JSON, which the bytes of tensors may follow. The same envelope carries chariot-v2-kserve
(`quadriga.proto.http.chariot`); the model's task decides which of the two a request is.

Source: Open Inference Protocol, inference_rest.md; KServe V2, binary tensor data extension.
"""

import codecs
import json
import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.proto import datatypes
from quadriga.proto.datatypes import NUMPY_TYPES, Datatype, from_raw, to_raw
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.json_text import check_amount
from quadriga.proto.messages import (
    InferRequest,
    InferResponse,
    ModelInfo,
    NotFinite,
    RequestedOutput,
    Tensor,
    check_input_count,
    check_name,
    first_request_id,
    refuse_shared_memory,
)
from quadriga.quoting import quoted


class InputTensor(msgspec.Struct):
    """Input of a request."""

    name: str
    shape: list[int]
    datatype: str
    data: Any | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, Any] | None = None


class InferBody(msgspec.Struct):
    """Inference request in JSON."""

    inputs: list[InputTensor]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[RequestedOutput] | None = None


class OutputTensor(msgspec.Struct):
    """Output of a response; its bytes follow the JSON if `parameters` has `binary_data_size`."""

    name: str
    shape: Sequence[int]
    datatype: Datatype
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class InferAnswer(msgspec.Struct):
    """Response to an inference request, in JSON."""

    model_name: str
    model_version: str
    id: str
    outputs: list[OutputTensor]


class FloatTensor(InputTensor):
    """Input of a request whose data are flat and all floating-point numbers."""

    data: list[float] | msgspec.UnsetType = msgspec.UNSET


class FloatBody(InferBody):
    """Inference request in JSON whose inputs are of floating-point numbers."""

    inputs: list[FloatTensor]  # type: ignore[assignment]  # nobody appends to it


_DECODER = msgspec.json.Decoder(InferBody)
_FLOAT_DECODER = msgspec.json.Decoder(FloatBody)

FLOAT_KINDS = {"FP32": "f", "FP64": "d"}
"""Datatypes of floating-point numbers, as `struct` and numpy name them."""
_FLOAT_MARK = b'"FP'
_MARK_BYTES = 1024
"""Bytes at both ends of a body in which the datatype of its input is searched: between them are the data."""

MAX_REMEMBERED_BYTES = 1024
"""Maximum JSON before the bytes of tensors that is remembered: clients choose it, and memory is limited."""

EXACT_INTEGERS = 2**53
"""Bound below which integers are the same as FP64, and fit both datatypes."""


def parse_infer(
    body: bytes,
    model: str,
    version: str | None,
    header_id: str | None,
    json_bytes: int | None = None,
) -> InferRequest:
    """Parse an inference request.

    Args:
        body: JSON, followed by the bytes of the inputs that have `binary_data_size`.
        model: Model's name in the path.
        version: Model's version in the path, if any.
        header_id: Value of the header `X-Request-ID`; the body's own `id` has precedence.
        json_bytes: Length of the JSON; None for the whole body.
    """
    text = body if json_bytes is None else body[:json_bytes]
    raw = memoryview(body)[len(text) :]
    text = text.removeprefix(codecs.BOM_UTF8)
    if json_bytes is not None and len(text) <= MAX_REMEMBERED_BYTES and b'"data"' not in text:
        decoded, described = _remembered(text)
    else:
        check_amount(text)
        decoded = _decode_floats(text) or _decode(text)
        described = _described(decoded)
    inputs = []
    for tensor, location, parameters in described:
        size_bytes = _binary_size(tensor, raw.nbytes, location)
        if size_bytes is None:
            data, shape = _json_data(tensor, location)
        else:
            data, shape = from_raw(raw[:size_bytes], tensor.datatype, tensor.shape, location)
            raw = raw[size_bytes:]
        inputs.append(Tensor(tensor.name, tensor.datatype, shape, data, parameters=parameters))
    if raw.nbytes:
        raise InvalidRequest(f"expected no bytes behind the last input, got {raw.nbytes}")
    return InferRequest(
        model=model,
        version=version,
        id=first_request_id(decoded.id, header_id),
        inputs=inputs,
        requested_outputs=decoded.outputs or (),
        parameters=decoded.parameters or {},
    )


def parse_raw(
    body: bytes, info: ModelInfo, version: str | None, header_id: str | None
) -> InferRequest:
    """Parse a request that consists of the bytes of a model's only input; its response has bytes, too.

    The body of a BYTES input is its one element, without a length before it.
    """
    if len(info.inputs) != 1:
        raise InvalidRequest(
            f"expected a model of one input for a raw request, got {len(info.inputs)}: "
            "say how long the JSON is in Inference-Header-Content-Length"
        )
    (expected,) = info.inputs
    location = f"input {expected.name!r}"
    if expected.datatype == "BYTES":
        tensor = Tensor(expected.name, "BYTES", (1,), [body])
    else:
        shape = _raw_shape(expected.shape, len(body), expected.datatype, location)
        data, full_shape = from_raw(memoryview(body), expected.datatype, shape, location)
        tensor = Tensor(expected.name, expected.datatype, full_shape, data)
    return InferRequest(
        model=info.name,
        version=version,
        id=first_request_id(header_id),
        inputs=[tensor],
        parameters={"binary_data_output": True},
    )


def render_infer(
    request: InferRequest, response: InferResponse, not_finite: NotFinite = "token"
) -> tuple[bytes, int | None]:
    """Encode an inference response in the form that its request asks for.

    Returns:
        The body; and the length of its JSON if bytes follow it, else None.

    Raises:
        InvalidRequest: A value is not finite and `not_finite` is `error`.
    """
    output_parameters = {
        output.name: output.parameters or {} for output in request.requested_outputs
    }
    all_binary = request.parameters.get("binary_data_output")
    outputs: list[OutputTensor] = []
    raw_outputs: list[bytes] = []
    for tensor in response.outputs:
        requested = output_parameters.get(tensor.name, {})
        as_bytes = requested.get("binary_data", all_binary)
        parameters = dict(tensor.parameters)
        datatype: Any = tensor.datatype
        data: Any = msgspec.UNSET
        if as_bytes is True:
            raw_outputs.append(to_raw(tensor))
            parameters["binary_data_size"] = len(raw_outputs[-1])
        else:
            as_text = as_bytes is False or "content_type" in requested
            data = _data(tensor, not_finite, as_text=as_text)
        encoded_parameters = parameters or msgspec.UNSET
        outputs.append(
            OutputTensor(
                name=tensor.name,
                shape=tensor.shape,
                datatype=datatype,
                data=data,
                parameters=encoded_parameters,
            )
        )
    body = InferAnswer(response.model, response.version, response.id, outputs)
    text = msgspec.json.encode(body)
    if not raw_outputs:
        return text, None
    return b"".join((text, *raw_outputs)), len(text)


def _decode_floats(text: bytes) -> FloatBody | None:
    """Decode a request whose data are flat lists of floating-point numbers; None if it is another, or is refused.

    To decode numbers of any type, and then to find out theirs, takes a list of 3,072 twice the time.
    """
    size = len(text)
    if (
        text.find(_FLOAT_MARK, 0, _MARK_BYTES) < 0
        and text.find(_FLOAT_MARK, size - _MARK_BYTES) < 0
    ):
        return None
    try:
        body = _FLOAT_DECODER.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    for tensor in body.inputs:
        if tensor.data is msgspec.UNSET:
            continue
        kind = FLOAT_KINDS.get(tensor.datatype)
        if kind is None:
            return None
        # numpy itself takes twice the time; a number beyond FP32 becomes an infinity, which is too large
        packed = struct.pack(f"{len(tensor.data)}{kind}", *tensor.data)
        array = np.frombuffer(packed, kind)
        if array.size and not np.abs(array).max() < EXACT_INTEGERS:
            return None
        tensor.data = array  # type: ignore[assignment]  # as `_json_data` takes it
    return body


_Described = list[tuple[InputTensor, str, dict[str, Any]]]
"""Inputs of a request, each with its place for messages, and its parameters without the size of its bytes."""


@lru_cache(maxsize=256)
def _remembered(text: bytes) -> tuple[InferBody, _Described]:
    """Decode the JSON before the bytes of tensors, which mostly is the same as the last time; nobody changes the result."""
    decoded = _decode(text)
    return decoded, _described(decoded)


def _described(decoded: InferBody) -> _Described:
    """Check number and names of the inputs of a request, and where its outputs go; describe the inputs."""
    if not decoded.inputs:
        raise InvalidRequest("inputs is empty: at least one input is required")
    check_input_count(len(decoded.inputs))
    described = []
    for index, tensor in enumerate(decoded.inputs):
        check_name("name", tensor.name)
        location = f"inputs[{index}] ({quoted(tensor.name, 60)})"
        parameters = {k: v for k, v in (tensor.parameters or {}).items() if k != "binary_data_size"}
        described.append((tensor, location, parameters))
    for index, output in enumerate(decoded.outputs or ()):
        refuse_shared_memory(output.parameters, f"outputs[{index}] ({quoted(output.name, 60)})")
    return described


def _decode(text: bytes) -> InferBody:
    try:
        try:
            return _DECODER.decode(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if b"NaN" not in text and b"Infinity" not in text:
                raise
            document = json.loads(
                text.decode()
            )  # NaN and Infinity are no JSON, so msgspec refuses them
            if b"\\u" in text:  # json accepts half a surrogate pair, which is no text
                json.dumps(document, ensure_ascii=False).encode()
            return msgspec.convert(document, InferBody)
    except msgspec.ValidationError as error:
        problem = str(error).replace("`$.", "`").replace("`$[", "`[").replace("`", "'")
        raise InvalidRequest(f"expected a V2 inference request: {problem}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        is_image_or_form = not text[:1].isascii() or text.startswith(b"--")
        hint = (
            "; an image as it is, without a form, goes to /api/serve/serve-model-<name>-pred/infer"
            if is_image_or_form
            else ""
        )
        raise InvalidRequest(f"expected a body in JSON: {error}{hint}") from error
    except RecursionError as error:
        raise InvalidRequest("expected a body in JSON, got one nested too deeply") from error


def _binary_size(tensor: InputTensor, remaining_bytes: int, location: str) -> int | None:
    """Return how many of the remaining bytes behind the JSON are this input's; None if it has data."""
    parameters = tensor.parameters or {}
    size_bytes = parameters.get("binary_data_size")
    refuse_shared_memory(parameters, location)
    if (size_bytes is None) == (tensor.data is msgspec.UNSET):
        actual = "neither" if size_bytes is None else "both"
        raise InvalidRequest(
            f"{location}: expected one of data and parameters.binary_data_size, got {actual}"
        )
    if size_bytes is not None and (type(size_bytes) is not int or size_bytes < 0):
        raise InvalidRequest(
            f"{location}: expected parameters.binary_data_size to be a number of bytes, got {quoted(size_bytes, 40)}"
        )
    if size_bytes is not None and size_bytes > remaining_bytes:
        raise InvalidRequest(
            f"{location}: expected {size_bytes} bytes behind the JSON, got {remaining_bytes}"
        )
    return size_bytes


def _json_data(tensor: InputTensor, location: str) -> tuple[Any, tuple[int, ...]]:
    """Read the data of an input in JSON: an array or elements, and the shape."""
    if tensor.datatype == "BYTES":
        return datatypes.elements_from_json(tensor.data, tensor.shape, location)
    values: Any = tensor.data
    is_float = isinstance(tensor, FloatTensor)
    read = datatypes.shaped_array if is_float else datatypes.array_from_json
    array = read(values, tensor.datatype, tensor.shape, location)
    return array, array.shape


def _raw_shape(shape: Sequence[int], size_bytes: int, datatype: str, location: str) -> list[int]:
    """Return a shape with a variable batch set to 1 and one variable dimension computed from the bytes."""
    filled = list(shape)
    if len(filled) > 1 and filled[0] == -1 and filled.count(-1) > 1:
        filled[0] = 1
    if filled.count(-1) > 1:
        raise InvalidRequest(
            f"{location}: expected at most one variable dimension for a raw request, got {list(shape)}"
        )
    if -1 in filled:
        known_bytes = (
            math.prod(side for side in filled if side != -1) * NUMPY_TYPES[datatype].itemsize
        )
        filled[filled.index(-1)] = size_bytes // known_bytes if known_bytes else 0
    return filled


def _data(tensor: Tensor, not_finite: NotFinite, *, as_text: bool) -> Any:
    if isinstance(tensor.data, np.ndarray):
        return numbers(tensor.data, not_finite)
    if not as_text:
        return tensor.data
    try:
        return [element.decode() for element in datatypes.elements_as_bytes(tensor.data)]
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"output {tensor.name!r}: expected texts in UTF-8, got: {error}; ask for binary_data"
        ) from error


def numbers(array: npt.NDArray[Any], not_finite: NotFinite) -> Any:
    """Return the values of an array, flat, as JSON has them; raises as `render_infer`."""
    values = array.ravel().tolist()
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return values
    if not_finite == "error":
        raise InvalidRequest(
            "expected outputs that JSON can write, got NaN or an infinity: ask for binary_data"
        )
    if not_finite == "null":
        return [value if math.isfinite(value) else None for value in values]
    return msgspec.Raw(json.dumps(values, separators=(",", ":")).encode())
