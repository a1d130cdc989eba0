"""Graphs that never end: their time, their clients that leave, and the other models of the server."""

import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from quadriga.proto.grpc.messages import message_class
from tests.grpc_client import Client
from tests.onnx_models import counting, doubling
from tests.server_process import ServerProcess

FOR_EVER = 2**60
PATH = "/v2/models/endless/infer"
PATIENCE_S = 30.0
"""Seconds within which what takes a moment has to happen, also on a busy machine."""


def serve(folder, *flags: str) -> ServerProcess:
    """Make a server of an endless model and of a quick one, with gRPC."""
    models = folder / "models"
    counting(models / "endless" / "model.onnx")
    counting(models / "endless-too" / "model.onnx")
    doubling(models / "quick" / "model.onnx")
    return ServerProcess(folder / "data", models, "--grpc-port", "0", "--threads", "2", *flags)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve with the default limits."""
    with serve(tmp_path_factory.mktemp("deadlines")) as running:
        yield running
        stop_begun_s = time.monotonic()
    assert time.monotonic() - stop_begun_s < PATIENCE_S


def body(count: int, **parameters: object) -> str:
    inputs = [
        {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]},
        {"name": "n", "shape": [1], "datatype": "INT64", "data": [count]},
    ]
    return json.dumps({"inputs": inputs, "parameters": parameters})


def ask(server: ServerProcess, count: int, headers=None, model="endless", **parameters: object):
    status, received, answer = server.request(
        "POST", f"/v2/models/{model}/infer", body(count, **parameters), headers
    )
    return status, received, json.loads(answer)


def ask_quick(server: ServerProcess) -> int:
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    return server.call("POST", "/v2/models/quick/infer", {"inputs": [tensor]})[0]


def message(count: int, model: str = "endless", **parameters: int):
    request = message_class("ModelInferRequest")(model_name=model)
    for name, datatype, raw in (("x", "FP32", struct.pack("<f", 1)), ("n", "INT64", struct.pack("<q", count))):  # fmt: skip
        request.inputs.add(name=name, datatype=datatype, shape=[1])
        request.raw_input_contents.append(raw)
    for name, number in parameters.items():
        request.parameters[name].int64_param = number
    return request


def metric(server: ServerProcess, name: str, **labels: str) -> float:
    """Read a number of /metrics; 0 where it is not there."""
    text = server.request("GET", "/metrics")[2].decode()
    listed = ",".join(f'{key}="{label}"' for key, label in sorted(labels.items()))
    match = re.search(rf"^quadriga_{name}{{{re.escape(listed)}}} (\S+)$", text, re.MULTILINE)
    return float(match[1]) if match else 0.0


def stopped(server: ServerProcess, reason: str) -> float:
    return metric(server, "requests_stopped_total", model="endless", reason=reason)


def assert_works(server: ServerProcess) -> None:
    """Check that a model that was stopped answers."""
    server.wait_until(lambda: metric(server, "requests_running", model="endless") == 0)
    status, _, answer = ask(server, 3)
    assert (status, answer["outputs"][0]["data"]) == (200, [4.0])


@pytest.mark.parametrize(
    ("headers", "parameters", "text"),
    [
        ({"Request-Timeout": "0.3"}, {}, "within 0.3 s, got none: the limit is the request's header"),
        ({}, {"timeout": 300_000}, "within 0.3 s, got none: the limit is the request's parameter"),
        ({"Request-Timeout": "0.3"}, {"timeout": 20_000_000}, "the request's header"),
        ({"Request-Timeout": "20"}, {"timeout": 300_000}, "the request's parameter"),
        ({"Request-Timeout": "0.3"}, {"timeout": 0}, "the request's header"),
    ],
    ids=["header", "parameter", "shorter header", "shorter parameter", "no parameter"],
)  # fmt: skip
def test_a_client_that_asks_for_less_time_gets_an_error_in_it(server, headers, parameters, text):
    previous = stopped(server, "deadline")
    begun_s = time.monotonic()
    status, received, answer = ask(server, FOR_EVER, headers, **parameters)
    assert time.monotonic() - begun_s >= 0.3
    assert (status, received["retry-after"]) == (503, "1")
    assert text in answer["error"]
    assert stopped(server, "deadline") == previous + 1
    assert_works(server)


@pytest.mark.parametrize(
    ("headers", "parameters"),
    [
        ({"Request-Timeout": "soon"}, {}),
        ({"Request-Timeout": "-1"}, {}),
        ({"Request-Timeout": "nan"}, {}),
        ({"Request-Timeout": "inf"}, {}),
        ({}, {"timeout": "5"}),
        ({}, {"timeout": -5}),
        ({}, {"timeout": True}),
        ({}, {"timeout": 0.5}),
    ],
)
def test_a_time_that_is_none_is_refused(server, headers, parameters):
    status, _, answer = ask(server, 1, headers, **parameters)
    assert (status, "expected" in answer["error"]) == (400, True)


def test_more_time_than_the_server_gives_is_not_given(tmp_path):
    with serve(tmp_path, "--request-timeout-s", "0.5") as server:
        status, _, answer = ask(server, FOR_EVER, {"Request-Timeout": "50"}, timeout=50_000_000)
        assert status == 503
        assert "within 0.5 s" in answer["error"]
        assert "raise the setting" in answer["error"]
        assert "request_timeout_s" in answer["error"]
        assert_works(server)


def test_the_deadline_of_a_grpc_call_and_its_parameter_end_the_run(server):
    previous = stopped(server, "deadline") + stopped(server, "client_left")
    with Client(server.grpc) as client:
        with pytest.raises(grpc.RpcError) as late:
            client.call("ModelInfer", message(FOR_EVER), timeout=0.3)
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert_works(server)
        with pytest.raises(grpc.RpcError) as late:
            client.call("ModelInfer", message(FOR_EVER, timeout=300_000))
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "parameter timeout" in late.value.details()
        (answer,) = client.stream(iter([message(FOR_EVER, timeout=300_000)]))
        assert "parameter timeout" in answer.error_message
    assert_works(server)
    assert stopped(server, "deadline") + stopped(server, "client_left") == previous + 3


def send_and_leave(server: ServerProcess, count: int) -> None:
    """Send a request, and close the connection once the model runs it."""
    host, port = server.host.split(":")
    server.wait_until(lambda: metric(server, "requests_running", model="endless") == 0)
    text = body(count)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n"
        connection.sendall((head + text).encode())
        server.wait_until(
            lambda: metric(server, "requests_running", model="endless") == 1, PATIENCE_S
        )


def failures(server: ServerProcess) -> int:
    (statistics,) = server.call("GET", "/v2/models/endless/stats")[1]["model_stats"]
    return statistics["inference_stats"]["fail"]["count"]


def test_a_client_that_disconnects_ends_its_run(server):
    previous, failed = stopped(server, "client_left"), failures(server)
    stored = metric(server, "request_duration_seconds_count", model="endless", version="1", outcome="success", protocol="v2")  # fmt: skip
    send_and_leave(server, FOR_EVER)
    server.wait_until(lambda: stopped(server, "client_left") == previous + 1, PATIENCE_S)
    assert_works(server)
    assert failures(server) == failed + 1
    assert metric(server, "request_duration_seconds_count", model="endless", version="1", outcome="success", protocol="v2") == stored + 1  # fmt: skip


def test_a_call_that_is_cancelled_ends_its_run(server):
    previous = stopped(server, "client_left")
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(
            message(FOR_EVER).SerializeToString(), timeout=60
        )
        server.wait_until(lambda: metric(server, "requests_running", model="endless") == 1)
        call.cancel()
        server.wait_until(lambda: stopped(server, "client_left") == previous + 1, PATIENCE_S)
    assert_works(server)


def test_stopped_requests_are_not_stored(server):
    everything = {"model": "endless"}
    stored = len(server.query(everything))
    for _ in range(2):
        assert ask(server, FOR_EVER, {"Request-Timeout": "0.2"})[0] == 503
    send_and_leave(server, FOR_EVER)
    server.wait_until(lambda: metric(server, "requests_running", model="endless") == 0)
    assert len(server.query(everything)) == stored


def test_endless_requests_leave_the_other_models_alone(tmp_path):
    """Ten requests of each of two endless models, by every name, hold no thread that another model needs."""
    names = ["endless", "ENDLESS", "m-endless", "endless-too"]
    with serve(tmp_path) as server, ThreadPoolExecutor(20) as pool:
        requests = [
            pool.submit(ask, server, FOR_EVER, {"Request-Timeout": "15"}, names[n % 4])
            for n in range(20)
        ]
        server.wait_until(lambda: metric(server, "requests_waiting", model="endless") == 13)
        assert metric(server, "requests_running", model="endless") == 2
        assert [ask_quick(server) for _ in range(10)] == [200] * 10
        assert not any(request.done() for request in requests)
        assert {request.result()[0] for request in requests} == {503}
        assert_works(server)


def test_refused_requests_are_counted_and_told_when_to_come_back(tmp_path):
    with serve(tmp_path, "--max-queue", "2") as server, ThreadPoolExecutor(12) as pool:
        headers = {"Request-Timeout": "12"}
        requests = [pool.submit(ask, server, FOR_EVER, headers) for _ in range(12)]
        answers = [request.result() for request in requests]
        texts = [answer["error"] for _, _, answer in answers]
        refused = [text for text in texts if "fewer than 2 waiting" in text]
        assert len(refused) == 8
        assert all(status == 503 and int(received["retry-after"]) >= 1 for status, received, _ in answers)  # fmt: skip
        count = metric(server, "requests_refused_total", model="endless", reason="queue_full")
        assert count == 8
        assert "of endless (queue_full)" in server.log.read_text()
        with Client(server.grpc) as client:
            calls = [pool.submit(ask, server, FOR_EVER, headers) for _ in range(4)]
            server.wait_until(lambda: metric(server, "requests_waiting", model="endless") == 2)
            with pytest.raises(grpc.RpcError) as refusal:
                client.call("ModelInfer", message(FOR_EVER))
            assert refusal.value.code() == grpc.StatusCode.UNAVAILABLE
            assert int(dict(refusal.value.trailing_metadata())["retry-after"]) >= 1
            assert {call.result()[0] for call in calls} == {503}


def test_a_message_with_two_models_cannot_wait_in_the_queue_of_the_first(server):
    second = message_class("ModelInferRequest")(model_name="quick").SerializeToString()
    with Client(server.grpc) as client, pytest.raises(grpc.RpcError) as refusal:
        client.call("ModelInfer", message(1).SerializeToString() + second)
    assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "model_name once" in refusal.value.details()


def test_names_of_strangers_are_no_labels(server):
    assert server.call("POST", "/v2/models/stranger/infer", {"inputs": []})[0] in (400, 404)
    assert "stranger" not in server.request("GET", "/metrics")[2].decode()
