"""Messages are posted within a time, and to nobody but the address that was checked."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from quadriga.monitor.watch.deliveries import WebhookClient
from quadriga.monitor.watch.host_connections import (
    NO_ANSWER,
    NO_CONNECTION,
    REFUSED,
    DeliveryError,
)
from quadriga.monitor.watch.webhooks import WebhookHosts, parse_webhook_hosts

SHORT_S = 0.4
LONGER_S = 1.0
"""Enough to connect, also on a busy machine."""


class Recorder:
    """An HTTP server that records what it receives.

    Attributes:
        requests: The target, headers and body of each request.
    """

    def __init__(self, address: str, port: int = 0, status: int = 204, location: str = "") -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        received = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append((self.path, dict(self.headers), body))
                self.send_response(status)
                if location:
                    self.send_header("Location", location)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer((address, port), Handler)
        self.port = self.server.server_port

    @contextmanager
    def running(self) -> Iterator["Recorder"]:
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            thread.join(10)
            self.server.server_close()


@contextmanager
def raw_server(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """Listen on 127.0.0.1, and let a function answer each connection; gives the port."""
    over, threads = threading.Event(), []

    def answer_one(connection):
        with connection, suppress(OSError):
            answer(connection, over)

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=answer_one, args=(connection,)))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        yield listener.getsockname()[1]
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
    for thread in (accepting, *threads):
        thread.join(10)


class Resolver:
    """Looks names up in a list of answers, one after the other; the last one stays."""

    def __init__(self, *answers: list[str] | OSError, delay_s: float = 0) -> None:
        self.answers = list(answers)
        self.names: list[str] = []
        self.answered = 0
        self._delay_s = delay_s

    def __call__(self, host, port, type):  # noqa: A002 - as in `socket.getaddrinfo`
        self.names.append(host)
        time.sleep(self._delay_s)
        self.answered += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return [
            entry for address in answer for entry in socket.getaddrinfo(address, port, type=type)
        ]


def client(hosts: str = "127.0.0.1", timeout_s: float = 5, **options) -> WebhookClient:
    return WebhookClient(parse_webhook_hosts(hosts), timeout_s, **options)


def failure(client: WebhookClient, url: str) -> tuple[str, str, float]:
    """Post to a URL that takes nothing: gives the reason, the detail and how long it took."""
    begin = time.monotonic()
    with pytest.raises(DeliveryError) as caught:
        client.post(url, {}, b"{}")
    return caught.value.reason, str(caught.value), time.monotonic() - begin


def test_a_message_is_posted_as_it_is():
    with Recorder("127.0.0.1").running() as server:
        url = f"http://127.0.0.1:{server.port}/a/b?c=d%20e#f"
        client().post(url, {"webhook-id": "1"}, b'{"a": 1}')
    ((target, headers, body),) = server.requests
    assert (target, body) == ("/a/b?c=d%20e", b'{"a": 1}')
    assert headers == {
        "Host": f"127.0.0.1:{server.port}", "Content-Type": "application/json", "User-Agent": "quadriga",
        "webhook-id": "1", "Content-Length": "8", "Connection": "close",
    }  # fmt: skip


def test_a_name_that_is_looked_up_twice_cannot_change_its_address():
    """127.0.0.2 stands for a public address, 127.0.0.1 for a private one, and the names' owner for an attacker."""
    with Recorder("127.0.0.2").running() as public, Recorder("127.0.0.1", public.port).running() as private:  # fmt: skip
        resolver = Resolver(["127.0.0.2"], ["127.0.0.1"], ["127.0.0.1", "127.0.0.2"])
        sender = client("127.0.0.2", lookup=resolver, timeout_s=1)
        url = f"http://rebinding.example.org:{public.port}/"
        sender.post(url, {}, b"{}")
        assert resolver.names == ["rebinding.example.org"]
        reason, detail, _ = failure(sender, url)
        assert reason == REFUSED
        assert detail.endswith("127.0.0.1; the setting webhook_hosts says which are")
        sender.post(url, {}, b"{}")  # only the address that is allowed is tried
    assert [headers["Host"] for _, headers, _ in public.requests] == [url[7:-1]] * 2
    assert private.requests == []


ALIASES = (
    "127.0.0.1",
    "127.1",
    "0x7f000001",
    "2130706433",
    "0177.0.0.1",
    "[::ffff:127.0.0.1]",
    "localhost",
    "0",
)


@pytest.mark.parametrize(
    "host", [*ALIASES, "169.254.169.254", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]"]
)
def test_no_form_of_a_private_address_is_connected_to(host):
    with Recorder("127.0.0.1").running() as server:
        reason, _, took_s = failure(client("", SHORT_S), f"http://{host}:{server.port}/")
    assert (reason, server.requests) == (REFUSED, [])
    assert took_s >= SHORT_S


@pytest.mark.parametrize("host", ALIASES[:6])
def test_every_form_of_an_allowed_address_is(host):
    with Recorder("127.0.0.1").running() as server:
        client().post(f"http://{host}:{server.port}/", {}, b"{}")
    assert len(server.requests) == 1


def test_redirects_are_not_followed():
    with Recorder("127.0.0.1").running() as private:
        location = f"http://127.0.0.1:{private.port}/latest/meta-data"
        with Recorder("127.0.0.1", status=307, location=location).running() as server:
            reason, _, _ = failure(client(), f"http://127.0.0.1:{server.port}/")
    assert reason == "expected a status of 200 to 299, got 307"
    assert (len(server.requests), private.requests) == (1, [])


def test_proxies_of_the_environment_are_ignored(monkeypatch):
    with Recorder("127.0.0.1").running() as proxy, Recorder("127.0.0.1").running() as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        client().post(f"http://127.0.0.1:{server.port}/", {}, b"{}")
    assert (proxy.requests, len(server.requests)) == ([], 1)


def trickle(connection: socket.socket, over: threading.Event, text: bytes) -> None:
    connection.recv(65536)
    connection.sendall(text)
    while not over.wait(0.02):
        connection.sendall(b"a")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="status"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: ", id="headers"),
        pytest.param(b"HTTP/1.1 100 Continue\r\nX: ", id="interim"),
    ],
)
def test_a_receiver_that_sends_byte_after_byte_ends(text):
    with raw_server(lambda connection, over: trickle(connection, over, text)) as port:
        reason, _, took_s = failure(client(timeout_s=LONGER_S), f"http://127.0.0.1:{port}/")
    assert reason == NO_ANSWER
    assert took_s >= LONGER_S


def test_a_body_that_never_ends_is_not_awaited():
    with raw_server(lambda connection, over: trickle(connection, over, b"HTTP/1.1 200 OK\r\n\r\n")) as port:  # fmt: skip
        client().post(f"http://127.0.0.1:{port}/", {}, b"{}")


def test_a_receiver_that_reads_nothing_ends():
    silence = raw_server(lambda _, over: over.wait(20))
    with silence as port, pytest.raises(DeliveryError, match=NO_ANSWER):
        client(timeout_s=LONGER_S).post(f"http://127.0.0.1:{port}/", {}, bytes(32 << 20))


def test_a_handshake_that_is_not_answered_ends():
    with raw_server(lambda connection, over: trickle(connection, over, b"")) as port:
        reason, _, _ = failure(client(timeout_s=LONGER_S), f"https://127.0.0.1:{port}/")
    assert reason in {NO_ANSWER, NO_CONNECTION}


def test_a_slow_look_up_ends_and_so_do_the_ones_after_it():
    resolver = Resolver(["8.8.8.8"], delay_s=10)
    sender = client("", SHORT_S, lookup=resolver)
    for _ in range(2):
        reason, _, _ = failure(sender, "http://example.org/")
        assert (reason, resolver.answered) == (NO_CONNECTION, 0)


@pytest.mark.parametrize(
    ("answer", "hosts", "reason"),
    [
        (socket.gaierror(-2, "Name or service not known"), "", NO_CONNECTION),
        (["10.0.0.1"], "", REFUSED),
        ([], "", REFUSED),
        (["127.0.0.1"], "127.0.0.0/8", NO_CONNECTION),
    ],
)
def test_what_is_not_named_takes_the_whole_time_to_fail(answer, hosts, reason):
    sender = client(hosts, SHORT_S, lookup=Resolver(answer))
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    failed_reason, _, took_s = failure(sender, f"http://example.org:{port}/")
    assert failed_reason == reason
    assert took_s >= SHORT_S
    named = client("example.org", 60, lookup=Resolver(["127.0.0.1"]))
    assert failure(named, f"http://example.org:{port}/")[2] < 30


class EveryAddress(WebhookHosts, frozen=True):
    """Takes all addresses for public ones, as a machine's own may be."""

    def is_allowed(self, host, address):
        return True


def test_an_address_of_the_machine_itself_is_refused():
    with Recorder("127.0.0.1").running() as server:
        sender = WebhookClient(EveryAddress(), SHORT_S)
        assert failure(sender, f"http://127.0.0.1:{server.port}/")[0] == REFUSED
    assert server.requests == []


@pytest.mark.parametrize("answer", [b"", b"220 mail.example.org ESMTP\r\n", b"HTTP/1.1 ok\r\n\r\n"])
def test_what_is_no_http_is_no_answer(answer):
    def send(connection, _):
        connection.recv(65536)
        connection.sendall(answer)

    with raw_server(send) as port:
        assert failure(client(), f"http://127.0.0.1:{port}/")[0] == NO_CONNECTION


def certificate(folder, name: str):
    """Write a certificate of a host that signs itself, and its key; gives the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    pkcs8 = serialization.PrivateFormat.PKCS8
    file.write_bytes(
        signed.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, pkcs8, serialization.NoEncryption())
    )
    return file


def test_a_server_proves_its_name_though_its_address_is_given(tmp_path):
    file, server_names = certificate(tmp_path, "hooks.example.org"), []
    receiver = Recorder("127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    tls.sni_callback = lambda _socket, name, _context: server_names.append(name)
    receiver.server.socket = tls.wrap_socket(receiver.server.socket, server_side=True)
    receiver.server.handle_error = lambda *_: None  # a client that does not trust it
    trusting = ssl.create_default_context(cafile=file)
    resolver = Resolver(["127.0.0.1"])
    with receiver.running():
        sender = client("*.example.org", lookup=resolver, tls=trusting)
        sender.post(f"https://hooks.example.org:{receiver.port}/", {}, b"{}")
        other = failure(sender, f"https://other.example.org:{receiver.port}/")
        assert other[0] == NO_CONNECTION
        assert "CERTIFICATE_VERIFY_FAILED" in other[1]
        distrustful = client("*.example.org", lookup=resolver)
        url = f"https://hooks.example.org:{receiver.port}/"
        assert failure(distrustful, url)[0] == NO_CONNECTION
    assert server_names == ["hooks.example.org", "other.example.org", "hooks.example.org"]
    assert len(receiver.requests) == 1
