"""Halves of events: kept once, bounded for each team, known when they come again."""

import os
import time
from contextlib import nullcontext

import pytest

from quadriga.store.external.event_halves import DONE_S, EventHalves, Pair
from quadriga.store.records.errors import JournalError

PAIR = Pair("", "ab" * 32)


@pytest.fixture
def halves(tmp_path):
    return EventHalves(tmp_path / "events", max_bytes=1000, max_files=20)


def put(halves, pair, kind="request", data=b"x", key="") -> None:
    with halves.alone(pair):
        halves.put(pair, kind, data, key)


def test_the_first_of_a_half_stays(halves) -> None:
    put(halves, PAIR, data=b"first")
    put(halves, PAIR, data=b"second")
    assert (halves.get(PAIR, "request"), halves.get(PAIR, "response")) == (b"first", None)
    assert halves.counts() == (1, 5)


def test_a_pair_that_is_stored_is_known_for_a_while(halves, tmp_path) -> None:
    put(halves, PAIR)
    halves.finish(PAIR, b"[1]")
    assert (halves.done(PAIR), halves.get(PAIR, "request"), halves.counts()) == (
        b"[1]",
        None,
        (0, 0),
    )
    old_s = time.time() - DONE_S - 1
    os.utime(tmp_path / "events" / ".none" / "done" / PAIR.digest, (old_s, old_s))
    assert list(halves.waiting(0)) == []
    assert halves.done(PAIR) is None


def test_a_flood_of_a_team_ends_at_its_limit_and_leaves_other_teams_alone(halves, tmp_path) -> None:
    for number in range(11):
        put(halves, Pair("flood", f"{number:064x}"), data=b"x" * 90)
    with pytest.raises(JournalError, match="at most 1000 bytes and 20 halves"):
        put(halves, Pair("flood", "ff" * 32), data=b"x" * 90)
    for number in range(20):
        put(halves, Pair("many", f"{number:063x}0"), data=b"")
    with pytest.raises(JournalError):
        put(halves, Pair("many", "ff" * 32), data=b"")
    names = [path.name for path in (tmp_path / "events" / "many").iterdir()]
    assert len([name for name in names if name.endswith(".request")]) == 20
    put(halves, Pair("other", "00" * 32), data=b"x" * 900)
    put(halves, PAIR, data=b"x" * 900)


def test_a_flood_of_a_key_leaves_room_to_the_other_keys_of_its_team(halves) -> None:
    for number in range(5):
        put(halves, Pair("a", f"{number:064x}"), data=b"", key="flood")
    for key in ("flood", "other", ""):
        with (
            pytest.raises(JournalError, match=r"5 halves .* \(key flood\)")
            if key == "flood"
            else nullcontext()
        ):
            put(halves, Pair("a", "ff" * 32), data=b"", key=key)
    with pytest.raises(JournalError, match=r"at most 250 bytes .* \(key large\)"):
        put(halves, Pair("b", "ee" * 32), data=b"x" * 251, key="large")
    halves.finish(Pair("a", "0" * 64), b"[1]")
    put(halves, Pair("a", "dd" * 32), data=b"", key="flood")


def test_all_teams_together_have_a_limit(halves) -> None:
    for team in "abcd":
        put(halves, Pair(team, "00" * 32), data=b"x" * 1000)
    with pytest.raises(JournalError, match=r"at most 4000 bytes and 80 halves .* \(all\)"):
        put(halves, PAIR)


def test_the_limit_holds_for_every_process(halves, tmp_path) -> None:
    put(halves, PAIR, data=b"x" * 600)
    other = EventHalves(tmp_path / "events", max_bytes=1000)
    with pytest.raises(JournalError):
        put(other, PAIR, "response", b"x" * 600)


def test_only_what_waits_long_enough_is_alone(halves) -> None:
    put(halves, PAIR)
    assert list(halves.waiting(60)) == []
    (waiting,) = halves.waiting(0)
    assert (waiting.pair, waiting.kind) == (PAIR, "request")


def test_a_folder_that_cannot_be_written_is_an_error_of_the_journal(tmp_path) -> None:
    (tmp_path / "events").write_text("a file")
    with pytest.raises(JournalError, match="cannot keep an event"):
        put(EventHalves(tmp_path / "events"), PAIR)


def test_pairs_that_are_stored_take_no_room_of_halves(halves) -> None:
    for number in range(50):
        pair = Pair("", f"{number:064x}")
        put(halves, pair, data=b"x" * 900)
        halves.finish(pair, b"[1]")
    assert halves.counts() == (0, 0)
