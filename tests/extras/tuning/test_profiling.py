import json

import numpy as np
import pytest
from click.testing import CliRunner

from quadriga.engine.cli import main
from quadriga.extras.tuning.paired_times import RunTimes
from quadriga.extras.tuning.profiling import Stage, Variant, Way, _measure, recommend
from tests.server_process import IMAGES, SAMPLE_MODELS

IMAGE = str(IMAGES / "classification" / "scene_11.jpg")


def stages(**shares):
    return [Stage(name, 10 * share, share) for name, share in shares.items()]


RUN_FIRST = stages(decode=0.1, preprocess=0.05, run=0.8, postprocess=0.05)


def variant(kind, value, factor, low):
    interval = None if low is None else (low, factor + (factor - low))
    return Variant(kind=kind, value=value, ms=1.0, cpu_ms=1.0, factor=factor, factor_ci95=interval)


OPENVINO = variant("provider", "OpenVINOExecutionProvider", 2.0, 1.9)
FAILED = Variant(kind="provider", value="A", ms=None, cpu_ms=None, factor=None, problem="no device")

ADVICE = {
    "nothing is faster": (
        RUN_FIRST,
        [variant("threads", "2", 1.05, 1.0)],
        "try `quadriga quantize`",
    ),
    "no other way runs": (RUN_FIRST, [FAILED], "the graph takes 80 %"),
    "two threads": (
        RUN_FIRST,
        [variant("threads", "2", 1.6, 1.5)],
        "30 % less with intra_op_threads = 2",
    ),
    "the best gain": (
        RUN_FIRST,
        [variant("threads", "2", 1.6, 1.5), OPENVINO, variant("batch", "8", 1.3, 1.2)],
        '40 % less with providers = ["OpenVINOExecutionProvider"]',
    ),
    "batches": (RUN_FIRST, [variant("batch", "8", 2.0, 1.9)], "send 8 images in a request"),
    "faster perhaps": (RUN_FIRST, [variant("threads", "2", 1.6, 0.4)], "the graph takes"),
    "too few rounds": (RUN_FIRST, [variant("threads", "2", 1.6, None)], "the graph takes"),
    "of a stage that hardly counts": (
        stages(decode=0.9, preprocess=0.05, run=0.03, postprocess=0.02),
        [OPENVINO],
        "decoding takes 90 %",
    ),
    "preparing": (stages(decode=0.1, preprocess=0.9), [], "preparing takes 90 %"),
    "reading": (stages(run=0.1, postprocess=0.9), [], "reading the outputs takes 90 %"),
}


@pytest.mark.parametrize(("measured", "variants", "text"), ADVICE.values(), ids=ADVICE)
def test_the_largest_gain_that_is_known_is_recommended(measured, variants, text):
    recommendation = recommend(measured, variants)
    assert text in recommendation
    assert "\n" not in recommendation


class TakesBatches:
    """A graph that takes batches of two."""

    def run_feeds(self, feeds):
        assert len(feeds["x"]) in (1, 2)


@pytest.mark.parametrize(("on_device", "factor"), [(False, 1.0), (True, 1.6)])
def test_a_batch_is_judged_by_the_processor_or_by_the_clock_of_a_device(
    monkeypatch, on_device, factor
):
    """The processor waits for a device all the time, or sleeps: its time says nothing of the device's."""

    def timed(tasks, **_):
        for task in tasks:
            task(0)
        alone = RunTimes(wall_s=[0.8] * 8, cpu_s=[0.2] * 8)
        return [alone, RunTimes(wall_s=[1.0] * 8, cpu_s=[0.4] * 8)]

    monkeypatch.setattr("quadriga.extras.tuning.profiling.time_in_turns", timed)
    feeds = {"x": np.zeros((1, 3), np.float32)}
    twice = {"x": np.zeros((2, 3), np.float32)}
    batch = Way("batch", "2", TakesBatches(), twice, images=2, counts_cpu=not on_device)
    (variant,) = _measure([Way("threads", "", TakesBatches(), feeds), batch], 1.0)
    assert variant.factor == factor
    assert (variant.ms, variant.cpu_ms) == (500, 200)


def profile(*arguments):
    return CliRunner().invoke(main, ["profile", *arguments], terminal_width=200)


def test_a_model_is_profiled():
    model = str(SAMPLE_MODELS / "shapes-classifier")
    result = profile(model, "--image", IMAGE, "--load", "2", "--seconds", "0.1", "--json")
    assert result.exit_code == 0, result.output
    measured = json.loads(result.output)
    names = [stage["name"] for stage in measured["stages"]]
    assert names == ["decode", "preprocess", "run", "postprocess"]
    assert all(stage["ms"] > 0 for stage in measured["stages"])
    assert sum(stage["share"] for stage in measured["stages"]) == pytest.approx(1, abs=0.01)
    assert [one["value"] for one in measured["variants"] if one["kind"] == "batch"] == [
        "2",
        "4",
        "8",
    ]
    assert measured["load"]["callers"] == 2
    assert measured["load"]["images"] >= 2
    assert measured["load"]["p99_ms"] >= measured["load"]["p50_ms"] > 0
    table = profile(model, "--image", IMAGE, "--seconds", "0.1")
    assert "Recommendation: " in table.output


def test_models_of_several_graphs_are_not_profiled():
    result = profile(str(SAMPLE_MODELS / "shapes-image-text"), "--image", IMAGE)
    assert result.exit_code == 2
    assert "expected a model of one graph that takes images" in result.output
