"""Ground truth with labels that the model does not have: it is stated, and the answer says so."""

from collections.abc import Iterator

import pytest

from quadriga.store.changes import truth_service as stating
from tests.background import in_background
from tests.unit.engine.api.test_ground_truth import Server, add
from tests.unit.store.test_truth_scope import answer
from tests.unit.store_harness import StoreHarness

KNOWN_LABELS = {"image_classification": ("disc", "ring"), "other": ("Bar", "disc")}


@pytest.fixture
def server(store: StoreHarness) -> Iterator[Server]:
    server = Server(store, labels=KNOWN_LABELS)
    with server.client, in_background(store.writer.run):
        yield server


UNKNOWN_LABELS = {
    "known": ({1: "disc", 2: "ring"}, {}, []),
    "mistyped": ({1: "discc"}, {}, ["'discc' is not a label of 'image_classification'; did you mean disc?"]),
    "of another case": ({1: "Ring"}, {}, ["'Ring' is not a label of 'image_classification'; did you mean ring?"]),
    "far away": ({1: "star"}, {}, ["'star' is not a label of 'image_classification'"]),
    "repeated": ({1: "discc", 2: "discc"}, {}, ["'discc' is not a label of 'image_classification' (2 statements); did you mean disc?"]),
    "each model by itself": ({1: "Bar", 3: "Bar", 4: "ring"}, {}, ["'Bar' is not a label of 'image_classification'", "'ring' is not a label of 'other'"]),
    "nothing knows the model": ({5: "discc"}, {}, []),
    "nothing is stored yet": ({99: "discc"}, {}, []),
    "nothing is stored yet of a model that is named": ({99: "discc"}, {"model": "other"}, ["'discc' is not a label of 'other'; did you mean disc?"]),
    "of what a filter matches": ({1: "discc", 3: "discc"}, {"where": "model=other"}, ["'discc' is not a label of 'other'; did you mean disc?"]),
    "taken back": ({1: None}, {}, []),
}  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "options", "warnings"), UNKNOWN_LABELS.values(), ids=UNKNOWN_LABELS
)
def test_a_label_that_the_model_does_not_have_is_stated_and_said(
    server: Server, labels: dict[int, str | None], options: dict[str, str], warnings: list[str]
) -> None:
    task = "IMAGE_CLASSIFICATION"
    add(
        server, answer(1, task), answer(2, task), answer(3, task, "other"), answer(4, task, "other")
    )
    add(server, answer(5, task, "elsewhere"))
    items = [
        {"value": str(seq), "annotations": None if label is None else [{"label": label}]}
        for seq, label in labels.items()
    ]
    result = server.ok("POST", "ground-truth", {"join": "id", "items": items, **options})
    assert result.get("warnings", []) == warnings
    assert "warnings" not in result or result["warnings"]
    if options or 99 in labels or labels == {1: None}:
        return
    assert result["matched"] == len(labels)
    by_one = [
        server.ok("PUT", f"inferences/{item['value']}/ground-truth", item["annotations"])
        for item in items
    ]
    assert [inference["ground_truth"] for inference in by_one] == [i["annotations"] for i in items]
    said = {text for inference in by_one for text in inference.get("warnings", [])}
    assert said == {text.replace(" (2 statements)", "") for text in warnings}


def test_a_label_is_known_if_one_of_the_models_has_it(server: Server) -> None:
    task = "IMAGE_CLASSIFICATION"
    add(
        server,
        answer(1, task, metadata={"path": "a"}),
        answer(2, task, "other", metadata={"path": "a"}),
    )
    items = [{"value": "a", "annotations": [{"label": label} for label in ("ring", "Bar", "rong")]}]
    result = server.ok("POST", "ground-truth", {"join": "meta.path", "items": items})
    expected = "'rong' is not a label of 'image_classification' or 'other'; did you mean ring?"
    assert result["warnings"] == [expected]


def test_warnings_have_a_bound(server: Server) -> None:
    add(server, answer(1, "IMAGE_CLASSIFICATION"))
    annotations = [{"label": f"{'x' * 300}{number}"} for number in range(500)]
    items = [{"value": "1", "annotations": annotations}]
    warnings = server.ok("POST", "ground-truth", {"join": "id", "items": items})["warnings"]
    assert len(warnings) == stating.MAX_WARNINGS + 1
    assert warnings[-1] == f"{500 - stating.MAX_WARNINGS} more labels are of no model either"
    assert max(map(len, warnings)) < 200
