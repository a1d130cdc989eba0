"""Triton's extensions over the wire, with one worker and with two."""

import base64
import json
import os
import signal
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest

from tests.onnx_models import COLOURS_TOML, classifier, doubling, tripling
from tests.server_process import ServerProcess, image_input

X = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}


@pytest.fixture(scope="module", params=[1, 2], ids=["one-worker", "two-workers"])
def server(request, tmp_path_factory):
    """A server with its own models, which the tests change."""
    folder = tmp_path_factory.mktemp("repository")
    doubling(folder / "models" / "double" / "model.onnx")
    classifier(folder / "models" / "colours" / "model.onnx")
    (folder / "models" / "colours" / "model.toml").write_text(COLOURS_TOML)
    running = ServerProcess(
        folder / "data", folder / "models", "--workers", str(request.param), "--no-store"
    ).start()
    running.models = folder / "models"
    yield running
    assert running.stop() == 0
    assert not (folder / "data" / "run").exists()


def infer(server, model, version=None):
    """Give status and the first number, or the error."""
    path = f"/v2/models/{model}" + ("" if version is None else f"/versions/{version}")
    status, answer = server.call("POST", f"{path}/infer", {"inputs": [X]})
    return status, answer["outputs"][0]["data"][0] if status == 200 else answer["error"]


def everywhere(server, model, version=None):
    """Ask often enough that every worker has answered: all that came."""
    with ThreadPoolExecutor(8) as pool:
        return set(pool.map(lambda _: infer(server, model, version), range(48)))


def load(server, model, **parameters):
    body = {"parameters": parameters} if parameters else None
    return server.call("POST", f"/v2/repository/models/{model}/load", body)


def unload(server, model):
    return server.call("POST", f"/v2/repository/models/{model}/unload")


def index(server, model):
    _, rows = server.call("POST", "/v2/repository/index")
    return [(row["version"], row["state"], row["reason"]) for row in rows if row["name"] == model]


def file_of(make, path):
    return base64.b64encode(make(path / "made.onnx").read_bytes()).decode()


def test_a_new_folder_is_loaded(server):
    assert infer(server, "new")[0] == 404
    assert load(server, "new")[0] == 404
    tripling(server.models / "new" / "2" / "model.onnx")
    doubling(server.models / "new" / "1" / "model.onnx")
    assert load(server, "new") == (200, {"name": "new", "load": True})
    assert everywhere(server, "new") == {(200, 3)}
    assert everywhere(server, "new", "1") == {(200, 2)}
    assert index(server, "new") == [("2", "READY", ""), ("1", "READY", "")]
    assert server.call("GET", "/v2/models/new")[1]["versions"] == ["2", "1"]
    assert server.call("GET", "/v2/models/new/versions/1/ready")[0] == 200
    for path in ("", "/ready", "/config", "/stats"):
        assert server.call("GET", f"/v2/models/new/versions/3{path}")[0] == 404


def test_a_changed_file_is_loaded_under_load_without_a_failed_request(server):
    doubling(server.models / "busy" / "model.onnx")
    assert load(server, "busy")[0] == 200
    done, responses = threading.Event(), []

    def ask():
        while not done.wait(0.01):
            responses.append(infer(server, "busy"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(6):
            (tripling, doubling)[number % 2](server.models / "busy" / "model.onnx")
            assert load(server, "busy")[0] == 200
            assert infer(server, "busy") == (200, (3, 2)[number % 2])
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert set(responses) == {(200, 2), (200, 3)}


def test_a_load_that_fails_keeps_the_old(server):
    doubling(server.models / "fragile" / "model.onnx")
    assert load(server, "fragile")[0] == 200
    (server.models / "fragile" / "model.onnx").write_bytes(b"broken")
    status, answer = load(server, "fragile")
    assert status == 400
    assert "model 'fragile' version 1 failed to load: expected model.onnx" in answer["error"]
    assert everywhere(server, "fragile") == {(200, 2)}
    assert server.call("GET", "/v2/health/ready")[0] == 200
    doubling(server.models / "fragile" / "model.onnx")  # or a worker that starts again fails


def test_an_unloaded_model_is_not_ready_and_the_server_is(server):
    doubling(server.models / "gone" / "model.onnx")
    assert load(server, "gone")[0] == 200
    assert unload(server, "gone") == (200, {"name": "gone", "unload": True})
    assert {status for status, _ in everywhere(server, "gone")} == {503}
    assert infer(server, "gone")[1] == "model 'gone' version 1 is unloaded"
    assert index(server, "gone") == [("1", "UNAVAILABLE", "unloaded")]
    assert server.call("GET", "/v2/models/gone/ready")[0] == 400
    assert server.call("GET", "/v2/health/ready")[0] == 200
    assert load(server, "gone")[0] == 200
    assert everywhere(server, "gone") == {(200, 2)}
    assert unload(server, "none")[0] == 404


def test_a_configuration_stands_until_the_next_load(server):
    config = {"max_batch_size": 3, "labels": ["a", "b", "c"], "task": "classification"}
    config |= {"input": {"resize": "stretch"}, "output": {"activation": "softmax"}}
    red = cv2.imencode(".png", np.full((8, 8, 3), (0, 0, 255), np.uint8))[1].tobytes()

    def label():
        body = {"inputs": [image_input(red)]}
        _, answer = server.call("POST", "/v2/models/colours/infer", body)
        return answer["outputs"][0]["data"][0][0]["label"]

    assert load(server, "colours", config=json.dumps(config))[0] == 200
    assert {label() for _ in range(20)} == {"a"}
    configuration = server.call("GET", "/v2/models/colours/config")[1]
    assert (configuration["max_batch_size"], configuration["platform"]) == (3, "onnxruntime_onnx")
    assert configuration["input"] == [
        {"name": "image", "data_type": "TYPE_STRING", "dims": [1], "reshape": {"shape": []}}
    ]
    status, answer = load(server, "colours", config='{"dynamic_batching": {}}')
    assert status == 400
    assert "dynamic_batching" in answer["error"]
    assert load(server, "colours")[0] == 200
    assert {label() for _ in range(20)} == {"red"}


def test_files_sent_are_a_model_until_the_next_load(server, tmp_path):
    graph = file_of(tripling, tmp_path)
    assert load(server, "double", **{"file:1/model.onnx": graph})[0] == 200
    assert everywhere(server, "double") == {(200, 3)}
    assert load(server, "sent", **{"file:5/model.onnx": graph})[0] == 200
    assert everywhere(server, "sent", "5") == {(200, 3)}
    assert load(server, "sent")[0] == 404
    assert load(server, "double")[0] == 200
    assert everywhere(server, "double") == {(200, 2)}
    folders = list((server.data / "run").glob("*/models/*"))
    assert len(folders) == 1
    assert unload(server, "sent")[0] == 200
    assert list((server.data / "run").glob("*/models/*")) == []


def test_an_archive_is_loaded_and_replaced(server, tmp_path):
    def zipped(make, version):
        graph = make(tmp_path / f"{version}.onnx")
        with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
            archive.write(graph, f"packed/{version}/model.onnx")
        return (tmp_path / "packed.zip").replace(server.models / "packed.zip")

    zipped(doubling, 1)
    assert load(server, "packed")[0] == 200
    assert everywhere(server, "packed") == {(200, 2)}
    zipped(tripling, 2)
    assert everywhere(server, "packed") == {(200, 2)}
    assert load(server, "packed")[0] == 200
    assert everywhere(server, "packed", "2") == {(200, 3)}
    (server.models / "packed.zip").write_bytes(b"no zip")
    status, answer = load(server, "packed")
    assert status == 400
    assert answer["error"] == "cannot unpack packed.zip: File is not a zip file"
    assert everywhere(server, "packed") == {(200, 3)}
    zipped(tripling, 2)  # or a worker that starts again fails
    sent = base64.b64encode((server.models / "packed.zip").read_bytes()).decode()
    assert load(server, "unpacked", **{"file:model.zip": sent})[0] == 200
    assert everywhere(server, "unpacked", "2") == {(200, 3)}
    assert unload(server, "unpacked")[0] == 200


@pytest.mark.parametrize("path", ["../x.onnx", "/tmp/x.onnx", "1/../../x.onnx", "model.toml", ""])
def test_files_that_lead_elsewhere_are_refused(server, path, tmp_path):
    status, answer = load(server, "double", **{f"file:{path}": file_of(doubling, tmp_path)})
    assert status == 400
    assert f"file:{path}" in answer["error"]
    assert infer(server, "double") == (200, 2)
    assert not list(server.data.rglob("x.onnx"))


def test_statistics_are_exact(server):
    doubling(server.models / "counted" / "model.onnx")
    assert load(server, "counted")[0] == 200
    assert load(server, "colours")[0] == 200
    rows = {"name": "x", "shape": [4, 3], "datatype": "FP32", "data": [0] * 12}
    for _ in range(10):
        assert infer(server, "counted")[0] == 200
        server.call("POST", "/v2/models/counted/infer", {"inputs": [rows]})
    bad = {"inputs": [{**X, "datatype": "INT32"}]}
    assert server.call("POST", "/v2/models/counted/infer", bad)[0] == 400
    image = image_input(cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes())
    assert server.call("POST", "/v2/models/colours/infer", {"inputs": [image] * 10})[0] == 200

    def stats(model):
        return server.call("GET", f"/v2/models/{model}/stats")[1]["model_stats"][0]

    time.sleep(1)  # a worker knows what the others counted a little later
    statistics = stats("counted")
    assert (statistics["name"], statistics["version"], statistics["execution_count"]) == (
        "counted",
        "1",
        20,
    )
    assert statistics["inference_count"] == 50
    times = statistics["inference_stats"]
    for phase in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert times[phase]["count"] == 20
        assert times[phase]["ns"] > 0
    phases = ("queue", "compute_input", "compute_infer", "compute_output")
    assert sum(times[phase]["ns"] for phase in phases) <= times["success"]["ns"]
    assert times["fail"]["count"] == 1
    sizes = [(b["batch_size"], b["compute_infer"]["count"]) for b in statistics["batch_stats"]]
    assert sizes == [(1, 10), (4, 10)]
    statistics = stats("colours")
    assert statistics["inference_count"] == 10
    assert statistics["execution_count"] == 2
    assert [b["batch_size"] for b in statistics["batch_stats"]] == [2, 8]
    assert statistics["inference_stats"]["success"]["count"] == 1
    _, every = server.call("GET", "/v2/models/stats")
    assert {"counted", "colours", "double"} <= {entry["name"] for entry in every["model_stats"]}
    assert load(server, "counted")[0] == 200
    assert stats("counted")["inference_count"] == 0


def test_a_worker_that_died_serves_what_was_asked(server):
    doubling(server.models / "quiet" / "model.onnx")
    assert load(server, "quiet")[0] == 200
    assert unload(server, "quiet")[0] == 200
    worker = server.child_pids()[-1]  # without a store all children are workers
    os.kill(worker, signal.SIGKILL)
    server.wait_until(lambda: worker not in server.child_pids())
    server.wait_until(lambda: server.call("GET", "/v2/health/ready")[0] == 200)
    assert {status for status, _ in everywhere(server, "quiet")} == {503}


def test_metadata_names_what_works(server):
    _, answer = server.call("GET", "/v2")
    assert {"model_repository", "statistics", "model_configuration"} <= set(answer["extensions"])
    assert not {"logging", "trace", "system_shared_memory"} & set(answer["extensions"])
    for path in ("/v2/logging", "/v2/systemsharedmemory/status", "/v2/trace/setting"):
        status, answer = server.call("GET", path)
        assert (status, list(answer)) == (501, ["error"])


def test_a_server_may_be_told_to_change_nothing(tmp_path):
    doubling(tmp_path / "models" / "double" / "model.onnx")
    flags = ("--no-model-control", "--no-store")
    with ServerProcess(tmp_path / "data", tmp_path / "models", *flags) as server:
        for change in (load, unload):
            status, answer = change(server, "double")
            assert status == 501
            assert "model_control" in answer["error"]
        assert infer(server, "double") == (200, 2)
        assert index(server, "double") == [("1", "READY", "")]
        assert server.call("GET", "/v2/models/double/stats")[0] == 200
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["audit"]  # who tried
