"""The files of TLS: what is refused at the start, what is only warned of, and what happens as they are renewed."""

import logging
import ssl
import time

import pytest

from quadriga.engine.access import tls
from quadriga.engine.access.tls import (
    RenewedContext,
    RenewedFiles,
    certificate_end_s,
    certificate_problem,
    read_tls_files,
    server_context,
    way_in_problem,
)
from quadriga.engine.config.settings import Settings, SettingsError
from tests.certificates import Authority, openssl, replace_by_link
from tests.pages import blocks, shell


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def own(authority):
    return authority.sign("server")


def settings(certificate="", key="", client_ca=""):
    return Settings(
        tls_certificate=str(certificate), tls_key=str(key), tls_client_ca=str(client_ca)
    )


def test_what_cannot_be_used_is_refused_by_the_name_of_its_setting(authority, own, tmp_path):
    other = authority.sign("other")
    text = own.read_bytes()
    only_certificate = tmp_path / "only_certificate.pem"
    only_certificate.write_bytes(text.partition(b"-----BEGIN PRIVATE")[0])
    with_password = tmp_path / "with_password.pem"
    openssl("pkcs8", "-topk8", "-in", own, "-passout", "pass:secret", "-out", with_password)
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    broken = tmp_path / "broken.pem"
    broken.write_bytes(text.replace(b"CERTIFICATE-----\nMII", b"CERTIFICATE-----\nAAA"))
    broken_key = tmp_path / "broken_key.pem"
    broken_key.write_bytes(text.replace(b"PRIVATE KEY-----\nM", b"PRIVATE KEY-----\nA"))
    weak = authority.sign("weak", new_key=("-noenc", "-newkey", "rsa:1024"))
    cases = [
        (("", own), "tls_certificate is required with tls_key"),
        (("", "", own), "tls_certificate is required with tls_client_ca"),
        ((tmp_path / "none.pem",), "tls_certificate: cannot read .*none.pem: No such file"),
        ((tmp_path,), "tls_certificate: cannot read .*: Is a directory"),
        ((empty,), "tls_certificate: expected a certificate in PEM in .*, got none"),
        (
            (only_certificate,),
            "tls_certificate: expected a private key in PEM, as tls_key names no file in",
        ),
        ((own, tmp_path / "none.pem"), "tls_key: cannot read .*none.pem: No such file"),
        ((own, only_certificate), "tls_key: expected a private key in PEM in .*, got none"),
        ((own, with_password), "tls_key: expected a private key without a password, got one with"),
        ((own, other), "tls_key: expected the private key of the certificate, got another one"),
        ((own, weak), "tls_key: expected the private key of the certificate, got another one"),
        ((broken,), "tls_certificate: a certificate cannot be parsed"),
        ((own, broken_key), "tls_key: the private key cannot be parsed"),
        ((weak,), r"tls_certificate: expected a stronger key or signature \(EE_KEY_TOO_SMALL\)"),
        ((own, "", tmp_path / "none.pem"), "tls_client_ca: cannot read"),
        ((own, "", empty), "tls_client_ca: expected certificates in PEM in"),
        ((own, "", broken), "tls_client_ca: a certificate cannot be parsed"),
    ]
    for values, text in cases:
        with pytest.raises(SettingsError, match=text):
            server_context(read_tls_files(settings(*values)))
    assert read_tls_files(settings()) is None


def test_a_certificate_that_clients_will_refuse_is_only_warned_of(authority, own):
    for name, options, problem in (
        ("good", {}, ""),
        ("old", {"days": -1}, "certificate has expired"),
        ("client", {"usage": "clientAuth"}, "unsuitable certificate purpose"),
    ):
        files = read_tls_files(settings(authority.sign(name, **options)))
        assert problem in certificate_problem(files)
        assert bool(problem) == bool(certificate_problem(files))


def test_jobs_get_in_where_the_certificate_is_one_for_clients_too(authority, own, tmp_path):
    other = Authority(tmp_path / "other")
    only_server = authority.sign("only_server", usage="serverAuth")
    assert way_in_problem(read_tls_files(settings(own))) == ""
    assert way_in_problem(read_tls_files(settings(only_server))) == ""
    assert way_in_problem(read_tls_files(settings(own, "", authority.certificate))) == ""
    for values in ((own, "", other.certificate), (only_server, "", authority.certificate)):
        assert way_in_problem(read_tls_files(settings(*values)))


def test_the_certificates_of_the_page_are_accepted(tmp_path):
    (script,) = (block.text for block in blocks("docs/security.md") if "openssl req" in block.text)
    shell(script, tmp_path)
    paths = [tmp_path / name for name in ("server.pem", "server.key", "ca.pem")]
    files = read_tls_files(settings(*paths))
    assert (certificate_problem(files), way_in_problem(files)) == ("", "")
    client = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does
    client.load_cert_chain(tmp_path / "client-and-key.pem")
    client.check_hostname = False  # without a network there is no name
    tls._shake_hands(server_context(files), client)


def test_the_key_is_in_no_text(own):
    assert "PRIVATE" not in repr(read_tls_files(settings(own)))


def test_what_stays_broken_is_logged_once_and_changes_nothing(authority, own, tmp_path, caplog):
    link = tmp_path / "tls.pem"
    link.symlink_to(own)
    renewed = RenewedFiles(settings(link), read_tls_files(settings(link)), is_silent=False)
    silent = RenewedFiles(settings(link), read_tls_files(settings(link)))
    before, context = renewed.files, renewed.context
    replace_by_link(link, tmp_path / "none.pem")
    with caplog.at_level(logging.INFO):
        renewed.reread()
        assert not caplog.records  # it may be half of a renewal
        for _ in range(3):
            renewed.reread()
            silent.reread()
    assert (renewed.files, renewed.context) == (before, context)
    (record,) = caplog.records
    assert "the TLS files stay those that were read last: tls_certificate: cannot" in record.message
    caplog.clear()
    old = authority.sign("renewed", days=-1)
    replace_by_link(link, old)
    with caplog.at_level(logging.INFO):
        renewed.reread()
    assert renewed.files.certificate == old.read_bytes()
    assert renewed.context is not context
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_jobs_trust_the_certificate_before_a_renewal_too(authority, tmp_path):
    first, second, third = (authority.sign(name) for name in ("first", "second", "third"))
    link = tmp_path / "tls.pem"
    link.symlink_to(first)
    files = RenewedFiles(settings(link), read_tls_files(settings(link)))

    def is_trusted(path):
        try:
            server = server_context(read_tls_files(settings(path)))
            tls._shake_hands(server, files.trusting_context())
        except ssl.SSLError:
            return False
        return True

    assert [is_trusted(path) for path in (first, second)] == [True, False]
    replace_by_link(link, second)
    assert [is_trusted(path) for path in (first, second, third)] == [True, True, False]
    link.unlink()
    assert is_trusted(second)


def test_a_connection_keeps_the_context_with_which_it_began(own):
    files = read_tls_files(settings(own))
    contexts = [server_context(files), server_context(files)]
    context = RenewedContext.of(lambda: contexts[0])
    tls._shake_hands(context, tls.own_client_context(files))

    def begin():
        return context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)

    first = begin()
    assert first.context is contexts[0]
    before = contexts.pop(0)
    assert begin().context is contexts[0]
    assert first.context is before


@pytest.mark.parametrize("days", [1, 90, -1])
def test_the_end_of_a_certificate_is_known_before_and_after(authority, days):
    path = authority.sign(f"of_{days}_days", days=days)
    files = read_tls_files(settings(path, client_ca=authority.certificate))
    assert abs(certificate_end_s(files) - (time.time() + days * 86400)) < 3600


def test_the_end_of_a_certificate_that_is_none_of_a_server_is_unknown(authority):
    path = authority.sign("of_a_client", usage="clientAuth")
    assert certificate_end_s(read_tls_files(settings(path))) is None


def test_a_renewal_renews_the_end(authority, tmp_path):
    link = tmp_path / "tls.pem"
    link.symlink_to(authority.sign("short", days=1))
    files = RenewedFiles(settings(link), read_tls_files(settings(link)))
    first_end_s = files.certificate_end_s
    replace_by_link(link, authority.sign("long", days=30))
    files.reread()
    assert files.certificate_end_s > first_end_s + 28 * 86400
