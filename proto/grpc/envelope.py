"""V2 over gRPC: parses an inference request from its message, and renders a response to one.

Tensors are raw bytes or typed contents; the response has the form of its request.

Source: Open Inference Protocol, inference_grpc.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.proto import datatypes
from quadriga.proto.datatypes import NUMPY_TYPES, elements_as_bytes
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.json_text import parse_json
from quadriga.proto.messages import (
    InferRequest,
    InferResponse,
    RequestedOutput,
    Tensor,
    check_input_count,
    check_name,
    first_request_id,
    refuse_shared_memory,
)
from quadriga.quoting import quoted

CONTENTS: dict[str, str] = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **{
        kind: f"{kind.lower()}_contents"
        for kind in ("BOOL", "INT64", "UINT64", "FP32", "FP64", "BYTES")
    },
}
"""Field of typed contents by datatype; FP16 has none."""

JSON_PARAMETERS = ("prompts", "tiling")
"""Parameters that are lists or objects, and so come as JSON texts. (`metadata` is one everywhere.)"""

_WIDE: dict[str, npt.DTypeLike] = {"int_contents": np.int32, "uint_contents": np.uint32}


def parse_infer(message: Any, call_id: str = "") -> InferRequest:
    """Parse an inference request, a `ModelInferRequest`; without an id of its own it has that of its call."""
    if not message.inputs:
        raise InvalidRequest("inputs is empty: at least one input is required")
    check_input_count(len(message.inputs))
    for index, tensor in enumerate(message.inputs):
        refuse_shared_memory(tensor.parameters, f"inputs[{index}] ({quoted(tensor.name, 60)})")
    for index, output in enumerate(message.outputs):
        refuse_shared_memory(output.parameters, f"outputs[{index}] ({quoted(output.name, 60)})")
    raws: Sequence[bytes | None] = message.raw_input_contents or [None] * len(message.inputs)
    if len(raws) != len(message.inputs):
        raise InvalidRequest(
            f"expected raw_input_contents of all {len(message.inputs)} inputs or of none, got {len(raws)}"
        )
    return InferRequest(
        model=message.model_name,
        version=message.model_version or None,
        id=first_request_id(message.id, call_id),
        inputs=[
            _tensor(tensor, raw, f"inputs[{index}] ({quoted(tensor.name, 60)})")
            for index, (tensor, raw) in enumerate(zip(message.inputs, raws, strict=True))
        ],
        requested_outputs=[
            RequestedOutput(
                output.name, read_parameters(output.parameters, f"output {output.name!r}")
            )
            for output in message.outputs
        ],
        parameters=read_parameters(message.parameters, "the request"),
        protocol="v2-grpc",
        has_text_numbers=True,
    )


def render_infer(response: InferResponse, message: Any, *, raw: bool) -> None:
    """Write an inference response to an empty `ModelInferResponse`, of `response_class`.

    Tensors are written as bytes if `raw`, or if any of them has no typed contents.
    """
    message.model_name, message.model_version = response.model, response.version
    message.id = response.id
    raw = raw or any(tensor.datatype not in CONTENTS for tensor in response.outputs)
    for tensor in response.outputs:
        output = message.outputs.add(
            name=tensor.name, datatype=tensor.datatype, shape=map(int, tensor.shape)
        )
        _set_parameters(output.parameters, tensor.parameters)
        if raw:
            message.raw_output_contents.append(datatypes.to_raw(tensor))
        elif isinstance(tensor.data, np.ndarray):
            getattr(output.contents, CONTENTS[tensor.datatype]).extend(tensor.data.ravel().tolist())
        else:
            output.contents.bytes_contents.extend(elements_as_bytes(tensor.data))


def _tensor(tensor: Any, raw: bytes | None, location: str) -> Tensor:
    check_name("name", tensor.name)
    parameters = read_parameters(tensor.parameters, location)
    datatypes.check_datatype(tensor.datatype, location)
    filled: list[str] = []
    if tensor.HasField("contents"):
        filled = [field.name for field, _ in tensor.contents.ListFields()]
    if raw is not None:
        if filled:
            raise InvalidRequest(
                f"{location}: expected raw_input_contents or contents, got both ({filled[0]})"
            )
        data, shape = datatypes.from_raw(memoryview(raw), tensor.datatype, tensor.shape, location)
    else:
        data, shape = _typed(tensor, filled, location)
    return Tensor(tensor.name, tensor.datatype, shape, data, parameters=parameters)


def _typed(
    tensor: Any, filled: Sequence[str], location: str
) -> tuple[npt.NDArray[Any] | list[bytes], tuple[int, ...]]:
    """Read typed contents: return an array, or the elements of BYTES; and the shape."""
    name = CONTENTS.get(tensor.datatype)
    if name is None:
        raise InvalidRequest(
            f"{location}: expected {tensor.datatype} in raw_input_contents, got none: it has no contents"
        )
    if any(field != name for field in filled):
        raise InvalidRequest(
            f"{location}: expected {tensor.datatype} in contents.{name}, got {', '.join(filled)}"
        )
    values = getattr(tensor.contents, name)
    shape = datatypes.checked_shape(tensor.shape, len(values), location)
    if tensor.datatype == "BYTES":
        return list(values), shape
    array = np.fromiter(values, _WIDE.get(name, NUMPY_TYPES[tensor.datatype]), len(values))
    return datatypes.cast_exactly(array, tensor.datatype, location).reshape(shape), shape


def read_parameters(parameters: Mapping[str, Any], location: str) -> dict[str, Any]:
    """Read parameters, some of which are JSON texts; one without a value is None."""
    values: dict[str, Any] = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        value = None if choice is None else getattr(parameter, choice)
        if name in JSON_PARAMETERS and isinstance(value, str):
            value = parse_json(value, f"the JSON text parameters.{name}", object, f"{location}: ")
        values[name] = value
    return values


def _set_parameters(target: Any, parameters: Mapping[str, Any]) -> None:
    """Write parameters; values other than numbers, truth values and texts become JSON texts.

    Messages of MLServer and KServe have neither `double_param` nor `uint64_param`, so a text of the number comes
    before these: a client reads the last one that its own messages know.
    """
    for name, value in parameters.items():
        if isinstance(value, bool):
            target[name].bool_param = value
        elif isinstance(value, int) and -(2**63) <= value < 2**63:
            target[name].int64_param = value
        elif value is not None:
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            target[name].string_param = repr(value) if isinstance(value, float) else text
            if isinstance(value, float):
                target[name].double_param = value
            elif isinstance(value, int) and 0 <= value < 2**64:
                target[name].uint64_param = value
