"""Inferences in JSON: what is taken, what is refused and why, and what a hostile sender reaches."""

import time
from typing import Any

import msgspec
import pytest

from quadriga.proto.access import Caller
from quadriga.proto.errors import Forbidden, InvalidRequest
from quadriga.proto.request import RequestContext, set_current_request
from quadriga.store.journal.journal_lag import oldest_waiting_id
from quadriga.store.records.errors import JournalError
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import ModelReference
from tests.unit.engine.logged.log_harness import BOX, LogHarness, encoded, picture
from tests.unit.store_harness import commit_journal, select_rows

ITEM: dict[str, Any] = {"model": "theirs", "predictions": [BOX]}
CLASSES = {
    "task": "classification",
    "labels": ["a", "b"],
    "input": {"size": [8, 8], "resize": "stretch"},
}


def v2(*outputs: Any) -> dict[str, Any]:
    return {"model_name": "x", "model_version": "4", "outputs": list(outputs)}


def output(data: Any, shape: Any, datatype: str = "FP32", name: str = "out") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def images_request(*images: bytes) -> dict[str, Any]:
    return {"inputs": [output([encoded(i) for i in images], [len(images)], "BYTES", "in")]}


REFUSED = {
    "no model": ({"predictions": []}, "model is required"),
    "a path": ({**ITEM, "model": "../../etc"}, "expected model to be at most 128 letters"),
    "a version in the name": ({**ITEM, "model": "a:1"}, "expected model"),
    "control characters": ({**ITEM, "model": "a\x00b"}, "expected model"),
    "the end of a line": ({**ITEM, "model": "a\n"}, "expected model"),
    "a shadow": ({**ITEM, "model": "a~shadow"}, "expected model"),
    "dots": ({**ITEM, "model": ".."}, "expected model"),
    "a long name": ({**ITEM, "model": "a" * 129}, "expected model"),
    "emoji": ({**ITEM, "model": "model-🙂"}, "expected model"),
    "an unknown key": ({**ITEM, "prediction": []}, "unknown field"),
    "an unknown task": ({**ITEM, "task": "seeing"}, "task: expected one of"),
    "a task of others": ({**ITEM, "task": "oriented"}, "predictions.0.: expected a prediction of ORI"),
    "no predictions": ({"model": "m"}, "predictions are required"),
    "no task": ({"model": "m", "predictions": []}, "task is required"),
    "both": ({**ITEM, "response": v2()}, "one of predictions and response"),
    "a box inside out": ({**ITEM, "predictions": [{**BOX, "xmin": 99}]}, "xmin <= xmax"),
    "no label": ({**ITEM, "predictions": [{**BOX, "label": ""}]}, "label: expected a text of 1"),
    "a long label": ({**ITEM, "predictions": [{**BOX, "label": "x" * 3000}]}, "2048 bytes"),
    "a text as score": ({**ITEM, "predictions": [{**BOX, "score": "1"}]}, "score"),
    "too many": ({**ITEM, "predictions": [BOX] * 10_001}, "at most 10000 predictions"),
    "no base64": ({**ITEM, "image": "%%%"}, "image: expected a base64"),
    "no image": ({**ITEM, "image": encoded(b"hello")}, "image: expected a JPEG"),
    "a cut image": ({**ITEM, "image": encoded(picture()[:60])}, "image: expected"),
    "a bomb": ({**ITEM, "image": encoded(picture(200, 200))}, "1 to 10000 pixels"),
    "one side": ({**ITEM, "width": 3}, "both width and height"),
    "a naive time": ({**ITEM, "time": "2026-01-01T00:00:00"}, "RFC 3339 with a time zone"),
    "no time": ({**ITEM, "time": "yesterday"}, "RFC 3339"),
    "the far past": ({**ITEM, "time": "1970-01-01T00:00:00Z"}, "from 2025 on"),
    "the far future": ({**ITEM, "time": "2999-01-01T00:00:00Z"}, "at most a day ahead"),
    "a huge number": ({**ITEM, "time": 1e300}, "RFC 3339"),
    "metadata": ({**ITEM, "metadata": {"a": "x" * 70_000}}, "at most 65536 bytes"),
    "a list as metadata": ({**ITEM, "metadata": [1]}, "metadata.0.: expected an object with key"),
    "a long request id": ({**ITEM, "request_id": "x" * 1025}, "at most 1024 characters"),
    "a long key": ({**ITEM, "key": "x" * 257}, "key of at most 256"),
    "a long version": ({**ITEM, "version": "x" * 200}, "version"),
    "code": (
        {"model": "m", "response": v2(output([1], [1])), "description": {**CLASSES, "output": {"decoder": "os:system"}}},
        "description.output.decoder: expected one of",
    ),
    "a decoder of segmentation": (
        {"model": "m", "response": v2(output([1], [1])), "description": {**CLASSES, "task": "detection", "output": {"decoder": "binary"}}},
        "description.output.decoder: expected one of ultralytics",
    ),
    "a decoder of detection": (
        {"model": "m", "response": v2(output([1], [1])), "description": {**CLASSES, "task": "segmentation", "output": {"decoder": "yolov5"}}},
        "description.output.decoder: expected one of semantic_logits",
    ),
    "a task of code": (
        {"model": "m", "response": v2(output([1], [1])), "description": {**CLASSES, "task": "os:system"}},
        "description.task: expected one of",
    ),
    "a file": (
        {"model": "m", "response": v2(output([1], [1])), "description": {**CLASSES, "labels": "/etc/passwd"}},
        "labels",
    ),
    "100,000 labels": (
        {"model": "m", "response": v2(output([1], [1])), "description": {**CLASSES, "labels": ["x"] * 100_000}},
        "1 to 65536 labels, got 100000",
    ),
    "outputs of others": (
        {"model": "m", "response": v2(output([1, 2, 3], [1, 3])), "description": CLASSES},
        "description: expected 3 labels",
    ),
    "outputs of too many images": (
        {"model": "m", "response": v2(output([1.0] * 4, [2, 2])), "description": CLASSES},
        "response: expected outputs of 1 images",
    ),
    "no size": (
        {"model": "m", "response": v2(output([1, 2], [1, 2])), "description": {**CLASSES, "input": {}}},
        "input.size is required",
    ),
    "a size of nothing": (
        {"model": "m", "response": v2(output([1, 2], [1, 2])), "description": {**CLASSES, "input": {"size": [0, 8], "resize": "stretch"}}},
        "input.size",
    ),
    "predictions of too few images": (
        {"model": "m", "request": images_request(picture(), picture()), "response": {"predictions": [[BOX]]}},
        "expected predictions of 2 images, got 1",
    ),
    "a body of neither": ({"model": "m", "response": {"answer": 42}}, "outputs as of V2, or predictions as of V1"),
    "a request of neither": ({**ITEM, "request": {"x": 1}}, "inputs as of V2, or instances as of V1"),
    "a long id of the response": ({"model": "m", "response": {**v2(output([1], [1])), "id": "x" * 2000}}, "request_id of at most 1024"),
    "a deep prediction": (
        {"model": "m", "task": "tensor", "predictions": [msgspec.json.decode(b'{"a":' * 400 + b"1" + b"}" * 400)]},
        "nested at most 32 deep",
    ),
    "a wrong shape": ({"model": "m", "response": v2(output([1, 2], [3]))}, "response: .*outputs.0."),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_with_the_reason_and_nothing_is_stored(harness, name) -> None:
    item, reason = REFUSED[name]
    with pytest.raises(InvalidRequest, match=reason):
        harness.log(item)
    assert harness.records() == []


def test_a_time_without_a_place_refuses_its_inference_alone(harness) -> None:
    harness.first_place_ms = 1_767_225_600_000
    old, new = "2025-12-31T23:59:59Z", "2026-01-01T00:00:00Z"
    answer = harness.log({**ITEM, "inferences": [{"time": old}, {"time": new}, {}]})
    assert answer.stored == 2
    (refused,) = answer.refused
    assert refused.item == 0
    assert f"a partition of, got '{old}'" in refused.reason
    assert time_ms(harness.records()[0].seq) == harness.first_place_ms


@pytest.mark.parametrize("token", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_a_score_that_is_no_number_refuses_its_inference_alone(harness, token) -> None:
    good = msgspec.json.encode(ITEM)
    bad = good.replace(b"0.9", token)
    answer = harness.log(b'{"inferences":[%b,%b,%b]}' % (good, bad, good))
    assert (answer.stored, len(answer.refused), answer.inferences[1]) == (2, 1, None)
    assert answer.refused[0].item == 1
    assert (
        "inferences[1]: predictions[0].score: expected a finite number" in answer.refused[0].reason
    )


BODIES = {
    "no JSON": (b"\xff\xd8\xff", "body: expected JSON"),
    "a list": (b"[]", "body: expected a JSON object, got list"),
    "no inferences": (b'{"inferences": []}', "a list of 1 to 1000, got 0"),
    "too many": (b'{"inferences": [%b1]}' % (b"1," * 1000), "a list of 1 to 1000, got 1001"),
    "deep": (b"[" * 100_000, "JSON"),
    "half a character": (b'{"model": "m", "key": "\\ud800", "latency_ms": NaN}', "JSON"),
    "numbers": (b'{"inferences": [1]}', "expected an object, got int"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_none_is_refused(harness, name) -> None:
    body, reason = BODIES[name]
    with pytest.raises(InvalidRequest, match=reason):
        harness.log(body)


def test_a_thousand_inferences_are_stored_by_one_request_and_once(harness) -> None:
    items = [
        {"key": str(n), "predictions": [BOX], "time": "2026-01-01T00:00:00Z"} for n in range(1000)
    ]
    body = {"model": "theirs", "metadata": {"day": 1}, "inferences": items}
    first, second = harness.log(body), harness.log(body)
    assert (first.stored, second.stored, second.repeated) == (1000, 0, 1000)
    assert [r.ids for r in first.inferences] == [r.ids for r in second.inferences]
    assert len({record.seq for record in harness.records()}) == len(harness.records()) == 1000


def test_one_key_twice_in_a_request_is_stored_once(harness) -> None:
    answer = harness.log({"inferences": [{**ITEM, "key": "k"}, {**ITEM, "key": "k"}]})
    assert (answer.stored, answer.repeated, len(harness.records())) == (1, 1, 1)
    assert answer.inferences[0].ids == answer.inferences[1].ids


def test_an_image_has_its_signals_and_boxes_may_lie_outside_of_it(harness) -> None:
    outside = {**BOX, "xmin": -5, "xmax": 4000}
    harness.log({**ITEM, "image": encoded(picture()), "predictions": [outside]})
    (record,) = harness.records()
    assert (record.input.width, record.input.height, record.input.mime) == (8, 6, "image/png")
    assert harness.blobs.get(record.input.hash) == picture()
    assert harness.signals() == [record.seq]
    assert harness.predictions() == [outside]
    assert record.task == "OBJECT_DETECTION"


def test_the_pixels_of_all_images_of_a_request_are_limited(harness) -> None:
    item = {**ITEM, "image": encoded(picture(100, 100))}
    answer = harness.log({"inferences": [item] * 7})
    assert (answer.stored, len(answer.refused)) == (5, 2)
    assert "at most 50000 pixels in a request" in answer.refused[0].reason


def test_the_images_of_a_request_are_limited_however_small(harness) -> None:
    item = {
        "model": "theirs",
        "request": {"instances": [1] * 600},
        "response": {"predictions": [1] * 600},
    }
    answer = harness.log({"inferences": [item, item]})
    assert (answer.stored, len(answer.inferences[0].ids), answer.refused[0].item) == (1, 600, 1)
    assert "at most 1000 images in a request" in answer.refused[0].reason


@pytest.mark.parametrize(
    ("offset_s", "is_kept"),
    [(-3600, True), (-0.5, True), (30, True), (600, False), (80_000, False)],
)
def test_a_clock_that_is_ahead_makes_no_inference_of_the_future(harness, offset_s, is_kept) -> None:
    at_s = time.time() + offset_s
    harness.log({**ITEM, "time": at_s})
    (record,) = harness.records()
    assert (abs(time_ms(record.seq) / 1000 - at_s) < 0.01) is is_kept
    assert time_ms(record.seq) / 1000 < time.time() + 61
    assert ("sent_time" in harness.standard()) is not is_kept


FAILED = [
    ({"error": "no memory"}, 500, "no memory"),
    ({"status": 429}, 429, None),
    ({"status": 503, "error": "busy"}, 503, "busy"),
]


@pytest.mark.parametrize(("fields", "status", "error"), FAILED)
def test_a_failed_inference_has_its_status_and_reason(harness, fields, status, error) -> None:
    harness.log({"model": "theirs", "image": encoded(picture()), **fields})
    (record,) = harness.records()
    assert (record.status, harness.predictions(), harness.standard().get("error")) == (
        status,
        [],
        error,
    )


FORMS = {
    "classification": ([{"label": "a", "score": 0.5}], "IMAGE_CLASSIFICATION"),
    "detection": ([BOX], "OBJECT_DETECTION"),
    "oriented": ([{"label": "a", "score": 1, "cx": 0.5, "cy": 0.5, "w": 0.1, "h": 0.1, "r": 0}], "ORIENTED_OBJECT_DETECTION"),
    "segmentation": ([{"label": "a", "score": 1, "contour": [[{"x": 1, "y": 2}]]}], "IMAGE_SEGMENTATION"),
    "image-text": ([{"prompt": "p", "answer": "a"}], "IMAGE_TEXT_TO_TEXT"),
}  # fmt: skip


@pytest.mark.parametrize("task", FORMS)
def test_each_form_of_predictions_shows_its_task(harness, task) -> None:
    predictions, full_name = FORMS[task]
    harness.log({"model": "theirs", "predictions": predictions})
    harness.log({"model": "theirs", "predictions": predictions, "task": task})
    harness.log({"model": "theirs", "predictions": [], "task": task})
    assert [record.task for record in harness.records()] == [full_name] * 3
    assert msgspec.json.decode(harness.records()[0].predictions) == predictions


RESPONSES = {
    "chariot": (v2(output([[BOX]], [1], "BYTES")), "OBJECT_DETECTION", [BOX]),
    "JSON in texts": (v2(output([msgspec.json.encode([BOX]).decode()], [1], "BYTES")), "OBJECT_DETECTION", [BOX]),
    "Triton's classification": (
        v2(output(["0.75:3:cat", "0.25:0:dog"], [1, 2], "BYTES")),
        "IMAGE_CLASSIFICATION",
        [{"label": "cat", "score": 0.75}, {"label": "dog", "score": 0.25}],
    ),
    "Triton's classification without labels": (
        v2(output(["0.75:3"], [1, 1], "BYTES")),
        "IMAGE_CLASSIFICATION",
        [{"label": "class_3", "score": 0.75}],
    ),
    "V1": ({"predictions": [{"label": "cat", "score": 0.5}]}, "IMAGE_CLASSIFICATION", [{"label": "cat", "score": 0.5}]),
    "V1 of numbers": ({"predictions": [[0.1, 0.9]]}, "TENSOR", [{"name": "predictions", "data": [0.1, 0.9]}]),
    "tensors": (
        v2(output([1.5, float("nan")], [1, 2])),
        "TENSOR",
        [{"name": "out", "datatype": "FP32", "shape": [1, 2], "data": [1.5, None]}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_of_another_server_is_read(harness, name) -> None:
    response, task, predictions = RESPONSES[name]
    body = {"model": "theirs", "request": images_request(picture()), "response": response}
    # NaN is no JSON, and servers write it
    harness.log(msgspec.json.encode(body).replace(b"1.5,null", b"1.5,NaN"))
    (record,) = harness.records()
    assert (record.task, harness.predictions()) == (task, predictions)
    assert record.input.width == 8


def test_outputs_are_read_by_a_description_that_was_said_before(harness) -> None:
    harness.service.put_description("theirs", msgspec.json.encode(CLASSES))
    harness.log({"model": "THEIRS", "response": v2(output([0.0, 20.0], [1, 2]))})
    assert harness.predictions() == [{"label": "b", "score": pytest.approx(1)}]
    assert harness.records()[0].model.version == "4"
    harness.service.described.remove("theirs", "")
    harness.log({"model": "theirs", "response": v2(output([0.0, 20.0], [1, 2]))})
    assert harness.records()[1].task == "TENSOR"


def test_a_version_that_no_database_keeps_is_written_so_that_it_can_be(harness) -> None:
    harness.log(
        {"model": "theirs", "response": {**v2(output([1.0], [1])), "model_version": "a\0b"}}
    )
    assert harness.records()[0].model.version == "a\ufffdb"


def test_a_batch_becomes_an_inference_for_each_image(harness) -> None:
    body = {
        "model": "theirs",
        "key": "batch",
        "request": images_request(picture(), picture(9, 9)),
        "response": v2(output([0.0, 20.0, 20.0, 0.0], [2, 2])),
        "description": CLASSES,
    }
    answer = harness.log(body)
    assert harness.log(body).repeated == 1
    records = harness.records()
    assert [str(record.seq) for record in records] == answer.inferences[0].ids
    assert [record.image_no for record in records] == [0, 1]
    assert [r.input.width for r in records] == [8, 9]
    labels = [msgspec.json.decode(record.predictions)[0]["label"] for record in records]
    assert labels == ["b", "a"]


def test_the_name_of_a_served_model_is_that_model(harness) -> None:
    harness.log({**ITEM, "model": "M-Served"})
    (record,) = harness.records()
    assert record.model == ModelReference("served", "1", "")
    assert harness.standard()["protocol"] == "logged"


def test_a_key_for_other_models_logs_nothing(harness) -> None:
    set_current_request(
        RequestContext(
            caller=Caller(name="n", rights=frozenset({"infer"}), models=("mine-*",), team="a")
        )
    )
    answer = harness.log({"inferences": [{**ITEM, "model": "mine-1"}, ITEM]})
    assert (answer.stored, answer.refused[0].item) == (1, 1)
    with pytest.raises(Forbidden, match="key for the model 'theirs'"):
        harness.log(ITEM)
    (record,) = harness.records()
    assert (record.model.name, record.team) == ("mine-1", "a")


def test_two_teams_with_one_key_have_two_inferences(harness) -> None:
    for team in ("a", "b", "a"):
        set_current_request(
            RequestContext(caller=Caller(name="n", rights=frozenset({"infer"}), team=team))
        )
        harness.log({**ITEM, "key": "k"})
    assert [record.team for record in harness.records()] == ["a", "b"]


def test_a_full_journal_refuses_and_acknowledges_nothing(tmp_path) -> None:
    harness = LogHarness(tmp_path / "data", journal_hard_bytes=1000, journal_full="shed")
    harness.log(ITEM)
    harness.log({**ITEM, "metadata": {"x": "y" * 2000}})
    time.sleep(0.2)
    with pytest.raises(JournalError, match="bytes of the journal"):
        harness.log({**ITEM, "key": "later"})
    assert len(harness.records()) == 2
    harness.close()


def test_what_failed_to_be_stored_is_stored_when_it_is_sent_again(harness, monkeypatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise JournalError("the disk is full")

    item = {**ITEM, "key": "k"}
    with monkeypatch.context() as patched:
        patched.setattr(harness.log_recorder._journal, "append", fail)
        with pytest.raises(JournalError):
            harness.log(item)
    assert harness.records() == []
    assert harness.log(item).stored == 1
    assert harness.log(item).repeated == 1
    assert len(harness.records()) == 1


def test_two_servers_of_one_database_store_a_key_with_a_time_once(tmp_path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    item = {**ITEM, "key": "k", "time": "2026-01-01T00:00:00Z", "image": encoded(picture())}
    ids = set()
    for number, name in enumerate(("a", "b")):
        server = LogHarness(tmp_path / name, worker=number)
        for _ in range(2):
            ids.add(server.log(item).inferences[0].ids[0])
        server.log({**ITEM, "time": "2026-01-01T00:00:00Z"})  # without a key, each is another one
        server.close()
        commit_journal(url, server.settings.journal_directory)
    assert len(ids) == 1
    rows = select_rows(url, "SELECT seq, standard FROM inference")
    assert len(rows) == 3
    assert not any("acknowledged_id" in standard for _, standard in rows)
    (signals,) = select_rows(url, "SELECT count(*) FROM signal")
    assert signals == (1,)


def test_an_inference_of_last_year_does_not_make_the_journal_look_late(harness) -> None:
    harness.log({**ITEM, "time": "2025-06-01T00:00:00Z"})
    directory = harness.settings.journal_directory
    assert oldest_waiting_id(directory) is None
    harness.log(ITEM)
    own_id = oldest_waiting_id(directory)
    assert own_id is not None
    assert time.time() - time_ms(own_id) / 1000 < 60
