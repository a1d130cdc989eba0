"""Semantic scores in answers and records: where there are references, and only there."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from quadriga.engine.serving.recording import Recorder
from quadriga.engine.serving.semantic_score import REFERENCES_FILE, SemanticScores
from quadriga.monitor.drift.similarity import References, write_references
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, InferResponse, Tensor
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.journal.journal import Journal
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import InferenceRecord
from tests.band_images import png
from tests.onnx_models import COLOURS_TOML, classifier
from tests.unit.engine.harness import journal_payloads, load_pipeline, small_settings

HEADER = "Quadriga-Semantic-Score"
GRAYS = np.random.default_rng(0).normal((1, 1, 1), 0.01, (150, 3))
"""Embeddings of gray images: the mean of each channel."""


GRAY, BLUE = (png(np.full((4, 6, 3), rgb, np.uint8)) for rgb in ((100, 100, 100), (0, 0, 255)))


class ScoreHarness:
    """A pipeline with one model, and the file of its baseline."""

    def __init__(self, root: Path, **options) -> None:
        classifier(root / "models" / "m" / "model.onnx")
        (root / "models" / "m" / "model.toml").write_text(COLOURS_TOML)
        self.journal = root / "journal"
        settings = small_settings(data=str(root), journal_hard_bytes=1 << 30, **options)
        journal, blobs = Journal(self.journal, 0), FileBlobs(root / "blobs")
        recorder = Recorder(IdSource(0), journal, blobs, settings=settings, engine_version="1.2.3")
        self.names = {"m"}
        self.scores = SemanticScores(settings, lambda: set(self.names), poll_interval_s=0.01)
        self.pipeline = load_pipeline(root / "models", recorder, settings, scores=self.scores)
        self.model = self.pipeline._repository.get("m", None)
        self.path = root / "baselines" / "m" / REFERENCES_FILE
        self.path.parent.mkdir(parents=True)

    def write(self, embeddings: np.ndarray = GRAYS, space: str | None = None) -> None:
        space = self.model.embedding_space if space is None else space
        write_references(self.path, embeddings, np.arange(len(embeddings)), space)

    def ask(self, *images: bytes, shared=None, **parameters) -> InferResponse:
        tensor = Tensor("image", "BYTES", (len(images),), data=list(images), parameters=parameters)
        return self.pipeline.infer(InferRequest("m", None, "r", [tensor], parameters=shared or {}))

    def settled(self, *images: bytes, scored: bool) -> InferResponse:
        """Ask until there are scores, or none."""
        until = time.monotonic() + 60
        while True:
            response = self.ask(*images or [GRAY], store=False)
            if bool(response.headers) == scored:
                return response
            assert time.monotonic() < until
            time.sleep(0.01)

    def records(self) -> list[InferenceRecord]:
        return [
            msgspec.json.decode(payload, type=InferenceRecord)
            for payload in journal_payloads(self.journal)
        ]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ScoreHarness]:
    harness = ScoreHarness(tmp_path)
    yield harness
    harness.pipeline.close()


def test_without_a_baseline_nothing_has_a_score(harness):
    response = harness.ask(GRAY, shared={"semantic_score": True})
    assert response.headers == []
    assert "semantic_score" not in response.outputs[0].parameters
    assert "semantic_score" not in harness.records()[0].standard


def test_each_image_has_its_score_in_the_header_and_its_record(harness):
    harness.write()
    harness.settled(scored=True)
    response = harness.ask(GRAY, BLUE)
    gray, blue = (record.standard["semantic_score"] for record in harness.records())
    assert response.headers == [(HEADER, f"{gray:g},{blue:g}")]
    assert (blue, gray > 0.01) == (round(1 / 151, 6), True)
    assert "semantic_score" not in response.outputs[0].parameters


@pytest.mark.parametrize(
    ("shared", "own", "shown"),
    [
        ({}, {}, False),
        ({"semantic_score": True}, {}, True),
        ({}, {"semantic_score": True}, True),
        ({"semantic_score": True}, {"semantic_score": False}, False),
    ],
)
def test_requested_score_is_in_the_parameters(tmp_path, shared, own, shown):
    harness = ScoreHarness(tmp_path)
    harness.write()
    harness.settled(scored=True)
    single, double = (
        harness.ask(BLUE, shared=shared, **own),
        harness.ask(BLUE, GRAY, shared=shared, **own),
    )
    scores = [response.outputs[0].parameters.get("semantic_score") for response in (single, double)]
    assert single.headers == [(HEADER, "0.006623")]
    assert scores == ([0.006623, double.headers[0][1]] if shown else [None, None])
    harness.pipeline.close()


def test_a_wish_that_is_neither_true_nor_false_is_refused(harness):
    with pytest.raises(InvalidRequest, match="semantic_score to be true or false"):
        harness.ask(GRAY, semantic_score="yes")


def test_scores_follow_the_file(harness, caplog):
    harness.write()
    harness.settled(scored=True)
    harness.write(GRAYS, space="0" * 16)  # of another version, or of another tensor
    harness.settled(scored=False)
    harness.write(np.abs(GRAYS * [1, 0.01, 0.01]))
    assert harness.settled(GRAY, scored=True).headers == [(HEADER, "0.006623")]
    harness.path.write_bytes(harness.path.read_bytes()[:999])
    harness.settled(scored=False)
    harness.write()
    harness.settled(scored=True)
    harness.path.unlink()
    harness.settled(scored=False)
    harness.write()
    harness.settled(scored=True)
    harness.names.clear()  # unloaded
    harness.settled(scored=False)
    assert caplog.text.count("no semantic scores") == 1  # of the torn file


def test_a_fault_of_scoring_costs_the_score_alone_and_is_logged_once(harness, caplog):
    harness.write(np.random.default_rng(0).normal(size=(150, 4)))  # the model's are three numbers
    until = time.monotonic() + 60
    while "an image could not be scored" not in caplog.text:
        assert harness.ask(GRAY).headers == []
        assert time.monotonic() < until
    response = harness.ask(GRAY, GRAY)
    assert (len(response.outputs[0].data), len(response.inference_ids)) == (2, 2)
    assert caplog.text.count("an image could not be scored") == 1
    assert "expected an embedding of 4 numbers" in caplog.text


def test_a_score_is_that_of_the_embedding_that_the_answer_was_made_with(harness):
    harness.write()
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        score = References.score
        patch.setattr(References, "score", lambda self, x: seen.append(x) or score(self, x))
        response = harness.settled(BLUE, scored=True)
    assert np.argmax(seen[-1]) == 2
    assert response.headers[0][1] == f"{References.read(harness.path).score(seen[-1]):.4g}"
