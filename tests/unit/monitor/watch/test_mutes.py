"""Mutes of models: what they cover, when they end, whose they are, and what may not be muted."""

import stat
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from quadriga.monitor.watch.mutes import (
    MAX_DAYS,
    MAX_NAME_CHARACTERS,
    MAX_NOTE_CHARACTERS,
    MAX_SIGNALS,
    MuteBody,
    MuteStore,
    active_mute,
    decode_mute,
)
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scope

NOW_S = 1_790_000_000.0
HOUR_S = 3600.0


def at(seconds: float) -> str:
    return timestamp_text(int(seconds * 1000))


@pytest.fixture
def mutes(tmp_path):
    return MuteStore(tmp_path / "drift")


def put(mutes, hours=1.0, model="shapes", **fields):
    body = MuteBody(at(NOW_S + hours * HOUR_S), **fields)
    return mutes.put(model, body, "mara", NOW_S)


def test_a_mute_ends_at_its_time_by_itself(mutes, tmp_path):
    mute = put(mutes)
    assert (mute.until, mute.by, mute.at) == (at(NOW_S + HOUR_S), "mara", at(NOW_S))
    for seconds, is_muted in ((0, True), (HOUR_S - 0.001, True), (HOUR_S, False), (HOUR_S + 1, False)):  # fmt: skip
        found = mutes.active("shapes", NOW_S + seconds)
        assert found == (mute if is_muted else None), seconds
        assert active_mute(tmp_path / "drift", "shapes", NOW_S + seconds) == found
    assert mutes.get("shapes", NOW_S) == mute
    for call in (mutes.get, mutes.remove):
        with pytest.raises(NotFoundError, match="not muted"):
            call("shapes", NOW_S + HOUR_S)
    # A clock that was set back finds it again, as it was.
    assert mutes.active("shapes", NOW_S) == mute


def test_a_mute_is_replaced_and_removed(mutes, tmp_path):
    put(mutes, signals=["b", "a", "b"], note=" why ")
    mute = mutes.get("shapes", NOW_S)
    assert (mute.signals, mute.note) == (["a", "b"], "why")
    later = put(mutes, 5)
    assert mutes.get("shapes", NOW_S) == later
    (path,) = (tmp_path / "drift").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert mutes.remove("shapes", NOW_S) == later
    assert list((tmp_path / "drift").iterdir()) == []
    with pytest.raises(NotFoundError):
        mutes.remove("shapes", NOW_S)


def test_times_with_an_offset_are_the_same_moment(mutes):
    body = MuteBody("2026-09-21T17:13:20+02:00")
    assert mutes.put("shapes", body, "mara", NOW_S).until == "2026-09-21T15:13:20.000Z"


@pytest.mark.parametrize(
    "until",
    ["", "tomorrow", "now", "-1h", "2020-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-09-21T16:13:20",
     at(NOW_S), at(NOW_S + MAX_DAYS * 24 * HOUR_S + 1), "\u202e", "x" * 10_000],
)  # fmt: skip
def test_a_mute_ends_in_the_near_future_or_is_refused(mutes, tmp_path, until):
    with pytest.raises(QueryError, match="expected until to be"):
        mutes.put("shapes", MuteBody(until), "mara", NOW_S)
    assert not (tmp_path / "drift").exists()


def test_the_longest_mute_is_one(mutes):
    assert put(mutes, MAX_DAYS * 24).until == at(NOW_S + MAX_DAYS * 24 * HOUR_S)


@pytest.mark.parametrize(
    ("muted", "alarms", "is_covered"),
    [([], [], True), ([], ["a"], True), (["a"], ["a"], True), (["a", "b"], ["a"], True),
     (["a"], ["a", "b"], False), (["b"], ["a"], False), (["A"], ["a"], False)],
)  # fmt: skip
def test_a_mute_covers_what_it_names_or_everything(mutes, muted, alarms, is_covered):
    assert put(mutes, signals=muted).covers(alarms) is is_covered


@pytest.mark.parametrize("model", ["..", "a/b", "a b", "\u202ex", ".hidden", "ä" * 30])
def test_a_model_may_have_any_name(mutes, tmp_path, model):
    mute = put(mutes, model=model)
    assert mutes.get(model, NOW_S) == mute
    assert mutes.active("other", NOW_S) is None
    assert len(list((tmp_path / "drift").iterdir())) == 1


@pytest.mark.parametrize("model", ["", "x" * 300])
def test_a_name_that_is_none_is_refused(mutes, model):
    with pytest.raises(QueryError):
        put(mutes, model=model)
    with pytest.raises(QueryError):
        mutes.active(model)


def test_the_mute_of_a_team_is_not_that_of_another(mutes):
    north = mutes.within(Scope("north"))
    put(north)
    assert mutes.active("shapes", NOW_S) is None
    assert mutes.within(Scope("south")).active("shapes", NOW_S) is None
    assert mutes.within(Scope("north", ("shapes",))).active("shapes", NOW_S) is not None


def test_of_several_at_once_one_is_whole(mutes):
    with ThreadPoolExecutor(8) as threads:
        written = list(threads.map(lambda n: put(mutes, n + 1, note="x" * 50 * n), range(32)))
    assert mutes.get("shapes", NOW_S) in written


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": "shapes"}'])
def test_a_damaged_file_mutes_nothing(mutes, tmp_path, content):
    put(mutes)
    (path,) = (tmp_path / "drift").iterdir()
    path.write_bytes(content)
    assert mutes.active("shapes", NOW_S) is None


UNTIL = at(NOW_S + HOUR_S)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"until": 5}',
        *(msgspec.json.encode({"until": UNTIL} | extra) for extra in (
            {"signals": "a"}, {"signals": [5]}, {"signals": [""]}, {"signals": ["\0"]}, {"model": "other"}, {"by": "eve"},
            {"signals": ["x" * (MAX_NAME_CHARACTERS + 1)]}, {"signals": ["x"] * (MAX_SIGNALS + 1)},
            {"note": "x" * (MAX_NOTE_CHARACTERS + 1)}, {"note": "\0"}, {"note": None},
        )),
    ],
)  # fmt: skip
def test_what_is_no_mute_is_refused(body):
    with pytest.raises(QueryError, match="expected"):
        decode_mute(body)
