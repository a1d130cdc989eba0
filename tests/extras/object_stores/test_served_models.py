"""Models served from an S3 on this machine: fetched, followed, and served while it is away."""

import threading
from collections import Counter
from pathlib import Path

import obstore
import pytest

from quadriga.store.blobs.objects import connect
from tests.onnx_models import doubling, tripling
from tests.s3_server import BUCKET, S3Server
from tests.server_process import ServerProcess

URL = f"s3://{BUCKET}/models"
POLLED = ("--models-poll-s", "0.3", "--insecure")
BODY = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 1, 1]}]}


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def s3(monkeypatch):
    server = S3Server()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.close()


def put(path: str, content: bytes) -> None:
    obstore.put(connect(URL), path, content)


def graph(folder: Path, make=doubling) -> bytes:
    path = folder / f"{make.__name__}.onnx"
    make(path)
    return path.read_bytes()


def answer(server: ServerProcess, name: str = "double") -> tuple[int, float | None]:
    status, body = server.call("POST", f"/v2/models/{name}/infer", BODY)
    return status, body["outputs"][0]["data"][0] if status == 200 else None


def versions(server: ServerProcess, name: str = "double") -> dict[str, tuple[str, str]]:
    _, index = server.call("POST", "/v2/repository/index", {})
    return {
        entry["version"]: (entry["state"], entry.get("reason", ""))
        for entry in index
        if entry["name"] == name
    }


def report(server: ServerProcess) -> dict:
    return server.call("GET", "/v2/health/ready?verbose")[1]


def test_a_new_version_takes_over_while_clients_send_and_a_broken_one_does_not(data, tmp_path, s3):
    put("double/1/model.onnx", graph(tmp_path))
    with ServerProcess(data, URL, "--workers", "2", *POLLED) as server:
        assert answer(server) == (200, 2.0)
        answers, done = Counter(), threading.Event()

        def send() -> None:
            while not done.wait(0.02):
                answers[answer(server)] += 1

        clients = [threading.Thread(target=send) for _ in range(3)]
        for client in clients:
            client.start()
        put("double/2/model.onnx", graph(tmp_path, tripling))
        server.wait_until(lambda: all(answer(server) == (200, 3.0) for _ in range(20)))
        put("double/3/model.onnx", b"no graph")
        server.wait_until(lambda: report(server)["status"] == "degraded")
        done.set()
        for client in clients:
            client.join()
        assert set(answers) == {(200, 2.0), (200, 3.0)}
        shown = versions(server)
        assert {version: state for version, (state, _) in shown.items()} == {
            "2": "READY",
            "1": "READY",
        }
        assert "newer files of it are not served" in shown["2"][1]
        assert "version 3" in shown["2"][1]
        assert BUCKET not in str(shown)
        assert str(data) not in str(shown)
        assert server.call("GET", "/v2/health/ready")[0] == 200
        metrics = server.request("GET", "/metrics")[2].decode()
        assert "quadriga_model_source_unserved 1.0" in metrics
        put("double/3/model.onnx", graph(tmp_path))
        server.wait_until(lambda: all(answer(server) == (200, 2.0) for _ in range(20)))
        server.wait_until(lambda: report(server)["status"] == "ready")
    assert s3.url not in server.log.read_text()


def test_the_cache_is_served_while_the_source_is_away(data, tmp_path, s3, monkeypatch):
    put("double/1/model.onnx", graph(tmp_path))
    put("double/2/model.onnx", graph(tmp_path, tripling))
    with ServerProcess(data, URL, "--insecure") as server:
        assert answer(server) == (200, 3.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with ServerProcess(data, URL, "--insecure") as server:
        assert answer(server) == (200, 3.0)
        health = report(server)
        assert (health["status"], health["models"]["state"]) == ("degraded", "degraded")
        assert "does not answer; the models are served as they were" in health["models"]["reason"]
        status, body = server.call("POST", "/v2/repository/models/double/load", {})
        assert (status, answer(server)) == (503, (200, 3.0))
        assert "does not answer" in body["error"]
        assert BUCKET not in body["error"]
    assert "those of its cache are served" in server.log.read_text()


def test_an_empty_cache_waits_for_the_source_and_for_its_first_model(data, tmp_path, s3):
    server = ServerProcess(data, URL, "--insecure").start(ready=False)
    try:
        server.wait_until(lambda: "has no model" in str(report(server)))
        assert server.call("GET", "/v2/health/live")[0] == 200
        assert server.call("GET", "/v2/health/ready")[0] == 400
        assert answer(server)[0] == 503
        put("double/model.onnx", graph(tmp_path))
        server.wait_until(lambda: server.call("GET", "/v2/health/ready")[0] == 200)
        assert answer(server) == (200, 2.0)
    finally:
        server.stop()


def test_a_load_fetches_what_is_new(data, tmp_path, s3):
    put("double/model.onnx", graph(tmp_path))
    with ServerProcess(data, f"{URL}/double", "--workers", "2", "--insecure") as server:
        put("double/model.onnx", graph(tmp_path, tripling))
        assert answer(server) == (200, 2.0)
        assert server.call("POST", "/v2/repository/models/double/load", {})[0] == 200
        assert {answer(server) for _ in range(20)} == {(200, 3.0)}
        put("double/model.onnx", b"no graph")
        status, body = server.call("POST", "/v2/repository/models/double/load", {})
        assert (status, "failed to load" in body["error"]) == (400, True)
        assert {answer(server) for _ in range(20)} == {(200, 3.0)}
    with ServerProcess(data, f"{URL}/double", "--workers", "2", "--insecure") as server:
        assert answer(server) == (200, 3.0)
        assert "newer files of double are not served" in str(report(server))


def test_a_polled_folder_is_followed_as_well(data, tmp_path):
    models = tmp_path / "models"
    doubling(models / "double" / "1" / "model.onnx")
    with ServerProcess(data, models, *POLLED) as server:
        assert answer(server) == (200, 2.0)
        tripling(models / "double" / "2" / "model.onnx")
        tripling(models / "triple" / "model.onnx")
        server.wait_until(lambda: answer(server) == (200, 3.0))
        server.wait_until(lambda: answer(server, "triple") == (200, 3.0))
        (models / "double" / "3").mkdir()
        (models / "double" / "3" / "model.onnx").write_bytes(b"no graph")
        server.wait_until(lambda: report(server)["status"] == "degraded")
        assert answer(server) == (200, 3.0)


def test_whichever_worker_dies_another_one_looks(data, tmp_path, s3):
    put("double/1/model.onnx", graph(tmp_path))
    with ServerProcess(data, URL, "--workers", "2", *POLLED) as server:
        for version, (worker, make) in enumerate(
            (("worker-0", tripling), ("worker-1", doubling)), start=2
        ):
            server.kill_child(worker)
            put(f"double/{version}/model.onnx", graph(tmp_path, make))
            server.wait_until(lambda: server.call("GET", "/v2/health/ready")[0] == 200)
            expected = (200, 3.0 if make is tripling else 2.0)
            server.wait_until(
                lambda expected=expected: all(answer(server) == expected for _ in range(20))
            )
            server.wait_until(lambda version=version: str(version) in versions(server))
