"""KServe V2 over REST: the endpoints.

Source: Open Inference Protocol, inference_rest.md; Triton's extensions where named.
"""

import codecs
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np
import numpy.typing as npt
from multipart import MultipartError, MultipartParser, parse_options_header

from quadriga.proto import datatypes
from quadriga.proto.access import Need, admit
from quadriga.proto.datatypes import NUMPY_TYPES, Datatype, from_raw, to_raw
from quadriga.proto.errors import InvalidRequest, ModelNotReady, unexpected
from quadriga.proto.http.cloud_events import with_cloud_events
from quadriga.proto.http.operations import (
    JSON_BYTES,
    HttpRequest,
    HttpResponse,
    Operation,
    WireOptions,
    json_response,
    list_models,
    mark_cloud_event,
    named_model,
    post_endpoint,
    state_endpoint,
    store_headers,
)
from quadriga.proto.json_text import check_amount, parse_json, parse_object
from quadriga.proto.messages import (
    HealthReport,
    InferRequest,
    InferResponse,
    ModelInfo,
    NotFinite,
    RequestedOutput,
    Serving,
    Tensor,
    check_input_count,
    check_model_exists,
    check_name,
    first_request_id,
    refuse_shared_memory,
)
from quadriga.proto.request import current_caller
from quadriga.quoting import quoted
from quadriga.tasks.image import is_image_file

_MODEL = "/v2/models/{name}[/versions/{version}]"


EXTENSIONS: tuple[str, ...] = (
    "binary_tensor_data",
    "classification",
    "idempotency_key",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
"""Extensions named in the server's metadata: those that are implemented."""


_OCTETS = b"application/octet-stream"


# Responses in JSON, for the OpenAPI document.


class ServerMetadata(msgspec.Struct):
    """Metadata of the server."""

    name: str
    version: str
    extensions: Sequence[str]


ServerLive = msgspec.defstruct("ServerLive", [("live", bool)])


ServerReady = msgspec.defstruct("ServerReady", [("live", bool), ("ready", bool)])


ModelReady = msgspec.defstruct("ModelReady", [("name", str), ("ready", bool)])


ModelNames = msgspec.defstruct("ModelNames", [("models", list[str])])


class TensorMetadata(msgspec.Struct):
    """An input or output; -1 stands for a variable dimension."""

    name: str
    datatype: Datatype
    shape: list[int]


class ModelMetadata(msgspec.Struct):
    """Metadata of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    properties: dict[str, str]


def operations(serving: Serving, options: WireOptions) -> list[Operation]:
    """Make the endpoints of V2 over REST."""
    server = ServerMetadata("quadriga", options.server_version, EXTENSIONS)
    infer = with_cloud_events(partial(answer_infer, serving, options), options)
    ready, model_ready = partial(_server_ready, serving), partial(_model_ready, serving)
    infer_endpoint = partial(post_endpoint, request_type=InferBody, response_type=InferAnswer)

    def metadata(http_request: HttpRequest) -> HttpResponse:
        return json_response(model_metadata(named_model(serving, http_request)))

    def live(_: HttpRequest) -> HttpResponse:
        return json_response({"live": True})

    rows: list[tuple[str, Need, Callable[[HttpRequest], HttpResponse], str, Any]] = [
        ("/v2", "key", lambda _: json_response(server), "Describe the server", ServerMetadata),
        ("/v2/health/live", "nothing", live, "Check whether the server runs", ServerLive),
        ("/v2/health/ready", "nothing", ready, "Check whether the server is ready", ServerReady),
        ("/ready", "nothing", ready, "Check whether the server is ready, for Chariot", ServerReady),
        ("/v2/models", "key", partial(list_models, serving), "List the models", ModelNames),
        (_MODEL, "infer", metadata, "Describe a model", ModelMetadata),
        (f"{_MODEL}/ready", "infer", model_ready, "Check whether a model is ready", ModelReady),
    ]
    return [
        infer_endpoint(
            f"{_MODEL}/infer",
            infer,
            "Infer",
            need="infer",
            compress_response=True,
            allows_binary=True,
            allows_image=True,
        ),
        *(
            state_endpoint(path, handler, summary, need=need, response_type=response_type)
            for path, need, handler, summary, response_type in rows
        ),
    ]


def answer_infer(serving: Serving, options: WireOptions, http_request: HttpRequest) -> HttpResponse:
    """Run an inference request to the model named in the path."""
    try:
        request = _read_request(serving, http_request)
    except InvalidRequest as error:
        named = http_request.path_parameters
        check_model_exists(serving, named["name"], named["version"])
        headers = http_request.headers
        is_read_as_json = JSON_BYTES not in headers and not is_image_type(media_type(headers))
        if is_read_as_json and is_image_file(http_request.body):
            raise InvalidRequest(
                "expected a body in JSON, got the file of an image: models of images take it with "
                "Content-Type: image/jpeg or its like"
            ) from error
        raise
    response = infer_and_classify(serving, mark_cloud_event(http_request, request))
    body, json_bytes = render_infer(request, response, options.not_finite)
    answered = store_headers(response)
    if json_bytes is None:
        return HttpResponse(body, headers=answered)
    answered = [*answered, (JSON_BYTES, str(json_bytes).encode())]
    return HttpResponse(body, media_type=_OCTETS, headers=answered)


def _read_request(serving: Serving, http_request: HttpRequest) -> InferRequest:
    """Read an inference request, whose body is an image, JSON, JSON and the data behind it, or one tensor's data alone."""
    request_id = http_request.headers.get(b"x-request-id", b"").decode("latin-1") or None
    version, json_bytes = http_request.path_parameters["version"], _json_bytes(http_request)
    if json_bytes == 0:
        info = named_model(serving, http_request)
        return parse_raw(http_request.body, info, version, request_id)
    if json_bytes is None and _holds_image(serving, http_request):
        return _image_request(serving, http_request, request_id)
    return parse_infer(
        http_request.body,
        model=http_request.path_parameters["name"],
        version=version,
        header_id=request_id,
        json_bytes=json_bytes,
    )


def _holds_image(serving: Serving, http_request: HttpRequest) -> bool:
    """Check whether the body is an image: by its type, or of bytes of no type by their beginning, if the model takes images."""
    kind = media_type(http_request.headers)
    if kind == _OCTETS:
        return is_image_file(http_request.body) and named_model(serving, http_request).takes_images
    return is_image_type(kind)


def _image_request(
    serving: Serving, http_request: HttpRequest, header_id: str | None
) -> InferRequest:
    """Make the request of a body that is an image."""
    info = named_model(serving, http_request)
    if not info.takes_images:
        kind = media_type(http_request.headers).decode("latin-1")
        raise InvalidRequest(
            f"expected tensors for the model {info.name!r}, as JSON or binary data, got {quoted(kind, 60)}"
        )
    image = read_image(http_request, info.inputs[0].name)
    named = http_request.path_parameters
    return InferRequest(named["name"], named["version"], first_request_id(header_id), [image])


def _json_bytes(http_request: HttpRequest) -> int | None:
    """Read the length of the JSON of a body; None if the whole body is JSON."""
    header = http_request.headers.get(JSON_BYTES)
    if header is None:
        return None
    length = int(header) if header.isdigit() and len(header) < 16 else -1
    if not 0 <= length <= len(http_request.body):
        raise InvalidRequest(
            f"expected Inference-Header-Content-Length to be 0 to {len(http_request.body)}, the length of the "
            f"body, got {quoted(header, 40)}"
        )
    return length


def _server_ready(serving: Serving, http_request: HttpRequest) -> HttpResponse:
    reason = serving.unready_reason()
    if reason is not None and not current_caller().rights:
        reason = "the server is not ready; with a key the answer says why"
    status = "ready" if reason is None else "not ready"
    ready = {"status": status, "live": True, "ready": True}
    if http_request.query and _is_verbose(http_request.query):
        if not current_caller().rights:
            admit(current_caller(), "key")
        ready |= _health_json(serving.health_report())
    return _ready(reason, ready)


def _is_verbose(query: bytes) -> bool:
    """Check whether the query of a URL has `verbose`, alone or as a true value."""
    return any(part in (b"verbose", b"verbose=1", b"verbose=true") for part in query.split(b"&"))


def _health_json(report: HealthReport) -> dict[str, Any]:
    """Render the parts of a health report."""
    return {
        "status": report.status,
        "process": {**msgspec.to_builtins(report.process), "processes": report.processes},
        "store": {**msgspec.to_builtins(report.store), "lag_bytes": report.lag_bytes},
        "models": {**msgspec.to_builtins(report.models), "versions": report.versions},
    }


def model_metadata(info: ModelInfo) -> dict[str, Any]:
    """Render a model's metadata; its properties are texts, so tensors of the graph are JSON in them."""
    properties = {"task": info.task}
    tensors = {"graph_inputs": info.graph_inputs, "graph_outputs": info.graph_outputs}
    properties |= {
        name: msgspec.json.encode(rows).decode() for name, rows in tensors.items() if rows
    }
    if info.providers:
        properties["providers"] = ", ".join(info.providers)
    return {
        "name": info.name,
        "versions": info.versions,
        "platform": info.platform,
        "inputs": info.inputs,
        "outputs": info.outputs,
        "properties": properties,
    }


def _model_ready(serving: Serving, http_request: HttpRequest) -> HttpResponse:
    try:
        info = named_model(serving, http_request)
    except ModelNotReady as error:
        return _ready(str(error), {"name": http_request.path_parameters["name"]})
    reason = serving.model_unready_reason(info.name, http_request.path_parameters["version"])
    return _ready(reason, {"name": info.name, "ready": True})


def _ready(reason: str | None, ready: Mapping[str, Any]) -> HttpResponse:
    if reason is None:
        return json_response(ready)
    return json_response({**ready, "ready": False, "error": reason}, 400)


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
        location = f"output {quoted(output, 60)}"
        raise unexpected(
            location, "parameters.classification to be a number of classes", requested, 40
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


PARAMETERS_HEADER = b"chariot-inference-parameters"
"""Header with the parameters, a JSON object, of an image sent as raw bytes."""


MAX_FIELDS = 100
"""Maximum parts of a form, and parameters in a query."""


_FORM = b"multipart/form-data"


def media_type(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the media type in `Content-Type`, in lower case and without its parameters; empty if there is none."""
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower()


def is_image_type(kind: bytes) -> bool:
    """Check whether a media type is that of an image, or of a form that may hold one."""
    return kind.startswith(b"image/") or kind == _FORM


def read_image(http_request: HttpRequest, name: str) -> Tensor:
    """Read the image of a request as an input of one element, with its parameters.

    Of a parameter that comes twice, the form has precedence over the query, and the query over the header.

    Raises:
        InvalidRequest: The form holds no file or several, or the header holds no JSON object.
    """
    header = http_request.headers.get(PARAMETERS_HEADER)
    subject = f"the header {PARAMETERS_HEADER.decode()}"
    parameters = {} if header is None else parse_object(header, subject)
    try:
        text = http_request.query.decode("latin-1")
        query = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise InvalidRequest(f"expected at most {MAX_FIELDS} parameters in the query") from error
    parameters |= {key: _value(value) for key, value in query}
    image = http_request.body
    if media_type(http_request.headers) == _FORM:
        image, fields = _read_form(http_request)
        parameters |= {key: _value(value) for key, value in fields.items()}
    return Tensor(name, "BYTES", (1,), [image], parameters=parameters)


def _value(text: str) -> Any:
    """Return the value of a text that is JSON, such as a number or an object; else the text."""
    with suppress(InvalidRequest):
        return parse_json(text, "a value", object)
    return text


def _read_form(http_request: HttpRequest) -> tuple[bytes, dict[str, str]]:
    """Return the only file of a form, and its other fields."""
    files: list[bytes] = []
    fields: dict[str, str] = {}
    _, options = parse_options_header(http_request.headers[b"content-type"].decode("latin-1"))
    body = http_request.body
    form = MultipartParser(
        BytesIO(body),
        options.get("boundary", ""),
        part_limit=MAX_FIELDS,
        spool_limit=len(body),  # nothing goes to disk
        memory_limit=len(body),
        buffer_size=max(len(body), 1),
    )
    try:
        for part in form:
            if part.filename is None and not part.content_type.startswith("image/"):
                fields[part.name or ""] = part.raw.decode()
            else:
                files.append(part.raw)
    except (MultipartError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"expected a form as multipart/form-data, got: {error}") from error
    if len(files) != 1:
        named = ", ".join(fields) or "none"
        raise InvalidRequest(
            f"expected a form with one file, got {len(files)}; other fields: {quoted(named, 200)}"
        )
    return files[0], fields


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
    data: Any = [body]
    shape: tuple[int, ...] = (1,)
    if expected.datatype != "BYTES":
        filled = _raw_shape(expected.shape, len(body), expected.datatype, location)
        data, shape = from_raw(memoryview(body), expected.datatype, filled, location)
    return InferRequest(
        model=info.name,
        version=version,
        id=first_request_id(header_id),
        inputs=[Tensor(expected.name, expected.datatype, shape, data)],
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
        output = OutputTensor(tensor.name, tensor.shape, datatype, data=data)
        output.parameters = parameters or msgspec.UNSET
        outputs.append(output)
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
        subject = "parameters.binary_data_size to be a number of bytes"
        raise unexpected(location, subject, size_bytes, 40)
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
