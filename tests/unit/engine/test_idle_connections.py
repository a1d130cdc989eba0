"""Which connection gives its place to a new one."""

from typing import Any

import pytest

from quadriga.engine.http.http_protocol import IdleConnections
from quadriga.proto.http.intake import Intake


class FakeTransport:
    """A transport that notes how it ends."""

    def __init__(self, unread_bytes: int) -> None:
        self.unread_bytes = unread_bytes
        self.end = ""

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "aborted"


class FakeConnection:
    """A connection with or without bytes that its client has yet to read."""

    def __init__(self, connections: set[Any], unread_bytes: int = 0) -> None:
        self.transport: Any = FakeTransport(unread_bytes)
        self.connections = connections
        connections.add(self)

    def close(self) -> None:
        self.transport.close()


@pytest.mark.parametrize(
    ("added", "of_strangers", "ends"),
    [
        ([], False, []),
        (["stranger", "stranger"], False, ["aborted", ""]),
        (["caller", "stranger", "stranger"], False, ["", "aborted", ""]),
        (["caller", "caller"], False, ["aborted", ""]),
        (["caller", "caller"], True, ["", ""]),
        (["caller", "stranger"], True, ["", "aborted"]),
        (["reader", "stranger", "stranger"], False, ["closed", "aborted", ""]),
        (["reader", "caller"], False, ["closed", "aborted"]),
        (["reader"], False, ["closed"]),
    ],
)
def test_the_one_that_has_waited_longest_goes(added, of_strangers, ends):
    intake, connections = Intake(), set()
    idle = IdleConnections(intake)
    members = [FakeConnection(connections, kind == "reader") for kind in added]
    for kind, member in zip(added, members, strict=True):
        idle.add(member, has_key=kind == "caller")
    is_closed = idle.close_one(of_strangers=of_strangers)
    assert [member.transport.end for member in members] == ends
    assert is_closed == ("aborted" in ends) == bool(intake.displaced)
    assert {member for member in members if member.transport.end != "aborted"} == connections


def test_a_connection_with_a_request_keeps_its_place():
    idle, connections = IdleConnections(Intake()), set()
    first, second = FakeConnection(connections), FakeConnection(connections)
    for has_key in (False, True):
        for member in (first, second):
            idle.add(member, has_key=has_key)
        idle.discard(first)
        idle.discard(first)  # the end of a connection says so again
        idle.add(first, has_key=has_key)
        assert idle.close_one()
        assert (first.transport.end, second.transport.end) == ("", "aborted")
        second.transport.end = ""
        idle.discard(first)
    assert not idle.close_one()
