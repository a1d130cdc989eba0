"""TLS of real servers, over HTTP and gRPC: who gets in, what renewals and bad clients do, and the server's own jobs."""

import json
import os
import shutil
import socket
import ssl
import sys
import time
from contextlib import ExitStack, suppress
from http.client import HTTPSConnection
from pathlib import Path

import grpc
import pytest

from quadriga.engine.processes.serving import SPARE_HANDSHAKES
from tests.certificates import Authority, replace_by_link
from tests.grpc_client import Client
from tests.pages import blocks, shell
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, quadriga

MODEL = "shapes-classifier"
HEADER_TIMEOUT_S = 5
MAX_CONNECTIONS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(folder):
    return Authority(folder / "authority")


@pytest.fixture(scope="module")
def stranger(folder):
    """Yield an authority that nobody trusts."""
    return Authority(folder / "stranger")


def new_server(folder, name, *flags, constants=None):
    """Return a server whose certificate is behind a link, and that may run a model over an image."""
    source = folder / name / "allowed" / "set"
    source.mkdir(parents=True)
    shutil.copy(next((IMAGES / "classification").glob("*.jpg")), source)
    flags = ("--grpc-port", "0", "--bulk-folder", str(source.parent), *flags)
    flags += ("--tls-certificate", str(folder / name / "tls.pem"))
    return ServerProcess(folder / name / "data", SAMPLE_MODELS / MODEL, *flags, constants=constants)


@pytest.fixture(scope="module")
def server(folder, authority):
    """Yield a server of two workers."""
    flags = ("--workers", "2", "--max-connections", str(MAX_CONNECTIONS))
    quick = {"engine.http.http_protocol": {"HEADER_TIMEOUT_S": HEADER_TIMEOUT_S}}
    server = new_server(folder, "server", *flags, constants=quick)
    (server.data.parent / "tls.pem").symlink_to(authority.sign("first"))
    server.tls = ssl.create_default_context(cafile=authority.certificate)
    yield server.start()
    idle = server.connect()
    idle.request("GET", "/v2/health/live")
    idle.getresponse().read()
    begun_s = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begun_s < 25  # no client has to agree to the end of its connection
    idle.close()


@pytest.fixture(scope="module")
def mutual(folder, authority):
    """Yield a server whose clients need a certificate."""
    clients = folder / "clients.pem"
    clients.symlink_to(authority.certificate)
    server = new_server(folder, "mutual", "--tls-client-ca", str(clients))
    (server.data.parent / "tls.pem").symlink_to(authority.sign("server"))
    server.tls = client_context(authority, authority.sign("client", usage="clientAuth"))
    yield server.start()
    assert server.stop() == 0


def client_context(authority, own=None):
    context = ssl.create_default_context(cafile=authority.certificate)
    if own is not None:
        context.load_cert_chain(own)
    return context


def channel_credentials(authority, own=None):
    text = None if own is None else own.read_bytes()
    return grpc.ssl_channel_credentials(authority.certificate.read_bytes(), text, text)


def address(host_and_port):
    host, _, port = host_and_port.rpartition(":")
    return host, int(port)


def subject(server_address, context):
    """Return the name in the certificate that a new connection gets."""
    with (
        socket.create_connection(address(server_address), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return connection.getpeercert()["subject"][0][0][1]


def probe(server, context):
    """Send a request; TLS 1.3 tells clients only then that their certificate is refused."""
    connection = HTTPSConnection(server.host, timeout=30, context=context)
    try:
        connection.request("GET", "/v2/health/live")
        return connection.getresponse().status
    finally:
        connection.close()


def read_to_end(connection):
    with suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass


def run_bulk(server):
    body = {"model": MODEL, "source": "set"}
    status, job = server.call("POST", "/api/inferences/bulk", body)
    assert status == 202, job
    return server.ended(job["id"])


def test_http_and_grpc_are_reached_by_tls_whose_authority_the_client_trusts(
    server, authority, stranger
):
    assert server.call("GET", "/v2/health/ready")[0] == 200
    with Client(server.grpc, channel_credentials(authority)) as client:
        assert client.call("ServerLive").live
    with pytest.raises(ssl.SSLCertVerificationError):
        subject(server.host, client_context(stranger))
    with Client(server.grpc, channel_credentials(stranger)) as client:
        with pytest.raises(grpc.RpcError) as caught:
            client.call("ServerLive", timeout=10)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    old = client_context(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert subject(server.host, old)


def test_commands_and_jobs_reach_the_server(server, authority, tmp_path):
    url = f"https://{server.host}"
    key = tmp_path / "key"
    key.write_text("quadriga-any.key\n")
    env = {**os.environ, "QUADRIGA_API_KEY_FILE": str(key)}
    env["QUADRIGA_CA_FILE"] = str(authority.certificate)
    answer = quadriga("models", "--server", url, "--json", env=env)
    assert json.loads(answer.stdout)
    refused = quadriga("models", "--server", url, code=2)
    assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr
    assert "QUADRIGA_CA_FILE" in refused.stderr
    missing = quadriga("models", "--server", url, code=2, env=env | {"QUADRIGA_CA_FILE": "/none"})
    assert (
        "QUADRIGA_CA_FILE: cannot use the authorities of /none: No such file or directory"
        in missing.stderr
    )
    assert run_bulk(server)["state"] == "succeeded"


@pytest.mark.parametrize("protocol", ["host", "grpc"])
def test_handshakes_that_never_end_are_few_and_short(server, authority, protocol):
    """Good clients are answered meanwhile; plain HTTP is closed at once."""
    place = address(getattr(server, protocol))
    with socket.create_connection(place, timeout=30) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_to_end(plain)
    with ExitStack() as stack:
        begun_s = time.monotonic()
        silent = [
            stack.enter_context(socket.create_connection(place, timeout=30))
            for _ in range(MAX_CONNECTIONS // 2)
        ]
        assert server.call("GET", "/v2/health/live")[0] == 200
        with Client(server.grpc, channel_credentials(authority)) as client:
            assert client.call("ServerLive", timeout=30).live
        flood = [
            stack.enter_context(socket.create_connection(place, timeout=30)) for _ in range(200)
        ]
        ends_s = []
        assert server.call("GET", "/v2/health/live")[0] == 200
        with Client(server.grpc, channel_credentials(authority)) as client:
            assert client.call("ServerLive", timeout=30).live
        for connection in (*silent, *flood):  # the new ones take the places of the old ones
            read_to_end(connection)
            ends_s.append(time.monotonic() - begun_s)
        assert ends_s[0] < HEADER_TIMEOUT_S  # those without a place
        assert ends_s[-1] < HEADER_TIMEOUT_S + 50
    server.wait_until(lambda: server.call("GET", "/v2/health/live")[0] == 200)
    with Client(server.grpc, channel_credentials(authority)) as client:
        assert client.call("ServerLive", timeout=30).live


def test_idle_connections_and_endless_handshakes_keep_nobody_out(server):
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            connection = server.connect()
            stack.callback(connection.close)
            connection.request("GET", "/v2/health/live")
            assert connection.getresponse().read()
        for _ in range(SPARE_HANDSHAKES):
            stack.enter_context(socket.create_connection(address(server.host), timeout=30))
        for _ in range(5):
            assert server.call("GET", "/v2/health/live")[0] == 200


def test_a_slow_client_gets_the_whole_answer_of_a_connection_that_is_closed(server):
    """The event loop has a limit for the last bytes over TLS, which has to leave slow clients time."""
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(address(server.host))
        assert server.tls is not None
        with server.tls.wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(
                b"GET /schema/openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
            time.sleep(1.5)
            received = b""
            while part := connection.recv(1 << 14):
                received += part
    head, _, body = received.partition(b"\r\n\r\n")
    (length,) = (line for line in head.lower().splitlines() if line.startswith(b"content-length"))
    assert len(body) == int(length.split()[-1]) > 50_000
    assert json.loads(body)


def test_a_body_that_is_too_large_is_refused_by_an_answer(server):
    """Without TLS the answer ends with an end of the stream, which TLS does not have while the client sends."""
    connection = server.connect()
    connection.putrequest("POST", f"/v2/models/{MODEL}/infer")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    with suppress(OSError):
        connection.send(b" " * 100_000)
    assert connection.getresponse().status == 413
    connection.close()


def test_new_files_count_for_new_connections_and_open_ones_go_on(server, authority):
    link = server.data.parent / "tls.pem"
    connection, context = server.connect(), client_context(authority)
    connection.request("GET", "/v2")
    assert connection.getresponse().read()
    with Client(server.grpc, channel_credentials(authority)) as client:
        client.call("ServerLive")
        replace_by_link(link, authority.sign("second"))

        def names():
            places = (server.host, server.grpc)
            return {subject(place, context) for place in places for _ in range(8)}

        server.wait_until(lambda: names() == {"second"})
        connection.request("GET", "/v2")
        assert connection.getresponse().read()
        assert client.call("ServerLive").live
    connection.close()
    assert run_bulk(server)["state"] == "succeeded"
    # The supervisor looks by itself: it is to hand on the second files, and not the first.
    server.wait_until(lambda: "new connections use the new TLS files" in server.log.read_text())
    replace_by_link(link, Path("/none"))
    complaint = "the TLS files stay those that were read last"
    server.wait_until(lambda: complaint in server.log.read_text())
    server.kill_child("worker-0")
    server.kill_child("worker-1")
    server.wait_until(lambda: "restarting" in server.log.read_text())

    def is_back():
        with suppress(OSError):
            return server.call("GET", "/v2/health/ready")[0] == 200

    server.wait_until(is_back)
    server.wait_until(lambda: names() == {"second"})
    assert run_bulk(server)["state"] == "succeeded"
    assert server.log.read_text().count(complaint) == 1
    replace_by_link(link, authority.sign("third"))
    server.wait_until(lambda: names() == {"third"}, timeout_s=20)


def test_clients_need_a_certificate_of_the_right_authority(mutual, authority, stranger):
    own, others = authority.sign("somebody", usage="clientAuth"), stranger.sign("other")
    assert mutual.call("GET", "/v2/health/ready")[0] == 200
    for certificate in (None, others, authority.sign("only_server", usage="serverAuth")):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            probe(mutual, client_context(authority, certificate))
        with Client(mutual.grpc, channel_credentials(authority, certificate)) as client:
            with pytest.raises(grpc.RpcError) as caught:
                client.call("ServerLive", timeout=10)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    with Client(mutual.grpc, channel_credentials(authority, own)) as client:
        assert client.call("ServerLive").live
    env = {**os.environ, "QUADRIGA_CA_FILE": str(authority.certificate)}
    command = ("models", "--server", f"https://{mutual.host}", "--json")
    quadriga(*command, env=env, code=2)
    answer = quadriga(*command, env=env | {"QUADRIGA_CLIENT_CERTIFICATE_FILE": str(own)})
    assert json.loads(answer.stdout)


def test_the_health_check_of_the_page_gets_in(mutual, authority, tmp_path):
    (check,) = (block.text for block in blocks("docs/security.md") if "urllib" in block.text)
    shutil.copy(authority.certificate, tmp_path / "ca.pem")
    shutil.copy(authority.sign("check", usage="clientAuth"), tmp_path / "client-and-key.pem")
    check = check.replace("localhost:8080", mutual.host).replace("python", sys.executable)
    shell(check, tmp_path)
    shell(check.replace("c.load_cert_chain('client-and-key.pem');", ""), tmp_path, code=1)


def test_jobs_get_in_by_the_certificate_of_the_server_if_it_is_one_for_clients(
    mutual, authority, stranger, folder
):
    assert run_bulk(mutual)["state"] == "succeeded"
    link = mutual.data.parent / "tls.pem"
    replace_by_link(link, authority.sign("for_servers", usage="serverAuth"))
    mutual.wait_until(lambda: subject(mutual.host, mutual.tls) == "for_servers")
    status, answer = mutual.call("POST", "/api/inferences/bulk", {"model": MODEL, "source": "set"})
    assert status == 400
    assert (
        "bulk inference is off: with tls_client_ca the server's own certificate" in answer["error"]
    )
    replace_by_link(folder / "clients.pem", stranger.certificate)

    def is_refused():
        with suppress(ssl.SSLError, ConnectionError):
            return mutual.call("GET", "/v2")[0] != 200
        return True

    mutual.wait_until(is_refused, timeout_s=20)
    mutual.tls = client_context(authority, stranger.sign("new_client", usage="clientAuth"))
    assert mutual.call("GET", "/v2")[0] == 200
    replace_by_link(folder / "clients.pem", authority.certificate)


def test_files_that_cannot_be_used_are_an_error_at_the_start(folder, authority, stranger):
    own, other = authority.sign("own"), stranger.sign("own")
    begin = ("serve", SAMPLE_MODELS / MODEL, "--port", "0", "--grpc-port", "-1")
    begin += ("--data", folder / "unused", "--tls-certificate", own, "--tls-key")
    for key, text in (
        (folder / "none.key", "tls_key: cannot read"),
        (other, "tls_key: expected the private key of the certificate, got another one"),
    ):
        ended = quadriga(*begin, key, code=2)
        assert text in ended.stderr
        assert "listens" not in ended.stdout
