"""Shadows: what they store, and that whatever they do costs who they shadow nothing."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper

from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.shared_counts import SharedCounts
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.serving.pipeline import Pipeline
from quadriga.engine.serving.recording import Recorder
from quadriga.engine.serving.shadows import shadow_runs
from quadriga.engine.serving.shadows.shadow_messages import RunShadow, to_message, to_request
from quadriga.engine.serving.shadows.shadow_process import NICENESS
from quadriga.engine.serving.shadows.shadow_runs import MAX_WAIT_S, MAX_WAITING, Shadows
from quadriga.engine.serving.traffic import COPY_FILE, Traffic, TrafficRules
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.ids import IdSource
from quadriga.store.journal import Journal
from quadriga.store.records import InferenceRecord, is_change
from quadriga.store.traffic import StoredRule
from tests.band_images import png
from tests.onnx_models import (
    CLASSIFIER_TOML,
    classifier,
    counting,
    dividing,
    doubling,
    save,
    value,
)
from tests.unit.engine.harness import journal_payloads

STARTED_S = 90.0
"""Time in which the process of a shadow is started, on a machine that has much else to do."""

RULE = '{"shares": {"1": 1.0}, "shadow": {"version": "2"}}'


class Served:
    """A model with a rule, its pipeline and what it stored.

    Args:
        root: Folder with `models`.
        model: Name of the model that has the rule.
        has_spare: Whether there are processors to spare.
        run_s: Time limit of the shadow.
        niceness: How far the shadow goes after this process.
    """

    def __init__(
        self,
        root: Path,
        model: str,
        has_spare: Callable[[int], bool] = bool,
        *,
        run_s: float = 60.0,
        niceness: int = 0,
    ) -> None:
        self.model = model
        data = root / "data"
        data.mkdir()
        stored = [StoredRule(model, RULE, 1, "somebody")]
        (data / COPY_FILE).write_bytes(msgspec.json.encode(stored))
        settings = Settings(data=str(data), threads=2, signals_per_s=0)
        self._journal = data / "journal"
        recorder = Recorder(
            IdSource(0),
            Journal(self._journal, 0),
            FileBlobs(data / "blobs"),
            settings=settings,
            engine_version="1",
        )
        self.repository = ModelRepository(root / "models")
        self.repository.load_all()
        self.counts = SharedCounts()
        traffic = Traffic(self.repository, TrafficRules(settings), self.counts)
        self.shadows = Shadows(
            traffic, recorder, settings, self.counts, has_spare, niceness=niceness, run_s=run_s
        )
        self.pipeline = Pipeline(
            self.repository, recorder, settings, traffic=traffic, shadows=self.shadows
        )

    def numbers(self, *values: float, id_: str = "r", **options: Any) -> Any:
        """Send a row of numbers."""
        array = np.array([values], np.float32)
        tensor = Tensor("x", "FP32", array.shape, data=array)
        return self.pipeline.infer(InferRequest(self.model, None, id_, [tensor], **options))

    def outcomes(self) -> list[int]:
        """Return how many requests were answered, failed and dropped."""
        rows = [row.cells[:3] for row in self.counts.totals() if row.name[0] == "shadow"]
        return rows[0] if rows else [0, 0, 0]

    def wait(self, total: int) -> list[int]:
        """Wait until as many requests have an outcome; return the outcomes."""
        until_s = time.monotonic() + STARTED_S
        while sum(self.outcomes()) < total:
            assert time.monotonic() < until_s, self.outcomes()
            time.sleep(0.01)
        return self.outcomes()

    def records(self) -> list[InferenceRecord]:
        return [
            msgspec.json.decode(payload, type=InferenceRecord)
            for payload in journal_payloads(self._journal)
            if not is_change(payload)
        ]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    opened = []

    def serve(model: str, **options: Any) -> Served:
        opened.append(Served(tmp_path, model, **options))
        return opened[-1]

    yield serve
    for server in opened:
        server.pipeline.close()


def two(tmp_path: Path, second: Callable[[Path], Any]) -> None:
    """Write a model of numbers in two versions."""
    doubling(tmp_path / "models" / "numbers" / "1" / "model.onnx")
    second(tmp_path / "models" / "numbers" / "2" / "model.onnx")


def test_a_shadow_runs_only_where_nobody_else_wants_the_processor(tmp_path, served):
    two(tmp_path, doubling)
    server = served("numbers", niceness=NICENESS)
    server.numbers(1, 2, 3)
    assert server.wait(1)[1] == 0
    processes = [
        path.parent
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"shadow-numbers" in path.read_bytes()
        and f"PPid:\t{os.getpid()}\n" in (path.parent / "status").read_text()
    ]
    threads = [int(task.name) for process in processes for task in process.glob("task/*")]
    assert threads
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_IDLE}
    assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {19}


def test_a_shadow_answers_for_the_record_alone_linked_to_the_live_inference(tmp_path, served):
    for version in ("1", "2"):
        folder = tmp_path / "models" / "colours" / version
        classifier(folder / "model.onnx")
        (folder / "model.toml").write_text(CLASSIFIER_TOML)
    server = served("colours")
    image = png(np.full((8, 8, 3), 200, np.uint8))
    inputs = [
        Tensor("a", "BYTES", (1,), data=[image], parameters={"metadata": {"camera": "north"}}),
        Tensor("b", "BYTES", (1,), data=[image], parameters={"store": False}),
        Tensor("c", "BYTES", (1,), data=[image]),
    ]
    response = server.pipeline.infer(InferRequest("colours", None, "r-1", inputs))
    assert response.version == "1"
    assert server.wait(1) == [1, 0, 0]
    first, second, *shadows = server.records()
    assert [record.model.name for record in (first, second)] == ["colours"] * 2
    assert len(shadows) == 2
    for live, shadow in zip((first, second), shadows, strict=True):
        assert (shadow.model.name, shadow.model.version) == ("colours~shadow", "2")
        assert shadow.model.sha256 == server.repository.get("colours", "2").sha256
        assert shadow.request_id == str(live.seq)
        assert shadow.standard["shadow"] == {
            "inference_id": str(live.seq),
            "request_id": "r-1",
            "model": "colours",
            "version": "1",
        }
        assert (shadow.input, shadow.metadata, shadow.action, shadow.status) == (
            live.input,
            live.metadata,
            live.action,
            200,
        )
        assert shadow.predictions == live.predictions  # both versions are one file
        assert set(shadow.standard["stages_ms"]) == set(live.standard["stages_ms"])


def test_a_request_that_names_a_version_or_is_not_stored_has_no_shadow(tmp_path, served):
    two(tmp_path, doubling)
    server = served("numbers")
    server.pipeline.infer(
        InferRequest(
            "numbers", "1", "r", [Tensor("x", "FP32", (1, 3), data=np.ones((1, 3), np.float32))]
        )
    )
    server.numbers(1, 2, 3, parameters={"store": False})
    server.numbers(1, 2, 3)
    assert server.wait(1) == [1, 0, 0]
    assert [record.model.name for record in server.records()] == [
        "numbers",
        "numbers",
        "numbers~shadow",
    ]


def both(path: Path, kind: int, names: tuple[str, str], results: tuple[str, ...]) -> Path:
    """Write a graph that answers its inputs, which are those of a model that misbehaves."""
    return save(
        path,
        [
            helper.make_node("Identity", [name], [result])
            for name, result in zip(names, results, strict=False)
        ],
        [
            value(name, ["n"] if names[0] == "a" else [1], kind if name != "n" else 7)
            for name in names
        ],
        [value(result, ["n"] if names[0] == "a" else [1], kind) for result in results],
    )


def ask(server: Served, **arrays: Any) -> Any:
    tensors = [
        Tensor(
            name,
            {"i4": "INT32", "i8": "INT64", "f4": "FP32"}[array.dtype.str[1:]],
            array.shape,
            data=array,
        )
        for name, array in arrays.items()
    ]
    return server.pipeline.infer(InferRequest(server.model, None, "r", tensors))


def test_a_shadow_that_crashes_ends_nothing_but_its_own_process(tmp_path, served):
    folder = tmp_path / "models" / "numbers"
    both(folder / "1" / "model.onnx", TensorProto.INT32, ("a", "b"), ("quotient", "other"))
    dividing(folder / "2" / "model.onnx")
    server = served("numbers")
    least, minus = np.array([-(2**31)], np.int32), np.array([-1], np.int32)
    assert ask(server, a=least, b=minus).version == "1"
    assert server.wait(1) == [0, 1, 0]
    assert ask(server, a=least, b=minus).version == "1"  # its process is not started again at once
    assert server.wait(2) == [0, 1, 1]
    first, shadow, second = server.records()
    assert (first.status, second.status, shadow.status) == (200, 200, 500)
    assert shadow.standard["error"] == "as a shadow: its process was ended by SIGFPE"
    assert server.repository.ready_versions("numbers")[0].version == "2"  # asked by name it answers


def test_a_shadow_that_hangs_is_ended(tmp_path, served):
    folder = tmp_path / "models" / "numbers"
    both(folder / "1" / "model.onnx", TensorProto.FLOAT, ("x", "n"), ("y",))
    counting(folder / "2" / "model.onnx")
    server = served("numbers", run_s=0.5)
    endless = {"x": np.ones(1, np.float32), "n": np.array([2**62])}
    assert ask(server, **endless).version == "1"
    assert server.wait(1) == [0, 1, 0]
    _, shadow = server.records()
    assert shadow.standard["error"] == "as a shadow: it did not answer within 0.5 s"


def test_a_shadow_that_cannot_answer_says_why(tmp_path, served):
    two(tmp_path, doubling)
    server = served("numbers")
    folder = tmp_path / "models" / "numbers" / "2"
    (folder / "model.onnx").write_bytes(b"damaged since")
    server.numbers(1, 2, 3)
    assert server.wait(1) == [0, 1, 0]
    assert "it cannot be loaded" in server.records()[1].standard["error"]
    assert str(tmp_path) not in server.records()[1].standard["error"]


def test_without_a_processor_to_spare_requests_are_dropped_at_once(tmp_path, served):
    two(tmp_path, doubling)
    server = served("numbers", has_spare=lambda threads: threads < 0)
    for number in range(3):
        assert server.numbers(1, 2, 3, id_=f"r-{number}").version == "1"
    assert server.outcomes() == [0, 0, 3]
    assert {record.model.name for record in server.records()} == {"numbers"}


def test_no_more_than_a_few_wait_for_a_processor_and_not_for_long(tmp_path, served):
    two(tmp_path, doubling)
    cores = len(os.sched_getaffinity(0))
    # There is one as a request is answered, and none as its shadow could begin.
    server = served("numbers", has_spare=lambda threads: threads > cores)
    for number in range(MAX_WAITING + 3):
        assert server.numbers(1, 2, 3, id_=f"r-{number}").version == "1"
    assert server.outcomes() == [0, 0, 3]
    started_s = time.monotonic()
    assert server.wait(MAX_WAITING + 3) == [0, 0, MAX_WAITING + 3]
    assert time.monotonic() - started_s > MAX_WAIT_S / 2
    assert {record.model.name for record in server.records()} == {"numbers"}


@pytest.mark.parametrize(
    ("busy_share", "looks", "outcomes"),
    [
        pytest.param(-1.0, [True, True, False], [0, 0, 1], id="busy, spare for a moment"),
        pytest.param(-1.0, [False, True, True, True], [1, 0, 0], id="busy, spare for longer"),
        pytest.param(2.0, [False, True, False], [1, 0, 0], id="not busy, spare for a moment"),
    ],
)
def test_a_busy_worker_hands_over_what_finds_a_processor_several_times_in_a_row(
    tmp_path, served, monkeypatch, *, busy_share, looks, outcomes
):
    two(tmp_path, doubling)
    monkeypatch.setattr(shadow_runs, "BUSY_SHARE", busy_share)
    monkeypatch.setattr(shadow_runs, "_WINDOW_S", 0.0)
    cores = len(os.sched_getaffinity(0))
    seen = itertools.cycle(looks)
    server = served("numbers", has_spare=lambda threads: threads > cores or next(seen))
    server.numbers(1, 2, 3)
    assert server.wait(1) == outcomes


def test_a_version_that_is_not_ready_has_its_requests_dropped(tmp_path, served):
    two(tmp_path, doubling)
    (tmp_path / "models" / "numbers" / "2" / "model.onnx").write_bytes(b"damaged")
    server = served("numbers")
    assert server.numbers(1, 2, 3).version == "1"
    assert server.outcomes() == [0, 0, 1]


SENT = {
    "numbers": Tensor("x", "FP32", (2, 2), data=np.arange(4, dtype=np.float32).reshape(2, 2)),
    "none": Tensor("x", "INT64", (0, 3), data=np.zeros((0, 3), np.int64)),
    "half": Tensor("x", "FP16", (2,), data=np.array([0.5, 1], np.float16)),
    "a scalar": Tensor("x", "FP64", (), data=np.array(1.5)),
    "texts of an array": Tensor("x", "BYTES", (2, 1), data=np.array([["ä"], ["b"]], object)),
    "elements": Tensor("x", "BYTES", (2,), data=["text", b"\xff"], parameters={"store": True}),
}


@pytest.mark.parametrize("name", SENT)
def test_a_request_arrives_as_it_was_sent(name):
    tensor = SENT[name]
    request = InferRequest("m", None, "r", [tensor], parameters={"metadata": {"a": [1]}})
    message = msgspec.msgpack.decode(msgspec.msgpack.encode(to_message(request)), type=RunShadow)
    arrived = to_request(message, "m", "2")
    assert (arrived.id, arrived.version, arrived.parameters) == ("r", "2", request.parameters)
    (sent,) = arrived.inputs
    assert (sent.name, sent.datatype, sent.shape) == (tensor.name, tensor.datatype, tensor.shape)
    assert sent.parameters == tensor.parameters
    if isinstance(tensor.data, list):
        assert sent.data == tensor.data
    else:
        assert sent.data.dtype == tensor.data.dtype
        np.testing.assert_array_equal(sent.data, tensor.data)
