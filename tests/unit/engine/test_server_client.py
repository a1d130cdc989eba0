"""The client of a server: patience, errors, images as they are."""

import json
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace

import pytest

from quadriga.engine.commands import server_client
from quadriga.engine.commands.server_client import ServerClient, ServerError, ServerRefused
from tests.background import listening


@pytest.fixture
def server():
    """A server that sends prepared responses and records requests, and its client."""
    state = SimpleNamespace(answers=[], heard=[])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            state.heard.append((self.path, dict(self.headers), body))
            status, headers, answer = state.answers.pop(0)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": len(answer)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with listening(Handler) as host:
        state.client = ServerClient(f"http://{host}/prefix/")
        yield state
        state.client.close()


def test_image_is_sent_unchanged(server) -> None:
    server.answers = [(200, {}, b'{"a": 1}')]
    assert server.client.infer("m/versions/1", b"\xff\x00", "x.jpg", {"metadata": "{}"}) == {"a": 1}
    ((path, headers, body),) = server.heard
    size = int(headers["Inference-Header-Content-Length"])
    (tensor,) = json.loads(body[:size])["inputs"]
    assert path == "/prefix/v2/models/m/versions/1/infer"
    assert body[size:] == b"\x02\x00\x00\x00\xff\x00"
    assert tensor["parameters"] == {"metadata": "{}", "binary_data_size": 6}
    assert (tensor["name"], tensor["shape"], tensor["datatype"]) == ("x.jpg", [1], "BYTES")


def test_busy_server_is_retried(server) -> None:
    busy = {"Retry-After": "0"}
    server.answers = [(503, busy, b"{}"), (429, busy, b"{}"), (200, {}, b"{}")]
    assert server.client.request_json("POST", "/a", {"b": 1}) == {}
    assert [body for _, _, body in server.heard] == [b'{"b": 1}'] * 3


def test_busy_server_times_out(server, monkeypatch) -> None:
    monkeypatch.setattr(server_client, "BUSY_TIMEOUT_S", 0.0)
    server.answers = [(503, {"Retry-After": "1"}, b'{"error": "expected room"}')]
    with pytest.raises(ServerRefused, match=r"^expected room \(503\)$"):
        server.client.request_json("POST", "/a")


@pytest.mark.parametrize(
    ("answer", "message"), [(b'{"error": "expected x"}', "expected x"), (b"<p>", "b'<p>'")]
)
def test_errors_are_raised_without_waiting(server, answer, message) -> None:
    server.answers = [(400, {}, answer)]
    with pytest.raises(ServerRefused, match=message) as caught:
        server.client.infer("m", b"", "x", {})
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("key", "hint"), [("", ": set QUADRIGA_API_KEY or QUADRIGA_API_KEY_FILE"), ("quadriga-a.b", "")]
)
def test_who_sends_no_key_is_told_where_commands_have_it_from(server, key, hint) -> None:
    server.answers = [(401, {}, b'{"error": "expected a key"}')]
    client = ServerClient(server.client.url, key=key)
    with pytest.raises(ServerRefused) as caught:
        client.request_json("POST", "/a")
    assert str(caught.value) == f"expected a key (401){hint}"
    client.close()


@pytest.mark.parametrize("url", ["ftp://a", "http://", "https:///a"])
def test_invalid_urls_are_refused(url) -> None:
    with pytest.raises(ServerError, match="expected a URL such as"):
        ServerClient(url)


def test_unreachable_server_is_reported() -> None:
    with pytest.raises(ServerError, match=r"expected a server at 127\.0\.0\.1:1, got"):
        ServerClient("127.0.0.1:1").request_json("GET", "/")
