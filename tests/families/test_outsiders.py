"""Families and tasks from outside of this repository: one file, named in model.toml."""

import numpy as np
import pytest

from quadriga.engine.models.runners.session import LoadError
from quadriga.tasks.predictions import Classification, Detection
from tests.families.folders import Case, ask, load

FAMILY = """
import numpy as np

from quadriga.tasks.decoders import Candidates
from quadriga.tasks.decoders import above, named


def decode(outputs, score_threshold, size_wh):
    boxes = named(outputs, "boxes", "n", 4)
    scores = named(outputs, "scores", len(boxes), "classes")
    best = scores.max(axis=1)
    kept = above(best, score_threshold)
    return Candidates(boxes[kept], best[kept], scores[kept].argmax(axis=1))
"""
TASK = """
import msgspec

from quadriga.tasks import parameters as read
from quadriga.tasks.predictions import Classification
from quadriga.tasks.resize import preprocess


class Options(msgspec.Struct, frozen=True):
    action: str


class Counting:
    actions = ("predict",)

    def __init__(self, spec):
        self._spec = spec

    def options(self, parameters):
        return Options(read.action(parameters, self.actions))

    def preprocess(self, image):
        return preprocess(image, self._spec.input)

    def predict(self, outputs, affine, options):
        return [Classification("things", float(outputs["counts"].sum()))]
"""
DETECTION = (
    'task = "detection"\nlabels = ["ant", "cat"]\n[input]\nresize = "stretch"\n[output]\n'
    'decoder = "acme_decoding:decode"\n'
)
COUNTING = 'task = "acme_counting:Counting"\n[input]\nresize = "stretch"\n[defaults]\ntop_k = 2\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "acme_decoding.py").write_text(FAMILY)
    (tmp_path / "acme_counting.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def answers(folder, toml, **outputs):
    arrays = {name: np.array(value, np.float32) for name, value in outputs.items()}
    files = {"model.toml": toml}
    return ask(load(Case(name="", family="", outputs=arrays, answers=(), files=files), folder))


def test_a_decoder_of_one_s_own_is_named_with_its_task_labels_and_input(folder):
    boxes, scores = [[24, 24, 72, 72], [25, 24, 72, 72]], [[0.25, 0.75], [0.25, 0.625]]
    (detection,) = answers(folder, DETECTION, boxes=boxes, scores=scores)
    assert detection == Detection("cat", 0.75, 16, 12, 48, 36)


def test_a_task_of_one_s_own_needs_neither_labels_nor_decoder(folder):
    assert answers(folder, COUNTING, counts=[2, 1.5]) == [Classification("things", 3.5)]


@pytest.mark.parametrize("toml", [DETECTION, COUNTING])
@pytest.mark.parametrize(("old", "new"), [("acme_", "acne_"), (":", ":un")])
def test_a_reference_that_leads_nowhere_is_named(folder, toml, old, new):
    with pytest.raises(LoadError, match=r"reference 'ac.*by the setting extensions"):
        answers(folder, toml.replace(old, new), boxes=[[0, 0, 1, 1]], scores=[[0.5, 0.5]])
