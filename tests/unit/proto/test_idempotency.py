"""Keys of requests: whose they are, and for which request."""

import pytest

from quadriga.proto.access import ANYBODY, Caller
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.idempotency import repeatable

PATH = ("/v2/models/{name}/infer", {"name": "m", "version": None})


def marked(key=b"k", caller=ANYBODY, path=PATH, headers=None, body=b"body", query=b""):  # noqa: PLR0917 - a row
    """Return name and fingerprint of a request, and the names of what it stores."""
    request = repeatable(key, caller, path=path, headers=headers or {}, body=body, query=query)
    parts = [request.next_part() for _ in range(2)]
    names = [part.name(position) for part in parts for position in range(3)]
    return request.name, request.fingerprint, names


def test_the_same_request_has_the_same_names_each_time():
    assert marked() == marked()
    assert len(set(marked()[2])) == 6


@pytest.mark.parametrize(
    "other",
    [
        {"key": b"K"},
        {"caller": Caller(name="anybody", team="red")},
        {"caller": Caller(name="amy")},
        {"caller": Caller(name="anybody", key_id="1")},
        {"caller": Caller(name="", team="anybody")},
    ],
)
def test_another_key_caller_or_team_has_other_names(other):
    assert marked()[0] != marked(**other)[0]
    assert not set(marked()[2]) & set(marked(**other)[2])
    assert marked()[1] == marked(**other)[1]


@pytest.mark.parametrize(
    "other",
    [
        {"body": b"body "},
        {"body": b""},
        {"path": (PATH[0], {"name": "n", "version": None})},
        {"path": (PATH[0], {"name": "m", "version": "1"})},
        {"path": ("/infer", PATH[1])},
        {"headers": {b"content-type": b"image/png"}},
        {"headers": {b"chariot-inference-parameters": b"{}"}},
        {"headers": {b"inference-header-content-length": b"4"}},
        {"headers": {b"content-encoding": b"gzip"}},
        {"query": b"top_k=1"},
    ],
)
def test_another_request_has_another_fingerprint(other):
    assert marked()[0] == marked(**other)[0]
    assert marked()[1] != marked(**other)[1]


def test_form_that_is_written_again_is_the_same_request():
    def sent(boundary, image):
        headers = {b"content-type": b'multipart/form-data; boundary="%s"' % boundary}
        return marked(headers=headers, body=b"--%s\r\n%s" % (boundary, image))

    assert sent(b"one", b"image") == sent(b"two", b"image")
    assert sent(b"one", b"image")[1] != sent(b"two", b"other")[1]


def test_headers_that_change_on_the_way_are_passed_over():
    headers = {b"x-request-id": b"1", b"user-agent": b"x", b"accept": b"*/*", b"traceparent": b"y"}
    assert marked(headers=headers) == marked()


@pytest.mark.parametrize("key", [b"", b" ", b"a b", b"\xe4", b"a\n", b"\x7f", b"x" * 256])
def test_what_is_no_key_is_refused(key):
    with pytest.raises(InvalidRequest, match="1 to 255 visible ASCII characters"):
        marked(key=key)


def test_names_of_a_caller_with_unusual_characters_are_names():
    assert marked(caller=Caller(name="ä\0😀", team="ö"))[0] != marked()[0]
    marked(path=(PATH[0], {"name": "\udcff", "version": None}))
