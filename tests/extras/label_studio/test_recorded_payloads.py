"""What Label Studio 1.23.2 sends, as `python -m tests.extras.label_studio.studio --record` wrote it down."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quadriga.extras.label_studio.truth import read_webhook
from quadriga.store.records.records import ModelReference
from tests.background import in_background
from tests.extras.label_studio.backend_harness import MODEL, BackendHarness
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

PAYLOADS = Path(__file__).parent / "payloads"


def payload(name: str) -> Any:
    return json.loads((PAYLOADS / f"{name}.json").read_text())


@pytest.fixture
def harness(tmp_path) -> Iterator[BackendHarness]:
    """Yield a backend whose store has the inferences that the payloads name."""
    store = StoreHarness(tmp_path, f"sqlite:///{tmp_path}/store.db")
    ids = sorted({int(task["data"]["inference_id"]) for task in payload("predict")["tasks"]})
    with in_background(store.writer.run):
        harness = BackendHarness(store)
        model = ModelReference(MODEL, "2", "ab" * 32)
        box = {"label": "circle", "score": 0.5, "xmin": 64, "ymin": 48, "xmax": 128, "ymax": 96}
        store.journal.append([make_record(id_, model=model, predictions=[box]) for id_ in ids])
        harness.backend._inferences.wait_for_journal()
        yield harness
    store.close()


def test_a_set_up_is_accepted(harness):
    body = json.dumps(payload("setup")).encode()
    assert harness.backend.setup(MODEL, body).model_version == f"{MODEL}@2"


def test_every_task_of_a_request_has_its_prediction(harness):
    request = payload("predict")
    answer = harness.predict(*request["tasks"], label_config=request["label_config"], project=request["project"])  # fmt: skip
    assert len(answer["results"]) == len(request["tasks"]) > 1
    assert all(len(prediction["result"]) == 1 for (prediction,) in answer["results"])
    assert answer["errors"] == []


def test_events_state_replace_and_withdraw(harness):
    created, updated = payload("annotation_created"), payload("annotation_updated")
    for event in (created, updated):
        seq = int(event["task"]["data"]["inference_id"])
        assert harness.send(event)["stated"] == 1
        truth = harness.store.ground_truth(seq)
        assert len(truth) == len(event["annotation"]["result"]) > 0
        assert truth[0]["label"] == event["annotation"]["result"][0]["value"]["rectanglelabels"][0]
    deleted = payload("annotations_deleted")
    assert harness.send(deleted)["withdrawn"] == 1
    (key,) = read_webhook(json.dumps(deleted).encode()).deleted
    assert key == read_webhook(json.dumps(updated).encode()).stated[0].key
    assert harness.store.ground_truth(int(updated["task"]["data"]["inference_id"])) is None
