"""An installation from which the folder of an extra was deleted: everything else goes on, and the extra is said to be missing."""

import shutil

import pytest

from tests.onnx_models import doubling
from tests.server_process import ROOT, ServerProcess, quadriga

OIDC = ("--oidc-issuer", "https://login.example.org", "--oidc-client-id", "q", "--oidc-roles", "sub:*=read")  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with a copy of the package."""
    folder = tmp_path_factory.mktemp("site")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "quadriga", folder / "quadriga", ignore=ignored)
    return folder


@pytest.fixture
def without(site, tmp_path, monkeypatch):
    """Return what takes an extra away for the rest of the test, and has commands use the copy."""
    monkeypatch.setenv("PYTHONPATH", str(site))
    doubling(tmp_path / "models" / "doubling" / "model.onnx")
    taken = []

    def take(name):
        folder = site / "quadriga" / "extras" / name
        folder.rename(tmp_path / name)
        taken.append((tmp_path / name, folder))

    yield take
    for away, folder in taken:
        away.rename(folder)


def refused_start(tmp_path, models, *flags):
    answer = quadriga(
        "serve",
        models,
        "--port",
        "0",
        "--grpc-port",
        "-1",
        "--data",
        tmp_path / "data",
        *flags,
        code=2,
    )
    return answer.stdout + answer.stderr


def test_without_tuning_its_commands_are_absent(without):
    without("tuning")
    listed = quadriga("--help", code=0).stdout
    assert "inspect" in listed
    assert "quantize" not in listed
    for name in ("profile", "quantize"):
        assert f"No such command '{name}'" in quadriga(name, "x", code=2).stderr


def test_without_clickhouse_a_copy_to_it_is_refused(without):
    without("clickhouse")
    answer = quadriga("store", "copy", "sqlite:///store.db", "http://127.0.0.1:9/db", code=2)
    assert "requires quadriga.extras.clickhouse, which is not here" in answer.stderr


def test_without_dataset_formats_theirs_are_refused(without, tmp_path):
    without("dataset_formats")
    (tmp_path / "a.xml").write_text("<annotations/>")
    asked = ("--as", "ground-truth", "--data", tmp_path / "data")
    answer = quadriga("import", tmp_path / "a.xml", *asked, code=2)
    assert "the format cvat requires a folder of quadriga.extras that is not here" in answer.stderr


def test_without_label_studio_a_server_has_no_paths_of_it(without, tmp_path):
    without("label_studio")
    with ServerProcess(tmp_path / "data", tmp_path / "models", "--insecure") as server:
        status, answer = server.call("GET", "/label-studio/doubling/health")
        assert (status, "expected a path of this server" in answer["error"]) == (404, True)


def test_without_sign_on_a_provider_ends_the_start(without, tmp_path):
    without("sign_on")
    said = refused_start(tmp_path, tmp_path / "models", *OIDC)
    assert "oidc_issuer requires quadriga.extras.sign_on, which is not here" in said


@pytest.mark.parametrize("source", ["flag", "variable", "old variable", "file"])
def test_without_its_folder_an_extra_has_no_settings(without, tmp_path, monkeypatch, source):
    without("sign_on")
    assert "extras-sign-on" not in quadriga("serve", "--help", code=0).stdout
    flags = ("--extras-sign-on-client-secret", "x") if source == "flag" else ()
    if source.endswith("variable"):
        name = "EXTRAS_SIGN_ON" if source == "variable" else "OIDC"
        (tmp_path / "secret").write_text("x")
        monkeypatch.setenv(f"QUADRIGA_{name}_CLIENT_SECRET_FILE", str(tmp_path / "secret"))
    if source == "file":
        file = tmp_path / "quadriga.toml"
        file.write_text("[extras.sign_on]\nclient_secret = 'x'\n")
        monkeypatch.setenv("QUADRIGA_CONFIG", str(file))
    said = refused_start(tmp_path, tmp_path / "models", *flags)
    assert "requires quadriga.extras.sign_on, which is not here" in " ".join(said.split())


@pytest.mark.parametrize(
    ("models", "flags", "user"),
    [("s3://bucket/models", (), "s3://"), (None, ("--models-poll-s", "1"), "models_poll_s")],
)
def test_without_object_stores_a_source_of_models_ends_the_start(
    without, tmp_path, models, flags, user
):
    without("object_stores")
    said = refused_start(tmp_path, models or tmp_path / "models", *flags)
    assert f"{user} requires quadriga.extras.object_stores, which is not here" in said


def test_without_any_extra_a_server_answers(without, tmp_path):
    for name in (
        "clickhouse",
        "dataset_formats",
        "label_studio",
        "object_stores",
        "sign_on",
        "tuning",
    ):
        without(name)
    body = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
    with ServerProcess(tmp_path / "data", tmp_path / "models") as server:
        status, answer = server.call("POST", "/v2/models/doubling/infer", body)
        assert (status, answer["outputs"][0]["data"]) == (200, [2, 4, 6])
