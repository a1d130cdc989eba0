import os
import signal
import subprocess
import sys
import threading

import pytest

from quadriga.engine.measures import shared_counts
from quadriga.engine.measures.shared_counts import CELLS, SharedCounts

OTHER = ("other",)

WORKER = """
import sys
from quadriga.engine.measures.shared_counts import SharedCounts
row = SharedCounts(2, int(sys.argv[1]), int(sys.argv[2])).row(("requests", "v2"), ("other",))
print("ready", flush=True)
while True:
    for line in sys.stdin:
        row.add(0, int(line))
        print("done", flush=True)
"""


def totals(counts: SharedCounts) -> dict[tuple[str, ...], list[int]]:
    return {row.name: row.cells for row in counts.totals()}


class Worker:
    """Another process that adds the numbers that it is sent."""

    def __init__(self, number: int, descriptor: int) -> None:
        command = [sys.executable, "-c", WORKER, str(number), str(descriptor)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, pass_fds=[descriptor], text=True
        )
        assert self._line() == "ready\n"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def add(self, amount: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{amount}\n")
        self.process.stdin.flush()
        assert self._line() == "done\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


def test_a_sum_does_not_fall_when_a_process_is_killed() -> None:
    counts = SharedCounts(2)
    first, second = Worker(0, counts.descriptor), Worker(1, counts.descriptor)
    try:
        first.add(3)
        second.add(4)
        assert totals(counts) == {("requests", "v2"): [7] + (CELLS - 1) * [0]}
        first.kill()
        assert totals(counts)["requests", "v2"][0] == 7
        first = Worker(0, counts.descriptor)
        first.add(5)
        second.add(1)
        assert totals(counts)["requests", "v2"][0] == 13
    finally:
        first.kill()
        second.kill()


def test_a_process_that_is_killed_while_it_adds_a_row_keeps_no_other_from_adding_one() -> None:
    counts = SharedCounts(2)
    code = """
import os, sys
from quadriga.engine.measures.shared_counts import SharedCounts, exclusive
counts = SharedCounts(2, 1, int(sys.argv[1]))
counts._cells = None  # it has the lock when it fails to write the row
with exclusive(counts.descriptor):
    print("locked", flush=True)
    os.kill(os.getpid(), 9)
"""
    child = subprocess.run(
        [sys.executable, "-c", code, str(counts.descriptor)],
        pass_fds=[counts.descriptor],
        stdout=subprocess.PIPE,
        check=False,
    )
    assert (child.stdout, child.returncode) == (b"locked\n", -signal.SIGKILL)
    counts.row(("a",), OTHER).add(0)
    assert totals(counts)["a",][0] == 1


def test_processes_that_add_the_same_row_share_it() -> None:
    first = SharedCounts(2)
    second = SharedCounts(2, 1, first.descriptor)
    first.row(("a", "1"), OTHER).add(0)
    second.row(("b", "1"), OTHER).add(0)
    second.row(("a", "1"), OTHER).add(0)
    first.row(("b", "1"), OTHER).add(2, 5)
    expected = {("a", "1"): [2, 0, 0], ("b", "1"): [1, 0, 5]}
    for counts in (first, second):
        assert {name: cells[:3] for name, cells in totals(counts).items()} == expected


def test_what_finds_no_room_counts_together(monkeypatch, caplog) -> None:
    monkeypatch.setattr(shared_counts, "MAX_ROWS", 6)
    monkeypatch.setattr(shared_counts, "OTHER_ROWS", 2)
    counts = SharedCounts()
    for number in range(50):
        counts.row(("model", str(number)), ("model", "other")).add(0)
        counts.row(("stage", str(number)), ("stage", "other")).add(0)
    found = {name: cells[0] for name, cells in totals(counts).items()}
    own = {(kind, str(number)): 1 for number in (0, 1) for kind in ("model", "stage")}
    assert found == {**own, ("model", "other"): 48, ("stage", "other"): 48}
    assert len(caplog.messages) == 1
    with pytest.raises(ValueError, match="at most 2 rows"):
        counts.row(("model", "99"), ("one", "too many"))


@pytest.mark.parametrize(
    "name",
    ["", "\0", 'a"b\\c\n', "ä" * 100, "\U0001f984" * 60, "{}[],", "other", "1" * 700],
)
def test_any_name_comes_back_as_it_was(name: str) -> None:
    counts = SharedCounts(2)
    counts.row((name, "1"), OTHER).add(0)
    assert totals(SharedCounts(2, 1, counts.descriptor))[name, "1"][0] == 1


def test_a_name_that_is_no_text_is_written_so_that_a_page_can_have_it() -> None:
    counts = SharedCounts()
    counts.row((os.fsdecode(b"\xff"), "1"), OTHER).add(0)
    counts.row((os.fsdecode(b"\xff"), "1"), OTHER).add(0)
    assert totals(counts)["\\udcff", "1"][0] == 2


def test_a_name_that_is_too_long_counts_with_others() -> None:
    counts = SharedCounts()
    counts.row(("x" * 5000, "1"), OTHER).add(0)
    assert list(totals(counts)) == [OTHER]


def test_a_model_that_is_loaded_again_goes_on_counting() -> None:
    counts = SharedCounts()
    for _ in range(3):
        counts.row(("model", "m", "1"), OTHER).add(4, 2)
    assert totals(counts)["model", "m", "1"][4] == 6


def test_threads_lose_no_count() -> None:
    counts = SharedCounts()
    rows = [counts.row(("a",), OTHER) for _ in range(4)]

    def work(number: int) -> None:
        for _ in range(5000):
            rows[number].add(0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals(counts)["a",][0] == 20_000
