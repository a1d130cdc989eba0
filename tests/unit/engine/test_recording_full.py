"""Storing of requests when the journal is full or cannot be written."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from quadriga.engine.serving import recording
from quadriga.proto.errors import (
    Overloaded,
)
from quadriga.store.journal.journal import segment_paths
from quadriga.store.journal.journal_lag import write_offsets
from tests.unit.engine.recording_harness import GRAY, WHITE, RecordingHarness, ask


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RecordingHarness]:
    harness = RecordingHarness(tmp_path)
    yield harness
    for pipeline in harness.opened:
        pipeline.close()


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
    monkeypatch.setattr("quadriga.store.journal.journal_lag.SAMPLE_INTERVAL_S", 0)
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
