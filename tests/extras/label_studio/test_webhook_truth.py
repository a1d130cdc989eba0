"""Annotations become ground truth whatever the order and number of their events, and deleted ones are withdrawn."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from quadriga.proto.errors import InvalidRequest, NotFound, Unsupported
from quadriga.store.records.errors import ChangeError, NotFoundError, QueryError
from quadriga.store.records.records import ModelReference
from quadriga.store.records.scope import Scope
from tests.background import at_once, in_background
from tests.extras.label_studio.backend_harness import (
    MODEL,
    BackendHarness,
    annotation,
    deletion,
    project,
    region,
)
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness


@pytest.fixture
def harness(tmp_path) -> Iterator[BackendHarness]:
    """Yield a backend whose store has the inferences 1 and 2."""
    store = StoreHarness(tmp_path, f"sqlite:///{tmp_path}/store.db")
    with in_background(store.writer.run):
        harness = BackendHarness(store)
        store.journal.append([make_record(1), make_record(2, team="b")])
        harness.backend._inferences.wait_for_journal()
        yield harness
    store.close()


def labels(harness: BackendHarness, seq: int = 1) -> list[str] | None:
    truth = harness.store.ground_truth(seq)
    return None if truth is None else [item["label"] for item in truth]


def test_an_annotation_is_the_ground_truth_of_its_inference(harness):
    answer = harness.send(annotation(1, 12, "square", action="CREATED"))
    assert answer == {"stated": 1, "unchanged": 0, "withdrawn": 0, "refused": []}
    (box,) = harness.store.ground_truth(1)
    assert box == pytest.approx(
        {"label": "square", "xmin": 64, "ymin": 96, "xmax": 256, "ymax": 288}
    )
    truth = harness.changes.ground_truth.get("1")
    assert truth.source == "Label Studio 3.1764277000/12 at 2026-11-27T21:00:01.000000Z by user 5"
    harness.send(annotation(2, 12))
    assert harness.store.ground_truth(1) == []  # looked at, and nothing is there
    harness.send(annotation(3, 12, "circle", was_cancelled=True))
    assert labels(harness) is None


def test_an_annotation_of_an_id_that_leads_to_an_inference_is_its_ground_truth(harness):
    harness.store.execute("INSERT INTO repeated_id VALUES (9, 1)")
    task = {"id": 7, "data": {"image": "/a.jpg", "inference_id": "9"}}
    assert harness.send(annotation(1, 12, "square", task=task))["stated"] == 1
    assert labels(harness) == ["square"]
    assert harness.send(annotation(1, 12, "square"))["unchanged"] == 1  # by the other id
    harness.send(deletion(12))
    assert labels(harness) is None


EVENTS = {
    "created": annotation(1, 12, "a", action="CREATED"),
    "updated": annotation(2, 12, "b"),
    "other": annotation(3, 13, "c"),
    "deleted": deletion(13),
}


@pytest.mark.parametrize("order", list(itertools.permutations(EVENTS)), ids="-".join)
def test_the_order_of_events_makes_no_difference(harness, order):
    for name in order:
        harness.send(EVENTS[name])
    assert labels(harness) == ["b"]
    for name in order:  # again
        answer = harness.send(EVENTS[name])
        assert answer["stated"] == 0
    assert labels(harness) == ["b"]
    harness.send(deletion(12))
    assert labels(harness) is None
    assert harness.send(EVENTS["updated"])["unchanged"] == 1
    assert labels(harness) is None


def test_events_at_once_leave_the_latest(harness):
    events = [annotation(second, 12, f"label-{second}") for second in range(8)]
    at_once([partial(harness.send, event) for event in events])
    assert labels(harness) == ["label-7"]


def test_a_deletion_of_many_withdraws_each(harness):
    harness.store.journal.append([make_record(seq) for seq in range(100, 160)])
    for seq in range(100, 160):
        task = {"id": seq, "data": {"inference_id": str(seq)}}
        harness.send(annotation(1, seq, "a", task=task))
    harness.send(annotation(2, 1000, "b", task={"id": 100, "data": {"inference_id": "100"}}))
    before = len(harness.store.rows("SELECT * FROM truth"))
    assert harness.send(deletion(*range(100, 160), 7777))["withdrawn"] == 60
    assert [labels(harness, seq) for seq in range(100, 160)] == [["b"], *[None] * 59]
    assert len(harness.store.rows("SELECT * FROM truth")) == before + 61 + 59
    assert harness.send(deletion(*range(100, 160)))["withdrawn"] == 60
    assert len(harness.store.rows("SELECT * FROM truth")) == before + 61 + 59


def test_what_people_state_elsewhere_holds_until_a_later_annotation(harness):
    harness.send(annotation(1, 12, "a"))
    harness.changes.ground_truth.put(
        "1", b'[{"label": "human", "xmin": 1, "ymin": 1, "xmax": 2, "ymax": 2}]'
    )
    assert harness.send(annotation(1, 12, "a"))["unchanged"] == 1
    assert labels(harness) == ["human"]
    harness.send(deletion(12))
    assert labels(harness) == ["human"]
    later = annotation(2, 14, "b")
    later["annotation"]["updated_at"] = "2099-01-01T00:00:00Z"
    harness.send(later)
    assert labels(harness) == ["b"]
    harness.send(deletion(14))
    assert labels(harness) == ["human"]


def test_a_task_without_an_inference_is_joined_by_its_key(harness):
    task = {"id": 70, "data": {"image": "https://example.org/a.jpg"}}
    harness.send(annotation(2, 12, "b", task=task))
    harness.send(annotation(1, 12, "a", task=task))
    metadata = {"label_studio": "3.1764277000/task 70"}
    harness.store.journal.append([make_record(30, metadata=metadata), make_record(31)])
    harness.backend._inferences.wait_for_journal()
    assert (labels(harness, 30), labels(harness, 31)) == (["b"], None)
    harness.send(deletion(12))
    assert labels(harness, 30) is None


def test_the_url_of_an_input_names_its_inference(harness):
    for link in ("/api/inferences/1/input", "http://localhost/api/inferences/1/input", f"/api/blobs/{'ab' * 32}?inference=1"):  # fmt: skip
        event = annotation(5, 99, "a", task={"id": 7, "data": {"picture": link, "n": 3}})
        harness.send(event)
        assert labels(harness) == ["a"]
        harness.send(deletion(99))
        harness.store.execute("DELETE FROM truth")


def test_many_annotations_are_taken_one_by_one(harness):
    event = annotation(1, 12, "a")
    bad = {**event["annotation"], "id": 13, "result": [{"type": "brushlabels", "value": {"rle": [], "brushlabels": ["a"]}}]}  # fmt: skip
    many = {**event, "action": "ANNOTATIONS_CREATED", "annotation": [bad, event["annotation"]], "task": [event["task"]]}  # fmt: skip
    answer = harness.send(many)
    assert answer["stated"] == 1
    assert answer["refused"] == [
        "annotation 3.1764277000/13: annotation 3.1764277000/13: result 0: expected rectangles, polygons and choices with labels, got 'brushlabels'"
    ]
    assert labels(harness) == ["a"]
    with pytest.raises(QueryError, match="brushlabels"):
        harness.send({**event, "annotation": bad})


def test_a_team_states_its_own_and_finds_nothing_of_others(harness):
    of_b = annotation(1, 12, "a", task={"id": 7, "data": {"inference_id": "2"}})
    with pytest.raises(NotFoundError, match="inference not found: 2"):
        harness.send(of_b, scope=Scope("a"))
    harness.send(of_b, scope=Scope("b"))
    assert labels(harness, 2) == ["a"]
    assert harness.send(deletion(12), scope=Scope("a"))["withdrawn"] == 0
    assert labels(harness, 2) == ["a"]
    assert harness.send(deletion(12), scope=Scope("b"))["withdrawn"] == 1
    assert labels(harness, 2) is None


def test_a_key_for_some_models_states_about_these(harness):
    scope = Scope("", (MODEL,))
    task = {"id": 70, "data": {"image": "https://example.org/a.jpg"}}
    harness.send(annotation(1, 12, "a", task=task), scope=scope)
    metadata = {"label_studio": "3.1764277000/task 70"}
    other = ModelReference("other", "1", "ab" * 32)
    harness.store.journal.append(
        [make_record(30, metadata=metadata), make_record(31, metadata=metadata, model=other)]
    )
    harness.backend._inferences.wait_for_journal()
    assert (labels(harness, 30), labels(harness, 31)) == (["a"], None)
    harness.send(deletion(12), scope=scope)
    assert labels(harness, 30) is None


def test_a_model_that_is_not_loaded_keeps_its_corrections(harness):
    harness.runs.is_there = False
    harness.send(annotation(1, 12, "a"))
    assert labels(harness) == ["a"]
    with pytest.raises((NotFound, NotFoundError)):
        harness.send(annotation(1, 12, "a"), model="unknown")


def test_other_events_change_nothing(harness):
    nothing = {"stated": 0, "unchanged": 0, "withdrawn": 0, "refused": []}
    for action in ("PROJECT_UPDATED", "TASKS_CREATED", "LABEL_LINK_CREATED", "SOMETHING_NEW"):
        assert harness.send({"action": action, "project": project()}) == nothing
    with pytest.raises(Unsupported, match="does not train"):
        harness.send({"action": "START_TRAINING", "project": project()})


EVENT = annotation(1, 12, "a")


def changed(**more: Any) -> Any:
    return {**EVENT, "annotation": {**EVENT["annotation"], **more}}


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "expected a body of a Label Studio webhook"),
        (b"\xff", "expected a body"),
        (b"[" * 100_000, "expected a body"),
        ([], "expected a body"),
        ({}, "action"),
        ({"action": "ANNOTATION_CREATED"}, "project is required: switch on Send payload"),
        ({**EVENT, "project": None}, "project is required"),
        ({**EVENT, "project": {"id": "3", "created_at": "x"}}, "expected project"),
        ({**EVENT, "project": {"id": 3, "created_at": "yesterday"}}, "expected project.created_at to be a time, got 'yesterday'"),
        ({**EVENT, "task": None}, "task is required"),
        ({**EVENT, "task": {"id": 8, "data": {}}}, "expected the task 7 of annotation 12, got none"),
        ({**EVENT, "task": {"id": 7, "data": []}}, "expected task"),
        (changed(id="12"), "expected annotation"),
        (changed(result=None), "expected annotation"),
        (changed(updated_at="99999-01-01T00:00:00Z"), "to be a time"),
        (changed(updated_at="0001-01-01T00:00:00+23:59"), "to be a time"),
        (changed(result=[{**region(), "original_width": 0}]), "expected percents of an image of known size"),
        (changed(result=[region(x=float("inf"))]), "expected percents"),
        (changed(result=[region(x="1")]), "expected percents"),
        (changed(result=[{"type": "textarea", "value": {"text": ["a"]}}]), "got 'textarea'"),
        (changed(result=[region("")]), "expected a text"),
        (changed(result=[region()] * 10_001), "at most 10000 annotations"),
        (changed(result=[{"type": "choices", "value": {"choices": ["a"]}}]), "expected boxes as ground truth of OBJECT_DETECTION"),
        ({**EVENT, "task": {"id": 7, "data": {"inference_id": "77"}}}, "inference not found: 77"),
        ({**deletion(), "annotations": [{"id": "x"}]}, "expected annotations"),
        ({**deletion(), "annotations": [{"id": 1}] * 10_001}, "at most 10000 annotations"),
    ],
)  # fmt: skip
def test_what_cannot_be_ground_truth_is_refused_and_changes_nothing(harness, payload, message):
    with pytest.raises((InvalidRequest, QueryError, ChangeError, NotFoundError)) as raised:
        harness.send(payload)
    assert message in str(raised.value)
    assert harness.store.rows("SELECT * FROM truth") == []


def test_odd_texts_are_kept_as_they_are_or_refused(harness):
    event = changed(
        completed_by={"email": "x" * 5000 + "\0"}, result=[region("\0'; DROP TABLE truth; --\n")]
    )
    harness.send(event)
    assert len(labels(harness)) == 1
    assert len(harness.changes.ground_truth.get("1").source) <= 256
    assert harness.send(event)["unchanged"] == 1
    harness.send(deletion(12))
    assert labels(harness) is None
