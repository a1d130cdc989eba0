import shutil

import pytest

from quadriga.engine.models.model_folders import find_versions
from quadriga.engine.models.runners.session import LoadError
from quadriga.extras.tuning.quantizer import QuantizationError
from quadriga.extras.tuning.versions import (
    STAGING,
    find_source,
    next_version,
    publish,
    staging_folder,
)
from tests.onnx_models import doubling


@pytest.fixture
def models(tmp_path):
    doubling(tmp_path / "flat" / "model.onnx")
    doubling(tmp_path / "grown" / "model.onnx")
    doubling(tmp_path / "grown" / "2" / "model.onnx")
    doubling(tmp_path / "grown" / "1" / "model.onnx")
    doubling(tmp_path / "numbered" / "1" / "model.onnx")
    doubling(tmp_path / "numbered" / "10" / "model.onnx")
    (tmp_path / "empty").mkdir()
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "flat")
    return tmp_path


def test_numbered_folders_beside_a_model_are_later_versions(models):
    grown = models / "grown"
    assert find_versions(grown) == {"2": grown / "2/model.onnx", "1": grown / "model.onnx"}


SOURCES = {
    "folder": ("{models}/flat", "flat", "1", "model.onnx"),
    "file": ("{models}/flat/model.onnx", "flat", "1", "model.onnx"),
    "highest version": ("{models}/numbered", "numbered", "10", "10/model.onnx"),
    "folder of a version": ("{models}/numbered/1", "numbered", "1", "1/model.onnx"),
    "folder at a version": ("{models}/numbered@1", "numbered", "1", "1/model.onnx"),
    "name": ("flat", "flat", "1", "model.onnx"),
    "name at a version": ("grown@1", "grown", "1", "model.onnx"),
    "id": ("m-Flat", "flat", "1", "model.onnx"),
}


@pytest.mark.parametrize(("text", "name", "version", "path"), SOURCES.values(), ids=SOURCES)
def test_a_version_is_found_by_its_folder_or_its_name(models, text, name, version, path):
    source = find_source(text.format(models=models), models)
    assert (source.name, source.version) == (name, version)
    assert source.path == models / name / path


ABSENT = {
    "name": ("flot", LoadError, "did you mean flat"),
    "version": ("flat@3", LoadError, "version not found: 3 of flat"),
    "model in a folder": ("{models}/empty", LoadError, "expected a folder with an ONNX file"),
    "folder, but an archive": ("{models}/packed.zip", QuantizationError, "unpack it first"),
    "name of an archive": ("packed", QuantizationError, "unpack it first"),
}


@pytest.mark.parametrize(("text", "error", "message"), ABSENT.values(), ids=ABSENT)
def test_what_is_absent_is_named(models, text, error, message):
    with pytest.raises(error, match=message):
        find_source(text.format(models=models), models)


def test_a_new_version_has_the_sidecars_but_not_the_labels_of_its_source(models):
    flat = models / "flat"
    (flat / "model.toml").write_text(
        'task = "tensor"\n[runtime]\nversion_labels = ["stable",\n  "new"] # ours\nmax_batch = 2\n'
    )
    (flat / "labels.txt").write_text("cat\n")
    (flat / "model.onnx.data").write_bytes(b"weights")
    (flat / STAGING).mkdir()
    (flat / STAGING / "left").touch()  # by a command that was killed
    with staging_folder(find_source("flat", models)) as staging:
        assert sorted(file.name for file in staging.iterdir()) == ["labels.txt", "model.toml"]
        toml = (staging / "model.toml").read_text()
        assert toml == 'task = "tensor"\n[runtime]\nmax_batch = 2\n'
        doubling(staging / "model.onnx")
        assert find_versions(flat) == {"1": flat / "model.onnx"}
        assert next_version(flat) == "2"
        publish(staging, "2")
    assert find_versions(flat) == {"2": flat / "2/model.onnx", "1": flat / "model.onnx"}
    assert not (flat / STAGING).exists()


def test_a_version_that_fails_leaves_nothing_and_another_is_not_written_beside_it(models):
    source = find_source("flat", models)
    with (
        staging_folder(source),
        pytest.raises(QuantizationError, match="by another command"),
        staging_folder(source),
    ):
        pytest.fail("two at once")
    with pytest.raises(OSError, match="full"), staging_folder(source):
        raise OSError("full")
    assert not (source.folder / STAGING).exists()


def test_labels_in_a_form_that_is_not_found_are_refused(models):
    (models / "flat" / "model.toml").write_text('runtime = {version_labels = ["a"]}\n')
    with (
        pytest.raises(QuantizationError, match="version_labels"),
        staging_folder(find_source("flat", models)),
    ):
        pytest.fail("it would have the labels of its source")


def test_a_number_that_is_taken_is_not_given_again(models):
    (models / "flat" / "7").mkdir()  # no version yet: somebody copies one
    assert next_version(models / "flat") == "8"
