"""Models whose requests are stored, for tests of storing."""

from pathlib import Path

import msgspec
import numpy as np
from onnx import helper

from quadriga.engine.serving.pipeline import Pipeline
from quadriga.engine.serving.recording import Recorder
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.journal.journal import Journal
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import InferenceRecord, JournaledChange, is_change
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

    def pipeline(
        self, soft: int = 1 << 30, hard: int = 1 << 30, block_s: float = 0.05, **options
    ) -> Pipeline:
        settings = small_settings(
            journal_hard_bytes=hard,
            journal_full=options.pop("full", "fail"),
            **options,
        )
        journal = Journal(self.directory, 0)
        blobs = FileBlobs(self.blobs)
        self.recorder = Recorder(
            IdSource(0), journal, blobs, settings=settings, engine_version="1.2.3"
        )
        capacity = self.recorder.capacity
        capacity.soft_bytes, capacity._block_s = soft, block_s
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


def ask(
    model: str, *images: bytes, protocol: str = "v2", shared=None, **parameters
) -> InferRequest:
    data = list(images or [GRAY])
    tensor = Tensor("image", "BYTES", (len(data),), data=data, parameters=parameters)
    return InferRequest(model, None, "r", [tensor], parameters=shared or {}, protocol=protocol)
