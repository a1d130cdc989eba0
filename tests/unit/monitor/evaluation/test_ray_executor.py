"""The same evaluation on a Ray cluster of this machine."""

import msgspec
import numpy as np
import pytest

from quadriga.monitor.drift import windows
from quadriga.monitor.drift.parameters import DriftParameters, StoredWindow
from quadriga.monitor.drift.stored import compare_stored
from quadriga.monitor.evaluation import stored
from quadriga.monitor.evaluation.files.evaluate_files import evaluate_parquet
from quadriga.monitor.evaluation.parameters import EvaluationParameters
from quadriga.monitor.evaluation.ray_executor import RayCluster, map_on
from quadriga.monitor.evaluation.reporting import EvaluationOptions
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.monitor.evaluation.stored import evaluate_stored
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.exchange import arrow_tables
from quadriga.store.exchange.export import ExportParameters, export
from quadriga.store.records.records import InputReference, ModelReference, TruthStatement
from tests.unit.monitor.evaluation.evaluation_images import stable_report
from tests.unit.store.conftest import make_record

IMAGES = 250
OTHER = ModelReference("other", "1", "bb" * 32)


@pytest.fixture(scope="module")
def cluster():
    """Start a cluster once: it takes some seconds."""
    ray_cluster = RayCluster("ray")
    yield ray_cluster
    ray_cluster.close()


def box(source):
    x, y, width, height = source.uniform(1, 50, 4).tolist()
    return {
        "label": "ab"[source.integers(2)],
        "xmin": x,
        "ymin": y,
        "xmax": x + width,
        "ymax": y + height,
    }


@pytest.fixture
def store(store, monkeypatch):
    monkeypatch.setattr(stored, "SHARD_SIZE", 100)
    source = np.random.default_rng(0)
    for model in (ModelReference("one", "1", "aa" * 32), OTHER):
        records = [
            make_record(
                (1 + at + 5000 * (model is OTHER)) * 1000 << 22,
                model=model,
                predictions=[{"score": float(source.random()), **box(source)} for _ in range(3)],
                input=InputReference(
                    "image", f"blake3:{at:064x}", 640, height=480, mime="image/jpeg"
                ),
                metadata={"camera_id": "ns"[at % 2]},
            )
            for at in range(IMAGES)
        ]
        store.commit(*records)
    store.commit_changes(
        *(
            TruthStatement("input.hash", f"blake3:{at:064x}", [box(source), box(source)])
            for at in range(IMAGES)
        )
    )
    return store


def test_a_cluster_gives_the_same_report(store, database_url, cluster):
    parameters = EvaluationParameters(
        "one", by=["meta.camera_id"], compare=[{"model": "other"}], resamples=5
    )
    parameters = msgspec.convert(msgspec.to_builtins(parameters), EvaluationParameters)
    local_report = evaluate_stored(store.inferences, parameters)
    there = evaluate_stored(store.inferences, parameters, map_shards=map_on(cluster, database_url))
    assert local_report.provenance["shards"] == 3
    assert stable_report(there) == stable_report(local_report)


def test_a_cluster_gives_the_same_drift(store, database_url, cluster, monkeypatch):
    monkeypatch.setattr(windows, "SHARD_SIZE", 100)
    middle = str((1 + IMAGES // 2) * 1000 << 22)
    window = StoredWindow(where={"id": {"lt": middle}})
    parameters = DriftParameters("one", where={"id": {"ge": middle}}, baseline=window)
    local_report = compare_stored(store.inferences, parameters)
    there = compare_stored(store.inferences, parameters, map_shards=map_on(cluster, database_url))
    assert local_report.data.current.n == local_report.data.baseline.n == IMAGES // 2
    assert stable_report(there) == stable_report(local_report)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_exported_file_gives_the_numbers_of_the_store(store, cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_tables, "EXPORT_GROUP_ROWS", 100)
    monkeypatch.setattr("quadriga.store.exchange.export.PAGE_SIZE", 100)
    path = tmp_path / "one.parquet"
    parameters = ExportParameters({"model": "one"}, "parquet", images=False)
    export(store.inferences, FileBlobs(tmp_path / "blobs"), parameters, path)
    stored_report = evaluate_stored(
        store.inferences, EvaluationParameters("one", by=["meta.camera_id"], resamples=5)
    )
    assert arrow_tables.count_row_groups(path) > 1
    for map_shards in (map, cluster.map):
        report = evaluate_parquet(
            path,
            "detection",
            by=["meta.camera_id"],
            options=EvaluationOptions(resamples=5),
            map_shards=map_shards,
        )
        assert report.metrics == stored_report.metrics
        assert report.slices == stored_report.slices
        assert report.worst == stored_report.worst
        assert report.data.current.start == stored_report.data.current.start
        assert report.data.current.end == stored_report.data.current.end


def test_what_is_no_parquet_is_said(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"{}")
    with pytest.raises(EvaluationError, match=r"expected a\.parquet to be Parquet, got: "):
        evaluate_parquet(path, "detection")


def test_what_fails_on_a_cluster_says_why(store, database_url, cluster):
    bad = make_record(
        9 * 10**6 << 22, model=ModelReference("one", "1", "aa" * 32), task="IMAGE_CLASSIFICATION"
    )
    store.commit(bad)
    store.commit_changes(TruthStatement("id", str(bad.seq), []))
    with pytest.raises(EvaluationError, match="expected inferences of one task"):
        evaluate_stored(
            store.inferences,
            EvaluationParameters("one"),
            map_shards=map_on(cluster, database_url),
        )


def test_a_cluster_that_is_none_is_said():
    with pytest.raises(EvaluationError, match="expected a Ray cluster at 'nowhere://x'"):
        RayCluster("nowhere://x")
