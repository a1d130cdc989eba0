"""Children of the supervisor that end at the worst moment."""

import sys
import time

import pytest

from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.readiness import ProcessStates
from quadriga.engine.measures.shared_counts import ENDS, SharedCounts
from quadriga.engine.processes.supervisor import ChildTask, _Child, end_cause


def test_a_child_that_is_ended_before_it_reads_its_task_is_started_again(monkeypatch):
    """Its pipe is broken, which must not end the server."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    settings = Settings(models="x" * (1 << 20))  # more than a pipe holds, so that its end is seen
    counts = SharedCounts(2, 1)
    child = _Child(ChildTask("writer", settings), ProcessStates.create(1), counts)
    child.start()
    assert not child.wait(time.monotonic() + 60)
    child.watch()  # sees that it has ended
    monkeypatch.setattr(sys, "executable", "/bin/true")
    time.sleep(0.3)
    child.watch()  # starts it again
    assert child.wait(time.monotonic() + 60)
    child.request_stop()
    (row,) = counts.totals()
    assert (row.name, row.cells[0]) == ((ENDS, "writer", "exit-1"), 1)


@pytest.mark.parametrize(
    ("code", "cause"),
    [(0, "exit-0"), (78, "exit-78"), (-9, "SIGKILL"), (-11, "SIGSEGV"), (-63, "signal-63")],
)
def test_the_cause_of_an_end_is_a_signal_or_a_status(code, cause):
    assert end_cause(code) == cause
