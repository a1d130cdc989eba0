"""Retries: bounded delays, the reason for whoever asks, and a log line a minute at most."""

import errno
import logging

import pytest

from quadriga.engine.measures import readiness
from quadriga.engine.measures.readiness import MAX_DELAY_S, retry_until_done


class Failing:
    """A task that fails some times, and then works."""

    def __init__(self, times: int, error: Exception) -> None:
        self.left = times
        self.error = error

    def __call__(self) -> str:
        if self.left:
            self.left -= 1
            raise self.error
        return "done"


def test_it_is_tried_with_growing_delays_until_it_works(caplog) -> None:
    delays: list[float] = []
    reasons: list[str] = []
    task = Failing(20, OSError(errno.ENOSPC, "No space left on device", "/secret/path"))
    assert retry_until_done("load the models", task, reasons.append, sleep=delays.append) == "done"
    assert delays == sorted(delays)
    assert delays[0] < 1
    assert delays[-1] == MAX_DELAY_S
    assert set(reasons) == {"cannot load the models yet: No space left on device"}
    assert len(caplog.records) == 1


def test_the_log_repeats_it_after_a_minute(caplog, monkeypatch) -> None:
    now_s = iter(range(1000, 2000, 25))
    monkeypatch.setattr(readiness.time, "monotonic", lambda: float(next(now_s)))
    task = Failing(6, OSError(errno.ENOSPC, "No space left on device"))
    with caplog.at_level(logging.ERROR):
        retry_until_done("load the models", task, lambda _: None, sleep=lambda _: None)
    assert len(caplog.records) == 2  # within 150 s


def test_any_other_fault_is_tried_again_and_not_described() -> None:
    reasons: list[str] = []
    task = Failing(1, ValueError("/secret/path"))
    assert retry_until_done("load the models", task, reasons.append, sleep=lambda _: None) == "done"
    assert reasons == ["cannot load the models yet: the log of the server has the reason"]


def test_what_no_retry_can_help_is_raised() -> None:
    with pytest.raises(ValueError, match="wrong"):
        retry_until_done(
            "open the store", Failing(1, ValueError("wrong")), lambda _: None, errors=OSError
        )
