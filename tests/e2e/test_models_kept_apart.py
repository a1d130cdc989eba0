"""A model that ends its process, takes all memory or never answers, beside models that do no such thing."""

import base64
import http.client
import json
import time

import pytest

from tests.onnx_models import dividing, dividing_by_itself, doubling, endless, greedy
from tests.poisoned_task import write_poisoned_model
from tests.server_process import ServerProcess, image_input

POISON = (-(2**31), -1)
X = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}


def divide(server, a=6, b=3, request_id=""):
    """Ask for a quotient: status, headers and answer; status 0 if the connection breaks."""
    inputs = [
        {"name": name, "shape": [1], "datatype": "INT32", "data": [number]}
        for name, number in (("a", a), ("b", b))
    ]
    body = {"inputs": inputs, **({"id": request_id} if request_id else {})}
    try:
        status, headers, answer = server.request(
            "POST", "/v2/models/divide/infer", json.dumps(body)
        )
    except (ConnectionError, http.client.HTTPException):
        return 0, {}, {}
    return status, headers, json.loads(answer)


def double(server):
    """Ask the innocent model; gives the status, 0 if the connection breaks."""
    try:
        return server.call("POST", "/v2/models/double/infer", {"inputs": [X]})[0]
    except (ConnectionError, http.client.HTTPException):
        return 0


def wait_for_refusal(server):
    """Send poison until it is refused; gives the answer."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        status, headers, answer = divide(server, *POISON)
        if status == 503 and "ended its process" in answer["error"]:
            return headers, answer["error"]
        time.sleep(0.1)
    raise AssertionError(server.log.read_text()[-3000:])


@pytest.fixture
def models(tmp_path):
    dividing(tmp_path / "models" / "divide" / "model.onnx")
    doubling(tmp_path / "models" / "double" / "model.onnx")
    return tmp_path / "models"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_poison_request_is_named_and_its_model_refused_while_others_go_on(data, models, workers):
    flags = "--workers", workers, "--no-store"
    with ServerProcess(data, models, *flags) as server:
        assert divide(server)[0] == 200
        assert divide(server, *POISON, request_id="poison-1")[0] == 0
        server.wait_until(lambda: "was ended by SIGFPE" in server.log.read_text())
        assert (
            "worker 0 was ended by SIGFPE while it ran model 'divide' version 1 (request 'poison-1')"
            in server.log.read_text().replace("worker 1", "worker 0")
        )
        headers, error = wait_for_refusal(server)
        assert 1 < int(headers["retry-after"]) <= 60
        assert "model 'divide' version 1 ended its process 2 times within 5 minutes" in error
        server.wait_until(lambda: double(server) == 200, timeout_s=30)
        for _ in range(20):  # refused by every worker, whatever it asks
            assert divide(server)[0] == 503
            assert double(server) == 200

        def states():
            rows = server.call("POST", "/v2/repository/index")[1]
            return {row["name"]: (row["state"], row["reason"]) for row in rows}

        server.wait_until(lambda: states()["divide"][0] == "UNAVAILABLE")  # a worker may yet start
        assert states()["double"] == ("READY", "")
        assert "ended its process 2 times" in states()["divide"][1]
        assert server.request("GET", "/v2/models/divide/ready")[0] != 200
        assert b"quadriga_models_refused 1.0" in server.request("GET", "/metrics")[2]
        server.wait_until(lambda: server.call("GET", "/v2/health/ready")[0] == 200)
        assert server.call("POST", "/v2/repository/models/divide/load")[0] == 200
        for _ in range(20):
            assert divide(server)[0] == 200
        assert server.log.read_text().count("was ended by") <= 3


def test_two_clients_that_retry_a_poison_request_do_not_keep_the_server_down(data, models):
    with ServerProcess(data, models, "--no-store") as server:
        wait_for_refusal(server)
        server.wait_until(lambda: double(server) == 200, timeout_s=30)
        for _ in range(30):
            assert divide(server, *POISON)[0] == 503
            assert double(server) == 200


def test_an_image_that_ends_the_process_outside_of_the_graph_is_refused_too(data, models, tmp_path):
    image = write_poisoned_model(models / "poisoned", tmp_path / "extensions")
    body = {"inputs": [image_input(image)]}

    def ask():
        try:
            return server.call("POST", "/v2/models/poisoned/infer", body)
        except (ConnectionError, http.client.HTTPException):
            return 0, {}

    with ServerProcess(data, models, "--extensions", str(tmp_path / "extensions")) as server:
        for crashes in (1, 2):
            assert ask()[0] == 0
            server.wait_until(lambda n=crashes: server.log.read_text().count("SIGSEGV") >= n)
            server.wait_until(lambda: double(server) == 200)
            server.wait_until(
                lambda: "LOADING" not in str(server.call("POST", "/v2/repository/index"))
            )
        server.wait_until(lambda: "ended its process 2 times" in ask()[1].get("error", ""))
        workers = server.child_pids()
        assert ask()[0] == 503
        assert double(server) == 200
        assert server.child_pids() == workers


def test_a_crash_in_a_process_of_its_own_is_answered_and_costs_no_other_request(data, models):
    (models / "divide" / "model.toml").write_text('[runtime]\nisolation = "process"\n')
    with ServerProcess(data, models, "--no-store") as server:
        workers = server.child_pids()
        assert divide(server)[0] == 200
        status, headers, answer = divide(server, *POISON)
        assert (status, headers["retry-after"]) == (503, "1")
        assert "process of model 'divide' version 1 was ended by SIGFPE" in answer["error"]
        assert double(server) == 200
        server.wait_until(lambda: divide(server)[0] == 200)
        wait_for_refusal(server)
        assert double(server) == 200
        assert server.child_pids() == workers
        assert server.call("POST", "/v2/repository/models/divide/load")[0] == 200
        assert divide(server)[0] == 200


def test_after_a_crash_the_next_one_ends_no_worker(data, models):
    with ServerProcess(data, models, "--no-store") as server:
        divide(server, *POISON)
        server.wait_until(lambda: double(server) == 200)
        workers = server.child_pids()
        server.wait_until(lambda: divide(server)[0] == 200)
        assert divide(server, *POISON)[0] == 503
        assert double(server) == 200
        assert server.child_pids() == workers


def test_a_model_that_ends_the_process_while_it_loads_does_not_keep_the_server_down(data, models):
    dividing_by_itself(models / "aaa-bad" / "model.onnx")
    with ServerProcess(data, models, "--no-store", "--no-strict-readiness") as server:
        assert double(server) == 200
        rows = server.call("POST", "/v2/repository/index")[1]
        states = {row["name"]: (row["state"], row["reason"]) for row in rows}
        assert states["aaa-bad"][0] == "UNAVAILABLE"
        assert "was ended by SIGFPE" in states["aaa-bad"][1]
        assert server.log.read_text().count("worker 0 was ended by SIGFPE") == 1


def test_models_that_a_client_sends_are_tried_before_a_worker_opens_them(data, models, tmp_path):
    flags = "--no-store", "--load-timeout-s", "15"
    small = {"engine.models.model_host": {"DEFAULT_MEMORY_MB": 256}}
    bad = {
        "SIGFPE": dividing_by_itself(tmp_path / "crash.onnx"),
        "more than the 260 MiB": greedy(tmp_path / "greedy.onnx", 10**9),
        "not loaded within 15 s": endless(tmp_path / "endless.onnx"),
    }
    with ServerProcess(data, models, *flags, constants=small) as server:
        workers = server.child_pids()
        for reason, path in bad.items():
            content = base64.b64encode(path.read_bytes()).decode()
            body = {"parameters": {"file:model.onnx": content}}
            status, answer = server.call("POST", "/v2/repository/models/bad/load", body)
            assert status == 400
            assert reason in answer["error"]
            assert double(server) == 200
        assert server.child_pids() == workers
        assert [row["name"] for row in server.call("POST", "/v2/repository/index")[1]] == [
            "divide",
            "double",
        ]
