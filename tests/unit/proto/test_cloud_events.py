"""CloudEvents in both modes: what is read, what is answered, what is refused."""

import base64
import json
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadriga.proto.errors import InvalidRequest
from quadriga.proto.http.cloud_events import with_cloud_events
from quadriga.proto.http.operations import HttpRequest, HttpResponse, WireOptions

HEADERS = {"ce-specversion": "1.0", "ce-id": "7", "ce-source": "/camera", "ce-type": "frame"}
EVENT = {"specversion": "1.0", "id": "7", "source": "/camera", "type": "frame"}
STRUCTURED = {"content-type": "application/cloudevents+json; charset=UTF-8"}


def ask(body, headers=(), answer=None, **options):
    """Send a request to a model that answers its body."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    raw = {name.encode(): value.encode() for name, value in dict(headers).items()}
    echo = answer or (
        lambda call: HttpResponse(b'{"got":%b}' % call.body, headers=[(b"x-own", b"1")])
    )
    answered = with_cloud_events(
        echo, WireOptions(server_version="1", **options), any_content_type=True
    )(HttpRequest({"name": "m"}, raw, body))
    sent = {name.decode(): value.decode() for name, value in answered.headers}
    return answered, sent


def test_plain_request_is_answered_without_an_event():
    for headers in ({}, {"ce-id": "7", "ce-type": "frame"}):  # all four make an event
        answered, sent = ask({"a": 1}, headers)
        assert answered.body == b'{"got":{"a": 1}}'
        assert sent == {"x-own": "1"}
    for body in (b"{", b'["specversion"]', b'{"specversion": 1, "data": {}}'):
        assert ask(body)[0].body == b'{"got":%b}' % body


def test_binary_event_is_answered_in_headers():
    answered, sent = ask({"a": 1}, {**HEADERS, "ce-contenttype": "application/json"})
    assert answered.body == b'{"got":{"a": 1}}'
    assert answered.media_type == b"application/json"
    assert sent["x-own"] == "1"
    assert sent["ce-specversion"] == "1.0"
    assert sent["ce-type"] == "io.kserve.inference.response"
    assert sent["ce-source"] == "io.kserve.inference.m"
    assert sent["ce-id"] != "7"
    assert sent["ce-time"].endswith("Z")
    assert set(sent) == {
        "x-own",
        *(f"ce-{n}" for n in ("specversion", "id", "source", "type", "time")),
    }


@pytest.mark.parametrize(
    ("headers", "further", "media_type"),
    [
        (STRUCTURED, {}, b"application/cloudevents+json"),
        ({}, {"time": "2026-01-01T00:00:00Z"}, b"application/json"),
    ],
)
def test_structured_event_is_answered_in_json(headers, further, media_type):
    answered, _ = ask({**EVENT, **further, "data": {"a": [1.50]}}, headers)
    assert answered.media_type == media_type
    event = json.loads(answered.body)
    assert event["data"] == {"got": {"a": [1.5]}}
    assert event["datacontenttype"] == "application/json"
    assert (event["specversion"], event["type"]) == ("1.0", "io.kserve.inference.response")
    assert event["id"] not in ("", "7")


def test_event_data_may_be_base64_and_hold_nan():
    body = {**EVENT, "data_base64": base64.b64encode(b"[1]").decode()}
    assert json.loads(ask(body, STRUCTURED)[0].body)["data"] == {"got": [1]}
    body = json.dumps({**EVENT, "data": [float("nan")]}).encode()
    seen = []
    ask(body, STRUCTURED, lambda call: seen.append(call.body) or HttpResponse(b"1"))
    assert seen == [b"[NaN]"]
    answered, _ = ask(
        {**EVENT, "data": 1}, STRUCTURED, lambda _: HttpResponse(b"\xff", media_type=b"a/b")
    )
    assert json.loads(answered.body)["data_base64"] == "/w=="


def test_type_source_and_merged_attributes_are_settings():
    options = {"ce_type": "seen", "ce_source": "/här 100%", "ce_merge": True}
    headers = {**HEADERS, "ce-subject": "%C3%A4%20b", "ce-datacontenttype": "x/y", "ce-o-dd": "1"}
    _, sent = ask({}, headers, **options)
    assert sent["ce-type"] == "seen"
    assert sent["ce-source"] == "/h%C3%A4r%20100%25"
    assert sent["ce-subject"] == "%C3%A4%20b"
    assert not {"ce-datacontenttype", "ce-o-dd"} & set(sent)
    body = {**EVENT, "subject": "ä", "flag": True, "data": {}}
    event = json.loads(ask(body, STRUCTURED, **options)[0].body)
    assert (event["subject"], event["flag"], event["source"]) == ("ä", "true", "/här 100%")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_attribute_is_encoded_in_a_header(text):
    _, sent = ask({}, HEADERS, ce_source=text or "x")
    value = sent["ce-source"]
    assert value.isascii()
    assert value.isprintable()
    assert unquote(value) == (text or "x")


@pytest.mark.parametrize(
    ("body", "headers", "expected_text"),
    [
        ({}, {**HEADERS, "ce-specversion": "2.0"}, "expected specversion to be one of 0.3, 1.0"),
        ({}, {**HEADERS, "ce-id": ""}, "'id' of a CloudEvent"),
        (b"[]", STRUCTURED, "expected a CloudEvent to be a JSON object"),
        (b"{", STRUCTURED, "expected a CloudEvent to be a JSON object"),
        ({"data": 1}, STRUCTURED, "'specversion' of a CloudEvent"),
        ({**EVENT, "id": 7, "data": 1}, STRUCTURED, "'id' of a CloudEvent"),
        (EVENT, STRUCTURED, "expected a CloudEvent to have one of data and data_base64"),
        ({**EVENT, "data": 1, "data_base64": "AA=="}, STRUCTURED, "one of data and data_base64"),
        ({**EVENT, "data_base64": "?"}, STRUCTURED, "expected data_base64 to be base64"),
        ({**EVENT, "data_base64": 1}, STRUCTURED, "expected data_base64 to be base64"),
        (b'{"id": "\xff", "data": 1}', STRUCTURED, "expected attribute 'id' in JSON"),
        (b'{"x": "\xff\xfe", "data": 1}', STRUCTURED, "expected attribute 'x' in JSON"),
        (b'{"id": "\\ud800", "data": NaN}', STRUCTURED, "expected attribute 'id' in JSON"),
    ],
)
def test_invalid_event_is_refused(body, headers, expected_text):
    with pytest.raises(InvalidRequest) as caught:
        ask(body, headers)
    assert expected_text in str(caught.value)


@given(st.binary() | st.binary().map(lambda raw: b'{"specversion":"1.0","data":' + raw))
def test_any_bytes_are_an_event_or_none(body):
    for headers in ({}, STRUCTURED):
        try:
            ask(body, headers)
        except InvalidRequest:
            assert headers
