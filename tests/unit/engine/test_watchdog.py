"""When a process hangs, and what must not be taken for it."""

import os

import pytest

from quadriga.engine.processes.watchdog import PATIENCE, Watchdog, cpu_ticks


def looks(seconds: float, *, beats=0, ticks=0, is_starting=False, step_s=0.1) -> bool:
    """Look at a process for some time; `beats` and `ticks` rise by so much with each look."""
    watchdog, now_s, count = Watchdog(), 1000.0, 0
    while now_s < 1000 + seconds:
        if watchdog.look(count * beats, count * ticks, now_s, is_starting=is_starting):
            return True
        now_s += step_s
        count += 1
    return False


@pytest.mark.parametrize(
    ("options", "is_hung"),
    [
        ({}, True),
        ({"beats": 1}, False),
        ({"ticks": 1}, False),  # native code that holds Python's lock
        ({"is_starting": True}, False),
        ({"step_s": 30}, False),  # the supervisor was stopped, or the machine slept
    ],
)
def test_a_process_hangs_after_silence_without_work(options, is_hung) -> None:
    assert looks(300, **options) is is_hung
    assert looks(59, **options) is False


@pytest.mark.parametrize("options", [{"ticks": 1}, {"is_starting": True}])
def test_patience_ends(options) -> None:
    assert looks(60 * PATIENCE + 10, **options)


def test_the_use_of_the_processor_is_read() -> None:
    before = cpu_ticks(os.getpid())
    while cpu_ticks(os.getpid()) == before:
        sum(range(100_000))
    assert cpu_ticks(2**30) == 0
