"""An image as the body of a request: the bytes of its file, or a form with that file.

Parameters are those of an input in JSON. They come in a header as one JSON object, in the query of the URL, or as fields of
the form.

Source: RFC 7578, multipart/form-data; Striveworks, engine-yolo, `protocol.py`, for the header.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from quadriga.proto.errors import InvalidRequest
from quadriga.proto.http.operations import HttpRequest
from quadriga.proto.json_text import parse_json, parse_object
from quadriga.proto.messages import Tensor
from quadriga.quoting import quoted

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
    try:
        with PushMultipartParser(
            options.get("boundary", ""), max_segment_count=MAX_FIELDS
        ) as parser:
            for part, content in _parts(parser.parse(http_request.body)):
                if part.filename is None and not (part.content_type or "").startswith("image/"):
                    fields[part.name or ""] = content.decode()
                else:
                    files.append(content)
    except (MultipartError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"expected a form as multipart/form-data, got: {error}") from error
    if len(files) != 1:
        named = ", ".join(fields) or "none"
        raise InvalidRequest(
            f"expected a form with one file, got {len(files)}; other fields: {quoted(named, 200)}"
        )
    return files[0], fields


def _parts(
    events: Iterable[MultipartSegment | bytes | bytearray | memoryview | None],
) -> Iterator[tuple[MultipartSegment, bytes]]:
    """Yield the parts of a form: each begins with its headers, and ends with None."""
    chunks: list[bytes | bytearray | memoryview] = []
    for event in events:
        if isinstance(event, MultipartSegment):
            part = event
            chunks = []
        elif event is not None:
            chunks.append(event)
        else:
            yield part, b"".join(chunks)
