"""Overrides that a client may send with a load, and their limits."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadriga.engine.overrides import check_path, read_config, write_files
from quadriga.engine.session import LoadError
from quadriga.proto.errors import InvalidRequest, TooLarge


def test_a_config_is_a_model_toml_and_what_triton_says():
    values, policy = read_config(
        {
            "name": "any",
            "backend": "onnxruntime",
            "platform": "",
            "max_batch_size": 4,
            "task": "tensor",
            "runtime": {"warmup": False},
            "version_policy": {"latest": {"num_versions": "2"}},
        }
    )
    assert values == {"task": "tensor", "runtime": {"max_batch": 4, "warmup": False}}
    assert policy.choose(["10", "2", "1"]) == ["10", "2"]
    assert read_config({"max_batch_size": 0})[0] == {"runtime": {"max_batch": 1}}


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ({}, ["10", "2", "1"]),
        ({"all": {}}, ["10", "2", "1"]),
        ({"latest": {}}, ["10"]),
        ({"specific": {"versions": ["1", 10]}}, ["10", "1"]),
    ],
)
def test_a_version_policy_chooses(policy, chosen):
    assert read_config({"version_policy": policy})[1].choose(["10", "2", "1"]) == chosen


@pytest.mark.parametrize("versions", [[], [3], [1, 3]])
def test_versions_that_are_not_there_are_refused(versions):
    _, policy = read_config({"version_policy": {"specific": {"versions": versions}}})
    with pytest.raises(LoadError, match="versions among 2, 1"):
        policy.choose(["2", "1"])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"backend": "python"}, "backend"),
        ({"platform": "tensorrt_plan"}, "platform"),
        ({"input": [{"name": "x"}]}, "expected input to be the table"),
        ({"runtime": []}, "expected runtime to be the table"),
        ({"version_policy": {"newest": {}}}, "newest"),
        ({"version_policy": {"latest": {"num_versions": 0}}}, "version_policy"),
        ({"output": {"decoder": "os:system"}}, "decoder of this server"),
        ({"labels": "../../etc/passwd"}, "relative path"),
        ({"labels": "/etc/passwd"}, "relative path"),
    ],
)
def test_disallowed_config_values_are_named(config, message):
    with pytest.raises(LoadError, match=message) as caught:
        read_config(config)
    assert str(caught.value).startswith(("config: ", "expected a relative path"))


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../model.onnx",
        "1/../../model.onnx",
        "1//model.onnx",
        "./model.onnx",
        "1/.hidden",
        "C:\\model.onnx",
        "..\\model.onnx",
        "model\0.onnx",
        "a" * 129,
        "/".join("a" * 9),
        "model.onnx\n",
        "model.onnx/",
        "%2e%2e/model.onnx",
        "model.toml",
        "1/model.toml",
    ],
)
def test_paths_that_lead_elsewhere_are_refused(tmp_path, path):
    with pytest.raises(InvalidRequest, match="file:"):
        write_files({"1/model.onnx": b"1", path: b"2"}, tmp_path / "run", 100)
    assert list(tmp_path.rglob("*")) == []


@given(st.text(alphabet="ab./\\~ \0é", max_size=12))
def test_no_path_that_passes_leads_out(path):
    try:
        check_path(path)
    except LoadError:
        return
    assert (Path("/folder") / path).resolve().is_relative_to("/folder/")
    assert not Path(path).is_absolute()


def test_files_are_written_into_a_folder_of_their_own(tmp_path):
    files = {"1/model.onnx": b"graph", "1/weights/part.0": b"w", "labels.txt": b""}
    folder = write_files(files, tmp_path, 6)
    two = write_files(files, tmp_path, 6)
    assert folder != two
    assert folder.parent == tmp_path
    contents = {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    assert contents == files
    assert folder.stat().st_mode & 0o777 == 0o700


def test_files_are_bounded_and_are_no_folders_too(tmp_path):
    with pytest.raises(TooLarge, match="at most 5 bytes, got 6"):
        write_files({"a": b"123", "b": b"456"}, tmp_path, 5)
    for files in ({"a": b"", "a/b": b""}, {"a/b/c": b"", "a": b""}, {"a/b": b"", "a": b""}):
        with pytest.raises(InvalidRequest, match="expected a folder 'a', got a file"):
            write_files(files, tmp_path, 5)
    assert list(tmp_path.iterdir()) == []
