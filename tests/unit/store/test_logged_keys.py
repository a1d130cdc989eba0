"""Ids of keys: each key has one, across threads, processes and crashes, and no two have the same."""

import sqlite3
import threading
from contextlib import closing

import pytest

from quadriga.store.external import logged_keys
from quadriga.store.external.logged_keys import ClaimRequest, LoggedKeys, key_digest, random_digest
from quadriga.store.records.errors import ChangeError, JournalError
from quadriga.store.records.ids import COUNTER_BITS, IMPORT_WORKER, IdSource, time_ms, worker_of

AT_MS = 1_790_000_000_000
PER_MS = 1 << COUNTER_BITS


@pytest.fixture
def keys(tmp_path):
    return LoggedKeys(tmp_path, IdSource(3))


def claimed(keys, *requests):
    with keys.claimed(requests) as claims:
        return claims


@pytest.mark.parametrize("at_ms", [None, AT_MS])
def test_a_key_has_one_id_also_for_another_process(keys, tmp_path, at_ms) -> None:
    request = ClaimRequest(key_digest("", "m", "k"), at_ms)
    (first,) = claimed(keys, request)
    (again,) = claimed(LoggedKeys(tmp_path, IdSource(4)), request)
    assert (first.is_stored, again) == (False, first._replace(is_stored=True))
    if at_ms is not None:
        assert (time_ms(first.seq), worker_of(first.seq)) == (at_ms, IMPORT_WORKER)


def test_what_was_interrupted_keeps_its_id_and_counts_as_not_stored(keys) -> None:
    request = ClaimRequest(key_digest("", "m", "k"), None)
    with pytest.raises(RuntimeError), keys.claimed([request]) as (first,):
        raise RuntimeError("killed")
    assert claimed(keys, request) == [first]


def test_another_server_finds_the_same_id_for_the_same_key_and_time(tmp_path) -> None:
    request = ClaimRequest(key_digest("", "m", "k"), AT_MS)
    ids = [claimed(LoggedKeys(tmp_path / name, IdSource(1)), request)[0].seq for name in "ab"]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    "others", [("a", "m", "k"), ("", "n", "k"), ("", "m", "l"), ("", "mk", "")]
)
def test_keys_of_another_team_or_model_are_others(keys, others) -> None:
    own, other = (ClaimRequest(key_digest(*parts), AT_MS) for parts in (("", "m", "k"), others))
    assert claimed(keys, own)[0].seq != claimed(keys, other)[0].seq


def test_more_of_one_time_than_a_millisecond_holds_have_ids_of_the_next(keys) -> None:
    count = 2 * PER_MS + 5
    claims = claimed(keys, *(ClaimRequest(random_digest(), AT_MS) for _ in range(count)))
    assert len({claim.seq for claim in claims}) == count
    assert {0, 1, 2} <= {time_ms(claim.seq) - AT_MS for claim in claims} <= set(range(20))
    assert {worker_of(claim.seq) for claim in claims} == {IMPORT_WORKER}


def test_too_many_of_one_time_are_refused(keys, monkeypatch) -> None:
    monkeypatch.setattr(logged_keys, "MAX_SPREAD_MS", 1)
    with pytest.raises(ChangeError, match="too many of one time"):
        claimed(keys, *(ClaimRequest(random_digest(), AT_MS) for _ in range(3 * PER_MS)))
    assert claimed(keys, ClaimRequest(random_digest(), AT_MS))  # nothing was claimed


def test_two_threads_with_one_key_store_it_once(keys) -> None:
    request, first = ClaimRequest(key_digest("", "m", "k"), None), []

    def log() -> None:
        with keys.claimed([request]) as (only,):
            first.append(not only.is_stored)

    threads = [threading.Thread(target=log) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(first) == 1


def test_old_keys_are_forgotten(keys, monkeypatch) -> None:
    request = ClaimRequest(key_digest("", "m", "k"), AT_MS)
    (first,) = claimed(keys, request)
    monkeypatch.setattr(logged_keys, "REMEMBERED_DAYS", -1.0)
    claimed(keys, ClaimRequest(random_digest(), None))
    assert keys.find(request.digest) is None
    assert claimed(keys, request) == [
        first
    ]  # the same id, under which the writer finds what is there


def test_a_damaged_file_begins_anew(keys, tmp_path) -> None:
    claimed(keys, ClaimRequest(random_digest(), None))
    (tmp_path / logged_keys.FILE).write_bytes(b"no database" * 1000)
    assert claimed(keys, ClaimRequest(random_digest(), None))
    assert (tmp_path / f"{logged_keys.FILE}.damaged").exists()


def test_a_file_that_cannot_be_written_is_an_error_of_the_journal(keys, tmp_path) -> None:
    (tmp_path / logged_keys.FILE).mkdir()
    with pytest.raises(JournalError, match="cannot keep the key"):
        claimed(keys, ClaimRequest(random_digest(), None))


def test_the_file_is_sqlite_that_survives_a_reader(keys, tmp_path) -> None:
    claimed(keys, ClaimRequest(random_digest(), None))
    with closing(sqlite3.connect(tmp_path / logged_keys.FILE)) as connection:
        assert connection.execute("SELECT count(*) FROM claim WHERE stored = 1").fetchone() == (1,)
