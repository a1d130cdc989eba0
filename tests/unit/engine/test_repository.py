"""Folders to models: what is found, what fails alone, and under which names it answers."""

import hashlib
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from quadriga.engine.models.model_archives import UnpackedArchives
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.errors import ModelNotReady, NotFound
from tests.onnx_models import CLASSIFIER_TOML, classifier, doubling, tripling


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


def test_folders_that_differ_in_case_alone_are_ignored_and_the_others_are_served(tmp_path, caplog):
    for name in ("A", "a", "other"):
        doubling(tmp_path / name / "model.onnx")
    repository = ModelRepository(tmp_path)
    assert repository.names() == ["other"]
    assert "'A' is ignored: another folder differs from it in letter case alone" in caplog.text
    assert "'a' is ignored" in caplog.text


def test_a_folder_named_like_an_id_hides_no_other_folder(tmp_path):
    for name in ("bar", "m-bar", "m-baz"):
        doubling(tmp_path / name / "model.onnx")
    repository = ModelRepository(tmp_path)
    repository.load_all()
    meant = {name: repository.get(name).name for name in ("bar", "BAR", "m-bar", "M-Bar", "baz")}
    assert meant == {"bar": "bar", "BAR": "bar", "m-bar": "m-bar", "M-Bar": "m-bar", "baz": "m-baz"}


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


def zip_folder(folder, target=None):
    """Replace a folder by an archive of it, or by `target`."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    with zipfile.ZipFile(target or folder.with_name(f"{folder.name}.zip"), "w") as archive:
        for name, path in files.items():
            archive.write(path, name)
    shutil.rmtree(folder)


def test_an_archive_is_served_like_a_folder(root, tmp_path_factory):
    unpacked = tmp_path_factory.mktemp("data") / "archives"
    for name in ("double", "versions", "m-Abc"):
        zip_folder(root / name)
    (root / "training.zip").write_bytes(b"no zip")
    zip_folder(root / "training", root / "notes.zip")
    repository = ModelRepository(root, archives=UnpackedArchives(unpacked))
    assert {status.state for status in repository.statuses()} == {"LOADING"}
    repository.load_all()
    states = {(status.name, status.version): status.state for status in repository.statuses()}
    assert states == {
        ("broken", "1"): "FAILED",
        ("double", "1"): "READY",
        ("m-Abc", "1"): "READY",
        ("versions", "10"): "READY",
        ("versions", "2"): "READY",
        ("versions", "1"): "READY",
        ("training", "1"): "FAILED",
        ("notes", "1"): "FAILED",
    }
    reasons = {status.name: status.reason for status in repository.statuses()}
    assert reasons["training"] == "cannot unpack training.zip: File is not a zip file"
    assert reasons["notes"].startswith("no model found in notes.zip: expected model.onnx")
    assert repository.get("m-abc").name == "m-Abc"
    for name in ("training", "notes"):
        with pytest.raises(LoadError, match=f"{name}.zip"):
            repository.load(name)


def test_a_changed_archive_is_served_after_a_load(tmp_path):
    models, unpacked = tmp_path / "models", tmp_path / "archives"
    doubling(models / "a" / "model.onnx")
    zip_folder(models / "a")
    repository = ModelRepository(models, archives=UnpackedArchives(unpacked))
    repository.load_all()
    first = repository.get("a")
    repository.load("a")
    assert repository.get("a").sha256 == first.sha256
    tripling(models / "a" / "2" / "model.onnx")
    zip_folder(models / "a")
    assert repository.load("A") == "a"
    assert repository.get("a").version == "2"
    assert repository.get("a").sha256 != first.sha256
    assert len([path for path in unpacked.iterdir() if path.is_dir()]) == 1
    (models / "a.zip").write_bytes(b"no zip")
    with pytest.raises(LoadError, match=r"a\.zip: File is not a zip file"):
        repository.load("a")
    assert repository.get("a").version == "2"
    (models / "b.tar.gz").write_bytes(b"no tar")
    with pytest.raises(LoadError, match=r"b\.tar\.gz"):
        repository.load("b")
    assert repository.names() == ["a"]


def test_an_archive_beside_a_folder_of_its_name_leaves_out_both(tmp_path, caplog):
    for name in ("a", "B", "c", "d", "other"):
        doubling(tmp_path / name / "model.onnx")
    for path in ("A.zip", "b.tar.gz", "e.zip", "e.tar", "bad name!.zip", "no-model.zip"):
        (tmp_path / path).touch()
    (tmp_path / "no-model").mkdir()
    repository = ModelRepository(tmp_path)
    assert repository.names() == ["c", "d", "other", "no-model"]
    for left_out, other in (
        ("a", "A.zip"),
        ("A.zip", "a"),
        ("B", "b.tar.gz"),
        ("b.tar.gz", "B"),
        ("e.zip", "e.tar"),
        ("e.tar", "e.zip"),
    ):
        assert f"{left_out!r} is ignored: {other!r} has the same name" in caplog.text
    assert "'bad name!.zip' is ignored: expected a name of" in caplog.text
    repository.load_all()
    reasons = {status.name: status.reason for status in repository.statuses()}
    assert reasons["no-model"] == "cannot unpack no-model.zip: there is no data folder"


def test_one_archive_is_a_repository_too(root, tmp_path_factory):
    zip_folder(root / "versions")
    unpacked = tmp_path_factory.mktemp("data") / "archives"
    repository = ModelRepository(root / "versions.zip", archives=UnpackedArchives(unpacked))
    repository.load_all()
    assert repository.get("versions").version == "10"


def test_a_model_file_beside_archives_hides_none(tmp_path, caplog):
    doubling(tmp_path / "a" / "model.onnx")
    zip_folder(tmp_path / "a")
    doubling(tmp_path / "stray.onnx")
    assert ModelRepository(tmp_path).names() == ["a"]
    assert "'stray.onnx' is ignored" in caplog.text


ABOVE = [  # labels.txt of the folder of all versions and that of version 2, the labels of version 2, what the log says
    (("a\nb\nc\n", None), ("a", "b", "c"), ""),
    (("a\nb\n", None), ("class_0", "class_1", "class_2"), "class 0 is 'class_0', was 'a'"),
    (("a\nb\nc\n", "a\nc\nb\n"), ("a", "c", "b"), "labels differ from those of version 1: class 1 is 'c', was 'b'"),
    ((None, None), ("class_0", "class_1", "class_2"), "class 0 is 'class_0', was 'a'"),
    ((None, "a\nb\nc\n"), ("a", "b", "c"), ""),
]  # fmt: skip


@pytest.mark.parametrize(("files", "labels", "warning"), ABOVE)
def test_a_version_without_labels_has_those_above_if_they_fit(
    tmp_path, caplog, files, labels, warning
):
    folder = tmp_path / "gauge"
    for version in ("1", "2"):
        classifier(folder / version / "model.onnx")
        (folder / version / "model.toml").write_text(CLASSIFIER_TOML)
    (folder / "1" / "labels.txt").write_text("a\nb\nc\n")
    for text, path in zip(files, (folder, folder / "2"), strict=True):
        if text is not None:
            (path / "labels.txt").write_text(text)
    repository = ModelRepository(tmp_path)
    repository.load_all()
    assert repository.get("gauge", "2").labels == labels
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == bool(warning)
    assert all(warning in text for text in warnings)


def test_a_label_file_beside_models_names_no_classes_of_theirs(tmp_path):
    classifier(tmp_path / "gauge" / "model.onnx")
    (tmp_path / "gauge" / "model.toml").write_text(CLASSIFIER_TOML)
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    repository = ModelRepository(tmp_path)
    repository.load_all()
    assert repository.get("gauge").labels == ("class_0", "class_1", "class_2")


@pytest.mark.parametrize("is_unloaded", [False, True])
@pytest.mark.parametrize("is_changed", [False, True])
def test_another_file_of_a_version_is_in_the_log(tmp_path, caplog, is_unloaded, is_changed):
    path = doubling(tmp_path / "gauge" / "model.onnx")
    repository = ModelRepository(tmp_path)
    repository.load_all()
    before = repository.get("gauge").sha256
    if is_changed:
        tripling(path)
    if is_unloaded:
        repository.unload("gauge")
    repository.load("gauge")
    expected = (
        f"gauge 1: the file changed, sha256 {repository.get('gauge').sha256[:12]} was {before[:12]}: "
        "give it a new version so that reports can tell them apart"
    )
    texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert texts == [expected] * is_changed


FIRST_LOADS = """
import os, sys, threading
from quadriga.engine.config.schema import build_types
from quadriga.engine.models.recognition.model_toml import ModelToml, convert

sys.setswitchinterval(1e-6)
build_types()

def load():
    together.wait()
    convert({"runtime": {"max_batch": 3}}, ModelToml, "model.toml:")

for _ in range(60):
    child = os.fork()
    if not child:
        together = threading.Barrier(4)
        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "a process that loads models at once has ended"
"""


def test_the_first_loads_of_a_process_may_be_at_once():
    command = [sys.executable, "-c", FIRST_LOADS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
