"""Folders as Hugging Face and MLflow lay them out: which graph is taken, and what is read beside it."""

import json

import pytest

from quadriga.engine.models.model_folders import find_model, find_models
from quadriga.engine.models.recognition.mlflow_folder import mlflow_columns, mlflow_problem
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.models.runners.session import LoadError
from tests.onnx_models import classifier, doubling
from tests.row_models import ROW_TOML, linear

MLMODEL = """\
flavors:
  onnx:
    code: null
    data: model.onnx
    onnx_session_options: null
    onnx_version: 1.23.2
    providers:
    - CUDAExecutionProvider
    - CPUExecutionProvider
  python_function:
    data: model.onnx
    env:
      conda: conda.yaml
      virtualenv: python_env.yaml
    loader_module: mlflow.onnx
    python_version: 3.11.7
is_signature_from_type_hint: false
mlflow_version: 3.17.2
model_id: null
model_size_bytes: 179
model_uuid: b36320c19d6d47fba4d3bc93788aa7be
prompts: null
signature:
  inputs: '[{"type": "float", "name": "a b", "required": true}, {"type": "float",
    "name": "b", "required": true}, {"type": "float", "name": "c", "required": true}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1,
    4]}}]'
  params: null
type_hint_from_example: false
utc_time_created: '2026-11-25 17:54:39.714563'
"""
"""What mlflow.onnx.save_model of MLflow 3.17.2 writes for a model with a signature of columns."""


def lay_out(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"")


@pytest.mark.parametrize(
    ("paths", "taken"),
    [
        (["model.onnx", "model_quantized.onnx", "onnx/model.onnx"], "model.onnx"),
        (["onnx/model.onnx", "onnx/model_fp16.onnx", "onnx/model_q4.onnx"], "onnx/model.onnx"),
        (["onnx/model_quantized.onnx", "onnx/model_fp16.onnx"], "onnx/model_fp16.onnx"),
        (["model_quantized.onnx", "onnx/model.onnx"], "onnx/model.onnx"),
        (["model_int8.onnx", "model_optimized.onnx"], "model_int8.onnx"),
        (["onnx/other.onnx"], None),
        (["a.onnx", "b.onnx"], None),
        (["exported.onnx", "config.json"], "exported.onnx"),
    ],
)
def test_the_graph_of_a_folder(tmp_path, paths, taken):
    lay_out(tmp_path, *paths)
    assert find_model(tmp_path) == (None if taken is None else tmp_path / taken)


def test_a_variant_in_onnx_belongs_to_the_folder_above(tmp_path):
    folder = tmp_path / "models" / "hub"
    classifier(folder / "onnx" / "model_quantized.onnx")
    config = {
        "id2label": {"0": "a", "1": "b", "2": "c"},
        "architectures": ["ViTForImageClassification"],
    }
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "vit"}))
    processor = {"size": 8, "image_mean": [0, 0, 0], "image_std": [1, 1, 1], "resample": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    for root in (tmp_path / "models", folder):
        repository = ModelRepository(root)
        repository.load_all()
        assert repository.get("hub").labels == ("a", "b", "c")


def mlflow_folder(root, text=MLMODEL, graph="model.onnx"):
    root.mkdir(parents=True, exist_ok=True)
    (root / "MLmodel").write_text(text)
    lay_out(root, "conda.yaml", "python_env.yaml", "requirements.txt", "input_example.json")
    if graph:
        doubling(root / graph)
    return root


def test_an_mlflow_model_is_served_alone_and_beside_others(tmp_path):
    mlflow_folder(tmp_path / "models" / "churn")
    mlflow_folder(
        tmp_path / "models" / "named", MLMODEL.replace("data: model", "data: net"), "net.onnx"
    )
    doubling(tmp_path / "models" / "named" / "other.onnx")
    repository = ModelRepository(tmp_path / "models")
    assert sorted(repository.names()) == ["churn", "named"]
    repository.load_all()
    assert repository.get("churn").version == "1"
    for name in ("churn", "named"):
        assert ModelRepository(tmp_path / "models" / name).names() == [name]


@pytest.mark.parametrize(
    "data",
    [
        "../model.onnx",
        "/etc/passwd",
        "model.pkl",
        "sub/model.onnx",
        "[1]",
        "null",
        ".onnx",
        "'*.onnx'",
    ],
)
def test_a_graph_elsewhere_is_none(tmp_path, data):
    folder = mlflow_folder(
        tmp_path / "models" / "odd", MLMODEL.replace("data: model.onnx", f"data: {data}"), ""
    )
    lay_out(folder, "a.onnx", "b.onnx", "sub/model.onnx", "model.pkl")
    lay_out(tmp_path, "models/model.onnx")
    assert find_model(folder) is None


def test_another_flavour_is_named(tmp_path, caplog):
    text = "flavors:\n  python_function: {loader_module: mlflow.sklearn}\n  sklearn: {pickled_model: model.pkl}\n"
    folder = mlflow_folder(tmp_path / "models" / "forest", text, "")
    assert find_models(tmp_path / "models") == {}
    assert "'forest' is ignored: expected the flavour onnx" in caplog.text
    assert "got python_function, sklearn" in caplog.text
    with pytest.raises(LoadError, match="no model found"):
        ModelRepository(folder)
    assert mlflow_problem(tmp_path) is None


ALONE = {
    "a version": ("gauge/2", ["gauge/1/model.onnx", "gauge/2/model.onnx"], ("gauge", "2")),
    "its file": ("gauge/2/model.onnx", ["gauge/2/model.onnx"], ("gauge", "2")),
    "its file in the folder onnx": ("gauge/2/onnx/model.onnx", ["gauge/2/onnx/model.onnx"], ("gauge", "2")),
    "beside a first version": ("gauge/2", ["gauge/model.onnx", "gauge/2/a.onnx"], ("gauge", "2")),
    "a second first version": ("gauge/1", ["gauge/model.onnx", "gauge/1/model.onnx"], ("1", "1")),
    "a model with a number for a name": ("models/2", ["models/2/model.onnx", "models/gauge/model.onnx"], ("2", "1")),
    "a model with versions": ("models/2", ["models/2/2/model.onnx", "models/2/1/model.onnx"], ("2", "2")),
    "below a name that none may have": ("my gauge/2", ["my gauge/2/model.onnx"], ("2", "1")),
}  # fmt: skip


@pytest.mark.parametrize(("path", "files", "expected"), ALONE.values(), ids=ALONE)
def test_a_version_that_is_named_alone_keeps_its_name_and_number(tmp_path, path, files, expected):
    lay_out(tmp_path, *files)
    ((name, versions),) = find_models(tmp_path / path).items()
    assert (name, next(iter(versions))) == expected


BOMB = "a0: &a0 {k0: 1, k1: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no: [",
        "[]",
        "flavors: 3",
        "flavors: [onnx]",
        "flavors: {onnx: 1}",
        "\x00",
        "!!python/object/apply:os.system ['touch owned']",
        "a: " + "[" * 1500,
        "a: 2026-99-99",
        BOMB,
        "a: b\n" * 300_000,
    ],
    ids=range(12),
)
def test_a_damaged_or_hostile_mlmodel_harms_nothing(tmp_path, text, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = mlflow_folder(tmp_path / "models" / "odd", text, "")
    assert find_models(tmp_path / "models") == {}
    assert "got no flavours" in mlflow_problem(folder) or "got onnx" in mlflow_problem(folder)
    assert mlflow_columns(folder) == ()
    assert not (tmp_path / "owned").exists()
    doubling(folder / "model.onnx")
    assert find_models(tmp_path / "models") == {"odd": {"1": folder / "model.onnx"}}


@pytest.mark.parametrize(
    ("inputs", "columns"),
    [
        ('[{"type": "double", "name": "a"}, {"type": "long", "name": "b"}]', ("a", "b")),
        ('[{"type": "tensor", "name": "x", "tensor-spec": {"dtype": "float32"}}]', ()),
        ('[{"type": "double"}]', ()),
        ("[1]", ()),
        ("{}", ()),
        ("no JSON", ()),
        ("[" * 100_000, ()),
    ],
    ids=range(7),
)
def test_the_names_of_columns(tmp_path, inputs, columns):
    (tmp_path / "MLmodel").write_text(f"signature:\n  inputs: '{inputs}'\n")
    assert mlflow_columns(tmp_path) == columns


def test_rows_have_the_names_of_the_columns_that_mlflow_knows(tmp_path):
    linear(tmp_path / "irises" / "model.onnx")
    (tmp_path / "irises" / "model.toml").write_text(ROW_TOML)
    names = ("sepal length", "sepal width", "petal length", "petal width")
    columns = json.dumps([{"type": "double", "name": name} for name in names])
    (tmp_path / "irises" / "MLmodel").write_text(f"signature:\n  inputs: '{columns}'\n")
    repository = ModelRepository(tmp_path)
    repository.load_all()
    assert repository.get("irises").recognition.rows.features == names
