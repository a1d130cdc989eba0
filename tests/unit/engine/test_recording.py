"""Storing of requests: durability, standard metadata, and handling of a full journal."""

import shutil
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import helper

from quadriga.engine import image_inference, recording
from quadriga.engine.pipeline import Pipeline
from quadriga.engine.recording import Recorder
from quadriga.proto.deadline import Deadline, set_current_deadline
from quadriga.proto.errors import (
    ClientLeft,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Overloaded,
)
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.ids import IdSource
from quadriga.store.journal import Journal, segment_paths
from quadriga.store.journal_lag import write_offsets
from quadriga.store.records import InferenceRecord, JournaledChange, is_change
from quadriga.store.writer import Writer
from tests.background import at_once, in_background
from tests.band_images import png
from tests.onnx_models import COLOURS_TOML, classifier, doubling, save, value
from tests.unit.engine.harness import journal_payloads, load_pipeline, small_settings


def gray(level: int) -> bytes:
    return png(np.full((4, 6, 3), level, np.uint8))


GRAY, WHITE = gray(100), gray(255)


def breaking(path: Path) -> Path:
    """A classifier that fails on white images: it looks up a row that is not there."""
    return save(
        path,
        [
            helper.make_node("ReduceMin", ["image"], ["least"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Cast", ["least"], ["row"], to=7),
            helper.make_node("Gather", ["rows", "row"], ["logits"]),
        ],
        [value("image", ["batch", 3, 8, 8])],
        outputs=[value("logits", ["batch", 3])],
        initializers={"rows": np.eye(1, 3, dtype=np.float32)},
    )


class RecordingHarness:
    """Models, their pipeline, and the content of its data folder."""

    def __init__(self, root: Path) -> None:
        self.models = root / "models"
        self.directory = root / "data" / "journal"
        self.blobs = root / "data" / "blobs"
        self.model("plain", "")
        breaking(self.models / "breaking" / "model.onnx")
        (self.models / "breaking" / "model.toml").write_text(COLOURS_TOML)
        doubling(self.models / "double" / "model.onnx")
        self.recorder: Recorder | None = None
        self.opened: list[Pipeline] = []

    def model(self, name: str, store: str) -> None:
        classifier(self.models / name / "model.onnx")
        (self.models / name / "model.toml").write_text(f"{COLOURS_TOML}[store]\n{store}\n")

    def pipeline(self, soft: int = 1 << 30, hard: int = 1 << 30, **options) -> Pipeline:
        settings = small_settings(
            journal_soft_bytes=soft, journal_hard_bytes=hard,
            journal_full=options.pop("full", "fail"),
            journal_block_ms=1000 * options.pop("block_s", 0.05),
            **options,
        )  # fmt: skip
        journal = Journal(self.directory, 0)
        blobs = FileBlobs(self.blobs)
        self.recorder = Recorder(
            IdSource(0), journal, blobs, settings=settings, engine_version="1.2.3"
        )
        pipeline = load_pipeline(self.models, self.recorder, settings)
        self.opened.append(pipeline)
        return pipeline

    def records(self) -> list[InferenceRecord]:
        return [
            msgspec.json.decode(payload, type=InferenceRecord)
            for payload in journal_payloads(self.directory)
            if not is_change(payload)
        ]

    def signalled(self) -> list[int]:
        """Close, and return the ids of what has signals."""
        self.opened.pop().close()
        changes = [
            msgspec.json.decode(payload, type=JournaledChange).change
            for payload in journal_payloads(self.directory)
            if is_change(payload)
        ]
        return [signals.seq for change in changes for signals in change.of]

    def images(self) -> int:
        return sum(path.is_file() for path in self.blobs.rglob("*"))


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RecordingHarness]:
    harness = RecordingHarness(tmp_path)
    yield harness
    for pipeline in harness.opened:
        pipeline.close()


def ask(
    model: str, *images: bytes, protocol: str = "v2", shared=None, **parameters
) -> InferRequest:
    data = list(images or [GRAY])
    tensor = Tensor("image", "BYTES", (len(data),), data=data, parameters=parameters)
    return InferRequest(model, None, "r", [tensor], parameters=shared or {}, protocol=protocol)


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


def test_beyond_the_soft_limit_answers_say_how_far_the_store_is(harness: RecordingHarness) -> None:
    pipeline = harness.pipeline(soft=1)
    assert pipeline.infer(ask("plain")).lag_bytes == 0
    harness.pipeline(soft=1)  # looks anew
    response = harness.opened[-1].infer(ask("plain"))
    assert response.lag_bytes > 100
    assert response.stored
    assert harness.recorder.counters()["behind_total"] == 1


def test_beyond_the_hard_limit_fail_refuses_before_the_model_is_run(
    harness: RecordingHarness,
) -> None:
    harness.pipeline().infer(ask("plain"))
    pipeline = harness.pipeline(soft=1, hard=1)
    with pytest.raises(Overloaded, match="expected at most 1 bytes of the journal to wait"):
        pipeline.infer(ask("plain", b"no image: nobody looks"))
    (statistics,) = pipeline.statistics("plain", None)
    assert (statistics.execution_count, statistics.fail.count) == (0, 1)
    assert len(harness.records()) == 1
    assert harness.recorder.counters()["refused_total"] == 1
    assert pipeline.infer(ask("plain", store=False)).inference_ids == []
    assert pipeline.infer(ask("plain", shared={"store": False})).stored


def test_beyond_the_hard_limit_fail_refuses_a_stream_too(harness: RecordingHarness) -> None:
    harness.pipeline().infer(ask("plain"))
    pipeline = harness.pipeline(soft=1, hard=1)
    with pytest.raises(Overloaded, match="expected at most 1 bytes of the journal to wait"):
        next(pipeline.stream(ask("plain")))
    (statistics,) = pipeline.statistics("plain", None)
    assert statistics.fail.count == 1


def test_shedding_beyond_the_hard_limit_answers_without_storing(
    harness: RecordingHarness,
) -> None:
    harness.model("own", 'journal_full = "shed"')
    harness.pipeline().infer(ask("plain"))
    response = harness.pipeline(soft=1, hard=1).infer(ask("own", GRAY, WHITE))
    assert (response.inference_ids, response.stored) == ([], False)
    assert response.lag_bytes > 1
    assert response.outputs[0].parameters == {"stored": False}
    assert len(response.outputs[0].data) == 2
    assert len(harness.records()) == 1
    assert harness.recorder.counters()["shed_total"] == 2


def test_beyond_the_hard_limit_block_waits_for_room_for_a_while(
    harness: RecordingHarness, monkeypatch
) -> None:
    monkeypatch.setattr("quadriga.store.journal_lag.SAMPLE_INTERVAL_S", 0)
    harness.pipeline().infer(ask("plain"))
    pipeline = harness.pipeline(soft=1, hard=1, full="block")
    with pytest.raises(Overloaded, match="expected at most 1 bytes"):
        pipeline.infer(ask("plain"))
    patient = harness.pipeline(soft=1, hard=1, full="block", block_s=30)
    (segment,) = segment_paths(harness.directory)
    moved = {segment.name: segment.stat().st_size}
    moving = threading.Timer(0.1, write_offsets, (harness.directory, moved))
    moving.start()
    assert patient.infer(ask("plain")).inference_ids
    assert harness.recorder.counters()["blocked_total"] == 1


class FullDisk:
    """Takes the journal's folder away, as if nothing could be written there, and gives it back."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for path in segment_paths(directory):
            path.unlink()
        directory.rmdir()
        directory.write_text("in the way")

    def end(self) -> None:
        self._directory.unlink()
        self._directory.mkdir()


@pytest.mark.parametrize("durability", ["process", "power", "database"])
def test_failed_write_is_refused_and_later_requests_succeed(
    harness: RecordingHarness, durability, monkeypatch
) -> None:
    monkeypatch.setattr(recording, "COMMIT_TIMEOUT_S", 0)
    pipeline = harness.pipeline(durability=durability)
    full = FullDisk(harness.directory)
    with pytest.raises(Overloaded, match="cannot append"):
        pipeline.infer(ask("plain"))
    full.end()
    if durability == "database":
        with pytest.raises(Overloaded, match="has not committed"):
            pipeline.infer(ask("plain"))
    else:
        assert pipeline.infer(ask("plain")).inference_ids
    assert len(harness.records()) == 1


@pytest.mark.parametrize("broken", ["journal", "blobs"])
def test_failed_write_is_shed_by_policy(harness: RecordingHarness, broken) -> None:
    pipeline = harness.pipeline(full="shed")
    pipeline.infer(ask("plain"))
    if broken == "journal":
        full = FullDisk(harness.directory)
    else:
        shutil.rmtree(harness.blobs)
        full = FullDisk(harness.blobs) if harness.blobs.mkdir() is None else None
    response = pipeline.infer(ask("plain", WHITE))
    assert not response.stored
    assert response.outputs[0].parameters == {"stored": False}
    full.end()
    assert pipeline.infer(ask("plain", WHITE)).inference_ids
    assert harness.recorder.counters()["shed_total"] == 1


def test_failed_write_waits_by_policy(harness: RecordingHarness) -> None:
    pipeline = harness.pipeline(full="block", block_s=30)
    full = FullDisk(harness.directory)
    ending = threading.Timer(0.1, full.end)
    ending.start()
    assert pipeline.infer(ask("plain")).inference_ids
    assert len(harness.records()) == 1
    assert harness.recorder.counters()["blocked_total"] == 1


def test_memory_takes_inferences_while_nothing_can_be_written(harness: RecordingHarness) -> None:
    pipeline = harness.pipeline(durability="memory")
    full = FullDisk(harness.directory)
    ids = [pipeline.infer(ask("plain")).inference_ids[0] for _ in range(5)]
    full.end()
    pipeline.close()
    assert [str(record.seq) for record in harness.records()] == ids


def test_memory_that_is_full_follows_the_policy(harness: RecordingHarness, monkeypatch) -> None:
    monkeypatch.setattr(recording, "MAX_BACKLOG_BYTES", 3000)
    harness.model("own", 'journal_full = "shed"')
    pipeline = harness.pipeline(durability="memory")
    full = FullDisk(harness.directory)
    stored = [pipeline.infer(ask("own")).stored for _ in range(5)]
    assert stored[0]
    assert not stored[-1]
    with pytest.raises(Overloaded, match="expected at most 3000 bytes in memory"):
        pipeline.infer(ask("plain"))
    full.end()
    pipeline.close()
    assert len(harness.records()) == sum(stored)


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

    set_current_deadline(StoppedInRun())
    try:
        with pytest.raises(type(error)):
            pipeline.infer(ask("plain"))
    finally:
        set_current_deadline(None)
    assert harness.records() == []
    pipeline.infer(ask("plain"))
    assert len(harness.records()) == 1
