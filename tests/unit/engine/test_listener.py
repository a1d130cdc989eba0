"""The port of gRPC: of this server alone, and of all of its workers."""

import socket

import pytest

from quadriga.engine.processes.listener import format_address, listen, reserve


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
