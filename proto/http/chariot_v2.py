"""chariot-v2: images at `/infer`, as JSON, as JSON lines, or as `quadriga.proto.http.v2` reads them.

Parameters and predictions are those of chariot-v2-kserve; responses have no model name, no input's name and no
metadata. The model is the one of the gateway's prefix, or the only one of the server.

Source: Striveworks, engine-yolo, `protocol.py`; it is not on Chariot's page of protocols.
"""

import re
from functools import partial
from typing import Any

import msgspec

from quadriga.proto.errors import InvalidRequest, unexpected
from quadriga.proto.http.operations import (
    HttpRequest,
    HttpResponse,
    Operation,
    WireOptions,
    model_names,
    post_endpoint,
    request_id,
    store_headers,
)
from quadriga.proto.http.v2 import answer_infer, media_type, read_image
from quadriga.proto.json_text import check_amount, parse_object, take_parameters
from quadriga.proto.messages import (
    InferRequest,
    Serving,
    Tensor,
    check_input_count,
    check_model_exists,
)

PATH = "[/api/serve/serve-model-{name}-pred]/infer"

_JSON = b"application/json"
_LINES = b"application/jsonl"
_FORM = b"application/x-www-form-urlencoded"
_OBJECT = re.compile(rb"(\xef\xbb\xbf)?\s*\{")


class ImageBody(msgspec.Struct):
    """Request, or one line of it, for the OpenAPI document."""

    input: str
    parameters: dict[str, Any] | None = None


def operations(serving: Serving, options: WireOptions) -> list[Operation]:
    """Make the one endpoint of chariot-v2."""
    infer = partial(_infer, serving, options)
    return [
        post_endpoint(
            PATH,
            infer,
            "Predict on images, for Chariot",
            need="infer",
            compress_response=True,
            request_type=ImageBody,
            allows_image=True,
        )
    ]


def parse_images(http_request: HttpRequest) -> list[Tensor] | None:
    """Read the images of a request, each as a tensor; None if it is a request of chariot-v2-kserve."""
    kind = media_type(http_request.headers)
    if kind == _LINES:
        check_amount(http_request.body)
        lines = [line for line in http_request.body.split(b"\n") if line.strip()]
        if not lines:
            raise InvalidRequest("the body is empty: expected at least one line")
        check_input_count(len(lines))
        return [
            _image(parse_object(line, location := f"line {number}"), location, number)
            for number, line in enumerate(lines)
        ]
    # curl sends its default type, that of forms, with anything that it posts
    if kind in (b"", _JSON) or (kind == _FORM and _OBJECT.match(http_request.body)):
        body = parse_object(http_request.body, "a body")
        return None if "inputs" in body and "input" not in body else [_image(body, "a body", 0)]
    return [read_image(http_request, "input-0")]


def _image(body: dict[str, Any], location: str, index: int) -> Tensor:
    image = body.get("input")
    if not isinstance(image, str):
        raise unexpected(location, "input to be an image in base64", image)
    parameters = take_parameters(body, f"{location}: ")
    return Tensor(f"input-{index}", "BYTES", (1,), [image], parameters=parameters)


def _infer(serving: Serving, options: WireOptions, http_request: HttpRequest) -> HttpResponse:
    name = http_request.path_parameters["name"]
    if name is None:
        names = model_names(serving)
        if len(names) != 1:
            raise InvalidRequest(
                f"expected a server of one model for /infer, got {', '.join(names):.400}: "
                "POST /v2/models/<name>/infer, or below /api/serve/serve-model-<name>-pred"
            )
        (name,) = names
    try:
        inputs = parse_images(http_request)
    except InvalidRequest:
        check_model_exists(serving, name, None)
        raise
    if inputs is None:
        path = {"name": name, "version": None}
        return answer_infer(
            serving, options, msgspec.structs.replace(http_request, path_parameters=path)
        )
    info = serving.model_info(name, None)
    if not info.takes_images:
        raise InvalidRequest(
            f"expected a model of images, got {info.name!r}, which takes tensors: "
            f"POST /v2/models/{info.name}/infer"
        )
    request = InferRequest(name, None, request_id(http_request), inputs, protocol="chariot-v2")
    response = serving.infer(request)
    lines = [msgspec.json.encode({"output": output.data[0]}) for output in response.outputs]
    headers = store_headers(response)
    if len(lines) == 1:
        return HttpResponse(lines[0], headers=headers)
    return HttpResponse(b"\n".join((*lines, b"")), media_type=_LINES, headers=headers)
