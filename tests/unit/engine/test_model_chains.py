"""Which models may be behind which: what is refused when a model is loaded, and in which words."""

from pathlib import Path

import numpy as np
import pytest

from quadriga.engine.models.overrides import Override
from quadriga.engine.models.recognition.model_toml import ThenOptions
from quadriga.engine.models.repository import ModelRepository, check_chains
from quadriga.engine.models.runners.session import LoadError
from tests.onnx_models import COLOURS_TOML, classifier, detector

TOML = """task = "detection"
labels = ["car", "van"]
[input]
resize = "stretch"
[output]
decoder = "ultralytics"
"""


def then(*models):
    return [ThenOptions(model=model) for model in models]


@pytest.mark.parametrize(
    ("behind", "error"),
    [
        ({"a": ["b"]}, None),
        ({"a": ["B"]}, None),
        ({"a": ["m-b"]}, None),
        ({"a": ["b"], "b": ["c"]}, None),
        ({"a": ["b"], "c": ["b"]}, None),
        ({"a": ["a"]}, "expected no model behind itself by [then], got a → a"),
        ({"a": ["m-A"]}, "expected no model behind itself by [then], got a → m-A"),
        ({"a": ["b"], "b": ["a"]}, "expected no model behind itself by [then], got a → b → a"),
        ({"a": ["b"], "b": ["c", "a"]}, "got a → b → a"),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, "at most 2 models behind one another"),
        ({"a": ["b"], "b": ["c"], "c": ["d"]}, "by [then], got a → b → c → d"),
        ({"a": ["x"]}, "[then]: model not found: 'x'"),
        ({"a": ["b"], "b": ["x"]}, "[then]: model not found: 'x'"),
        ({"a": ["x" * 300]}, "model not found"),
    ],
)
def test_chains_end_at_a_known_model(behind, error):
    tables = {name: then(*models) for name, models in behind.items()}

    def check():
        (first,) = tables["a"]
        check_chains("a", first, ["a", "b", "c", "d"], lambda name: tables.get(name, []))

    if error is None:
        check()
        return
    with pytest.raises(LoadError) as raised:
        check()
    assert error in str(raised.value)


def test_a_model_without_others_behind_it_is_not_looked_at():
    check_chains("a", None, [], lambda _: then("a"))


class Folder:
    """A repository of detectors, each with its table `[then]`, and a classifier."""

    def __init__(self, root: Path, **tables: str) -> None:
        self.root = root
        for name, table in tables.items():
            head = np.zeros((6, 4), np.float32)
            detector(root / name / "model.onnx", head)
            self.write(name, table)
        classifier(root / "colours" / "model.onnx")
        (root / "colours" / "model.toml").write_text(COLOURS_TOML)
        self.repository = ModelRepository(root)
        self.repository.load_all()

    def write(self, name: str, table: str) -> None:
        (self.root / name / "model.toml").write_text(f"{TOML}[then]\n{table}\n" if table else TOML)

    def reasons(self) -> dict[str, str]:
        return {status.name: status.reason for status in self.repository.statuses()}


def test_all_of_a_circle_fail_and_the_others_serve(tmp_path):
    folder = Folder(tmp_path, a='model = "b"', b='model = "a"', c='model = "colours"')
    reasons = folder.reasons()
    assert reasons["a"].endswith("expected no model behind itself by [then], got a → b → a")
    assert reasons["b"].endswith("expected no model behind itself by [then], got b → a → b")
    assert (reasons["c"], reasons["colours"]) == ("", "")


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ('model = "coulors"', "model not found: 'coulors'; did you mean colours?"),
        ('model = ""', "model"),
        ('labels = ["car"]', "model"),
        (
            'model = "colours"\nlabels = ["cat"]',
            "among the 2 labels of the model, got 'cat', is it",
        ),
        ('model = "colours"\nlabels = []', "labels"),
        ('model = "colours"\nmin_score = 2', "min_score"),
        ('model = "colours"\nmax_crops = 0', "max_crops"),
        ('model = "colours"\nmax_crops = 100000', "max_crops"),
        ('model = "colours"\nmargin = -1', "margin"),
        ('model = "colours"\ncrop = 3', "crop"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, table, error):
    reasons = Folder(tmp_path, a=table).reasons()
    assert error in reasons["a"]
    assert reasons["colours"] == ""


def test_only_detectors_have_crops(tmp_path):
    folder = Folder(tmp_path)
    (tmp_path / "colours" / "model.toml").write_text(f'{COLOURS_TOML}[then]\nmodel = "colours"\n')
    with pytest.raises(LoadError, match=r"then in model\.toml has no use for classification"):
        folder.repository.load("colours")


def test_a_load_that_closes_a_circle_leaves_what_is_served(tmp_path):
    folder = Folder(tmp_path, a='model = "b"', b="")
    with pytest.raises(LoadError, match="got b → a → b"):
        folder.repository.load("b", Override({"then": {"model": "a"}}))
    assert folder.repository.get("b").recognition.written.then is None
    folder.repository.load("b", Override({"then": {"model": "colours"}}))
    assert folder.repository.served_versions()[1].behind == "colours"
    folder.repository.load("b")
    assert folder.repository.served_versions()[1].behind is None
