"""Freed memory goes back to the system, whichever thread has freed it."""

import re
import threading
from pathlib import Path

import pytest

from quadriga.engine.models.runners.free_memory import return_free_memory

STATUS = Path("/proc/self/status")


def resident_mb() -> float:
    return int(re.search(r"VmRSS:\s+(\d+)", STATUS.read_text())[1]) / 1024


@pytest.mark.skipif(not STATUS.exists(), reason="reads /proc of Linux")
def test_what_a_thread_has_freed_goes_back():
    def allocate() -> None:
        blocks = [
            b"x" * (100_000 + n) for n in range(2000)
        ]  # each below the size that is mapped by itself
        last = blocks.pop()
        del blocks
        kept.append(last)  # above them, so that they are no end of the heap

    kept: list[bytes] = []
    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    before_mb = resident_mb()
    return_free_memory()
    assert resident_mb() < before_mb - 100
