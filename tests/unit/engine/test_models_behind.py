"""Models behind models: whose answer belongs to which detection, and what is stored of it."""

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from quadriga.engine.serving import crop_run
from quadriga.engine.serving.recording import Recorder
from quadriga.proto.access import Caller
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.proto.request import RequestContext, set_current_request
from quadriga.store.records.records import JournaledChange, is_change
from quadriga.tasks.image import decode
from tests.band_images import png
from tests.onnx_models import COLOURS_TOML, classifier, marking
from tests.unit.engine.crop_chain import (
    BOXES,
    LABELS,
    MAX_NUMBER,
    SIDE,
    Chain,
    answers,
    ask,
    marks,
    save_bands,
    scene,
)
from tests.unit.engine.harness import journal_payloads


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with Chain(tmp_path) as chain:
        yield chain


def test_each_detection_has_the_answer_about_its_own_crop(chain):
    images = [scene(*range(start, start + 4)) for start in (10, 20, 300)]
    response = chain.pipeline().infer(ask("cars", *images))
    assert answers(response) == [marks(*range(start, start + 4)) for start in (10, 20, 300)]


def test_both_are_stored_and_linked(chain):
    image = scene(1, 2, 3, 4)
    response = chain.pipeline().infer(ask("cars", image, image, metadata={"camera": "north"}))
    first, second, *crops = chain.records()
    assert [str(first.seq), str(second.seq)] == list(response.inference_ids)
    assert response.outputs[0].parameters["inference_id"] == f"{first.seq},{second.seq}"
    assert [record.model.name for record in (first, second)] == ["cars"] * 2
    assert "crop" not in first.standard
    assert "then" not in first.predictions[0]
    assert len(crops) == 8
    for number, (record, parent) in enumerate(zip(crops, [first] * 4 + [second] * 4, strict=True)):
        box = number % 4
        assert (record.model.name, record.task) == ("marks", "IMAGE_CLASSIFICATION")
        assert (record.request_id, record.image_no) == (str(parent.seq), box)
        assert record.predictions[0]["label"] == f"number {box + 1}"
        assert record.metadata == {"camera": "north"}
        assert record.standard["crop"] == {
            "inference_id": str(parent.seq),
            "request_id": "r",
            "image": first.input.hash,
            "model": "cars",
            "version": "1",
            "prediction": box,
            "label": LABELS[box],
            "score": pytest.approx(0.9 - box / 10),
            "xmin": BOXES[box][0],
            "ymin": BOXES[box][1],
            "xmax": BOXES[box][0] + 8,
            "ymax": BOXES[box][1] + 8,
        }
        data = chain.image(record)
        left, top = BOXES[box]
        np.testing.assert_array_equal(
            decode(data).pixels, decode(image).pixels[top : top + 8, left : left + 8]
        )
        assert (record.input.width, record.input.height, record.input.mime) == (8, 8, "image/png")
    wire = msgspec.json.decode(msgspec.json.encode(response.outputs[0].data))
    ids = [prediction["then"]["inference_id"] for image in wire for prediction in image]
    assert ids == [str(record.seq) for record in crops]


def test_a_stored_crop_has_the_answer_of_its_own_image(chain):
    pipeline = chain.pipeline()
    pipeline.infer(ask("cars", scene(5, 6, 7, 8)))
    _, *crops = chain.records()
    for record in crops:
        again = pipeline.infer(ask("marks", chain.image(record), store=False))
        assert again.outputs[0].data[0][0].label == record.predictions[0]["label"]


@pytest.mark.parametrize(
    ("then", "expected", "left_out"),
    [
        ('labels = ["car"]', (1, None, 3, None), None),
        ("min_score = 0.75", (1, 2, None, None), None),
        ("max_crops = 1", (1, None, None, None), 3),
        ('max_crops = 1\nlabels = ["car"]', (1, None, None, None), 1),
        ('labels = ["bus"]\nmin_score = 0.8', (None,) * 4, None),
        ("version = 1", (1, 2, 3, 4), None),
    ],
)
def test_which_detections_have_a_crop(chain, then, expected, left_out):
    chain.detector("cars", f'model = "marks"\n{then}')
    response = chain.pipeline().infer(ask("cars", scene(1, 2, 3, 4)))
    assert answers(response) == [marks(*expected)]
    assert response.outputs[0].parameters.get("crops_left_out") == left_out
    assert len(chain.records()) == 1 + sum(number is not None for number in expected)


def test_what_is_left_out_is_said_for_each_image(chain):
    chain.detector("cars", 'model = "marks"\nmax_crops = 3')
    response = chain.pipeline().infer(ask("cars", scene(), scene()))
    assert response.outputs[0].parameters["crops_left_out"] == "1,1"


def test_crops_beyond_the_pixels_of_a_request_are_left_out(chain, monkeypatch):
    chain.detector("cars", 'model = "marks"\nmargin = 10')  # each crop is the whole image
    monkeypatch.setattr(crop_run, "MAX_REQUEST_PIXELS", SIDE * SIDE + 10)
    pipeline = chain.pipeline()
    response = pipeline.infer(ask("cars", scene()))
    assert answers(response) == [marks(0, None, None, None)]
    assert response.outputs[0].parameters["crops_left_out"] == 3


def test_without_detections_the_model_behind_does_not_run(chain):
    pipeline = chain.pipeline()
    response = pipeline.infer(ask("cars", scene(1), score_threshold=0.99))
    assert response.outputs[0].data == [[]]
    assert len(chain.records()) == 1
    (statistics,) = pipeline.statistics("marks", None)
    assert (statistics.success.count, statistics.execution_count) == (0, 0)


def test_crops_of_all_images_run_together(chain):
    pipeline = chain.pipeline()
    pipeline.infer(ask("cars", scene(1, 2, 3, 4), scene(5, 6, 7, 8)))
    (statistics,) = pipeline.statistics("marks", None)
    assert (statistics.inference_count, statistics.execution_count) == (8, 1)
    assert [batch.batch_size for batch in statistics.batches] == [8]


def test_requests_at_once_share_runs_and_get_their_own_answers(chain):
    marking(chain.models / "marks", MAX_NUMBER, "[runtime]\nbatching = {max = 32, delay_ms = 5}\n")
    pipeline = chain.pipeline()
    starts = range(0, MAX_NUMBER, 4)
    with ThreadPoolExecutor(8) as threads:
        requests = [ask("cars", scene(*range(start, start + 4))) for start in starts]
        responses = list(threads.map(pipeline.infer, requests))
    for start, response in zip(starts, responses, strict=True):
        assert answers(response) == [marks(*range(start, start + 4))]
    (statistics,) = pipeline.statistics("marks", None)
    assert statistics.inference_count == MAX_NUMBER
    assert statistics.execution_count < len(starts)
    parents = {str(record.seq): record for record in chain.records() if record.model.name == "cars"}
    crops = [record for record in chain.records() if record.model.name == "marks"]
    numbers = defaultdict(list)
    for record in crops:
        numbers[record.request_id].append(record.predictions[0]["label"])
    ids = [response.inference_ids[0] for response in responses]
    assert set(ids) == set(numbers) == set(parents)
    for start, inference_id in zip(starts, ids, strict=True):
        assert numbers[inference_id] == marks(*range(start, start + 4))


def test_a_graph_of_one_image_runs_crop_by_crop(chain):
    folder = chain.models / "colours"
    classifier(folder / "model.onnx", batch=1)
    (folder / "model.toml").write_text(COLOURS_TOML)
    chain.detector("cars", 'model = "colours"')
    pipeline = chain.pipeline()
    pipeline.infer(ask("cars", scene(1)))
    (statistics,) = pipeline.statistics("colours", None)
    assert (statistics.inference_count, statistics.execution_count) == (4, 4)


@pytest.mark.parametrize(
    ("parameters", "store", "crops"),
    [
        ({"store": False}, "", 0),
        ({}, "enabled = false", 0),
        ({}, "share = 0", 0),
        ({}, "", 4),
    ],
)
def test_what_is_not_to_be_stored_is_answered_all_the_same(chain, parameters, store, crops):
    marking(chain.models / "marks", MAX_NUMBER, f"[store]\n{store}")
    response = chain.pipeline().infer(ask("cars", scene(1, 2, 3, 4), **parameters))
    assert answers(response) == [marks(1, 2, 3, 4)]
    assert sum(record.model.name == "marks" for record in chain.records()) == crops
    text = msgspec.json.encode(response.outputs[0].data).decode()
    assert text.count("inference_id") == crops


@pytest.mark.parametrize(
    ("parameters", "inputs"), [({"store_input": False}, ""), ({}, 'inputs = "none"')]
)
def test_images_of_crops_are_not_kept_where_none_are_to_be(chain, parameters, inputs):
    marking(chain.models / "marks", MAX_NUMBER, f"[store]\n{inputs}")
    chain.pipeline().infer(ask("cars", scene(1, 2, 3, 4), **parameters))
    _, *crops = chain.records()
    assert [(record.input.hash, record.input.kept) for record in crops] == [(None, False)] * 4
    assert {record.input.width for record in crops} == {8}


def test_crops_of_an_inference_that_is_not_stored_stay_apart_from_the_request(chain):
    chain.detector("cars", 'model = "marks"\n[store]\nenabled = false')
    response = chain.pipeline().infer(ask("cars", scene(1, 2), scene(3, 4)))
    assert not response.inference_ids
    records = chain.records()
    assert {record.request_id for record in records} == {"r/0", "r/1"}
    assert all("inference_id" not in record.standard["crop"] for record in records)


def test_a_chain_of_three_answers_crops_of_crops(chain):
    chain.detector("cars", 'model = "inner"\nmax_crops = 2')
    chain.detector("inner", 'model = "marks"\nmax_crops = 1')
    response = chain.pipeline().infer(ask("cars", scene(9, 7)))
    wire = msgspec.json.decode(msgspec.json.encode(response.outputs[0].data))
    then = [prediction.get("then") for prediction in wire[0]]
    assert then[2:] == [None, None]
    for outer, number in zip(then, (9, 7), strict=False):
        assert (outer["model"], outer["crops_left_out"]) == ("inner", 3)
        inner = [prediction.get("then") for prediction in outer["predictions"]]
        # The crop of 8 x 8 is stretched to the inner detector's 32 x 32: its first box is 2 x 2 of those.
        assert inner[0]["crop"] == {"xmin": 0, "ymin": 0, "xmax": 2, "ymax": 2}
        assert inner[0]["predictions"][0]["label"] == f"number {number}"
        assert inner[1:] == [None] * 3
    first, *others = chain.records()
    middle, last = others[:2], others[2:]
    assert [record.model.name for record in others] == ["inner"] * 2 + ["marks"] * 2
    assert [record.request_id for record in middle] == [str(first.seq)] * 2
    assert [record.request_id for record in last] == [str(record.seq) for record in middle]
    crops = [record.standard["crop"] for record in others]
    assert {crop["image"] for crop in crops} == {first.input.hash}
    assert {crop["request_id"] for crop in crops} == {"r"}


def test_old_shapes_have_the_answers_beside_the_scores(chain):
    chain.detector("cars", 'model = "marks"\nmax_crops = 2')
    response = chain.pipeline().infer(ask("cars", scene(1, 2), output_format="legacy"))
    (element,) = response.outputs[0].data
    assert element["num_detections"] == 4
    assert [then and then.predictions[0].label for then in element["then"]] == marks(
        1, 2, None, None
    )


def test_tensors_for_the_graph_have_no_crops(chain):
    tensor = Tensor("images", "FP32", (1, 3, SIDE, SIDE), np.zeros((1, 3, SIDE, SIDE), np.float32))
    tensor = msgspec.structs.replace(tensor, parameters={"content_type": "raw"})
    response = chain.pipeline().infer(InferRequest("cars", None, "r", [tensor]))
    assert response.outputs[0].shape == (1, 7, 4)
    assert [record.model.name for record in chain.records()] == ["cars"]


def test_tensors_for_the_graph_of_a_model_of_images_have_the_names_of_its_inputs(chain):
    tensor = Tensor("x", "FP32", (1,), np.zeros(1, np.float32), parameters={"content_type": "raw"})
    message = "^expected the inputs images, as content_type raw sends tensors to the graph of cars, got 'x'$"
    with pytest.raises(InvalidRequest, match=message):
        chain.pipeline().infer(InferRequest("cars", None, "r", [tensor]))


def test_a_chain_whose_middle_is_not_stored_keeps_its_ends(chain):
    chain.detector("cars", 'model = "inner"\nmax_crops = 2')
    chain.detector("inner", 'model = "marks"\nmax_crops = 1\n[store]\nenabled = false')
    chain.pipeline().infer(ask("cars", scene(9, 7)))
    first, *crops = chain.records()
    assert [record.model.name for record in crops] == ["marks"] * 2
    assert [record.request_id for record in crops] == [f"{first.seq}/0", f"{first.seq}/1"]
    assert {record.standard["crop"]["image"] for record in crops} == {first.input.hash}


def test_nothing_that_waits_to_be_stored_holds_the_pixels_of_crops(chain, monkeypatch):
    seen = []
    record = Recorder.record

    def note(recorder, summary, results, **options):
        seen.extend(results)
        return record(recorder, summary, results, **options)

    monkeypatch.setattr(Recorder, "record", note)
    chain.pipeline().infer(ask("cars", scene(1, 2, 3, 4)))
    assert len(seen) == 5
    assert {(result.cut_crops, result.decoded_image) for result in seen} == {(None, None)}


def test_records_of_crops_belong_to_the_team_of_the_request(chain):
    pipeline = chain.pipeline()
    set_current_request(
        RequestContext(caller=Caller(name="line", rights=frozenset({"infer"}), team="quality"))
    )
    pipeline.infer(ask("cars", scene(1)))
    assert {record.team for record in chain.records()} == {"quality"}


def test_crops_have_signals_of_their_own(chain):
    pipeline = chain.pipeline(signals_per_s=1000)
    response = pipeline.infer(ask("cars", scene(1, 2, 3, 4)))
    chain.opened.remove(pipeline)
    pipeline.close()
    changes = [
        msgspec.json.decode(payload, type=JournaledChange).change
        for payload in journal_payloads(chain.directory)
        if is_change(payload)
    ]
    signalled = {signals.seq for change in changes for signals in change.of}
    assert signalled == {record.seq for record in chain.records()}
    assert len(signalled) == 5
    assert int(response.inference_ids[0]) in signalled


def test_a_model_of_other_bands_gets_those_of_the_file(chain):
    save_bands(chain.models / "bands")
    chain.detector("cars", 'model = "bands"\nmax_crops = 1')
    pixels = np.zeros((SIDE, SIDE, 4), np.uint8)
    pixels[..., 3] = 255  # alpha, which the detector drops
    response = chain.pipeline().infer(ask("cars", png(pixels)))
    assert answers(response) == [["near infrared", None, None, None]]
    *_, record = chain.records()
    stored = decode(chain.image(record), channels=4, bit_depth=16)
    assert stored.pixels.shape == (8, 8, 4)
    assert stored.pixels[..., 3].min() == 65535
