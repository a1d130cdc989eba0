"""Requests that are small on the wire and huge in memory: how much there is in them is counted before they are parsed."""

import json

import pytest

from quadriga.proto.errors import InvalidRequest, TooLarge
from quadriga.proto.grpc.messages import MAX_MESSAGE_FIELDS, decode_message, message_class
from quadriga.proto.http.chariot_v2 import parse_images
from quadriga.proto.http.cloud_events import with_cloud_events
from quadriga.proto.http.operations import HttpRequest, WireOptions
from quadriga.proto.http.v1 import MAX_LENIENT_AMOUNT, parse_document
from quadriga.proto.http.v2 import parse_infer
from quadriga.proto.json_text import MAX_AMOUNT, amount, check_amount, parse_object

EACH = {"1": 1, '"A"': 3, "[]": 8, "{}": 8, "[1]": 8, '{"a": "b"}': 12}
"""What JSON values count beside the commas between them."""


def values_of(item: str, count: int) -> bytes:
    return b"[" + ",".join([item] * count).encode() + b"]"


def most(item: str) -> int:
    """Return how many items there may be in a list."""
    return (MAX_AMOUNT - 100) // (EACH[item] + (item != "1"))


@pytest.mark.parametrize("item", EACH)
def test_the_amount_of_a_list_has_a_limit(item):
    check_amount(values_of(item, most(item) // 2))
    with pytest.raises(TooLarge, match="expected at most 8000000 numbers in JSON"):
        check_amount(values_of(item, MAX_AMOUNT // EACH[item] + 100))


def test_numbers_of_an_image_of_1080_lines_may_be_sent_as_json():
    check_amount(values_of("0.123", 1920 * 1080 * 3))


def test_a_small_text_is_not_counted():
    assert amount(b"[" * (MAX_AMOUNT // 8)) == 0


TOO_MUCH = values_of("{}", MAX_AMOUNT // 8)


def http_request(body: bytes, **headers: str) -> HttpRequest:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return HttpRequest({"name": "m", "version": None}, named, body, query=b"")


@pytest.mark.parametrize(
    "parse",
    [
        lambda: parse_object(TOO_MUCH, "a body"),
        lambda: parse_document(b'{"instances": ' + TOO_MUCH + b"}"),
        lambda: parse_infer(b'{"inputs": ' + TOO_MUCH + b"}", "m", None, None),
        lambda: parse_images(
            http_request(b"{}\n" * (MAX_AMOUNT // 8 + 1), content_type="application/jsonl")
        ),
        lambda: with_cloud_events(lambda _: None, WireOptions(server_version=""))(
            http_request(TOO_MUCH, content_type="application/cloudevents+json")
        ),
    ],
    ids=["json", "tf", "v2", "lines", "cloud events"],
)
def test_every_parser_refuses_too_much(parse):
    with pytest.raises(TooLarge, match="expected at most 8000000 numbers in JSON"):
        parse()


def test_much_json_has_to_be_strict():
    body = b'{"instances": [NaN, %b]}' % b",".join([b"1"] * 1000)
    assert len(parse_document(body)["instances"]) == 1001
    with pytest.raises(InvalidRequest, match="JSON Parse error"):
        parse_document(body + b"," * MAX_LENIENT_AMOUNT * 2)


def test_a_message_of_too_many_fields_is_refused_before_it_is_decoded():
    request = message_class("ModelInferRequest")
    decode_message(request, b"\x2a\x00" * MAX_MESSAGE_FIELDS)
    with pytest.raises(InvalidRequest, match="expected a message of at most 50000 fields"):
        decode_message(request, b"\x2a\x00" * (MAX_MESSAGE_FIELDS + 1))


def test_a_large_message_of_few_fields_is_decoded():
    request = message_class("ModelInferRequest")(model_name="m")
    request.raw_input_contents.append(json.dumps("A" * 10_000_000).encode())
    assert decode_message(request, request.SerializeToString()).model_name == "m"
