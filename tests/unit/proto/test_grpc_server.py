"""Connections and calls of gRPC that ask nothing, ask too much, or read no answer."""

import asyncio
import contextlib
import socket
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from quadriga.proto.access import ROLES, STRANGER, Caller
from quadriga.proto.grpc.messages import SERVICE
from quadriga.proto.grpc.server import GrpcServer
from quadriga.proto.grpc.service import MAX_PROBE_BYTES
from quadriga.proto.http.intake import Intake
from tests.grpc_client import Client

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
ACKNOWLEDGED = b"\0\0\0\4\1\0\0\0\0"


class ReadyGrpc:
    """A server without models, which is ready."""

    def unready_reason(self):
        return None


@contextlib.asynccontextmanager
async def serving(**limits):
    server = GrpcServer(
        ReadyGrpc(),
        server_version="0",
        intake=Intake(),
        **{"max_message_bytes": 1000, "max_connections": 10} | limits,
    )
    port = await server.start("127.0.0.1:0")
    try:
        yield port
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


def test_compressed_messages_are_read():
    request = health_pb2.HealthCheckRequest(service="of nobody " * 40)

    def ask(port):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            with pytest.raises(grpc.RpcError) as refusal:
                check(request, timeout=10, compression=grpc.Compression.Gzip)
            return refusal.value.code().name

    async def ask_server():
        async with serving() as port:
            return await asyncio.to_thread(ask, port)

    assert asyncio.run(ask_server()) == "NOT_FOUND"


@pytest.mark.parametrize(
    ("characters", "code"), [(400, "NOT_FOUND"), (MAX_PROBE_BYTES, "RESOURCE_EXHAUSTED")]
)
def test_a_long_name_is_no_model_and_no_long_work(characters, code):
    request = health_pb2.HealthCheckRequest(service="\x01" * characters)

    def ask(port):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            with pytest.raises(grpc.RpcError) as refusal:
                stub.Check(request, timeout=20)
            assert refusal.value.code().name == code
            assert len(refusal.value.details()) < 300
            if code == "NOT_FOUND":
                watch = stub.Watch(request, timeout=20)
                assert next(watch).status == HealthCheckResponse.SERVICE_UNKNOWN

    async def ask_server():
        async with serving(max_message_bytes=1 << 20) as port:
            await asyncio.to_thread(ask, port)

    asyncio.run(ask_server())


@pytest.mark.parametrize("field", ["file_containing_symbol", "host"])
def test_reflection_repeats_no_long_message(field):
    def ask(port):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
            requests = [
                reflection_pb2.ServerReflectionRequest(**{field: "x" * characters})
                for characters in (MAX_PROBE_BYTES // 2, MAX_PROBE_BYTES)
            ]
            answers = reflect(iter(requests), timeout=20)
            assert next(answers).original_request == requests[0]
            with pytest.raises(grpc.RpcError, match="expected a message of at most") as refusal:
                next(answers)
            return refusal.value.code().name

    async def ask_server():
        async with serving(max_message_bytes=1 << 20) as port:
            return await asyncio.to_thread(ask, port)

    assert asyncio.run(ask_server()) == "RESOURCE_EXHAUSTED"


class OneKey:
    """A gate that knows one key."""

    def identify(self, read_header):
        known = read_header(b"x-api-key") == b"key"
        return Caller(name="known", rights=frozenset(ROLES["infer"])) if known else STRANGER


def header_block(method, metadata):
    """Return the headers of a call as HTTP/2 has them without any table."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": method, ":authority": "localhost",
        "content-type": "application/grpc", "te": "trailers", **metadata,
    }  # fmt: skip
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


def unread_calls(port, number):
    """Open a connection, and call an RPC that needs a key without one so often, without reading a refusal."""
    connection = socket.socket()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(2)
    connection.connect(("127.0.0.1", port))
    block = header_block(f"/{SERVICE}/ServerMetadata", {"x-request-id": "r" * 100})
    head = len(block).to_bytes(3, "big") + b"\1\5"  # the headers, and the end of the call
    connection.sendall(PREFACE + SETTINGS + ACKNOWLEDGED)
    with contextlib.suppress(OSError):
        for call in range(number):
            connection.sendall(head + (2 * call + 1).to_bytes(4, "big") + block)
    return connection


def test_refusals_that_are_not_read_take_no_place_of_a_key():
    calls, connections = 990, 6

    def ask(port):
        pinned = [unread_calls(port, calls) for _ in range(connections)]
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                rpc = channel.unary_unary(f"/{SERVICE}/ServerMetadata")
                until_s = time.monotonic() + 8  # unread, they would stay for 13 s
                while True:
                    with contextlib.suppress(grpc.RpcError):  # more than the kernel passes on
                        return rpc(b"", timeout=5, metadata=(("x-api-key", "key"),))
                    assert time.monotonic() < until_s
                    time.sleep(0.1)
        finally:
            for connection in pinned:
                connection.close()

    async def ask_server():
        async with serving(max_connections=1000, gate=OneKey()) as port:
            return await asyncio.to_thread(ask, port)

    assert asyncio.run(ask_server())


def test_a_key_has_so_many_calls_at_a_time():
    async def count():
        async with serving(max_connections=3, gate=OneKey()) as port:
            return await asyncio.to_thread(codes, port)

    def codes(port):
        key = (("x-api-key", "key"),)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, grpc.insecure_channel(
            f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]
        ) as other:  # fmt: skip
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
            watches = []
            for _ in range(3):
                watches.append(watch(b"", timeout=60, metadata=key))
                assert next(watches[-1])
            rpc = other.unary_unary(f"/{SERVICE}/ServerMetadata")
            with pytest.raises(grpc.RpcError) as refusal:
                rpc(b"", timeout=20, metadata=key)
            assert other.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20)
            watches[0].cancel()
            until_s = time.monotonic() + 20
            while time.monotonic() < until_s:
                with contextlib.suppress(grpc.RpcError):
                    return refusal.value.code().name, bool(rpc(b"", timeout=20, metadata=key))
            return refusal.value.code().name, False

    assert asyncio.run(count()) == ("RESOURCE_EXHAUSTED", True)


def test_pings_every_five_seconds_end_no_connection():
    async def ping(pings):
        async with serving() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(PREFACE + SETTINGS)
            for number in range(pings):
                data = number.to_bytes(8, "big")
                writer.write(b"\0\0\x08\6\0\0\0\0\0" + data)
                await asyncio.wait_for(reader.readuntil(b"\0\0\x08\6\1\0\0\0\0" + data), 20)
                await asyncio.sleep(5)
            writer.close()

    asyncio.run(ping(6))  # the limit of grpc itself ends it before the fifth
