"""A detector with models behind it, for tests: it answers the same boxes for every image.

The model behind it reads a number from the first pixel of its crop.
"""

from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from onnx import helper

from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.serving.pipeline import Pipeline
from quadriga.engine.serving.recording import Recorder
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.proto.request import set_current_request
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.journal.journal import Journal
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import InferenceRecord, is_change
from tests.band_images import png
from tests.onnx_models import COLOURS_TOML, detector, marking, save, value
from tests.unit.engine.harness import journal_payloads, load_pipeline, small_settings

SIDE = 32
BOXES = ((0, 0), (8, 0), (16, 8), (24, 24))
"""Left and top of the boxes of 8 x 8 pixels that the detector answers, by descending score."""

LABELS = ("car", "van", "car", "bus")
MAX_NUMBER = 400

DETECTOR_TOML = """task = "detection"
labels = ["car", "van", "bus"]
[input]
resize = "stretch"
[output]
decoder = "ultralytics"
[then]
"""


def head() -> np.ndarray:
    """Return the head of Ultralytics for `BOXES` of `LABELS`."""
    rows = np.zeros((7, len(BOXES)), np.float32)
    for column, ((left, top), label) in enumerate(zip(BOXES, LABELS, strict=True)):
        rows[:4, column] = left + 4, top + 4, 8, 8
        rows[4 + ("car", "van", "bus").index(label), column] = 0.9 - column / 10
    return rows


def scene(*numbers: int) -> bytes:
    """Make an image that has a number in the first pixel of each box."""
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    for (left, top), number in zip(BOXES, numbers, strict=False):
        pixels[top, left] = (number % 256, number // 256, 0)
    return png(pixels)


def failing(folder: Path) -> None:
    """Write a classifier that fails on crops with a white first pixel: it looks up a row that is not there."""
    save(
        folder / "model.onnx",
        [
            helper.make_node("ReduceMax", ["image"], ["most"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Floor", ["most"], ["whole"]),
            helper.make_node("Cast", ["whole"], ["row"], to=7),
            helper.make_node("Gather", ["rows", "row"], ["logits"]),
        ],
        [value("image", ["batch", 3, 8, 8])],
        outputs=[value("logits", ["batch", 3])],
        initializers={"rows": np.eye(1, 3, dtype=np.float32)},
    )
    (folder / "model.toml").write_text(COLOURS_TOML)


class Chain:
    """A detector with models behind it, their pipeline, and the content of its data folder."""

    def __init__(self, root: Path) -> None:
        self.models = root / "models"
        self.directory = root / "data" / "journal"
        self.blobs = FileBlobs(root / "data" / "blobs")
        self.opened: list[Pipeline] = []
        self.repository: ModelRepository | None = None
        self.detector("cars", 'model = "marks"')
        marking(self.models / "marks", MAX_NUMBER, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipeline in self.opened:
            pipeline.close()
        set_current_request(None)

    def detector(self, name: str, then: str) -> None:
        detector(self.models / name / "model.onnx", head(), SIDE)
        (self.models / name / "model.toml").write_text(DETECTOR_TOML + then)

    def pipeline(self, **options: Any) -> Pipeline:
        settings = small_settings(**{"max_pixels": 10_000} | options)
        recorder = Recorder(
            IdSource(0),
            Journal(self.directory, 0),
            self.blobs,
            settings=settings,
            engine_version="1",
        )
        pipeline = load_pipeline(self.models, recorder, settings)
        self.opened.append(pipeline)
        return pipeline

    def image(self, record: InferenceRecord) -> bytes:
        assert record.input.hash is not None
        data = self.blobs.get(record.input.hash)
        assert data is not None
        return data

    def records(self) -> list[InferenceRecord]:
        return [
            msgspec.json.decode(payload, type=InferenceRecord)
            for payload in journal_payloads(self.directory)
            if not is_change(payload)
        ]


def ask(model: str, *images: bytes, shared: Any = None, **parameters: Any) -> InferRequest:
    data = list(images)
    tensor = Tensor("photo", "BYTES", (len(data),), data=data, parameters=parameters)
    return InferRequest(model, None, "r", [tensor], parameters=shared or {})


def answers(response: Any, output: int = 0) -> list[list[str | None]]:
    """Return the label that the model behind gives to each detection of each image; None without a crop."""
    wire = msgspec.json.decode(msgspec.json.encode(response.outputs[output].data))
    return [
        [
            prediction["then"]["predictions"][0]["label"] if "then" in prediction else None
            for prediction in predictions
        ]
        for predictions in wire
    ]


def marks(*numbers: int | None) -> list[str | None]:
    return [None if number is None else f"number {number}" for number in numbers]


def save_bands(folder: Path) -> None:
    """Write a classifier of four bands of 16 bits."""
    save(
        folder / "model.onnx",
        [helper.make_node("ReduceMean", ["image"], ["logits"], axes=[2, 3], keepdims=0)],
        [value("image", ["batch", 4, 8, 8])],
        [value("logits", ["batch", 4])],
    )
    toml = COLOURS_TOML.replace('"blue"', '"blue", "near infrared"')
    (folder / "model.toml").write_text(toml.replace("[input]", "[input]\nbit_depth = 16"))
