"""Requests whose inputs are the arguments of one call: an image, a question about it, numbers for its answer.

MLServer's runtime for Hugging Face writes calls of pipelines so. The question and the numbers become parameters of the
request, which then is one of images.

Source: Chariot, Inference Protocols ("Requests"); mlserver-huggingface, codecs.
"""

from typing import Any

import msgspec
import numpy as np
import pybase64

from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.quoting import quoted
from quadriga.tasks.image_text import FLAGS, PROMPTS

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
