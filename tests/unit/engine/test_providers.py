"""Execution providers with options and fallback. No test needs a GPU: what only one has is not run."""

import logging
from contextlib import nullcontext

import msgspec
import numpy as np
import pytest

from quadriga.engine.models.recognition.model_toml import read_model_toml
from quadriga.engine.models.runners.batched_runs import Batching
from quadriga.engine.models.runners.session import (
    CPU,
    CUDA,
    GraphOptions,
    LoadError,
    LocalRunner,
    Session,
    choose_available,
    fallen_back,
    read_providers,
)
from tests.onnx_models import doubling

WRITTEN = {
    "none": ("[]", []),
    "names": (f'["{CUDA}", "{CPU}"]', [(CUDA, {}), (CPU, {})]),
    "options": (
        f'[{{name = "{CUDA}", device_id = 1, do_copy_in_default_stream = true, gpu_mem_limit = "2"}}]',
        [(CUDA, {"device_id": "1", "do_copy_in_default_stream": "1", "gpu_mem_limit": "2"})],
    ),
    "any provider": ('[{name = "ours", depth = 0.5}]', [("ours", {"depth": "0.5"})]),
}


@pytest.mark.parametrize(("text", "expected"), WRITTEN.values(), ids=WRITTEN)
def test_providers_of_model_toml_are_names_with_options_as_texts(tmp_path, text, expected):
    (tmp_path / "model.toml").write_text(f"[runtime]\nproviders = {text}\n")
    written = read_model_toml(tmp_path).runtime.providers
    assert read_providers(written) == expected


def test_a_table_without_a_name_is_refused(tmp_path):
    with pytest.raises(LoadError, match="without a name"):
        Session(doubling(tmp_path / "model.onnx"), [{"device_id": 1}])


@pytest.mark.parametrize("value", ["[{name = 'a', options = {b = 1}}]", "[1]"])
def test_what_is_no_provider_is_refused(tmp_path, value):
    (tmp_path / "model.toml").write_text(f"[runtime]\nproviders = {value}\n")
    with pytest.raises(LoadError, match="providers"):
        read_model_toml(tmp_path)


AVAILABLE = {
    "all": ([CUDA, CPU], [CUDA, CPU], False, [CUDA, CPU]),
    "one is missing": ([CUDA, CPU], [CPU], False, None),
    "one is missing, and may": ([CUDA, CPU], [CPU], True, [CPU]),
    "all are missing, and may": ([CUDA], [CPU], True, None),
}


@pytest.mark.parametrize(
    ("wanted", "available", "may_fall_back", "expected"), AVAILABLE.values(), ids=AVAILABLE
)
def test_providers_that_are_not_installed_are_refused_or_left_out(
    wanted, available, may_fall_back, expected
):
    providers = read_providers(wanted)
    if expected is None:
        with pytest.raises(LoadError, match=f"among {', '.join(available)}, got {CUDA}"):
            choose_available(providers, available, may_fall_back=may_fall_back)
        return
    chosen = choose_available(providers, available, may_fall_back=may_fall_back)
    assert [name for name, _ in chosen] == expected
    assert fallen_back(providers, expected) == [name for name in wanted if name not in expected]


@pytest.mark.parametrize(
    "written",
    [
        {"name": CUDA, "enable_cuda_graph": 1},
        {"name": CUDA, "enable_cuda_graph": True},
        {"name": "TensorrtExecutionProvider", "trt_cuda_graph_enable": "True"},
    ],
)
def test_runs_that_are_recorded_are_refused_as_requests_would_get_each_others_answers(written):
    with pytest.raises(LoadError, match="the memory of the first request"):
        read_providers([written, CPU])


@pytest.mark.parametrize("value", [0, False, "0", "false"])
def test_runs_that_are_not_recorded_are_taken(value):
    assert read_providers([{"name": CUDA, "enable_cuda_graph": value}])


class AnswersRowsUnlike(LocalRunner):
    """Graphs whose first run differs a little, as one with products in TF32 does; a provider of one's choice runs them."""

    def __init__(self, provider):
        super().__init__()
        self._provider = provider

    def open(self, options: GraphOptions):
        opened = super().open(GraphOptions(path=options.path))
        return msgspec.structs.replace(opened, providers=[self._provider])

    def run(self, *arguments):
        return [output * (1 + 1e-3 * len(output)) for output in super().run(*arguments)]


ADVICE = {
    "CUDA": (CUDA, {}, "use_tf32 = 0"),
    "CUDA in 32 bits": (CUDA, {"use_tf32": 0}, "the graph mixes rows; remove the key"),
    "the CPU": (CPU, {}, "the graph mixes rows; remove the key"),
}


@pytest.mark.parametrize(("provider", "options", "says"), ADVICE.values(), ids=ADVICE)
def test_rows_that_differ_for_tf32_are_told_from_a_graph_that_mixes_them(
    tmp_path, monkeypatch, provider, options, says
):
    monkeypatch.setattr(
        "quadriga.engine.models.runners.session.available_providers", lambda: [provider]
    )
    runner = AnswersRowsUnlike(provider)
    path = doubling(tmp_path / "model.onnx")
    session = Session(path, [{"name": provider, **options}], runner=runner)
    examples = [{"x": np.full((1, 3), value, np.float32)} for value in (1, 2, 3)]
    with pytest.raises(LoadError, match=says):
        session.share_runs(Batching(max=4), examples, 1, nullcontext)


class StartsOnCpuAlone(LocalRunner):
    """Graphs of an onnxruntime that has a provider whose device is not there, and says nothing of it."""

    def open(self, options: GraphOptions):
        return super().open(GraphOptions(path=options.path))


class RefusesToStart(LocalRunner):
    """Graphs of an onnxruntime whose first provider raises when its device is not there."""

    def open(self, options: GraphOptions):
        if options.providers[0][0] != CPU:
            raise RuntimeError("no device")
        return super().open(options)


@pytest.mark.parametrize("runner", [StartsOnCpuAlone, RefusesToStart])
def test_a_provider_that_does_not_start_is_an_error_or_a_warning(tmp_path, caplog, runner):
    path = doubling(tmp_path / "model.onnx")
    providers = ["AzureExecutionProvider", CPU]
    with pytest.raises(LoadError, match=r"expected AzureExecutionProvider to start|no device"):
        Session(path, providers, runner=runner())
    with caplog.at_level(logging.WARNING, "quadriga.models"):
        session = Session(path, providers, runner=runner(), provider_fallback=True)
    assert session.providers == (CPU,)
    assert "AzureExecutionProvider cannot be used, so CPUExecutionProvider runs" in caplog.text
    ones = np.ones((1, 3), np.float32)
    assert session.run({"x": ones})["y"].tolist() == [[2, 2, 2]]


def test_options_are_passed_on_and_the_order_is_known(tmp_path):
    path = doubling(tmp_path / "model.onnx")
    opened = []

    class Watched(LocalRunner):
        def open(self, options: GraphOptions):
            opened.append(options.providers)
            return super().open(options)

    written = ["AzureExecutionProvider", {"name": CPU, "arena_extend_strategy": "kSameAsRequested"}]
    session = Session(path, written, runner=Watched())
    assert session.providers == ("AzureExecutionProvider", CPU)
    assert opened == [
        (("AzureExecutionProvider", {}), (CPU, {"arena_extend_strategy": "kSameAsRequested"}))
    ]


def test_a_missing_provider_is_said_loudly_where_it_may_be_missing(tmp_path, caplog):
    path = doubling(tmp_path / "model.onnx")
    with pytest.raises(LoadError, match=f"got {CUDA}"):
        Session(path, [CUDA, CPU])
    with caplog.at_level(logging.WARNING, "quadriga.models"):
        session = Session(path, [CUDA, CPU], provider_fallback=True)
    assert session.providers == (CPU,)
    assert f"{CUDA} cannot be used" in caplog.text
