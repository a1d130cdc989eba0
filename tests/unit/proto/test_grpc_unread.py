"""Answers over gRPC that a client does not read, or reads in its own time."""

import asyncio
import contextlib
import socket
import struct
import time

import grpc
import numpy as np
import pytest

from quadriga.engine.access.quotas import KeyQuota, RefusalLog
from quadriga.engine.measures.shared_counts import SharedCounts
from quadriga.proto.access import ROLES, Caller, OpenGate
from quadriga.proto.grpc.http2 import UNASKED_BYTES
from quadriga.proto.grpc.messages import SERVICE
from quadriga.proto.grpc.server import GrpcServer
from quadriga.proto.grpc.service import PLACE_AFTER_S
from quadriga.proto.http.intake import Intake
from quadriga.proto.messages import InferResponse, Tensor
from quadriga.store.keys.key_limits import parse_limits
from tests.unit.proto.test_grpc_server import ACKNOWLEDGED, PREFACE, SETTINGS, header_block
from tests.unit.proto.test_v2_grpc import EchoGrpc, asked

LARGE, SMALL = 3_000_000, 1000
DATA, WINDOW_UPDATE = 0, 8


class Giving(EchoGrpc):
    """Answers each request with as many bytes as its input says."""

    async def run(self, task, **_):
        return await asyncio.to_thread(task)

    def infer(self, request):
        (count,) = request.inputs[0].data
        output = Tensor("y", "UINT8", (int(count),), np.zeros(count, np.uint8))
        return InferResponse("m", "1", request.id, [output])


def request_for(count):
    return asked("INT64", [1], raw=np.array([count]).tobytes()).SerializeToString()


@contextlib.asynccontextmanager
async def serving(intake, gate=None, grace_s=0):
    server = GrpcServer(
        Giving(),
        server_version="0",
        max_message_bytes=1000,
        max_connections=10,
        intake=intake,
        gate=gate or OpenGate(),
    )
    port = await server.start("127.0.0.1:0")
    try:
        yield port
    finally:
        await server.stop(grace_s)


class RawCall:
    """A call of HTTP/2 whose answer is read in the steps that the client grants."""

    def __init__(self, port, method, message):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.answered_bytes = 0
        self.is_closed = False
        self._read = self.socket.makefile("rb")
        self.socket.sendall(PREFACE + SETTINGS + ACKNOWLEDGED)
        self.ask(1, method, message)

    def ask(self, stream, method, message):
        """Begin a call, on a stream of its own."""
        block = header_block(f"/{SERVICE}/{method}", {})
        payload = b"\0" + struct.pack(">I", len(message)) + message
        self.socket.sendall(self._head(len(block), 1, 4, stream) + block)
        end = method == "ModelInfer"  # a stream stays open
        self.socket.sendall(self._head(len(payload), DATA, int(end), stream) + payload)

    def _head(self, size, kind, flags, stream):
        return size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")

    def close(self):
        self._read.close()
        self.socket.close()

    def grant(self, size, stream=1):
        """Let the server send so many bytes more, of one call."""
        for target in (0, stream):  # the connection, and the call
            self.socket.sendall(self._head(4, WINDOW_UPDATE, 0, target) + size.to_bytes(4, "big"))

    def receive(self, until_bytes):
        """Read frames until so many bytes of the answer have come, or the connection is closed."""
        while self.answered_bytes < until_bytes:
            try:
                head = self._read.read(9)
                body = self._read.read(int.from_bytes(head[:3], "big"))
            except ConnectionError:
                head = b""
            if len(head) < 9:
                self.is_closed = True
                self.close()
                return
            if head[3] == DATA:
                self.answered_bytes += len(body)


async def until(is_so):
    for _ in range(200):
        if is_so():
            return True
        await asyncio.sleep(0.05)
    return False


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_an_answer_that_is_not_read_counts_until_its_connection_is_closed(method, caplog):
    async def leave_unread():
        intake = Intake(body_timeout_s=0.8)
        async with serving(intake) as port:
            call = await asyncio.to_thread(RawCall, port, method, request_for(LARGE))
            began_s = time.monotonic()
            assert await until(lambda: LARGE <= intake.held_bytes < LARGE + 1000)
            await asyncio.to_thread(call.receive, LARGE)
            assert (call.is_closed, call.answered_bytes) == (True, UNASKED_BYTES)
            assert time.monotonic() - began_s > 0.7
            assert await until(lambda: intake.held_bytes == 0)
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:  # others go on
                rpc = channel.unary_unary(f"/{SERVICE}/ModelInfer")
                assert len(await asyncio.to_thread(rpc, request_for(LARGE))) > LARGE
            assert await until(lambda: intake.held_bytes == 0)

    asyncio.run(leave_unread())
    assert "closed 1 connections of gRPC whose clients did not read an answer" in caplog.text


def test_a_client_that_reads_slowly_gets_its_answer():
    step = 60_000

    def read_slowly(port):
        call = RawCall(port, "ModelInfer", request_for(LARGE))
        began_s = time.monotonic()
        while call.answered_bytes < LARGE and not call.is_closed:
            call.receive(min(call.answered_bytes + step, LARGE))
            time.sleep(0.05)
            call.grant(step)
        call.close()
        return call.answered_bytes >= LARGE, time.monotonic() - began_s

    async def serve():
        intake = Intake(body_timeout_s=0.4, bytes_per_s=100_000)
        async with serving(intake) as port:
            result = await asyncio.to_thread(read_slowly, port)
            assert await until(lambda: intake.held_bytes == 0)
            return result

    is_whole, took_s = asyncio.run(serve())
    assert is_whole
    assert took_s > 2


def test_an_answer_that_is_not_read_has_no_time_by_others_of_its_connection():
    step = 100_000

    def read_another(port):
        call = RawCall(port, "ModelInfer", request_for(2 * UNASKED_BYTES))
        began_s = time.monotonic()
        call.receive(UNASKED_BYTES)
        call.ask(3, "ModelInfer", request_for(10 * LARGE))
        while not call.is_closed and time.monotonic() < began_s + 60:
            try:
                call.grant(step, stream=3)
            except OSError:
                break
            call.receive(call.answered_bytes + step // 2)
            time.sleep(0.02)
        call.close()
        return time.monotonic() < began_s + 60, step < call.answered_bytes < 10 * LARGE

    async def serve():
        intake = Intake(body_timeout_s=2.0, bytes_per_s=500_000)
        async with serving(intake) as port:
            return await asyncio.to_thread(read_another, port)

    assert asyncio.run(serve()) == (True, True)


class OneQuota:
    """A gate at which everybody has the same key, for one call at a time."""

    def __init__(self):
        limits = parse_limits(["concurrency=1"])
        quota = KeyQuota(SharedCounts(), RefusalLog(), key_id="a", name="a", limits=limits)
        self._caller = Caller(name="a", rights=frozenset(ROLES["infer"]), quota=quota)

    def identify(self, read_header):
        return self._caller


def test_an_answer_that_is_not_read_takes_its_place_of_the_key():
    def outcome(rpc):
        try:
            return len(rpc(request_for(SMALL), timeout=20)) > SMALL
        except grpc.RpcError as refusal:
            return refusal.code().name

    async def ask_beside():
        intake = Intake(body_timeout_s=2.0)
        async with serving(intake, OneQuota()) as port:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                rpc = channel.unary_unary(f"/{SERVICE}/ModelInfer")
                assert [await asyncio.to_thread(outcome, rpc) for _ in range(50)] == [True] * 50
                call = await asyncio.to_thread(RawCall, port, "ModelInfer", request_for(LARGE))
                assert await until(lambda: intake.held_bytes >= LARGE)
                assert await asyncio.to_thread(outcome, rpc)  # it might be about to be read
                await asyncio.sleep(2 * PLACE_AFTER_S)
                beside = await asyncio.to_thread(outcome, rpc)
                await asyncio.to_thread(call.receive, LARGE)
                assert await until(lambda: intake.held_bytes == 0)
                return beside, await asyncio.to_thread(outcome, rpc)

    assert asyncio.run(ask_beside()) == ("RESOURCE_EXHAUSTED", True)


def test_the_end_of_a_server_leaves_a_slow_client_its_answer():
    step = 60_000

    def read_slowly(call):
        while call.answered_bytes < LARGE and not call.is_closed:
            call.receive(min(call.answered_bytes + step, LARGE))
            time.sleep(0.02)
            with contextlib.suppress(OSError):
                call.grant(step)
        call.close()
        return call.answered_bytes

    async def serve():
        intake = Intake(body_timeout_s=20)
        async with serving(intake, grace_s=20) as port:
            call = await asyncio.to_thread(RawCall, port, "ModelInfer", request_for(LARGE))
            assert await until(lambda: intake.held_bytes >= LARGE)
            reading = asyncio.create_task(asyncio.to_thread(read_slowly, call))
            await asyncio.sleep(0.1)
        return await reading

    assert asyncio.run(serve()) > LARGE
