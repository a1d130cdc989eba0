"""CloudEvents over HTTP: requests and responses in an envelope, binary (headers) or structured (JSON).

Source: CloudEvents 1.0.2, HTTP protocol binding, sections 3.1 and 3.2; JSON event format. Types and
sources of responses, and the variables that set them, are KServe's.
"""

import contextlib
import datetime as dt
import json
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import pybase64

from quadriga.proto.errors import InvalidRequest
from quadriga.proto.http.operations import JSON, HttpRequest, HttpResponse, WireOptions
from quadriga.proto.json_text import check_amount, parse_json, without_mark
from quadriga.proto.request import TRACEPARENT, current_request
from quadriga.quoting import quoted

STRUCTURED = b"application/cloudevents+json"
VERSIONS = ("0.3", "1.0")

_PREFIX = b"ce-"
_REQUIRED = ("specversion", "source", "type", "id")
_BINARY = {_PREFIX + name.encode() for name in _REQUIRED}
_ALSO_REQUIRED = ("time", "data")
"""Further keys required of an event whose Content-Type does not name it; other JSON has one or two of all."""

_ATTRIBUTE = re.compile("[a-z0-9]{1,64}")
_UNQUOTED = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class CloudEvent(msgspec.Struct, frozen=True):
    """An event: its attributes, and its data."""

    attributes: Mapping[str, Any]
    media_type: bytes | None
    """Media type of a structured response; None if attributes go in headers."""
    data: bytes


def with_cloud_events(
    handler: Callable[[HttpRequest], HttpResponse],
    options: WireOptions,
    *,
    any_content_type: bool = False,
) -> Callable[[HttpRequest], HttpResponse]:
    """Wrap the handler of a model's operation so that it takes CloudEvents as well as plain requests.

    With `any_content_type`, JSON with all members of an event counts as one whatever its Content-Type; that costs a
    search through each body.
    """

    def answer_event(http_request: HttpRequest) -> HttpResponse:
        event = read_event(
            http_request.headers, http_request.body, any_content_type=any_content_type
        )
        if event is None:
            return handler(http_request)
        request, traceparent = current_request(), event.attributes.get(TRACEPARENT)
        if request is not None and isinstance(traceparent, str):
            request.continue_trace(traceparent)
        response = handler(msgspec.structs.replace(http_request, body=event.data, is_event=True))
        attributes = _attributes(event, options, http_request.path_parameters["name"])
        if request is not None and request.trace is not None:
            attributes[TRACEPARENT] = request.trace.traceparent
        if event.media_type is None:
            return _binary(response, attributes)
        return _structured(response, attributes, event.media_type)

    return answer_event


def read_event(
    headers: Mapping[bytes, bytes], body: bytes, *, any_content_type: bool
) -> CloudEvent | None:
    """Read a request as an event; None if it is none.

    Args:
        headers: Headers of the request, names in lower case.
        body: Body of the request.
        any_content_type: As of `with_cloud_events`.

    Raises:
        InvalidRequest: It is an event that breaks the rules of CloudEvents.
    """
    if headers.keys() >= _BINARY:
        attributes: dict[str, Any] = {
            name.removeprefix(_PREFIX).decode("latin-1"): unquote(value.decode("utf-8", "replace"))
            for name, value in headers.items()
            if name.startswith(_PREFIX)
        }
        return CloudEvent(_checked(attributes), None, body)
    is_named = headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == STRUCTURED
    if not is_named and not (any_content_type and b'"specversion"' in body):
        return None
    members = _members(body)
    if not is_named and not {*_REQUIRED, *_ALSO_REQUIRED} <= members.keys():
        return None
    if not members:
        raise InvalidRequest("expected a CloudEvent to be a JSON object")
    data = _data(members)
    attributes = {
        name: parse_json(value, f"attribute {quoted(name, 60)}", object)
        for name, value in members.items()
    }
    return CloudEvent(_checked(attributes), STRUCTURED if is_named else JSON, data)


def _members(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the members of a JSON object, unparsed (re-encoded if one is NaN); empty for other JSON."""
    check_amount(body)
    with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
        return msgspec.json.decode(without_mark(body), type=dict[str, msgspec.Raw])
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        members = json.loads(body).items()
        return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in members}
    return {}


def _data(members: dict[str, msgspec.Raw]) -> bytes:
    data, encoded = members.pop("data", None), members.pop("data_base64", None)
    if data is not None and encoded is None:
        return bytes(data)
    if data is not None or encoded is None:
        raise InvalidRequest("expected a CloudEvent to have one of data and data_base64")
    try:
        return pybase64.b64decode(msgspec.json.decode(encoded, type=str), validate=True)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequest(f"expected data_base64 to be base64, got: {error}") from error


def _checked(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _REQUIRED:
        value = attributes.get(name)
        if not isinstance(value, str) or not value:
            raise InvalidRequest(
                f"expected attribute {name!r} of a CloudEvent to be a text, got {quoted(value, 60)}"
            )
    if attributes["specversion"] not in VERSIONS:
        raise InvalidRequest(
            f"expected specversion to be one of {', '.join(VERSIONS)}, "
            f"got {quoted(attributes['specversion'], 60)}"
        )
    return attributes


def _attributes(event: CloudEvent, options: WireOptions, model: str) -> dict[str, str]:
    copied = {}
    if options.ce_merge:
        copied = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in event.attributes.items()
            if _ATTRIBUTE.fullmatch(name) and isinstance(value, str | int)
        }
        for name in ("datacontenttype", "datacontentencoding", "contenttype", "dataschema"):
            copied.pop(name, None)  # these describe the request's data
    return {
        **copied,
        "specversion": event.attributes["specversion"],
        "id": str(uuid.uuid4()),
        "source": options.ce_source or f"io.kserve.inference.{model}",
        "type": options.ce_type,
        "time": dt.datetime.now(dt.UTC).isoformat().replace("+00:00", "Z"),
    }


def _binary(response: HttpResponse, attributes: Mapping[str, str]) -> HttpResponse:
    headers = [
        (_PREFIX + name.encode(), quote(value, safe=_UNQUOTED).encode())
        for name, value in attributes.items()
    ]
    return msgspec.structs.replace(response, headers=[*response.headers, *headers])


def _structured(
    response: HttpResponse, attributes: Mapping[str, str], media_type: bytes
) -> HttpResponse:
    if not isinstance(response.body, bytes):
        raise InvalidRequest("expected a request of one answer in a CloudEvent, got a stream")
    event: dict[str, Any] = {**attributes, "datacontenttype": response.media_type.decode()}
    if response.media_type == JSON:
        event["data"] = msgspec.Raw(response.body)
    else:
        event["data_base64"] = response.body
    body = msgspec.json.encode(event)
    return msgspec.structs.replace(response, body=body, media_type=media_type)
