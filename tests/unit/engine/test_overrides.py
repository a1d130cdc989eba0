"""Overrides that a client may send with a load, and their limits."""

import io
import json
import shutil
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from quadriga.engine.models.image_text.generation import TextTable
from quadriga.engine.models.overrides import Override, check_path, read_config, write_files
from quadriga.engine.models.recognition.model_toml import SPECIFIED, ModelToml
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.errors import InvalidRequest, TooLarge
from quadriga.proto.grpc.messages import message_class
from quadriga.proto.http.v2_extensions import config_json
from tests.onnx_models import doubling

SAMPLES = Path(__file__).parents[3] / "sample_models"
TABLES = {**SPECIFIED, "text": TextTable}
"""Tables whose keys are those of a struct elsewhere."""
REFERENCE = "open_door:attribute"


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
    for platform in ("onnxruntime_onnx", "onnx_onnxv1"):
        assert read_config({"platform": platform}) == read_config({})
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
        ({"platform": "tensorrt_plan"}, "'onnxruntime_onnx' or 'onnx_onnxv1', got 'tensorrt_plan'"),
        ({"input": "x"}, "expected input to be the table"),
        ({"runtime": []}, "expected runtime to be the table"),
        ({"version_policy": {"newest": {}}}, "newest"),
        ({"version_policy": {"latest": {"num_versions": 0}}}, "version_policy"),
        ({"output": {"decoder": "os:system"}}, "output.decoder to be a name of this server"),
        ({"task": "os:system"}, "task to be a name of this server"),
        ({"any": [{"deep": ("os:system",)}]}, "any.deep to be a name of this server"),
        ({"labels": "../../etc/passwd"}, "relative path"),
        ({"labels": "/etc/passwd"}, "relative path"),
    ],
)
def test_disallowed_config_values_are_named(config, message):
    with pytest.raises(LoadError, match=message) as caught:
        read_config(config)
    assert str(caught.value).startswith(("config: ", "expected a relative path"))


@pytest.fixture(scope="module")
def doubling_models(tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    doubling(models / "doubling" / "model.onnx")
    doubling(models / "fixed" / "2" / "model.onnx", batch=2)
    doubling(models / "fixed" / "10" / "model.onnx", batch=2)
    shutil.copytree(SAMPLES / "shapes-classifier", models / "shapes-classifier")
    return ModelRepository(models)


@pytest.mark.parametrize("model", ["doubling", "fixed", "shapes-classifier"])
@pytest.mark.parametrize("by_grpc", [False, True])
@pytest.mark.parametrize("larger", [{}, {"max_batch_size": 16}])
def test_the_configuration_of_a_model_is_taken_back(doubling_models, model, by_grpc, larger):
    doubling_models.load(model)
    info = doubling_models.info(model, None)
    config = config_json(info)
    if by_grpc:
        message = json_format.Parse(json.dumps(config), message_class("ModelConfig")())
        config = json_format.MessageToDict(message, preserving_proto_field_name=True)
        assert config["version_policy"]["specific"]["versions"] == [*info.versions]
    if config.get("max_batch_size"):
        config |= larger
    for _ in range(2):
        doubling_models.load(model, Override(config))
    expected = config.get("max_batch_size", 0)
    assert config_json(doubling_models.info(model, None))["max_batch_size"] == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "other"}, "expected name to be 'doubling', got 'other'"),
        ({"name": 1}, "expected name to be 'doubling', got 1"),
        ({"input": [{"name": "z"}]}, r"expected input to name tensors of the model \(x\), got 'z'"),
        ({"input": [{"name": "x", "data_type": "TYPE_INT8"}]}, "'x' to be TYPE_FP32 of dims .3., got 'TYPE_INT8'"),
        ({"output": [{"name": "y", "dims": [4]}]}, "'y' to be TYPE_FP32 of dims .3., got"),
        ({"max_batch_size": 4, "output": [{"name": "y", "dims": [-1, 3]}]}, "'y' to be TYPE_FP32 of dims"),
        ({"input": ["x"]}, "input: Expected `object`"),
        ({"input": [{"name": "x", "dims": "3"}]}, "input: Expected `array"),
    ],
)  # fmt: skip
def test_a_configuration_of_another_model_is_refused(doubling_models, config, message):
    with pytest.raises(LoadError, match=message):
        doubling_models.load("doubling", Override(config))


@pytest.mark.parametrize(
    "config",
    [
        {"name": ""},
        {"name": "m-doubling"},
        {"input": [{"name": "x", "dims": ["-1", "3"], "format": "FORMAT_NONE"}]},
        {"output": [{"name": "y"}]},
    ],
)
def test_a_configuration_may_leave_out_what_follows_from_the_files(doubling_models, config):
    assert doubling_models.load("doubling", Override(config)) == "doubling"


def text_keys(struct, prefix=""):
    """Yield every key of model.toml that takes a text, with a value that has the text in it."""
    for field in msgspec.structs.fields(struct):
        key = f"{prefix}{field.encode_name}"
        if key in TABLES:
            yield from text_keys(TABLES[key], f"{key}.")
            continue
        types = [field.type, *get_args(field.type)]
        for inner in types:
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield from text_keys(inner, f"{key}.")
        for value in (REFERENCE, [REFERENCE], {"a": REFERENCE}):
            with suppress(msgspec.ValidationError):
                msgspec.convert(value, field.type)
                yield key, value


KEYS = [pytest.param(key, value, id=f"{key}-{value!r:.1}") for key, value in text_keys(ModelToml)]


def nested(key, value):
    first, _, rest = key.partition(".")
    return {first: nested(rest, value) if rest else value}


@pytest.fixture
def open_door(tmp_path, monkeypatch):
    """Return a function that says whether the module of `REFERENCE` was imported."""
    (tmp_path / "open_door.py").write_text("def attribute(*_): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: "open_door" in sys.modules
    sys.modules.pop("open_door", None)


@pytest.mark.parametrize(("key", "value"), KEYS)
@pytest.mark.parametrize("model", [path.parent.name for path in SAMPLES.glob("*/model.toml")])
def test_no_key_of_a_client_imports_anything(open_door, model, key, value):
    with suppress(LoadError):
        ModelRepository(SAMPLES).load(model, Override(nested(key, value)))
    assert not open_door()


def test_a_client_borrows_no_other_model():
    config = {"monitor": {"embedding": "model:shapes-classifier"}}
    with pytest.raises(LoadError, match=r"that of another model stands in model\.toml"):
        read_config(config)
    assert read_config({"monitor": {"embedding": "none"}})[0] == {"monitor": {"embedding": "none"}}


def test_the_keys_of_a_client_are_those_of_model_toml():
    keys = {parameter.values[0] for parameter in KEYS}
    assert {"task", "family", "labels", "output.decoder", "monitor.embedding"} <= keys
    assert {"text.prompt_template", "runtime.providers", "input.name", "features"} <= keys


@pytest.mark.parametrize(
    ("model", "key"), [("shapes-classifier", "task"), ("shapes-detector", "output.decoder")]
)
def test_the_operator_may_name_code(tmp_path, open_door, model, key):
    folder = shutil.copytree(SAMPLES / model, tmp_path / "any")
    toml = (folder / "model.toml").read_text()
    name = key.rpartition(".")[2]
    lines = [line for line in toml.splitlines() if not line.startswith((f"{name} ", "family"))]
    place = 0 if key == "task" else lines.index("[output]") + 1
    lines.insert(place, f'{name} = "{REFERENCE}"')
    (folder / "model.toml").write_text("\n".join(lines))
    with suppress(LoadError, AttributeError):
        ModelRepository(folder).load("any")
    assert open_door()


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


def archive_of(files):
    """Return a zip of files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def test_an_archive_stands_for_its_files(tmp_path):
    files = {"1/model.onnx": b"graph", "labels.txt": b"a"}
    for prefix in ("", "model/"):
        data = archive_of({prefix + path: content for path, content in files.items()})
        folder = write_files({"sent.zip": data}, tmp_path, 1000)
        assert (folder / "1" / "model.onnx").read_bytes() == b"graph"
        assert (folder / "labels.txt").read_bytes() == b"a"
        assert len(list(folder.iterdir())) == 2
    nested = write_files({"1/weights.zip": data, "1/model.onnx": b"graph"}, tmp_path, 1000)
    assert (nested / "1" / "weights.zip").read_bytes() == data


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"model.onnx": b"x", "model.toml": b"task"}, "expected what model.toml says as config"),
        ({"model.onnx": b"x", "../x": b"x"}, "expected relative paths"),
        ({"model.onnx": b"x", ".hidden": b"x"}, "file:.hidden"),
        ({"model.onnx": bytes(2000)}, "at most 1000 bytes, got more"),
        (None, "not a zip"),
    ],
)
def test_an_archive_has_the_limits_of_files(tmp_path, files, message):
    data = b"no zip" if files is None else archive_of(files)
    with pytest.raises((InvalidRequest, LoadError), match=message):
        write_files({"sent.zip": data}, tmp_path / "run", 1000)
    assert list(tmp_path.rglob("*")) == []
