"""Additions of a response to outputs: ids, missing storage, semantic scores; and the selection of outputs."""

import pytest

from quadriga.engine.serving.image_inference import echoed_parameters
from quadriga.engine.serving.model_request import (
    decorate_outputs,
    score_headers,
    select_outputs,
    truncation_headers,
)
from quadriga.engine.serving.recording import ImageResult, StoreResult
from quadriga.proto.messages import RequestedOutput, StorageOptions, Tensor
from quadriga.tasks.predictions import TruncatedPredictions


def image(score: float | None = None, *, requested: bool | None = None) -> ImageResult:
    storage = StorageOptions(semantic_score=requested)
    return ImageResult("image", "predict", [], {}, storage=storage, semantic_score=score)


def output(name: str, images: int, **parameters) -> Tensor:
    return Tensor(name, "BYTES", (images,), data=[[]] * images, parameters=parameters)


def added(outputs, results, stored, *, per_image: bool = True):
    decorated = decorate_outputs(outputs, results, stored, per_image=per_image)
    return [dict(tensor.parameters) for tensor in decorated]


def test_each_output_has_the_ids_of_its_own_images():
    outputs = [output("a", 2, action="detect"), output("b", 1)]
    results = [image(), image(), image()]
    assert added(outputs, results, StoreResult(["1", "2", "3"])) == [
        {"action": "detect", "inference_id": "1,2"},
        {"inference_id": "3"},
    ]


def cut(total: int | None = None) -> ImageResult:
    return ImageResult("image", "predict", TruncatedPredictions([], total), {})


@pytest.mark.parametrize(
    ("results", "parameters", "header"),
    [
        ([image()], {}, []),
        ([cut()], {"truncated": True}, "true"),
        ([cut(4087)], {"truncated": True, "total_segments": 4087}, "4087"),
        ([image(), cut(), image()], {"truncated": True}, ",true,"),
        ([cut(9), image(), cut(7)], {"truncated": True, "total_segments": "9,,7"}, "9,,7"),
    ],
)
def test_an_output_says_that_a_limit_cut_its_predictions(results, parameters, header):
    outputs = [output("a", len(results))]
    assert added(outputs, results, StoreResult()) == [parameters]
    assert truncation_headers(results) == ([("Quadriga-Truncated", header)] if header else [])


def test_an_output_to_which_nothing_is_added_stays_the_same_object():
    first = output("a", 1)
    for stored in (StoreResult(), StoreResult([""])):
        (decorated,) = decorate_outputs([first], [image()], stored, per_image=True)
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


def test_each_output_of_a_graph_has_the_id_of_their_inference():
    outputs = [output("y", 4, metadata={"site": 7}), output("z", 1)]
    assert added(outputs, [image()], StoreResult(["1"]), per_image=False) == [
        {"metadata": {"site": 7}, "inference_id": "1"},
        {"inference_id": "1"},
    ]
    assert added(outputs[1:], [image()], StoreResult([""]), per_image=False) == [{}]


def test_what_a_request_said_of_an_inference_is_echoed_and_nothing_else():
    parameters = {"action": "predict", "metadata": {}, "store": False, "priority": 1}
    assert echoed_parameters(parameters) == {"action": "predict", "metadata": {}}
    assert echoed_parameters({"action": None}) == {}


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([image(0.5)], {}),
        ([image(0.5, requested=True)], {"semantic_score": 0.5}),
        ([image(0.5, requested=False)], {}),
        (
            [image(0.5, requested=True), image(requested=True), image(0.25, requested=True)],
            {"semantic_score": "0.5,,0.25"},
        ),
        ([image(requested=True), image(requested=True)], {}),
    ],
    ids=["not-wanted", "by-the-request", "declined", "several", "none-scored"],
)
def test_requested_scores_are_in_the_parameters(results, expected):
    outputs = [output("a", len(results))]
    assert added(outputs, results, StoreResult()) == [expected]


def test_the_header_has_one_score_an_image():
    assert score_headers([image(0.123456789), image()]) == [
        ("Quadriga-Semantic-Score", "0.123457,")
    ]
    assert score_headers([image(), image()]) == []
    assert score_headers([]) == []


def test_requested_outputs_come_once_each_in_the_order_of_the_request():
    a, b, again = output("a", 1), output("b", 1), output("a", 2)
    assert select_outputs([a, b, again], []) == [a, b, again]
    wishes = [RequestedOutput("b"), RequestedOutput("a"), RequestedOutput("b")]
    assert select_outputs([a, b, again], wishes) == [b, a, again]
