"""Ground truth belongs to a task and a model; a statement that names no task gets it from its annotations."""

from itertools import permutations
from typing import Any

import msgspec
import pytest

from quadriga.store.changes.annotations import annotated_task, derived_task, fits
from quadriga.store.changes.truth_service import parse_task
from quadriga.store.records.errors import ChangeError
from quadriga.store.records.records import (
    ANY_REVISION,
    Deletion,
    InputReference,
    MetadataChange,
    ModelReference,
    TruthStatement,
)
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import FIRST_CHANGE_ID, StoreHarness

HASH = "blake3:" + "a" * 64
IMAGE = InputReference("image", HASH, 64, 64, "image/png")
TRUTHS: dict[str, list[dict[str, Any]]] = {
    "IMAGE_CLASSIFICATION": [{"label": "star"}],
    "OBJECT_DETECTION": [{"label": "star", "xmin": 1, "ymin": 1, "xmax": 9, "ymax": 9}],
    "ORIENTED_OBJECT_DETECTION": [{"label": "s", "cx": 0.5, "cy": 0.5, "w": 0.1, "h": 0.1, "r": 0}],
    "IMAGE_SEGMENTATION": [{"label": "star", "contour": [[{"x": 1, "y": 1}, {"x": 9, "y": 1}]]}],
    "IMAGE_TEXT_TO_TEXT": [{"prompt": "How many?", "answer": "2"}],
}
BOXES = TRUTHS["OBJECT_DETECTION"]


def answer(seq: int, task: str, model: str | None = None, **fields: Any) -> Any:
    values = {"input": IMAGE, "model": ModelReference(model or task.lower(), "1", "ab" * 32)}
    return make_record(seq, task=task, **(values | fields))


def answers() -> list[Any]:
    """Return what a model of each task answered to one image."""
    metadata = {"path": "a.png"}
    return [answer(seq, task, metadata=metadata) for seq, task in enumerate(TRUTHS, 1)]


@pytest.mark.parametrize(("join", "value"), [("input.hash", HASH), ("meta.path", "a.png")])
def test_one_image_has_a_truth_of_each_task_in_any_order(
    store: StoreHarness, join: str, value: str
) -> None:
    store.commit(*answers())
    for tasks in [*permutations(TRUTHS)][::17]:
        store.execute("DELETE FROM truth")
        store.commit_changes(
            *(TruthStatement(join, value, TRUTHS[task], task=task) for task in tasks)
        )
        assert [store.ground_truth(seq) for seq in range(1, 6)] == [*TRUTHS.values()]
    assert store.rows("SELECT * FROM other_truth") == []


def test_truth_of_each_task_waits_for_inferences(store: StoreHarness) -> None:
    store.commit_changes(*(TruthStatement("input.hash", HASH, truth) for truth in TRUTHS.values()))
    store.commit(*answers())
    assert [store.ground_truth(seq) for seq in range(1, 6)] == [*TRUTHS.values()]


def test_a_statement_may_be_of_one_model(store: StoreHarness) -> None:
    store.commit(answer(1, "OBJECT_DETECTION", "a"), answer(2, "OBJECT_DETECTION", "b"))
    store.commit_changes(
        TruthStatement("input.hash", HASH, BOXES, task="OBJECT_DETECTION", model="a")
    )
    assert (store.ground_truth(1), store.ground_truth(2)) == (BOXES, None)
    assert store.rows("SELECT * FROM other_truth") == [(2, FIRST_CHANGE_ID + 1)]
    store.commit_changes(TruthStatement("input.hash", HASH, [], task="OBJECT_DETECTION"))
    assert (store.ground_truth(1), store.ground_truth(2)) == ([], [])
    store.commit_changes(TruthStatement("id", "2", None, task="OBJECT_DETECTION", model="a"))
    assert (store.ground_truth(1), store.ground_truth(2)) == ([], [])


def test_what_does_not_apply_is_noted_until_something_does(store: StoreHarness) -> None:
    store.commit(answer(1, "OBJECT_DETECTION", metadata={"path": "a.png"}))
    store.commit_changes(TruthStatement("input.hash", HASH, [{"label": "star"}]))
    assert store.rows("SELECT * FROM other_truth") == [(1, FIRST_CHANGE_ID + 1)]
    store.commit_changes(TruthStatement("meta.path", "a.png", BOXES))
    assert store.rows("SELECT * FROM other_truth") == []
    store.commit_changes(MetadataChange(1, {"path": "b.png"}))
    assert store.rows("SELECT * FROM other_truth") == [(1, FIRST_CHANGE_ID + 1)]
    store.commit_changes(TruthStatement("input.hash", HASH, None, task="IMAGE_CLASSIFICATION"))
    assert store.rows("SELECT * FROM other_truth") == []
    store.commit_changes(TruthStatement("input.hash", HASH, [{"label": "star"}]), Deletion([1]))
    assert store.rows("SELECT * FROM other_truth") == []


REVISION_CASES = [(0, False), (FIRST_CHANGE_ID + 1, True), (ANY_REVISION, True), (7, False)]


@pytest.mark.parametrize(("expected", "is_applied"), REVISION_CASES)
def test_a_statement_is_applied_if_the_expected_revision_is_current(
    store: StoreHarness,
    expected: int,
    is_applied: bool,  # noqa: FBT001 - a table
) -> None:
    store.commit(answer(1, "OBJECT_DETECTION"))
    # In one transaction: the writer decides by what stands before it.
    store.commit_changes(TruthStatement("id", "1", BOXES))
    store.commit_changes(
        TruthStatement("id", "1", [], task="OBJECT_DETECTION", expected=expected),
        TruthStatement("id", "1", None, task="OBJECT_DETECTION", expected=FIRST_CHANGE_ID + 1),
    )
    assert store.ground_truth(1) == ([] if is_applied else None)


def test_a_first_statement_is_applied_once(store: StoreHarness) -> None:
    store.commit(answer(1, "OBJECT_DETECTION"))
    store.commit_changes(
        TruthStatement("id", "1", BOXES, "amy", task="OBJECT_DETECTION", expected=0),
        TruthStatement("id", "1", [], "bob", task="OBJECT_DETECTION", expected=0),
    )
    assert store.ground_truth(1) == BOXES
    assert store.rows("SELECT join_on, source FROM truth ORDER BY id") == [
        ("id", "amy"),
        ("", "bob"),
    ]


def test_a_replay_decides_nothing_anew(store: StoreHarness) -> None:
    store.commit(answer(1, "OBJECT_DETECTION", metadata={"path": "a.png"}))
    store.commit_changes(TruthStatement("meta.path", "a.png", BOXES))
    revision = FIRST_CHANGE_ID + 1
    store.commit_changes(
        MetadataChange(1, {"path": "b.png"}),
        TruthStatement("id", "1", [], task="OBJECT_DETECTION", expected=revision),  # not any more
        MetadataChange(1, {"path": "a.png"}),
        TruthStatement("input.hash", HASH, None),
        TruthStatement("input.hash", HASH, []),
    )
    before = store.all_rows()
    store.recommit_journal()
    assert store.all_rows() == before
    assert store.writer.records_rejected == 0


def test_what_was_refused_goes_with_its_inference(store: StoreHarness) -> None:
    store.commit(answer(1, "OBJECT_DETECTION"))
    store.commit_changes(TruthStatement("id", "1", [], expected=7), Deletion([1]))
    assert store.rows("SELECT * FROM truth") == []


OLD = {"join": "input.hash", "value": HASH, "source": "survey"}


def old_frame(seq: int, **statement: Any) -> bytes:
    """Return a statement that is journaled without task, model, owner and expected revision."""
    change = {"type": "truth", **OLD, "annotations": None, **statement}
    return msgspec.json.encode({"seq": seq, "change": change})


OLD_CASES: list[tuple[dict[str, Any], str]] = [
    *(({"annotations": truth}, task) for task, truth in TRUTHS.items()),
    ({"annotations": []}, ""),
    ({"annotations": None}, ""),
    ({"annotations": [*BOXES, *TRUTHS["IMAGE_SEGMENTATION"]]}, "OBJECT_DETECTION"),
    ({"join": "id", "value": "2", "annotations": []}, "OBJECT_DETECTION"),
    ({"join": "id", "value": "2", "annotations": None}, "OBJECT_DETECTION"),
    ({"join": "id", "value": "2", "annotations": [{"label": "a"}]}, "IMAGE_CLASSIFICATION"),
    ({"join": "id", "value": "5", "annotations": [{"label": "a"}]}, "IMAGE_TEXT_TO_TEXT"),
    ({"join": "id", "value": "6", "annotations": BOXES}, "TENSOR"),
    ({"join": "id", "value": "77", "annotations": []}, ""),
]


def test_statements_without_a_task_get_that_of_their_annotations(
    store: StoreHarness,
) -> None:
    store.commit(*answers(), answer(6, "TENSOR"))
    frames = [old_frame(FIRST_CHANGE_ID + at, **case) for at, (case, _) in enumerate(OLD_CASES, 1)]
    decoded = [msgspec.json.decode(frame) for frame in frames]
    assert all("task" not in frame["change"] for frame in decoded)
    changes = [msgspec.convert(frame["change"], TruthStatement) for frame in decoded]
    store.commit_changes(*changes)
    tasks = [task for (task,) in store.rows("SELECT task FROM truth ORDER BY id")]
    assert tasks == [task for _, task in OLD_CASES]
    assert set(store.rows("SELECT model, owner FROM truth")) == {("", "default")}


TASK_SPELLINGS = {
    "detection": "OBJECT_DETECTION",
    "object_detection": "OBJECT_DETECTION",
    "OBJECT_DETECTION": "OBJECT_DETECTION",
    "Oriented": "ORIENTED_OBJECT_DETECTION",
    "image-text": "IMAGE_TEXT_TO_TEXT",
    "tensor": "TENSOR",
    "counting": "COUNTING",
}


def test_tasks_are_named_as_everywhere() -> None:
    assert {text: parse_task(text, ["COUNTING"]) for text in TASK_SPELLINGS} == TASK_SPELLINGS
    for text in ("counting", "", "boxes", 7, None, "x" * 10_000):
        with pytest.raises(ChangeError, match=r"expected task to be one of IMAGE_CLASSIFICATION, "):
            parse_task(text, [])


@pytest.mark.parametrize("task", TRUTHS)
def test_annotations_fit_their_own_task(task: str) -> None:
    truth = TRUTHS[task]
    assert annotated_task(truth) == derived_task(truth, None) == derived_task(truth, task) == task
    fitting = {name for name in TRUTHS if fits(name, truth)}
    label_tasks = {"IMAGE_CLASSIFICATION", "IMAGE_TEXT_TO_TEXT"}
    assert fitting == (label_tasks if task == "IMAGE_CLASSIFICATION" else {task})
    assert fits("TENSOR", truth)
    assert fits(task, [])
    assert annotated_task([]) is None
    assert annotated_task([*truth, {"label": "x", "cx": 1}, *BOXES]) is None
