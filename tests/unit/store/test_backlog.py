import threading
import time

import pytest

from quadriga.store.journal.durability import Backlog
from quadriga.store.records.errors import JournalError


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("quadriga.store.journal.durability.RETRY_S", 0.001)


def test_jobs_are_done_in_their_order_by_another_thread() -> None:
    done: list[tuple[int, int]] = []
    waiting = Backlog(1 << 20)
    for number in range(100):
        waiting.put(lambda number=number: done.append((number, threading.get_ident())), 1)
    waiting.close()
    assert [number for number, _ in done] == list(range(100))
    assert threading.get_ident() not in {thread for _, thread in done}
    Backlog(1 << 20).close()


def test_no_more_bytes_wait_than_may_but_one_job_always_may() -> None:
    go_on = threading.Event()
    waiting = Backlog(limit_bytes=100)
    waiting.put(go_on.wait, 1000)
    with pytest.raises(JournalError, match="expected at most 100 bytes in memory"):
        waiting.put(lambda: None, 1)
    go_on.set()
    waiting.close()
    assert waiting.lost == 0


def test_a_job_is_tried_until_the_journal_takes_it() -> None:
    tries: list[int] = []
    written = threading.Event()

    def write() -> None:
        tries.append(1)
        if len(tries) < 5:
            raise JournalError("full")
        written.set()

    waiting = Backlog(1 << 20)
    waiting.put(write, 1)
    assert written.wait(10)
    waiting.close()
    assert (len(tries), waiting.lost) == (5, 0)


def test_what_cannot_be_done_is_counted_and_stops_no_other(caplog) -> None:
    done = threading.Event()

    def fault() -> None:
        raise ValueError("no such thing")

    def full() -> None:
        raise JournalError("still full")

    waiting = Backlog(1 << 20)
    waiting.put(fault, 1)
    waiting.put(done.set, 1)
    assert done.wait(10)
    waiting.put(full, 1)
    waiting.put(full, 1)
    waiting.close()
    assert waiting.lost == 3
    assert "no such thing" in caplog.text


def test_what_fails_while_the_backlog_closes_is_tried_once_more() -> None:
    waiting, begun, closing = Backlog(1 << 20), threading.Event(), threading.Event()
    tries = []

    def task():
        tries.append(1)
        if len(tries) == 1:
            begun.set()
            assert closing.wait(5)
            time.sleep(0.1)  # until the other thread waits for the end
            raise JournalError("no space left")

    waiting.put(task, 1)
    assert begun.wait(5)
    closer = threading.Thread(target=waiting.close)
    closer.start()
    closing.set()
    closer.join(5)
    assert len(tries) == 2
    assert waiting.lost == 0
