"""A model in a process of its own: what it answers, and what happens when the process ends or passes a limit."""

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from quadriga.engine.measures.shared_counts import SharedCounts
from quadriga.engine.models.runners.crashes import ModelRuns
from quadriga.engine.models.runners.isolated_runner import NICENESS, IsolatedRunner, ProcessLimits
from quadriga.engine.models.runners.session import LoadError, RunError, Session
from quadriga.proto.errors import ModelNotReady
from tests.onnx_models import allocating, dividing, doubling, endless, several, tripling

LIMITS = ProcessLimits(memory_mb=512, run_s=60, load_s=60)
ONES = {"x": np.ones((1, 3), np.float32)}
POISON = {"a": np.array([-(2**31)], np.int32), "b": np.array([-1], np.int32)}
GOOD = {"a": np.array([6], np.int32), "b": np.array([3], np.int32)}


def isolated(limits=LIMITS):
    return IsolatedRunner(ModelRuns(SharedCounts(), "m", "1"), limits)


def opened(path, limits=LIMITS):
    """Open a model in a process of its own, as one that is loaded."""
    runner = isolated(limits)
    session = Session(path, runner=runner)
    runner.end_loading()
    return session, runner


def until(condition, timeout_s=60):
    """Wait until a condition holds."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def runs_again(session, feeds):
    """Return whether a run succeeds."""
    try:
        session.run(feeds)
    except ModelNotReady:
        return False
    return True


def pid_of(runner):
    return runner._process.popen.pid


def is_running(pid):
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def double(tmp_path_factory):
    session, runner = opened(doubling(tmp_path_factory.mktemp("m") / "model.onnx"))
    yield session, runner
    runner.close()


def test_it_answers_as_the_same_graph_in_this_process(double, tmp_path):
    session, _ = double
    local = Session(doubling(tmp_path / "model.onnx"))
    assert session.inputs == local.inputs
    assert session.outputs == local.outputs
    for rows in (0, 1, 1000, 3_000_000):
        feeds = {"x": np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)}
        assert np.array_equal(session.run(feeds)["y"], local.run(feeds)["y"])


def test_it_takes_texts_numbers_and_truth_values(tmp_path):
    session, runner = opened(several(tmp_path / "model.onnx"))
    feeds = {
        "tag_bytes": np.array(["a", "\N{SNOWMAN}"], dtype=object),
        "signal": np.array([[1, 2], [3, 4]], np.int32),
        "flag": np.array([True, False]),
    }
    outputs = session.run(feeds)
    assert {name: outputs[f"same_{name}"].tolist() for name in feeds} == {
        name: array.tolist() for name, array in feeds.items()
    }
    runner.close()


def test_many_threads_run_it_at_once(double):
    session, _ = double
    wrong = []

    def run(number):
        feeds = {"x": np.full((50, 3), number, np.float32)}
        answers = [session.run(feeds)["y"] for _ in range(30)]
        wrong.extend(answer for answer in answers if not (answer == 2 * number).all())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_what_onnxruntime_refuses_is_an_error_of_the_run(double):
    session, _ = double
    with pytest.raises(RunError, match="invalid dimensions"):
        session.run({"x": np.ones((1, 4), np.float32)})
    with pytest.raises(RunError):
        session.run({"x": np.ones((1, 3), np.int64)})
    assert session.run(ONES)["y"].tolist() == [[2, 2, 2]]


def test_a_graph_that_onnxruntime_refuses_is_an_error_of_the_load(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(doubling(path).read_bytes()[:-7])
    runner = isolated()
    with pytest.raises(LoadError):
        Session(path, runner=runner)
    runner.close()


def test_a_crash_is_answered_with_its_signal_and_the_process_started_again(tmp_path):
    session, runner = opened(dividing(tmp_path / "model.onnx"))
    before = pid_of(runner)
    with pytest.raises(ModelNotReady, match="process of model 'm' version 1 was ended by SIGFPE"):
        session.run(POISON)
    until(lambda: runs_again(session, GOOD))
    assert pid_of(runner) != before
    assert runner._runs.refusal() is None
    with pytest.raises(ModelNotReady, match="SIGFPE"):
        session.run(POISON)
    assert "ended its process 2 times" in runner._runs.refusal().reason
    runner.close()


def test_requests_beside_a_crash_are_answered_with_its_reason(tmp_path):
    session, runner = opened(dividing(tmp_path / "model.onnx"))
    errors, stop = [], threading.Event()

    def run():
        while not stop.is_set():
            try:
                assert session.run(GOOD)["quotient"].tolist() == [2]
            except ModelNotReady as error:
                errors.append(str(error))
                time.sleep(0.02)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    with pytest.raises(ModelNotReady, match="SIGFPE"):
        session.run(POISON)
    until(lambda: runs_again(session, GOOD))
    stop.set()
    for thread in threads:
        thread.join(60)
    assert all("SIGFPE" in error for error in errors)
    runner.close()


def test_a_run_that_needs_too_much_memory_is_refused_and_the_process_goes_on(tmp_path):
    session, runner = opened(allocating(tmp_path / "model.onnx"))
    before = pid_of(runner)
    with pytest.raises(ModelNotReady, match="needs more than the 512 MiB"):
        session.run({"n": np.array([1_600_000_000], np.int64)})
    assert session.run({"n": np.array([1000], np.int64)})["mean"] == 0
    assert pid_of(runner) == before
    runner.close()


def test_a_run_without_end_is_ended_at_its_limit_and_the_process_started_again(tmp_path):
    limits = ProcessLimits(run_s=1, load_s=60)
    session, runner = opened(endless(tmp_path / "model.onnx"), limits)
    with pytest.raises(ModelNotReady, match="was ended: a run did not end within 1 s"):
        session.run(ONES)
    until(lambda: runner._process is not None)
    runner.close()


def test_a_run_whose_request_is_over_is_stopped_and_the_process_goes_on(tmp_path):
    session, runner = opened(endless(tmp_path / "model.onnx"))
    before = pid_of(runner)
    options = SimpleNamespace(terminate=False)
    timer = threading.Timer(0.3, setattr, (options, "terminate", True))
    timer.start()
    with pytest.raises(RunError, match="terminate"):
        session._runner.run(0, ["y"], ONES, options)
    assert pid_of(runner) == before
    runner.close()


def test_a_process_that_ends_while_it_loads_is_an_error_of_the_load(tmp_path):
    runner = isolated()
    runner._process.popen.kill()
    with pytest.raises(LoadError, match="was ended by SIGKILL"):
        Session(doubling(tmp_path / "model.onnx"), runner=runner)
    runner.close()


def test_a_worker_with_more_than_a_thousand_open_files_starts_one(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    files = []
    try:
        files += [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        session, runner = opened(doubling(tmp_path / "model.onnx"))
        assert session.run(ONES)["y"].tolist() == [[2, 2, 2]]
        runner.close()
    finally:
        for descriptor in files:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_process_goes_after_its_worker_from_its_start_on(tmp_path):
    runner = isolated()
    expected = min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)
    try:
        assert os.getpriority(os.PRIO_PROCESS, pid_of(runner)) == expected
        Session(doubling(tmp_path / "model.onnx"), runner=runner).run(ONES)
        tasks = Path(f"/proc/{pid_of(runner)}/task").iterdir()
        niceness = {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in tasks}
        assert niceness == {expected}
    finally:
        runner.close()


def test_the_process_ends_with_its_model(tmp_path):
    session, runner = opened(tripling(tmp_path / "model.onnx"))
    pid = pid_of(runner)
    assert is_running(pid)
    del session, runner
    gc.collect()
    until(lambda: not is_running(pid))


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in-an-endless-run"])
def test_the_process_ends_with_its_worker_also_by_sigkill(tmp_path, busy):
    endless(tmp_path / "model.onnx")
    code = (
        "import sys, threading, time, numpy as np\nfrom pathlib import Path\n"
        "from quadriga.engine.measures.shared_counts import SharedCounts\n"
        "from quadriga.engine.models.runners.crashes import ModelRuns\n"
        "from quadriga.engine.models.runners.isolated_runner import IsolatedRunner, ProcessLimits\n"
        "from quadriga.engine.models.runners.session import Session\n"
        "limits = ProcessLimits(run_s=600, load_s=600)\n"
        "runner = IsolatedRunner(ModelRuns(SharedCounts(), 'm', '1'), limits)\n"
        f"session = Session(Path({str(tmp_path / 'model.onnx')!r}), runner=runner)\n"
        "runner.end_loading()\n"
        f"if {busy}:\n"
        "    feeds = {'x': np.ones((1, 3), np.float32)}\n"
        "    threading.Thread(target=session.run, args=(feeds,)).start()\n"
        "    time.sleep(0.5)\n"
        "print(runner._process.popen.pid, flush=True)\ntime.sleep(600)\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(worker.stdout.readline())
    assert is_running(pid)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    until(lambda: not is_running(pid), timeout_s=30)
