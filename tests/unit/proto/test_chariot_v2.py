"""chariot-v2: what a body means by its type, and bodies of any bytes."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadriga.proto.errors import InvalidRequest
from quadriga.proto.http.chariot_v2 import parse_images
from quadriga.proto.http.operations import HttpRequest
from quadriga.proto.http.v2 import PARAMETERS_HEADER

ONE = b'{"input": "aGk=", "parameters": {"top_k": 2}}'
FORM = b"application/x-www-form-urlencoded"


def parsed(body, kind=None, **headers):
    given_headers = {} if kind is None else {b"content-type": kind}
    given_headers |= {name.encode(): value for name, value in headers.items()}
    return parse_images(HttpRequest({}, given_headers, body))


def images(body, kind=None, **headers):
    return [(*tensor.data, dict(tensor.parameters)) for tensor in parsed(body, kind, **headers)]


@pytest.mark.parametrize(
    "kind", [None, b"", b"application/json", b"Application/JSON; charset=utf-8", FORM]
)
def test_json_is_read_by_content_type_or_as_default(kind):
    assert images(ONE, kind) == [("aGk=", {"top_k": 2})]
    assert images(b' \n{"input": "aGk=", "parameters": null}', kind) == [("aGk=", {})]
    assert parsed(b'{"inputs": []}', kind) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ONE, [("aGk=", {"top_k": 2})]),
        (ONE + b"\n", [("aGk=", {"top_k": 2})]),
        (b'\r\n\n{"input": "a"}\r\n \n{"input": "b"}', [("a", {}), ("b", {})]),
    ],
)
def test_lines_are_images_and_blank_lines_are_skipped(body, expected):
    assert images(body, b"application/jsonl") == expected


@pytest.mark.parametrize("kind", [b"image/png", b"application/octet-stream", b"text/plain", FORM])
def test_body_of_another_content_type_is_the_image(kind):
    assert images(b"\x89PNG", kind) == [(b"\x89PNG", {})]
    header = {PARAMETERS_HEADER.decode(): b'{"top_k": 3}'}
    assert images(b"\x89PNG", kind, **header) == [(b"\x89PNG", {"top_k": 3})]


@pytest.mark.parametrize(
    ("body", "kind", "expected_text"),
    [
        (b"", None, "a body in JSON"),
        (b"[]", None, "a JSON object"),
        (b"{}", None, "input to be an image"),
        (b'{"input": ["aGk="]}', None, "input to be an image"),
        (b'{"input": "a", "parameters": []}', None, "parameters to be an object"),
        (b"\xff", None, "a body in JSON"),
        (b"", b"application/jsonl", "at least one line"),
        (b'{"input": "a"}\n{"inputs": []}', b"application/jsonl", "line 1"),
        (b'{"input": "a"}\n{', b"application/jsonl", "line 1"),
        (b'{"input":' + b"[" * 100_000, None, "nested"),
    ],
)
def test_error_names_what_is_invalid(body, kind, expected_text):
    with pytest.raises(InvalidRequest, match=expected_text):
        parsed(body, kind)


def test_parameters_in_the_header_are_an_object():
    with pytest.raises(InvalidRequest, match="chariot-inference-parameters"):
        parsed(b"\x89PNG", b"image/png", **{PARAMETERS_HEADER.decode(): b"\xe9"})


KINDS = st.sampled_from([None, b"application/json", b"application/jsonl", FORM]) | st.binary()
PIECES = st.sampled_from([ONE, b'{"input"', b':"', b"\n", b"\r", b"{}", b"null", b"[", b"\xff"])


@given(st.binary() | st.lists(PIECES).map(b"".join), KINDS, st.none() | st.binary())
def test_any_bytes_are_images_or_a_clear_error(body, kind, header):
    headers = {} if header is None else {PARAMETERS_HEADER.decode(): header}
    with suppress(InvalidRequest):
        tensors = parsed(body, kind, **headers)
        assert tensors is None or all(isinstance(tensor.data[0], str | bytes) for tensor in tensors)
