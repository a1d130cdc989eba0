"""Clients of gRPC that open calls and connections, and send nothing: each has its time, and takes no place of others."""

import re
import socket
import struct
import threading
import time
from contextlib import ExitStack

import grpc
import pytest

from quadriga.proto.grpc.messages import SERVICE
from quadriga.proto.grpc.service import MAX_STRANGERS
from tests.grpc_client import Client
from tests.server_process import SAMPLE_MODELS, ServerProcess, quadriga

REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
HEALTH = "/grpc.health.v1.Health"
KEY = "quadriga-tests." + "a" * 43
AS_ADMIN = (("authorization", f"Bearer {KEY}"),)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("arrival") / "data"
    flags = ("--grpc-port", "0", "--body-timeout-s", "1.5", "--max-connections", "200")
    server = ServerProcess(data, SAMPLE_MODELS, *flags, "--no-model-control")
    server.environment["QUADRIGA_ADMIN_KEY"] = KEY
    with server:
        yield server
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "never retrieved" not in log


@pytest.fixture
def silent():
    """Yield messages of a call that never come, until the test is over."""
    over = threading.Event()
    yield lambda: iter(over.wait, True)
    over.set()


def metric(server, name):
    text = server.request("GET", "/metrics", headers={"X-API-Key": KEY})[2].decode()
    return float(re.search(rf"^quadriga_{name} (\S+)$", text, re.MULTILINE)[1])


def open_silently(client, method, messages, key=AS_ADMIN):
    """Begin a call, and send no message."""
    return client.channel.stream_stream(method)(messages(), timeout=60, metadata=key)


def outcome(call):
    """Wait for the end of a call; gives its code and details."""
    with pytest.raises(grpc.RpcError) as refusal:
        next(call)
    return refusal.value.code().name, refusal.value.details()


@pytest.mark.parametrize(
    ("method", "key"),
    [
        (f"/{SERVICE}/ServerLive", ()),
        (f"{HEALTH}/Check", ()),
        (f"{HEALTH}/Watch", ()),
        (f"{HEALTH}/List", AS_ADMIN),
        (REFLECTION, AS_ADMIN),
        (f"/{SERVICE}/ServerMetadata", AS_ADMIN),
        (f"/{SERVICE}/ModelInfer", AS_ADMIN),
        (f"/{SERVICE}/RepositoryModelLoad", AS_ADMIN),
    ],
)
def test_a_message_has_a_time_to_arrive(server, silent, method, key):
    late = metric(server, "bodies_late_total")
    with Client(server.grpc) as client:
        began_s = time.monotonic()
        code, details = outcome(open_silently(client, method, silent, key))
        assert (code, time.monotonic() - began_s > 1.4) == ("DEADLINE_EXCEEDED", True)
        assert "a whole message within 1.5 s" in details
    assert metric(server, "bodies_late_total") == late + 1


def test_a_message_that_never_ends_has_the_same_time(server):
    late = metric(server, "bodies_late_total")
    host, port = server.grpc.split(":")
    fields = {
        ":method": "POST", ":scheme": "http", ":path": f"/{SERVICE}/ModelInfer",
        ":authority": "localhost", "te": "trailers", "content-type": "application/grpc", **dict(AS_ADMIN),
    }  # fmt: skip
    block = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    announced = b"\0" + struct.pack(">I", 1000) + b"a" * 10
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4) + frame(1, block, flags=4)
        )
        connection.sendall(frame(0, announced))
        server.wait_until(lambda: metric(server, "bodies_late_total") == late + 1)


def frame(kind, payload=b"", *, flags=0):
    """Make a frame of HTTP/2: of the stream 1, unless it is of settings."""
    stream = 0 if kind == 4 else 1
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload  # fmt: skip


def test_a_call_without_its_message_says_so(server):
    with Client(server.grpc) as client:
        call = client.channel.stream_stream(f"/{SERVICE}/ServerLive")(iter([]), timeout=60)
        assert outcome(call) == ("INVALID_ARGUMENT", "expected a message, got the end of the call")


def test_silent_strangers_take_places_of_each_other_alone(server, silent):
    displaced = metric(server, "connections_displaced_total")
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server.grpc)) for _ in range(8)]
        calls = [
            open_silently(clients[number % 8], f"/{SERVICE}/ServerLive", silent, ())
            for number in range(2 * MAX_STRANGERS)
        ]
        assert clients[0].call("ServerLive").live
        outcomes = [outcome(call)[0] for call in calls]
    assert outcomes.count("UNAVAILABLE") >= MAX_STRANGERS
    assert set(outcomes) <= {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
    assert metric(server, "connections_displaced_total") >= displaced + MAX_STRANGERS


def test_silent_streams_keep_their_places_until_others_need_them(server, silent):
    stream = f"/{SERVICE}/ModelStreamInfer"
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server.grpc)) for _ in range(4)]
        calls = [open_silently(clients[number % 4], stream, silent) for number in range(150)]
        time.sleep(2.5)  # more than the time of a message
        assert not any(call.done() for call in calls)
        for number in range(10):
            rpc = clients[number % 4].channel.unary_unary(f"/{SERVICE}/ServerMetadata")
            assert rpc(b"", timeout=60, metadata=AS_ADMIN)
        server.wait_until(lambda: sum(call.done() for call in calls) == 1, timeout_s=10)
        codes = {call.code().name for call in calls if call.done()}
        assert codes == {"UNAVAILABLE"}
        for call in calls:
            call.cancel()


@pytest.mark.parametrize("method", [f"/{SERVICE}/ModelInfer", REFLECTION])
def test_a_call_counts_for_its_key_before_its_message(server, silent, method):
    created = quadriga(
        "keys", "create", "--name", "narrow", "--role", "infer", "--limit", "concurrency=1",
        "--data", server.data,
    )  # fmt: skip
    key = (("x-api-key", created.stdout.split()[0]),)
    with Client(server.grpc) as client:
        ask = client.channel.unary_unary(f"/{SERVICE}/ServerMetadata")

        def code():
            try:
                ask(b"", timeout=60, metadata=key)
            except grpc.RpcError as error:
                return error.code().name
            return "OK"

        server.wait_until(lambda: code() == "OK")
        time.sleep(0.3)  # the end of a call counts a moment after its answer
        call = open_silently(client, method, silent, key)
        codes = []
        while not call.done():
            codes.append(code())
        assert "RESOURCE_EXHAUSTED" in codes
        assert outcome(call)[0] == "DEADLINE_EXCEEDED"
        server.wait_until(lambda: code() == "OK")
