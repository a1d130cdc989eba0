"""Quotas of keys: what is admitted over time, by several workers on one memory, and how a refusal is answered."""

import os
import random
from collections.abc import Callable, Iterator

import pytest

from quadriga.engine.access import key_counts
from quadriga.engine.access.key_counts import KeyCounts
from quadriga.engine.access.key_metrics import KeyMetrics
from quadriga.engine.access.quotas import KeyQuota, KeyQuotas, RefusalLog
from quadriga.engine.http.asgi_front import body_bytes
from quadriga.proto.errors import LimitReached, ProtocolError, TooLarge
from quadriga.proto.quota import UNKNOWN_SIZE
from quadriga.store.key_limits import parse_limits, split_limits
from quadriga.store.key_texts import AccessKey


class Clock:
    """A clock that a test sets."""

    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory() -> Iterator[int]:
    """Yield the descriptor of the memory of a server with two workers."""
    descriptor = KeyCounts(2).descriptor
    yield descriptor
    os.close(descriptor)


def quota_of(
    limits: str, memory: int, clock: Callable[[], float], *, worker: int = 0, key_id: str = "a"
) -> KeyQuota:
    counts = KeyCounts(2, worker, memory)
    parsed = parse_limits(split_limits(limits))
    return KeyQuota(
        counts, RefusalLog(), key_id=key_id, name="line 4", limits=parsed, clock=clock
    )  # fmt: skip


def admitted(quota: KeyQuota, times: int, size: int = 0) -> int:
    """Return how many of so many requests are admitted."""
    count = 0
    for _ in range(times):
        try:
            quota.begin(size)
        except LimitReached:
            continue
        quota.end()
        count += 1
    return count


def test_a_key_without_limits_is_counted(memory: int, clock: Clock):
    quota = quota_of("", memory, clock)
    assert [quota.begin(7), quota.begin(UNKNOWN_SIZE)] == [(), ()]
    quota.add_bytes(3)
    quota.end()
    (totals,) = KeyCounts(2, 1, memory).totals(["a"])
    assert (totals.key_id, totals.in_flight) == ("a", 1)
    assert (totals.totals["requests"], totals.totals["bytes"]) == (2, 10)
    assert not any(totals.refused.values())


def test_all_workers_share_a_rate(memory: int, clock: Clock):
    quotas = [quota_of("requests=100/second", memory, clock, worker=worker) for worker in (0, 1)]
    assert sum(admitted(quotas[turn % 2], 1) for turn in range(300)) == 100
    assert admitted(quota_of("requests=100/second", memory, clock, key_id="b"), 10) == 10
    clock.now_s += 2
    assert sum(admitted(quotas[turn % 2], 1) for turn in range(300)) == 100


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
@pytest.mark.parametrize("seed", range(5))
def test_nobody_gets_more_than_the_limit_on_average(
    memory: int, clock: Clock, limit: int, seed: int
):
    generator = random.Random(seed)
    quotas = [quota_of(f"requests={limit}/minute", memory, clock, worker=n) for n in (0, 1)]
    begun_s, times = clock.now_s, []
    while clock.now_s < begun_s + 1200:
        clock.now_s += generator.expovariate(3 * limit / 60)
        if generator.random() < 0.02:  # a burst
            times += [clock.now_s] * admitted(generator.choice(quotas), 2 * limit)
        times += [clock.now_s] * admitted(generator.choice(quotas), 1)
    assert len(times) <= limit * 22  # as many periods are touched
    assert len(times) >= limit * 20 * 0.8  # who always tries gets what the limit allows
    for first, last in zip(times, times[2 * limit :], strict=False):
        assert last - first >= 60  # in no minute more than twice the limit


@pytest.mark.parametrize("limits", ["requests=5/minute", "bytes=50/minute"])
def test_after_the_time_that_a_refusal_names_there_is_room(memory: int, clock: Clock, limits: str):
    generator = random.Random(5)
    quota = quota_of(limits, memory, clock)
    waits: list[tuple[float, int]] = []
    for _ in range(2000):
        try:
            quota.begin(10)
        except LimitReached as refusal:
            text = str(refusal).rpartition("try again in ")[2].removesuffix(" s")
            waits.append((float(text), refusal.retry_after_s))
            clock.now_s += generator.choice(waits[-1])
            quota.begin(10)
        quota.end()
        clock.now_s += generator.expovariate(1 / 5)
    assert len(waits) > 100
    assert all(0 < shown_s <= retry_after_s for shown_s, retry_after_s in waits)


def test_a_refusal_names_limit_key_and_time(memory: int, clock: Clock):
    quota = quota_of("requests=2/second,concurrency=9,bytes=1GB/hour", memory, clock)
    clock.now_s = 1_000_000.25
    headers = dict(quota.begin(10**6))
    policy = (
        b'"requests";q=2;w=1, "concurrency";q=9;qu="concurrent-requests", '
        b'"bytes";q=1000000000;w=3600;qu="content-bytes"'
    )
    rest_s = 3600 - 1_000_000 % 3600
    assert headers == {
        b"ratelimit-policy": policy,
        b"ratelimit": f'"requests";r=1;t=1, "bytes";r=999000000;t={rest_s}'.encode(),
    }
    quota.begin(0)
    with pytest.raises(LimitReached) as raised:
        quota.begin(0)
    text = "expected at most 2 requests a second of the key 'line 4', got more: try again in 0.8 s"
    assert str(raised.value) == text
    assert raised.value.retry_after_s == 1
    assert dict(raised.value.headers) == {
        b"ratelimit-policy": policy,
        b"ratelimit": b'"requests";r=0;t=1',
    }


def test_a_refused_request_takes_nothing(memory: int, clock: Clock):
    quota = quota_of("requests=5/minute,bytes=100/minute", memory, clock)
    assert admitted(quota, 10, size=40) == 2
    assert admitted(quota, 10, size=20) == 1
    assert admitted(quota, 10) == 2
    (totals,) = KeyCounts(2, 1, memory).totals(["a"])
    assert (totals.in_flight, totals.totals["requests"], totals.totals["bytes"]) == (0, 5, 100)
    assert totals.refused["bytes"] == 17
    assert totals.refused["requests"] == 8


def test_what_never_fits_is_too_large(memory: int, clock: Clock):
    quota = quota_of("bytes=1kB/hour,export-bytes=10kB/day", memory, clock)
    with pytest.raises(
        TooLarge, match="at most 1 kB of request bodies an hour of the key 'line 4'"
    ):
        quota.begin(1001)
    quota.begin(1000)
    with pytest.raises(TooLarge, match="at most 10 kB of exports a day"):
        quota.take_export(10_001)


def test_a_body_of_unknown_size_counts_as_it_arrives(memory: int, clock: Clock):
    quota = quota_of("bytes=100/minute", memory, clock)
    quota.begin(UNKNOWN_SIZE)
    quota.add_bytes(150)
    for size in (1, UNKNOWN_SIZE):
        with pytest.raises(LimitReached):
            quota.begin(size)
    with pytest.raises(LimitReached):
        quota.check()
    quota.begin(0)


def test_requests_at_once_are_counted_over_all_workers(memory: int, clock: Clock):
    quotas = [quota_of("concurrency=3", memory, clock, worker=worker) for worker in (0, 1)]
    quotas[0].begin()
    quotas[0].begin()
    quotas[1].begin()
    for quota in quotas:
        with pytest.raises(LimitReached, match="at most 3 requests at once of the key 'line 4'"):
            quota.begin()
    quotas[1].end()
    quotas[0].check()
    quotas[0].begin()


def test_a_worker_that_died_holds_no_request(memory: int, clock: Clock):
    for worker in (0, 1):
        quota_of("concurrency=2", memory, clock, worker=worker).begin()
    restarted = KeyCounts(2, 0, memory)
    restarted.begin()
    assert [totals.in_flight for totals in restarted.totals(["a"])] == [1]
    quota_of("concurrency=2", memory, clock).begin()
    with pytest.raises(LimitReached):
        quota_of("concurrency=2", memory, clock).begin()


def test_a_message_of_a_stream_is_a_request(memory: int, clock: Clock):
    quota = quota_of("requests=3/minute,concurrency=1", memory, clock)
    quota.begin()
    quota.add_message(5)
    quota.add_message(5)
    with pytest.raises(LimitReached, match="3 requests a minute"):
        quota.add_message(5)
    (totals,) = KeyCounts(2, 1, memory).totals(["a"])
    assert (totals.in_flight, totals.totals["requests"]) == (1, 3)


def test_a_message_is_counted_or_refused_once_it_is_there(memory: int, clock: Clock):
    quota = quota_of("bytes=100/minute,concurrency=1", memory, clock)
    quota.begin()
    with pytest.raises(LimitReached, match="1 request at once"):
        quota.begin()
    quota.take_bytes(60)
    with pytest.raises(LimitReached, match="100 bytes of request bodies a minute"):
        quota.take_bytes(60)
    with pytest.raises(TooLarge, match="got 101 at once"):
        quota.take_bytes(101)
    quota.take_bytes(40)
    (totals,) = KeyCounts(2, 1, memory).totals(["a"])
    assert (totals.in_flight, totals.totals["bytes"]) == (1, 100)


def test_exports_stored_bytes_and_jobs(memory: int, clock: Clock):
    quota = quota_of("jobs=2,export-bytes=10/day,stored-bytes=10/day", memory, clock)
    quota.check_jobs(1)
    with pytest.raises(LimitReached, match="at most 2 jobs that wait or run of the key") as raised:
        quota.check_jobs(2)
    assert raised.value.retry_after_s == 30
    quota.take_export(7)
    quota.check_export()
    with pytest.raises(LimitReached, match="10 bytes of exports a day"):
        quota.take_export(7)
    quota.take_export(3)
    with pytest.raises(LimitReached):
        quota.check_export()
    quota.check_storing()
    quota.add_stored(12)
    with pytest.raises(LimitReached, match="10 bytes of stored images and records a day"):
        quota.check_storing()
    quota.begin(100)


def test_refusals_are_logged_once_a_second(memory: int, clock: Clock, caplog):
    quota = quota_of("requests=1/day", memory, clock)
    assert admitted(quota, 5000) == 1
    assert 1 <= len(caplog.records) <= 10  # one for each second that this took
    assert "of 'line 4' (requests)" in caplog.text


def test_the_default_is_for_keys_that_have_no_limits_of_their_own(caplog):
    quotas = KeyQuotas(KeyCounts(1), "requests=5/second")
    cases = {
        "": "requests", "none": "", "jobs=2": "jobs", "jobs=2,of-the-future=3": "jobs",
    }  # fmt: skip
    for text, expected in cases.items():
        quota = quotas.quota(AccessKey(id=f"id{text}", hash="", limits=text), has_default=True)
        assert ",".join(quota.limits) == expected
        again = quotas.quota(AccessKey(id=f"id{text}", hash="", limits=text), has_default=True)
        assert again is quota
    assert "of-the-future" in caplog.text
    assert not quotas.quota(AccessKey(id="admin", hash=""), has_default=False).limits
    quotas.keep({"admin"})
    assert quotas.quota(AccessKey(id="id", hash=""), has_default=True).limits


class Ring:
    """The keys that a test used."""

    def __init__(self, quotas: KeyQuotas) -> None:
        self.key_uses = quotas.uses

    def ending_keys(self, before_ms: float) -> list[AccessKey]:
        return []


def test_10_000_keys_have_a_thousand_series(clock: Clock):
    quotas = KeyQuotas(KeyCounts(1), "")
    for number in range(10_000):
        key = AccessKey(id=f"{number:05}", hash="", name=f"key {number}")
        quotas.quota(key, has_default=True).begin(3)
    quotas.quota(AccessKey(id="unused", hash=""), has_default=True)
    families = {family.name: family.samples for family in KeyMetrics(Ring(quotas)).collect()}
    requests = families["quadriga_key_requests"]
    assert len(requests) == 1001
    assert sum(sample.value for sample in requests) == 10_000
    assert requests[0].labels == {"key": "00000", "name": "key 0"}
    assert requests[-1].labels == {"key": "other", "name": "other"}
    assert requests[-1].value == 9000
    assert families["quadriga_key_body_bytes"][-1].value == 27_000
    assert families["quadriga_key_requests_running"][-1].value == 9000
    assert families["quadriga_key_requests_refused"] == []


def test_without_keys_there_are_no_series():
    assert all(not family.samples for family in KeyMetrics(None).collect())


def test_further_keys_are_answered(memory: int, clock: Clock, monkeypatch, caplog):
    monkeypatch.setattr(key_counts, "MAX_KEYS", 2)
    quotas = [quota_of("requests=1/day", memory, clock, key_id=f"{n}") for n in range(4)]
    assert [admitted(quota, 3) for quota in quotas] == [1, 1, 3, 3]
    assert "further ones are not counted" in caplog.text
    assert admitted(quota_of("requests=1/day", memory, clock, key_id="1", worker=1), 3) == 0


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 0),
        ({b"content-length": b"12"}, 12),
        ({b"content-length": b"1000"}, 1000),
        ({b"content-length": b"1001"}, 0),
        ({b"content-length": b"9" * 5000}, 0),
        ({b"content-length": b"-1"}, 0),
        ({b"content-length": b"x"}, 0),
        ({b"transfer-encoding": b"chunked"}, UNKNOWN_SIZE),
    ],
)
def test_the_size_of_a_body(headers: dict[bytes, bytes], expected: int):
    assert body_bytes(headers, 1000) == expected


def test_refusals_are_errors_of_the_wire():
    assert (LimitReached("", 1).status, LimitReached("", 1).grpc_code) == (
        429,
        "RESOURCE_EXHAUSTED",
    )
    assert issubclass(LimitReached, ProtocolError)
