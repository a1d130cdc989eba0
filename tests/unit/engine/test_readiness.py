"""States of processes in shared memory, and what they say of readiness."""

import pytest

from quadriga.engine.measures.readiness import JOBS, WRITER, ProcessStates


@pytest.fixture
def states() -> ProcessStates:
    return ProcessStates.create(2)


def test_a_state_is_read_by_another_process(states: ProcessStates) -> None:
    other = ProcessStates(states.descriptor, 2)
    assert other.state("worker 1").state == "starting"
    states.mark("worker 1", "waiting", "é" * 400)
    state = other.state("worker 1")
    assert (state.state, state.name) == ("waiting", "worker 1")
    assert state.reason is not None
    assert set(state.reason) == {"é"}
    states.mark("worker 1", "ready")
    assert other.state("worker 1").reason is None
    for _ in range(300):
        states.beat(JOBS)
    states.count_restart(WRITER)
    states.count_restart(WRITER)
    states.count_hang(WRITER)
    assert (other.beats(JOBS), other.beats(WRITER)) == (300, 0)
    writer = other.state(WRITER)
    assert (writer.restarts, writer.hangs) == (2, 1)


@pytest.mark.parametrize(
    ("was_ready", "first", "second", "unready"),
    [
        (False, "ready", "starting", ["worker 1"]),  # the first start waits for all
        (False, "loading", "loading", ["worker 0", "worker 1"]),
        (True, "ready", "ready", []),
        (True, "ready", "ended", []),  # nobody's requests come to it
        (True, "ready", "starting", []),
        (True, "ready", "loading", ["worker 1"]),  # it takes requests
        (True, "ended", "ended", ["worker 0", "worker 1"]),
        (True, "starting", "ended", ["worker 0", "worker 1"]),
    ],
)
def test_a_worker_that_takes_no_requests_keeps_no_server_from_being_ready(
    states: ProcessStates, was_ready, first, second, unready
) -> None:
    if was_ready:
        states.mark("worker 0", "ready")
        states.mark("worker 1", "ready")
    states.mark("worker 0", first)
    states.mark("worker 1", second)
    assert states.unready_workers() == unready
    assert states.failure_reason() is None


def test_a_failure_is_named(states: ProcessStates) -> None:
    states.mark("worker 1", "loading", "cannot load the models yet: No space left on device")
    assert states.failure_reason() == "cannot load the models yet: No space left on device"
