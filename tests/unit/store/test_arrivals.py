"""What arrives is found once, in the order of ids, whenever its writer commits it, and within the scope."""

import random
from typing import Any

import pytest

from quadriga.store.browsing.arrivals import (
    LATE_MS,
    MAX_REMEMBERED,
    MOST_AT_ONCE,
    MOST_PER_S,
    SETTLE_MS,
    ArrivalsRequest,
    Arrived,
    NewInferences,
)
from quadriga.store.journal.journal import Journal
from quadriga.store.query.inferences import MAX_SHORT_CHARACTERS
from quadriga.store.query.request import request_from_url
from quadriga.store.query.sql.search import Budget
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.store.records.ids import IMPORT_WORKER, smallest_id_at
from quadriga.store.records.scope import Scope
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

NOW_MS = 1_790_000_000_000


def id_at(ms: int, worker: int = 0, number: int = 0) -> int:
    """Return an id of a worker, some milliseconds after the beginning of the test."""
    return smallest_id_at(NOW_MS + ms) | worker << 12 | number


def look(
    arrivals: NewInferences, store: StoreHarness, ms: int, scope: Scope | None = None
) -> Arrived:
    """Look at a time, some milliseconds after the beginning of the test."""
    inferences = store.inferences if scope is None else store.inferences.within(scope)
    return arrivals.look(inferences, NOW_MS + ms)


def listen(store: StoreHarness, where: Any = None, after: str | None = None) -> NewInferences:
    """Begin to listen at the beginning of the test."""
    arrivals = NewInferences(where, after)
    look(arrivals, store, 0)
    return arrivals


def test_only_what_is_new_arrives_once_and_in_order(store: StoreHarness) -> None:
    store.commit(make_record(id_at(-5000)), make_record(id_at(-1500)))
    arrivals = listen(store)
    assert look(arrivals, store, 100).ids == []
    new = [id_at(300), id_at(200), id_at(250, 1)]
    store.commit(*map(make_record, new))
    assert look(arrivals, store, 900).ids == []  # a lower id may follow
    assert look(arrivals, store, 1300).ids == sorted(new)
    assert look(arrivals, store, 2000).ids == []


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        (None, [0, 1, 2, 3]),
        ("", [0, 1, 2, 3]),
        ({}, [0, 1, 2, 3]),
        ("meta.camera=north", [0, 2]),
        ({"meta.camera": "north"}, [0, 2]),
        ({"and": ["meta.camera=east", "meta.number=ge:2"]}, [3]),
        ("(meta.number=0|meta.number=3)", [0, 3]),
        ("ts=ge:-1h & model=shapes-detector", [0, 1, 2, 3]),
        ("meta.camera=none", []),
    ],
    ids=str,
)
def test_what_a_filter_finds_arrives(
    store: StoreHarness, where: Any, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: (NOW_MS + 3000) * 1_000_000)
    store.commit(make_record(id_at(-5000), metadata={"camera": "north", "number": 0}))
    arrivals = listen(store, where)
    ids = [id_at(100 + number) for number in range(4)]
    cameras = ["north", "east", "north", "east"]
    store.commit(
        *(
            make_record(seq, metadata={"camera": camera, "number": number})
            for number, (seq, camera) in enumerate(zip(ids, cameras, strict=True))
        )
    )
    assert look(arrivals, store, 3000).ids == [ids[number] for number in numbers]


def test_ids_that_two_writers_commit_in_any_order_arrive_once(store: StoreHarness) -> None:
    chance, arrivals = random.Random(3), listen(store)
    by_commit: dict[int, list[int]] = {}
    for ms in range(0, 20_000, 50):
        for worker in (1, 2):  # the second is a server whose writer is up to 15 s behind
            delay_ms = chance.randrange(300) if worker == 1 else chance.randrange(15_000)
            by_commit.setdefault((ms + delay_ms) // 500, []).append(id_at(ms, worker))
    found: list[int] = []
    for turn in range(80):
        store.commit(*map(make_record, by_commit.get(turn, [])))
        found += look(arrivals, store, (turn + 1) * 500).ids
    assert sorted(found) == sorted(seq for ids in by_commit.values() for seq in ids)
    assert len(found) == 800
    assert found != sorted(found)  # some were late, in fact


def test_what_is_later_than_may_be_does_not_arrive_any_more(store: StoreHarness) -> None:
    arrivals = listen(store)
    look(arrivals, store, LATE_MS + 5000)
    store.commit(make_record(id_at(1)), make_record(id_at(6000)))
    assert look(arrivals, store, LATE_MS + 5500).ids == [id_at(6000)]


def test_no_id_is_passed_while_a_lower_one_waits_in_the_journal(store: StoreHarness) -> None:
    arrivals = listen(store)
    store.commit(make_record(id_at(10)))
    other = Journal(store.journal_directory, 1)
    other.append([make_record(id_at(2000, 1)), make_record(id_at(2001, 1))])
    assert look(arrivals, store, 8000).ids == [id_at(10)]
    assert arrivals.position == id_at(2000 - SETTLE_MS)
    store.commit(make_record(id_at(9000)))  # which commits what waited, too
    other.append([make_record(id_at(9001, 1))])
    assert look(arrivals, store, 60_000).ids == [id_at(2000, 1), id_at(2001, 1)]
    assert arrivals.position == id_at(9001 - SETTLE_MS)
    store.writer.drain()
    assert look(arrivals, store, 60_000).ids == [id_at(9000), id_at(9001, 1)]
    other.close()


def test_an_import_that_waits_does_not_hold_up_what_arrives(store: StoreHarness) -> None:
    arrivals = listen(store)
    store.commit(make_record(id_at(10)))
    imported = Journal(store.journal_directory, IMPORT_WORKER)
    imported.append([make_record(id_at(-90_000_000, IMPORT_WORKER))])
    imported.close()
    assert look(arrivals, store, 2000).ids == [id_at(10)]


def test_it_goes_on_behind_an_id_without_a_gap(store: StoreHarness) -> None:
    ids = [id_at(ms) for ms in range(-60_000, -2000, 200)]
    store.commit(*map(make_record, ids))
    for number in (0, 1, 150, len(ids) - 1):
        arrivals = NewInferences(None, str(ids[number]))
        assert look(arrivals, store, 0).ids == ids[number + 1 :]
        late = ids[number] - 1  # which the listener has not got either
        assert look(arrivals, store, 100).ids == []
        store.commit(make_record(late))
        expected = [late] if late > arrivals.position - (LATE_MS << 22) else []
        assert look(arrivals, store, 200).ids == expected
    assert look(NewInferences(None, "0"), store, 0).skipped == 0


def test_an_id_of_the_future_is_that_of_now(store: StoreHarness) -> None:
    arrivals = listen(store, after=str((1 << 63) - 1))
    store.commit(make_record(id_at(10)))
    assert look(arrivals, store, 2000).ids == [id_at(10)]


def test_a_clock_that_was_an_hour_ahead_hides_nothing_and_repeats_nothing(
    store: StoreHarness,
) -> None:
    arrivals, hour_ms = listen(store), 3_600_000
    store.commit(make_record(id_at(hour_ms)))
    assert look(arrivals, store, hour_ms + 2000).ids == [id_at(hour_ms)]
    assert look(arrivals, store, 4000).ids == []
    store.commit(make_record(id_at(4500)))
    assert look(arrivals, store, 6000).ids == [id_at(4500)]
    ids = []
    for ms in range(7000, hour_ms + 10_000, 20_000):
        ids += look(arrivals, store, ms).ids
    assert ids == []


def test_of_too_many_the_newest_arrive_and_the_others_are_counted(store: StoreHarness) -> None:
    arrivals = listen(store)
    ids = [id_at(1, number=number) for number in range(MOST_PER_S + 60)]
    store.commit(*map(make_record, ids))
    assert look(arrivals, store, 1100) == Arrived(ids[60:], 60)
    assert look(arrivals, store, 1600) == Arrived([])
    after_a_break = NewInferences(None, str(id_at(-10_000)))
    assert look(after_a_break, store, 1600) == Arrived(ids)  # as many as may in the time since then


def test_of_very_many_it_says_that_there_may_be_more(store: StoreHarness) -> None:
    ids = [id_at(ms) for ms in range(MAX_REMEMBERED + 100)]
    store.commit(*map(make_record, ids))
    arrivals = NewInferences(None, str(id_at(-10_000)))
    arrived = look(arrivals, store, 60_000)
    assert arrived.ids == ids[-MOST_AT_ONCE:]
    assert (arrived.skipped, arrived.is_exact) == (MAX_REMEMBERED - MOST_AT_ONCE, False)
    store.commit(make_record(id_at(60_000)))
    assert look(arrivals, store, 62_000) == Arrived([id_at(60_000)])


def test_a_filter_that_no_index_bounds_is_bounded_by_time(store: StoreHarness) -> None:
    store.inferences.budget = Budget(rows=10, first_batch_rows=10)
    store.commit(*(make_record(id_at(-ms)) for ms in range(2000, 2100)))
    arrivals = listen(store, {"not": {"meta.camera": "north"}})
    store.commit(make_record(id_at(10)))
    assert look(arrivals, store, 2000).ids == [id_at(10)]


def test_only_what_the_scope_admits_arrives(store: StoreHarness) -> None:
    scope = Scope("a", ("shapes-*",))
    arrivals = NewInferences(None)
    look(arrivals, store, 0, scope)
    store.commit(*(make_record(id_at(10 + n), team=team) for n, team in enumerate("abab")))
    arrived = look(arrivals, store, 2000, scope)
    assert arrived.ids == [id_at(10), id_at(12)]
    everything = [id_at(10 + n) for n in range(4)]
    of_a = store.inferences.within(scope).read_short(everything)
    assert [inference.id for inference in of_a] == [str(seq) for seq in arrived.ids]
    assert store.inferences.within(Scope("a", ("other",))).read_short(everything) == []
    assert len(store.inferences.read_short([*everything, 7])) == 4


def test_large_json_is_left_out_and_named(store: StoreHarness) -> None:
    large = [{"label": "x" * MAX_SHORT_CHARACTERS}]
    store.commit(
        make_record(id_at(1), predictions=large, metadata={"note": "y" * MAX_SHORT_CHARACTERS}),
        make_record(id_at(2), metadata={"note": "short"}),
    )
    cut, whole = store.inferences.read_short([id_at(2), id_at(1)])
    assert (cut.predictions, cut.metadata, cut.left_out) == (
        None,
        None,
        ["predictions", "metadata"],
    )
    assert bytes(whole.metadata) == b'{"note":"short"}'
    assert not whole.left_out


@pytest.mark.parametrize("after", ["", "x", "-1", "1" * 20, "٣", "1.5"])
def test_an_after_that_is_no_id_is_an_error(after: str) -> None:
    with pytest.raises(QueryError, match="expected after to be an id"):
        NewInferences(None, after)


def test_filters_are_read_as_in_every_url(file_store: StoreHarness) -> None:
    request = request_from_url("q=meta.camera%3Dnorth&after=12&meta.a=1", ArrivalsRequest)
    assert (request.where, request.after) == ({"and": ["meta.camera=north", '"meta.a"=1']}, "12")
    file_store.commit(make_record(id_at(1)))
    with pytest.raises(QueryError):
        listen(file_store, "(meta.altitude=1")
    with pytest.raises(QueryError):
        listen(file_store, {"nor": []})
    file_store.inferences._served = lambda: {"shapes-detector"}
    with pytest.raises(NotFoundError):
        listen(file_store, "model=none")
