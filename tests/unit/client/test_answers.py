"""What the client makes of servers that are broken, slow or malicious."""

import json
import socket
import threading
import time
from datetime import UTC, date, datetime
from datetime import time as time_of_day

import numpy as np
import pandas as pd
import pytest

from quadriga.client import (
    BadAnswer,
    Client,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    ServerBusy,
    ServerFault,
    Unauthenticated,
    Unreachable,
)
from quadriga.client.errors import InputError
from tests.unit.client.conftest import inferred, json_response, response

IMAGE = b"an image"


def client(server, **options):
    return Client(server.url, **{"key": "secret-key", "retries": 0, "timeout": 30, **options})


def header(request: bytes, name: str) -> str | None:
    for line in request.split(b"\r\n\r\n")[0].decode().split("\r\n")[1:]:
        key, _, value = line.partition(": ")
        if key.lower() == name.lower():
            return value
    return None


def test_headers_and_the_name_of_the_image_are_sent(server):
    with client(server, headers={"X-Team": "north"}) as own:
        own.infer("m", IMAGE, input_name="a.jpg")
    (request,) = server.requests
    assert header(request, "X-Team") == "north"
    assert header(request, "Authorization") == "Bearer secret-key"
    assert b'"name":"a.jpg"' in request


@pytest.mark.parametrize(("key", "has_note"), [("", True), ("quadriga-a.b", False)])
def test_who_sends_no_key_is_told_where_it_comes_from(server, key, has_note):
    server.answers(json_response({"error": "expected a key"}, 401))
    with pytest.raises(Unauthenticated) as raised:
        client(server, key=key).models.list()
    assert any("QUADRIGA_API_KEY" in note for note in getattr(raised.value, "__notes__", ())) == (
        has_note
    )


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest), (401, Unauthenticated), (403, Forbidden), (404, NotFound), (409, Conflict), (412, Conflict),
        (413, InvalidRequest), (429, ServerBusy), (500, ServerFault), (502, ServerFault), (503, ServerBusy),
    ],
)  # fmt: skip
def test_errors_have_the_server_s_text_status_and_request_id(server, status, kind):
    server.answers(json_response({"error": "expected ñ, got 7"}, status, "X-Request-ID: abc"))
    with pytest.raises(
        kind, match=rf"expected ñ, got 7 \(status {status}, request abc\)"
    ) as raised:
        client(server).infer("m", IMAGE)
    error = raised.value
    assert (error.text, error.status, error.request_id) == ("expected ñ, got 7", status, "abc")


@pytest.mark.parametrize("status", [400, 502])
def test_an_error_page_of_a_proxy_is_quoted(server, status):
    server.answers(response(status, b"<html>Bad \xff Gateway" + b"x" * 5000))
    with pytest.raises((InvalidRequest, ServerFault), match="<html>Bad") as raised:
        client(server).infer("m", IMAGE)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Log in</html>", b"", b"[]", b"null", b'{"outputs": []}', b'{"outputs": [{"data": []}]}', b'{"outputs": 7}',
        b'{"outputs": [{"data": [7]}]}', b'{"outputs": [{"data": [[7]]}]}', b'{"outputs"', b"\xff\xfe", b"[" * 100_000,
    ],
)  # fmt: skip
def test_an_answer_that_is_no_inference_is_a_bad_answer(server, body):
    server.answers(response(200, body, "Content-Type: text/html"))
    with pytest.raises(BadAnswer, match=r"expected .* from the server, got text/html of \d+ bytes"):
        client(server).infer("m", IMAGE)


@pytest.mark.parametrize("location", ["http://127.0.0.2:9/x", "/elsewhere", "file:///etc/passwd"])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(server, status, location):
    server.answers(response(status, b"", f"Location: {location}"))
    with pytest.raises(BadAnswer, match=r"a redirect to .*it is not followed"):
        client(server, retries=5).infer("m", IMAGE)
    assert len(server.requests) == 1


def test_an_answer_that_is_announced_as_too_large_is_not_read(server):
    server.script = lambda sock, *_: sock.sendall(
        b"HTTP/1.1 200 x\r\nContent-Length: 2147483648\r\n\r\n"
    )
    with pytest.raises(BadAnswer, match="got one of 2147483648"):
        client(server).infer("m", IMAGE)


@pytest.mark.parametrize("chunked", [True, False])
def test_an_answer_without_end_is_not_held_in_memory(server, chunked):
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n" if chunked else b"x" * 65536

    def flood(sock, *_):
        sock.sendall(b"HTTP/1.1 200 x\r\n")
        sock.sendall(b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n")
        while True:
            sock.sendall(piece)

    server.script = flood
    with pytest.raises(BadAnswer, match="of at most 1000000 bytes, got more"):
        client(server, max_answer_bytes=1_000_000).infer("m", IMAGE)


@pytest.mark.parametrize("cut", [0, 10, 30, 60, -1])
def test_an_answer_that_is_cut_is_no_answer(server, cut):
    def break_off(sock, *_):
        sock.sendall(inferred()[:cut])
        return "close"

    server.script = break_off
    with pytest.raises(Unreachable, match=r"no answer from http://127\.0\.0\.1") as raised:
        client(server).infer("m", IMAGE)
    assert raised.value.was_sent


def test_a_chunked_answer_is_read_and_one_that_is_cut_is_none(server):
    body = inferred().partition(b"\r\n\r\n")[2]
    head = b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n"
    whole = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    server.answers(whole)
    with client(server) as c:
        assert [c.infer("m", IMAGE).id for _ in range(3)] == ["17"] * 3
    assert server.connections == 1
    server.script = lambda sock, *_: sock.sendall(whole[:-20]) or "close"
    with pytest.raises(Unreachable):
        client(server).infer("m", IMAGE)


def drip(data: bytes, pause_s: float):
    def send(sock: socket.socket, *_):
        for byte in data:
            sock.sendall(bytes([byte]))
            time.sleep(pause_s)

    return send


@pytest.mark.parametrize("slow", ["head", "body"])
def test_a_server_that_drips_is_given_up_at_the_deadline(server, slow):
    data = inferred()
    if slow == "head":
        server.script = drip(data, 0.05)
    else:
        head, _, body = data.partition(b"\r\n\r\n")
        server.script = lambda sock, *_: (sock.sendall(head + b"\r\n\r\n"), drip(body, 0.05)(sock))
    with pytest.raises(Unreachable, match=r"the time is over|timed out"):
        client(server, timeout=0.5).infer("m", IMAGE)


def test_a_server_that_never_reads_is_given_up_at_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unreachable):
            Client(url, timeout=0.5, retries=0).infer("m", b"x" * (64 << 20))


def test_headers_without_end_are_refused(server):
    # The driver of ClickHouse lets http.client take 10,000, once it is imported.
    server.answers(b"HTTP/1.1 200 x\r\n" + b"A: b\r\n" * 20_000 + b"\r\n")
    with pytest.raises(Unreachable, match="headers"):
        client(server).infer("m", IMAGE)


def test_what_is_no_http_is_no_answer(server):
    server.answers(b"SSH-2.0-OpenSSH_9.2\r\n")
    with pytest.raises(Unreachable):
        client(server).infer("m", IMAGE)


def test_a_server_that_refuses_a_large_body_early_is_heard(server):
    """It answers 413 and closes, while the client still sends."""
    refusal = json_response({"error": "too large"}, 413, "Connection: close")

    def serve(listener):
        sock, _ = listener.accept()
        with sock:
            sock.recv(1000)
            sock.sendall(refusal)
            sock.shutdown(socket.SHUT_WR)
            time.sleep(0.3)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises((InvalidRequest, Unreachable)):
            Client(url, retries=0, timeout=5).infer("m", b"x" * (32 << 20))
        thread.join()


def test_the_key_goes_to_the_server_alone_and_into_no_text(server):
    c = client(server)
    c.infer("m", IMAGE)
    assert header(server.requests[0], "Authorization") == "Bearer secret-key"
    assert "secret-key" not in repr(c)
    server.close()
    with pytest.raises(Unreachable) as raised:
        c.infer("m", IMAGE)
    assert "secret-key" not in str(raised.value)


def test_metadata_travel_as_they_are(server):
    metadata = {"ü": "日本 😀", "nested": {"a": [1, 2.5, None, True]}, 'quote"': "\n\0"}
    client(server).infer("m/ö ?#%{}", IMAGE, metadata)
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/models/m%2F%C3%B6%20%3F%23%25%7B%7D/infer HTTP/1.1\r\n")
    length = int(header(server.requests[0], "Inference-Header-Content-Length"))
    sent = json.loads(body[:length])["inputs"][0]["parameters"]
    assert json.loads(sent["metadata"]) == metadata
    assert body[length:] == len(IMAGE).to_bytes(4, "little") + IMAGE
    assert sent["binary_data_size"] == len(IMAGE) + 4


@pytest.mark.parametrize(
    "metadata", [{"a": float("nan")}, {"a": object()}, {"a": b"x"}, [1], "text"]
)
def test_metadata_that_are_no_json_are_refused_before_anything_is_sent(server, metadata):
    with pytest.raises(InputError, match="metadata"):
        client(server).infer("m", IMAGE, metadata)
    assert not server.requests


def test_numbers_of_numpy_and_times_are_stored_as_json_has_them(server):
    metadata = {
        "f": np.float32(0.5), "i": np.int64(7), "b": np.bool_(True), "d": np.float64(2.5), "nested": [{"u": np.uint8(3)}],
        "time": datetime(2026, 1, 31, 12, tzinfo=UTC), "day": date(2026, 1, 31), "clock": time_of_day(12, 30),
        "second": np.datetime64("2026-01-31T12:00:00"), "fine": np.datetime64("2026-01-31T12:00:00", "ns"),
        "missing": pd.NaT, "stamp": pd.Timestamp("2026-01-31 12:00"),
    }  # fmt: skip
    client(server).infer("m", IMAGE, metadata)
    body = server.requests[0].partition(b"\r\n\r\n")[2].decode(errors="replace")
    sent, _ = json.JSONDecoder().raw_decode(body)
    assert json.loads(sent["inputs"][0]["parameters"]["metadata"]) == {
        "f": 0.5, "i": 7, "b": True, "d": 2.5, "nested": [{"u": 3}], "time": "2026-01-31T12:00:00+00:00", "day": "2026-01-31",
        "clock": "12:30:00", "second": "2026-01-31T12:00:00", "fine": "2026-01-31T12:00:00.000000000", "missing": None,
        "stamp": "2026-01-31T12:00:00",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"a": {"b": [1, object()]}}, r"expected metadata\['a'\]\['b'\]\[1\] to be a value of JSON, got object"),
        ({"a": 1, "image": np.zeros(3)}, r"expected metadata\['image'\] to be a value of JSON, got ndarray"),
        ({"a": np.float32("nan")}, r"expected metadata\['a'\] to be a value of JSON, got float32"),
        ({"a": np.timedelta64(5, "ns")}, r"expected metadata\['a'\] to be a value of JSON, got timedelta64"),
        ({"a": float("inf")}, r"metadata\['a'\] to be a value of JSON, got float inf"),
        ({"a": {(1, 2): 3}}, r"expected the keys of metadata\['a'\] to be texts, got \(1, 2\)"),
    ],
)  # fmt: skip
def test_a_value_that_json_does_not_have_is_named_by_its_place(server, metadata, message):
    with pytest.raises(InputError, match=message):
        client(server).infer("m", IMAGE, metadata)
    assert not server.requests


def test_circular_metadata_are_refused(server):
    metadata: dict = {}
    metadata["a"] = metadata["b"] = metadata
    with pytest.raises(InputError, match="Circular"):
        client(server).infer("m", IMAGE, metadata)


def test_nan_in_an_answer_is_a_number(server):
    server.answers(inferred([{"label": "a", "score": float("nan")}]))
    assert str(client(server).infer("m", IMAGE).scores[0]) == "nan"


@pytest.mark.parametrize(
    "url", ["ftp://a", "http://", "http://u:p@h", "http://h:99999", "http://h?x=1", "grpc://h"]
)
def test_urls_that_are_none_are_refused(url):
    with pytest.raises(InputError, match="expected"):
        Client(url)


def test_a_key_that_would_split_headers_is_refused():
    with pytest.raises(InputError, match="visible ASCII"):
        Client(key="a\r\nX-Evil: 1")


def test_an_idempotency_key_that_would_split_headers_is_refused(server):
    with pytest.raises(InputError, match="visible ASCII"):
        client(server).infer("m", IMAGE, idempotency_key="a\r\nX-Evil: 1")
    assert not server.requests


def test_the_environment_has_key_and_files(server, monkeypatch, tmp_path):
    (tmp_path / "key").write_text("from-file\n")
    monkeypatch.setenv("QUADRIGA_API_KEY_FILE", str(tmp_path / "key"))
    Client(server.url).infer("m", IMAGE)
    assert header(server.requests[0], "Authorization") == "Bearer from-file"
    Client(server.url, key="").infer("m", IMAGE)
    assert header(server.requests[1], "Authorization") is None
    monkeypatch.setenv("QUADRIGA_API_KEY", "another")
    with pytest.raises(InputError, match="got both"):
        Client(server.url)
    monkeypatch.setenv("QUADRIGA_CA_FILE", str(tmp_path / "missing"))
    with pytest.raises(InputError, match="authorities"):
        Client("https://127.0.0.1", key="")


def test_a_prefix_of_the_url_stands_before_every_path(server):
    Client(server.url + "/api/quadriga/", key="").infer("m", IMAGE)
    assert server.requests[0].startswith(b"POST /api/quadriga/v2/models/m/infer HTTP/1.1")
