"""Storing of requests: durability and standard metadata."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from quadriga.engine.serving import image_inference, recording
from quadriga.proto.errors import (
    ClientLeft,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Overloaded,
)
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.proto.request import Deadline, RequestContext, set_current_request
from quadriga.store.writing.writer import Writer
from tests.background import at_once, in_background
from tests.unit.engine.recording_harness import GRAY, WHITE, RecordingHarness, ask, gray


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RecordingHarness]:
    harness = RecordingHarness(tmp_path)
    yield harness
    for pipeline in harness.opened:
        pipeline.close()


def test_record_has_model_input_and_standard_metadata(harness: RecordingHarness) -> None:
    response = harness.pipeline().infer(ask("plain", GRAY, WHITE, metadata={"camera": "north"}))
    first, second = harness.records()
    assert [str(first.seq), str(second.seq)] == list(response.inference_ids)
    assert response.outputs[0].parameters["inference_id"] == ",".join(response.inference_ids)
    assert (first.status, first.input.bytes, first.input.kept) == (200, len(GRAY), True)
    assert second.input.bytes == len(WHITE)
    standard = dict(first.standard)
    stages = standard.pop("stages_ms")
    hashed = standard.pop("preprocessing")
    assert standard == {"engine": "1.2.3", "protocol": "chariot-v2-kserve"}
    assert list(stages) == ["queue", "preprocess", "infer", "postprocess"]
    assert 0 < sum(stages.values()) <= first.latency_ms + 0.01
    assert len(hashed) == 12
    assert second.standard == first.standard


def test_models_that_prepare_images_alike_have_one_hash(harness: RecordingHarness) -> None:
    harness.model("twin", "")
    harness.model("other", "")
    toml = harness.models / "other" / "model.toml"
    toml.write_text(toml.read_text().replace('"stretch"', '"letterbox"'))
    pipeline = harness.pipeline()
    for name in ("plain", "twin", "other"):
        pipeline.infer(ask(name))
    plain, twin, different = [record.standard["preprocessing"] for record in harness.records()]
    assert plain == twin != different


def test_a_protocol_is_stored_as_it_names_itself(harness: RecordingHarness) -> None:
    pipeline = harness.pipeline()
    pipeline.infer(ask("plain", protocol="v2-grpc"))
    rows = Tensor("x", "FP32", (1, 3), np.ones((1, 3), np.float32))
    pipeline.infer(InferRequest("double", None, "r", [rows]))
    grpc, tensors = harness.records()
    assert grpc.standard["protocol"] == "v2-grpc"
    assert tensors.standard["protocol"] == "v2"
    assert "preprocessing" not in tensors.standard


@pytest.mark.parametrize("durability", ["memory", "process", "power"])
def test_each_durability_keeps_all_that_is_acknowledged(
    harness: RecordingHarness, durability
) -> None:
    harness.model("own", f'durability = "{durability}"')
    pipeline = harness.pipeline(durability="database")
    ids = [pipeline.infer(ask("own", gray(level))).inference_ids[0] for level in range(20)]
    pipeline.close()
    assert [str(record.seq) for record in harness.records()] == ids
    assert harness.images() == 20
    assert harness.recorder.counters()["stored_total"] == 20
    assert harness.recorder.counters()["lost_total"] == 0


def test_with_the_durability_database_an_answer_waits_for_the_commit(
    harness: RecordingHarness, tmp_path: Path, monkeypatch
) -> None:
    pipeline = harness.pipeline(durability="database")
    writer = Writer(harness.directory, f"sqlite:///{tmp_path}/store.db")
    with in_background(writer.run):
        (seq,) = pipeline.infer(ask("plain")).inference_ids
    assert writer.records_committed == 1
    writer.close()
    monkeypatch.setattr(recording, "COMMIT_TIMEOUT_S", 0.01)
    with pytest.raises(Overloaded, match=r"has not committed.*may still be stored"):
        pipeline.infer(ask("plain"))
    assert str(harness.records()[0].seq) == seq
    assert len(harness.records()) == 2
    assert harness.recorder.counters()["refused_total"] == 1


def test_ids_follow_the_journal_also_between_threads(harness: RecordingHarness) -> None:
    pipeline = harness.pipeline()
    at_once([lambda: [pipeline.infer(ask("plain")) for _ in range(10)]] * 3)
    seqs = [record.seq for record in harness.records()]
    assert len(set(seqs)) == 30
    assert sum(later < earlier for earlier, later in pairwise(seqs)) < 15


@pytest.mark.parametrize(
    ("store", "parameters", "has_blob", "images"),
    [
        ("", {}, 2, 2),
        ('inputs = "none"', {}, 2, 0),
        ('inputs = "sampled"\nsample_rate = 1.0', {}, 2, 2),
        ('inputs = "sampled"\nsample_rate = 0.0', {}, 2, 0),
        ('inputs = "sampled"\nsample_rate = 1.0', {"store_input": False}, 2, 0),
        ("", {"store_input": False}, 2, 0),
        ("", {"store_input": True, "store": None}, 2, 2),
        ("", {"store": False}, 0, 0),
        ("enabled = false", {"store": True}, 0, 0),
        ("share = 0.0", {}, 0, 0),
        ("share = 1.0", {"store": False}, 0, 0),
    ],
)
def test_model_and_request_decide_what_is_stored(
    harness: RecordingHarness, store, parameters, has_blob, images
) -> None:
    harness.model("own", store)
    response = harness.pipeline().infer(ask("own", GRAY, WHITE, **parameters))
    assert (len(harness.records()), harness.images()) == (has_blob, images)
    assert len(response.inference_ids) == has_blob
    assert ("inference_id" in response.outputs[0].parameters) == bool(has_blob)
    assert "stored" not in response.outputs[0].parameters
    assert all(record.input.kept == bool(images) for record in harness.records())
    assert all(record.input.hash for record in harness.records())


@pytest.mark.parametrize("durability", ["memory", "process", "power"])
def test_an_input_may_opt_out_beside_others(harness: RecordingHarness, durability) -> None:
    inputs = [
        Tensor("a", "BYTES", (1,), data=[GRAY], parameters={"store": False}),
        Tensor("b", "BYTES", (1,), data=[WHITE], parameters={}),
    ]
    pipeline = harness.pipeline(durability=durability)
    response = pipeline.infer(InferRequest("plain", None, "r", inputs))
    alone = pipeline.infer(InferRequest("plain", None, "r", inputs[:1]))
    pipeline.close()
    (record,) = harness.records()
    assert (record.input.name, record.image_no) == ("b", 1)
    assert "inference_id" not in response.outputs[0].parameters
    assert response.outputs[1].parameters["inference_id"] == str(record.seq)
    assert (alone.inference_ids, alone.stored) == ([], True)
    assert harness.images() == 1


def test_sampling_takes_its_share_and_the_same_images_each_time(harness: RecordingHarness) -> None:
    harness.model("own", 'inputs = "sampled"\nsample_rate = 0.5')
    pipeline = harness.pipeline()
    levels = range(60)
    for _ in range(2):
        for level in levels:
            pipeline.infer(ask("own", gray(level)))
    sampled = [record.input.kept for record in harness.records()]
    assert sampled[:60] == sampled[60:]
    assert 15 < sum(sampled[:60]) < 45
    assert harness.images() == sum(sampled[:60])


@pytest.mark.parametrize("durability", ["memory", "process"])
def test_a_share_of_the_inferences_is_stored(harness: RecordingHarness, durability) -> None:
    harness.model("own", "share = 0.5")
    pipeline = harness.pipeline(durability=durability)
    responses = [pipeline.infer(ask("own", gray(level), WHITE)) for level in range(60)]
    pipeline.close()
    ids = [inference_id for response in responses for inference_id in response.inference_ids]
    assert sorted(ids) == sorted(str(record.seq) for record in harness.records())
    assert 30 < len(ids) < 90  # of 120, chosen one by one
    assert all(response.stored for response in responses)


@pytest.mark.parametrize("name", ["store", "store_input"])
def test_an_opt_out_is_true_or_false(harness: RecordingHarness, name) -> None:
    with pytest.raises(InvalidRequest, match=f"inputs.0.*parameters.{name} to be true or false"):
        harness.pipeline().infer(ask("plain", **{name: "no"}))
    assert harness.records() == []


def test_failed_request_is_stored_without_an_id(harness: RecordingHarness) -> None:
    pipeline = harness.pipeline(durability="database")
    with pytest.raises(InternalError) as caught:
        pipeline.infer(ask("breaking", GRAY, WHITE, metadata={"camera": "north"}))
    first, second = harness.records()
    assert (first.status, first.predictions) == (500, [])
    assert first.standard["error"] == str(caught.value)[:2000]
    assert (second.image_no, second.metadata) == (1, {"camera": "north"})
    assert harness.images() == 2
    numbers = harness.recorder.counters()
    assert (numbers["failed_total"], numbers["stored_total"]) == (2, 0)
    with pytest.raises(InternalError):
        pipeline.infer(ask("breaking", WHITE, store=False))
    assert len(harness.records()) == 2


@pytest.mark.parametrize("image", [b"no image", b""])
def test_client_errors_are_not_stored(harness: RecordingHarness, image) -> None:
    with pytest.raises(InvalidRequest):
        harness.pipeline().infer(ask("plain", image))
    assert harness.records() == []


def test_signals_are_of_images_that_are_recorded(harness: RecordingHarness) -> None:
    pipeline = harness.pipeline(signals_per_s=1e6)
    pipeline.infer(ask("plain", GRAY, WHITE))
    pipeline.infer(ask("plain", store_input=False))
    pipeline.infer(ask("plain", store=False))
    with pytest.raises(InternalError):
        pipeline.infer(ask("breaking", WHITE))
    tensor = Tensor("x", "FP32", (1, 3), np.zeros((1, 3), np.float32))
    pipeline.infer(InferRequest("double", None, "r", [tensor]))
    assert harness.signalled() == [record.seq for record in harness.records()[:3]]
    numbers = harness.recorder.counters()
    assert (numbers["signals_total"], numbers["signals_skipped_total"]) == (3, 0)
    assert len(harness.records()) == 5


@pytest.mark.parametrize(
    ("options", "toml"),
    [
        ({}, ""),
        ({"signals_per_s": 1e6}, "[monitor]\nsignals = false"),
        ({"signals_per_s": 1e6}, 'durability = "memory"'),
        ({"signals_per_s": 1e6}, "enabled = false"),
    ],
    ids=["rate", "model", "memory", "nothing"],
)
def test_models_may_have_no_signals(harness: RecordingHarness, options, toml) -> None:
    harness.model("own", toml)
    harness.pipeline(**options).infer(ask("own"))
    assert harness.signalled() == []


def test_pixels_of_one_request_are_bounded(harness: RecordingHarness, monkeypatch) -> None:
    monkeypatch.setattr(image_inference, "MAX_SIGNAL_PIXEL_BYTES", 2 * 4 * 6 * 3)
    pipeline = harness.pipeline(signals_per_s=1e6)
    pipeline.infer(ask("plain", *[GRAY] * 5))
    assert harness.signalled() == [record.seq for record in harness.records()[:2]]
    assert harness.recorder.counters()["signals_skipped_total"] == 3


@pytest.mark.parametrize("error", [ClientLeft("gone"), DeadlineExceeded("late")])
def test_a_request_that_is_stopped_during_its_run_is_not_recorded(harness, error) -> None:
    """Neither as answered nor as failed, and a request behind it is."""
    pipeline = harness.pipeline()

    class StoppedInRun(Deadline):
        """A deadline that is stopped while its first run goes on."""

        def interrupt_by(self, interrupt):
            super().interrupt_by(interrupt)
            self.error = error

    set_current_request(RequestContext(deadline=StoppedInRun()))
    try:
        with pytest.raises(type(error)):
            pipeline.infer(ask("plain"))
    finally:
        set_current_request(None)
    assert harness.records() == []
    pipeline.infer(ask("plain"))
    assert len(harness.records()) == 1
