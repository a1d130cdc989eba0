"""Streams of requests: their answers beside Triton's, side by side within a bound, in order."""

import asyncio
import contextlib
import threading
import time

import grpc
import pytest

from quadriga.proto.access import ROLES, Caller
from quadriga.proto.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    WaitTooLong,
)
from quadriga.proto.grpc import service as grpc_service
from quadriga.proto.grpc.messages import read_names
from quadriga.proto.grpc.server import GrpcServer
from quadriga.proto.http.intake import Intake
from quadriga.proto.messages import InferResponse
from tests.grpc_client import Client
from tests.unit.proto.test_v2_grpc import EchoGrpc, asked

ERROR_CODES = {
    "NOT_FOUND": NotFound("no such model"),
    "INVALID_ARGUMENT": InvalidRequest("bad shape"),
    "UNAVAILABLE": WaitTooLong("the queue is full", 1),
    "DEADLINE_EXCEEDED": DeadlineExceeded("too late"),
    "INTERNAL": ValueError("a fault"),
}


class ThreadedGrpc(EchoGrpc):
    """Answers in threads; may meet others there, be slow, be full, or fail."""

    def __init__(self, together=1, full_at=None):
        self.barrier = threading.Barrier(together)
        self.full_at = full_at
        self.running = self.most = 0

    def unready_reason(self):
        return None

    async def run(self, task, **_):
        if self.running == self.full_at:
            raise WaitTooLong("the queue is full", 1)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await asyncio.to_thread(task)
        finally:
            self.running -= 1

    def infer(self, request):
        if error := ERROR_CODES.get(request.id):
            raise error
        self.barrier.wait(20)
        time.sleep(float(request.parameters.get("sleep_s", 0)))
        return InferResponse("m", "1", request.id, request.inputs)


class Key:
    """A gate that knows one key, with or without limits."""

    def __init__(self, quota=None):
        self.caller = Caller(name="known", rights=frozenset(ROLES["infer"]), quota=quota)

    def identify(self, _):
        return self.caller


class Unlimited:
    """A quota that counts nothing."""

    is_limited = False

    def __getattr__(self, _):
        return lambda *_: ()


class Limited(Unlimited):
    """A quota with a limit."""

    is_limited = True


@contextlib.contextmanager
def serving(handler, **options):
    """Run a server on an event loop of its own; gives a client and the server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    intake = Intake()

    async def start():
        server = GrpcServer(
            handler,
            server_version="0",
            intake=intake,
            **{"max_message_bytes": 1 << 30, "max_connections": 20} | options,
        )
        return server, await server.start("127.0.0.1:0")

    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    try:
        with Client(f"127.0.0.1:{port}") as client:
            yield client
        until_s = time.monotonic() + 20
        while intake.held_bytes and time.monotonic() < until_s:
            time.sleep(0.05)
        assert intake.held_bytes == 0
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def requests(*ids, bytes_=b"a", **parameters):
    for number, id_ in enumerate(ids):
        request = asked("BYTES", [1], bytes_contents=[bytes_])
        request.id, request.model_version = id_, "1"
        for name, values in parameters.items():
            request.parameters[name].double_param = values[number]
        yield request


def final(answer):
    return answer.infer_response.parameters["triton_final_response"].bool_param


def test_requests_are_answered_side_by_side_and_in_order():
    with serving(ThreadedGrpc(together=4)) as client:
        sent = requests("0", "1", "2", "3", sleep_s=[0.3, 0.2, 0.1, 0])
        answers = list(client.stream(sent))
    assert [answer.infer_response.id for answer in answers] == ["0", "1", "2", "3"]
    assert all(final(answer) and not answer.error_message for answer in answers)


@pytest.mark.parametrize(
    ("gate", "size", "most"),
    [
        (Key(), 1, grpc_service.MAX_AHEAD),
        (Key(Unlimited()), 1, grpc_service.MAX_AHEAD),
        (Key(Limited()), 1, 1),
        (Key(), grpc_service.MAX_AHEAD_BYTES // 2, 2),
    ],
    ids=["number", "a key without limits", "a key with limits", "bytes"],
)
def test_so_many_requests_are_read_ahead(gate, size, most):
    handler = ThreadedGrpc()
    with serving(handler, gate=gate) as client:
        ids = [str(number) for number in range(12)]
        sent = requests(*ids, bytes_=b"a" * size, sleep_s=[0.1] * len(ids))
        answers = list(client.stream(sent))
    assert [answer.infer_response.id for answer in answers] == ids
    assert handler.most == most


def test_a_request_read_ahead_waits_where_the_queue_is_full():
    handler = ThreadedGrpc(full_at=2)
    with serving(handler) as client:
        answers = list(client.stream(requests(*map(str, range(10)), sleep_s=[0.05] * 10)))
    assert [answer.error_message for answer in answers] == [""] * 10
    assert handler.most == 2


@pytest.mark.parametrize("id_", [*ERROR_CODES])
def test_each_error_names_its_request_and_is_final(id_):
    with serving(ThreadedGrpc()) as client:
        answers = list(client.stream(requests("0", id_, "2")))
    names = [(a.infer_response.id, a.infer_response.model_name) for a in answers]
    assert names == [("0", "m"), (id_, "m"), ("2", "m")]
    assert [bool(answer.error_message) for answer in answers] == [False, True, False]
    assert [answer.infer_response.model_version for answer in answers] == ["1"] * 3
    assert all(map(final, answers))


@pytest.mark.parametrize("code", [*ERROR_CODES])
def test_an_error_may_end_the_stream_with_its_code(code):
    with serving(ThreadedGrpc()) as client:
        stream = client.stream(
            requests("0", code, "2", sleep_s=[0.2, 0, 0]),
            metadata=[("triton_grpc_error", "true")],
        )
        assert next(stream)
        with pytest.raises(grpc.RpcError):
            next(stream)
        assert stream.code().name == code


@pytest.mark.parametrize("value", ["false", ""])
def test_other_metadata_end_no_stream(value):
    with serving(ThreadedGrpc()) as client:
        stream = client.stream(requests("NOT_FOUND"), metadata=[("triton_grpc_error", value)])
        assert [bool(answer.error_message) for answer in stream] == [True]
        assert stream.code() is grpc.StatusCode.OK


def test_a_client_that_leaves_ends_all_requests_under_way():
    handler = ThreadedGrpc()
    with serving(handler) as client:
        stream = client.stream(requests(*"01234", sleep_s=[0.5] * 5))
        until_s = time.monotonic() + 20
        while handler.running < 5 and time.monotonic() < until_s:
            time.sleep(0.01)
        stream.cancel()
        while handler.running and time.monotonic() < until_s:
            time.sleep(0.01)
        assert handler.running == 0


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"", {}),
        (b"\x0a\x01m\x1a\x01i", {"model_name": "m", "id": "i"}),
        (b"\x0a\x01m\x12\x011\x1a\x01i\x22", {"model_name": "m", "model_version": "1", "id": "i"}),
        (b"\x0a\x01m\x0a\x01n", {"model_name": "n"}),
        (b"\x1a\x81\x10" + b"i" * 2049, {}),
        (b"\xff\xff\xff", {}),
        (b"\x0a\x01\xff", {"model_name": "\ufffd"}),
    ],
    ids=["nothing", "whole", "cut", "twice", "long", "no message", "no text"],
)
def test_names_are_read_of_what_is_no_whole_message(body, names):
    assert read_names(body) == names
