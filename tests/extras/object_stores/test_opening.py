"""Sources as settings name them, and their metrics."""

import time

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from quadriga.engine.assembly.app import _open_source
from quadriga.engine.config.settings import Settings
from quadriga.engine.models.model_host import ModelHost
from quadriga.engine.models.runners.session import LoadError
from quadriga.extras.object_stores.fetched import FetchedModels
from quadriga.extras.object_stores.polled import WatchedFolder
from quadriga.extras.object_stores.source import SourceStatus, SourceWatch, try_versions
from tests.onnx_models import doubling


@pytest.mark.parametrize(
    ("models", "poll_s", "kind"),
    [
        ("models", 0.0, None),
        ("models", 10.0, WatchedFolder),
        ("s3://bucket/models", 0.0, FetchedModels),
        ("s3://bucket", 10.0, FetchedModels),
        ("gs://bucket/models", 0.0, FetchedModels),
    ],
)
def test_the_source_of_the_settings(tmp_path, monkeypatch, models, poll_s, kind):
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    settings = Settings(models=models, models_poll_s=poll_s, data=str(tmp_path))
    watch = _open_source(settings, None, ModelHost())
    assert (None if watch is None else type(watch.source)) == kind


def test_a_url_that_cannot_be_opened_ends_the_start(tmp_path, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(LoadError, match="Account must be specified"):
        _open_source(Settings(models="az://bucket/models", data=str(tmp_path)), None, ModelHost())


def test_a_trial_names_the_version_and_no_folder(tmp_path):
    versions = {"2": tmp_path / "2" / "model.onnx", "1": tmp_path / "1" / "model.onnx"}
    for path in versions.values():
        doubling(path)
    archive = {"1": tmp_path / "packed.zip"}
    archive["1"].write_bytes(b"no archive")
    for good in (versions, archive, {}):
        try_versions("a", good, None, ModelHost())
    versions["1"].write_bytes(b"no graph")
    with pytest.raises(LoadError, match=r"^version 1: ") as error:
        try_versions("a", versions, None, ModelHost())
    assert str(tmp_path) not in str(error.value)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (SourceStatus(), {"failed_looks_total": 0, "unserved": 0}),
        (
            SourceStatus("away", {"a": "no graph"}, failed_looks=3, seen_at=70.0),
            {"age_seconds": 30, "failed_looks_total": 3, "unserved": 1},
        ),
        (
            SourceStatus(seen_at=200.0),  # the clock was ahead then
            {"age_seconds": 0, "failed_looks_total": 0, "unserved": 0},
        ),
    ],
)
def test_metrics_of_a_source(tmp_path, monkeypatch, status, expected):
    monkeypatch.setattr(time, "time", lambda: 100.0)
    watch = SourceWatch(None, tmp_path, 0.0, None)
    watch._write(status)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(watch)
    lines = generate_latest(registry).decode().splitlines()
    values = dict(line.split() for line in lines if not line.startswith("#"))
    prefix = "quadriga_model_source_"
    assert values == {f"{prefix}{name}": f"{value:.1f}" for name, value in expected.items()}
