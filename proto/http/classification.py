"""Triton's classification extension: the best classes of an output instead of its values.

Source: Triton Inference Server, protocol extension "classification".
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, InferResponse, Serving, Tensor
from quadriga.quoting import quoted

MAX_ELEMENTS = 1_000_000
"""Maximum number of elements of a classified output."""


def infer_and_classify(serving: Serving, request: InferRequest) -> InferResponse:
    """Run a request; replace each output with the parameter `classification` by its best classes."""
    class_counts = {
        output.name: _count(requested, output.name)
        for output in request.requested_outputs
        if (requested := (output.parameters or {}).get("classification"))
    }
    response = serving.infer(request)
    if not class_counts:
        return response
    labels = serving.model_info(response.model, response.version).labels
    outputs = [
        _classified(tensor, class_counts[tensor.name], labels)
        if tensor.name in class_counts
        else tensor
        for tensor in response.outputs
    ]
    return msgspec.structs.replace(response, outputs=outputs)


def _count(requested: object, output: str) -> int:
    if type(requested) is not int or requested < 1:
        raise InvalidRequest(
            f"output {quoted(output, 60)}: expected parameters.classification to be a number of classes, "
            f"got {quoted(requested, 40)}"
        )
    return requested


def _classified(tensor: Tensor, count: int, labels: Sequence[str]) -> Tensor:
    """Return the best classes of a tensor as texts `value:index:label`; its first axis is the batch."""
    location = f"output {tensor.name!r}"
    array = tensor.data
    if not isinstance(array, np.ndarray) or tensor.datatype in ("FP16", "BOOL"):
        raise InvalidRequest(
            f"{location}: expected a tensor of numbers to classify, got {tensor.datatype}"
        )
    if array.size > MAX_ELEMENTS:
        raise InvalidRequest(
            f"{location}: expected at most {MAX_ELEMENTS} elements to classify, got {array.size}"
        )
    size = math.prod(array.shape[1:])  # -1 is undefined if there are no rows
    rows = array.reshape(array.shape[0], size) if array.ndim > 1 else array.reshape(1, -1)
    count = min(count, rows.shape[1])
    elements = []
    for row in rows:
        for index in np.argsort(-row.astype(np.float64), kind="stable")[:count].tolist():
            label = f":{labels[index]}" if index < len(labels) else ""
            elements.append(f"{row[index]:f}:{index}{label}")
    shape = (rows.shape[0], count) if array.ndim > 1 else (count,)
    return Tensor(tensor.name, "BYTES", shape, elements, parameters=tensor.parameters)
