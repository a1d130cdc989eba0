"""The client over TLS: whom it trusts, its own certificate, and a key that goes to nobody else."""

import ssl

import pytest

from quadriga.client import Client, Unreachable
from quadriga.client.errors import InputError
from tests.certificates import Authority
from tests.server_process import SAMPLE_MODELS, ServerProcess

MODEL = "shapes-classifier"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("client-tls")


@pytest.fixture(scope="module")
def authority(folder):
    return Authority(folder / "authority")


@pytest.fixture(scope="module")
def server(folder, authority):
    """Yield the URL of a server whose clients need a certificate."""
    flags = ("--tls-certificate", str(authority.sign("server")))
    flags += ("--tls-client-ca", str(authority.certificate))
    process = ServerProcess(folder / "data", SAMPLE_MODELS / MODEL, *flags)
    process.tls = ssl.create_default_context(cafile=authority.certificate)
    process.tls.load_cert_chain(authority.sign("test"))
    process.start()
    yield f"https://{process.host}"
    process.stop()


def test_a_client_with_a_certificate_gets_in_by_arguments_and_by_the_environment(
    server, authority, monkeypatch
):
    certificate = authority.sign("client")
    with Client(server, key="", ca=authority.certificate, certificate=certificate) as client:
        assert client.server.live()
        assert client.server.live()  # on the same connection
    monkeypatch.setenv("QUADRIGA_CA_FILE", str(authority.certificate))
    monkeypatch.setenv("QUADRIGA_CLIENT_CERTIFICATE_FILE", str(certificate))
    with Client(server, key="") as client:
        assert client.models.names() == [MODEL]


@pytest.mark.parametrize("knows_authority", [True, False])
def test_strangers_on_either_side_are_refused(server, authority, folder, knows_authority):
    stranger = Authority(folder / f"stranger-{knows_authority}")
    ca = authority.certificate if knows_authority else stranger.certificate
    client = Client(
        server, key="secret", ca=ca, certificate=stranger.sign("client"), retries=1, timeout=10
    )
    with pytest.raises(Unreachable) as raised:
        client.server.live()
    assert "secret" not in str(raised.value)
    if not knows_authority:
        assert "QUADRIGA_CA_FILE" in str(raised.value)


def test_a_client_without_a_certificate_is_refused(server, authority):
    with pytest.raises(Unreachable):
        Client(server, key="", ca=authority.certificate, retries=0).server.live()


def test_files_that_are_none_are_refused_before_anything_is_sent(folder, authority):
    (folder / "text").write_text("no certificate")
    with pytest.raises(InputError, match="authorities"):
        Client("https://127.0.0.1", key="", ca=folder / "text")
    with pytest.raises(InputError, match="certificate"):
        Client("https://127.0.0.1", key="", ca=authority.certificate, certificate=folder / "no")
