import re
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadriga.store.journal.journal import HEADER_BYTES, read_frames, segment_paths
from quadriga.store.writing.writer import Writer
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness


def test_the_damaged_end_of_a_closed_segment_is_kept_apart(
    file_store: StoreHarness, record
) -> None:
    file_store.journal.append([record(1), record(2), record(3)])
    (segment,) = segment_paths(file_store.journal_directory)
    data = bytearray(segment.read_bytes())
    data[-1] ^= 0xFF
    segment.write_bytes(data)
    assert file_store.commit_journal() == (2, 0, 0)
    assert file_store.commit_journal() == (0, 0, 0)  # open still: it may be an append under way
    file_store.journal.close()
    assert file_store.commit_journal() == (0, 0, 1)
    assert segment_paths(file_store.journal_directory) == []
    (dead_file,) = (file_store.root / "dead").iterdir()
    assert data.endswith(dead_file.read_bytes())
    assert b'"request-3"' in dead_file.read_bytes()


@pytest.mark.parametrize("state", ["open", "closed"])
@pytest.mark.parametrize("damaged", [[1], [2], [1, 2], [1, 3]], ids=str)
@pytest.mark.parametrize("at", [0, 3, 5, 9, 16, 20, 70])
def test_a_damaged_frame_alone_is_kept_apart(
    file_store: StoreHarness, caplog, damaged: list[int], at: int, state: str
) -> None:
    file_store.journal.append([make_record(seq) for seq in range(1, 6)])
    (segment,) = segment_paths(file_store.journal_directory)
    ends = [0, *(end for _, _, end in read_frames(segment))]
    data = bytearray(segment.read_bytes())
    for seq in damaged:
        data[ends[seq - 1] + at] ^= 0xFF
    segment.write_bytes(data)
    if state == "closed":
        file_store.journal.close()
    parts = sum(seq - 1 not in damaged for seq in damaged)  # neighbours are kept together
    assert file_store.commit_journal() == (5 - len(damaged), 0, parts)
    assert file_store.stored_ids() == [seq for seq in range(1, 6) if seq not in damaged]
    dead_files = sorted((file_store.root / "dead").iterdir())
    assert b"".join(path.read_bytes() for path in dead_files) == b"".join(
        data[ends[seq - 1] : ends[seq]] for seq in damaged
    )
    assert len([r for r in caplog.records if "is damaged" in r.getMessage()]) == parts
    if at in (0, 3, 5, 9, 70):
        assert all(re.search(rf"records \(.*\b{seq}\b.*\)", caplog.text) for seq in damaged)
    (file_store.root / "store.db").unlink()
    assert file_store.commit_journal() == (
        (5 - len(damaged), 0, 0) if state == "open" else (0, 0, 0)
    )  # said once


class Damage(NamedTuple):
    """Something that happens to the bytes of a segment."""

    where: float
    bytes_lost: int
    bytes_come: bytes


_DAMAGE = st.lists(
    st.builds(
        Damage,
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 400),
        st.binary(max_size=40) | st.sampled_from([b"\0" * 400, b'{"seq":1,', b"}\x10\0\0\0"]),
    ),
    max_size=4,
)


@pytest.fixture(scope="module")
def lasting_store(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[StoreHarness, Writer]]:
    root = tmp_path_factory.mktemp("place")
    store = StoreHarness(root, f"sqlite:///{root}/store.db")
    writer = Writer(store.journal_directory, store.url)
    yield store, writer
    writer.close()
    store.journal.close()


_FIRST_SEQS = count(1, 100)


@settings(max_examples=150)
@given(
    damages=_DAMAGE, records=st.integers(1, 12), state=st.sampled_from(["open", "closed", "torn"])
)
def test_whatever_the_damage_every_other_frame_is_moved_once(
    lasting_store: tuple[StoreHarness, Writer], damages: list[Damage], records: int, state: str
) -> None:
    store, writer = lasting_store
    store.journal.close()
    writer.drain()
    before, moved_before = store.stored_ids(), writer.records_committed
    seqs = [*range(next(_FIRST_SEQS), next(_FIRST_SEQS))][:records]
    store.journal.append([make_record(seq) for seq in seqs])
    (segment,) = segment_paths(store.journal_directory)
    data = segment.read_bytes()
    frames_before = [
        data[end - len(payload) - HEADER_BYTES : end] for _, payload, end in read_frames(segment)
    ]
    for damage in damages:
        at = int(damage.where * len(data))
        data = data[:at] + damage.bytes_come + data[at + damage.bytes_lost :]
    if state == "torn":
        data = data[:-100]
    segment.write_bytes(data)
    if state == "closed":
        store.journal.close()
    for _ in range(2):
        writer.drain()
    left = [seq for seq, frame in zip(seqs, frames_before, strict=True) if frame in data]
    assert store.stored_ids() == before + left
    assert writer.records_committed - moved_before == len(left)
