"""Which images have signals, and what becomes of them: journaled, or counted."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from quadriga.engine.serving import recording
from quadriga.engine.serving.recording import SignalRecorder, SignalTask
from quadriga.store.journal.journal import Journal
from quadriga.store.records.errors import JournalError
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import (
    IMAGE_STATISTICS,
    ImageSignals,
    JournaledChange,
    SignalsOfImages,
)
from quadriga.tasks.image import Image
from tests.unit.engine.harness import journal_payloads

WHITE = Image(np.full((20, 30, 3), 255, np.uint8))
VECTOR = np.array([1.0, -0.5, 3.25], np.float32)


class SignalHarness:
    """A journal and the recorder of its signals."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "journal"
        self.journal = Journal(self.directory, 0)
        self.behind = False
        self.recorder = self.recorder_with_rate(1e6)

    def recorder_with_rate(self, per_s: float) -> SignalRecorder:
        return SignalRecorder(IdSource(0), self.journal, per_s, lambda: self.behind)

    def journaled(self) -> list[list[ImageSignals]]:
        """Close, and return what each frame holds."""
        self.recorder.close()
        decoded = [
            msgspec.json.decode(payload, type=JournaledChange).change
            for payload in journal_payloads(self.directory)
        ]
        assert all(isinstance(change, SignalsOfImages) for change in decoded)
        return [change.of for change in decoded]

    def counts(self) -> tuple[int, int, int]:
        numbers = self.recorder.counts.totals()
        names = ("signals_total", "signals_skipped_total", "signals_dropped_total")
        return tuple(numbers[name] for name in names)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[SignalHarness]:
    harness = SignalHarness(tmp_path)
    yield harness
    harness.recorder.close()
    harness.journal.close()


def test_images_are_journaled_together_with_their_embedding(
    harness: SignalHarness, monkeypatch
) -> None:
    monkeypatch.setattr(
        recording, "BATCH_INTERVAL_S", 60.0
    )  # so many images end a frame, on any machine
    images = [SignalTask(seq, WHITE) for seq in range(1, 70)]
    harness.recorder.put([SignalTask(70, WHITE, VECTOR, "ab" * 8), *images], skipped=3)
    journaled = harness.journaled()
    assert [len(frame) for frame in journaled] == [64, 6]
    assert [signals.seq for frame in journaled for signals in frame] == [70, *range(1, 70)]
    first, second = journaled[0][:2]
    assert (first.space, second.space, second.embedding) == ("ab" * 8, "", b"")
    assert np.frombuffer(first.embedding, "<f2").tolist() == VECTOR.tolist()
    numbers = dict(zip(IMAGE_STATISTICS, np.frombuffer(first.picture, "<f4").tolist(), strict=True))
    assert (numbers["brightness"], numbers["burnt"]) == pytest.approx((100, 1))
    assert harness.counts() == (70, 3, 0)


def test_pixels_beyond_the_queue_are_dropped(harness: SignalHarness, monkeypatch) -> None:
    size_bytes = WHITE.pixels.nbytes
    monkeypatch.setattr(recording, "MAX_QUEUE_BYTES", 2 * size_bytes)
    large = Image(np.zeros((200, 300, 3), np.uint8))
    harness.recorder.put([SignalTask(1, large), SignalTask(2, WHITE)], skipped=0)
    assert [[signals.seq for signals in frame] for frame in harness.journaled()] == [[1]]
    assert harness.counts() == (1, 0, 1)


def test_a_fault_costs_the_signals_of_one_image(harness: SignalHarness, caplog) -> None:
    broken = Image(np.full((4, 4, 3), None))
    images = [SignalTask(1, broken), SignalTask(2, WHITE), SignalTask(3, broken)]
    harness.recorder.put(images, skipped=0)
    assert [[signals.seq for signals in frame] for frame in harness.journaled()] == [[2]]
    assert harness.counts() == (1, 0, 2)
    assert len(caplog.records) == 1


def test_embedding_of_another_model_is_requested_if_configured(
    harness: SignalHarness, caplog
) -> None:
    def embed(name: str, image: Image):
        if image is not WHITE:
            raise ValueError("expected three bands")
        return (VECTOR, f"space of {name}") if name == "b" else (None, None)

    harness.recorder = SignalRecorder(IdSource(0), harness.journal, 1, embed=embed)
    multiband = Image(np.zeros((4, 4, 5), np.uint8))
    images = [
        SignalTask(1, WHITE, other_model="b"),
        SignalTask(2, multiband, other_model="b"),
        SignalTask(3, WHITE),
    ]
    images += [SignalTask(4, multiband, other_model="b"), SignalTask(5, WHITE, other_model="c")]
    harness.recorder.put(images, skipped=0)
    (frame,) = harness.journaled()
    assert [signals.space for signals in frame] == ["space of b", "", "", "", ""]
    assert all(signals.picture for signals in frame)
    assert len(caplog.records) == 2
    assert "inference 5: no embedding by 'c': " in caplog.text
    assert "model 'c' has no embedding of its own" in caplog.text


def test_a_journal_that_is_full_or_behind_is_spared(harness: SignalHarness, monkeypatch) -> None:
    harness.behind = True
    harness.recorder.put([SignalTask(1, WHITE)], skipped=0)
    assert harness.journaled() == []
    assert harness.counts() == (0, 0, 1)
    harness.behind = False
    harness.recorder = harness.recorder_with_rate(1)

    def refuse(_) -> None:
        raise JournalError("expected room, got none")

    monkeypatch.setattr(harness.journal, "append", refuse)
    harness.recorder.put([SignalTask(1, WHITE)], skipped=0)
    harness.recorder.close()
    assert harness.counts() == (0, 0, 1)


def test_images_that_come_too_fast_are_chosen_at_random_and_as_often_as_wanted(
    harness: SignalHarness, monkeypatch
) -> None:
    random.seed(5)
    now_s = [0.0]
    monkeypatch.setattr(recording.time, "monotonic", lambda: now_s[0])
    recorder = harness.recorder_with_rate(10)
    chosen: list[int] = []
    for number in range(40_000):  # of four cameras in turn, 40 images a second
        now_s[0] = number / 40
        chosen += [number for _ in recorder.choose("m", 1)]
    assert len(chosen) == pytest.approx(10_000, rel=0.05)
    turns = Counter(number % 4 for number in chosen)
    assert all(count == pytest.approx(2500, rel=0.1) for count in turns.values())
    now_s[0] += 60
    (batch,) = [recorder.choose("m", 1000)]
    assert 3 < len(batch) < 40
    assert max(batch) > 200


@pytest.mark.parametrize(("per_s", "expected"), [(0, 0), (1e6, 1000), (10, 1000), (0.5, 500)])
def test_all_are_chosen_up_to_the_rate(
    harness: SignalHarness, monkeypatch, per_s, expected
) -> None:
    random.seed(5)
    now_s = [0.0]
    monkeypatch.setattr(recording.time, "monotonic", lambda: now_s[0])
    recorder = harness.recorder_with_rate(per_s)
    count = 0
    for number in range(1000):
        now_s[0] = float(number)
        count += len(recorder.choose("m", 1))
    assert count == pytest.approx(expected, rel=0.08)


def test_models_have_rates_of_their_own(harness: SignalHarness, monkeypatch) -> None:
    monkeypatch.setattr(recording.time, "monotonic", lambda: 0.0)
    recorder = harness.recorder_with_rate(0.1)
    assert [list(recorder.choose(name, 1)) for name in ("a", "b")] == [[0], [0]]
    assert [sum(len(recorder.choose(name, 1)) for _ in range(99)) < 9 for name in "ab"] == [
        True, True
    ]  # fmt: skip
