"""Images are fetched from allowed hosts alone, within limits of size and time, and each redirect is checked."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import cv2
import numpy as np
import pytest

from quadriga.extras.label_studio.images import ImageFetcher
from quadriga.extras.label_studio.settings import parse_hosts
from quadriga.proto.errors import InvalidRequest
from tests.unit.monitor.watch.test_webhook_client import raw_server, trickle

PNG = cv2.imencode(".png", np.zeros((4, 6, 3), np.uint8))[1].tobytes()


class Site:
    """A server with pages by path: status, headers and body."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, str, str | None, bytes]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(b"")

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers["Content-Length"])))

            def _answer(self, body: bytes) -> None:
                site.asked.append((self.command, self.path, self.headers["Authorization"], body))
                status, headers, content = site.pages.get(self.path, (404, {}, b"nothing"))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def running() -> Iterator[Site]:
    site = Site()
    thread = Thread(target=site.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield site
    finally:
        site.server.shutdown()
        thread.join(10)
        site.server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    with running() as site:
        yield site


def fetcher(hosts: str = "127.0.0.1", url: str = "", token: str = "", **options: Any) -> ImageFetcher:  # fmt: skip
    allowed = parse_hosts(hosts)
    return ImageFetcher(allowed, url, token, **{"max_bytes": 1000, "timeout_s": 5.0, **options})


def refusal(fetching: ImageFetcher, url: str) -> str:
    with pytest.raises(InvalidRequest) as raised:
        fetching.fetch(url)
    return str(raised.value)


def test_an_image_of_an_allowed_host_is_fetched(site):
    site.pages["/a.png?x=1"] = (200, {}, PNG)
    assert fetcher().fetch(f"{site.url}/a.png?x=1") == PNG
    assert site.asked == [("GET", "/a.png?x=1", None, b"")]


@pytest.mark.parametrize("setting", ["", "public", "example.org", "10.0.0.0/8"])
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "localhost", "169.254.169.254"]
)  # fmt: skip
def test_nothing_else_is_asked(site, monkeypatch, setting, host):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection"))
    port = site.server.server_port
    message = refusal(fetcher(setting), f"http://{host}:{port}/a.png")
    looked_up = (
        host == "localhost" and setting == "10.0.0.0/8"
    )  # a name may have an address of the network
    assert (
        "no image was got" if looked_up else "the setting extras.label_studio.hosts allows"
    ) in message
    assert site.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "ftp://127.0.0.1/a", "gopher://127.0.0.1/", "//127.0.0.1/a.png", "http:///a.png",
        "http://user:password@127.0.0.1/", "http://127.0.0.1:99999/", "http://127.0.0.1/\r\nX: y", "http://127.0.0.1/ä",
        "http://127.0.0.1\\@example.org/", "http://127.0.0.1/a b", "http://[::1", "data:image/png;base64,AAAA",
    ],
)  # fmt: skip
def test_odd_urls_are_refused(url):
    message = refusal(fetcher(), url)
    assert (
        "expected a URL of http or https with a host and no user" in message or "allows" in message
    )


def test_each_redirect_is_checked(site):
    inside = f"http://127.0.0.2:{site.server.server_port}/secret.png"
    site.pages["/a"] = (302, {"Location": inside}, b"")
    message = refusal(fetcher(), f"{site.url}/a")
    assert (
        "an address that the setting extras.label_studio.hosts allows, got '127.0.0.2'" in message
    )
    assert [path for _, path, _, _ in site.asked] == ["/a"]
    for location in ("file:///etc/passwd", "http://169.254.169.254/", "", "//[::1]/"):
        site.pages["/b"] = (301, {"Location": location}, b"")
        assert "cannot fetch" in refusal(fetcher(), f"{site.url}/b")
    site.pages["/c"] = (307, {"Location": "/d.png"}, b"")
    site.pages["/d.png"] = (200, {}, PNG)
    assert fetcher().fetch(f"{site.url}/c") == PNG


def test_redirects_size_time_and_kind_are_limited(site):
    site.pages["/loop"] = (302, {"Location": "/loop"}, b"")
    assert "at most 3 redirects" in refusal(fetcher(), f"{site.url}/loop")
    assert len(site.asked) == 4
    site.pages["/large.png"] = (200, {}, PNG + bytes(1000))
    assert "an image of at most 1000 bytes, got" in refusal(fetcher(), f"{site.url}/large.png")
    site.pages["/text"] = (200, {}, b"root:x:0:0:root:/root")
    message = refusal(fetcher(), f"{site.url}/text")
    assert "expected an image, got something else" in message
    assert "root" not in message
    assert "expected the status 200, got 404" in refusal(fetcher(), f"{site.url}/none")


def test_a_body_without_an_end_or_a_length_is_cut(site):
    endless = b"HTTP/1.1 200 OK\r\n\r\n\x89PNG\r\n\x1a\n" + bytes(5000)
    with raw_server(lambda connection, _: connection.sendall(endless)) as port:
        assert "at most 1000 bytes, got more" in refusal(fetcher(), f"http://127.0.0.1:{port}/")
    head = b"HTTP/1.1 200 OK\r\nX: "
    with raw_server(lambda connection, over: trickle(connection, over, head)) as port:
        assert "no valid answer" in refusal(fetcher(timeout_s=0.4), f"http://127.0.0.1:{port}/")
    with raw_server(lambda connection, _: connection.sendall(b"SSH-2.0-x\r\n")) as port:
        assert "no valid answer" in refusal(fetcher(), f"http://127.0.0.1:{port}/")
        assert "SSH" not in refusal(fetcher(), f"http://127.0.0.1:{port}/")


def test_what_failed_in_a_network_is_in_the_log_alone(site, caplog):
    message = refusal(fetcher("127.0.0.0/8"), "http://127.0.0.1:1/a.png")
    assert message.endswith("no image was got; the log says why")
    assert "refused" in caplog.text.lower()


def test_the_token_goes_to_label_studio_alone(site):
    with running() as other:
        site.pages["/data/upload/a.png"] = (200, {}, PNG)
        site.pages["/away"] = (302, {"Location": f"{other.url}/b.png"}, b"")
        other.pages["/b.png"] = (200, {}, PNG)
        fetching = fetcher("127.0.0.1", url=site.url, token="t0k")
        assert fetching.fetch(f"{site.url}/data/upload/a.png") == PNG
        assert fetching.fetch(f"{site.url}/away") == PNG
        assert [(path, token) for _, path, token, _ in site.asked] == [("/data/upload/a.png", "Token t0k"), ("/away", "Token t0k")]  # fmt: skip
        assert other.asked == [("GET", "/b.png", None, b"")]
        only_home = fetcher("", url=site.url, token="t0k")
        assert only_home.fetch(f"{site.url}/data/upload/a.png") == PNG
        assert "label_studio.hosts allows" in refusal(only_home, f"{other.url}/b.png")


def test_a_personal_token_is_exchanged_and_the_short_one_kept(site):
    site.pages["/a.png"] = (200, {}, PNG)
    site.pages["/api/token/refresh"] = (200, {}, b'{"access": "short"}')
    fetching = fetcher("", url=site.url, token="a.b.c")
    for _ in range(2):
        assert fetching.fetch(f"{site.url}/a.png") == PNG
    assert site.asked == [
        ("POST", "/api/token/refresh", None, b'{"refresh": "a.b.c"}'),
        ("GET", "/a.png", "Bearer short", b""),
        ("GET", "/a.png", "Bearer short", b""),
    ]


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"access": 3}', b'{"access": "a\\r\\nX: y"}', b'{"access": ""}'])  # fmt: skip
def test_an_odd_access_token_is_not_sent(site, answer):
    site.pages["/api/token/refresh"] = (200, {}, answer)
    message = refusal(fetcher("", url=site.url, token="a.b.c"), f"{site.url}/a.png")
    assert "Label Studio gave no access token" in message
    assert "a.b.c" not in message
    assert [path for _, path, _, _ in site.asked] == ["/api/token/refresh"]
