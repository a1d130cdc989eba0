"""Which hosts alerts may be sent to."""

from ipaddress import ip_address

import pytest

from quadriga.monitor.watch.webhooks import (
    WebhookHosts,
    is_public,
    literal_address,
    parse_webhook_hosts,
)

NOT_PUBLIC = """
    127.0.0.1 127.255.255.254 0.0.0.0 0.1.2.3 10.0.0.1 172.16.0.1 172.31.255.255 192.168.0.1 169.254.169.254
    169.254.170.2 100.64.0.1 100.100.100.200 192.0.0.1 192.0.0.192 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1
    192.88.99.1 224.0.0.1 224.0.1.1 239.255.255.255 240.0.0.1 255.255.255.255 168.63.129.16
    :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:10.0.0.1 ::ffff:0:127.0.0.1 fe80::1 fe80::1%2
    fec0::1 fc00::1 fd00:ec2::254 ff02::1 ff0e::1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 100::1 2001::1
    2001:db8::1 2002:7f00:1:: 2002:808:808:: 3fff::1 5f00::1
"""
PUBLIC = """
    8.8.8.8 1.1.1.1 93.184.215.14 172.32.0.1 ::ffff:8.8.8.8 64:ff9b::808:808 2606:4700:4700::1111
    2a00:1450:4001:80b::200e
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [(text, False) for text in NOT_PUBLIC.split()] + [(text, True) for text in PUBLIC.split()],
)
def test_public_addresses_are_told_from_others(text, expected):
    assert is_public(ip_address(text)) == expected


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0X7F.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("0", "0.0.0.0"),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
        ("example.org", None),
        ("1.example.org", None),
        ("1.2.3.4.5", None),
        ("99999999999", None),
    ],
)
def test_addresses_are_read_in_every_form(host, address):
    assert literal_address(host) == (address and ip_address(address))


PRIVATE = (
    "127.0.0.1", "[::1]", "0x7f000001", "2130706433", "127.1", "[::ffff:127.0.0.1]", "169.254.169.254", "10.1.2.3",
    "localhost", "LOCALHOST.", "a.localhost", "alertmanager", "metadata.google.internal", "printer.local", "1.2.3.4.5",
    "99999999999", "a..b", "-", "exa%6dple.org",
)  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "allowed", "refused"),
    [
        ("", ("example.org", "8.8.8.8", "[2606:4700:4700::1111]", "134744072"), PRIVATE),
        ("public", ("example.org", "8.8.8.8"), PRIVATE),
        ("127.0.0.1", ("127.0.0.1", "127.1", "0x7f000001", "[::ffff:127.0.0.1]"), ("8.8.8.8", "127.0.0.2", "[::1]", "a..b")),
        ("[::1]", ("[::1]",), ("127.0.0.1",)),
        ("10.0.0.0/8", ("10.1.2.3", "example.org", "localhost"), ("11.0.0.1", "8.8.8.8", "1.2.3.4.5")),
        ("example.org", ("example.org", "Example.ORG."), ("a.example.org", "example.com", "8.8.8.8", "badexample.org")),
        ("*.example.org", ("a.example.org", "a.b.example.org"), ("example.org", "badexample.org", "example.org.evil.com")),
        (" Hooks , public,", ("hooks", "example.com", "8.8.8.8"), ("other", "10.0.0.1")),
    ],
)  # fmt: skip
def test_hosts_are_refused_when_a_schedule_is_stored(setting, allowed, refused):
    hosts = parse_webhook_hosts(setting)
    assert [host for host in allowed if hosts.refusal(host.strip("[]").lower())] == []
    assert [host for host in refused if not hosts.refusal(host.strip("[]").lower())] == []


@pytest.mark.parametrize(
    ("setting", "host", "address", "expected"),
    [
        ("", "example.org", "8.8.8.8", True),
        ("", "example.org", "10.0.0.1", False),
        ("", "example.org", "::ffff:10.0.0.1", False),
        ("example.org", "example.org", "10.0.0.1", True),
        ("*.example.org", "a.example.org", "169.254.169.254", True),
        ("*.example.org", "example.com", "8.8.8.8", False),
        ("10.0.0.0/8", "example.com", "10.0.0.1", True),
        ("10.0.0.0/8", "example.com", "::ffff:10.0.0.1", True),
        ("10.0.0.0/8", "example.com", "8.8.8.8", False),
        ("10.0.0.0/8,public", "example.com", "8.8.8.8", True),
        ("fd00::/8", "example.com", "fd00::1", True),
    ],
)
def test_what_a_name_resolves_to_decides(setting, host, address, expected):
    assert parse_webhook_hosts(setting).is_allowed(host, ip_address(address)) == expected


def test_only_hosts_that_are_named_themselves_are_named():
    hosts = parse_webhook_hosts("example.org, *.example.com, 10.0.0.1, 10.1.0.0/16, public")
    named = [host for host in ("example.org", "a.example.com", "10.0.0.1", "10.1.0.1", "8.8.8.8", "localhost") if hosts.is_named(host)]  # fmt: skip
    assert named == ["example.org", "a.example.com", "10.0.0.1"]
    assert parse_webhook_hosts(" , ") == WebhookHosts()


@pytest.mark.parametrize(
    "setting", ["http://example.org", "example.org:80", "10.0.0.1/8", "10.0.0.0/99", "*", "a b", "2130706433", "*.1.1"]
)  # fmt: skip
def test_entries_that_are_none_are_refused(setting):
    with pytest.raises(ValueError, match="expected webhook_hosts to be host names"):
        parse_webhook_hosts(setting)
