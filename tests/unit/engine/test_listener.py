"""The port of gRPC: of this server alone, and of all of its workers."""

import socket
import threading

import pytest

from quadriga.engine.config.settings import SettingsError, load, parse_proxies
from quadriga.engine.http import listener
from quadriga.engine.http.listener import format_address, listen, reserve


@pytest.fixture(autouse=True)
def short_wait(monkeypatch):
    monkeypatch.setattr(listener, "_WAIT_S", 0.3)


def shared(host: str, port: int) -> socket.socket:
    """Listen as a worker does."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        listener.setsockopt(socket.SOL_SOCKET, option, 1)
    listener.bind((host, port))
    listener.listen()
    return listener


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_workers_share_a_reserved_port_and_others_do_not(host):
    with reserve(host, 0) as taken:
        port = taken.getsockname()[1]
        with shared(host, port), shared(host, port):
            for take in (reserve, listen):
                with pytest.raises(OSError, match="in use"):
                    take(host, port)
        with pytest.raises(OSError, match="in use"):
            reserve(host, port)
    with reserve(host, port):
        pass


def test_a_port_that_another_would_share_is_in_use():
    with shared("127.0.0.1", 0) as second, pytest.raises(OSError, match="in use"):
        reserve("127.0.0.1", second.getsockname()[1])


def test_addresses_of_both_families():
    with reserve("127.0.0.1", 0) as four, reserve("::1", 0) as six:
        assert format_address(four) == f"127.0.0.1:{four.getsockname()[1]}"
        assert format_address(six) == f"[::1]:{six.getsockname()[1]}"


@pytest.mark.parametrize("take", [listen, reserve])
def test_an_address_is_waited_for_until_a_killed_server_has_let_it_go(take, monkeypatch):
    monkeypatch.setattr(listener, "_WAIT_S", 20.0)
    with shared("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        threading.Timer(0.5, held.close).start()
        with take("127.0.0.1", port) as taken:
            assert taken.getsockname()[1] == port


@pytest.mark.parametrize(
    ("text", "networks"),
    [
        ("", []),
        ("127.0.0.1", ["127.0.0.1/32", "::ffff:127.0.0.1/128"]),
        (" 10.0.0.0/8 ,::1,", ["10.0.0.0/8", "::ffff:10.0.0.0/104", "::1/128"]),
        ("fd00::/8", ["fd00::/8"]),
    ],
)
def test_proxies_are_networks_in_each_form_of_their_addresses(text, networks):
    assert parse_proxies(text) == networks


@pytest.mark.parametrize(
    "text",
    ["*", "127.0.0.1/8", "10.0.0.0/33", "localhost", "proxy.example.org", "0.0.0.0/0", "::/0", "::ffff:0:0/96", "::ffff:10.0.0.1", "1.2.3",
     "010.0.0.1", "10.0.0.1 10.0.0.2", "10.0.0.1,*", "10.0.0.1:80", "/run/proxy.sock"],
)  # fmt: skip
def test_what_is_no_network_of_proxies_is_refused_at_the_start(text):
    with pytest.raises(
        SettingsError, match=r"flag --trusted-proxies: expected .*networks of proxies"
    ):
        load({"trusted_proxies": text}, {})
