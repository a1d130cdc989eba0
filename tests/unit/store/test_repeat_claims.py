import itertools
import multiprocessing
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from quadriga.store.journal import repeat_claims
from quadriga.store.journal.repeat_claims import FILE, RepeatClaims
from quadriga.store.records.errors import JournalError, KeyReusedError


@pytest.fixture
def path(tmp_path):
    return tmp_path / FILE


def claimed(path, names, *, start=1, fingerprint=b"f", **options):
    claims = RepeatClaims(path)
    try:
        return claims.claim(names, fingerprint, itertools.count(start).__next__, **options)
    finally:
        claims.close()


@pytest.mark.parametrize("durable", [False, True])
def test_a_name_keeps_the_id_that_it_got_first(path, durable):
    assert claimed(path, [b"a", b"b"], durable=durable) == [1, 2]
    assert claimed(path, [b"b", b"c", b"a"], start=7, durable=durable) == [2, 7, 1]


def test_no_names_are_no_claims(path):
    assert claimed(path, []) == []


def test_many_names_are_claimed_at_once(path):
    names = [b"%d" % number for number in range(10_000)]
    assert claimed(path, names) == list(range(1, 10_001))
    assert claimed(path, names, start=50_000) == list(range(1, 10_001))


def test_another_request_may_not_use_a_name(path):
    claimed(path, [b"a"], fingerprint=b"one")
    with pytest.raises(KeyReusedError, match="used with another request"):
        claimed(path, [b"new", b"a"], fingerprint=b"two")
    assert claimed(path, [b"new"], start=9, fingerprint=b"three") == [9]  # nothing was claimed


def test_a_refused_claim_leaves_the_file_usable(path):
    claims = RepeatClaims(path)
    claims.claim([b"a"], b"one", lambda: 1)
    with pytest.raises(KeyReusedError):
        claims.claim([b"a"], b"two", lambda: 2)
    assert claims.claim([b"b"], b"two", lambda: 3) == [3]
    claims.close()


def _race(path, start, results):
    results.put(claimed(path, [b"%d" % number for number in range(50)], start=start))


def test_processes_that_claim_a_name_at_once_get_one_id(path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=_race, args=(path, start, results)) for start in (1000, 2000, 3000)
    ]
    for process in processes:
        process.start()
    answers = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert answers[0] == answers[1] == answers[2]


def test_threads_that_claim_a_name_at_once_get_one_id(path):
    claims, ids = RepeatClaims(path), itertools.count(1)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: claims.claim([b"a"], b"f", ids.__next__)[0], range(100)))
    claims.close()
    assert set(answers) == {answers[0]}


def test_old_claims_are_forgotten_and_new_ones_never(path, monkeypatch):
    monkeypatch.setattr(repeat_claims, "KEPT_CLAIMS", 10)
    monkeypatch.setattr(repeat_claims, "_PRUNE_EVERY", 5)
    now_s = 1e9
    monkeypatch.setattr(repeat_claims.time, "time", lambda: now_s)
    claims, ids = RepeatClaims(path), itertools.count(1)
    for number in range(100):
        claims.claim([b"old%d" % number], b"f", ids.__next__)
    now_s += 2 * repeat_claims.WINDOW_S
    for number in range(20):
        claims.claim([b"new%d" % number], b"f", ids.__next__)
    claims.close()
    with sqlite3.connect(path) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM claim ORDER BY number")]
    connection.close()
    assert len(names) < 30
    assert names[-20:] == [b"new%d" % number for number in range(20)]


def test_a_clock_that_jumps_forgets_none_of_the_last(path, monkeypatch):
    monkeypatch.setattr(repeat_claims, "_PRUNE_EVERY", 1)
    claims, ids = RepeatClaims(path), itertools.count(1)
    first = claims.claim([b"a"], b"f", ids.__next__)
    monkeypatch.setattr(repeat_claims.time, "time", lambda: 9e9)
    for number in range(5):
        claims.claim([b"%d" % number], b"f", ids.__next__)
    assert claims.claim([b"a"], b"f", ids.__next__) == first
    claims.close()


def test_a_damaged_file_is_set_aside(path):
    path.write_bytes(b"this is no database" * 1000)
    claims = RepeatClaims(path)
    with pytest.raises(JournalError, match="try again"):
        claims.claim([b"a"], b"f", lambda: 1)
    assert claims.claim([b"a"], b"f", lambda: 2) == [2]
    claims.close()
    assert path.with_name(f"{FILE}.damaged").exists()


def test_a_folder_that_cannot_be_written_is_an_error_of_the_journal(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot note an idempotency key"):
        claimed(tmp_path / "file" / FILE, [b"a"])
