"""V2 over gRPC on a server that stops, restarts, is full, or whose worker dies."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quadriga.proto.grpc.messages import SERVICE
from tests.grpc_client import Client, image_request, rows_request
from tests.onnx_models import doubling
from tests.server_process import SAMPLE_MODELS, ServerProcess, free_port

ROW = np.array([[1, 2, 3]], np.float32)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_requests_beyond_the_queue_are_refused(tmp_path, photo):
    flags = ("--grpc-port", "0", "--max-queue", "2", "--threads", "1")
    with (
        ServerProcess(tmp_path / "data", SAMPLE_MODELS, *flags) as server,
        Client(server.grpc) as client,
        ThreadPoolExecutor(16) as pool,
    ):

        def code(_):
            try:
                client.call("ModelInfer", image_request(photo))
            except grpc.RpcError as error:
                return error.code().name, "waiting requests" in error.details()
            return "OK", False

        assert set(pool.map(code, range(64))) == {("OK", False), ("UNAVAILABLE", True)}


def test_stopping_under_load_loses_nothing(tmp_path, shape):
    flags = ("--grpc-port", "0", "--workers", "2")
    server = ServerProcess(tmp_path / "data", SAMPLE_MODELS, *flags).start()
    acknowledged: list[str] = []
    failed: list[grpc.RpcError] = []

    def send() -> None:
        with Client(server.grpc) as client:
            while True:
                try:
                    answer = client.call("ModelInfer", image_request(shape[0], "shapes-classifier"))
                except grpc.RpcError as error:
                    failed.append(error)
                    return
                acknowledged.append(answer.outputs[0].parameters["inference_id"].string_param)

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    server.wait_until(lambda: len(acknowledged) > 100)
    assert server.stop() == 0
    for thread in threads:
        thread.join()
    assert {error.code().name for error in failed} == {"UNAVAILABLE"}  # there is no other server
    with ServerProcess(tmp_path / "data", SAMPLE_MODELS) as again:
        stored = [record["id"] for record in again.query({})]
    assert sorted(stored) == sorted(acknowledged)


def test_a_rolling_restart_fails_no_call(tmp_path):
    """Clients without a retry policy know two servers; each of these ends and is started again.

    A server listens before its models are loaded, so a balancer asks whether it is ready before it
    sends there. These clients do not ask, and what a server refused while it loaded is not counted.
    """
    doubling(tmp_path / "models" / "doubling" / "model.onnx")
    ports = [free_port(), free_port()]
    flags = ("--no-store", "--grpc-connection-age-s", "1", "--drain-s", "3", "--grpc-port")
    servers = [
        ServerProcess(tmp_path / f"data-{port}", tmp_path / "models", *flags, str(port))
        for port in ports
    ]
    answered, failed, stop = [0] * 4, [], threading.Event()
    body = rows_request(ROW).SerializeToString()

    def send(number: int) -> None:
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"ipv4:{addresses}", options) as channel:
            infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            while not stop.is_set():
                try:
                    infer(body, timeout=30)
                except grpc.RpcError as error:
                    if "still loading" not in str(error.details()):
                        failed.append(f"{error.code()}: {error.details()}")
                else:
                    answered[number] += 1

    with ExitStack() as stack:
        for server in servers:
            server.start()
            stack.callback(server.stop)
        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for server in servers:
                before = list(answered)
                server.wait_until(
                    lambda before=before: all(
                        now > count + 10 for now, count in zip(answered, before, strict=True)
                    )
                )
                assert server.stop() == 0
                server.start()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert failed == []
    assert min(answered) > 20


def test_open_streams_do_not_hold_up_the_end(tmp_path):
    doubling(tmp_path / "models" / "doubling" / "model.onnx")
    server = ServerProcess(tmp_path / "data", tmp_path / "models", "--grpc-port", "0").start()
    sent = threading.Event()

    def requests():
        yield rows_request(ROW)
        sent.wait(60)

    with Client(server.grpc) as client:
        watch = health_pb2_grpc.HealthStub(client.channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=60
        )
        assert next(watch).status == SERVING
        stream = client.stream(requests())
        assert not next(stream).error_message
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert [response.status for response in watch] == [NOT_SERVING]
        with pytest.raises(grpc.RpcError, match="shutting down"):
            next(stream)
        sent.set()
        assert server.stop() == 0
    assert time.monotonic() - begun < 20  # requests that do not end by themselves have 24 s


def test_a_worker_that_dies_answers_again(tmp_path):
    doubling(tmp_path / "models" / "doubling" / "model.onnx")
    flags = ("--grpc-port", "0", "--no-store")
    with (
        ServerProcess(tmp_path / "data", tmp_path / "models", *flags) as server,
        Client(server.grpc) as client,
    ):
        assert client.call("ModelInfer", rows_request(ROW)).outputs
        (worker,) = server.child_pids()[1:]
        os.kill(worker, signal.SIGKILL)

        def answers() -> bool:
            try:
                return bool(client.call("ModelInfer", rows_request(ROW)).outputs)
            except grpc.RpcError as error:
                return error.code() != grpc.StatusCode.UNAVAILABLE

        server.wait_until(answers)


def test_connections_and_calls_have_a_number(tmp_path):
    flags = ("--grpc-port", "0", "--max-connections", "3", "--no-store")
    with ServerProcess(tmp_path / "data", SAMPLE_MODELS, *flags) as server, ExitStack() as stack:
        clients = [stack.enter_context(Client(server.grpc)) for _ in range(3)]
        watches = [
            health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest())
            for client in clients
        ]
        assert [next(watch).status for watch in watches] == [SERVING] * 3
        with pytest.raises(grpc.RpcError) as refused:
            clients[0].call("ServerLive", timeout=20)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for watch in watches:
            watch.cancel()
        with Client(server.grpc) as late, pytest.raises(grpc.RpcError) as refused:
            late.call("ServerLive", timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert is_live_soon(clients[0])


def is_live_soon(client):
    """Ask until the server has seen that calls were cancelled."""
    for _ in range(100):
        try:
            return client.call("ServerLive", timeout=20).live
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        time.sleep(0.1)
    return False
