"""Models behind models: when a detector has no answer, and who gets one."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quadriga.engine.serving.crop_run import CropRun
from quadriga.proto.access import Caller
from quadriga.proto.errors import (
    DeadlineExceeded,
    Forbidden,
    InternalError,
    InvalidRequest,
    ModelNotReady,
    NotFound,
    Overloaded,
)
from quadriga.proto.request import Deadline, RequestContext, set_current_request
from tests.band_images import png
from tests.onnx_models import doubling, marking
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.crop_chain import (
    DETECTOR_TOML,
    MAX_NUMBER,
    SIDE,
    Chain,
    answers,
    ask,
    failing,
    marks,
    save_bands,
    scene,
)


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with Chain(tmp_path) as chain:
        yield chain


def test_a_failure_behind_fails_the_request_and_is_stored_of_both(chain):
    failing(chain.models / "fragile")
    chain.detector("cars", 'model = "fragile"')
    pipeline = chain.pipeline()
    assert len(pipeline.infer(ask("cars", scene(1))).outputs[0].data[0]) == 4
    pixels = np.full((SIDE, SIDE, 3), 255, np.uint8)
    with pytest.raises(InternalError, match="model 'fragile' failed"):
        pipeline.infer(ask("cars", png(pixels)))
    *crops, detected = chain.records()[5:]
    assert {record.model.name for record in crops} == {"fragile"}
    assert {record.status for record in (*crops, detected)} == {500}
    assert [record.image_no for record in crops] == [0, 1, 2, 3]
    assert {record.request_id for record in crops} == {"r/0"}
    assert all(record.input.kept for record in crops)
    assert (detected.model.name, detected.request_id) == ("cars", "r")
    for name in ("cars", "fragile"):
        (statistics,) = pipeline.statistics(name, None)
        assert (statistics.success.count, statistics.fail.count) == (1, 1)


def test_a_failure_at_the_end_of_a_chain_says_which_image_it_was(chain):
    failing(chain.models / "fragile")
    chain.detector("cars", 'model = "inner"\nmax_crops = 2')
    chain.detector("inner", 'model = "fragile"\nmax_crops = 1')
    image = png(np.full((SIDE, SIDE, 3), 255, np.uint8))
    with pytest.raises(InternalError, match="model 'fragile' failed"):
        chain.pipeline().infer(ask("cars", image))
    *crops, detected = chain.records()
    assert [record.model.name for record in (*crops, detected)] == ["fragile"] * 2 + ["cars"]
    assert [record.request_id for record in crops] == ["r/0/0", "r/0/1"]
    descriptions = [record.standard["crop"] for record in crops]
    assert {crop["image"] for crop in descriptions} == {detected.input.hash}
    assert {(crop["request_id"], crop["model"]) for crop in descriptions} == {("r", "inner")}


def test_an_unloaded_model_behind_refuses_requests_until_it_is_back(chain):
    pipeline = chain.pipeline()
    pipeline.unload_model("marks")
    text = "model 'cars' needs the model behind it: model 'marks' version 1 is unloaded"
    assert pipeline.model_unready_reason("cars", None) == text
    with pytest.raises(ModelNotReady, match=text):
        pipeline.infer(ask("cars", scene(1)))
    assert chain.records() == []
    pipeline.load_model("marks", {}, {})
    assert pipeline.model_unready_reason("cars", None) is None
    assert answers(pipeline.infer(ask("cars", scene(1, 2, 3, 4)))) == [marks(1, 2, 3, 4)]


def test_a_version_that_is_not_there_is_named_without_the_others(chain):
    chain.detector("cars", 'model = "marks"\nversion = "7"')
    pipeline = chain.pipeline()
    with pytest.raises(ModelNotReady, match=r"which is not found: marks version 7$"):
        pipeline.infer(ask("cars", scene(1)))


@pytest.mark.parametrize("behind", ["double", "talk"])
def test_a_model_of_another_kind_behind_is_refused(chain, behind):
    doubling(chain.models / "double" / "model.onnx")
    (chain.models / "talk").symlink_to(SAMPLE_MODELS / "shapes-image-text")
    chain.detector("cars", f'model = "{behind}"')
    pipeline = chain.pipeline()
    with pytest.raises(ModelNotReady, match="needs a model behind it that takes images, and no"):
        pipeline.infer(ask("cars", scene(1)))
    assert "of the task" in str(pipeline.model_unready_reason("cars", None))


def test_a_deadline_ends_the_crops_too(chain, monkeypatch):
    pipeline = chain.pipeline()
    deadline = Deadline(3600)
    infer = CropRun.infer

    def infer_late(crop_run, parents):
        deadline.stop(deadline.exceeded())
        return infer(crop_run, parents)

    monkeypatch.setattr(CropRun, "infer", infer_late)
    set_current_request(RequestContext(deadline=deadline))
    with pytest.raises(DeadlineExceeded):
        pipeline.infer(ask("cars", scene(1)))
    (statistics,) = pipeline.statistics("marks", None)
    assert (statistics.execution_count, statistics.fail.count) == (0, 1)
    assert chain.records() == []


@pytest.mark.parametrize("policy", ["fail", "shed"])
def test_a_full_journal_is_answered_as_the_model_behind_says(chain, policy):
    chain.pipeline().infer(ask("cars", scene(1)))
    count = len(chain.records())
    chain.detector("cars", 'model = "marks"\n[store]\nenabled = false')
    marking(chain.models / "marks", MAX_NUMBER, f'[store]\njournal_full = "{policy}"\n')
    pipeline = chain.pipeline(journal_hard_bytes=1)
    if policy == "fail":
        with pytest.raises(Overloaded, match="bytes of the journal to wait"):
            pipeline.infer(ask("cars", scene(1)))
        (statistics,) = pipeline.statistics("marks", None)
        assert statistics.execution_count == 0
        assert "cannot store inferences" in str(pipeline.model_unready_reason("cars", None))
    else:
        response = pipeline.infer(ask("cars", scene(1, 2, 3, 4)))
        assert answers(response) == [marks(1, 2, 3, 4)]
        assert not response.stored
        assert response.outputs[0].parameters["stored"] is False
    assert len(chain.records()) == count


def test_a_key_for_the_detector_alone_gets_the_answer_and_not_the_model(chain):
    pipeline = chain.pipeline()
    set_current_request(
        RequestContext(caller=Caller(name="line", rights=frozenset({"infer"}), models=("cars",)))
    )
    assert answers(pipeline.infer(ask("cars", scene(1, 2, 3, 4)))) == [marks(1, 2, 3, 4)]
    with pytest.raises(Forbidden):
        pipeline.infer(ask("marks", scene(1)))


@pytest.mark.parametrize("name", ["marks", "MARKS", "m-marks"])
def test_a_key_loads_no_model_in_front_of_one_that_it_is_not_for(chain, name):
    chain.detector("own", 'model = "marks"')
    (chain.models / "own" / "model.toml").write_text(DETECTOR_TOML.replace("[then]\n", ""))
    pipeline = chain.pipeline()
    set_current_request(
        RequestContext(
            caller=Caller(name="op", rights=frozenset({"operate", "infer"}), models=("own",))
        )
    )
    with pytest.raises(Forbidden):
        pipeline.load_model("own", {"then": {"model": name}}, {})
    with pytest.raises((Forbidden, NotFound)):
        pipeline.load_model("own", {"then": {"model": "nothing"}}, {})
    pipeline.infer(ask("own", scene(1)))
    assert [record.model.name for record in chain.records()] == ["own"]
    set_current_request(None)
    pipeline.load_model("own", {"then": {"model": name}}, {})
    assert answers(pipeline.infer(ask("own", scene(1, 2, 3, 4)))) == [marks(1, 2, 3, 4)]


def test_an_image_that_the_model_behind_cannot_take_is_a_mistake_of_the_request(chain):
    folder = chain.models / "bands"
    save_bands(folder)
    chain.detector("cars", 'model = "bands"')
    with pytest.raises(InvalidRequest, match=r"model 'bands' behind 'cars': expected .* 4 bands"):
        chain.pipeline().infer(ask("cars", scene(1)))
