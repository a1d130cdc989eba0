"""The same evaluation on a Ray cluster of this machine."""

import msgspec
import numpy as np
import pytest

from monitor.evaluation import reading, stored
from monitor.evaluation.on_ray import Cluster, StoredOnCluster
from monitor.evaluation.parameters import EvaluationParameters
from monitor.evaluation.state import EvaluationError
from monitor.evaluation.stored import evaluate_stored
from store.records import InputReference, ModelReference, TruthStatement
from tests.unit.store.conftest import make_record
from tests.unit.store.place import Place

IMAGES = 250
OTHER = ModelReference("other", "1", "bb" * 32)


@pytest.fixture(scope="module")
def cluster():
    """Start a cluster once: it takes some seconds."""
    made = Cluster("ray")
    yield made
    made.close()


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
def place(tmp_path, database_url, monkeypatch):
    monkeypatch.setattr(reading, "SHARD", 100)
    monkeypatch.setattr(stored, "SHARD", 100)
    made = Place(tmp_path, database_url)
    source = np.random.default_rng(0)
    for model in (ModelReference("one", "1", "aa" * 32), OTHER):
        records = [
            make_record(
                (1 + at + 5000 * (model is OTHER)) * 1000 << 22,
                model=model,
                predictions=[{"score": float(source.random()), **box(source)} for _ in range(3)],
                input=InputReference("image", f"blake3:{at:064x}", 640, 480, "image/jpeg"),
                metadata={"camera_id": "ns"[at % 2]},
            )
            for at in range(IMAGES)
        ]
        made.move(*records)
    made.change(
        *(
            TruthStatement("input.hash", f"blake3:{at:064x}", [box(source), box(source)])
            for at in range(IMAGES)
        )
    )
    yield made
    made.close()


def told(report):
    return msgspec.structs.replace(report, id="", created="", provenance={})


def test_a_cluster_gives_the_same_report(place, database_url, cluster):
    asked = EvaluationParameters(
        "one", by=["meta.camera_id"], compare=[{"model": "other"}], resamples=5
    )
    asked = msgspec.convert(msgspec.to_builtins(asked), EvaluationParameters)
    here = evaluate_stored(place.inferences, asked)
    there = evaluate_stored(place.inferences, asked, places=StoredOnCluster(cluster, database_url))
    assert here.provenance["shards"] == 3
    assert told(there) == told(here)


def test_what_fails_on_a_cluster_says_why(place, database_url, cluster):
    bad = make_record(
        9 * 10**6 << 22, model=ModelReference("one", "1", "aa" * 32), predictions=[{"label": 1}]
    )
    place.move(bad)
    place.change(TruthStatement("id", str(bad.seq), []))
    with pytest.raises(EvaluationError, match="Expected `str`, got `int`"):
        evaluate_stored(
            place.inferences,
            EvaluationParameters("one"),
            places=StoredOnCluster(cluster, database_url),
        )


def test_a_cluster_that_is_none_is_said():
    with pytest.raises(EvaluationError, match="expected a Ray cluster at 'nowhere://x'"):
        Cluster("nowhere://x")
