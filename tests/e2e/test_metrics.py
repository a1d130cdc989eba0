"""Metrics that an operator can trust: how requests end, sums that never fall, quantiles that clients measure, too."""

import itertools
import json
import math
import os
import signal
import socket
import statistics
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from onnx import TensorProto, helper

from quadriga.engine.measures.model_counts import BOUNDS_S
from quadriga.proto.grpc.messages import message_class
from tests.grpc_client import Client
from tests.onnx_models import counting, doubling, number_image, save, value
from tests.scrapes import buckets, is_counter, quantile, scrape, total
from tests.server_process import ServerProcess, image_input

FOR_EVER = 2**60
ROW = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
REQUESTS = "quadriga_requests_total"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve a quick model, an endless one, and one whose graph fails, with gRPC and two workers."""
    models = tmp_path_factory.mktemp("metrics") / "models"
    doubling(models / "quick" / "model.onnx")
    counting(models / "endless" / "model.onnx")
    failing(models / "failing")
    flags = ("--grpc-port", "0", "--workers", "2", "--threads", "2")
    with ServerProcess(models.parent / "data", models, *flags) as running:
        yield running


def failing(folder: Path) -> None:
    """Write a classifier whose graph fails, unless the image is black."""
    save(
        folder / "model.onnx",
        [
            helper.make_node("ReduceMax", ["image"], ["most"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Cast", ["most"], ["index"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "index"], ["logits"]),
        ],
        [value("image", [1, 3, 8, 8])],
        [value("logits", [1, 3])],
        {"table": np.eye(1, 3, dtype=np.float32)},
    )
    (folder / "model.toml").write_text('family = "plain-classifier"\nlabels = ["a", "b", "c"]\n')


def infer(server: ServerProcess, model: str, *inputs: dict, headers=None, **options) -> int:
    body = json.dumps({"inputs": inputs, **options})
    return server.request("POST", f"/v2/models/{model}/infer", body, headers)[0]


def endless_inputs() -> list[dict]:
    return [
        {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]},
        {"name": "n", "shape": [1], "datatype": "INT64", "data": [FOR_EVER]},
    ]


def send_raw(server: ServerProcess, data: bytes, *, reads: bool) -> bytes:
    """Send bytes; read the answer, or leave at once."""
    host, port = server.host.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        if reads:
            return connection.recv(65536)
        time.sleep(0.5)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return b""


def outcomes(before, after) -> dict[tuple[str, str], float]:
    """Return how many requests ended in each way between two scrapes, by protocol."""
    changed = {}
    for sample, count in after.items():
        labels = dict(sample[1])
        if sample[0] == REQUESTS and count != before.get(sample, 0):
            changed[labels["protocol"], labels["outcome"]] = count - before.get(sample, 0)
    return changed


def test_requests_over_http_count_by_how_they_end(server):
    before = scrape(server)
    assert [infer(server, "quick", ROW) for _ in range(3)] == [200] * 3
    assert infer(server, "quick", {**ROW, "datatype": "FP16"}) == 400
    assert infer(server, "quick", {**ROW, "shape": [1, 4]}) == 400
    assert infer(server, "absent", ROW) == 404
    assert infer(server, "failing", image_input(number_image(255))) == 500
    assert infer(server, "endless", *endless_inputs(), headers={"Request-Timeout": "0.3"}) == 503
    instances = json.dumps({"instances": [[1, 2, 3]]})
    assert server.request("POST", "/v1/models/quick:predict", instances)[0] == 200
    assert server.request("POST", "/v1/models/quick:predict", "{")[0] == 400
    assert server.request("GET", "/v2/models/quick/infer")[0] == 405
    assert server.request("GET", "/v2/health/ready")[0] == 200
    assert server.request("GET", "/v2/models/quick")[0] == 200
    assert server.request("GET", "/v2/models/absent")[0] == 404
    assert server.request("GET", "/api/models")[0] == 200
    assert server.request("POST", "/api/inferences/query", "no json")[0] == 400
    assert server.request("GET", "/console/jobs")[0] == 200
    assert server.request("GET", "/no/such/path")[0] == 404
    assert send_raw(server, b"this is not HTTP\r\n\r\n", reads=True).startswith(b"HTTP/1.1 400")
    body = json.dumps({"inputs": endless_inputs()})
    head = f"POST /v2/models/endless/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    send_raw(server, (head + body).encode(), reads=False)  # leaves while it is answered
    send_raw(server, head.encode() + b"{", reads=False)  # leaves in the middle of its body
    gone = {"protocol": "v2", "outcome": "gone"}
    server.wait_until(lambda: total(scrape(server), REQUESTS, **gone) >= 2)
    found = outcomes(before, scrape(server))
    del found["state", "success"]  # scrapes among them
    assert found == {
        ("v2", "success"): 3,
        ("v2", "client_error"): 3,
        ("v2", "model_failure"): 1,
        ("v2", "deadline"): 1,
        ("v2", "gone"): 2,
        ("v1", "success"): 1,
        ("v1", "client_error"): 1,
        ("state", "client_error"): 1,
        ("api", "success"): 1,
        ("api", "client_error"): 1,
        ("console", "success"): 1,
        ("none", "client_error"): 3,
    }


def test_calls_over_grpc_count_by_how_they_end(server):
    def message(model="quick", **fields):
        request = message_class("ModelInferRequest")(model_name=model, **fields)
        request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
        request.raw_input_contents.append(np.ones(3, np.float32).tobytes())
        return request

    before = scrape(server)
    with Client(server.grpc) as client:
        for _ in range(2):
            client.call("ModelInfer", message())
        for method, request in (
            ("ModelInfer", message("absent")),
            ("ModelInfer", b"no message"),
            ("ModelMetadata", message_class("ModelMetadataRequest")(name="absent")),
            ("NoSuchMethod", b""),
        ):
            with pytest.raises(grpc.RpcError):
                client.call(method, request)
        requests = [message(), message("absent"), message(), message(id="x" * 100_000)]
        answers = list(client.stream(iter(requests)))
        assert [bool(answer.error_message) for answer in answers] == [False, True, False, True]
    found = outcomes(before, scrape(server))
    found.pop(("state", "success"), None)  # scrapes
    assert found == {
        ("grpc", "success"): 4,
        ("grpc", "client_error"): 4,
        ("state", "client_error"): 2,
    }


def test_no_text_of_a_request_becomes_a_label(server):
    for name in ("a-strange-name", "quick%22%7D", "x" * 300):
        infer(server, name, ROW)
        server.request("POST", f"/v1/models/{name}:predict", "{}")
    samples = scrape(server)
    labels = {text for _, found in samples for _, text in found}
    assert not {text for text in labels if "strange" in text or len(text) > 64}
    models = {dict(found)["model"] for _, found in samples if "model" in dict(found)}
    assert models == {"", "quick", "endless", "failing"}


class Load:
    """Requests of several connections, each counted and timed by its client."""

    def __init__(self, server: ServerProcess, connections: int) -> None:
        self._server = server
        self._stop = threading.Event()
        self.statuses: Counter[int] = Counter()
        self.cut = 0
        """Requests whose connection ended before their answer."""
        self.durations_s: list[float] = []
        self._threads = [threading.Thread(target=self._send) for _ in range(connections)]

    def _send(self) -> None:
        body = json.dumps({"inputs": [ROW]})
        connection = self._server.connect()
        while not self._stop.wait(0.01):
            begun_s = time.perf_counter()
            try:
                connection.request("POST", "/v2/models/quick/infer", body)
                response = connection.getresponse()
                response.read()
            except OSError:
                self.cut += 1
                connection.close()
            else:
                self.durations_s.append(time.perf_counter() - begun_s)
                self.statuses[response.status] += 1
        connection.close()

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, answers: int) -> None:
        """Wait until so many more requests were answered."""
        goal = len(self.durations_s) + answers
        self._server.wait_until(lambda: len(self.durations_s) >= goal)


def test_no_sum_falls_when_a_worker_is_killed_under_load(server):
    before, scrapes = scrape(server), []
    with Load(server, 8) as load:
        load.wait_for(200)
        scrapes.append(scrape(server))
        os.kill(server.child_pid("worker-0"), signal.SIGKILL)
        for _ in range(20):  # while it is away, and as it comes back
            load.wait_for(20)
            scrapes.append(scrape(server))
        server.wait_until(
            lambda: total(scrape(server), "quadriga_process_restarts_total", process="worker-0")
        )
        load.wait_for(200)
    after = scrape(server)
    scrapes.append(after)
    for earlier, later in itertools.pairwise([before, *scrapes]):
        fallen = {
            sample: (count, later.get(sample))
            for sample, count in earlier.items()
            if is_counter(sample)
            and not sample[0].startswith("process_")  # of a process, which is another one now
            and later.get(sample, -math.inf) < count
        }
        assert not fallen
    counted = sum(
        outcomes(before, after).get(("v2", outcome), 0) for outcome in ("success", "gone")
    )
    assert set(load.statuses) == {200}
    assert load.statuses[200] <= counted <= load.statuses[200] + load.cut
    durations = "quadriga_request_duration_seconds_count"
    answered = total(after, durations, model="quick") - total(before, durations, model="quick")
    assert load.statuses[200] <= answered <= load.statuses[200] + load.cut
    images = "quadriga_images_total"
    assert total(after, images, model="quick") - total(before, images, model="quick") == answered
    ends = {"process": "worker-0", "cause": "SIGKILL"}
    assert total(after, "quadriga_process_ends_total", **ends) == 1


def test_the_quantile_of_the_buckets_is_that_of_the_client(server):
    name = "quadriga_request_duration_seconds"
    before = buckets(scrape(server), name, model="endless", outcome="success")
    inputs = endless_inputs()
    inputs[1]["data"] = [30_000]  # long enough that the way to the server counts little
    durations_s = []
    for _ in range(20):
        begun_s = time.perf_counter()
        assert infer(server, "endless", *inputs) == 200
        durations_s.append(time.perf_counter() - begun_s)
    after = buckets(scrape(server), name, model="endless", outcome="success")
    counts = {bound: count - before[bound] for bound, count in after.items()}
    assert counts[math.inf] == 20
    estimate = quantile(0.95, counts)
    measured = statistics.quantiles(durations_s, n=20, method="inclusive")[18]
    bounds = [*BOUNDS_S, math.inf]

    def bucket(duration_s: float) -> int:
        return next(place for place, bound in enumerate(bounds) if duration_s <= bound)

    # a client on a busy machine waits for more than the server
    assert bucket(estimate) <= bucket(measured) + 1
    assert estimate >= min(durations_s) / 10
