import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest

from quadriga.store.journal import journal as module
from quadriga.store.journal.journal import (
    Journal,
    is_closed,
    lag_bytes,
    latest_seq,
    read_frames,
    segment_paths,
)
from quadriga.store.records.errors import JournalError
from quadriga.store.records.records import InferenceRecord
from tests.background import at_once


def seqs(directory: Path) -> list[int]:
    return [seq for path in segment_paths(directory) for seq, _, _ in read_frames(path)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_an_empty_or_missing_journal_holds_nothing(directory: Path) -> None:
    assert (segment_paths(directory), latest_seq(directory), lag_bytes(directory, {})) == ([], 0, 0)
    Journal(directory, 0).close()
    assert segment_paths(directory) == []
    assert list(read_frames(directory / "0000-1.journal")) == []


def test_records_come_back_as_appended(directory: Path, record) -> None:
    journal = Journal(directory, 7)
    written = [record(1, metadata={"a": "é"}), record(2), record(5)]
    journal.append(written[:2])
    journal.append(written[2:])
    (segment,) = segment_paths(directory)
    read = list(read_frames(segment))
    assert [msgspec.json.decode(payload, type=InferenceRecord) for _, payload, _ in read] == written
    assert [seq for seq, _, _ in read] == [1, 2, 5]
    assert list(read_frames(segment, read[0][2])) == read[1:]
    assert latest_seq(directory) == 5
    assert lag_bytes(directory, {}) == segment.stat().st_size == read[-1][2]
    assert lag_bytes(directory, {segment.name: read[0][2]}) == read[-1][2] - read[0][2]


def test_a_segment_is_closed_only_when_its_journal_is(directory: Path, record) -> None:
    journal = Journal(directory, 0)
    journal.append([record(1)])
    assert not is_closed(segment_paths(directory)[0])
    journal.close()
    journal.close()
    assert is_closed(segment_paths(directory)[0])
    journal.append([record(2)])
    assert [is_closed(path) for path in segment_paths(directory)] == [True, False]
    assert seqs(directory) == [1, 2]


def test_a_full_segment_is_followed_by_the_next(directory: Path, record) -> None:
    journal = Journal(directory, 0, segment_bytes=1000)
    for seq in range(1, 8):
        journal.append([record(seq)])
    journal.append([record(seq) for seq in range(8, 20)])  # larger than a segment, yet in one piece
    sizes = [path.stat().st_size for path in segment_paths(directory)]
    assert len(sizes) > 3
    assert all(size <= 1000 for size in sizes[:-1])
    assert seqs(directory) == list(range(1, 20))


def test_segments_sort_by_worker_and_time(directory: Path, record) -> None:
    for seq, worker in enumerate((12, 3, 3, 1023), 1):
        journal = Journal(directory, worker)
        journal.append([record(seq)])
        journal.close()
    assert seqs(directory) == [2, 3, 1, 4]


@pytest.mark.parametrize("lost", [1, 20, 400])
def test_a_torn_tail_ends_a_segment(directory: Path, record, lost: int) -> None:
    journal = Journal(directory, 0)
    journal.append([record(1), record(2)])
    journal.close()
    (segment,) = segment_paths(directory)
    ends = [end for _, _, end in read_frames(segment)]
    with segment.open("r+b") as file:
        file.truncate(ends[1] - lost)
    assert [end for _, _, end in read_frames(segment)] == ends[:1]


@pytest.mark.parametrize("at", [0, 3, 5, 9, 16, 20, 60])
@pytest.mark.parametrize(("damaged", "left"), [([0], [1, 2, 3]), ([1], [0, 2, 3]), ([3], [0, 1, 2]),
    ([1, 2], [0, 3]), ([2, 3], [0, 1]), ([0, 2], [1, 3]), ([0, 1, 2, 3], [])])  # fmt: skip
def test_damage_costs_no_other_frame(directory: Path, record, at: int, damaged, left) -> None:
    journal = Journal(directory, 0)
    journal.append([record(seq) for seq in range(4)])
    (segment,) = segment_paths(directory)
    frames_before = list(read_frames(segment))
    begins = [0, *(end for _, _, end in frames_before)]
    data = bytearray(segment.read_bytes())
    for number in damaged:
        data[begins[number] + at] ^= 0xFF
    segment.write_bytes(data)
    assert list(read_frames(segment)) == [frames_before[number] for number in left]


def test_a_frame_is_found_wherever_a_chunk_of_the_search_ends(
    directory: Path, record, monkeypatch
) -> None:
    journal = Journal(directory, 0)
    journal.append([record(1), record(2)])
    (segment,) = segment_paths(directory)
    second = list(read_frames(segment))[1:]
    data = bytearray(segment.read_bytes())
    data[0] ^= 1
    segment.write_bytes(data)
    for chunk_bytes in range(7, 40):
        monkeypatch.setattr(module, "_CHUNK_BYTES", chunk_bytes)
        assert list(read_frames(segment)) == second


@pytest.mark.parametrize("tail", [b"\0" * 5000, b'{"seq":' * 1000, b"\xff" * 15, b"\0" * 16])
def test_nothing_is_found_in_a_tail_without_frames(directory: Path, record, tail: bytes) -> None:
    journal = Journal(directory, 0)
    journal.append([record(1)])
    (segment,) = segment_paths(directory)
    frames_before = list(read_frames(segment))
    segment.write_bytes(segment.read_bytes() + tail)
    assert list(read_frames(segment)) == frames_before


def test_threads_never_mix_their_frames(directory: Path, record) -> None:
    journal = Journal(directory, 0, segment_bytes=20_000)

    def append(thread: int) -> None:
        for number in range(50):
            first = thread * 1000 + number * 2
            journal.append([record(first), record(first + 1)])

    at_once([partial(append, number) for number in range(4)])
    journaled_seqs = seqs(directory)
    assert sorted(journaled_seqs) == [t * 1000 + n for t in range(4) for n in range(100)]
    assert all(
        second == first + 1
        for first, second in zip(journaled_seqs[::2], journaled_seqs[1::2], strict=True)
    )


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from conftest import make_record
from quadriga.store.records.errors import JournalError
from quadriga.store.journal.journal import Journal

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(Path(sys.argv[1]), 0)
journal.append([make_record(1)])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for seqs in ([2, 3, 4], [5, 6, 7]):
    try:
        journal.append([make_record(seq) for seq in seqs])
    except JournalError as error:
        print(error)
journal.append([make_record(8)])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.append([make_record(seq) for seq in (9, 10, 11)])
"""


def test_a_full_disk_refuses_a_request_whole_and_later_ones_succeed(directory: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(directory), str(Path(__file__).parent)],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert child.stdout.count("cannot append") == 2
    assert seqs(directory) == [1, 8, 9, 10, 11]
    assert all(
        list(read_frames(p))[-1][2] == p.stat().st_size
        for p in segment_paths(directory)
        if p.stat().st_size
    )


def test_a_journal_that_lost_its_folder_says_so(directory: Path, record) -> None:
    journal = Journal(directory, 0)
    directory.rmdir()
    with pytest.raises(JournalError, match="No such file") as caught:
        journal.append([record(1)])
    assert caught.value.status == 503


def test_a_segment_that_was_removed_takes_nothing_more(directory: Path, record) -> None:
    journal = Journal(directory, 0)
    journal.append([record(1)])
    segment_paths(directory)[0].unlink()
    journal.append([record(2)])
    journal.close()
    assert [seq for path in segment_paths(directory) for seq, _, _ in read_frames(path)] == [2]


def test_a_segment_whose_folder_was_moved_takes_nothing_more(directory: Path, record) -> None:
    journal = Journal(directory, 0)
    journal.append([record(1)])
    directory.rename(directory.with_name("elsewhere"))
    with pytest.raises(JournalError, match="No such file"):
        journal.append([record(2)])
    directory.mkdir()
    journal.append([record(3)])
    assert seqs(directory) == [3]
