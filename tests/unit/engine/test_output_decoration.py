"""Additions of a response to outputs: ids, missing storage, semantic scores; and the selection of outputs."""

import pytest

from quadriga.engine.output_decoration import decorate_outputs, score_headers, select_outputs
from quadriga.engine.recording import ImageResult, StoreResult
from quadriga.proto.messages import RequestedOutput, StorageOptions, Tensor


def image(score: float | None = None, *, requested: bool | None = None) -> ImageResult:
    storage = StorageOptions(semantic_score=requested)
    return ImageResult("image", "predict", [], {}, storage=storage, semantic_score=score)


def output(name: str, images: int, **parameters) -> Tensor:
    return Tensor(name, "BYTES", (images,), data=[[]] * images, parameters=parameters)


def added(outputs, results, stored, *, per_image: bool = True, with_scores: bool = False):
    decorated = decorate_outputs(
        outputs, results, stored, per_image=per_image, with_scores=with_scores
    )
    return [dict(tensor.parameters) for tensor in decorated]


def test_each_output_has_the_ids_of_its_own_images():
    outputs = [output("a", 2, action="detect"), output("b", 1)]
    results = [image(), image(), image()]
    assert added(outputs, results, StoreResult(["1", "2", "3"])) == [
        {"action": "detect", "inference_id": "1,2"},
        {"inference_id": "3"},
    ]


def test_an_output_to_which_nothing_is_added_stays_the_same_object():
    first = output("a", 1)
    for stored in (StoreResult(), StoreResult([""])):
        (decorated,) = decorate_outputs(
            [first], [image()], stored, per_image=True, with_scores=True
        )
        assert decorated is first


def test_images_that_are_not_stored_leave_no_gap_among_the_ids():
    outputs, results = [output("a", 3)], [image()] * 3
    assert added(outputs, results, StoreResult(["1", "", "3"])) == [{"inference_id": "1,3"}]


@pytest.mark.parametrize("per_image", [True, False])
def test_a_store_without_room_is_named_in_every_output(per_image):
    outputs = [output("a", 1), output("b", 1)]
    stored = StoreResult(["", ""], stored=False)
    results = [image(), image()]
    assert added(outputs, results, stored, per_image=per_image) == [{"stored": False}] * 2


def test_outputs_of_a_graph_have_no_ids():
    assert added([output("y", 1)], [image()], StoreResult(["1"]), per_image=False) == [{}]


@pytest.mark.parametrize(
    ("results", "with_scores", "expected"),
    [
        ([image(0.5)], False, {}),
        ([image(0.5)], True, {"semantic_score": 0.5}),
        ([image(0.5, requested=True)], False, {"semantic_score": 0.5}),
        ([image(0.5, requested=False)], True, {}),
        ([image(0.5), image(), image(0.25)], True, {"semantic_score": "0.5,,0.25"}),
        ([image(), image()], True, {}),
    ],
    ids=["not-wanted", "by-the-setting", "by-the-request", "declined", "several", "none-scored"],
)
def test_requested_scores_are_in_the_parameters(results, with_scores, expected):
    outputs = [output("a", len(results))]
    assert added(outputs, results, StoreResult(), with_scores=with_scores) == [expected]


def test_the_header_has_one_score_an_image():
    assert score_headers([image(0.123456789), image()], "Likeness") == [("Likeness", "0.123457,")]
    assert score_headers([image(), image()], "Likeness") == []
    assert score_headers([], "Likeness") == []


def test_requested_outputs_come_once_each_in_the_order_of_the_request():
    a, b, again = output("a", 1), output("b", 1), output("a", 2)
    assert select_outputs([a, b, again], []) == [a, b, again]
    wishes = [RequestedOutput("b"), RequestedOutput("a"), RequestedOutput("b")]
    assert select_outputs([a, b, again], wishes) == [b, a, again]
