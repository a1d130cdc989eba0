"""Connections of gRPC that ask nothing."""

import asyncio
import contextlib
import time

import pytest

from quadriga.proto.grpc_server import GrpcServer
from quadriga.proto.intake import Intake
from tests.grpc_client import Client

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


class ReadyGrpc:
    """A server without models, which is ready."""

    def unready_reason(self):
        return None


@contextlib.asynccontextmanager
async def serving(**limits):
    server = GrpcServer(
        ReadyGrpc(),
        server_version="0",
        max_message_bytes=1000,
        max_connections=10,
        intake=Intake(),
        **limits,
    )
    await server.start("127.0.0.1:0")
    try:
        yield server._port
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    ("spoken", "limits"),
    [
        (b"", {"handshake_timeout_s": 0.5}),
        (PREFACE[:10], {"handshake_timeout_s": 0.5}),
        (PREFACE, {"handshake_timeout_s": 0.5}),
        (PREFACE + SETTINGS, {"idle_timeout_s": 0.5}),
    ],
    ids=["silence", "half a preface", "no settings", "no call"],
)
def test_a_connection_without_a_call_is_closed(spoken, limits):
    async def wait_for_the_end():
        async with serving(**limits) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(spoken)
            began_s = time.monotonic()
            with contextlib.suppress(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 15)
            writer.close()
            return time.monotonic() - began_s

    assert 0.3 < asyncio.run(wait_for_the_end()) < 10


def test_a_client_whose_connection_was_closed_opens_another():
    async def ask_twice():
        async with serving(idle_timeout_s=0.3) as port:
            with Client(f"127.0.0.1:{port}") as client:
                first = await asyncio.to_thread(client.call, "ServerLive")
                await asyncio.sleep(1)
                return first.live, (await asyncio.to_thread(client.call, "ServerLive")).live

    assert asyncio.run(ask_twice()) == (True, True)
