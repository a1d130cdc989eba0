"""Folders to models: what is found, what fails alone, and under which names it answers."""

import hashlib

import numpy as np
import pytest

from quadriga.engine.repository import ModelRepository
from quadriga.engine.session import LoadError
from quadriga.proto.errors import ModelNotReady, NotFound
from tests.onnx_models import CLASSIFIER_TOML, classifier, doubling


@pytest.fixture
def root(tmp_path):
    doubling(tmp_path / "double" / "model.onnx")
    doubling(tmp_path / "m-Abc" / "exported.onnx")
    for version in ("1", "2", "10"):
        doubling(tmp_path / "versions" / version / "model.onnx")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.onnx").write_bytes(b"broken")
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "notes.txt").write_text("no model")
    doubling(tmp_path / "bad name!" / "model.onnx")
    return tmp_path


def test_models_load_and_one_failure_stops_no_other(root):
    repository = ModelRepository(root)
    assert {status.state for status in repository.statuses()} == {"LOADING"}
    with pytest.raises(ModelNotReady, match="still loading"):
        repository.get("double")
    repository.load_all()
    states = {(status.name, status.version): status.state for status in repository.statuses()}
    assert states == {
        ("double", "1"): "READY",
        ("m-Abc", "1"): "READY",
        ("versions", "10"): "READY",
        ("versions", "2"): "READY",
        ("versions", "1"): "READY",
        ("broken", "1"): "FAILED",
    }
    with pytest.raises(ModelNotReady, match="ONNX"):
        repository.get("broken")


def test_a_file_in_onnx_belongs_to_the_folder_above(tmp_path):
    folder = tmp_path / "models" / "hub"
    classifier(folder / "onnx" / "model.onnx")
    (folder / "labels.txt").write_text("a\nb\nc\n")
    (folder / "model.toml").write_text(CLASSIFIER_TOML)
    for root, name in ((tmp_path / "models", "hub"), (folder, "hub")):
        repository = ModelRepository(root)
        repository.load_all()
        assert repository.get(name).spec.labels == ("a", "b", "c")


@pytest.mark.parametrize(
    ("requested", "name"),
    [
        ("double", "double"),
        ("m-double", "double"),
        ("M-DOUBLE", "double"),
        ("m-abc", "m-Abc"),
        ("abc", "m-Abc"),
    ],
)
def test_a_model_answers_to_its_folder_and_its_id(root, requested, name):
    repository = ModelRepository(root)
    repository.load_all()
    assert repository.get(requested).name == name


@pytest.mark.parametrize(
    "requested", ["", "training", "../double", "doubl", "m-m-double", "bad name!"]
)
def test_an_unknown_model_lists_the_known(root, requested):
    with pytest.raises(NotFound, match="double"):
        ModelRepository(root).get(requested)


def test_the_highest_version_that_is_ready_is_served(root):
    (root / "versions" / "11").mkdir()
    (root / "versions" / "11" / "model.onnx").write_bytes(b"broken")
    repository = ModelRepository(root)
    repository.load_all()
    assert repository.get("versions").version == "10"
    assert repository.get("versions", "2").version == "2"
    assert list(repository.info("versions").versions) == ["11", "10", "2", "1"]
    with pytest.raises(ModelNotReady):
        repository.get("versions", "11")
    with pytest.raises(NotFound, match="11, 10, 2, 1"):
        repository.get("versions", "3")


def test_one_folder_or_one_file_is_a_repository_too(root):
    for path, name in (
        (root / "double", "double"),
        (root / "double" / "model.onnx", "double"),
        (root / "m-Abc" / "exported.onnx", "exported"),
    ):
        repository = ModelRepository(path)
        repository.load_all()
        assert repository.get(name).name == name


def test_a_stray_file_beside_model_folders_hides_none(root, caplog):
    doubling(root / "stray.onnx")
    assert {status.name for status in ModelRepository(root).statuses()} >= {"double", "versions"}
    assert "'stray.onnx' is ignored" in caplog.text
    assert "as stray/stray.onnx" in caplog.text


def test_folder_with_several_files_is_ignored_with_a_reason(root, caplog):
    doubling(root / "several" / "a.onnx")
    doubling(root / "several" / "b.onnx")
    assert "several" not in {status.name for status in ModelRepository(root).statuses()}
    assert "'several' is ignored: expected model.onnx" in caplog.text


@pytest.mark.parametrize("path", ["none", "training"])
def test_nothing_to_serve_is_an_error(root, path):
    with pytest.raises(LoadError, match=r"expected|not found"):
        ModelRepository(root / path)


def test_names_that_differ_in_case_alone_are_refused(tmp_path):
    doubling(tmp_path / "A" / "model.onnx")
    doubling(tmp_path / "a" / "model.onnx")
    with pytest.raises(LoadError, match="more than case"):
        ModelRepository(tmp_path)


@pytest.mark.parametrize(("batch", "size"), [("batch", 8), (1, -1), (4, -4)])
def test_the_batch_is_read_off_the_file(tmp_path, batch, size):
    classifier(tmp_path / "model" / "model.onnx", batch=batch)
    (tmp_path / "model" / "model.toml").write_text(CLASSIFIER_TOML)
    repository = ModelRepository(tmp_path)
    repository.load_all()
    assert repository.get("model").image_predictor.batch_size == size


def test_outputs_that_do_not_fit_the_task_fail_the_load(tmp_path):
    classifier(tmp_path / "model" / "model.onnx")
    (tmp_path / "model" / "model.toml").write_text(
        'task = "detection"\nlabels = ["a"]\n[input]\nresize = "stretch"\n[output]\ndecoder = "ultralytics"\n'
    )
    repository = ModelRepository(tmp_path)
    repository.load_all()
    (status,) = repository.statuses()
    assert status.state == "FAILED"
    assert "outputs do not fit" in status.reason


def test_a_sha256_is_the_file_s(root):
    repository = ModelRepository(root)
    repository.load_all()
    model = repository.get("double")
    assert model.sha256 == hashlib.sha256((root / "double" / "model.onnx").read_bytes()).hexdigest()
    assert np.allclose(model.session.run({"x": np.ones((1, 3), np.float32)})["y"], 2)
