"""Triton's generate extension: a prompt and an image in, text out, at once or as a stream.

It equals one prompt of `prompts` in chariot-v2-kserve, in the form that clients of language models use.

Source: Triton Inference Server, protocol extension "generate"; its vLLM backend for `image`.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from quadriga.proto.errors import InvalidRequest
from quadriga.proto.http.asgi import error_response
from quadriga.proto.http.operations import (
    HttpRequest,
    HttpResponse,
    Operation,
    WireOptions,
    post_endpoint,
    request_id,
    store_headers,
)
from quadriga.proto.json_text import parse_object, take_parameters
from quadriga.proto.messages import (
    InferChunk,
    InferRequest,
    Serving,
    Tensor,
    check_model_exists,
)
from quadriga.quoting import quoted

TASK = "IMAGE_TEXT_TO_TEXT"

IMAGE_KEYS = ("image", "image_input", "images")
"""Keys for the image as different backends name it; a body has one: an image in base64, or a list with one."""

_MODEL = "/v2/models/{name}[/versions/{version}]"
_OWN_KEYS = ("id", "text_input", "parameters", *IMAGE_KEYS)


class GenerateBody(msgspec.Struct):
    """Request, for the OpenAPI document; other keys of the body count as parameters."""

    text_input: str
    image: str
    id: str | None = None
    parameters: dict[str, Any] | None = None


class GenerateAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Response, or a chunk of one; `inference_id` and `stored` are in the last chunk."""

    model_name: str
    model_version: str
    id: str
    text_output: str
    inference_id: str = ""
    stored: bool = True
    """Whether the store had room for the inference."""


def operations(serving: Serving, _: WireOptions) -> list[Operation]:
    """Make the endpoints of the extension."""
    generate, generate_stream = partial(_generate, serving), partial(_generate_stream, serving)
    summary = "Answer a prompt about an image"
    endpoint = partial(post_endpoint, need="infer", request_type=GenerateBody)
    return [
        endpoint(f"{_MODEL}/generate", generate, summary, response_type=GenerateAnswer),
        endpoint(
            f"{_MODEL}/generate_stream",
            generate_stream,
            f"{summary}, as events",
            response_media_type="text/event-stream",
        ),
    ]


def parse_generate(http_request: HttpRequest) -> InferRequest:
    """Parse a request to generate text."""
    body = parse_object(http_request.body, "a body")
    text, given_id = body.get("text_input"), body.get("id")
    if not isinstance(text, str):
        raise InvalidRequest(f"expected text_input to be a text, got {quoted(text, 60)}")
    if given_id is not None and not isinstance(given_id, str):
        raise InvalidRequest(f"expected id to be a text, got {quoted(given_id, 60)}")
    parameters = {key: value for key, value in body.items() if key not in _OWN_KEYS}
    parameters |= take_parameters(body)
    max_tokens = parameters.pop("max_tokens", None)
    if max_tokens is not None and parameters.setdefault("max_new_tokens", max_tokens) != max_tokens:
        raise InvalidRequest(
            "expected either parameters.max_tokens or parameters.max_new_tokens, got both"
        )
    timeout = {"timeout": parameters.pop("timeout")} if "timeout" in parameters else {}
    return InferRequest(
        model=http_request.path_parameters["name"],
        version=http_request.path_parameters["version"],
        id=request_id(http_request, given_id),
        inputs=[
            Tensor(
                "image", "BYTES", (1,), [_image(body)], parameters={**parameters, "prompt": text}
            )
        ],
        protocol="generate",
        parameters=timeout,
    )


def _image(body: dict[str, Any]) -> str:
    values = [body[key] for key in IMAGE_KEYS if body.get(key) is not None]
    images = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    if len(images) != 1 or not isinstance(images[0], str):
        raise InvalidRequest(f"expected image to be one image in base64, got {quoted(images, 60)}")
    return images[0]


def _request(serving: Serving, http_request: HttpRequest) -> InferRequest:
    try:
        request = parse_generate(http_request)
    except InvalidRequest:
        named = http_request.path_parameters
        check_model_exists(serving, named["name"], named["version"])
        raise
    info = serving.model_info(request.model, request.version)
    if info.task != TASK:
        raise InvalidRequest(
            f"expected a model of the task {TASK} for generate, got {info.name!r} of {info.task}"
        )
    return request


def _generate(serving: Serving, http_request: HttpRequest) -> HttpResponse:
    response = serving.infer(_request(serving, http_request))
    (prediction,) = response.outputs[0].data[0]
    body = GenerateAnswer(response.model, response.version, response.id, prediction.answer)
    return HttpResponse(msgspec.json.encode(body), headers=store_headers(response))


def _generate_stream(serving: Serving, http_request: HttpRequest) -> HttpResponse:
    chunks = serving.stream(_request(serving, http_request))
    first_chunk = next(chunks)  # errors of the request are raised here, before the status is sent
    headers = [(b"cache-control", b"no-cache")]
    return HttpResponse(
        _events(first_chunk, chunks), media_type=b"text/event-stream", headers=headers
    )


def _events(first_chunk: InferChunk, chunks: Iterator[InferChunk]) -> Iterator[bytes]:
    """Encode each chunk as an event; an error is the last one."""
    try:
        for chunk in chain([first_chunk], chunks):
            body = GenerateAnswer(
                model_name=chunk.model,
                model_version=chunk.version,
                id=chunk.id,
                text_output=chunk.text,
                inference_id=",".join(chunk.inference_ids),
                stored=chunk.stored,
            )
            yield b"data: %b\n\n" % msgspec.json.encode(body)
    except Exception as error:  # noqa: BLE001 - the status is sent: every later error is an event
        yield b"data: %b\n\n" % error_response(error)[1]
