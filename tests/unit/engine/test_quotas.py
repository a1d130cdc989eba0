"""Quotas of keys: what is admitted over time, by several workers on one memory, and how a refusal is answered."""

import os
import random
from collections.abc import Callable, Iterator

import pytest

from quadriga.engine.access.key_ring import KeyMetrics
from quadriga.engine.access.quotas import KEY, REFUSED, REQUESTS, KeyQuota, KeyQuotas, RefusalLog
from quadriga.engine.http.asgi_front import announced_bytes
from quadriga.engine.measures import shared_counts
from quadriga.engine.measures.shared_counts import IN_FLIGHT, SharedCounts
from quadriga.proto.errors import LimitReached, ProtocolError
from quadriga.store.keys.key_limits import parse_limits, split_limits
from quadriga.store.keys.key_texts import AccessKey


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
    descriptor = SharedCounts(2).descriptor
    yield descriptor
    os.close(descriptor)


def quota_of(
    limits: str, memory: int, clock: Callable[[], float], *, worker: int = 0, key_id: str = "a"
) -> KeyQuota:
    counts = SharedCounts(2, worker, memory)
    parsed = parse_limits(split_limits(limits))
    return KeyQuota(
        counts, RefusalLog(), key_id=key_id, name="line 4", limits=parsed, clock=clock
    )  # fmt: skip


def cells_of(memory: int) -> list[int]:
    """Return the numbers of the only key, as another worker sees them."""
    ((name, cells),) = [(row.name, row.cells) for row in SharedCounts(2, 1, memory).totals(KEY)]
    assert name == (KEY, "a")
    return cells


def admitted(quota: KeyQuota, times: int) -> int:
    """Return how many of so many requests are admitted."""
    count = 0
    for _ in range(times):
        try:
            quota.begin()
        except LimitReached:
            continue
        quota.end()
        count += 1
    return count


def test_a_key_without_limits_is_counted(memory: int, clock: Clock):
    quota = quota_of("", memory, clock)
    assert [quota.begin(), quota.begin()] == [(), ()]
    quota.end()
    cells = cells_of(memory)
    assert (cells[IN_FLIGHT], cells[REQUESTS]) == (1, 2)
    assert not any(cells[cell] for cell in REFUSED.values())


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


@pytest.mark.parametrize("limit", [1, 5])
def test_after_the_time_that_a_refusal_names_there_is_room(memory: int, clock: Clock, limit: int):
    generator = random.Random(5)
    quota = quota_of(f"requests={limit}/minute", memory, clock)
    waits: list[tuple[float, int]] = []
    for _ in range(2000):
        try:
            quota.begin()
        except LimitReached as refusal:
            text = str(refusal).rpartition("try again in ")[2].removesuffix(" s")
            waits.append((float(text), refusal.retry_after_s))
            clock.now_s += generator.choice(waits[-1])
            quota.begin()
        quota.end()
        clock.now_s += generator.expovariate(limit / 25)
    assert len(waits) > 100
    assert all(0 < shown_s <= retry_after_s for shown_s, retry_after_s in waits)


def test_a_refusal_names_limit_key_and_time(memory: int, clock: Clock):
    quota = quota_of("requests=2/second,concurrency=9,jobs=3", memory, clock)
    clock.now_s = 1_000_000.25
    headers = dict(quota.begin())
    policy = b'"requests";q=2;w=1, "concurrency";q=9;qu="concurrent-requests", "jobs";q=3'
    assert headers == {b"ratelimit-policy": policy, b"ratelimit": b'"requests";r=1;t=1'}
    quota.begin()
    with pytest.raises(LimitReached) as raised:
        quota.begin()
    text = "expected at most 2 requests a second of the key 'line 4', got more: try again in 0.8 s"
    assert str(raised.value) == text
    assert raised.value.retry_after_s == 1
    assert dict(raised.value.headers) == {
        b"ratelimit-policy": policy,
        b"ratelimit": b'"requests";r=0;t=1',
    }


def test_a_refused_request_takes_nothing(memory: int, clock: Clock):
    quota = quota_of("requests=5/minute,concurrency=1", memory, clock)
    quota.begin()
    assert admitted(quota, 10) == 0
    quota.end()
    assert admitted(quota, 10) == 4
    cells = cells_of(memory)
    assert (cells[IN_FLIGHT], cells[REQUESTS]) == (0, 5)
    assert (cells[REFUSED["concurrency"]], cells[REFUSED["requests"]]) == (10, 6)


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
    for _, cells in SharedCounts(2, 0, memory).of_process(KEY, 0):
        cells[IN_FLIGHT] = 0  # as a worker does that starts again
    assert cells_of(memory)[IN_FLIGHT] == 1
    quota_of("concurrency=2", memory, clock).begin()
    with pytest.raises(LimitReached):
        quota_of("concurrency=2", memory, clock).begin()


def test_a_message_of_a_stream_is_a_request(memory: int, clock: Clock):
    quota = quota_of("requests=3/minute,concurrency=1", memory, clock)
    quota.begin()
    quota.add_message()
    quota.add_message()
    with pytest.raises(LimitReached, match="3 requests a minute"):
        quota.add_message()
    cells = cells_of(memory)
    assert (cells[IN_FLIGHT], cells[REQUESTS]) == (1, 3)


def test_jobs_are_limited(memory: int, clock: Clock):
    quota = quota_of("jobs=2", memory, clock)
    quota.check_jobs(1)
    with pytest.raises(LimitReached, match="at most 2 jobs that wait or run of the key") as raised:
        quota.check_jobs(2)
    assert raised.value.retry_after_s == 30
    quota.begin()


def test_refusals_are_logged_once_a_second(memory: int, clock: Clock, caplog):
    quota = quota_of("requests=1/day", memory, clock)
    assert admitted(quota, 5000) == 1
    assert 1 <= len(caplog.records) <= 10  # one for each second that this took
    assert "of 'line 4' (requests)" in caplog.text


def test_the_default_is_for_keys_that_have_no_limits_of_their_own(caplog):
    quotas = KeyQuotas(SharedCounts(), "requests=5/second")
    cases = {
        "": "requests", "none": "", "jobs=2": "jobs", "jobs=2,of-the-future=3": "jobs",
    }  # fmt: skip
    for text, expected in cases.items():
        quota = quotas.quota(AccessKey(id=f"id{text}", hash="", limits=text), has_default=True)
        assert ",".join(quota.limits) == expected
    assert "of-the-future" in caplog.text
    assert not quotas.quota(AccessKey(id="admin", hash=""), has_default=False).limits
    assert quotas.quota(AccessKey(id="id", hash=""), has_default=True).limits


def test_a_limit_that_no_longer_exists_is_warned_of_once_and_the_others_hold(
    caplog: pytest.LogCaptureFixture,
):
    text = "requests=5/second,bytes=1GB/hour,stored-bytes=50GB/day"
    quotas = KeyQuotas(SharedCounts(2), "jobs=1,export-bytes=10GB/day")
    for name in ("line 4", "line 5"):  # as after its name has changed
        key = AccessKey(id="k1", hash="", name=name, limits=text)
        assert set(quotas.quota(key, has_default=True).limits) == {"requests"}
    other = AccessKey(id="k2", hash="")
    assert set(quotas.quota(other, has_default=True).limits) == {"jobs"}
    assert caplog.messages == [
        f"{owner} has a limit that does not count, {limit}: this limit no longer exists"
        for owner, limit in (
            ("the setting key_limits", "export-bytes=10GB/day"),
            ("the key k1", "bytes=1GB/hour"),
            ("the key k1", "stored-bytes=50GB/day"),
        )
    ]
    caplog.clear()
    assert KeyQuotas(SharedCounts(2, 1), "bytes=1GB/hour").quota(other, has_default=True)
    assert not caplog.messages  # the first worker has said so


class Ring:
    """The keys that a test used."""

    def __init__(self, quotas: KeyQuotas) -> None:
        self.quotas = quotas

    def ending_keys(self, before_ms: float) -> list[AccessKey]:
        return []


def test_10_000_keys_have_a_thousand_series(clock: Clock):
    quotas = KeyQuotas(SharedCounts(), "")
    for number in range(10_000):
        key = AccessKey(id=f"{number:05}", hash="", name=f"key {number}")
        quotas.quota(key, has_default=True).begin()
    quotas.quota(AccessKey(id="unused", hash=""), has_default=True)
    families = {family.name: family.samples for family in KeyMetrics(Ring(quotas)).collect()}
    requests = families["quadriga_key_requests"]
    assert len(requests) == 1001
    assert sum(sample.value for sample in requests) == 10_000
    assert requests[0].labels == {"key": "00000", "name": "key 0"}
    assert requests[-1].labels == {"key": "other", "name": "other"}
    assert requests[-1].value == 9000
    assert families["quadriga_key_requests_running"][-1].value == 9000
    assert families["quadriga_key_requests_refused"] == []


def test_without_keys_there_are_no_series():
    assert all(not family.samples for family in KeyMetrics(None).collect())


def test_further_keys_are_answered(memory: int, clock: Clock, monkeypatch, caplog):
    monkeypatch.setattr(shared_counts, "MAX_ROWS", 2 + shared_counts.OTHER_ROWS)
    limits = "requests=1/day,concurrency=1"
    quotas = [quota_of(limits, memory, clock, key_id=f"{n}") for n in range(4)]
    assert [admitted(quota, 3) for quota in quotas] == [1, 1, 3, 3]
    assert "further models or keys are counted together" in caplog.text
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
        ({b"transfer-encoding": b"chunked"}, 0),
    ],
)
def test_the_size_of_a_body(headers: dict[bytes, bytes], expected: int):
    assert announced_bytes(headers, 1000) == expected


def test_refusals_are_errors_of_the_wire():
    assert (LimitReached("", 1).status, LimitReached("", 1).grpc_code) == (
        429,
        "RESOURCE_EXHAUSTED",
    )
    assert issubclass(LimitReached, ProtocolError)
