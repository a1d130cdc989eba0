"""A model as KServe's storage initialiser leaves it: by the name of its InferenceService, whatever its folder is."""

import os
import shutil
from pathlib import Path

import pytest

from tests.grpc_client import Client
from tests.onnx_models import doubling
from tests.server_process import ServerProcess

CONFIG = 'name: "trained"\nplatform: "onnxruntime_onnx"\n'


def file(models: Path) -> None:
    doubling(models / "model.onnx")


def other_file(models: Path) -> None:
    doubling(models / "resnet50.onnx")


def folder(models: Path) -> None:
    doubling(models / "trained" / "model.onnx")
    shutil.copytree(models / "trained", models / "empty", ignore=lambda *_: ["model.onnx"])


def triton(models: Path) -> None:
    doubling(models / "1" / "model.onnx")
    (models / "config.pbtxt").write_text(CONFIG)


def repository(models: Path) -> None:
    doubling(models / "trained" / "1" / "model.onnx")
    (models / "trained" / "config.pbtxt").write_text(CONFIG)


def links(models: Path) -> None:
    volume = models.parent / "volume"
    doubling(volume / "model.onnx")
    models.mkdir()
    (models / "model.onnx").symlink_to(volume / "model.onnx")


def linked_folder(models: Path) -> None:
    volume = models.parent / "volume" / "models"
    doubling(volume / "trained" / "model.onnx")
    models.symlink_to(volume)


LAYOUTS = [file, other_file, folder, triton, repository, links, linked_folder]


def read_only(models: Path) -> None:
    for path in [models, *models.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_model_has_the_name_of_its_service(tmp_path, layout):
    models = tmp_path / "mnt" / "models"
    models.parent.mkdir()
    layout(models)
    read_only(models)
    flags = ("--grpc-port", "0", "--model_name", "first", "--name", "flowers")
    with ServerProcess(tmp_path / "data", models, *flags) as server:
        assert server.call("GET", "/v2/models")[1] == {"models": ["flowers"]}
        tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
        status, answer = server.call("POST", "/v2/models/flowers/infer", {"inputs": [tensor]})
        assert (status, answer["model_name"], answer["outputs"][0]["data"]) == (200, "flowers", [2, 4, 6])  # fmt: skip
        status, answer = server.call("POST", "/v1/models/flowers:predict", {"instances": [[1, 2, 3]]})  # fmt: skip
        assert (status, answer) == (200, {"predictions": [[2.0, 4.0, 6.0]]})
        assert server.call("GET", "/v1/models/flowers")[1]["ready"] is True
        with Client(server.grpc) as client:
            assert client.call("ModelReady", name="flowers").ready
        status, answer = server.call("GET", "/v2/models/flowers/config")
        loaded = server.call("POST", "/v2/repository/models/flowers/load", {"parameters": {"config": answer}})  # fmt: skip
        assert loaded == (200, {"name": "flowers", "load": True})


def test_the_name_of_the_service_is_in_the_environment(tmp_path):
    doubling(tmp_path / "models" / "model.onnx")
    server = ServerProcess(tmp_path / "data", tmp_path / "models", "--models-poll-s", "0.2")
    server.environment = {"INFERENCE_SERVICE_NAME": "flowers"}
    with server:
        assert server.call("GET", "/v2/models")[1] == {"models": ["flowers"]}
        assert server.call("GET", "/v2/models/flowers/ready")[0] == 200


def test_several_models_keep_their_names(tmp_path):
    for name in ("a", "b"):
        doubling(tmp_path / "models" / name / "model.onnx")
    with ServerProcess(tmp_path / "data", tmp_path / "models", "--name", "flowers") as server:
        assert server.call("GET", "/v2/models")[1] == {"models": ["a", "b"]}
    assert "the name 'flowers' is ignored: it is for one model, got a, b" in server.log.read_text()


def test_a_service_is_not_ready_without_its_model(tmp_path):
    doubling(tmp_path / "models" / "model.onnx").write_bytes(b"no graph")
    server = ServerProcess(tmp_path / "data", tmp_path / "models", "--name", "flowers")
    server.start(ready=False)
    try:
        server.wait_until(lambda: "failed to load" in server.log.read_text())
        for path in ("/v2/health/ready", "/v2/models/flowers/ready"):
            status, answer = server.call("GET", path)
            assert (status, "flowers" in answer["error"]) == (400, True)
    finally:
        server.stop()


@pytest.mark.skipif(
    os.geteuid() == 0, reason="the administrator of a machine may read every folder"
)
def test_a_folder_of_others_is_left_out(tmp_path):
    doubling(tmp_path / "models" / "trained" / "model.onnx")
    (tmp_path / "models" / "lost+found").mkdir(mode=0)
    with ServerProcess(tmp_path / "data", tmp_path / "models", "--name", "flowers") as server:
        assert server.call("GET", "/v2/models")[1] == {"models": ["flowers"]}
