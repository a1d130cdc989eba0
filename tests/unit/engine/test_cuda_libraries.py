"""Libraries of CUDA, and a GPU that fails. No test needs a GPU: graphs that fail as on one stand in."""

import signal
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from quadriga.engine.measures.shared_counts import SharedCounts
from quadriga.engine.models.model_host import ModelHost
from quadriga.engine.models.recognition.model_toml import RuntimeOptions
from quadriga.engine.models.runners.crashes import ModelRuns
from quadriga.engine.models.runners.isolated_runner import IsolatedRunner, ProcessLimits
from quadriga.engine.models.runners.session import (
    CPU,
    CUDA,
    GraphOptions,
    LocalRunner,
    RunError,
    Session,
    load_cuda_libraries,
    missing_library,
)
from quadriga.proto.errors import ModelNotReady
from tests.onnx_models import doubling

FULL = "CUDA failure 2: out of memory ; GPU=0 ; hostname=secret-host ; expr=cudaMalloc(&p, n); "
ONES = {"x": np.ones((1, 3), np.float32)}


@pytest.mark.parametrize(
    ("providers", "expected"), [([CPU], 0), ([CUDA, CPU], 1), (["TensorrtExecutionProvider"], 1)]
)
def test_libraries_are_loaded_where_a_provider_needs_them_and_say_nothing(
    capsys, providers, expected
):
    calls = []

    def preload():
        calls.append(1)
        print("Failed to load libcublas.so.13")  # noqa: T201 - as onnxruntime does

    load_cuda_libraries(providers, preload)
    assert len(calls) == expected
    assert capsys.readouterr().out == ""


def test_a_library_that_is_missing_is_named(tmp_path):
    file = tmp_path / "libonnxruntime_providers_cuda.so"
    assert "cannot open shared object file" in missing_library(CUDA, tmp_path)
    assert str(tmp_path) not in missing_library(CUDA, tmp_path)
    file.write_bytes(b"no library")
    assert missing_library(CUDA, tmp_path)
    assert missing_library(CPU, tmp_path) == ""


class FailingRunner(LocalRunner):
    """Opens graphs that CUDA seems to run, and fails in the first run.

    Args:
        text: Text of the error.
        provider: The provider that runs them.
    """

    def __init__(self, text, provider):
        super().__init__()
        self._text, self._provider = text, provider

    def open(self, options):
        return msgspec.structs.replace(super().open(options), providers=[self._provider])

    def run(self, *arguments):
        if self._text:
            text, self._text = self._text, ""
            raise RuntimeError(text)
        return super().run(*arguments)


FAILURES = {
    "a full device": (FULL, CUDA, ModelNotReady, "no memory left for this run: CUDA failure 2"),
    "a full arena": ("Failed to allocate memory for x", CUDA, ModelNotReady, "no memory left"),
    "a full machine": ("Failed to allocate memory for x", CPU, RunError, "Failed to allocate"),
    "another failure": ("CUDA failure 9: no ; GPU=0 ; hostname=secret-host", CUDA, RunError, "9"),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_run_for_which_a_device_has_no_memory_may_be_sent_again(tmp_path, monkeypatch, failure):
    text, provider, error, says = failure
    monkeypatch.setattr("quadriga.engine.models.runners.session.fallen_back", lambda *_: [])
    session = Session(doubling(tmp_path / "model.onnx"), runner=FailingRunner(text, provider))
    with pytest.raises(error, match=says) as raised:
        session.run(ONES)
    assert "secret-host" not in str(raised.value)
    assert session.run(ONES)["y"].tolist() == [[2, 2, 2]]


@pytest.mark.parametrize(
    ("provider", "says"),
    [
        (CUDA, r"more memory than its device has left, or more than the 64 MiB .*: CUDA failure 2"),
        (CPU, "needs more than the 64 MiB that its process may take"),
    ],
)
def test_a_process_without_memory_says_whose_memory_it_may_be(provider, says):
    runs = ModelRuns(SharedCounts(), "numbers", "1")
    runner = IsolatedRunner(runs, ProcessLimits(memory_mb=64))
    try:
        providers = ((provider, {}), (CPU, {}))
        message = GraphOptions(path="model.onnx", providers=providers)
        with pytest.raises(ModelNotReady, match=says) as raised:
            raise ModelNotReady(runner._describe_shortage(message, FULL))
        assert "secret-host" not in str(raised.value)
    finally:
        runner.close()


LOSES_ITS_GPU = """
import sys
from pathlib import Path
from quadriga.engine.models.runners.session import LocalRunner

class Lost:
    def io_binding(self):
        return None
    def get_providers(self):
        return {providers}
    def run(self, *_):
        raise RuntimeError("CUDA failure {number}: gone ; GPU=0 ; hostname=h ; expr=x; ")
    run_with_iobinding = run

runner = LocalRunner(ends_with_device={ends})
runner._sessions.append(Lost())
try:
    runner.{method}
except RuntimeError:
    print("goes on")
"""

RUN, BOUND_RUN = "run(0, [], {})", "run_on_device(0, {}, {}, None)"
LOST = {"number": 700, "ends": True, "method": RUN, "providers": [CUDA, CPU]}
ENDS = {
    "a run": (LOST, -signal.SIGABRT),
    "a run with outputs on the device": ({**LOST, "method": BOUND_RUN}, -signal.SIGABRT),
    "a failure of one run": ({**LOST, "number": 2}, 0),
    "a command, which nobody starts again": ({**LOST, "ends": False}, 0),
    "a model of the CPU whose text says so": ({**LOST, "providers": [CPU]}, 0),
}


@pytest.mark.parametrize(("case", "code"), ENDS.values(), ids=ENDS)
def test_a_server_process_that_lost_its_gpu_ends_to_be_started_again(case, code):
    script = LOSES_ITS_GPU.format(**case)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == ("" if code else "goes on\n")
    assert ("this process lost its GPU" in done.stderr) == bool(code)


def test_models_of_a_server_end_their_process_and_those_of_a_command_do_not(tmp_path):
    path = doubling(tmp_path / "model.onnx")
    for is_server in (True, False):
        host = ModelHost(is_server=is_server)
        runner = host.runner(RuntimeOptions(), ModelRuns(host.counts, "n", "1"), path)
        assert runner._ends_with_device == is_server
        assert runner.open(GraphOptions(path=str(path))) is not None
