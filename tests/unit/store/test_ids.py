import time

import pytest

from quadriga.store.records.errors import JournalError
from quadriga.store.records.ids import LARGEST_ID, MAX_LEAD_MS, IdSource, smallest_id_at, time_ms
from quadriga.store.records.records import timestamp_text
from tests.background import at_once

DAY_MS = 86_400_000


def test_ids_rise_and_carry_their_worker() -> None:
    source = IdSource(1023)
    ids = [source.next() for _ in range(20_000)]  # more than fit the milliseconds they take
    assert ids == sorted(set(ids))
    assert {number >> 12 & 1023 for number in ids} == {1023}


def test_threads_never_share_an_id() -> None:
    source = IdSource(0)
    ids: list[int] = []
    at_once([lambda: ids.extend([source.next() for _ in range(2000)])] * 4)
    assert len(set(ids)) == 8000


def test_ids_stay_above_the_newest_stored_when_the_clock_stepped_back() -> None:
    stored_ms = time.time_ns() // 1_000_000 + 30_000
    source = IdSource(6, floor=smallest_id_at(stored_ms) | 1023 << 12 | 5)
    ids = [source.next() for _ in range(4097)]  # one more than fit a millisecond
    assert ids == sorted(set(ids))
    assert [time_ms(ids[place]) - stored_ms for place in (0, 4095, 4096)] == [1, 1, 2]
    assert {number >> 12 & 1023 for number in ids} == {6}


@pytest.mark.parametrize("is_assigned", [True, False], ids=["newest stored", "change followed"])
def test_ids_follow_none_that_is_more_than_a_minute_ahead(*, is_assigned: bool) -> None:
    now_ms = time.time_ns() // 1_000_000
    future_id = smallest_id_at(now_ms + 400 * DAY_MS)
    source = IdSource(6, future_id if is_assigned else 0)
    next_id = source.next(0 if is_assigned else future_id)
    assert now_ms <= time_ms(next_id) < now_ms + MAX_LEAD_MS


def test_without_a_number_no_id_is_given_out() -> None:
    source = IdSource()
    with pytest.raises(JournalError, match="cannot give an id: the database has not answered"):
        source.next()
    source.assign(7)
    assert source.next() >> 12 & 1023 == 7


@pytest.mark.parametrize("worker", [-1, 1024])
def test_a_worker_out_of_range_is_refused(worker: int) -> None:
    with pytest.raises(ValueError, match=f"expected worker to be 0 to 1023, got {worker}"):
        IdSource(worker)


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (1_735_689_600_000, "2025-01-01T00:00:00.000Z"),
        (1_769_860_800_007, "2026-01-31T12:00:00.007Z"),
    ],
)
def test_an_id_knows_its_time(moment: int, text: str) -> None:
    assert time_ms(smallest_id_at(moment) | 4095) == moment
    assert timestamp_text(moment) == text
    assert smallest_id_at(-1) == smallest_id_at(0) == 0
    assert smallest_id_at(1 << 60) == LARGEST_ID
