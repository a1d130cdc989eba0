"""Endpoints of the protocols: a verb, a path, and a plain function from request to response; and what calls them.

They are tried before Litestar's routes, whose overhead exceeds the run of a small model and which support neither
verbs behind a colon nor case-insensitive paths, both of TF Serving. A protocol only parses and renders: `Dispatcher` reads
bodies, begins the time of each request, and compresses answers.
"""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal

import msgspec
from litestar.types import Receive, Scope, Send

from quadriga.proto import idempotency
from quadriga.proto.access import Caller, Need, admit
from quadriga.proto.errors import (
    ClientLeft,
    InvalidRequest,
    MethodNotAllowed,
    UnsupportedMediaType,
)
from quadriga.proto.http.asgi import (
    DISCONNECT_EXTENSION,
    Headers,
    WholeAnswer,
    compress,
    decompress,
    error_response,
    read_body,
    send_answer,
    whole_answer,
)
from quadriga.proto.http.intake import Intake
from quadriga.proto.messages import (
    InferRequest,
    InferResponse,
    ModelInfo,
    NotFinite,
    Serving,
    check_model_exists,
    first_request_id,
)
from quadriga.proto.request import (
    HEADER_LIMIT,
    TIMEOUT_HEADER,
    TIMING_HEADER,
    Audit,
    Deadline,
    OtherWire,
    RequestContext,
    WireProtocol,
    current_request,
    error_request_id,
    is_audited,
    note_outcome,
    outcome_of_error,
    read_timeout_header,
    set_current_request,
    wire_protocol,
)
from quadriga.quoting import quoted
from quadriga.tasks.specification import resolve

JSON = b"application/json"

JSON_BYTES = b"inference-header-content-length"
"""Header with the length of the JSON before the bytes of tensors."""


MAX_ANSWER_HEADER_BYTES = 3072
"""Maximum bytes of one header of an answer; longer lists of ids are in the outputs only. Proxies accept 4 KiB of headers, clients
64 KiB a line."""


_UNREAD_TYPES = (
    b"multipart/mixed",
    b"multipart/related",
    b"application/x-protobuf",
    b"application/protobuf",
    b"application/grpc",
)
"""Content types that no operation reads. JSON is read whatever its type: clients send none, or that of forms."""


MAX_REMEMBERED_PATH = 256
"""Maximum length of a path whose operation is remembered: clients choose paths, and memory is limited."""


IDS_HEADER = b"quadriga-inference-ids"

_GATEWAY_PREFIX = re.compile(r"/api/serve/serve-model-([^/]+)-pred(?=/|$)")


class WireOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that decide how requests are read and responses are written."""

    server_version: str
    not_finite: NotFinite = "token"
    ce_type: str = "io.kserve.inference.response"
    ce_source: str = ""
    ce_merge: bool = False


class HttpRequest(msgspec.Struct, frozen=True):
    """One complete request to an operation."""

    path_parameters: Mapping[str, Any]
    """Texts by name; None for a parameter in an optional part that the path omits."""
    headers: Mapping[bytes, bytes]
    """Values by name in lower case."""
    body: bytes = b""
    """Body without its content encoding."""
    query: bytes = b""
    """Query of the URL, as it was sent."""
    is_event: bool = False
    """Whether the request is the data of a CloudEvent."""


class HttpResponse(msgspec.Struct, frozen=True):
    """Response of an operation."""

    body: bytes | Iterator[bytes]
    """Bytes, or an iterator whose chunks are sent as they come; each step runs in the pool of threads."""
    status: int = 200
    media_type: bytes = JSON
    headers: Headers = ()


class Operation(msgspec.Struct, frozen=True):
    """One endpoint of a protocol."""

    method: Literal["GET", "POST"]
    path: str
    """Template such as `/v2/models/{name}[/versions/{version}]/infer`; `[a|b]` is either part, or none.
    A parameter holds no slash and no colon, except `{rest...}`."""
    handler: Callable[[HttpRequest], HttpResponse]
    summary: str
    """One line for the OpenAPI document; empty to leave the operation out of it."""
    need: Need
    """What a caller must have, as `quadriga.proto.access.admit` decides."""
    in_thread: bool = True
    """Whether it waits for a thread of the pool; operations that only read state must not."""
    own_thread: bool = False
    """Whether it takes a thread outside the pool, as it may be long and must delay no request."""
    ignore_case: bool = False
    """Whether the fixed parts of the path match in any case."""
    request_type: Any = None
    """Type of the body in the OpenAPI document; None for any bytes."""
    response_type: Any = None
    """Type of the response in the OpenAPI document; None for any."""
    response_media_type: str = "application/json"
    compress_response: bool = False
    """Whether responses are compressed if the client accepts it. Only those of inference are: tritonclient's asyncio form
    accepts compression everywhere and undoes it only there."""
    protocol: WireProtocol | OtherWire = "state"
    """What its requests are counted as; the table of protocols sets it."""
    allows_binary: bool = False
    """Whether requests and responses may carry the bytes of tensors behind their JSON."""
    allows_image: bool = False
    """Whether the body may be the file of an image, or a form with one."""


state_endpoint = partial(Operation, "GET", in_thread=False)
"""Make an endpoint that only reads state, and so does not wait for a thread."""


post_endpoint = partial(Operation, "POST")
"""Make an endpoint that takes a body."""


def json_response(value: Any, status: int = 200) -> HttpResponse:
    """Encode a value as a JSON response."""
    return HttpResponse(msgspec.json.encode(value), status)


def named_model(serving: Serving, http_request: HttpRequest) -> ModelInfo:
    """Return the metadata of the model named in the path; raises as `Serving.model_info`."""
    return serving.model_info(
        http_request.path_parameters["name"], http_request.path_parameters["version"]
    )


def model_names(serving: Serving) -> list[str]:
    """Return the names of all models, sorted and without duplicates."""
    return sorted({status.name for status in serving.model_statuses()})


def list_models(serving: Serving, _: HttpRequest) -> HttpResponse:
    """Answer with the names of all models."""
    return json_response({"models": model_names(serving)})


Match = tuple[Mapping[str, Operation], Mapping[str, Any]]
"""The operations of a path, by verb, and the parameters in it."""


class Dispatcher:
    """Matches paths to operations, reads bodies, runs handlers in the pool, compresses and sends.

    If two operations share path and verb, the first one is used. Bodies larger than `max_body_bytes`, before or after
    decompression, are refused with 413, and those that become too many bytes with others, as the intake counts, with
    503. The time of a request, `request_timeout_s`, begins when its body is there.
    """

    def __init__(
        self,
        serving: Serving,
        operations: Sequence[Operation],
        max_body_bytes: int,
        request_timeout_s: float = math.inf,
        *,
        audit: Audit | None = None,
        intake: Intake | None = None,
    ) -> None:
        self._intake = intake or Intake()
        self._audit = audit or Audit()
        self._serving = serving
        self._request_timeout_s = request_timeout_s
        self._max_body_bytes = max_body_bytes
        paths: dict[tuple[str, bool], dict[str, Operation]] = {}
        for operation in operations:
            verbs = paths.setdefault((operation.path, operation.ignore_case), {})
            verbs.setdefault(operation.method, operation)
        self._table = [
            (path_pattern(path, ignore_case=any_case), verbs)
            for (path, any_case), verbs in paths.items()
        ]
        self._fixed = {
            path: verbs for (path, _), verbs in paths.items() if not set(path) & set("{[")
        }
        self._recent = lru_cache(maxsize=256)(self._search)

    def match(self, path: str, method: str | None = None) -> Match | None:
        """Return the operations of a path, by verb, and the path's parameters; None if no path matches.

        Paths that have the verb, if one is given, go before those that have not; among these a path without parameters
        goes before one with parameters, then the order of the table decides.
        """
        if len(path) > MAX_REMEMBERED_PATH:
            return self._search(path, method)
        return self._recent(path, method)  # the search takes 3 us

    def _search(self, path: str, method: str | None) -> Match | None:
        method = "GET" if method == "HEAD" else method
        fixed = self._fixed.get(path)
        if fixed is not None and method in (None, *fixed):
            return fixed, {}
        fallback: Match | None = None if fixed is None else (fixed, {})
        for template, verbs in self._table:
            path_match = template.fullmatch(path)
            if path_match is not None and method in verbs:
                return verbs, path_match.groupdict()
            if path_match is not None and fallback is None:
                fallback = verbs, path_match.groupdict()
        return fallback

    async def respond(
        self, match: Match, scope: Scope, receive: Receive, send: Send, *, caller: Caller
    ) -> None:
        """Respond to a request whose path `match` resolved; errors become responses, too."""
        request = current_request()
        if request is None or request.caller is not caller:
            request = RequestContext(caller=caller)
            set_current_request(request)
        verbs, parameters = match
        method = str(scope.get("method"))
        if method == "HEAD" and "GET" in verbs:  # the server drops the body itself
            method = "GET"
        try:
            operation = verbs.get(method)
            if operation is None:
                allowed = ", ".join(verbs)
                raise MethodNotAllowed(f"expected {allowed}, got {method}", allowed)
            admit(caller, operation.need)
            if is_audited(operation.need, method):
                self._audit.check()
            self._check_prefix(str(scope.get("path")), parameters)
            headers = dict(scope["headers"])
            body = b""
            if method == "POST":
                body = await read_body(scope, receive, self._max_body_bytes)
                request.bytes_in = len(body)
            query = scope.get("query_string", b"")
            http_request = HttpRequest(parameters, headers, body, query=query)
            deadline = self._begin_time(request, headers)
            task = partial(self._answer, operation, http_request, request)
            is_coded = b"content-encoding" in headers
            if operation.own_thread:
                response = await asyncio.to_thread(task)
            elif operation.in_thread or is_coded:
                answering = self._serving.run(
                    task,
                    model=parameters.get("name") if operation.in_thread else None,
                    deadline=deadline,
                    connection=scope.get("client"),
                    body_bytes=len(body) if _is_plain_inference(operation, headers, body) else None,
                )
                response = await _while_connected(answering, deadline, scope, receive)
            else:
                response = task()
        except Exception as error:  # noqa: BLE001 - the edge: every error has a response
            await send_answer(send, _error_answer(error, request, dict(scope["headers"])))
            return
        if isinstance(response.body, bytes):
            answer = whole_answer(
                response.status, response.body, response.headers, response.media_type
            )
            await send_answer(send, answer)
        else:
            chunks = _Chunks(
                serving=self._serving,
                chunks=response.body,
                model=parameters.get("name"),
                deadline=deadline,
            )
            await _send_stream(response, chunks, receive, send)

    def _check_prefix(self, path: str, parameters: Mapping[str, Any]) -> None:
        """Refuse a path whose prefix, that of Chariot's gateway, names another model than its end."""
        before, behind = gateway_model(path), parameters.get("name")
        if before is None or behind is None:
            return
        if before.lower().removeprefix("m-") != behind.lower().removeprefix("m-"):
            check_model_exists(self._serving, behind, None)
            raise InvalidRequest(
                f"expected one model in the path, got {quoted(before, 60)} in its prefix and {quoted(behind, 60)}"
            )

    def _answer(
        self, operation: Operation, http_request: HttpRequest, request: RequestContext
    ) -> HttpResponse:
        """Decompress, call the handler, compress; in a thread if the operation takes one."""
        key = http_request.headers.get(idempotency.HEADER)
        if key is not None and operation.need == "infer":
            request.repeatable = idempotency.repeatable(
                key,
                request.caller,
                path=(operation.path, http_request.path_parameters),
                headers=http_request.headers,
                body=http_request.body,
                query=http_request.query,
            )
        media_type = http_request.headers.get(b"content-type", b"")
        is_unread = media_type.lower().startswith(_UNREAD_TYPES)
        if is_unread and not http_request.body.lstrip().startswith(b"{"):
            raise UnsupportedMediaType(
                f"expected JSON or the bytes of one image as the body, got {quoted(media_type, 60)}"
            )
        encoding = http_request.headers.get(b"content-encoding")
        if encoding is None:
            response = operation.handler(http_request)
        else:
            with self._intake.expanding() as hold:
                body = decompress(http_request.body, encoding, self._max_body_bytes, hold=hold)
                response = operation.handler(msgspec.structs.replace(http_request, body=body))
        accept_encoding = http_request.headers.get(b"accept-encoding")
        if (
            accept_encoding is None
            or not operation.compress_response
            or not isinstance(response.body, bytes)
        ):
            return response
        body, headers = compress(response.body, accept_encoding)
        return msgspec.structs.replace(response, body=body, headers=[*response.headers, *headers])

    def _begin_time(self, request: RequestContext, headers: Mapping[bytes, bytes]) -> Deadline:
        """Begin the time of a request; its header `Request-Timeout` may ask for less than the server allows."""
        deadline = request.deadline = Deadline(self._request_timeout_s)
        if (value := headers.get(TIMEOUT_HEADER)) is not None:
            deadline.shorten(read_timeout_header(value), HEADER_LIMIT)
        request.wants_timing = headers.get(TIMING_HEADER) == b"true"
        return deadline


def _is_plain_inference(operation: Operation, headers: Mapping[bytes, bytes], body: bytes) -> bool:
    """Check whether the work for a request follows from the size of its body: it has tensors of numbers, and nothing else.

    What has texts may be images; an escape could hide the word. A key is noted in a file, which may take time.
    """
    if (
        not operation.allows_binary
        or not body.startswith(b"{")
        or b"content-encoding" in headers
        or idempotency.HEADER in headers
    ):
        return False
    length = headers.get(JSON_BYTES, b"")
    json_bytes = int(length) if length.isdigit() and len(length) < 18 else len(body)
    return body.find(b"BYTES", 0, json_bytes) < 0 and body.find(b"\\", 0, json_bytes) < 0


class _Chunks(msgspec.Struct, frozen=True, kw_only=True):
    """The chunks of a response that is sent as it is made, each made in the pool of threads."""

    serving: Serving
    chunks: Iterator[bytes]
    model: str | None
    deadline: Deadline

    async def next(self) -> bytes | None:
        """Make the next chunk; None after the last one."""
        step = partial(next, self.chunks, None)
        return await self.serving.run(step, model=self.model, deadline=self.deadline, is_begun=True)


def _error_answer(
    error: Exception, request: RequestContext, headers: Mapping[bytes, bytes]
) -> WholeAnswer:
    """Return the response to an error, which is logged."""
    request_id = error_request_id(headers.get(b"x-request-id"))
    answer = whole_answer(*error_response(error, request_id))
    # Its frames hold the request, and what waited for the error: a cycle, in which the body would stay.
    error.__traceback__ = None
    request.outcome = outcome_of_error(error)
    return answer


async def _while_connected(
    answering: Awaitable[HttpResponse], deadline: Deadline, scope: Scope, receive: Receive
) -> HttpResponse:
    """Wait for a response, and stop the request if its client disconnects before."""
    if isinstance(answering, asyncio.Future) and answering.done():  # the event loop answered it
        response: HttpResponse = answering.result()
        return response
    call_on_disconnect: Any = (scope.get("extensions") or {}).get(DISCONNECT_EXTENSION)
    if call_on_disconnect is not None:
        call_on_disconnect(partial(_stop_for_client, deadline))
        try:
            return await answering
        finally:
            call_on_disconnect(None)
    watching = asyncio.ensure_future(_stop_on_disconnect(receive, deadline))
    try:
        return await answering
    finally:
        watching.cancel()


async def _send_stream(
    response: HttpResponse, chunks: _Chunks, receive: Receive, send: Send
) -> None:
    """Send chunks as they come, until they end or the client disconnects."""
    disconnected = asyncio.ensure_future(_stop_on_disconnect(receive, chunks.deadline))
    headers = [(b"content-type", response.media_type), *response.headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    try:
        while not disconnected.done():
            chunk = await chunks.next()
            if chunk is None:
                break
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if disconnected.done():
            note_outcome("gone")
    except Exception as error:
        note_outcome(outcome_of_error(error))
        raise
    finally:
        disconnected.cancel()
        close = getattr(chunks.chunks, "close", None)
        if close is not None:
            close()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _stop_on_disconnect(receive: Receive, deadline: Deadline) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    _stop_for_client(deadline)


def _stop_for_client(deadline: Deadline) -> None:
    deadline.stop(ClientLeft("the client disconnected"))


def request_id(http_request: HttpRequest, body_id: str | None = None) -> str:
    """Return a request's id: from its body, or the header `X-Request-ID`, or a new one; raises as `first_request_id`."""
    return first_request_id(
        body_id, http_request.headers.get(b"x-request-id", b"").decode("latin-1")
    )


def mark_cloud_event(http_request: HttpRequest, request: InferRequest) -> InferRequest:
    """Append `-cloudevents` to the request's protocol if it came as a CloudEvent."""
    if not http_request.is_event:
        return request
    return msgspec.structs.replace(request, protocol=f"{request.protocol}-cloudevents")


def store_headers(response: InferResponse) -> list[tuple[bytes, bytes]]:
    """Return the headers with the result of storing a request, and further ones of the engine.

    Values too long for a header, such as the ids of many images, are left out.
    """
    ids = ",".join(response.inference_ids).encode()
    headers = [(IDS_HEADER, ids)] if 0 < len(ids) <= MAX_ANSWER_HEADER_BYTES else []
    for name, value in response.headers:
        if len(value) <= MAX_ANSWER_HEADER_BYTES:
            headers.append((name.lower().encode(), value.encode()))
    if not response.stored:
        headers.append((b"quadriga-stored", b"false"))
    if response.lag_bytes:
        headers.append((b"quadriga-store-lag", b"%d" % response.lag_bytes))
    return headers


_PARTS = re.compile(r"(\{\w+(?:\.\.\.)?\}|[\[\]|])")


def path_pattern(path: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """Compile a path's template to a regular expression."""
    group_syntax = {"[": "(?:", "]": ")?", "|": "|"}
    expression = "".join(
        f"(?P<{token[1:-4]}>.+)"
        if token.endswith("...}")
        else f"(?P<{token[1:-1]}>[^/:]+?)"
        if token.startswith("{")
        else group_syntax.get(token, re.escape(token))
        for token in _PARTS.split(path)
    )
    return re.compile(expression, re.IGNORECASE if ignore_case else 0)


def without_gateway_prefix(path: str) -> str:
    """Drop the prefix under which Chariot's gateway publishes a model.

    `/api/serve/serve-model-<id>-pred/v2/models/m-<id>/infer/` becomes `/v2/models/m-<id>/infer/`.
    """
    match = _GATEWAY_PREFIX.match(path)
    return path[match.end() :] or "/" if match else path


def gateway_model(path: str) -> str | None:
    """Return the model that the prefix of Chariot's gateway names; None without a prefix."""
    match = _GATEWAY_PREFIX.match(path)
    return match[1] if match else None


def expand_path(path: str) -> list[str]:
    """Expand a path's template: without its optional parts, and with each of them."""
    optional = re.search(r"\[([^\[\]]*)\]", path)
    if optional is None:
        return [path]
    prefix, suffix = path[: optional.start()], path[optional.end() :]
    choices = ["", *optional[1].split("|")]
    return [expanded for choice in choices for expanded in expand_path(prefix + choice + suffix)]


PROTOCOLS: dict[str, str] = {
    "v2": "quadriga.proto.http.v2:operations",
    "chariot-v2": "quadriga.proto.http.chariot_v2:operations",
    "generate": "quadriga.proto.http.v2_extensions:generate_operations",
    "v1": "quadriga.proto.http.v1:operations",
    "v2-extensions": "quadriga.proto.http.v2_extensions:operations",
}
"""Functions (serving, options) -> operations, as `module:attribute`, by name of the protocol; the frequent ones come
first."""


def all_operations(serving: Serving, options: WireOptions) -> Iterator[Operation]:
    """Yield the endpoints of all protocols, each with the protocol that its requests count for."""
    for name in PROTOCOLS:
        for operation in resolve(name, PROTOCOLS, "a protocol")(serving, options):
            infers = operation.need == "infer" and operation.method == "POST"
            protocol = wire_protocol(name) if infers and operation.in_thread else "state"
            yield msgspec.structs.replace(operation, protocol=protocol)
