"""Children of the supervisor that end at the worst moment."""

import sys
import time

from quadriga.engine.processes.supervisor import ChildTask, _Child
from quadriga.engine.readiness import ProcessStates
from quadriga.engine.settings import Settings


def test_a_child_that_is_ended_before_it_reads_its_task_is_started_again(monkeypatch):
    """Its pipe is broken, which must not end the server."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    settings = Settings(models="x" * (1 << 20))  # more than a pipe holds, so that its end is seen
    child = _Child(ChildTask("writer", settings), ProcessStates.create(1))
    child.start()
    assert not child.wait(time.monotonic() + 60)
    child.watch()  # sees that it has ended
    monkeypatch.setattr(sys, "executable", "/bin/true")
    time.sleep(0.3)
    child.watch()  # starts it again
    assert child.wait(time.monotonic() + 60)
    child.request_stop()
